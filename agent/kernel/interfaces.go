package kernel

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
)

func (k *Mirror) addLink(ns *namespace, m rtnetlink.Link) *link {
	k.nextGen++
	l := &link{Link: m, gen: k.nextGen, in: ns, addrs: addresses{}, claims: map[table.ClaimKey]rtnetlink.Address{}}
	if m.Flags&unix.IFF_LOWER_UP == 0 {
		l.unplugged = time.Now()
	}
	ns.links[m.Index] = l
	k.join(ns, l)
	if ns == k.own {
		k.carried(l)
	}
	return l
}

// carried has the ports determined again. If domains of other interfaces depend on our
// interface l, the domains are determined again, too.
func (k *Mirror) carried(l *link) {
	if k.carries(l) {
		k.wiring = nil
	}
	k.PortsChanged()
}

// setLink records the current state of an interface.
func (k *Mirror) setLink(ns *namespace, m rtnetlink.Link, now time.Time) {
	l, known := ns.links[m.Index]
	if !known {
		l = k.addLink(ns, m)
		if ns != k.own {
			// It may have moved here with its addresses, or the messages about them were lost.
			if addrs, err := k.req.Addresses(ns.nsid, m.Index); err == nil {
				for _, a := range addrs {
					l.addrs.set(a)
				}
			}
		}
	} else if l.Link == m {
		return
	}
	old := l.Link
	carried := ns == k.own && k.carries(l)
	k.part(l)
	l.Link = m
	k.join(ns, l)
	if !l.Up() || l.MAC != old.MAC {
		clear(l.refused) // duplicate address detection starts again
	}
	if known && l.MAC != old.MAC {
		for addr, by := range k.holders {
			if slices.ContainsFunc(by, func(h held) bool { return h.ns == ns }) { // its frames with the former MAC bear nothing out
				k.ClaimEnded(k.table.RemoveWire(addr, func(c table.ClaimKey) bool { return c.MAC == old.MAC }, now))
				k.believe(addr)
			}
		}
	}
	switch {
	case l.Kind == "bridge": // it loses its carrier with its last port, such as that of a pod
	case l.Flags&unix.IFF_LOWER_UP == 0:
		if l.unplugged.IsZero() {
			l.unplugged = now
		}
	case !l.unplugged.IsZero():
		if now.Sub(l.unplugged) > restartsWithin && l.published != nil {
			answered := map[netip.Addr]bool{}
			for key := range k.answers.published {
				answered[key.Address] = ns == k.own
			}
			k.begin(ns, l, answered, now) // other hosts may have taken its addresses meanwhile
		}
		l.unplugged = time.Time{}
	}

	if ns != k.own {
		if !ns.published || old.Lower != m.Lower || old.LowerNSID != m.LowerNSID {
			k.publishNamespace(ns, now) // the namespace may have become one of ours, or ceased to be
		}
		k.publish(ns, l, now)
		if l.Master != 0 || old.Master != 0 {
			k.publishHostEnds(ns, now)
		}
		return
	}

	if (old.Flags^m.Flags)&unix.IFF_LOWER_UP != 0 {
		k.carrierChanged(l, now)
	}
	if known && sameWiring(old, m) {
		k.publish(ns, l, now)
		return
	}
	if carried = carried || k.carries(l); carried {
		k.wiring = nil
	}
	k.PortsChanged()
	if known && old.Name != m.Name {
		k.dropDomains(l, now)
	}
	if isPair(m.Kind) {
		k.resolvePeer(l, now)
	}
	switch bridge := k.own.links[m.Master]; {
	case m.Filtering: // the VLANs of all ports may have changed
		k.readVLANs()
	case bridge != nil && bridge.Filtering && (!known || old.Master != m.Master):
		l.vlans.PVID = bridge.DefaultPVID // set by the kernel; its message about that comes later
	}
	k.publish(ns, l, now)
	if carried || known && old.Name != m.Name {
		l = nil // publish everything
	}
	k.publishAttached(l, now)
}

// resolvePeer resolves the nsid of the other end of our pair.
func (k *Mirror) resolvePeer(l *link, now time.Time) {
	other := k.byNSID[l.LowerNSID]
	if other == nil || other.links[l.Lower] == nil {
		return
	}
	peer := other.links[l.Lower].Link
	switch {
	case peer.LowerNSID == k.ownNSID:
		return
	case isPeer(l, other, peer):
		peer.LowerNSID = k.ownNSID
	default: // our end moved here, and has another index now
		var err error
		if peer, err = k.req.Link(other.nsid, l.Lower); err != nil {
			k.fail(other, err, now)
			return
		}
	}
	k.setLink(other, peer, now)
}

// sameWiring reports whether an interface is on the same link in two states.
func sameWiring(a, b rtnetlink.Link) bool {
	return a.Name == b.Name && a.Master == b.Master && a.SlaveKind == b.SlaveKind && a.Kind == b.Kind &&
		a.Lower == b.Lower && a.LowerNSID == b.LowerNSID && a.VLAN == b.VLAN && (a.Flags^b.Flags)&unix.IFF_PROMISC == 0 &&
		a.Filtering == b.Filtering && a.DefaultPVID == b.DefaultPVID && a.PortOptions == b.PortOptions && a.NoLearning == b.NoLearning
}

// removeLink records the end of an interface.
func (k *Mirror) removeLink(ns *namespace, index int32, now time.Time) {
	l, known := ns.links[index]
	if !known {
		return
	}
	delete(ns.links, index)
	l.gone, k.linksEnded = true, true
	k.part(l)
	if ns == k.own {
		k.dropAnswers(func(key table.ClaimKey) bool { return key.At.Index == index }, now)
	}
	k.unpublish(ns, l, now)
	if ns != k.own {
		k.publishNamespace(ns, now)
		if host := k.own.links[l.Lower]; host != nil && l.LowerNSID == k.ownNSID {
			k.publish(k.own, host, now) // it has lost its peer
		}
		if l.Master != 0 {
			k.publishHostEnds(ns, now)
		}
		ends := map[*link]*namespace{}
		for _, other := range k.byNSID {
			for _, end := range other.links {
				if isPair(end.Kind) && end.LowerNSID == ns.nsid && end.Lower == index {
					ends[end] = other
				}
			}
		}
		k.readEnds(ends, now)
		return
	}
	k.carried(l)
	k.dropDomains(l, now)
	// Its wire claims end with it.
	k.dropFrames(index, now)
	if k.carries(l) {
		k.publishAttached(nil, now)
	}
	k.readEnds(maps.Clone(k.attached[index]), now)
}

// readEnds reads interfaces again whose peer or lower device is gone: they were removed as well, or
// one of the two moved. A namespace that is being destroyed sends no messages.
func (k *Mirror) readEnds(ends map[*link]*namespace, now time.Time) {
	for peer, other := range ends {
		m, err := k.req.Link(other.nsid, peer.Index)
		switch {
		case err == nil:
			k.setLink(other, m, now)
		case errors.Is(err, unix.ENODEV):
			k.removeLink(other, peer.Index, now)
		default:
			k.fail(other, err, now)
		}
	}
}

// setVLANs records the VLANs that a bridge, or a port of one, assigns to frames without a tag.
func (k *Mirror) setVLANs(index int32, vlans rtnetlink.VLANs, now time.Time) {
	l := k.own.links[index]
	if l == nil || l.vlans.PVID == vlans.PVID && maps.Equal(l.vlans.Tunnels, vlans.Tunnels) {
		return
	}
	if !maps.Equal(l.vlans.Tunnels, vlans.Tunnels) {
		k.PortsChanged()
	}
	l.vlans = vlans
	k.wiring = nil
	if bridge := k.own.links[l.Master]; l.Filtering || bridge != nil && bridge.Filtering {
		k.publish(k.own, l, now)
		k.publishAttached(nil, now)
	}
}

// readVLANs reads the VLANs that bridges assign to frames without a tag, if any bridge filters VLANs.
func (k *Mirror) readVLANs() {
	filtering := false
	for _, l := range k.own.links {
		filtering = filtering || l.Filtering
	}
	if !filtering {
		return
	}
	vlans, err := k.req.VLANs()
	if err != nil {
		k.log.Warn("cannot read the VLANs of bridge ports", "error", err)
		k.Incomplete()
		return
	}
	for index, l := range k.own.links {
		if !maps.Equal(l.vlans.Tunnels, vlans[index].Tunnels) {
			k.PortsChanged()
		}
		l.vlans = vlans[index]
	}
	k.wiring = nil
}

// TunnelsSet ends the wire claims on one of our own interfaces that have no VLAN, or one of those given, because the
// observer was just told other tunnels for these.
func (k *Mirror) TunnelsSet(index int32, vlans map[uint16]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if l := k.own.links[index]; l != nil {
		l.tunnelsSet = now
	}
	k.table.Update(func() {
		var ended []table.ClaimKey
		for key := range k.table.WireClaims(index) {
			if key.VLAN == 0 || vlans[key.VLAN] {
				ended = append(ended, key)
			}
		}
		for _, key := range ended {
			k.table.RemoveWire(key.Address, func(other table.ClaimKey) bool { return other == key }, now)
		}
		k.ClaimEnded(ended)
	})
}

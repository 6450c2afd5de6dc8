package kernel

import (
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Port is an interface to attach the observer to.
type Port struct {
	Index int32
	Gen   uint64
	Name  string
	// Tunnels are the VLANs in which the bridge puts frames, by the tunnel that they came through (VNI). The map must not
	// be changed.
	Tunnels map[uint32]uint16
	// Untold is set if frames of several networks enter through it, which nothing tells apart.
	Untold bool
}

// Ports returns the lowest devices of our own namespace through which frames can enter:
// neither both a bridge or bond and its port, nor both a VLAN and its parent.
func (k *Mirror) Ports() []Port {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []Port
	for _, l := range k.own.links {
		if isPort(l) {
			p := Port{Index: l.Index, Gen: l.gen, Name: l.Name, Untold: k.isUntold(l) && l.SlaveKind != "openvswitch"}
			if k.isMixed(l) {
				p.Tunnels = l.vlans.Tunnels
			}
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Port) int { return int(a.Index) - int(b.Index) })
	return out
}

// isPort reports whether the observer is to be attached to an interface.
func isPort(l *link) bool {
	if l.ARPHRD != unix.ARPHRD_ETHER || isLocal(l) || isChild(l.Kind) {
		return false
	}
	switch l.Kind {
	case "bridge", "bond", "team", "vlan", "vrf", "openvswitch", "ifb":
		return false
	}
	return true
}

// isMixed reports whether frames of several networks enter through an interface, which the bridge tells apart by the
// tunnel that they came through.
func (t *topology) isMixed(l *link) bool {
	bridge := t.own.links[l.Master]
	return l.VLANTunnel && bridge != nil && bridge.Filtering
}

// isUntold reports whether frames of several networks enter through an interface, and nothing tells them apart. Networks on
// ports of Open vSwitch are no links in any case.
func (t *topology) isUntold(l *link) bool { return l.Metadata && !t.isMixed(l) }

// AddFrame adds the claim of frames that entered through one of our own interfaces and were
// last seen at c.Last. It determines their link. It leaves out frames of a network that is not known.
func (k *Mirror) AddFrame(key table.ClaimKey, c table.Claim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.own.links[key.At.Index]
	if l == nil {
		return // the interface is gone with all its claims
	}
	switch l.mixed = k.isMixed(l); {
	case k.isUntold(l):
		return
	case !l.mixed:
	case c.Last.Before(l.tunnelsSet): // the bridge may have put it into another VLAN
		k.ClaimEnded([]table.ClaimKey{key})
		return
	case key.VLAN == 0 && l.vlans.PVID == 0:
		return // its tunnel has no VLAN, so that the bridge drops it
	}
	if l.Proxy && key.Kind == ipwitnessv1.Evidence_ANSWERED {
		return // by our own kernel, from its neighbour table, or by a holder that is also seen by its other frames
	}
	if end, ok := k.ended[holding{key.Address, key.MAC}]; ok && c.Last.Before(end) {
		k.ClaimEnded([]table.ClaimKey{key}) // older than the end of its holder: the observer forgets it, so that it reports later frames
		return
	}
	d := k.domainOf(l, tagsOf(key.VLAN, key.InnerVLAN)...)
	if l.published.GetUplink() && key.VLAN == 0 && key.Source == "" {
		k.locateCard(l, key, c.Last)
	}
	c.Link, c.Routed = d.name, k.routedTo(l, d, key.Address)
	k.table.Update(func() {
		took, evicted := k.table.Add(key, c, c.Last)
		if took {
			k.putDomain(d, c.Last)
		}
		k.ClaimEnded(evicted)
	})
	if k.mayAnswer(key.Address) {
		table.Poke(k.answers.changed)
	}
}

// locatedFor is for how long a card stays on the LAN of an uplink that none of its frames enter, while they enter another one.
const locatedFor = time.Minute

// locateCard records that a frame of a card in another namespace has entered our uplink: the card is on the LAN of that uplink.
func (k *Mirror) locateCard(uplink *link, key table.ClaimKey, now time.Time) {
	for card, ns := range k.cards {
		if card.MAC != key.MAC || card.addrs[key.Address] == nil || !card.Up() {
			continue
		}
		if was := card.port; was != nil && k.own.links[was.Index] == was {
			there := k.domainOf(was).name == k.domainOf(uplink).name
			if there {
				card.heard = now
			}
			if there || now.Sub(card.heard) < locatedFor {
				continue
			}
		}
		card.port, card.heard = uplink, now
		k.table.Update(func() {
			k.publishNamespace(ns, now)
		})
	}
}

// Departed ends the wire claims to an address with the MAC of an owner on another node that has given the address up. The
// observer reports its next frame as a new one.
func (k *Mirror) Departed(addr netip.Addr, mac string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.table.Update(func() {
		k.ClaimEnded(k.table.RemoveWire(addr, func(c table.ClaimKey) bool { return c.MAC == mac || c.Source == mac }, time.Now()))
	})
	k.believe(addr)
}

// routedTo reports whether the node itself routes an address to the namespace behind its port
// l: either through that port, or on the port's broadcast domain d to a next hop in the
// namespace. Nothing inside the namespace can cause such a route. The result is false for
// addresses that the namespace itself has, except on its loopback.
func (k *Mirror) routedTo(l *link, d domain, addr netip.Addr) bool {
	if l.published.GetPeerNamespace() == 0 || l.published.GetUplink() || addr.IsLinkLocalUnicast() {
		return false // a link-local address has a route through every interface
	}
	peer := k.byNSID[l.LowerNSID]
	if peer == nil {
		return false
	}
	for _, own := range peer.links {
		if own.addrs[addr] != nil && !isLocal(own) {
			return false
		}
	}
	hops, err := k.req.Route(addr)
	if err != nil {
		k.log.Debug("cannot look up route", "address", addr, "error", err)
		return false
	}
	return slices.ContainsFunc(hops, func(h rtnetlink.Hop) bool {
		if h.Local {
			return false
		}
		if h.Index == l.Index {
			return true
		}
		out := k.own.links[h.Index]
		return out != nil && h.Gateway.IsValid() && peer.has(h.Gateway) && k.domainOf(out).name == d.name
	})
}

// Expire ends the wire claims that were last seen before the given time, and the links that no
// other record refers to.
func (k *Mirror) Expire(before time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.table.Update(func() {
		k.ClaimEnded(k.table.RemoveOld(before, now))
		used := map[string]bool{}
		for _, r := range k.table.Interfaces.All() {
			used[r.GetLink()] = true
		}
		for _, index := range k.table.WirePorts() {
			for _, c := range k.table.WireClaims(index) {
				used[c.Link] = true
			}
		}
		for name := range k.domains {
			if !used[name] {
				k.dropDomain(name, now)
			}
		}
	})
}

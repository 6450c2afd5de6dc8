package kernel

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// dropFrames ends the wire claims of our interface.
func (p *publisher) dropFrames(index int32, now time.Time) {
	p.ClaimEnded(p.table.RemovePort(index, now))
}

// retract removes a namespace from the table. The end of its record implies the end of
// everything in it.
func (p *publisher) retract(ns *namespace, now time.Time) {
	if !ns.published {
		return
	}
	ns.published = false
	for _, l := range ns.links {
		p.unpublish(ns, l, now)
	}
	p.table.RemoveNamespace(ns.id, now)
	ns.missing, ns.intended = nil, nil
	ns.id = 0 // a new id, so that the end of the record is sent even if the namespace comes back at once
}

// publishNamespace puts a namespace into the table if it is one of ours, and retracts it
// otherwise.
func (p *publisher) publishNamespace(ns *namespace, now time.Time) {
	ours := p.ours(ns)
	switch {
	case !ours:
		p.retract(ns, now)
		return
	case !ns.published:
		if ns.published = true; ns.id == 0 {
			p.nextID++
			ns.id = p.nextID
		}
		p.putNamespace(ns, now)
		if p.names[ns.inode] == nil {
			p.Unnamed()
		}
	}
	for _, l := range ns.links {
		p.publish(ns, l, now)
	}
	p.compareIntended(ns, now)
}

func (p *publisher) putNamespace(ns *namespace, now time.Time) {
	r := &ipwitnessv1.NamespaceRecord{Id: ns.id, FirstSeen: timestamppb.New(ns.first), Workload: p.names[ns.inode], Intended: ns.intended}
	if ns == p.own {
		r.Workload = p.host
	}
	if ns.inode != 0 {
		r.Netns = fmt.Sprint(ns.inode)
	}
	p.table.Namespaces.Put(ns.id, r, now)
}

// publishAttached publishes everything again that depends on our interface changed, or
// everything if changed is nil.
func (p *publisher) publishAttached(changed *link, now time.Time) {
	for _, l := range p.own.links {
		switch {
		case l == changed:
		case changed == nil, p.lowerOf(l) == changed, l.Master == changed.Index:
			p.publish(p.own, l, now)
		default:
			continue
		}
		for child, ns := range p.attached[l.Index] {
			p.publish(ns, child, now)
		}
	}
	for card, ns := range p.cards {
		if card.port != nil {
			p.publish(ns, card, now)
		}
	}
	p.redirected(changed, now)
}

// publish updates an interface and its addresses in the table.
func (p *publisher) publish(ns *namespace, l *link, now time.Time) {
	if !ns.published {
		return
	}
	p.publishRecord(ns, l, now)
	for a := range l.addrs {
		p.publishAddress(ns, l, a, now)
	}
	for c := range l.claims {
		if _, refused := l.refused[c.Address]; l.addrs[c.Address] == nil && !refused {
			p.endClaim(ns, l, c, now)
		}
	}
	maps.DeleteFunc(l.since, func(a netip.Addr, _ time.Time) bool { return l.addrs[a] == nil })
}

// publishRecord updates the record of an interface in the table.
func (p *publisher) publishRecord(ns *namespace, l *link, now time.Time) {
	if r := p.interfaceRecord(ns, l, now); !proto.Equal(r, l.published) {
		if old, ok := p.domains[l.published.GetLink()]; ok && old.base == l && old.name != r.GetLink() {
			p.dropDomain(old.name, now) // it formed the domain that it leaves
		}
		if ns == p.own && l.published.GetUplink() != r.GetUplink() {
			for _, d := range p.domains {
				if d.base == l && len(d.tags) > 0 { // the record of a VLAN has the kind of its interface
					p.putDomain(p.newDomain(l, d.tags), now)
				}
			}
		}
		at := p.placeOf(ns, l)
		moved := l.published.GetLink() != r.GetLink() && l.place.leftFor(at)
		l.published = r
		p.table.Interfaces.Put(table.InterfaceKey{Namespace: ns.id, Index: l.Index}, r, now)
		if moved {
			p.begin(ns, l, nil, now)
		}
		l.place = at
		if moved {
			for a := range l.addrs {
				p.publishAddress(ns, l, a, now)
			}
		}
		if ns != p.own && r.Attachment == ipwitnessv1.InterfaceRecord_PEER {
			// The record of our end of the pair has the name of the namespace.
			if host := p.own.links[l.Lower]; host != nil {
				p.publish(p.own, host, now)
			}
		}
	}
	if ns == p.own {
		p.addressed(l, now)
	}
}

// begin has the addresses of an interface begin again in its domain: who held them first there does not depend on the
// time before. Those go on for which the node has answered by another of its interfaces.
func (p *publisher) begin(ns *namespace, l *link, answered map[netip.Addr]bool, now time.Time) {
	for c := range l.claims {
		if c.Kind == ipwitnessv1.Evidence_ASSIGNED && !answered[c.Address] {
			p.endClaim(ns, l, c, now)
			if l.since == nil {
				l.since = map[netip.Addr]time.Time{}
			}
			l.since[c.Address] = now
		}
	}
}

// addressChanged publishes one address of an interface, and everything that depends on it.
func (p *publisher) addressChanged(ns *namespace, l *link, addr netip.Addr, now time.Time) {
	if !ns.published {
		return
	}
	if ns == p.own {
		p.wired().routed = nil
		p.publishRecord(ns, l, now)
	}
	p.publishAddress(ns, l, addr, now)
	if addr.Is6() && l.addrs[addr] == nil { // another one may be the first of its subnet now
		for a := range l.addrs {
			p.publishAddress(ns, l, a, now)
		}
	}
	p.compareIntended(ns, now)
}

// follows reports whether an IPv6 address is a further one of its subnet on an interface: both have no lifetime, and the other
// one is older. The kernel itself flags IPv4 addresses alone in this way.
func (l *link) follows(a rtnetlink.Address) bool {
	if !a.Addr.Is6() || a.Addr.IsLinkLocalUnicast() || a.PrefixLength == 128 || a.Flags&unix.IFA_F_PERMANENT == 0 {
		return false
	}
	subnet := netip.PrefixFrom(a.Addr, int(a.PrefixLength)).Masked()
	for addr, all := range l.addrs {
		if subnet.Contains(addr) && slices.ContainsFunc(all, func(other rtnetlink.Address) bool {
			return other.PrefixLength == a.PrefixLength && other.Flags&unix.IFA_F_PERMANENT != 0 && other.Created < a.Created
		}) {
			return true
		}
	}
	return false
}

// publishAddresses updates all addresses of a namespace in the table.
func (p *publisher) publishAddresses(ns *namespace, now time.Time) {
	for _, l := range ns.links {
		for a := range l.addrs {
			p.publishAddress(ns, l, a, now)
		}
	}
}

// publishAddress updates one address of an interface in the table.
func (p *publisher) publishAddress(ns *namespace, l *link, addr netip.Addr, now time.Time) {
	want := map[ipwitnessv1.Evidence_Kind]rtnetlink.Address{}
	addrs := l.addrs[addr]
	if addrs != nil {
		delete(l.refused, addr) // it was set again
	}
	deleted, refused := l.refused[addr]
	if refused {
		addrs = []rtnetlink.Address{deleted}
	}
	for _, a := range addrs {
		kind := ipwitnessv1.Evidence_ASSIGNED
		switch {
		case !l.Up(): // lists contain the addresses of such interfaces as well
			continue
		case a.Addr.IsLoopback() || a.Addr.IsMulticast():
			continue
		case a.Addr.Is4In6(): // not the IPv4 address, and never a source on a wire: Linux drops such packets
			continue
		case refused, a.Flags&unix.IFA_F_DADFAILED != 0:
			if l.replaced(a) {
				continue
			}
			kind = ipwitnessv1.Evidence_DAD_FAILED
		case a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0:
			continue
		}
		if l.follows(a) {
			a.Flags |= unix.IFA_F_SECONDARY
		}
		if have, ok := want[kind]; !ok || a.PrefixLength < have.PrefixLength {
			want[kind] = a
		}
	}
	switch _, used := want[ipwitnessv1.Evidence_ASSIGNED]; {
	case l.addrs[addr] == nil:
		delete(l.since, addr)
	case !used:
		if l.since == nil {
			l.since = map[netip.Addr]time.Time{}
		}
		l.since[addr] = time.Time{}
	default:
		if since, waited := l.since[addr]; waited && since.IsZero() {
			l.since[addr] = now
		}
	}
	for _, kind := range []ipwitnessv1.Evidence_Kind{ipwitnessv1.Evidence_ASSIGNED, ipwitnessv1.Evidence_DAD_FAILED} {
		c := table.ClaimKey{Address: addr, Kind: kind, At: table.InterfaceKey{Namespace: ns.id, Index: l.Index}}
		a, wanted := want[kind]
		have, published := l.claims[c]
		network, routed, first := table.Network{}, kind == ipwitnessv1.Evidence_ASSIGNED && p.leadsTo(ns, l, addr), now
		if kind == ipwitnessv1.Evidence_ASSIGNED {
			if t, ok := p.tenures[post{addr, l.gen, l.place.name}]; ok && now.Sub(t.ended) <= restartsWithin {
				first = t.began // the link had the address at the same place until a moment ago
			}
			network = p.networks[ns.inode].of(InterfaceAddress{l.Name, addr})
		}
		switch {
		case published && !wanted:
			p.endClaim(ns, l, c, now)
		case wanted && published && have == a:
			p.table.Describe(c, network, routed, now)
		case wanted:
			l.claims[c] = a
			if kind == ipwitnessv1.Evidence_ASSIGNED {
				p.holdsNow(ns, l, addr)
			}
			p.table.Add(c, table.Claim{
				Network:      network,
				Routed:       routed,
				PrefixLength: a.PrefixLength,
				Peer:         a.HasPeer(),
				Flags:        a.Flags,
				Assigned:     p.usedSince(l, a, now),
				First:        first,
				Last:         now,
				Count:        1,
			}, now)
		}
	}
}

// usedSince returns since when a link has used one of its addresses: since the kernel got it, or since it
// could be used if that was noticeably later. Detection of duplicates, which takes a second, is part of
// setting an address.
func (p *publisher) usedSince(l *link, a rtnetlink.Address, now time.Time) time.Time {
	const noticeably = 2 * time.Second
	got := p.assigned(a.Created, now)
	if since := l.since[a.Addr]; !got.IsZero() && since.Sub(got) > noticeably {
		return since.Add(since.Truncate(10 * time.Millisecond).Sub(since))
	}
	return got
}

// unpublish removes an interface and its addresses from the table.
func (p *publisher) unpublish(ns *namespace, l *link, now time.Time) {
	for c := range l.claims {
		p.endClaim(ns, l, c, now)
	}
	if l.published != nil {
		l.published = nil
		p.table.Interfaces.Remove(table.InterfaceKey{Namespace: ns.id, Index: l.Index}, now)
	}
}

// endClaim ends the claim of an address that its holder lost, and the holder's wire claims to
// it. A frame that was sent before must not bring them back.
func (p *publisher) endClaim(ns *namespace, l *link, c table.ClaimKey, now time.Time) {
	delete(l.claims, c)
	if len(p.ended)+len(p.tenures) > keptEnds && now.Sub(p.swept) > time.Second {
		p.swept = now
		maps.DeleteFunc(p.ended, func(_ holding, at time.Time) bool { return now.Sub(at) > latestFrame })
		maps.DeleteFunc(p.tenures, func(_ post, t tenure) bool { return now.Sub(t.ended) > restartsWithin })
	}
	if c.Kind == ipwitnessv1.Evidence_ASSIGNED {
		p.holdsNoMore(ns, l, c.Address)
		began := p.table.Claim(c)
		if at := began.Assigned; !at.IsZero() && at.Before(began.First) {
			began.First = at // it had the address before the agent started
		}
		p.tenures[post{c.Address, l.gen, l.place.name}] = tenure{began.First, now}
	}
	p.table.RemoveClaim(c, now)
	p.ended[holding{c.Address, l.MAC}] = now
	p.ClaimEnded(p.table.RemoveWire(c.Address, func(w table.ClaimKey) bool {
		return w.MAC == l.MAC || (ns != p.own && l.LowerNSID == p.ownNSID && isPair(l.Kind) && w.At.Index == l.Lower)
	}, now))
}

// publishHostEnds publishes our ends of the pairs with a namespace again if their other ends
// are, or were, bridge ports there. The namespace may have become a switch, or ceased to be
// one.
func (p *publisher) publishHostEnds(ns *namespace, now time.Time) {
	for _, l := range ns.links {
		host := p.own.links[l.Lower]
		if host != nil && l.LowerNSID == p.ownNSID && (l.Master != 0 || host.published.GetUplink()) {
			p.publish(p.own, host, now)
		}
	}
}

package facts

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Beliefs are few: agents report only those that differ from their claims. They are replaced as a whole by each snapshot.

// MaxBeliefs limits the beliefs of a node.
const MaxBeliefs = 4096

// beliefKey identifies a belief of a node.
type beliefKey struct {
	link string
	addr index.Address
	mac  verdict.MAC
}

// ofAll returns the key without the address.
func (k beliefKey) ofAll() beliefKey { return beliefKey{link: k.link, mac: k.mac} }

// belief is a belief that an agent has reported.
type belief struct {
	node    *Node
	key     beliefKey
	state   verdict.EntryState
	count   uint32
	first   verdict.Stamp
	holders []holderKey
	tunnel  index.Address // zero if there is none
	cost    int32
}

// holderKey is an interface by the record number of its namespace and its index.
type holderKey struct{ namespace, index uint32 }

// beliefCost is the charge of a belief, as KernelCost is that of a claim.
const beliefCost = 700

func (a *applying) belief(rec *pb.BeliefRecord) {
	f, n := a.facts, a.node
	addr, _ := netip.AddrFromSlice(rec.GetAddress())
	key := beliefKey{rec.GetLink(), index.AddressOf(addr), verdict.MAC(rec.GetMac())}
	old := n.beliefs[key]
	if rec.GetGone() {
		if old != nil {
			f.dropBelief(old)
		}
		return
	}
	state := Known(rec.GetState(), verdict.EntryPermanent)
	if state == 0 || key.link == "" || key.mac == "" || addr.IsUnspecified() || addr.IsMulticast() || addr.Is4In6() || old == nil && len(n.beliefs) >= MaxBeliefs {
		f.changes.Dropped["belief"]++
		return
	}
	if old == nil {
		if !f.fits(n, beliefCost, true) {
			f.countRefused(n, "belief", false)
			return
		}
		f.touch(key.addr)
		old = &belief{node: n, key: key}
		setCharge(f, n, &old.cost, beliefCost)
		if n.beliefs == nil {
			n.beliefs, n.believed = make(map[beliefKey]*belief), make(map[beliefKey]int)
		}
		n.beliefs[key] = old
		n.believed[key.ofAll()]++
		f.believed[key.addr] = append(f.believed[key.addr], old)
	} else {
		f.touch(key.addr)
	}
	now := beliefOf(rec)
	old.state, old.count, old.first, old.holders, old.tunnel = state, now.count, now.first, now.holders, now.tunnel
}

// beliefOf returns the belief of a record, without its node and state.
func beliefOf(rec *pb.BeliefRecord) belief {
	addr, _ := netip.AddrFromSlice(rec.GetAddress())
	one := belief{key: beliefKey{rec.GetLink(), index.AddressOf(addr), verdict.MAC(rec.GetMac())}, count: rec.GetCount(), first: Stamp(rec.GetFirstSeen())}
	if to, ok := netip.AddrFromSlice(rec.GetTunnel()); ok {
		one.tunnel = index.AddressOf(to)
	}
	for _, h := range rec.GetHolders() {
		one.holders = append(one.holders, holderKey{h.GetNamespace(), h.GetIndex()})
	}
	return one
}

// dropBelief removes a belief.
func (f *Facts) dropBelief(one *belief) {
	f.touch(one.key.addr)
	setCharge(f, one.node, &one.cost, 0)
	delete(one.node.beliefs, one.key)
	if all := one.key.ofAll(); one.node.believed[all] > 1 {
		one.node.believed[all]--
	} else {
		delete(one.node.believed, all)
	}
	left := slices.DeleteFunc(f.believed[one.key.addr], func(other *belief) bool { return other == one })
	if f.believed[one.key.addr] = left; len(left) == 0 {
		delete(f.believed, one.key.addr)
	}
}

// dropBeliefs removes all beliefs of a node.
func (f *Facts) dropBeliefs(n *Node) {
	for _, one := range n.beliefs {
		f.dropBelief(one)
	}
}

// addBeliefs adds the beliefs about the address of the case.
func (b *Builder) addBeliefs(a index.Address) {
	f := b.facts
	for _, one := range f.believed[a] {
		n := one.node
		l := n.link(one.key.link)
		if l == 0 {
			continue
		}
		out := b.belief(n, l, one)
		if len(out.Holders) == 0 {
			continue // they have just ended
		}
		out.Inside, out.Addresses = n.closed(l), n.believed[one.key.ofAll()]
		if d, ok := f.tombstones[tombstone{a, one.key.mac}]; ok && d.at.Add(f.Policy.StaleAfter) > f.now() {
			out.Left = d.at
			if d.who != "" && d.node != nil {
				out.Former = &verdict.Namespace{Node: d.node.Rec, Who: d.who}
			}
		}
		b.c.Beliefs = append(b.c.Beliefs, out)
	}
}

// belief returns a belief on a link of a node, with its holders and receivers.
func (b *Builder) belief(n *Node, l uint32, one *belief) verdict.Belief {
	out := verdict.Belief{Link: b.link(n, l), MAC: one.key.mac, State: one.state, Count: one.count, Since: one.first}
	for _, h := range one.holders {
		if i := n.iface(h.namespace, h.index); i != 0 {
			out.Holders = append(out.Holders, b.iface(n, i))
		}
	}
	add := func(by *Node, i uint32, there bool) {
		if there {
			out.Receivers = append(out.Receivers, b.iface(by, i))
		} else if b.assigned(by.idOf(by.interfaces.at(i).namespace)) {
			out.Cards = append(out.Cards, b.iface(by, i))
		}
	}
	m := n.texts.mac(one.key.mac)
	for i := n.holder(m); i != 0; i = n.interfaces.at(i).alike {
		add(n, i, n.interfaces.at(i).link == l)
	}
	if m.form == sixBytes {
		for by, i := range b.facts.holdersOf(m.bytes) {
			if by != n {
				add(by, i, out.Link.Domain != nil && by.joints[by.interfaces.at(i).link].Domain(BySight) == out.Link.Domain)
			}
		}
	}
	if one.tunnel != (index.Address{}) {
		out.Tunnel, out.Far = one.tunnel.Addr(), b.facts.nodeWith(one.tunnel)
	}
	return out
}

// Answered returns the beliefs in the answer of an agent about the address of the last case.
func (b *Builder) Answered(n *Node, answer *pb.BeliefAnswer) (all []verdict.Belief) {
	for _, rec := range answer.GetBeliefs() {
		one, l := beliefOf(rec), n.link(rec.GetLink())
		if one.state = Known(rec.GetState(), verdict.EntryOld); one.state != 0 && one.key.mac != "" && l != 0 {
			all = append(all, b.belief(n, l, &one))
		}
	}
	return all
}

// RouteOf returns the route in the answer of an agent about the address of the last case; nil if there is none.
func (b *Builder) RouteOf(n *Node, answer *pb.BeliefAnswer) *verdict.Route {
	rec := answer.GetRoute()
	out := &verdict.Route{Node: n.Rec, Kind: Known(rec.GetKind(), verdict.RouteNone)}
	for _, h := range rec.GetHops() {
		hop := verdict.Hop{Interface: h.GetInterface()}
		if l := n.link(h.GetLink()); l != 0 {
			hop.Link, hop.Inside = b.link(n, l), n.closed(l)
		}
		if to, ok := netip.AddrFromSlice(h.GetGateway()); ok {
			hop.Gateway, hop.Via = to, b.facts.nodeWith(index.AddressOf(to))
		}
		out.Hops = append(out.Hops, hop)
	}
	if out.Kind == 0 {
		return nil
	}
	return out
}

// Near returns all nodes: first those with a claim or belief about an address, then those on a link of one of them, then
// the others.
func (f *Facts) Near(a index.Address) (nodes []*Node) {
	seen := make(map[*Node]bool)
	add := func(n *Node) {
		if n != nil && !seen[n] {
			seen[n] = true
			nodes = append(nodes, n)
		}
	}
	var links []*Link
	for n, i := range f.claimsTo(a) {
		add(n)
		one := n.claims.at(i)
		l := n.interfaces.at(one.port).link
		if w := one.wire(); w != 0 {
			l = n.wires.at(w).link
		}
		links = append(links, n.joints[l])
	}
	for _, one := range f.believed[a] {
		add(one.node)
		links = append(links, one.node.joints[one.node.link(one.key.link)])
	}
	for _, l := range links {
		for other := range l.Links {
			add(f.Node(other.Node))
		}
	}
	for _, n := range f.nodes {
		add(n)
	}
	return nodes
}

// assigned reports whether the kernel of an owner has the address of the case.
func (b *Builder) assigned(owner string) bool {
	return slices.ContainsFunc(b.c.Claims, func(c *verdict.Claim) bool { return c.Kind == verdict.Assigned && c.Interface.Namespace.ID == owner })
}

// nodeWith returns the node whose kernel has an address; nil if there is none, or several.
func (f *Facts) nodeWith(a index.Address) (found *verdict.Node) {
	for n, c := range f.claimsTo(a) {
		one := n.claims.at(c)
		switch {
		case one.kind != verdict.Assigned || n.interfaces.at(one.port).attachment != verdict.Own:
		case found != nil && found != n.Rec:
			return nil
		default:
			found = n.Rec
		}
	}
	return found
}

// closed reports whether the agent sees all interfaces on a link.
func (n *Node) closed(l uint32) bool {
	if n.Blind() {
		return false
	}
	for i := range n.interfaces.all {
		if one := n.interfaces.at(i); one.link == l && (one.flags.has(uplink) || one.flags.has(tapped)) {
			return false
		}
	}
	return n.links.at(l).kind == verdict.Bridge || n.links.at(l).kind == verdict.PointToPoint
}

// mostNamed limits the tombstones that have the workload of the holder.
const mostNamed = 4096

// nameTombstone adds the workload of the holder to its tombstone.
func (f *Facts) nameTombstone(addr index.Address, mac verdict.MAC, who verdict.Who) {
	if d, ok := f.tombstones[tombstone{addr, mac}]; ok && len(f.tombstones) <= mostNamed {
		d.who = verdict.Who(strings.Clone(string(who)))
		f.tombstones[tombstone{addr, mac}] = d
	}
}

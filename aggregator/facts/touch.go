package facts

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// touch queues an address to be judged when the change is complete. It must be called before
// anything changes that the owners of the address depend on.
func (f *Facts) touch(a index.Address) *Item {
	item := f.queue(a).touch(a, f.batch, f.ownersBefore)
	if !item.looked {
		item.looked = true
		if item.New = !f.Claimed(a); !item.New {
			item.sightings = f.attributed(a)
		}
	}
	return item
}

// ownersBefore derives the owners of an address before a change, if a subscriber or the audit needs
// them.
func (f *Facts) ownersBefore(a index.Address) (owners []verdict.Owner, derived bool) {
	if f.Policy.ReusedWithin == 0 && !f.OwnersWatched() {
		return nil, false
	}
	if !f.Claimed(a) { // as after a start: an address without claims has no owners
		return nil, true
	}
	judged := f.Policy.Judge(f.scratch.of(a, false))
	f.scratch.Keep()
	return judged.Owners, true
}

// touchPorts touches the addresses of all claims that entered through a namespace's own ports.
func (f *Facts) touchPorts(n *Node, record uint32) {
	for _, i := range n.ports(record) {
		f.touchClaims(n, i)
	}
}

// touchClaims touches the addresses claimed on an interface.
func (f *Facts) touchClaims(n *Node, i uint32) {
	for c := range n.on(i) {
		f.touch(n.claims.at(c).addr)
	}
}

// touchInterface touches the addresses on a node whose judgement depends on an interface of the
// node.
func (f *Facts) touchInterface(n *Node, i uint32) {
	f.touchClaims(n, i)
	if one := n.interfaces.at(i); one.mac.form != noMAC {
		f.touchNamed(n, one.mac)
	}
}

// touchNamed touches the addresses of all claims that name a MAC or were sent by it. They may now
// belong to other namespaces with the MAC.
func (f *Facts) touchNamed(n *Node, m mac) {
	for _, c := range n.sources[n.texts.macOf(m)] {
		f.touch(n.claims.at(c).addr)
	}
	if hw := n.hardwareOf(m); hw != 0 {
		f.touchBy(n, hw)
		f.notifySenders(n, 0, m)
	}
}

// touchGuest touches the addresses that are claimed with the MAC of a macvtap device that gains or loses an address: the MAC
// may be a virtual machine's.
func (f *Facts) touchGuest(n *Node, c *claim) {
	if at := n.interfaces.at(c.port); at.flags.has(macvtap) && c.isUsed() {
		f.touchInterface(n, c.port)
		f.touchNeighbours(n, c.port)
	}
}

// touchLink touches all addresses on a link.
func (f *Facts) touchLink(n *Node, l uint32) {
	if n.links.at(l).users == 0 {
		return
	}
	for i := range n.interfaces.all {
		if n.interfaces.at(i).link == l {
			f.touchInterface(n, i)
		}
	}
	for c := range n.claims.all {
		if one := n.claims.at(c); one.wire() != 0 && n.wires.at(one.wire()).link == l {
			f.touch(one.addr)
		}
	}
}

// touchAnswers touches the other addresses for which a host answers, when their number changes or
// when a kernel gains or loses one of them. Both may decide whether the host is a proxy. leaving is
// 1 for a claim that ends, and 0 otherwise.
func (f *Facts) touchAnswers(n *Node, c, leaving uint32) {
	one := n.claims.at(c)
	if one.wire() == 0 {
		for other, k := range f.claimsTo(one.addr) {
			claim := other.claims.at(k)
			if claim.wire() == 0 {
				continue
			}
			hw := other.wires.at(claim.wire()).hardware
			f.notifySenders(other, other.interfaces.at(claim.port).peer(), other.hardware.at(hw).mac)
			if claim.kind == verdict.Answered && other.hardware.at(hw).count <= fewAnswers {
				f.touchBy(other, hw)
			}
		}
		return
	}
	hw := n.wires.at(one.wire()).hardware
	if count := n.hardware.at(hw).count - leaving; count <= fewAnswers { // below the limit, the sender may no longer be a proxy
		f.touchBy(n, hw)
	}
}

// touchBy touches the addresses of the claims with a MAC. They may now belong to owners other than
// the namespaces behind their ports.
func (f *Facts) touchBy(n *Node, hw uint32) {
	for c := range n.by(hw) {
		one := n.claims.at(c)
		f.touch(one.addr)
		if peer := n.interfaces.at(one.port).peer(); peer != 0 {
			f.changes.lacking(n, peer)
		}
	}
}

// fewAnswers is the number of claims with one MAC up to which a new claim triggers their judgement.
// A sender with more claims has already been found to be a proxy or not.
const fewAnswers = 4 * verdict.ManyAnswers

// touchNode touches all addresses of a node.
func (f *Facts) touchNode(n *Node) {
	for c := range n.claims.all {
		f.touch(n.claims.at(c).addr)
	}
	f.touchAllocations(n)
}

// touchPieces is like touchNode, but works in pieces.
func (f *Facts) touchPieces(b *Batch, n *Node) {
	for from, more := uint32(1), true; more; {
		f.piece(b, func() {
			from, more = n.claims.some(from, func(c uint32) { f.touch(n.claims.at(c).addr) })
		})
	}
	f.piece(b, func() { f.touchAllocations(n) })
}

// touchAllocations touches the addresses that the node's own pools have allocated.
func (f *Facts) touchAllocations(n *Node) {
	for _, p := range n.Pools {
		for a := range p.entries {
			f.touch(a)
		}
	}
}

// touchDisputes schedules a judgement of the disputed addresses for which a node has claims, or
// about which it may have sent frames. It is called after a change that only affects the causes of
// conflicts: a change of the node's pools or of its own addresses.
func (f *Facts) touchDisputes(n *Node) { f.touchDisputesWithin(n, everywhere) }

// everywhere are prefixes that contain all addresses.
var everywhere = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// touchDisputesWithin is like touchDisputes for a change that only affects addresses in some
// prefixes.
func (f *Facts) touchDisputesWithin(n *Node, within []netip.Prefix) {
	for _, p := range within {
		if !slices.Contains(f.disputes[n], p) {
			f.disputes[n] = append(f.disputes[n], p)
		}
	}
}

// disputed reports whether a change of a node may affect the cause of a conflict about an address.
func (f *Facts) disputed(n *Node, a netip.Addr) bool {
	return slices.ContainsFunc(f.disputes[n], func(p netip.Prefix) bool { return p.Contains(a) })
}

// touchDisputed touches the addresses scheduled by touchDisputes, once for all changes of a piece.
func (f *Facts) touchDisputed() {
	if len(f.disputes) == 0 {
		return
	}
	for a := range f.Disputed {
		if f.concerned(a) {
			f.touch(a)
		}
	}
	clear(f.disputes)
}

// concerned reports whether a node with changed pools or addresses has claims to an address, or may
// have sent frames that others saw.
func (f *Facts) concerned(a index.Address) bool {
	for n, c := range f.claimsTo(a) {
		if f.disputed(n, a.Addr()) {
			return true
		}
		at := n.claims.at(c).wire()
		if at == 0 {
			continue
		}
		m := n.hardware.at(n.wires.at(at).hardware).mac
		if !m.identifiesOne() {
			continue
		}
		for by := range f.holdersOf(m.bytes) {
			if f.disputed(by, a.Addr()) {
				return true
			}
		}
	}
	return false
}

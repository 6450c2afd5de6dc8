package facts

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/topology"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A frame from one node may enter another one. This file finds the node that has the MAC of such a
// frame, and reports the sighting to the topology.

// sharing has the MACs that several nodes may meet.
type sharing struct {
	*Facts
	// holders has, for each MAC and node, an interface with the MAC whose frames may enter another
	// node.
	holders *refs[[6]byte]
	// seen has the hardware that claims name, for MACs that identify one interface.
	seen *refs[[6]byte]
	// sightings are claims that were not looked at yet and may show that links are one.
	sightings []ref
}

func newSharing(f *Facts) *sharing {
	hash := func(m [6]byte) uint64 { return maphashBytes(m[:]) }
	return &sharing{
		Facts:   f,
		holders: newRefs(hash, func(r ref) [6]byte { return f.nodes[r.node()].interfaces.at(r.index()).mac.bytes }),
		seen:    newRefs(hash, func(r ref) [6]byte { return f.nodes[r.node()].hardware.at(r.index()).mac.bytes }),
	}
}

// apart reports whether a MAC can identify one interface.
func (m mac) apart() bool {
	return m.form == sixBytes && !verdict.MAC(m.bytes[:]).Shared()
}

// meets reports whether a frame of an interface may enter another node.
func (f *sharing) meets(n *Node, i uint32) bool {
	one := n.interfaces.at(i)
	return one.link != 0 && n.links.at(one.link).kind != verdict.PointToPoint && one.mac.apart()
}

// abroadOf yields all interfaces with a MAC whose frames may enter another node.
func (f *sharing) abroadOf(m [6]byte) func(yield func(*Node, uint32) bool) {
	return func(yield func(*Node, uint32) bool) {
		for r := range f.sharing.holders.all(m) {
			n := f.nodes[r.node()]
			for i := n.holder(mac{m, sixBytes}); i != 0; i = n.interfaces.at(i).alike {
				if f.meets(n, i) && !yield(n, i) {
					return
				}
			}
		}
	}
}

// seenOf yields the claims with a MAC that entered by an uplink.
func (f *sharing) seenOf(m [6]byte) func(yield func(*Node, uint32) bool) {
	return func(yield func(*Node, uint32) bool) {
		for r := range f.sharing.seen.all(m) {
			n := f.nodes[r.node()]
			for c := range n.by(r.index()) {
				if n.interfaces.at(n.claims.at(c).port).flags.has(uplink) && !yield(n, c) {
					return
				}
			}
		}
	}
}

// enterAbroad adds an interface, and re-examines what other nodes saw of it.
func (f *sharing) enterAbroad(n *Node, i uint32) {
	if !f.meets(n, i) {
		return
	}
	m := n.interfaces.at(i).mac.bytes
	f.lookAgain(m)
	f.sharing.holders.set(m, refOf(n.number, i))
}

// leaveAbroad removes an interface, before its record changes.
func (f *sharing) leaveAbroad(n *Node, i uint32) {
	if !f.meets(n, i) {
		return
	}
	one := n.interfaces.at(i)
	f.lookAgain(one.mac.bytes) // the MAC may have been ambiguous, and now identify one interface
	f.replaceHolder(n, i)
}

// replaceHolder lists another interface with the MAC of an interface in its place, or none.
func (f *sharing) replaceHolder(n *Node, i uint32) {
	m := n.interfaces.at(i).mac
	for k := n.holder(m); k != 0; k = n.interfaces.at(k).alike {
		if k != i && f.meets(n, k) {
			f.sharing.holders.set(m.bytes, refOf(n.number, k))
			return
		}
	}
	f.sharing.holders.remove(m.bytes, n.number)
}

// touchNeighbours touches the addresses that are claimed on the interface's domain for its hardware
// address.
func (f *sharing) touchNeighbours(n *Node, i uint32) {
	one := n.interfaces.at(i)
	if one.mac.form == noMAC || one.link == 0 || n.joints[one.link] == nil {
		return
	}
	f.touchOn(n.joints[one.link].Links, n, one.mac)
}

// touchOn touches the addresses that are claimed for a hardware address of a node on the nodes of
// links.
func (f *sharing) touchOn(links iter.Seq[*topology.Link], n *Node, m mac) {
	if m.apart() { // there may be thousands of links, but few nodes have claims that name it
		for r := range f.sharing.seen.all(m.bytes) {
			other := f.nodes[r.node()]
			for _, j := range other.joints {
				if contains(links, j) {
					f.touchBy(other, r.index())
					break
				}
			}
		}
		return
	}
	name := n.texts.macOf(m)
	if name == "" {
		return
	}
	for l := range links {
		other := f.byID[IDOf(l.Node)]
		if other == nil {
			continue
		}
		if hw := other.hardwareNamed(name); hw != 0 {
			f.touchBy(other, hw)
			f.spoke(other, 0, other.hardware.at(hw).mac)
		}
	}
}

func contains(links iter.Seq[*topology.Link], one *topology.Link) bool {
	for l := range links {
		if l == one {
			return true
		}
	}
	return false
}

// lookAgain re-examines the claims with a MAC that entered by an uplink.
func (f *sharing) lookAgain(m [6]byte) {
	for by, c := range f.seenOf(m) {
		f.touch(by.claims.at(c).addr)
		f.sighted(refOf(by.number, c))
	}
}

// sighted queues a claim that may show that links are one.
func (f *sharing) sighted(r ref) { f.sharing.sightings = append(f.sharing.sightings, r) }

// listNamed and unlistNamed count a claim that names hardware of a node.
func (f *sharing) listNamed(n *Node, at uint32) {
	hw := n.hardware.at(at)
	if hw.count++; hw.count == 1 && hw.mac.apart() {
		f.sharing.seen.set(hw.mac.bytes, refOf(n.number, at))
	}
}

func (f *sharing) unlistNamed(n *Node, at uint32) {
	hw := n.hardware.at(at)
	if hw.count--; hw.count == 0 && hw.mac.apart() {
		f.sharing.seen.remove(hw.mac.bytes, n.number)
	}
}

// joint returns the link of a node in the topology, which it makes if there is none.
func (n *Node) joint(l uint32) *topology.Link {
	if j := n.joints[l]; j != nil {
		return j
	}
	if n.joints == nil {
		n.joints = make(map[uint32]*topology.Link)
	}
	n.links.at(l).flags.set(joined, true)
	j := &topology.Link{Node: n.Rec, Name: n.texts.get(n.links.at(l).name)}
	n.joints[l] = j
	return j
}

func (f *sharing) leaveDomains(n *Node, l uint32) {
	if j := n.joints[l]; j != nil {
		f.topology.Leave(j)
	}
}

// linkRenaming touches everything on a link before its domain is renamed.
func (f *sharing) linkRenaming(j *topology.Link) {
	if n, l := f.linkOf(j); l != 0 {
		f.touchLink(n, l)
	}
}

// linkOf returns the link of a node that the topology knows; 0 if it no longer exists.
func (f *sharing) linkOf(j *topology.Link) (*Node, uint32) {
	n := f.byID[IDOf(j.Node)]
	if n == nil || j.Ended {
		return nil, 0
	}
	return n, n.link(j.Name)
}

// linkChanging touches everything on a link before its domain changes, and the addresses that are
// claimed for its hardware addresses on the links that it will be one with. It does not re-examine
// old frames: no domain changes what they show, and the links would stay one for longer.
func (f *sharing) linkChanging(j *topology.Link, with []*topology.Link) {
	n, l := f.linkOf(j)
	if l == 0 {
		return
	}
	f.touchLink(n, l)
	for i := range n.interfaces.all {
		if n.interfaces.at(i).link != l {
			continue
		}
		f.touchNeighbours(n, i)
		f.touchOn(slices.Values(with), n, n.interfaces.at(i).mac)
	}
}

// mergeLinks looks at some claims that may show that links are one, and reports whether there are
// more.
func (f *sharing) mergeLinks(some int) (more bool) {
	if f.topology.Due() == 0 {
		defer func() {
			if f.topology.Due() != 0 {
				f.Wake()
			}
		}()
	}
	for ; len(f.sharing.sightings) > 0; some-- {
		if some == 0 {
			return true
		}
		last := len(f.sharing.sightings) - 1
		r := f.sharing.sightings[last]
		f.sharing.sightings = f.sharing.sightings[:last]
		if n := f.nodes[r.node()]; n != nil && n.claims.has(r.index()) {
			f.look(n, r.index())
		}
	}
	f.sharing.sightings = nil
	return false
}

// look joins the link that a claim was seen on with the link of its sender, if the hardware
// address identifies the sender.
func (f *sharing) look(n *Node, c uint32) {
	one := n.claims.at(c)
	if one.wire() == 0 || !n.interfaces.at(one.port).flags.has(uplink) {
		return
	}
	w := n.wires.at(one.wire())
	hw := n.hardware.at(w.hardware)
	if w.link == 0 || w.source.form != noMAC || w.flags.has(noOverride) || !hw.mac.apart() || verdict.MAC(hw.mac.bytes[:]).Group() {
		return
	}
	now := f.now()
	if w.seen.Add(f.topology.Generation()) <= now {
		return
	}
	var first *Node
	firstID := ""
	var nodes []*Node
	for by, i := range f.abroadOf(hw.mac.bytes) {
		id := by.idOf(by.interfaces.at(i).namespace)
		if first == nil {
			first, firstID = by, id
		}
		if by == n || by != first && id != firstID {
			return // our own frame, or an ambiguous MAC
		}
		if !slices.Contains(nodes, by) {
			nodes = append(nodes, by)
		}
	}
	for _, by := range nodes {
		if home := f.homeOf(by, n, c); home != 0 {
			f.topology.Sighted(n.joint(w.link), by.joint(home), verdict.MAC(hw.mac.bytes[:]), w.seen, now)
		}
	}
}

// homeOf returns the link of a node that the MAC of a sighting is on: the only such link, or else
// the only one where the MAC has the address too; 0 if that is ambiguous.
func (f *sharing) homeOf(by, n *Node, c uint32) uint32 {
	seen := n.claims.at(c)
	m := n.hardware.at(n.wires.at(seen.wire()).hardware).mac
	var all, exact []uint32
	for i := by.holder(m); i != 0; i = by.interfaces.at(i).alike {
		if !f.meets(by, i) {
			continue
		}
		l := by.interfaces.at(i).link
		if !slices.Contains(all, l) {
			all = append(all, l)
		}
		has := false
		for k := range by.same(f.addresses.of(seen.addr, by.number)) {
			claim := by.claims.at(k)
			has = has || claim.kind == verdict.Assigned && claim.port == i
		}
		if has && !slices.Contains(exact, l) {
			exact = append(exact, l)
		}
	}
	switch {
	case len(exact) == 1 && (len(all) == 1 || f.belongs(n, c)):
		return exact[0]
	case len(exact) == 0 && len(all) == 1:
		return all[0]
	}
	return 0
}

// belongs reports whether an address belongs on the link that it was seen on. Linux asks and
// answers on every link with the addresses of all its links (arp_ignore and arp_announce are 0),
// and VLANs have the MAC of their device, so the address may be that of another VLAN. This is ruled
// out if it was announced there, or if the node that saw it has an address of that subnet on the
// link.
func (f *sharing) belongs(n *Node, c uint32) bool {
	seen := n.claims.at(c)
	if seen.kind == verdict.Announced {
		return true
	}
	l, a := n.wires.at(seen.wire()).link, seen.addr.Addr()
	for i := range n.interfaces.all {
		if n.interfaces.at(i).link != l {
			continue
		}
		for k := range n.on(i) {
			claim := n.claims.at(k)
			if claim.kind == verdict.Assigned && netip.PrefixFrom(claim.addr.Addr(), int(claim.prefix)).Contains(a) {
				return true
			}
		}
	}
	return false
}

// Abroad returns the number of MACs that several nodes may meet and the topology. The caller holds
// the lock.
func (f *sharing) Abroad() (macs int, t *topology.Topology) {
	return f.sharing.holders.len() + f.sharing.seen.len(), f.topology
}

package facts

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A frame from one node may enter another one. This file finds the node that has the MAC of such a
// frame, and reports the sighting to the topology.

// identifiesOne reports whether a MAC can identify one interface.
func (m mac) identifiesOne() bool {
	return m.form == sixBytes && !verdict.MAC(m.bytes[:]).Shared()
}

// reachesOthers reports whether a frame of an interface may enter another node.
func (f *Facts) reachesOthers(n *Node, i uint32) bool {
	one := n.interfaces.at(i)
	return one.link != 0 && n.links.at(one.link).kind != verdict.PointToPoint && one.mac.identifiesOne()
}

// holdersOf yields all interfaces with a MAC whose frames may enter another node.
func (f *Facts) holdersOf(m [6]byte) func(yield func(*Node, uint32) bool) {
	return func(yield func(*Node, uint32) bool) {
		for r := range f.holders.all(m) {
			n := f.nodes[r.node()]
			for i := n.holder(mac{m, sixBytes}); i != 0; i = n.interfaces.at(i).alike {
				if f.reachesOthers(n, i) && !yield(n, i) {
					return
				}
			}
		}
	}
}

// seenOf yields the claims with a MAC that entered through an uplink.
func (f *Facts) seenOf(m [6]byte) func(yield func(*Node, uint32) bool) {
	return func(yield func(*Node, uint32) bool) {
		for r := range f.seen.all(m) {
			n := f.nodes[r.node()]
			for c := range n.by(r.index()) {
				if n.interfaces.at(n.claims.at(c).port).flags.has(uplink) && !yield(n, c) {
					return
				}
			}
		}
	}
}

// addHolder adds an interface, and re-examines the claims of other nodes with its MAC.
func (f *Facts) addHolder(n *Node, i uint32) {
	if !f.reachesOthers(n, i) {
		return
	}
	m := n.interfaces.at(i).mac.bytes
	f.reexamine(m)
	f.holders.set(m, refOf(n.number, i))
}

// removeHolder removes an interface, before its record changes.
func (f *Facts) removeHolder(n *Node, i uint32) {
	if !f.reachesOthers(n, i) {
		return
	}
	one := n.interfaces.at(i)
	f.reexamine(one.mac.bytes) // the MAC may have been ambiguous, and now identify one interface
	f.replaceHolder(n, i)
}

// replaceHolder replaces an interface in the index by another one with its MAC, or removes it.
func (f *Facts) replaceHolder(n *Node, i uint32) {
	m := n.interfaces.at(i).mac
	for k := n.holder(m); k != 0; k = n.interfaces.at(k).alike {
		if k != i && f.reachesOthers(n, k) {
			f.holders.set(m.bytes, refOf(n.number, k))
			return
		}
	}
	f.holders.remove(m.bytes, n.number)
}

// touchNeighbours touches the addresses that are claimed on the interface's domain with its
// hardware address.
func (f *Facts) touchNeighbours(n *Node, i uint32) {
	one := n.interfaces.at(i)
	if j := n.joints[one.link]; j != nil {
		f.touchOn(j.Links, n, one.mac)
	}
}

// touchOn touches the addresses that are claimed with a hardware address of a node by the nodes of
// links.
func (f *Facts) touchOn(links iter.Seq[*Link], n *Node, m mac) {
	if m.identifiesOne() { // there may be thousands of links, but few nodes have claims with this MAC
		for r := range f.seen.all(m.bytes) {
			if other := f.nodes[r.node()]; other.isOn(links) {
				f.touchBy(other, r.index())
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
		if hw := other.hardwareNamed(name); hw != 0 {
			f.touchBy(other, hw)
			f.notifySenders(other, 0, other.hardware.at(hw).mac)
		}
	}
}

// isOn reports whether one of some links is a link of the node.
func (n *Node) isOn(links iter.Seq[*Link]) bool {
	for _, j := range n.joints {
		if contains(links, j) {
			return true
		}
	}
	return false
}

func contains(links iter.Seq[*Link], one *Link) bool {
	for l := range links {
		if l == one {
			return true
		}
	}
	return false
}

// reexamine re-examines the claims with a MAC that entered through an uplink.
func (f *Facts) reexamine(m [6]byte) {
	for by, c := range f.seenOf(m) {
		f.touch(by.claims.at(c).addr)
		f.queueSighting(refOf(by.number, c))
	}
}

// queueSighting queues a claim that may show that links are one.
func (f *Facts) queueSighting(r ref) { f.sightings = append(f.sightings, r) }

// listNamed and unlistNamed add and remove a claim with a MAC from the index of seen MACs.
func (f *Facts) listNamed(n *Node, at uint32) {
	hw := n.hardware.at(at)
	if hw.count++; hw.count == 1 && hw.mac.identifiesOne() {
		f.seen.set(hw.mac.bytes, refOf(n.number, at))
	}
}

func (f *Facts) unlistNamed(n *Node, at uint32) {
	hw := n.hardware.at(at)
	if hw.count--; hw.count == 0 && hw.mac.identifiesOne() {
		f.seen.remove(hw.mac.bytes, n.number)
	}
}

// joint returns the link of a node in the topology, and adds it if necessary.
func (n *Node) joint(l uint32) *Link {
	if j := n.joints[l]; j != nil {
		return j
	}
	if n.joints == nil {
		n.joints = make(map[uint32]*Link)
	}
	n.links.at(l).flags.set(joined, true)
	j := &Link{Node: n.Rec, Name: n.texts.get(n.links.at(l).name)}
	n.joints[l] = j
	return j
}

func (f *Facts) leaveDomains(n *Node, l uint32) {
	if j := n.joints[l]; j != nil {
		f.topology.Leave(j)
	}
}

// linkRenaming touches everything on a link before its domain is renamed.
func (f *Facts) linkRenaming(j *Link) {
	n, l := f.linkOf(j)
	f.touchLink(n, l)
	f.changes.ranges(n)
}

// linkOf returns the node and link of a link that is in a domain. Links leave their domains before
// they end.
func (f *Facts) linkOf(j *Link) (*Node, uint32) {
	n := f.byID[IDOf(j.Node)]
	return n, n.link(j.Name)
}

// linkChanging touches everything on a link before its domain changes, and the addresses that are
// claimed with its hardware addresses on the links that will be in the same domain. It does not
// re-examine old frames: a domain does not change what they show, and they would only keep the
// links joined for longer.
func (f *Facts) linkChanging(j *Link, with []*Link) {
	n, l := f.linkOf(j)
	f.touchLink(n, l)
	f.changes.ranges(n)
	for i := range n.interfaces.all {
		if n.interfaces.at(i).link != l {
			continue
		}
		f.touchNeighbours(n, i)
		f.touchOn(slices.Values(with), n, n.interfaces.at(i).mac)
	}
}

// mergeLinks looks at up to some claims that may show that links are one, and reports whether there
// are more.
func (f *Facts) mergeLinks(some int) (more bool) {
	if f.topology.Due() == 0 {
		defer func() {
			if f.topology.Due() != 0 {
				f.Wake()
			}
		}()
	}
	for ; len(f.sightings) > 0; some-- {
		if some == 0 {
			return true
		}
		last := len(f.sightings) - 1
		r := f.sightings[last]
		f.sightings = f.sightings[:last]
		if n := f.nodes[r.node()]; n != nil && n.claims.has(r.index()) {
			f.joinLinks(n, r.index())
		}
	}
	f.sightings = nil
	return false
}

// joinLinks joins the link that a claim was seen on with the link of its sender, if the MAC
// identifies the sender.
func (f *Facts) joinLinks(n *Node, c uint32) {
	one := n.claims.at(c)
	if one.wire() == 0 || !n.interfaces.at(one.port).flags.has(uplink) {
		return
	}
	w := n.wires.at(one.wire())
	if j := n.joints[w.link]; j != nil {
		f.topology.Received(j)
	}
	hw := n.hardware.at(w.hardware)
	if w.link == 0 || w.source.form != noMAC || !hw.mac.identifiesOne() || verdict.MAC(hw.mac.bytes[:]).Group() {
		return
	}
	now := f.now()
	if w.seen.Add(f.topology.Generation()) <= now {
		return
	}
	var first *Node
	firstID := ""
	ambiguous := false
	var nodes []*Node
	for by, i := range f.holdersOf(hw.mac.bytes) {
		id := by.idOf(by.interfaces.at(i).namespace)
		if first == nil {
			first, firstID = by, id
		}
		ambiguous = ambiguous || by == n || by != first && id != firstID
		if !slices.Contains(nodes, by) {
			nodes = append(nodes, by)
		}
	}
	if ambiguous { // then the only holder with the address sent the frame, unless that is this node itself
		sender := ""
		for _, by := range nodes {
			id := f.holderWith(by, one.addr, hw.mac)
			if id != "" && (by == n || sender != "" && id != sender) {
				return
			}
			sender = cmp.Or(sender, id)
		}
		nodes = slices.DeleteFunc(nodes, func(by *Node) bool { return f.holderWith(by, one.addr, hw.mac) == "" })
	}
	for _, by := range nodes {
		if home := f.homeOf(by, n, c); home != 0 {
			f.topology.Sighted(n.joint(w.link), by.joint(home), verdict.MAC(hw.mac.bytes[:]), w.seen, now)
		}
	}
}

// placeSightings re-examines frames whose MAC several interfaces have, after a kernel got an address. The address may show
// which of them sent the frame (holderWith, homeOf), or that an address of its subnet belongs on the link (belongs): frames
// may come before the report of the kernel, as when addresses move by DHCP.
func (f *Facts) placeSightings(n *Node, c uint32) {
	got := n.claims.at(c)
	at := n.interfaces.at(got.port)
	if f.severalHave(at.mac) {
		for by, k := range f.claimsTo(got.addr) {
			if w := by.claims.at(k).wire(); w != 0 && by.hardware.at(by.wires.at(w).hardware).mac == at.mac {
				f.queueSighting(refOf(by.number, k))
			}
		}
	}
	if at.attachment != verdict.Own || at.link == 0 {
		return
	}
	subnet := netip.PrefixFrom(got.addr.Addr(), int(got.prefix))
	for i := range n.interfaces.all {
		if !n.interfaces.at(i).flags.has(uplink) {
			continue
		}
		for k := range n.on(i) {
			one := n.claims.at(k)
			if one.wire() == 0 || !subnet.Contains(one.addr.Addr()) {
				continue
			}
			if w := n.wires.at(one.wire()); w.link == at.link && f.severalHave(n.hardware.at(w.hardware).mac) {
				f.queueSighting(refOf(n.number, k))
			}
		}
	}
}

// severalHave reports whether frames of several interfaces with a MAC may enter other nodes.
func (f *Facts) severalHave(m mac) bool {
	if !m.identifiesOne() {
		return false
	}
	n := 0
	for range f.holdersOf(m.bytes) {
		if n++; n > 1 {
			return true
		}
	}
	return false
}

// holderWith returns the ID of the namespace of a node whose interface with a MAC has an address; empty if
// there is none.
func (f *Facts) holderWith(n *Node, a index.Address, m mac) string {
	for c := range n.same(f.addresses.of(a, n.number)) {
		if one := n.claims.at(c); one.kind == verdict.Assigned && n.interfaces.at(one.port).mac == m {
			return n.idOf(n.interfaces.at(one.port).namespace)
		}
	}
	return ""
}

// homeOf returns the link of a node with the MAC of a sighting. If there are several, it returns
// the only one where the interface with the MAC has the address, too; 0 if that is ambiguous.
func (f *Facts) homeOf(by, n *Node, c uint32) uint32 {
	seen := n.claims.at(c)
	m := n.hardware.at(n.wires.at(seen.wire()).hardware).mac
	var all, exact []uint32
	for i := by.holder(m); i != 0; i = by.interfaces.at(i).alike {
		if !f.reachesOthers(by, i) {
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

// belongs reports whether an address may belong to the link on which it was seen. Linux sends and
// answers ARP requests on every link with the addresses of all its links (arp_ignore and
// arp_announce are 0), and VLANs have the MAC of their device, so the address may be that of
// another VLAN. This is ruled out if the address was announced there, or if the node that saw it
// has an address of that subnet on the link.
func (f *Facts) belongs(n *Node, c uint32) bool {
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

// SharedMACs returns the number of MACs whose frames may be seen by several nodes, and the
// topology. The caller holds the lock.
func (f *Facts) SharedMACs() (macs int, t *Topology) {
	return f.holders.len() + f.seen.len(), f.topology
}

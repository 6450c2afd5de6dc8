package facts

import (
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// This file changes records. An address is touched before anything that its owners depend on
// changes.

// ending is how claims end.
type ending struct {
	// late is how long ago the agent noticed the end.
	late time.Duration
	// sweeping is set if they end because a snapshot did not contain them.
	sweeping bool
}

// setNamespace adds or updates a namespace, and returns its index.
func (f *Facts) setNamespace(n *Node, record uint32, netns string, who verdict.Who, intended string) uint32 {
	next := namespace{record: record}
	n.setNetns(&next, netns, n.Rec.Epoch)
	next.who, next.intended = n.texts.put(string(who)), n.texts.put(intended)
	ns := n.namespace(record)
	// If only the inode became known, it is the same namespace with a better ID. With any other ID,
	// the number has been reused for another namespace, which starts a new epoch.
	if ns != 0 {
		old := n.namespaces.at(ns)
		same := old.flags == next.flags && old.number == next.number
		nameless := old.flags == 0 && old.number == n.Rec.Epoch
		if !same && !nameless {
			f.endNamespace(n, ns, ending{})
			ns = 0
		}
	}
	if ns == 0 {
		f.touchPorts(n, record)
		next.since = f.now()
		ns = n.namespaces.add(next)
		n.byRecord.put(hashRecord(record), ns, n.hashOfNamespace)
		f.listPod(n, ns)
		f.changes.lacking(n, record)
	} else if old := n.namespaces.at(ns); old.number != next.number || old.flags != next.flags ||
		old.who != next.who || old.intended != next.intended {
		f.touchPorts(n, record)
		for i := range n.inside(ns) {
			f.touchInterface(n, i)
			f.touchNeighbours(n, i)
			f.interfaceChanged(n, i)
			if f.reachesOthers(n, i) {
				f.reexamine(n.interfaces.at(i).mac.bytes)
			}
		}
		if old.number != next.number || old.flags != next.flags {
			f.changes.former(n, ns)
		}
		f.unlistPod(n, ns)
		old.number, old.flags, old.who, old.intended = next.number, next.flags, next.who, next.intended
		f.listPod(n, ns)
		f.changes.lacking(n, record)
	}
	n.namespaces.at(ns).sweep = n.sweep
	return ns
}

// endNamespace removes a namespace with its interfaces and claims. It also removes the claims
// that entered through its port, which would otherwise look like those of an external device for a
// moment.
func (f *Facts) endNamespace(n *Node, ns uint32, how ending) {
	record := n.namespaces.at(ns).record
	for i := range n.inside(ns) { // first, while the owners of its MACs are known
		f.endClaims(n, i, how)
	}
	for i := range n.inside(ns) {
		f.endInterface(n, i, how)
	}
	if record != verdict.OwnRecord {
		for _, port := range n.ports(record) {
			for _, c := range slices.Collect(n.on(port)) {
				if n.claims.has(c) && n.claims.at(c).wire() != 0 { // kernel claims end with the interface
					f.end(n, c, how)
				}
			}
		}
	}
	f.changes.former(n, ns)
	f.unlistPod(n, ns)
	setCharge(f, n, &n.namespaces.at(ns).cost, 0)
	n.byRecord.remove(hashRecord(record), ns, n.hashOfNamespace)
	n.namespaces.remove(ns)
}

// namedLink returns the node's link with a name, and adds it if necessary.
func (n *Node) namedLink(name string) uint32 {
	if l := n.link(name); l != 0 {
		return l
	}
	l := n.links.add(link{name: n.texts.put(name)})
	n.byName.put(hashText(name), l, n.hashOfLink)
	return l
}

// dropLink removes a link that nothing uses and that the agent has not reported.
func (f *Facts) dropLink(n *Node, l uint32) {
	one := n.links.at(l)
	if one.flags.has(known) || one.users > 0 {
		return
	}
	f.leaveDomains(n, l)
	if j := n.joints[l]; j != nil {
		j.Ended = true
		delete(n.joints, l)
	}
	n.byName.remove(n.hashOfLink(l), l, n.hashOfLink)
	n.links.remove(l)
}

// setLink adds or updates a link, and returns its index.
func (f *Facts) setLink(n *Node, name string, kind verdict.LinkKind, isRouted, isDistributed, isCutOff bool) uint32 {
	l := n.namedLink(name)
	one := n.links.at(l)
	one.flags.set(known, true)
	one.sweep = n.sweep
	if one.kind != kind || one.flags.has(routed) != isRouted || one.flags.has(distributed) != isDistributed || (one.lost != 0) != isCutOff {
		f.changeLink(n, l, func() {
			if one.kind = kind; !isCutOff {
				one.lost = 0
			} else if one.lost == 0 {
				one.lost = f.now()
			}
			one.flags.set(routed, isRouted)
			one.flags.set(distributed, isDistributed)
		})
	}
	return l
}

func (f *Facts) endLink(n *Node, l uint32) {
	one := n.links.at(l)
	one.flags.set(known, false)
	setCharge(f, n, &one.cost, 0)
	f.leaveDomains(n, l)
	f.changeLink(n, l, func() {
		one.kind, one.lost = 0, 0
		one.flags.set(routed, false)
		one.flags.set(distributed, false)
	})
	f.dropLink(n, l)
}

// changeLink changes the record of a link. It walks the node's tables: links seldom change once
// they are in use.
func (f *Facts) changeLink(n *Node, l uint32, change func()) {
	if n.links.at(l).users == 0 {
		change()
		return
	}
	f.touchLink(n, l)
	var on []uint32
	for i := range n.interfaces.all {
		if n.interfaces.at(i).link == l && n.interfaces.at(i).mac.identifiesOne() {
			on = append(on, i)
			f.removeHolder(n, i)
		}
	}
	change()
	for _, i := range on {
		f.addHolder(n, i)
		if !f.reachesOthers(n, i) { // another interface on the link may have taken its place
			f.replaceHolder(n, i)
		}
	}
}

// setInterface adds or updates an interface; old is 0 for a new one.
func (f *Facts) setInterface(n *Node, old uint32, next iface, others rare, linkName string) uint32 {
	if linkName != "" {
		next.link = n.namedLink(linkName)
	}
	i := old
	if i == 0 {
		record := n.namespaces.at(next.namespace).record
		i = n.interfaces.add(iface{namespace: next.namespace, index: next.index})
		n.byIndex.put(hashIndex(record, next.index), i, n.hashOfInterface)
		enter(&n.namespaces.at(next.namespace).ifaces, i, n.interfaceLists)
	}
	one := n.interfaces.at(i)
	before := *one
	if before.link != next.link || before.name != next.name || before.kind != next.kind || n.rare[i] != others ||
		before.mac != next.mac || before.far != next.far || before.attachment != next.attachment || before.flags != next.flags {
		if before.link != next.link || before.mac != next.mac || before.peer() != next.peer() {
			f.endFormer(n, slices.Collect(n.on(i)))
		}
		f.replaceInterface(n, i, &next, others)
	}
	n.interfaces.at(i).sweep = n.sweep
	return i
}

// leadsOut reports whether a bridge with this port reaches beyond the node.
func (n *Node) leadsOut(i uint32) bool {
	one := n.interfaces.at(i)
	return one.flags.has(uplink) || n.texts.get(one.kind) == "vlan"
}

// replaceInterface replaces the record of an interface.
func (f *Facts) replaceInterface(n *Node, i uint32, next *iface, others rare) {
	f.touchInterface(n, i)
	f.interfaceChanged(n, i)
	if next.mac.form != noMAC {
		f.touchNamed(n, next.mac)
	}
	one := n.interfaces.at(i)
	uplinkChanged := one.flags.has(uplink) != next.flags.has(uplink)
	oldLink := one.link
	if oldLink != next.link && next.link != 0 {
		n.links.at(next.link).users++ // before the last frame on it ends
	}
	if next.mac != one.mac {
		f.giveUpMAC(n, i)
		f.rememberMAC(n, i)
	}
	f.unlistHardware(n, i)
	one.link, one.far, one.name, one.kind = next.link, next.far, next.name, next.kind
	one.mac, one.attachment, one.flags = next.mac, next.attachment, next.flags
	n.setRare(i, others)
	if oldLink != next.link && oldLink != 0 {
		n.links.at(oldLink).users--
		f.dropLink(n, oldLink)
	}
	f.touchNeighbours(n, i)
	if one.mac.form != noMAC {
		n.enterHolder(i)
		f.addHolder(n, i)
	}
	if uplinkChanged {
		for c := range n.on(i) {
			f.queueSighting(refOf(n.number, c))
		}
	}
}

// interfaceChanged records what may change with an interface and touches disputes, before it changes.
func (f *Facts) interfaceChanged(n *Node, i uint32) {
	f.changes.ranges(n)
	record := n.namespaces.at(n.interfaces.at(i).namespace).record
	if record == verdict.OwnRecord {
		f.touchDisputes(n)
	} else {
		f.changes.lacking(n, record)
	}
}

// unlistHardware removes an interface from the indexes by MAC.
func (f *Facts) unlistHardware(n *Node, i uint32) {
	one := n.interfaces.at(i)
	if one.mac.form == noMAC {
		return
	}
	f.touchNamed(n, one.mac)
	f.touchNeighbours(n, i)
	f.removeHolder(n, i)
	n.leaveHolder(i)
}

// giveUpMAC removes the frames with the MAC of an interface that is about to end or to get another
// MAC, for the addresses that the node has. They would otherwise look like those of an external
// device. It removes none if another interface of the node has the MAC, or if a namespace on the node
// sent the frame through its own port.
func (f *Facts) giveUpMAC(n *Node, i uint32) {
	m := n.interfaces.at(i).mac
	if !f.reachesOthers(n, i) {
		return
	}
	for k := n.holder(m); k != 0; k = n.interfaces.at(k).alike {
		if k != i && f.reachesOthers(n, k) {
			return
		}
	}
	former := n.texts.macOf(m)
	for c := range n.on(i) {
		if one := n.claims.at(c); one.kind == verdict.Assigned {
			f.bury(n, one.addr, former, 0)
		}
	}
	var frames []ref
	for r := range f.seen.all(m.bytes) {
		by := f.nodes[r.node()]
		for c := range by.by(r.index()) {
			port := by.interfaces.at(by.claims.at(c).port)
			inside := by == n && port.peer() != 0 && !port.flags.has(uplink)
			if !inside && f.assignedOn(n, by.claims.at(c).addr) {
				frames = append(frames, refOf(by.number, c))
			}
		}
	}
	for _, r := range frames {
		by := f.nodes[r.node()]
		addr := by.claims.at(r.index()).addr
		f.bury(n, addr, former, 0)
		f.removeFromIndexes(by, r.index())
		if by != n {
			by.departed(addr, former)
		}
	}
}

// assignedOn reports whether a kernel on a node has an address.
func (f *Facts) assignedOn(n *Node, a index.Address) bool {
	for c := range n.same(f.addresses.of(a, n.number)) {
		if n.claims.at(c).kind == verdict.Assigned {
			return true
		}
	}
	return false
}

// endInterface removes an interface and the claims on it.
func (f *Facts) endInterface(n *Node, i uint32, how ending) {
	f.endClaims(n, i, how)
	f.giveUpMAC(n, i)
	f.interfaceChanged(n, i)
	f.unlistHardware(n, i)
	one := n.interfaces.at(i)
	if l := one.link; l != 0 {
		n.links.at(l).users--
		f.dropLink(n, l)
	}
	setCharge(f, n, &one.cost, 0)
	leave(&n.namespaces.at(one.namespace).ifaces, i, n.interfaceLists)
	n.setRare(i, rare{})
	n.byIndex.remove(n.hashOfInterface(i), i, n.hashOfInterface)
	n.interfaces.remove(i)
}

// endClaims removes the claims on an interface.
func (f *Facts) endClaims(n *Node, i uint32, how ending) {
	for n.interfaces.at(i).claims != 0 {
		f.end(n, n.interfaces.at(i).claims, how)
	}
}

// end removes a claim. When the last kernel claim of an owner to an address ends, end also removes
// the wire claims of that owner, because no agent would withdraw them.
func (f *Facts) end(n *Node, c uint32, how ending) {
	one := *n.claims.at(c)
	item := f.touch(one.addr)
	if one.wire() != 0 {
		f.removeFromIndexes(n, c)
		return
	}
	id := n.idOf(n.interfaces.at(one.port).namespace)
	mac := n.texts.macOf(n.interfaces.at(one.port).mac)
	last, there := true, false // there: the owner still has the address with the same hardware address
	for other, k := range f.claimsTo(one.addr) {
		claim := other.claims.at(k)
		refused := one.kind == verdict.Assigned && claim.kind == verdict.DADFailed // it gave the address up to another host
		if claim.wire() == 0 && !refused && (other != n || k != c) && other.idOf(other.interfaces.at(claim.port).namespace) == id {
			last = false
			there = there || f.reachesOthers(other, claim.port) && other.texts.macOf(other.interfaces.at(claim.port).mac) == mac
		}
	}
	var tomb verdict.MAC
	if !there && f.reachesOthers(n, one.port) {
		tomb = mac
	}
	f.removeFromIndexes(n, c)
	if tomb != "" {
		f.bury(n, one.addr, tomb, how.late)
		f.nameTombstone(one.addr, tomb, n.whoOf(n.interfaces.at(one.port).namespace))
	}
	if !last {
		return
	}
	for _, sighting := range item.sightings {
		r := sighting.claim
		by := f.nodes[r.node()]
		if sighting.owner != id || by == nil || !by.claims.has(r.index()) {
			continue
		}
		seen := by.claims.at(r.index())
		if seen.addr != one.addr || seen.wire() == 0 || by.wires.at(seen.wire()).isNew() {
			continue // the record has been reused for another claim
		}
		if by == n && how.sweeping && seen.sweep == n.sweep {
			continue
		}
		mac := by.texts.macOf(by.hardware.at(by.wires.at(seen.wire()).hardware).mac)
		f.removeFromIndexes(by, r.index())
		if by != n {
			f.bury(n, one.addr, mac, how.late)
			by.departed(one.addr, mac)
		}
	}
}

// attributed returns the wire claims by which the owners of an address are known, if a kernel has
// the address, too. It omits claims that are newer than the last judgement.
func (f *Facts) attributed(a index.Address) (sightings []sighting) {
	kernel, seen := false, false
	for n, c := range f.claimsTo(a) {
		if at := n.claims.at(c).wire(); at == 0 {
			kernel = true
		} else {
			seen = seen || !n.wires.at(at).isNew()
		}
	}
	if !kernel || !seen {
		return nil
	}
	b := f.scratch
	judged := f.Policy.Judge(b.of(a, false))
	for i := range judged.Owners {
		for _, claim := range judged.Owners[i].Claims {
			r := b.refOf(claim)
			n := f.nodes[r.node()]
			if at := n.claims.at(r.index()).wire(); at != 0 && !n.wires.at(at).isNew() {
				sightings = append(sightings, sighting{judged.Owners[i].ID, r})
			}
		}
	}
	return sightings
}

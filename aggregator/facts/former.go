package facts

import (
	"cmp"
	"maps"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// When an agent starts again, it has seen no frame yet, and numbers the namespaces anew. What the agent before it has
// witnessed counts until it is outdated, as if that agent were still running.

// FramesKnown returns when a node has seen all frames that count: an owner that only frames show is outdated if it was
// not seen since the agent started. The epoch of an agent is when it started. The caller holds the lock.
func (f *Facts) FramesKnown(n *Node) verdict.Stamp {
	started := verdict.Stamp(n.Rec.Epoch).Add(-n.Rec.Skew) //nolint:gosec // until the year 2262
	return min(started, n.ConnectedAt).Add(f.Policy.StaleAfter)
}

// remember marks all claims of a node as those of a former agent, which has witnessed refused addresses until now.
func (a *applying) remember() {
	n := a.node
	sweep(a, &n.claims, func(one *claim) bool { return one.flags&former == 0 }, func(c uint32) {
		one := n.claims.at(c)
		one.flags |= former
		if one.kind == verdict.DADFailed {
			h := n.history(one)
			h.mark = a.now
			n.setHistory(one, h)
		}
	})
}

// correct corrects the times that claims have from former agents after the clock of the node was set: the present agent
// reports its own times again, but does not know these.
func (a *applying) correct() {
	f, n := a.facts, a.node
	if a.step == 0 {
		return
	}
	sweep(a, &n.claims, func(one *claim) bool { return one.flags&(former|continued) != 0 }, func(c uint32) {
		one := n.claims.at(c)
		f.touch(one.addr)
		h := n.history(one)
		for _, at := range []*verdict.Stamp{&one.first, &one.assigned} {
			if *at != 0 {
				*at = at.Add(a.step)
			}
		}
		n.setHistory(one, h)
	})
	n.stepped += a.step
}

// outlives reports whether a claim outlasts the agent that reported it, because a new agent cannot know it: it was
// seen in frames, or the kernel or a DHCP client deleted the address because detection of duplicates failed. The
// kernel keeps only addresses without a lifetime then, and a new agent reports those.
func (c *claim) outlives() bool {
	return c.flags&former != 0 && (c.wire() != 0 || c.kind == verdict.DADFailed && c.flags&verdict.FlagPermanent == 0)
}

// renumber gives the namespaces of a node the record numbers that a new agent has given them in its snapshot, before that is
// applied. The numbers of others that are in the way are exchanged with theirs.
func (f *Facts) renumber(n *Node, records []*pb.NamespaceRecord) {
	type identity struct {
		number uint64
		flags  flags
	}
	known := make(map[identity]uint32, n.namespaces.count)
	for i := range n.namespaces.all {
		if ns := n.namespaces.at(i); ns.flags != 0 {
			known[identity{ns.number, ns.flags}] = i
		}
	}
	next := make(map[uint32]uint32) // the numbers by the previous ones
	wanted := make(map[uint32]bool)
	for _, rec := range records {
		var ns namespace
		n.setNetns(&ns, rec.GetNetns(), 0)
		i, id := known[identity{ns.number, ns.flags}], rec.GetId()
		if i == 0 || id == verdict.OwnRecord || wanted[id] {
			continue
		}
		delete(known, identity{ns.number, ns.flags})
		if was := n.namespaces.at(i).record; was != id && was != verdict.OwnRecord {
			next[was], wanted[id] = id, true
		}
	}
	var free []uint32
	for was := range next {
		if !wanted[was] {
			free = append(free, was)
		}
	}
	slices.Sort(free)
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		if _, moves := next[id]; !moves && n.namespace(id) != 0 {
			next[id], free = free[0], free[1:]
		}
	}
	if len(next) == 0 {
		return
	}
	var moved, inside []uint32
	for was := range next {
		f.touchPorts(n, was)
		ns := n.namespace(was)
		moved, inside = append(moved, ns), slices.AppendSeq(inside, n.inside(ns))
	}
	for _, i := range inside {
		f.touchInterface(n, i)
	}
	for _, i := range inside {
		n.byIndex.remove(n.hashOfInterface(i), i, n.hashOfInterface)
	}
	for _, ns := range moved {
		n.byRecord.remove(n.hashOfNamespace(ns), ns, n.hashOfNamespace)
	}
	ids := make(map[string]string)
	for _, ns := range moved {
		f.changes.former(n, ns) // the ID of one without an inode has its record number
		was := n.idOf(ns)
		n.namespaces.at(ns).record = next[n.namespaces.at(ns).record]
		ids[was] = n.idOf(ns)
	}
	f.renameSightings(n, inside, ids)
	for _, ns := range moved {
		n.byRecord.put(n.hashOfNamespace(ns), ns, n.hashOfNamespace)
	}
	for _, i := range inside {
		n.byIndex.put(n.hashOfInterface(i), i, n.hashOfInterface)
	}
	for i := range n.interfaces.all {
		if one := n.interfaces.at(i); one.peer() != 0 {
			if now, moves := next[one.far]; moves {
				one.far = now
			}
		}
	}
}

// renameSightings gives the owners that frames have shown, of addresses on some interfaces, new IDs.
func (f *Facts) renameSightings(n *Node, interfaces []uint32, ids map[string]string) {
	done := make(map[index.Address]bool)
	for _, i := range interfaces {
		for c := range n.on(i) {
			addr := n.claims.at(c).addr
			if done[addr] {
				continue
			}
			done[addr] = true
			sightings := f.touch(addr).sightings
			for k := range sightings {
				sightings[k].owner = cmp.Or(ids[sightings[k].owner], sightings[k].owner)
			}
		}
	}
}

// endFormer ends those of some claims that only a former agent has reported.
func (f *Facts) endFormer(n *Node, claims []uint32) {
	for _, c := range claims {
		if n.claims.has(c) && n.claims.at(c).outlives() {
			f.end(n, c, ending{})
		}
	}
}

// replaceFormer ends the claims of the kernel to an address on a port that only a former agent has reported, because
// the kernel reports another one there. first is the first claim of the node to the address.
func (f *Facts) replaceFormer(n *Node, first, port uint32) {
	f.endFormer(n, slices.DeleteFunc(slices.Collect(n.same(first)), func(c uint32) bool {
		one := n.claims.at(c)
		return one.wire() != 0 || one.port != port
	}))
}

// formerLimit returns when a claim ends that only a former agent has reported: as late as those of frames expire.
func (f *Facts) formerLimit(n *Node, c uint32) verdict.Stamp {
	one := n.claims.at(c)
	witnessed := n.history(one).mark
	if one.wire() != 0 {
		witnessed = n.wires.at(one.wire()).seen
	}
	return witnessed.Add(2 * f.Policy.StaleAfter)
}

// expireFormer has the claims end that only a former agent has reported.
func (f *Facts) expireFormer(n *Node) {
	n.formerUntil = 0
	for c := range n.claims.all {
		if n.claims.at(c).outlives() {
			n.formerUntil = soonest(n.formerUntil, f.formerLimit(n, c))
		}
	}
	if n.formerUntil != 0 {
		f.ringAt(n.formerUntil)
	}
}

// dropFormer ends the outdated claims of a node that only a former agent has reported, unless the present one is
// disconnected.
func (f *Facts) dropFormer(n *Node) {
	n.writer.Lock()
	defer n.writer.Unlock()
	b := newBatch()
	defer f.close(b)
	ends := false
	f.piece(b, func() {
		switch due := n.formerUntil != 0 && n.formerUntil <= f.now(); {
		case due && n.Rec.Unheard:
			n.formerUntil = f.now().Add(f.Policy.StaleAfter)
			f.ringAt(n.formerUntil)
		case due:
			ends = true
		}
	})
	for from, more := uint32(1), ends; more; {
		f.piece(b, func() {
			from, more = n.claims.some(from, func(c uint32) {
				if f.formerLimit(n, c) <= f.now() {
					f.endFormer(n, []uint32{c})
				}
			})
		})
	}
	if ends {
		f.piece(b, func() { f.expireFormer(n) })
	}
}

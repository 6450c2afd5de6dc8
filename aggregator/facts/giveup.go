package facts

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// This file removes the records of nodes whose agents no longer report.

// timeOut times out nodes that were disconnected for too long, and forgets nodes that timed out a
// day ago.
func (f *Facts) timeOut(nodes []*Node) {
	var over []*Node
	f.Update(func() {
		for _, n := range nodes {
			switch {
			case !n.Rec.Unheard:
			case !n.Rec.TimedOut:
				over = append(over, n)
			case n.Peer == nil && !n.hasRecords(): // otherwise, another goroutine is about to remove the records
				f.drop(n)
				f.changes.name(n)
			}
		}
	})
	f.giveUp(over, false)
}

// giveUp removes everything that nodes reported. The addresses are judged twice: with the reason,
// and then without the claims.
func (f *Facts) giveUp(nodes []*Node, rebooted bool) *Batch {
	b := newBatch()
	defer lockWriters(nodes)()
	nodes = f.markOver(b, nodes, rebooted)
	f.close(b)
	return f.forget(b, nodes)
}

// lockWriters locks nodes against other changes, and returns a function that unlocks them.
func lockWriters(nodes []*Node) (unlock func()) {
	slices.SortFunc(nodes, func(a, b *Node) int { return a.ID.Compare(b.ID) })
	locked := slices.Clone(nodes)
	for _, n := range locked {
		n.writer.Lock()
	}
	return func() {
		for _, n := range locked {
			n.writer.Unlock()
		}
	}
}

// markOver marks disconnected nodes as timed out or rebooted, so that their addresses are judged
// with that reason. It returns the nodes that it marked. Others may have reconnected.
func (f *Facts) markOver(b *Batch, nodes []*Node, rebooted bool) []*Node {
	for _, n := range nodes {
		f.touchPieces(b, n)
	}
	f.piece(b, func() {
		nodes = slices.DeleteFunc(nodes, func(n *Node) bool { return n.Rec.TimedOut || !n.Rec.Unheard || rebooted && n.Peer != nil })
		for _, n := range nodes {
			n.Rec.TimedOut, n.Rec.Rebooted = true, rebooted
		}
	})
	return nodes
}

// forget removes the records of nodes once their addresses have been judged with the reason. It
// removes the claims of all nodes before other records, so that the order of the nodes does not
// matter.
func (f *Facts) forget(b *Batch, nodes []*Node) *Batch {
	if len(nodes) == 0 {
		return b
	}
	select {
	case <-b.Done():
	case <-f.Stopped:
	}
	b = newBatch()
	for _, n := range nodes {
		for more := true; more; {
			f.piece(b, func() { more = f.dropClaims(n) })
		}
	}
	for _, n := range nodes {
		f.empty(b, n)
	}
	f.close(b)
	return b
}

// forgetRebooted removes the records that nodes reported before a reboot. It skips nodes that have
// reconnected in the meantime.
func (f *Facts) forgetRebooted(b *Batch, nodes []*Node) *Batch {
	defer lockWriters(nodes)()
	f.RLock()
	nodes = slices.DeleteFunc(nodes, func(n *Node) bool { return !n.Rec.Rebooted })
	f.RUnlock()
	return f.forget(b, nodes)
}

// empty removes all records of a node except its claims, which must have been removed before.
func (f *Facts) empty(b *Batch, n *Node) {
	f.piece(b, func() {
		for l := range n.links.all { // first, because the rest of a domain may be on this node
			f.leaveDomains(n, l)
		}
		for _, j := range n.joints {
			j.Ended = true
		}
		n.joints = nil
	})
	for from, more := uint32(1), true; more; {
		f.piece(b, func() { from, more = n.interfaces.some(from, func(i uint32) { f.unlistHardware(n, i) }) })
	}
	f.piece(b, func() {
		for ns := range n.namespaces.all {
			f.changes.former(n, ns)
			f.unlistPod(n, ns)
		}
		f.endPools(n)
		f.dropBeliefs(n)
		f.forgetMACs(n)
		n.reset()
		f.releaseAll(n)
		f.unlabel(n)
		n.due = 0
		f.arm(n, f.now().Add(ForgetNodeAfter))
		f.changes.node(n)
	})
}

// dropClaims removes some claims of a node that is given up, and reports whether there are more.
func (f *Facts) dropClaims(n *Node) (more bool) {
	left := piece
	for c := range n.claims.all {
		if left--; left < 0 {
			return true
		}
		one := n.claims.at(c)
		if n.Rec.Rebooted && n.namespaces.at(n.interfaces.at(one.port).namespace).record != verdict.OwnRecord {
			f.end(n, c, ending{}) // also ends sightings by other nodes; the machine itself still has its own addresses
			continue
		}
		f.removeFromIndexes(n, c)
	}
	return false
}

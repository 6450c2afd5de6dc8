package facts

import (
	"maps"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Replicas may share the addresses: each serves some partitions, and gets the claims to their addresses
// only. Everything else goes to all of them.

// A PartitionSet says for each partition whether it is in the set.
type PartitionSet [index.Partitions]bool

// Count returns the number of partitions in the set.
func (s *PartitionSet) Count() (n int) {
	for _, in := range s {
		if in {
			n++
		}
	}
	return n
}

// partitions are the partitions that this replica serves. Their fields are guarded by the lock of the
// facts.
type partitions struct {
	*Facts
	// gained is the revision since which a partition is served; 0 if it is not.
	gained [index.Partitions]uint64
	// revision is that of the set; 0 if the addresses are not shared, so that all are served.
	revision uint64
	// complete is the revision of which all connected nodes have sent all claims.
	complete uint64
}

func newPartitions(f *Facts) *partitions {
	p := &partitions{Facts: f}
	if f.Sharing {
		p.revision = 1
	}
	return p
}

// Serves reports whether an address is served. The caller holds the lock.
func (f *partitions) Serves(a index.Address) bool {
	return f.partitions.revision == 0 || f.gained[a.Partition()] != 0
}

// accepts reports whether a claim belongs here, which a node selected by a revision of the partitions.
// A claim may be on its way that was sent before its partition was lost and gained again: its end was
// not sent.
func (f *partitions) accepts(a index.Address, by uint64) bool {
	since := f.gained[a.Partition()]
	return f.partitions.revision == 0 || since != 0 && by >= since
}

// Complete reports whether all connected nodes have sent all claims of the partition of an address. The
// caller holds the lock.
func (f *partitions) Complete(a index.Address) bool {
	return f.partitions.revision == 0 || f.isComplete(a.Partition())
}

func (f *partitions) isComplete(p int) bool {
	return f.gained[p] != 0 && f.gained[p] <= f.partitions.complete
}

// Completed returns the partitions of which all connected nodes have sent all claims, and the revision of
// the set.
func (f *partitions) Completed() (set PartitionSet, revision uint64) {
	f.RLock()
	defer f.RUnlock()
	for p := range set {
		set[p] = f.isComplete(p)
	}
	return set, f.partitions.revision
}

// message returns the partitions for agents; nil if the addresses are not shared.
func (f *partitions) message() *pb.PartitionSet {
	if f.partitions.revision == 0 {
		return nil
	}
	m := &pb.PartitionSet{Revision: f.partitions.revision, Served: make([]byte, index.Partitions/8)}
	for p, since := range f.gained {
		if since != 0 {
			m.Served[p/8] |= 1 << (p % 8)
		}
	}
	return m
}

// Partitions returns the partitions for a stream that begins; nil if the addresses are not shared.
func (f *partitions) Partitions() *pb.PartitionSet {
	f.RLock()
	defer f.RUnlock()
	return f.message()
}

// Serve changes the partitions that are served, and asks the agents for the claims of those that are
// gained. It forgets the claims of those that are lost, as if they had never been reported: nobody
// is told that their owners are gone. It returns the partitions that were lost.
func (f *partitions) Serve(set PartitionSet) (lost PartitionSet, b *Batch) {
	b = newBatch()
	var gained, complete PartitionSet
	var nodes []*Node
	f.piece(b, func() {
		some := false
		for p := range set {
			had := f.gained[p] != 0
			lost[p], gained[p] = had && !set[p], !had && set[p]
			some = some || lost[p] || gained[p]
		}
		if !some {
			return
		}
		f.partitions.revision++
		for p := range set {
			switch {
			case lost[p]:
				f.gained[p] = 0
			case gained[p]:
				f.gained[p] = f.partitions.revision
			}
		}
		nodes = slices.Collect(f.Nodes)
		m := f.message()
		for _, n := range nodes {
			if n.Peer != nil {
				n.Peer.Serve(m)
			}
		}
		complete = f.updateComplete()
	})
	for _, n := range nodes {
		f.forgetLost(b, n, &lost)
		f.touchOwn(b, n, &gained)
	}
	f.begin(b, &complete)
	f.close(b)
	return lost, b
}

// forgetLost removes the claims of a node to addresses of partitions that are not served any longer.
func (f *partitions) forgetLost(b *Batch, n *Node, lost *PartitionSet) {
	if *lost == (PartitionSet{}) {
		return
	}
	n.writer.Lock()
	defer n.writer.Unlock()
	for from, more := uint32(1), true; more; {
		f.piece(b, func() {
			from, more = n.claims.some(from, func(c uint32) {
				if one := n.claims.at(c); lost[one.addr.Partition()] && !f.Serves(one.addr) && !n.ofOwn(c) {
					f.removeFromIndexes(n, c)
				}
			})
		})
	}
}

// ofOwn reports whether a claim is one of the kernel to an address of the agent's own namespace. Every
// replica has these.
func (n *Node) ofOwn(c uint32) bool {
	one := n.claims.at(c)
	return one.wire() == 0 && n.namespaces.at(n.interfaces.at(one.port).namespace).record == verdict.OwnRecord
}

// touchOwn touches the addresses of partitions that are gained and that a node's own namespace has.
func (f *partitions) touchOwn(b *Batch, n *Node, gained *PartitionSet) {
	if *gained == (PartitionSet{}) {
		return
	}
	for from, more := uint32(1), true; more; {
		f.piece(b, func() {
			from, more = n.claims.some(from, func(c uint32) {
				if a := n.claims.at(c).addr; gained[a.Partition()] {
					f.touch(a)
				}
			})
		})
	}
}

// begin judges what depends on claims that are missing, in partitions that are complete now.
func (f *partitions) begin(b *Batch, complete *PartitionSet) {
	if *complete == (PartitionSet{}) {
		return
	}
	f.touchAllocated(b, complete)
	f.RLock()
	nodes := slices.Collect(f.Nodes)
	f.RUnlock()
	for _, n := range nodes {
		f.piece(b, func() {
			for ns := range n.namespaces.all {
				f.Listener.MayLack(n, n.namespaces.at(ns).record)
			}
		})
	}
}

// touchAllocated touches the addresses of some partitions that an IPAM has allocated.
func (f *partitions) touchAllocated(b *Batch, of *PartitionSet) {
	f.RLock()
	addresses := slices.Collect(maps.Keys(f.allocations))
	f.RUnlock()
	addresses = slices.DeleteFunc(addresses, func(a index.Address) bool { return !of[a.Partition()] })
	for some := range slices.Chunk(addresses, piece) {
		f.piece(b, func() {
			for _, a := range some {
				f.touch(a)
			}
		})
	}
}

// updateComplete computes which partitions are complete, and returns those that were not. The caller holds
// the lock.
func (f *partitions) updateComplete() (now PartitionSet) {
	if f.partitions.revision == 0 {
		return now
	}
	var before PartitionSet
	for p := range before {
		before[p] = f.isComplete(p)
	}
	least := f.partitions.revision
	for n := range f.Nodes {
		if !n.Rec.Unheard {
			least = min(least, n.completed)
		}
	}
	f.partitions.complete = least
	for p := range now {
		now[p] = f.isComplete(p) && !before[p]
	}
	if now != (PartitionSet{}) {
		f.coverageChanged()
	}
	return now
}

// sentAll notes that a node has sent all claims of the partitions of a revision. It returns the
// partitions that are complete with that. The caller holds the lock.
func (f *partitions) sentAll(n *Node, revision uint64) (now PartitionSet) {
	n.completed = max(n.completed, min(revision, f.partitions.revision))
	return f.updateComplete()
}

package facts

import (
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// When an owner loses an address on its own node, the sightings of other nodes end as well. A frame
// of that owner may still be on its way, in another agent or in the snapshot of an agent that
// reconnects, and must not bring the owner back. Therefore, a tombstone records that a holder gave
// up an address, for as long as a sighting counts.

const (
	// maxTombstones is the largest number of tombstones.
	maxTombstones = 65536
	// lateWithin is the tolerance for comparing a frame with the end of its sender's address. Their
	// messages come from two agents and take different times, so the frame may seem to be later
	// although it was sent before. The known lag of the observing agent's stream is added.
	lateWithin time.Duration = 100 * time.Millisecond
)

// tombstone is an address and the MAC of the holder that gave it up.
type tombstone struct {
	addr index.Address
	mac  verdict.MAC
}

// death is when a holder gave up its address, and the node that reported it. Reports of one node
// are in order.
type death struct {
	at   verdict.Stamp
	node *Node
}

// tombstones has the holders that recently gave up addresses.
type tombstones struct {
	*Facts
	by map[tombstone]death
	// burials are the tombstones in order of time. A renewed tombstone occurs twice.
	burials []burial
}

type burial struct {
	tombstone tombstone
	at        verdict.Stamp
}

func newTombstones(f *Facts) *tombstones { return &tombstones{Facts: f, by: make(map[tombstone]death)} }

// bury records that a holder with a MAC gave up an address. late is how long ago its agent noticed.
func (f *tombstones) bury(n *Node, addr index.Address, mac verdict.MAC, late time.Duration) {
	now, t := f.now(), f
	one, at := tombstone{addr, mac}, now.Add(-late)
	t.by[one] = death{at, n}
	t.burials = append(t.burials, burial{one, at})
	for len(t.burials) > maxTombstones || t.burials[0].at.Add(f.Policy.StaleAfter) <= now {
		if old := t.burials[0]; t.by[old.tombstone].at == old.at {
			delete(t.by, old.tombstone)
		}
		t.burials = t.burials[1:]
		if len(t.burials) == 0 {
			t.burials = nil
			break
		}
	}
}

// isBuried reports whether a node's claim was seen before its sender gave the address up.
func (f *tombstones) isBuried(by *Node, addr index.Address, mac verdict.MAC, seen verdict.Stamp) bool {
	if len(f.by) == 0 {
		return false
	}
	d, ok := f.by[tombstone{addr, mac}]
	if !ok || d.node == by || d.at.Add(f.Policy.StaleAfter) <= f.now() {
		return false
	}
	late := lateWithin
	if by.Peer != nil {
		if lag, known := by.Peer.Lag(f.now()); known {
			late += lag
		}
	}
	return seen <= d.at.Add(late)
}

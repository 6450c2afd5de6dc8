package facts

import (
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// When an owner ends at home, what other nodes saw of it ends, too. But a frame of
// it may still be under way, in another agent or in the snapshot of one that comes
// back: it must not bring the dead to life. So it is remembered when a holder gave
// an address up, for as long as a sighting counts.

const (
	// maxTombstones is how many are remembered.
	maxTombstones = 65536
	// lateWithin is how much later than the end a frame may seem to be that was
	// before it: messages of two agents take different times. What is known of how far
	// behind its agent a stream is comes on top.
	lateWithin time.Duration = 100 * time.Millisecond
)

// tombstone is an address and the MAC of the holder that gave it up.
type tombstone struct {
	addr index.Address
	mac  verdict.MAC
}

// death is when a holder ended, and on which node: that one tells things in order.
type death struct {
	at   verdict.Stamp
	node *Node
}

// tombstones are the latest holders that ended, and when.
type tombstones struct {
	*Facts
	by map[tombstone]death
	// burials are the tombstones in order; one that was used again is in them twice.
	burials []burial
}

type burial struct {
	tombstone tombstone
	at        verdict.Stamp
}

func newTombstones(f *Facts) *tombstones { return &tombstones{Facts: f, by: make(map[tombstone]death)} }

// bury remembers that the holder of an address by a MAC ended. late is how long ago its agent heard
// of that.
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

// isBuried reports whether what a node saw was before its sender gave the address up.
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

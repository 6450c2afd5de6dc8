package aggregator

import (
	"net/netip"
	"time"

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

// tombstone is an address and the MAC of who gave it up.
type tombstone struct {
	addr netip.Addr
	mac  verdict.MAC
}

// death is when a holder ended, and on which node: that one tells things in order.
type death struct {
	at   verdict.Stamp
	node *node
}

// tombstones are the latest holders that ended, and when.
type tombstones struct {
	tombs map[tombstone]death
	// burials are the tombstones in order; one that was used again is in them twice.
	burials []burial
	// late is how long ago the agent heard of the end under way.
	late time.Duration
}

type burial struct {
	tombstone tombstone
	at        verdict.Stamp
}

// bury remembers that the holder of an address by a MAC ended just now.
func (s *store) bury(n *node, addr netip.Addr, mac verdict.MAC) {
	now := s.clock()
	one, at := tombstone{addr, mac}, now.Add(-s.late)
	s.tombs[one] = death{at, n}
	s.burials = append(s.burials, burial{one, at})
	for len(s.burials) > maxTombstones || s.burials[0].at.Add(s.policy.StaleAfter) <= now {
		if old := s.burials[0]; s.tombs[old.tombstone].at == old.at {
			delete(s.tombs, old.tombstone)
		}
		s.burials = s.burials[1:]
		if len(s.burials) == 0 {
			s.burials = nil
			break
		}
	}
}

// isBuried tells whether what a node saw was before its sender gave the address up.
func (s *store) isBuried(by *node, addr netip.Addr, mac verdict.MAC, seen verdict.Stamp) bool {
	if len(s.tombs) == 0 {
		return false
	}
	d, ok := s.tombs[tombstone{addr, mac}]
	if !ok || d.node == by || d.at.Add(s.policy.StaleAfter) <= s.clock() {
		return false
	}
	late := lateWithin
	if by.session != nil {
		if lag, known := by.session.lag(s.clock()); known {
			late += lag
		}
	}
	return seen <= d.at.Add(late)
}

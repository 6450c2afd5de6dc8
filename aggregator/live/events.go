package live

import (
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Events holds the buses and publishes on them. Its methods are called with the facts locked.
type Events struct {
	Owners, Conflicts, Findings *Bus
	convert                     *Converter
}

// NewEvents returns an Events without subscribers.
func NewEvents(c *Converter) *Events {
	of := func() *Bus { return NewBus((*Event).weight) }
	return &Events{of(), of(), of(), c}
}

// NodeChanged publishes the state of a node to all watches.
func (s *Events) NodeChanged(n *facts.Node) {
	e := Event{Type: pb.Watch_NODE, At: s.now(), Node: s.convert.Node(n)}
	s.Owners.Offer(func() Event { return e })
	s.Conflicts.Publish(e)
}

var watchTypes = [...]pb.Watch_Type{judge.Added: pb.Watch_ADDED, judge.Updated: pb.Watch_UPDATED, judge.Removed: pb.Watch_REMOVED}

// OwnerChanged publishes a change of one owner of an address. before is its previous state, nil if
// it was added; all are the owners of the address.
func (s *Events) OwnerChanged(what judge.OwnerChange, a index.Address, o, before *verdict.Owner, all []verdict.Owner) {
	s.Owners.Offer(func() Event {
		addr := a.Addr()
		out := Event{Type: watchTypes[what], At: s.now(), Address: addr, Holder: holderOf(o), Owner: s.convert.Owner(addr, o, all)}
		if before != nil {
			out.Before = holderOf(before)
		}
		return out
	})
}

// ConflictChanged publishes a conflict. before is its previous state; opened is set if it was not
// active then.
func (s *Events) ConflictChanged(c, before *verdict.Conflict, opened bool) {
	typ := pb.Watch_UPDATED
	if opened {
		typ = pb.Watch_ADDED
	}
	s.Conflicts.Publish(Event{
		Type: typ, At: s.now(), Address: c.Address, Conflict: s.convert.Conflict(c), Contest: contestOf(c), Contested: contestOf(before),
		Recalled: c.Recalled && c.Active(),
	})
}

// FindingChanged publishes a finding that is new or has changed. was is its previous version, or nil
// if the finding is new.
func (s *Events) FindingChanged(now, was *judge.Found) {
	out := Event{Type: pb.Watch_ADDED, At: s.now(), Matter: s.matterOf(now), Finding: s.convert.Finding(now, false), Recalled: now.Recalled && was == nil}
	if was != nil {
		out.Type, out.Found = pb.Watch_UPDATED, s.matterOf(was)
	}
	s.Findings.Publish(out)
}

// FindingEnded publishes that a finding has ended. superseded is set if it became a conflict.
func (s *Events) FindingEnded(over *judge.Found, superseded bool) {
	last := s.matterOf(over)
	s.Findings.Publish(Event{Type: pb.Watch_REMOVED, At: s.now(), Finding: s.convert.Finding(over, superseded), Matter: last, Found: last})
}

func (s *Events) now() verdict.Stamp { return s.convert.Facts.Clock() }

func (s *Events) matterOf(f *judge.Found) Matter {
	return MatterOf(s.convert.Findings.Clones.Whole(f.Finding))
}

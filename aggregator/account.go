package aggregator

import (
	"context"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// account writes what happens into the log until ctx ends. It is a watcher like
// any other: a log that is slow, or stuck, delays no verdict.
func (s *store) account(ctx context.Context) {
	next := s.conflicts.revision()
	var events []event
	told := map[string]pb.Conflict_State{} // of the active conflicts
	for {
		var lost uint64
		var changed <-chan struct{}
		events, next, lost, changed = s.conflicts.since(next, events[:0])
		if lost > 0 {
			s.log.Warn("log fell behind", "events_left_out", lost)
		}
		for i := range events {
			s.enter(&events[i], told)
		}
		clear(events)
		if changed == nil {
			if ctx.Err() != nil {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// enter writes one event into the log, if it is more than another word about a
// state that was told.
func (s *store) enter(e *event, told map[string]pb.Conflict_State) {
	if n := e.node; n != nil {
		if n.GetState() == pb.Node_LIVE {
			s.log.Info("node reports", "node", n.GetName(), "claims", n.GetClaims(), "namespaces", n.GetNamespaces())
		} else {
			s.log.Warn("node not heard from", "node", n.GetName(), "last_heard", n.GetLastHeard().AsTime(),
				"node_timeout", s.policy.NodeTimeout)
		}
		return
	}
	c := e.conflict
	if told[c.GetId()] == c.GetState() {
		return
	}
	if told[c.GetId()] = c.GetState(); c.GetState() == pb.Conflict_RESOLVED {
		delete(told, c.GetId())
	}
	s.log.Info("conflict changed", "state", c.GetState(), "address", c.GetAddress(), "id", c.GetId(),
		"episode", c.GetEpisode(), "scope", c.GetScope().GetName(), "rule", c.GetRule(), "cause", c.GetCause(), "summary", c.GetSummary())
}

package aggregator

import (
	"context"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/bus"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// account writes what happens to conflicts and nodes into the log until ctx ends.
func (s *store) account(ctx context.Context) {
	said := map[string]toldState{} // of the active conflicts
	quota := newLogQuota(s.log)
	s.accountOf(ctx, "log", s.told.conflicts, func(e *event) { s.enter(e, said, quota) })
}

// accountFindings does the same for findings.
func (s *store) accountFindings(ctx context.Context) {
	quota := newLogQuota(s.log)
	s.accountOf(ctx, "log", s.findings.events, func(e *event) {
		if quota.allows(s.clock().Time(), nodesOfEvent(e)...) {
			s.enterFinding(e)
		}
	})
}

// accountOf enters events until ctx ends, into what where names. It is
// a watcher like any other: a log that is slow, or stuck, delays no verdict.
func (s *store) accountOf(ctx context.Context, where string, from *events, enter func(*event)) {
	next := from.Revision()
	var some []event
	var said time.Time
	for {
		var lost uint64
		var changed <-chan struct{}
		some, next, lost, changed = from.Since(next, bus.Latest, some[:0])
		if now := s.clock().Time(); lost > 0 && now.Sub(said) >= complainEvery {
			said = now
			s.log.Warn("what tells of events fell behind", "where", where, "events_left_out", lost)
		}
		for i := range some {
			enter(&some[i])
		}
		clear(some)
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

// toldState is what the log says of a conflict.
type toldState struct {
	state           pb.Conflict_State
	acknowledgement *pb.Acknowledgement
}

// enter writes one event into the log, if it is more than another word about
// what was told.
func (s *store) enter(e *event, said map[string]toldState, quota *logQuota) {
	now, nodes := s.clock().Time(), nodesOfEvent(e)
	if n := e.node; n != nil {
		if !quota.allows(now, nodes...) {
			return
		}
		if n.GetState() == pb.Node_LIVE {
			s.log.Info("node reports", "node", n.GetName(), "claims", n.GetClaims(), "namespaces", n.GetNamespaces())
		} else {
			s.log.Warn("node not heard from", "node", n.GetName(), "last_heard", n.GetLastHeard().AsTime(),
				"node_timeout", s.policy.NodeTimeout)
		}
		return
	}
	c := e.conflict
	before, is := said[c.GetId()], toldState{c.GetState(), c.GetAcknowledgement()}
	if said[c.GetId()] = is; is.state == pb.Conflict_RESOLVED {
		delete(said, c.GetId())
	}
	if is.state != before.state && quota.allows(now, nodes...) {
		s.log.Info("conflict changed", "state", c.GetState(), "address", c.GetAddress(), "id", c.GetId(),
			"episode", c.GetEpisode(), "scope", c.GetScope().GetName(), "rule", c.GetRule(), "cause", c.GetCause(), "summary", c.GetSummary())
	}
	switch ack := is.acknowledgement; {
	case ack == before.acknowledgement:
	case ack != nil:
		s.log.Info("conflict acknowledged", "address", c.GetAddress(), "id", c.GetId(),
			"expires_at", ack.GetExpiresAt().AsTime(), "reason", ack.GetReason())
	default:
		s.log.Info("acknowledgement ended", "state", c.GetState(), "address", c.GetAddress(), "id", c.GetId(), "summary", c.GetSummary())
	}
}

// enterFinding writes that a finding came or is over. What more is known of it is
// in the API.
func (s *store) enterFinding(e *event) {
	f := e.finding
	switch e.typ {
	case added:
		s.log.Warn("finding", "kind", f.GetKind(), "id", f.GetId(), "nodes", f.GetNodes(), "address", f.GetAddress(), "summary", f.GetSummary())
	case removed:
		s.log.Info("finding is over", "kind", f.GetKind(), "id", f.GetId(), "nodes", f.GetNodes(), "address", f.GetAddress())
	default:
	}
}

package live

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// linesPerSecond is the average rate of log lines about one node's conflicts, findings and
	// state. linesAtOnce is the largest burst.
	linesPerSecond, linesAtOnce = 10, 1000
	// complainEvery is the interval at which the log reports suppressed lines or lost events.
	complainEvery = time.Minute
)

// Notifier reports events. All fields are required, except that Kubernetes is nil if no Events are
// to be created.
type Notifier struct {
	Log    *slog.Logger
	Clock  func() verdict.Stamp
	Events *Events
	// Kubernetes is the cluster in which Events are created.
	Kubernetes *kube.Cluster
	// NodeTimeout is logged when a node disconnects, as the time after which its owners count as
	// gone.
	NodeTimeout time.Duration
}

// Run reports events until ctx ends.
func (s *Notifier) Run(ctx context.Context) {
	var group sync.WaitGroup
	report := func(where string, from *Bus, enter func(*Event)) {
		next := from.Revision()
		group.Go(func() {
			var some []Event
			var logged time.Time
			for ctx.Err() == nil {
				var lost uint64
				var changed <-chan struct{}
				some, next, lost, changed = from.Since(next, Latest, some[:0])
				if now := s.Clock().Time(); lost > 0 && now.Sub(logged) >= complainEvery {
					logged = now
					s.Log.Warn("event subscriber is lagging: some events have expired", "subscriber", where, "lost_events", lost)
				}
				for i := range some {
					enter(&some[i])
				}
				clear(some)
				if changed == nil {
					continue
				}
				select {
				case <-ctx.Done():
				case <-changed:
				}
			}
		})
	}
	logged := map[string]loggedState{} // the last logged state of each active conflict
	// No node fills the log. Conflicts and findings have a quota each.
	warnings := access.NewLogQuota(rate.Every(complainEvery), 1)
	limited := func() (allows func(e *Event) bool) {
		lines := access.NewLogQuota(linesPerSecond, linesAtOnce)
		return func(e *Event) bool {
			now, nodes := s.Clock().Time(), nodesOfEvent(e)
			if lines.Allows(now, nodes...) {
				return true
			}
			if warnings.Allows(now, nodes...) {
				s.Log.Warn("too many log lines about one node: suppressing further ones; use the API to list its owners and conflicts", "nodes", nodes)
			}
			return false
		}
	}
	conflicts, findings := limited(), limited()
	report("log", s.Events.Conflicts, func(e *Event) { s.enter(e, logged, conflicts) })
	report("log", s.Events.Findings, func(e *Event) { s.enterFinding(e, findings) })
	if k := s.Kubernetes; k != nil {
		report("Kubernetes Events", s.Events.Conflicts, func(e *Event) {
			if e.Conflict != nil {
				k.Announce(e.Conflict, e.Recalled)
			}
		})
		report("Kubernetes Events", s.Events.Findings, func(e *Event) { k.AnnounceFinding(e.Finding, e.Type == pb.Watch_REMOVED, e.Recalled) })
	}
	group.Wait()
}

type loggedState struct {
	state           pb.Conflict_State
	acknowledgement *pb.Acknowledgement
}

// enter logs an event, unless its state has already been logged.
func (s *Notifier) enter(e *Event, logged map[string]loggedState, allows func(*Event) bool) {
	if n := e.Node; n != nil {
		if !allows(e) {
			return
		}
		if n.GetState() == pb.Node_LIVE {
			s.Log.Info("node connected", "node", n.GetName(), "claims", n.GetClaims(), "namespaces", n.GetNamespaces())
		} else {
			s.Log.Warn("node disconnected", "node", n.GetName(), "last_heard", n.GetLastHeard().AsTime(),
				"node_timeout", s.NodeTimeout)
		}
		return
	}
	c := e.Conflict
	before, is := logged[c.GetId()], loggedState{c.GetState(), c.GetAcknowledgement()}
	if is.state == pb.Conflict_RESOLVED && e.Contested.Phase == verdict.Resolved {
		return // more became known about one that is over
	}
	if e.Recalled {
		before = is
	}
	if logged[c.GetId()] = is; is.state == pb.Conflict_RESOLVED {
		delete(logged, c.GetId())
	}
	if is.state != before.state && allows(e) {
		s.Log.Info("conflict changed", "state", c.GetState(), "address", c.GetAddress(), "id", c.GetId(), "incident", c.GetIncident(),
			"episode", c.GetEpisode(), "scope", c.GetScope().GetName(), "rule", c.GetRule(), "cause", c.GetCause(), "summary", c.GetSummary())
	}
	switch ack := is.acknowledgement; {
	case ack == before.acknowledgement:
	case ack != nil:
		s.Log.Info("conflict acknowledged", "address", c.GetAddress(), "id", c.GetId(),
			"expires_at", ack.GetExpiresAt().AsTime(), "reason", ack.GetReason())
	default:
		s.Log.Info("acknowledgement ended", "state", c.GetState(), "address", c.GetAddress(), "id", c.GetId(), "summary", c.GetSummary())
	}
}

// enterFinding logs that a finding began or ended. The API has the details.
func (s *Notifier) enterFinding(e *Event, allows func(*Event) bool) {
	f := e.Finding
	if e.Recalled || !allows(e) {
		return
	}
	switch e.Type {
	case pb.Watch_ADDED:
		s.Log.Warn("finding", "kind", f.GetKind(), "id", f.GetId(), "incident", f.GetIncident(), "nodes", f.GetNodes(), "address", f.GetAddress(), "summary", f.GetSummary())
	case pb.Watch_REMOVED:
		s.Log.Info("finding ended", "kind", f.GetKind(), "id", f.GetId(), "nodes", f.GetNodes(), "address", f.GetAddress())
	default:
	}
}

func nodesOfEvent(e *Event) (nodes []string) {
	switch {
	case e.Node != nil:
		return []string{e.Node.GetName()}
	case e.Finding != nil:
		return e.Finding.GetNodes()
	}
	for _, o := range e.Conflict.GetOwners() {
		if !slices.Contains(nodes, o.GetNode()) {
			nodes = append(nodes, o.GetNode())
		}
	}
	return nodes
}

package api

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/incident"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// maxPlanned is the largest number of members of which the actions are part of the plan for an incident.
const maxPlanned = 256

// ListIncidents lists the incidents, now or at a time.
func (s *Service) ListIncidents(ctx context.Context, q *pb.ListIncidentsRequest) (*pb.ListIncidentsResponse, error) {
	if err := s.own(q); err != nil {
		return nil, err
	}
	if q.GetAt() == nil {
		coverage := s.Coverage.Current()
		out, err := PageOfIncidents(q, s.Events.Incidents)
		if err == nil {
			out.Coverage = coverage
		}
		return out, err
	}
	at, err := s.moment(q.GetAt())
	if err != nil {
		return nil, err
	}
	coverage, gap, err := s.coverageAt(ctx, at)
	if err != nil {
		return nil, err
	}
	past, err := RecordedIncidents(ctx, s.records(), q)
	if err != nil {
		return nil, err
	}
	out, err := PageOfIncidents(q, past)
	if err == nil {
		out.Coverage, out.Gap = coverage, gap
	}
	return out, err
}

// RecordedIncidents returns the incidents at the time of a request; now if it has none.
func RecordedIncidents(ctx context.Context, all []*Records, q *pb.ListIncidentsRequest) (*incident.Index, error) {
	at, err := optionalTime("at", q.GetAt())
	if err != nil {
		return nil, err
	}
	out := incident.NewIndex()
	conflicts := conflictFilter{active: true}
	for _, r := range all {
		for _, sel := range []Selection{selectConflicts(&conflicts, &conflicts), selectFindings(&findingFilter{})} {
			if err := r.Items(ctx, sel, at, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
				out.Put(&pb.Event{Conflict: e.GetConflict(), Finding: e.GetFinding(), Cluster: r.Name})
				return true
			}); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// PageOfIncidents returns the page of the incidents that a request selects.
func PageOfIncidents(q *pb.ListIncidentsRequest, all *incident.Index) (*pb.ListIncidentsResponse, error) {
	from, err := ParseToken[string](q.GetPageToken())
	if err != nil {
		return nil, err
	}
	selected, err := selectIncidents(q)
	if err != nil {
		return nil, err
	}
	p := NewPage[*pb.Incident](q.GetPageSize())
	for id := range all.After(from) {
		one := all.Get(id)
		if !selected(all, one) {
			continue
		}
		if p.full() {
			p.Next = Token(p.Items[len(p.Items)-1].GetId())
			break
		}
		p.add(one)
	}
	return &pb.ListIncidentsResponse{Incidents: p.Items, NextPageToken: p.Next}, nil
}

// selectIncidents returns which incidents of an index, or nil, a request selects.
func selectIncidents(q interface {
	GetCause() string
	GetNode() string
	GetAbout() string
},
) (selected func(*incident.Index, *pb.Incident) bool, err error) {
	cause := q.GetCause()
	if known := append(verdict.Causes(), verdict.FindingKinds()...); cause != "" && !slices.Contains(known, cause) {
		return nil, status.Errorf(codes.InvalidArgument, "unknown cause %q: docs/verdicts.md lists the causes of conflicts and the kinds of findings", cause)
	}
	var members findingFilter
	err = members.about(q.GetAbout())
	return func(all *incident.Index, one *pb.Incident) bool {
		return one != nil && (cause == "" || cause == one.GetCause()) && (q.GetNode() == "" || slices.Contains(one.GetNodes(), q.GetNode())) &&
			(q.GetAbout() == "" || all.Any(one.GetId(), members.recorded))
	}, err
}

// incidentsEvery is the interval at which a watch of incidents looks for changes.
const incidentsEvery = 500 * time.Millisecond

// WatchIncidents sends the incidents, then every change of one. It compares them with what it has sent, so that nothing waits
// for a subscriber, and a slow one gets the latest state.
func (s *Service) WatchIncidents(q *pb.WatchIncidentsRequest, stream pb.WitnessService_WatchIncidentsServer) error {
	if err := s.own(q); err != nil {
		return err
	}
	s.IncidentWatches.Add(1)
	defer s.IncidentWatches.Add(-1)
	all, sent := s.Events.Incidents, uint64(0)
	return ServeIncidents(q, stream, s.Stopped, incidentsEvery, s.Coverage.Current, func(context.Context) (*incident.Index, error) {
		if now := all.Version(); now != sent {
			sent = now
			return all, nil
		}
		return nil, nil
	})
}

// ServeIncidents serves a watch of incidents, for which it looks at an interval. next returns them if they have changed since
// it returned them last; nil otherwise.
func ServeIncidents(q *pb.WatchIncidentsRequest, stream pb.WitnessService_WatchIncidentsServer, stopped <-chan struct{}, every time.Duration,
	coverage func() *pb.Coverage, next func(context.Context) (*incident.Index, error),
) error {
	selected, err := selectIncidents(q)
	if err != nil {
		return err
	}
	cutOff := func() error {
		return status.Errorf(codes.ResourceExhausted, "the watch was disconnected because the client read nothing for %s: watch again", sendWithin)
	}
	return patiently(stream, stopped, errStopping, cutOff, func(ctx context.Context, send func(*pb.WatchIncidentsResponse) error, flush func() error) error {
		look, quiet := time.NewTicker(every), time.NewTicker(bookmarkEvery)
		defer look.Stop()
		defer quiet.Stop()
		sent := make(map[string]*pb.Incident)
		var marked *pb.Coverage
		for due := true; ; {
			covered := coverage()
			all, err := next(ctx)
			if err == nil && all != nil {
				err = sendIncidents(selected, all, sent, send)
			}
			if err == nil && (due || !proto.Equal(covered, marked)) {
				marked = covered
				err = send(&pb.WatchIncidentsResponse{Type: pb.Watch_BOOKMARK, Coverage: covered})
			}
			if err != nil {
				return err
			}
			if err := flush(); err != nil {
				return err
			}
			due = false
			select {
			case <-look.C:
			case <-quiet.C:
				due = true
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

// sendIncidents sends the selected incidents that differ from those that were sent, and those that are gone.
func sendIncidents(selected func(*incident.Index, *pb.Incident) bool, all *incident.Index, sent map[string]*pb.Incident, send func(*pb.WatchIncidentsResponse) error) error {
	gone := maps.Clone(sent)
	for id := range all.After("") {
		one := all.Get(id)
		if !selected(all, one) {
			continue
		}
		delete(gone, id)
		m := &pb.WatchIncidentsResponse{Type: pb.Watch_ADDED, Incident: one}
		switch before := sent[id]; {
		case proto.Equal(before, one):
			continue
		case before != nil:
			m.Type = pb.Watch_UPDATED
		}
		sent[id] = one
		if err := send(m); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(gone)) {
		delete(sent, id)
		if err := send(&pb.WatchIncidentsResponse{Type: pb.Watch_REMOVED, Incident: gone[id]}); err != nil {
			return err
		}
	}
	return nil
}

// GetIncident returns an incident by its ID, with the actions for its members.
func (s *Service) GetIncident(_ context.Context, q *pb.GetIncidentRequest) (*pb.GetIncidentResponse, error) {
	out := s.Events.Incidents.Get(q.GetId())
	if out == nil {
		return nil, NoIncident(q.GetId())
	}
	members := s.Events.Incidents.Members(q.GetId())
	verify := false
	for some := range slices.Chunk(members[:min(len(members), maxPlanned)], pageStep) {
		s.Facts.RLock()
		for _, id := range some {
			for _, action := range s.actions(id) {
				if len(members) > 1 && action.GetVerify() {
					verify = true // one check is enough
				} else if !slices.ContainsFunc(out.GetRemedy(), func(a *pb.Action) bool { return proto.Equal(a, action) }) {
					out.Remedy = append(out.Remedy, action)
				}
			}
		}
		s.Facts.RUnlock()
	}
	if verify {
		out.Remedy = append(out.Remedy, &pb.Action{Text: explain.Text("incident/verify"), Command: "ipwitness incidents " + out.GetId(), Verify: true})
	}
	return &pb.GetIncidentResponse{Incident: out}, nil
}

// NoIncident returns the error for an ID that no incident has.
func NoIncident(id string) error {
	return status.Errorf(codes.NotFound, "no incident has the id %q: it may be over, and /v1/incidents lists all", id)
}

// actions returns the actions for a conflict or finding. The caller holds the facts.
func (s *Service) actions(id string) []*pb.Action {
	if c := s.Shards.Conflicts.Get(id); c != nil {
		return s.Convert.Conflict(c).GetRemedy()
	}
	if f := s.Findings.Get(id); f != nil {
		return s.Convert.Finding(f, false).GetRemedy()
	}
	return nil
}

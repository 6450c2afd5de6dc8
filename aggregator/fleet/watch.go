package fleet

import (
	"context"
	"maps"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/incident"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// tokenPrefix tells the tokens of a fleet from those of an aggregator.
const tokenPrefix = "f"

func positionsToken(at api.Positions) string { return tokenPrefix + api.Token(at) }

// parsePositions parses a token; nil for none.
func parsePositions(token string) (api.Positions, error) {
	text, ours := strings.CutPrefix(token, tokenPrefix)
	at, err := api.ParseToken[api.Positions](text)
	if err != nil || token != "" && (!ours || text == "") {
		return nil, status.Error(codes.InvalidArgument, "resume_token is invalid: omit it to start a new watch")
	}
	return at, nil
}

// serve runs a watch, unless its request has an error. as makes the messages of the API.
func serve[M any](stream grpc.ServerStreamingServer[M], s *Service, q api.Watching, err error, w *api.RecordedWatch, as func(*api.Recorded) *M) error {
	if err != nil {
		return err
	}
	names := q.GetCluster()
	if _, _, err := s.Fleet.named(names); err != nil {
		return err
	}
	if w.At, err = parsePositions(q.GetResumeToken()); err != nil {
		return err
	}
	w.Sources = func() ([]*api.Records, <-chan struct{}, error) { return s.Fleet.sources(names, w.Select.Changes.Kind) }
	w.Coverage = func() *pb.Coverage {
		clusters, _, _ := s.Fleet.named(names) // which were known before
		return s.Fleet.coverage(clusters)
	}
	w.Token = positionsToken
	return api.ServeRecorded(stream, s.Stopped, w, as)
}

// resumable returns the token of a message about the present, if watches can be resumed there: only at bookmarks.
func resumable(m *api.Recorded) string {
	if m.Type == pb.Watch_BOOKMARK {
		return m.Token
	}
	return ""
}

// WatchOwners sends the current owners, then every change.
func (s *Service) WatchOwners(q *pb.WatchOwnersRequest, stream pb.WitnessService_WatchOwnersServer) error {
	sel, err := api.SelectOwners(q)
	return serve(stream, s, q, err, &api.RecordedWatch{Select: sel, Present: true}, func(m *api.Recorded) *pb.WatchOwnersResponse {
		return &pb.WatchOwnersResponse{Type: m.Type, Owner: m.Event.GetOwner(), ResumeToken: resumable(m), Coverage: m.Coverage}
	})
}

// WatchConflicts sends the active conflicts, then every change of a conflict.
func (s *Service) WatchConflicts(q *pb.WatchConflictsRequest, stream pb.WitnessService_WatchConflictsServer) error {
	sel, err := api.SelectConflicts(q, false)
	return serve(stream, s, q, err, &api.RecordedWatch{Select: sel, Present: true}, func(m *api.Recorded) *pb.WatchConflictsResponse {
		return &pb.WatchConflictsResponse{Type: m.Type, Conflict: m.Event.GetConflict(), ResumeToken: resumable(m), Coverage: m.Coverage}
	})
}

// WatchFindings sends the current findings, then every change.
func (s *Service) WatchFindings(q *pb.WatchFindingsRequest, stream pb.WitnessService_WatchFindingsServer) error {
	sel, err := api.SelectFindings(q)
	return serve(stream, s, q, err, &api.RecordedWatch{Select: sel, Present: true}, func(m *api.Recorded) *pb.WatchFindingsResponse {
		return &pb.WatchFindingsResponse{Type: m.Type, Finding: m.Event.GetFinding(), ResumeToken: resumable(m), Coverage: m.Coverage}
	})
}

// WatchNodes sends the nodes, then every change of a node.
func (s *Service) WatchNodes(q *pb.WatchNodesRequest, stream pb.WitnessService_WatchNodesServer) error {
	w := &api.RecordedWatch{Select: api.SelectNode(q.GetName()), Present: true}
	return serve(stream, s, q, nil, w, func(m *api.Recorded) *pb.WatchNodesResponse {
		out := &pb.WatchNodesResponse{Type: m.Type, Node: m.Event.GetNode(), ResumeToken: resumable(m), Coverage: m.Coverage}
		if m.Type == pb.Watch_BOOKMARK {
			out.Problems = s.Fleet.Problems()
		}
		return out
	})
}

// WatchEvents sends the recorded events since a time, then every event as it is recorded. The events of
// each cluster are in order.
func (s *Service) WatchEvents(q *pb.WatchEventsRequest, stream pb.WitnessService_WatchEventsServer) error {
	query, err := api.SelectEvents(q, s.Fleet.isNode)
	w := &api.RecordedWatch{Select: api.Selection{Changes: query}, Since: query.Since, Gaps: true}
	return serve(stream, s, q, err, w, api.EventMessage)
}

// incidentsEvery is the interval at which a watch of incidents looks for changes of the records.
const incidentsEvery = 2 * time.Second

// WatchIncidents sends the incidents of the clusters, then every change of one.
func (s *Service) WatchIncidents(q *pb.WatchIncidentsRequest, stream pb.WitnessService_WatchIncidentsServer) error {
	names := q.GetCluster()
	if _, _, err := s.Fleet.named(names); err != nil {
		return err
	}
	coverage := func() *pb.Coverage {
		clusters, _, _ := s.Fleet.named(names) // which were known before
		return s.Fleet.coverage(clusters)
	}
	read := make(map[*journal.Journal]time.Time) // up to when
	return api.ServeIncidents(q, stream, s.Stopped, incidentsEvery, coverage, func(ctx context.Context) (*incident.Index, error) {
		all, _, err := s.Fleet.sources(names, 0)
		if err != nil {
			return nil, err
		}
		now := make(map[*journal.Journal]time.Time)
		for _, r := range all {
			now[r.Journal], _, _ = r.Journal.Written()
		}
		if len(read) > 0 && maps.Equal(read, now) {
			return nil, nil
		}
		read = now
		return api.RecordedIncidents(ctx, all, &pb.ListIncidentsRequest{})
	})
}

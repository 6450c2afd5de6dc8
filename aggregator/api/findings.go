package api

import (
	"context"
	"iter"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/live"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// walkFindings returns a walk of the matching findings after a place.
func (s *Service) walkFindings(f *findingFilter, from judge.FindingPlace) *walk[*judge.Found, *pb.Finding] {
	if start := (judge.FindingPlace{Kind: f.kind}); from.Compare(start) < 0 {
		from = start
	}
	return &walk[*judge.Found, *pb.Finding]{
		facts: s.Facts, events: s.Events.Findings, less: (*judge.Found).Less, last: new(&judge.Found{Place: from}),
		keys: func(last **judge.Found) iter.Seq[*judge.Found] {
			return index.Until(s.Findings.InOrder().Snapshot().From(*last), func(one *judge.Found) bool { return f.kind != "" && one.Place.Kind != f.kind })
		},
		read: func(one *judge.Found, _ int, into []item[*pb.Finding]) ([]item[*pb.Finding], bool) {
			if now := s.Findings.Get(one.Place.ID); now != nil && now.Place == one.Place && f.finding(live.MatterOf(now)) {
				into = append(into, item[*pb.Finding]{now.Place, s.Convert.Finding(now, false)})
			}
			return into, false
		},
	}
}

// ListFindings lists problems that are not conflicts, or have not become conflicts yet, now or at a
// time.
func (s *Service) ListFindings(ctx context.Context, q *pb.ListFindingsRequest) (*pb.ListFindingsResponse, error) {
	f, err := newFindingFilter(q)
	walk := func(from judge.FindingPlace) *walk[*judge.Found, *pb.Finding] { return s.walkFindings(&f, from) }
	p, err := list(ctx, s, q, err, selectFindings(&f), walk, (*pb.Event).GetFinding)
	return &pb.ListFindingsResponse{Findings: p.items, NextPageToken: p.next, Coverage: p.coverage, Gap: p.gap}, err
}

// GetFinding returns a finding by its ID.
func (s *Service) GetFinding(_ context.Context, q *pb.GetFindingRequest) (*pb.GetFindingResponse, error) {
	s.Facts.RLock()
	defer s.Facts.RUnlock()
	now := s.Findings.Get(q.GetId())
	if now == nil {
		return nil, status.Errorf(codes.NotFound, "no finding has the id %q: it may be over, and /v1/events?kind=FINDING lists what was recorded", q.GetId())
	}
	return &pb.GetFindingResponse{Finding: s.Convert.Finding(now, false)}, nil
}

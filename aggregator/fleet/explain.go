package fleet

import (
	"context"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

var errNoAddress = status.Error(codes.InvalidArgument, "address is missing: give one like 10.244.1.5 or fd00::5")

// Explain says what is recorded of an address in each cluster, now or at a time.
func (s *Service) Explain(ctx context.Context, q *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	if q.GetCase() {
		return nil, errCase
	}
	owners, err := api.SelectOwners(&pb.ListOwnersRequest{Address: q.GetAddress()})
	if err != nil {
		return nil, err
	}
	if !owners.Span.First.IsValid() {
		return nil, errNoAddress
	}
	conflicts, err := api.SelectConflicts(&pb.ListConflictsRequest{Address: q.GetAddress()}, true)
	if err != nil {
		return nil, err
	}
	findings, err := api.SelectFindings(&pb.ListFindingsRequest{Address: q.GetAddress()})
	if err != nil {
		return nil, err
	}
	at, err := s.Fleet.moment(q.GetAt())
	if err != nil {
		return nil, err
	}
	out := &pb.ExplainResponse{Address: owners.Span.First.String()}
	if out.Coverage, out.Gap, err = s.Fleet.seen(ctx, q.GetCluster(), at); err != nil {
		return nil, err
	}
	all, _, err := s.Fleet.sources(q.GetCluster(), 0)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		for _, sel := range []api.Selection{owners, conflicts, findings} {
			if err := r.items(ctx, sel, at, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
				switch {
				case e.GetOwner() != nil:
					out.Owners = append(out.Owners, e.GetOwner())
				case e.GetConflict() != nil:
					out.Conflicts = append(out.Conflicts, e.GetConflict())
				case e.GetFinding() != nil:
					out.Findings = append(out.Findings, e.GetFinding())
				}
				return true
			}); err != nil {
				return nil, err
			}
		}
	}
	for _, o := range out.GetOwners() {
		if o.GetScope().GetKind() > out.GetScope().GetKind() {
			out.Scope = o.GetScope()
		}
	}
	slices.SortStableFunc(out.Conflicts, api.CompareRecorded)
	out.Summary = summary(owners.Span.First, out, !at.IsZero())
	return out, nil
}

func summary(a netip.Addr, out *pb.ExplainResponse, past bool) string {
	var all []explain.InCluster
	for _, o := range out.GetOwners() {
		if len(all) == 0 || all[len(all)-1].Name != o.GetCluster() {
			all = append(all, explain.InCluster{Name: o.GetCluster()})
		}
		if o.GetExcluded() == "" {
			all[len(all)-1].Owners++
		}
	}
	between := false
	for _, c := range out.GetConflicts() {
		if c.GetState() == pb.Conflict_RESOLVED {
			continue
		}
		if len(c.GetClusters()) > 1 {
			between = true
			continue
		}
		for i := range all {
			all[i].Conflict = all[i].Conflict || slices.Contains(c.GetClusters(), all[i].Name)
		}
	}
	return explain.Clusters(a, all, between, past)
}

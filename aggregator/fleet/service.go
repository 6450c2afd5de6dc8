package fleet

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/live"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Service is the WitnessService of a fleet. All fields are required.
type Service struct {
	pb.UnimplementedWitnessServiceServer
	Fleet *Fleet
	// Stopped is closed when watches must end.
	Stopped <-chan struct{}
}

// ListOwners lists the owners of addresses, now or at a time, ordered by cluster and address.
func (s *Service) ListOwners(ctx context.Context, q *pb.ListOwnersRequest) (*pb.ListOwnersResponse, error) {
	sel, err := api.SelectOwners(q)
	p, err := list(ctx, s.Fleet, q, sel, err, (*pb.Event).GetOwner)
	return &pb.ListOwnersResponse{Owners: p.Items, NextPageToken: p.Next, Coverage: p.Coverage, Gap: p.Gap}, err
}

// ResolveOwners says which owners had addresses at times.
func (s *Service) ResolveOwners(ctx context.Context, q *pb.ResolveOwnersRequest) (*pb.ResolveOwnersResponse, error) {
	now := s.Fleet.Clock()
	all, err := api.NewQuestions(q, now)
	if err != nil {
		return nil, err
	}
	clusters, _, err := s.Fleet.named(q.GetCluster())
	if s.Fleet.coverage(clusters).GetUnknown() == pb.Coverage_HUB {
		all.Doubt() // there may be other clusters
	}
	for _, c := range clusters {
		if err == nil {
			err = all.Resolve(ctx, &c.Records, c.lives(now) == pb.Cluster_LIVE)
		}
	}
	if err != nil {
		return nil, err
	}
	return all.Answer(), nil
}

// ListConflicts lists the conflicts, now or at a time; active ones unless all is set.
func (s *Service) ListConflicts(ctx context.Context, q *pb.ListConflictsRequest) (*pb.ListConflictsResponse, error) {
	sel, err := api.SelectConflicts(q, q.GetAll())
	p, err := list(ctx, s.Fleet, q, sel, err, (*pb.Event).GetConflict)
	return &pb.ListConflictsResponse{Conflicts: p.Items, NextPageToken: p.Next, Coverage: p.Coverage, Gap: p.Gap}, err
}

// ListFindings lists problems that are not conflicts, now or at a time.
func (s *Service) ListFindings(ctx context.Context, q *pb.ListFindingsRequest) (*pb.ListFindingsResponse, error) {
	sel, err := api.SelectFindings(q)
	p, err := list(ctx, s.Fleet, q, sel, err, (*pb.Event).GetFinding)
	return &pb.ListFindingsResponse{Findings: p.Items, NextPageToken: p.Next, Coverage: p.Coverage, Gap: p.Gap}, err
}

// ListNodes lists the nodes of the clusters, as they are recorded.
func (s *Service) ListNodes(ctx context.Context, q *pb.ListNodesRequest) (*pb.ListNodesResponse, error) {
	out := &pb.ListNodesResponse{Problems: s.Fleet.Problems()}
	clusters, _, err := s.Fleet.named(q.GetCluster())
	if err != nil {
		return nil, err
	}
	if out.Nodes, err = nodes(ctx, clusters, ""); err != nil {
		return nil, err
	}
	out.Coverage = s.Fleet.coverage(clusters)
	return out, nil
}

// isNode reports whether a node has a name.
func (f *Fleet) isNode(name string) bool {
	clusters, _, err := f.named(nil)
	if err != nil {
		return false
	}
	all, err := nodes(context.Background(), clusters, name)
	return err == nil && len(all) > 0
}

// nodes returns the nodes with a name, or all if it is empty, by cluster and name.
func nodes(ctx context.Context, clusters []*cluster, name string) ([]*pb.Node, error) {
	all := []*pb.Node{}
	sel := api.SelectNode(name)
	for _, c := range clusters {
		first := len(all)
		if err := c.Items(ctx, sel, time.Time{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
			all = append(all, e.GetNode())
			return true
		}); err != nil {
			return nil, err
		}
		slices.SortFunc(all[first:], func(a, b *pb.Node) int { return strings.Compare(a.GetName(), b.GetName()) })
	}
	return all, nil
}

// GetNode returns a node by its name. Nodes of several clusters may have one name.
func (s *Service) GetNode(ctx context.Context, q *pb.GetNodeRequest) (*pb.GetNodeResponse, error) {
	clusters, _, err := s.Fleet.named(q.GetCluster())
	if err != nil {
		return nil, err
	}
	var all []*pb.Node
	if q.GetName() != "" {
		if all, err = nodes(ctx, clusters, q.GetName()); err != nil {
			return nil, err
		}
	}
	switch len(all) {
	case 0:
		return nil, status.Errorf(codes.NotFound, "no node has the name %q: /v1/nodes lists all nodes", q.GetName())
	case 1:
		return &pb.GetNodeResponse{Node: all[0]}, nil
	}
	return nil, status.Errorf(codes.FailedPrecondition, "nodes of %d clusters have the name %q, such as %s and %s: select a cluster with ?cluster=",
		len(all), q.GetName(), all[0].GetCluster(), all[1].GetCluster())
}

// GetConflict returns a conflict by its ID.
func (s *Service) GetConflict(ctx context.Context, q *pb.GetConflictRequest) (*pb.GetConflictResponse, error) {
	sel, err := api.SelectConflicts(&pb.ListConflictsRequest{}, true)
	if err != nil {
		return nil, err
	}
	e, err := s.find(ctx, sel, func(e *pb.Event) bool { return e.GetConflict().GetId() == q.GetId() })
	if err == nil && e == nil {
		err = live.NoConflict(q.GetId())
	}
	return &pb.GetConflictResponse{Conflict: e.GetConflict()}, err
}

// GetFinding returns a finding by its ID.
func (s *Service) GetFinding(ctx context.Context, q *pb.GetFindingRequest) (*pb.GetFindingResponse, error) {
	sel, err := api.SelectFindings(&pb.ListFindingsRequest{})
	if err != nil {
		return nil, err
	}
	e, err := s.find(ctx, sel, func(e *pb.Event) bool { return e.GetFinding().GetId() == q.GetId() })
	if err == nil && e == nil {
		err = status.Errorf(codes.NotFound, "no finding has the ID %q: /v1/findings lists all findings", q.GetId())
	}
	return &pb.GetFindingResponse{Finding: e.GetFinding()}, err
}

// find returns the first item that is wanted; nil if there is none.
func (s *Service) find(ctx context.Context, sel api.Selection, wanted func(*pb.Event) bool) (found *pb.Event, err error) {
	all, _, err := s.Fleet.sources(nil, sel.Changes.Kind)
	for _, c := range all {
		if err == nil && found == nil {
			err = c.Items(ctx, sel, time.Time{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
				if wanted(e) {
					found = e
				}
				return found == nil
			})
		}
	}
	return found, err
}

// ListClusters lists the clusters.
func (s *Service) ListClusters(_ context.Context, q *pb.ListClustersRequest) (*pb.ListClustersResponse, error) {
	clusters, _, err := s.Fleet.named(q.GetCluster())
	if err != nil {
		return nil, err
	}
	out := &pb.ListClustersResponse{Clusters: []*pb.Cluster{}, Problems: s.Fleet.Problems(), Coverage: s.Fleet.coverage(clusters)}
	for _, c := range clusters {
		out.Clusters = append(out.Clusters, c.message())
	}
	return out, nil
}

// Errors for what only the aggregator of a cluster can do.
var (
	errAcknowledge = status.Error(codes.FailedPrecondition, "a fleet cannot acknowledge a conflict: ask the aggregator of its cluster, from which the fleet learns of the acknowledgement")
	errBackup      = status.Error(codes.FailedPrecondition, "a fleet has no backups: its records are those of the clusters, which their aggregators can back up")
	errCase        = status.Error(codes.FailedPrecondition, "a fleet has no cases: ask the aggregator of the cluster")
	errPools       = status.Error(codes.Unimplemented, "a fleet does not know pools: ask the aggregators of the clusters")
)

// AcknowledgeConflict refuses: acknowledgements belong to a cluster.
func (s *Service) AcknowledgeConflict(context.Context, *pb.AcknowledgeConflictRequest) (*pb.AcknowledgeConflictResponse, error) {
	return nil, errAcknowledge
}

// ListPools refuses: the streams have no pools.
func (s *Service) ListPools(context.Context, *pb.ListPoolsRequest) (*pb.ListPoolsResponse, error) {
	return nil, errPools
}

// Backup refuses.
func (s *Service) Backup(*pb.BackupRequest, pb.WitnessService_BackupServer) error { return errBackup }

var errNoAddress = status.Error(codes.InvalidArgument, "address is missing: give one like 10.244.1.5 or fd00::5")

// Explain says what is recorded of an address in each cluster, now or at a time.
func (s *Service) Explain(ctx context.Context, q *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	if q.GetCase() {
		return nil, errCase
	}
	if q.GetAddress() == "" {
		return nil, errNoAddress
	}
	out := api.ExplainSpecial(q.GetAddress())
	addr, err := api.ParseAddress(q.GetAddress())
	switch {
	case out != nil:
	case err != nil:
		return nil, err
	default:
		out = &pb.ExplainResponse{Address: addr.String()}
	}
	at, err := api.Moment(q.GetAt(), s.Fleet.Clock())
	if err != nil {
		return nil, err
	}
	if out.Coverage, out.Gap, err = s.Fleet.seen(ctx, q.GetCluster(), at); err != nil {
		return nil, err
	}
	if out.Summary != "" {
		return out, nil
	}
	all, _, err := s.Fleet.sources(q.GetCluster(), 0)
	if err != nil {
		return nil, err
	}
	if err := api.ExplainRecorded(ctx, out, all, addr, at); err != nil {
		return nil, err
	}
	out.Summary = summary(addr, out, !at.IsZero())
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

// ListEvents lists the changes that are recorded, in order of their times.
func (s *Service) ListEvents(ctx context.Context, q *pb.ListEventsRequest) (*pb.ListEventsResponse, error) {
	clusters, _, err := s.Fleet.named(q.GetCluster())
	if err != nil {
		return nil, err
	}
	all, _, err := s.Fleet.sources(q.GetCluster(), q.GetKind())
	if err != nil {
		return nil, err
	}
	coverage := s.Fleet.coverage(clusters)
	out, err := api.RecordedEvents(ctx, all, q, s.Fleet.isNode, s.Fleet.Clock())
	if err != nil {
		return nil, err
	}
	out.Coverage = coverage
	return out, nil
}

// ListIncidents lists the incidents of the clusters, now or at a time.
func (s *Service) ListIncidents(ctx context.Context, q *pb.ListIncidentsRequest) (*pb.ListIncidentsResponse, error) {
	all, _, err := s.Fleet.sources(q.GetCluster(), 0)
	if err != nil {
		return nil, err
	}
	at, err := api.Moment(q.GetAt(), s.Fleet.Clock())
	if err != nil {
		return nil, err
	}
	coverage, gap, err := s.Fleet.seen(ctx, q.GetCluster(), at)
	if err != nil {
		return nil, err
	}
	incidents, err := api.RecordedIncidents(ctx, all, q)
	if err != nil {
		return nil, err
	}
	out, err := api.PageOfIncidents(q, incidents)
	if err == nil {
		out.Coverage, out.Gap = coverage, gap
	}
	return out, err
}

// GetIncident returns an incident by its ID. A fleet knows no actions.
func (s *Service) GetIncident(ctx context.Context, q *pb.GetIncidentRequest) (*pb.GetIncidentResponse, error) {
	all, _, err := s.Fleet.sources(nil, 0)
	if err != nil {
		return nil, err
	}
	incidents, err := api.RecordedIncidents(ctx, all, &pb.ListIncidentsRequest{})
	if err != nil {
		return nil, err
	}
	if one := incidents.Get(q.GetId()); one != nil {
		return &pb.GetIncidentResponse{Incident: one}, nil
	}
	return nil, api.NoIncident(q.GetId())
}

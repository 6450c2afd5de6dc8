package api

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Selection is what a request selects from a journal.
type Selection struct {
	// Changes selects events as a watch sees them: it sets their types.
	Changes journal.Query
	// Span has the addresses of the items that can match; all if it is not valid.
	Span ipam.Range
	// Matches reports whether an item matches.
	Matches func(*pb.Event) bool
}

func (f *filter) selection(kind pb.Event_Kind, present, changed func(*pb.Event) bool) Selection {
	changes := f.query(kind)
	changes.Compare = seen(changed)
	return Selection{Changes: changes, Span: f.wanted(), Matches: present}
}

// OwnersRequest is a request for owners.
type OwnersRequest interface {
	filtering
	GetState() pb.Owner_State
	GetScope() string
}

// SelectOwners returns what a request selects.
func SelectOwners(q OwnersRequest) (Selection, error) {
	f, err := newOwnerFilter(q)
	return selectOwners(&f), err
}

func selectOwners(f *filter) Selection {
	matches := func(e *pb.Event) bool { return f.message(e.GetOwner()) }
	return f.selection(pb.Event_OWNER, matches, matches)
}

// ConflictsRequest is a request for conflicts.
type ConflictsRequest interface {
	filtering
	GetState() pb.Conflict_State
	GetCause() string
	GetScope() string
	GetIncident() string
}

// SelectConflicts returns what a request selects. Unless all is set, items that are resolved do not match.
func SelectConflicts(q ConflictsRequest, all bool) (Selection, error) {
	f, err := newConflictFilter(q)
	present := f
	present.active = f.phase == 0 && !all
	return selectConflicts(&present, &f), err
}

func selectConflicts(present, changed *conflictFilter) Selection {
	return changed.selection(
		pb.Event_CONFLICT,
		func(e *pb.Event) bool { return present.recorded(e.GetConflict()) },
		func(e *pb.Event) bool { return changed.recorded(e.GetConflict()) },
	)
}

// FindingsRequest is a request for findings.
type FindingsRequest interface {
	filtering
	GetKind() string
	GetIncident() string
}

// SelectFindings returns what a request selects.
func SelectFindings(q FindingsRequest) (Selection, error) {
	f, err := newFindingFilter(q)
	return selectFindings(&f), err
}

// selectFindings selects by all addresses: a finding may be about other addresses than its own.
func selectFindings(f *findingFilter) Selection {
	matches := func(e *pb.Event) bool { return f.recorded(e.GetFinding()) }
	return Selection{Changes: journal.Query{Kind: pb.Event_FINDING, Compare: seen(matches)}, Matches: matches}
}

// SelectNode returns the selection of the node with a name; of all nodes if it is empty.
func SelectNode(name string) Selection {
	f := filter{node: name}
	matches := func(e *pb.Event) bool { return name == "" || e.GetNode().GetName() == name }
	return f.selection(pb.Event_NODE, matches, matches)
}

// EventsRequest is a request for events.
type EventsRequest interface {
	filtering
	GetKind() pb.Event_Kind
	GetSince() *timestamppb.Timestamp
}

// own returns an error if a request is about other clusters than that of the aggregator.
func (s *Service) own(q interface{ GetCluster() []string }) error {
	own := s.Facts.Policy.Cluster
	if all := q.GetCluster(); len(all) > 0 && !slices.Contains(all, own) {
		return status.Errorf(codes.InvalidArgument, "the cluster %q is not known: this aggregator is that of the cluster %q, and only a fleet has others", all[0], own)
	}
	return nil
}

// ListClusters lists the cluster of the aggregator.
func (s *Service) ListClusters(_ context.Context, q *pb.ListClustersRequest) (*pb.ListClustersResponse, error) {
	if err := s.own(q); err != nil {
		return nil, err
	}
	coverage, now := s.Coverage.Current(), timestamppb.New(s.now())
	c := &pb.Cluster{Name: s.Facts.Policy.Cluster, State: pb.Cluster_LIVE, LastHeard: now, Until: now, Coverage: coverage}
	if s.Journal != nil {
		if oldest := s.Journal.Oldest(); !oldest.IsZero() {
			c.ReachesBackTo = timestamppb.New(oldest)
		}
	}
	return &pb.ListClustersResponse{Clusters: []*pb.Cluster{c}, Problems: s.Problems(), Coverage: coverage}, nil
}

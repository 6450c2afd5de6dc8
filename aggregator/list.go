package aggregator

import (
	"cmp"
	"context"
	"encoding/base64"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// witness is the WitnessService.
type witness struct {
	pb.UnimplementedWitnessServiceServer
	*Aggregator
}

const (
	defaultPage = 1000
	maxPage     = 10_000
)

// A page holds the items of one page of a list: at most size items, and fewer if they reach
// maxPageBytes. The client then gets the rest with the next page.
type page[T proto.Message] struct {
	items []T
	size  int
	bytes int
}

// maxPageBytes limits the encoded size of the items of a page. The last item may exceed it.
const maxPageBytes = 1 << 20

func newPage[T proto.Message](asked uint32) *page[T] {
	p := &page[T]{items: []T{}, size: defaultPage}
	if asked != 0 {
		p.size = int(min(asked, maxPage))
	}
	return p
}

func (p *page[T]) full() bool { return len(p.items) >= p.size || p.bytes >= maxPageBytes }

func (p *page[T]) add(item T) {
	p.items = append(p.items, item)
	p.bytes += proto.Size(item)
}

// place is where a page ends: after one item of one address.
type place struct {
	addr netip.Addr
	id   string
}

func (p place) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.addr.String() + " " + p.id))
}

func parsePlace(token string) (p place, err error) {
	if token == "" {
		return p, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	addr, id, ok := strings.Cut(string(raw), " ")
	if err == nil && ok {
		p.addr, err = netip.ParseAddr(addr)
		p.id = id
	}
	if err != nil || !ok {
		return p, errPageToken
	}
	return p, nil
}

var errPageToken = status.Error(codes.InvalidArgument, "page_token is not one that was given out: leave it out to begin anew")

// ListOwners lists who holds which address now.
func (w witness) ListOwners(_ context.Context, q *pb.ListOwnersRequest) (*pb.ListOwnersResponse, error) {
	f, err := newOwnerFilter(q)
	if err != nil {
		return nil, err
	}
	from, err := parsePlace(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	coverage := w.store.currentCoverage()
	owners := newPage[*pb.Owner](q.GetPageSize())
	next := fill(owners, w.store.walkOwners(&f, from))
	return &pb.ListOwnersResponse{Owners: owners.items, NextPageToken: next, Coverage: coverage}, nil
}

// walkOwners returns a walk of the owners that match, from a place on. Its keys are addresses, as
// one address may have many owners.
func (s *store) walkOwners(f *filter, from place) *walk[slot, *pb.Owner] {
	span := f.span()
	if from.addr.IsValid() && span.First.Less(from.addr) {
		span.First = from.addr
	}
	return &walk[slot, *pb.Owner]{
		store: s, events: s.owners, less: slot.less,
		keys: func(last *slot) iter.Seq[slot] {
			if last != nil {
				span.First = last.entry.addr
			}
			return s.table.within(span)
		},
		read: func(at slot, room int, into []item[*pb.Owner]) (_ []item[*pb.Owner], more bool) {
			if addr := at.entry.addr; addr != from.addr {
				from = place{addr: addr}
			}
			owners := at.entry.owners
			skip := 1 + slices.IndexFunc(owners, func(o verdict.Owner) bool { return o.ID == from.id })
			for i := skip; i < len(owners); i++ {
				o := &owners[i]
				if !f.owner(o, o.Node.Name) {
					continue
				}
				if room == 0 {
					return into, true
				}
				from.id = o.ID
				into = append(into, item[*pb.Owner]{from, s.ownerProto(from.addr, o)})
				room--
			}
			return into, false
		},
	}
}

// ListConflicts lists the conflicts, active ones unless all is set.
func (w witness) ListConflicts(_ context.Context, q *pb.ListConflictsRequest) (*pb.ListConflictsResponse, error) {
	f, err := newConflictFilter(q)
	if err != nil {
		return nil, err
	}
	f.active = f.phase == 0 && !q.GetAll()
	from, err := parsePlace(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	coverage := w.store.currentCoverage()
	conflicts := newPage[*pb.Conflict](q.GetPageSize())
	next := fill(conflicts, w.store.walkConflicts(&f, from))
	return &pb.ListConflictsResponse{Conflicts: conflicts.items, NextPageToken: next, Coverage: coverage}, nil
}

// conflictKey is the place of a conflict and the entry that has it.
type conflictKey struct {
	place
	entry *entry
}

func (k conflictKey) less(o conflictKey) bool { return comparePlaces(k.place, o.place) < 0 }

// walkConflicts returns a walk of the conflicts that match and come after a place.
func (s *store) walkConflicts(f *conflictFilter, from place) *walk[conflictKey, *pb.Conflict] {
	span := f.span()
	start := conflictKey{place: place{addr: span.First}}
	if start.less(conflictKey{place: from}) {
		start.place = from
	}
	return &walk[conflictKey, *pb.Conflict]{
		store: s, events: s.conflicts, less: conflictKey.less, last: &start,
		keys: func(last *conflictKey) iter.Seq[conflictKey] {
			return until(s.inOrder.Snapshot().From(*last), func(k conflictKey) bool { return span.Last.Less(k.addr) })
		},
		read: func(k conflictKey, _ int, into []item[*pb.Conflict]) ([]item[*pb.Conflict], bool) {
			if c := k.entry.conflict(k.id); c != nil && f.conflict(c) {
				into = append(into, item[*pb.Conflict]{k.place, s.conflictProto(c)})
			}
			return into, false
		},
	}
}

// until yields what comes before the first element that is beyond.
func until[T any](all iter.Seq[T], beyond func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		for one := range all {
			if beyond(one) || !yield(one) {
				return
			}
		}
	}
}

func comparePlaces(a, b place) int {
	return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.id, b.id))
}

// GetConflict gives one conflict by its id.
func (w witness) GetConflict(_ context.Context, q *pb.GetConflictRequest) (*pb.GetConflictResponse, error) {
	s := w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[q.GetId()]
	if e == nil {
		return nil, noConflict(q.GetId())
	}
	return &pb.GetConflictResponse{Conflict: s.conflictProto(e.conflict(q.GetId()))}, nil
}

func noConflict(id string) error {
	return status.Errorf(codes.NotFound,
		"no conflict has the id %q: `ipwitness conflicts --all` lists them; those that are over are kept for a day", id)
}

// Explain says why an address is, or is not, in conflict.
func (w witness) Explain(_ context.Context, q *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	addr, err := parseAddress(q.GetAddress())
	if err != nil {
		return nil, err
	}
	s := w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	why, conflicts := s.explain(addr)
	out := &pb.ExplainResponse{
		Address: addr.String(), Summary: why.Summary, Scope: scopeProto(why.Kind, why.Scope),
		Owners: w.store.ownersProto(addr, why.Owners), Coverage: s.coverageNow(),
	}
	for _, step := range why.Steps {
		out.Steps = append(out.Steps, &pb.ExplainResponse_Step{
			Rule: step.Rule, Scope: scopeProto(step.Kind, step.Scope), Applied: step.Applied, Reason: step.Reason,
		})
	}
	conflicts = slices.Clone(conflicts)
	latest := func(c *verdict.Conflict) verdict.Stamp {
		if c.Active() {
			return math.MaxInt64
		}
		return c.ResolvedAt
	}
	slices.SortFunc(conflicts, func(a, b verdict.Conflict) int {
		return cmp.Or(cmp.Compare(latest(&b), latest(&a)), cmp.Compare(a.ID, b.ID))
	})
	for i := range conflicts {
		out.Conflicts = append(out.Conflicts, s.conflictProto(&conflicts[i]))
	}
	return out, nil
}

// ListNodes lists the agents and their health.
func (w witness) ListNodes(context.Context, *pb.ListNodesRequest) (*pb.ListNodesResponse, error) {
	s := w.store
	coverage := s.currentCoverage()
	out := &pb.ListNodesResponse{Nodes: []*pb.Node{}, Kubernetes: s.kube.Status(), Coverage: coverage, Problems: s.archive.dir.problems()}
	nodes := slices.Collect(s.nodesInOrder.Snapshot().All())
	for some := range slices.Chunk(nodes, pageStep) {
		s.mu.Lock()
		for _, k := range some {
			if s.nodes[k.node.id] == k.node {
				out.Nodes = append(out.Nodes, s.nodeProto(k.node))
			}
		}
		s.mu.Unlock()
	}
	return out, nil
}

// nodeKey is the place of a node in the list.
type nodeKey struct {
	name string
	node *node
}

func (k nodeKey) less(o nodeKey) bool {
	return cmp.Or(strings.Compare(k.name, o.name), k.node.id.compare(o.node.id)) < 0
}

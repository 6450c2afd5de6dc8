package aggregator

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/shard"
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
func (s *store) walkOwners(f *filter, from place) *walk[index.Address, *pb.Owner] {
	span := f.span()
	if from.addr.IsValid() && span.First.Less(from.addr) {
		span.First = from.addr
	}
	first, last := index.AddressOf(span.First), index.AddressOf(span.Last)
	addresses := s.addressesFrom
	if f.node != "" && span.First != span.Last {
		addresses = func(first index.Address) iter.Seq[index.Address] {
			all := s.facts.AddressesOn(f.node)
			from, _ := slices.BinarySearchFunc(all, first, index.Address.Compare)
			return slices.Values(all[from:])
		}
	}
	builder := s.facts.Builder()
	return &walk[index.Address, *pb.Owner]{
		store: s, events: s.told.owners, less: index.Address.Less,
		keys: func(at *index.Address) iter.Seq[index.Address] {
			if at != nil {
				first = *at
			}
			return until(addresses(first), last.Less)
		},
		read: func(a index.Address, room int, into []item[*pb.Owner]) (_ []item[*pb.Owner], more bool) {
			addr := a.Addr()
			if addr != from.addr {
				from = place{addr: addr}
			}
			owners := s.ownersOf(builder, a)
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
				into = append(into, item[*pb.Owner]{from, s.ownerProto(from.addr, o, owners)})
				room--
			}
			return into, false
		},
	}
}

// addressesFrom yields the addresses that have owners, from one on.
func (s *store) addressesFrom(first index.Address) iter.Seq[index.Address] {
	return func(yield func(index.Address) bool) {
		for p := range s.shards.Places().From(shard.From(first)) {
			if !yield(p.Address()) {
				return
			}
		}
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

// walkConflicts returns a walk of the conflicts that match and come after a place.
func (s *store) walkConflicts(f *conflictFilter, from place) *walk[place, *pb.Conflict] {
	span := f.span()
	start := place{addr: span.First}
	if start.less(from) {
		start = from
	}
	return &walk[place, *pb.Conflict]{
		store: s, events: s.told.conflicts, less: place.less, last: &start,
		keys: func(last *place) iter.Seq[place] {
			return func(yield func(place) bool) {
				for c := range s.shards.Conflicts.After(index.AddressOf(last.addr), last.id) {
					if span.Last.Less(c.Address) || !yield(place{c.Address, c.ID}) {
						return
					}
				}
			}
		},
		read: func(at place, _ int, into []item[*pb.Conflict]) ([]item[*pb.Conflict], bool) {
			if c := s.shards.Conflicts.Get(at.id); c != nil && f.conflict(c) {
				into = append(into, item[*pb.Conflict]{at, s.conflictProto(c)})
			}
			return into, false
		},
	}
}

func (p place) less(other place) bool { return comparePlaces(p, other) < 0 }

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
	s.facts.RLock()
	defer s.facts.RUnlock()
	c := s.shards.Conflicts.Get(q.GetId())
	if c == nil {
		return nil, noConflict(q.GetId())
	}
	return &pb.GetConflictResponse{Conflict: s.conflictProto(c)}, nil
}

func noConflict(id string) error {
	return status.Errorf(codes.NotFound,
		"no conflict has the id %q: `ipwitness conflicts --all` lists them; those that are over are kept for a day", id)
}

// ListNodes lists the agents and their health.
func (w witness) ListNodes(context.Context, *pb.ListNodesRequest) (*pb.ListNodesResponse, error) {
	s := w.store
	coverage := s.currentCoverage()
	out := &pb.ListNodesResponse{Nodes: []*pb.Node{}, Kubernetes: s.kube.Status(), Coverage: coverage, Problems: s.problems()}
	for some := range slices.Chunk(s.nodesInOrder(), pageStep) {
		s.facts.RLock()
		for _, n := range some {
			if slices.Contains(s.facts.At(n.ID.Place()), n) {
				out.Nodes = append(out.Nodes, s.nodeProto(n))
			}
		}
		s.facts.RUnlock()
	}
	return out, nil
}

// problems describes what does not work in the aggregator itself.
func (s *store) problems() []string {
	problems := s.archive.dir.problems()
	if n := s.shards.Unjudged(); n > 0 {
		problems = append(problems, fmt.Sprintf(
			"%d addresses could not be judged because of a defect: conflicts of them are not found; please report what the log says", n))
	}
	return problems
}

// nodesInOrder returns all nodes by name and identity.
func (s *store) nodesInOrder() []*facts.Node {
	type named struct {
		name string
		node *facts.Node
	}
	var all []named
	s.facts.RLock()
	for n := range s.facts.Nodes {
		all = append(all, named{n.Rec.Name, n})
	}
	s.facts.RUnlock()
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(strings.Compare(a.name, b.name), a.node.ID.Compare(b.node.ID)) })
	nodes := make([]*facts.Node, 0, len(all))
	for _, one := range all {
		nodes = append(nodes, one.node)
	}
	return nodes
}

// allAddresses is the range of all addresses.
var allAddresses = verdict.Range{First: netip.IPv4Unspecified(), Last: netip.AddrFrom16([16]byte(slices.Repeat([]byte{0xff}, 16)))}

// merged returns the addresses of ranges, which may overlap, as ranges that neither overlap nor
// adjoin, in order. It changes the order of its argument.
func merged(ranges []verdict.Range) (all []verdict.Range) {
	slices.SortFunc(ranges, func(a, b verdict.Range) int { return a.First.Compare(b.First) })
	for _, r := range ranges {
		if n := len(all); n > 0 {
			if end := all[n-1].Last; r.First.Compare(end) <= 0 || r.First == end.Next() {
				if end.Less(r.Last) {
					all[n-1].Last = r.Last
				}
				continue
			}
		}
		all = append(all, r)
	}
	return all
}

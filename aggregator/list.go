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

	"github.com/ipwitness/ipwitness/aggregator/explain"
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
	f, err := newFilter(q)
	if err != nil {
		return nil, err
	}
	from, err := parsePlace(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	coverage := w.store.currentCoverage()
	owners := newPage[*pb.Owner](q.GetPageSize())
	next := w.store.listOwners(&f, from, owners)
	return &pb.ListOwnersResponse{Owners: owners.items, NextPageToken: next, Coverage: coverage}, nil
}

// listOwners fills a page with owners and returns the token of the next one. It takes the lock
// for one part of the table at a time.
func (s *store) listOwners(f *filter, from place, page *page[*pb.Owner]) (next string) {
	for {
		n := page.size - len(page.items) + 2 // the first address may be complete, and the last one is for the token
		addrs := s.addresses(f, from.addr, n)
		for _, a := range addrs {
			if a != from.addr {
				from = place{addr: a}
			}
			if full := s.appendOwners(page, f, &from); full {
				return from.token()
			}
		}
		if len(addrs) < n { // else some may have left before they were looked at
			return ""
		}
	}
}

// eachOwner calls give for all matching owners. It builds them a few at a time, so that a slow
// subscriber takes little memory.
func (s *store) eachOwner(f *filter, give func(*pb.Owner) error) error {
	page := &page[*pb.Owner]{size: snapshotPage}
	for from := (place{}); ; {
		addrs := s.addresses(f, from.addr, snapshotPlaces)
		for _, a := range addrs {
			if a != from.addr {
				from = place{addr: a}
			}
			for full := true; full; {
				page.items, page.bytes = page.items[:0], 0
				full = s.appendOwners(page, f, &from)
				for i, o := range page.items {
					if err := give(o); err != nil {
						return err
					}
					page.items[i] = nil
				}
			}
		}
		if len(addrs) < snapshotPlaces {
			return nil
		}
	}
}

// appendOwners appends the owners of one address, starting at a place, to a page, and advances
// the place. It reports whether the page is full before all owners are appended.
func (s *store) appendOwners(page *page[*pb.Owner], f *filter, from *place) (full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.table.get(from.addr)
	if e == nil {
		return false
	}
	skip := 1 + slices.IndexFunc(e.owners, func(o verdict.Owner) bool { return o.ID == from.id })
	for i := skip; i < len(e.owners); i++ {
		o := &e.owners[i]
		if !f.owner(o, o.Node.Name) {
			continue
		}
		if page.full() {
			return true
		}
		page.add(s.ownerProto(from.addr, o))
		from.id = o.ID
	}
	return false
}

// addresses gives the first n addresses, from one on, that have an owner that
// matches, in order.
func (s *store) addresses(f *filter, from netip.Addr, n int) []netip.Addr {
	if f.addr.IsValid() {
		if f.address(f.addr) && f.addr.Compare(from) >= 0 {
			return []netip.Addr{f.addr}
		}
		return nil
	}
	var found []netip.Addr
	var bound netip.Addr // once there are enough: what comes later is not looked at
	for i := range s.table.shards {
		s.mu.Lock()
		for e := range s.table.shards[i].all() {
			a := e.addr
			if a.Less(from) || bound.IsValid() && bound.Less(a) || !f.address(a) {
				continue
			}
			if f.any(e.owners) {
				found = append(found, a)
			}
		}
		s.mu.Unlock()
		if len(found) >= 2*n {
			slices.SortFunc(found, netip.Addr.Compare)
			found = found[:n]
			bound = found[n-1]
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Clone(found[:min(n, len(found))]) // without spare capacity: a subscriber may keep it for long
}

// ListConflicts lists the conflicts, active ones unless all is set.
func (w witness) ListConflicts(_ context.Context, q *pb.ListConflictsRequest) (*pb.ListConflictsResponse, error) {
	addr, err := optionalAddress(q.GetAddress())
	if err != nil {
		return nil, err
	}
	from, err := parsePlace(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	state := known(q.GetState(), verdict.Resolved)
	if state == 0 && q.GetState() != 0 {
		return nil, errState
	}
	wanted := func(c *verdict.Conflict) bool {
		if state != 0 && c.Phase != state || addr.IsValid() && c.Address != addr {
			return false
		}
		return c.Active() || q.GetAll() || state == verdict.Resolved
	}
	coverage := w.store.currentCoverage()
	conflicts := newPage[*pb.Conflict](q.GetPageSize())
	next := w.store.listConflicts(wanted, from, conflicts)
	return &pb.ListConflictsResponse{Conflicts: conflicts.items, NextPageToken: next, Coverage: coverage}, nil
}

var errState = status.Error(codes.InvalidArgument, "state must be SUSPECTED, CONFIRMED or RESOLVED: leave it out for those that are active")

// listConflicts fills a page with conflicts and returns the token of the next one.
func (s *store) listConflicts(wanted func(*verdict.Conflict) bool, from place, page *page[*pb.Conflict]) (next string) {
	for i, p := range s.conflictPlaces(wanted, from, page.size+1) {
		if i == page.size || page.full() {
			return from.token()
		}
		from = p
		if c := s.conflictAt(p, wanted); c != nil {
			page.add(c)
		}
	}
	return ""
}

// conflictPlaces returns the first n wanted conflicts after a place, in order.
func (s *store) conflictPlaces(wanted func(*verdict.Conflict) bool, from place, n int) []place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return least(n, comparePlaces, func(yield func(place) bool) {
		for id, e := range s.byID {
			if p := (place{e.addr, id}); comparePlaces(p, from) > 0 && wanted(e.conflict(id)) && !yield(p) {
				return
			}
		}
	})
}

// conflictAt returns the conflict at a place; nil if it has ended or is not wanted.
func (s *store) conflictAt(p place, wanted func(*verdict.Conflict) bool) *pb.Conflict {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[p.id]
	if e == nil || !wanted(e.conflict(p.id)) {
		return nil
	}
	return s.conflictProto(e.conflict(p.id))
}

// least returns the n smallest elements of all in order. It holds at most 2n elements at a
// time.
func least[T any](n int, compare func(a, b T) int, all iter.Seq[T]) (some []T) {
	cut := func() {
		slices.SortFunc(some, compare)
		some = some[:min(n, len(some))]
	}
	for one := range all {
		if some = append(some, one); len(some) >= 2*n {
			cut()
		}
	}
	cut()
	return slices.Clone(some) // without spare capacity: a subscriber may keep it for long
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
	told := explain.Address(&s.policy, &why)
	out := &pb.ExplainResponse{
		Address: addr.String(), Summary: told.Summary, Scope: scopeProto(why.Kind, why.Scope),
		Owners: w.store.ownersProto(addr, why.Owners), Coverage: s.coverageNow(),
	}
	for _, step := range told.Steps {
		out.Steps = append(out.Steps, &pb.ExplainResponse_Step{
			Rule: step.Rule, Scope: scopeProto(step.Scope.Kind, step.Scope.Text()), Applied: step.Applied, Reason: step.Reason,
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
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &pb.ListNodesResponse{Nodes: make([]*pb.Node, 0, len(s.nodes)), Kubernetes: s.kube.Status(), Coverage: s.coverageNow(), Problems: s.archive.dir.problems()}
	for _, n := range s.nodes {
		out.Nodes = append(out.Nodes, s.nodeProto(n))
	}
	slices.SortFunc(out.Nodes, func(a, b *pb.Node) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.BootId, b.BootId), strings.Compare(a.Netns, b.Netns))
	})
	return out, nil
}

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

func pageSize(asked uint32) int {
	if asked == 0 {
		return defaultPage
	}
	return int(min(asked, maxPage))
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
	owners, next := w.store.listOwners(&f, from, pageSize(q.GetPageSize()))
	return &pb.ListOwnersResponse{Owners: owners, NextPageToken: next, Coverage: coverage}, nil
}

// listOwners gives one page of owners and the token of the next one. The lock
// is taken for one part of the table at a time.
func (s *store) listOwners(f *filter, from place, size int) (page []*pb.Owner, next string) {
	page = []*pb.Owner{}
	for {
		n := size - len(page) + 2 // the first may be done, the last is for the token
		addrs := s.addresses(f, from.addr, n)
		for _, a := range addrs {
			if a != from.addr {
				from = place{addr: a}
			}
			var full bool
			if page, full = s.appendOwners(page, f, &from, size); full {
				return page, from.token()
			}
		}
		if len(addrs) < n { // else some may have left before they were looked at
			return page, ""
		}
	}
}

// eachOwner gives all owners that match, a few at a time: they take no memory while they
// wait for a watcher.
func (s *store) eachOwner(f *filter, give func(*pb.Owner) error) error {
	var page []*pb.Owner
	for from := (place{}); ; {
		addrs := s.addresses(f, from.addr, snapshotPlaces)
		for _, a := range addrs {
			if a != from.addr {
				from = place{addr: a}
			}
			for full := true; full; {
				page, full = s.appendOwners(page[:0], f, &from, snapshotPage)
				for i, o := range page {
					if err := give(o); err != nil {
						return err
					}
					page[i] = nil
				}
			}
		}
		if len(addrs) < snapshotPlaces {
			return nil
		}
	}
}

// appendOwners appends the owners of one address from a place on, and moves the
// place. It tells whether there are more than fit in.
func (s *store) appendOwners(page []*pb.Owner, f *filter, from *place, size int) (longer []*pb.Owner, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.table.get(from.addr)
	if e == nil {
		return page, false
	}
	skip := 1 + slices.IndexFunc(e.owners, func(o verdict.Owner) bool { return o.ID == from.id })
	for i := skip; i < len(e.owners); i++ {
		o := &e.owners[i]
		if !f.owner(o, o.Node.Name) {
			continue
		}
		if len(page) == size {
			return page, true
		}
		page = append(page, s.ownerProto(from.addr, o))
		from.id = o.ID
	}
	return page, false
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
	return slices.Clone(found[:min(n, len(found))]) // of its size: a watcher may keep it for long
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
	page, next := w.store.listConflicts(wanted, from, pageSize(q.GetPageSize()))
	return &pb.ListConflictsResponse{Conflicts: page, NextPageToken: next, Coverage: coverage}, nil
}

var errState = status.Error(codes.InvalidArgument, "state must be SUSPECTED, CONFIRMED or RESOLVED: leave it out for those that are active")

// listConflicts gives one page of conflicts and the token of the next one.
func (s *store) listConflicts(wanted func(*verdict.Conflict) bool, from place, size int) (page []*pb.Conflict, next string) {
	places := s.conflictPlaces(wanted, from, size+1)
	if len(places) > size {
		places = places[:size]
		next = places[size-1].token()
	}
	page = make([]*pb.Conflict, 0, len(places))
	for _, p := range places {
		if c := s.conflictAt(p, wanted); c != nil {
			page = append(page, c)
		}
	}
	return page, next
}

// conflictPlaces are the first n conflicts after a place that are wanted, in order.
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

// conflictAt is a conflict, if it is still there and wanted.
func (s *store) conflictAt(p place, wanted func(*verdict.Conflict) bool) *pb.Conflict {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[p.id]
	if e == nil || !wanted(e.conflict(p.id)) {
		return nil
	}
	return s.conflictProto(e.conflict(p.id))
}

// least gives the n least of all, in order, and keeps no more than twice as many.
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
	return slices.Clone(some) // of its size: a watcher may keep it for long
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

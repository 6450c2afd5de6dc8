package api

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"iter"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	defaultPage = 1000
	maxPage     = 10_000
)

// A Page is one page of a list: at most size items, and fewer if they reach maxPageBytes. The client requests the rest
// with the next page.
type Page[T proto.Message] struct {
	Items []T
	// Next is the token of the next page; empty if there is none.
	Next string
	// Coverage and Gap say what is missing in the list.
	Coverage *pb.Coverage
	Gap      *pb.Gap

	size, bytes int
}

// maxPageBytes limits the encoded size of the items of a page. The last item may exceed it.
const maxPageBytes = 1 << 20

// NewPage returns an empty page of the size that was asked for; 0 means the default.
func NewPage[T proto.Message](asked uint32) *Page[T] {
	p := &Page[T]{Items: []T{}, size: defaultPage}
	if asked != 0 {
		p.size = int(min(asked, maxPage))
	}
	return p
}

// full reports whether there is no room for another item.
func (p *Page[T]) full() bool { return len(p.Items) >= p.size || p.bytes >= maxPageBytes }

func (p *Page[T]) add(item T) {
	p.Items = append(p.Items, item)
	p.bytes += proto.Size(item)
}

// A place is where a page ends: after one item of one address.
type place struct {
	Addr netip.Addr
	ID   string
}

// Token returns the token of a place, which can be any value.
func Token(place any) string {
	raw, err := json.Marshal(place)
	if err != nil {
		panic(err) // places have only texts, numbers and times
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// ParseToken returns the place in a token; the zero value, which is before all others, if there is none.
func ParseToken[T any](token string) (place T, err error) {
	if token == "" {
		return place, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || json.Unmarshal(raw, &place) != nil {
		return place, errPageToken
	}
	return place, nil
}

// errPageToken is the error of a page token that no page has returned.
var errPageToken = status.Error(codes.InvalidArgument, "page_token is invalid: omit it to start with the first page")

// Listing is a request for a list, now or at a time.
type Listing interface {
	GetAt() *timestamppb.Timestamp
	GetCluster() []string
	GetPageSize() uint32
	GetPageToken() string
}

// list returns a page of what a request selects, unless the request has an error: the items of a walk from a
// place on or, if the request has a time, the recorded ones.
func list[P, K any, T proto.Message](ctx context.Context, s *Service, q Listing, err error, sel Selection, walk func(from P) *walk[K, T], item func(*pb.Event) T) (*Page[T], error) {
	p := NewPage[T](q.GetPageSize())
	if err := cmp.Or(s.own(q), err); err != nil {
		return p, err
	}
	if q.GetAt() != nil {
		at, err := s.moment(q.GetAt())
		if err != nil {
			return p, err
		}
		if p.Coverage, p.Gap, err = s.coverageAt(ctx, at); err != nil {
			return p, err
		}
		return p, FillRecorded(ctx, p, s.records(), q.GetPageToken(), sel, at, item)
	}
	from, err := ParseToken[P](q.GetPageToken())
	if err != nil {
		return p, err
	}
	p.Coverage = s.Coverage.Current()
	fill(p, walk(from))
	return p, nil
}

// ListOwners lists the owners of addresses, now or at a time.
func (s *Service) ListOwners(ctx context.Context, q *pb.ListOwnersRequest) (*pb.ListOwnersResponse, error) {
	f, err := newOwnerFilter(q)
	walk := func(from place) *walk[index.Address, *pb.Owner] { return s.walkOwners(&f, from) }
	p, err := list(ctx, s, q, err, selectOwners(&f), walk, (*pb.Event).GetOwner)
	if q.GetAddress() != "" && q.GetAt() == nil {
		s.addPrevious(p.Items)
	}
	return &pb.ListOwnersResponse{Owners: p.Items, NextPageToken: p.Next, Coverage: p.Coverage, Gap: p.Gap}, err
}

// walkOwners returns a walk of the matching owners from a place on. Its keys are addresses, because
// one address may have many owners.
func (s *Service) walkOwners(f *filter, from place) *walk[index.Address, *pb.Owner] {
	span := f.span()
	if from.Addr.IsValid() && span.First.Less(from.Addr) {
		span.First = from.Addr
	}
	first, last := index.AddressOf(span.First), index.AddressOf(span.Last)
	addresses := func(first index.Address) iter.Seq[index.Address] {
		return func(yield func(index.Address) bool) {
			for p := range s.Shards.Places().From(judge.From(first)) {
				if !yield(p.Address()) {
					return
				}
			}
		}
	}
	if f.node != "" && span.First != span.Last {
		addresses = func(first index.Address) iter.Seq[index.Address] {
			all := s.Facts.AddressesOn(f.node)
			from, _ := slices.BinarySearchFunc(all, first, index.Address.Compare)
			return slices.Values(all[from:])
		}
	}
	reader := s.Shards.Reader()
	return &walk[index.Address, *pb.Owner]{
		facts: s.Facts, events: s.Events.Owners, less: index.Address.Less, atOnce: listedAddresses,
		keys: func(at *index.Address) iter.Seq[index.Address] {
			if at != nil {
				first = *at
			}
			return index.Until(addresses(first), last.Less)
		},
		read: func(a index.Address, room int, into []item[*pb.Owner]) (_ []item[*pb.Owner], more bool) {
			addr := a.Addr()
			if addr != from.Addr {
				from = place{Addr: addr}
			}
			owners := reader.OwnersOf(a)
			skip := 1 + slices.IndexFunc(owners, func(o verdict.Owner) bool { return o.ID == from.ID })
			for i := skip; i < len(owners); i++ {
				o := &owners[i]
				if !f.owner(o, o.Node.Name) {
					continue
				}
				if room == 0 {
					return into, true
				}
				from.ID = o.ID
				into = append(into, item[*pb.Owner]{from, s.Convert.Owner(from.Addr, o, owners)})
				room--
			}
			return into, false
		},
	}
}

// ListConflicts lists the conflicts, now or at a time; active ones unless all is set.
func (s *Service) ListConflicts(ctx context.Context, q *pb.ListConflictsRequest) (*pb.ListConflictsResponse, error) {
	f, err := newConflictFilter(q)
	f.active = f.phase == 0 && !q.GetAll()
	walk := func(from place) *walk[place, *pb.Conflict] { return s.walkConflicts(&f, from) }
	p, err := list(ctx, s, q, err, selectConflicts(&f, &f), walk, (*pb.Event).GetConflict)
	return &pb.ListConflictsResponse{Conflicts: p.Items, NextPageToken: p.Next, Coverage: p.Coverage, Gap: p.Gap}, err
}

// walkConflicts returns a walk of the matching conflicts after a place.
func (s *Service) walkConflicts(f *conflictFilter, from place) *walk[place, *pb.Conflict] {
	span := f.span()
	start := place{Addr: span.First}
	if start.less(from) {
		start = from
	}
	return &walk[place, *pb.Conflict]{
		facts: s.Facts, events: s.Events.Conflicts, less: place.less, last: &start,
		keys: func(last *place) iter.Seq[place] {
			return func(yield func(place) bool) {
				for c := range s.Shards.Conflicts.After(index.AddressOf(last.Addr), last.ID) {
					if span.Last.Less(c.Address) || !yield(place{c.Address, c.ID}) {
						return
					}
				}
			}
		},
		read: func(at place, _ int, into []item[*pb.Conflict]) ([]item[*pb.Conflict], bool) {
			c := s.Shards.Conflicts.Get(at.ID)
			if c == nil {
				return into, false
			}
			incident := ""
			if f.incident+f.word != "" {
				incident = s.Convert.ConflictIncident(c)
			}
			if f.conflict(c, incident) {
				into = append(into, item[*pb.Conflict]{at, s.Convert.Conflict(c)})
			}
			return into, false
		},
	}
}

func (p place) less(other place) bool {
	return cmp.Or(p.Addr.Compare(other.Addr), cmp.Compare(p.ID, other.ID)) < 0
}

// GetConflict returns a conflict by its ID.
func (s *Service) GetConflict(_ context.Context, q *pb.GetConflictRequest) (*pb.GetConflictResponse, error) {
	s.Facts.RLock()
	defer s.Facts.RUnlock()
	c := s.Shards.Conflicts.Get(q.GetId())
	if c == nil {
		return nil, live.NoConflict(q.GetId())
	}
	return &pb.GetConflictResponse{Conflict: s.Convert.Conflict(c)}, nil
}

// allAddresses is the range of all addresses.
var allAddresses = ipam.Range{First: netip.IPv4Unspecified(), Last: netip.AddrFrom16([16]byte(slices.Repeat([]byte{0xff}, 16)))}

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
			now := s.Findings.Get(one.Place.ID)
			if now == nil || now.Place != one.Place {
				return into, false
			}
			matter := live.MatterOf(now)
			if f.incident+f.word != "" {
				matter.Incident = s.Convert.FindingIncident(now)
			}
			if f.finding(matter) {
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
	return &pb.ListFindingsResponse{Findings: p.Items, NextPageToken: p.Next, Coverage: p.Coverage, Gap: p.Gap}, err
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

// poolPlace is where a page of pools ends.
type poolPlace struct{ IPAM, Node, Name string }

// ListPools lists the pools from which IPAM allocates addresses, with their usage.
func (s *Service) ListPools(_ context.Context, q *pb.ListPoolsRequest) (*pb.ListPoolsResponse, error) {
	from, err := ParseToken[poolPlace](q.GetPageToken())
	if err != nil {
		return nil, err
	}
	pools := NewPage[*pb.Pool](q.GetPageSize())
	pools.Coverage = s.Coverage.Current()
	fill(pools, &walk[judge.PoolPlace, *pb.Pool]{
		facts: s.Facts, less: judge.PoolPlace.Less, last: &judge.PoolPlace{IPAM: from.IPAM, Node: from.Node, Name: from.Name},
		keys: func(last *judge.PoolPlace) iter.Seq[judge.PoolPlace] {
			return s.Findings.Places().Snapshot().From(*last)
		},
		read: func(at judge.PoolPlace, _ int, into []item[*pb.Pool]) ([]item[*pb.Pool], bool) {
			if !at.Pool.Ended {
				one := live.Pool(&at.Pool.Rec, s.Findings.Use(at.Pool))
				if q.GetHistory() {
					one.History = live.PoolHistory(s.Findings.History(at.Pool))
				}
				into = append(into, item[*pb.Pool]{poolPlace{at.IPAM, at.Node, at.Name}, one})
			}
			return into, false
		},
	})
	return &pb.ListPoolsResponse{Pools: pools.Items, NextPageToken: pools.Next, Coverage: pools.Coverage}, nil
}

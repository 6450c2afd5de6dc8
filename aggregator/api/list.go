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

// A Page holds the items of one page of a list: at most size items, and fewer if they reach
// maxPageBytes. The client requests the rest with the next page.
type Page[T proto.Message] struct {
	Items []T
	size  int
	bytes int
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

// Full reports whether there is no room for another item.
func (p *Page[T]) Full() bool { return len(p.Items) >= p.size || p.bytes >= maxPageBytes }

// Add adds an item.
func (p *Page[T]) Add(item T) {
	p.Items = append(p.Items, item)
	p.bytes += proto.Size(item)
}

// A place is where a page ends: after one item of one address.
type place struct {
	Addr netip.Addr
	ID   string
}

// pageToken returns the token of the page that begins after a place, which can be any value.
func pageToken(place any) string {
	raw, err := json.Marshal(place)
	if err != nil {
		panic(err) // places have only texts and numbers
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// parsePageToken returns the place in a token; the zero value, which is before all others, if there is none.
func parsePageToken[T any](token string) (place T, err error) {
	if token == "" {
		return place, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || json.Unmarshal(raw, &place) != nil {
		return place, ErrPageToken
	}
	return place, nil
}

// ErrPageToken is the error of a page token that no page has returned.
var ErrPageToken = status.Error(codes.InvalidArgument, "page_token is invalid: omit it to start with the first page")

// ListOwners lists the owners of addresses, now or at a time.
func (s *Service) ListOwners(ctx context.Context, q *pb.ListOwnersRequest) (*pb.ListOwnersResponse, error) {
	if err := s.own(q); err != nil {
		return nil, err
	}
	f, err := newOwnerFilter(q)
	if err != nil {
		return nil, err
	}
	if q.GetAt() != nil {
		p, err := listAt(ctx, s, q, selectOwners(&f), (*pb.Event).GetOwner)
		return &pb.ListOwnersResponse{Owners: p.items, NextPageToken: p.next, Coverage: p.coverage, Gap: p.gap}, err
	}
	from, err := parsePageToken[place](q.GetPageToken())
	if err != nil {
		return nil, err
	}
	coverage := s.Coverage.Current()
	owners := NewPage[*pb.Owner](q.GetPageSize())
	next := fill(owners, s.walkOwners(&f, from))
	if q.GetAddress() != "" {
		s.addPrevious(owners.Items)
	}
	return &pb.ListOwnersResponse{Owners: owners.Items, NextPageToken: next, Coverage: coverage}, nil
}

// walkOwners returns a walk of the matching owners from a place on. Its keys are addresses, because
// one address may have many owners.
func (s *Service) walkOwners(f *filter, from place) *walk[index.Address, *pb.Owner] {
	span := f.span()
	if from.Addr.IsValid() && span.First.Less(from.Addr) {
		span.First = from.Addr
	}
	first, last := index.AddressOf(span.First), index.AddressOf(span.Last)
	addresses := s.addressesFrom
	if f.node != "" && span.First != span.Last {
		addresses = func(first index.Address) iter.Seq[index.Address] {
			all := s.Facts.AddressesOn(f.node)
			from, _ := slices.BinarySearchFunc(all, first, index.Address.Compare)
			return slices.Values(all[from:])
		}
	}
	reader, lister := s.Shards.Reader(), s.Convert.Lister()
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
				into = append(into, item[*pb.Owner]{from, lister.Owner(from.Addr, o, owners)})
				room--
			}
			return into, false
		},
	}
}

// addressesFrom yields the addresses with owners, starting at first.
func (s *Service) addressesFrom(first index.Address) iter.Seq[index.Address] {
	return func(yield func(index.Address) bool) {
		for p := range s.Shards.Places().From(judge.From(first)) {
			if !yield(p.Address()) {
				return
			}
		}
	}
}

// ListConflicts lists the conflicts, now or at a time; active ones unless all is set.
func (s *Service) ListConflicts(ctx context.Context, q *pb.ListConflictsRequest) (*pb.ListConflictsResponse, error) {
	if err := s.own(q); err != nil {
		return nil, err
	}
	f, err := newConflictFilter(q)
	if err != nil {
		return nil, err
	}
	f.active = f.phase == 0 && !q.GetAll()
	if q.GetAt() != nil {
		p, err := listAt(ctx, s, q, selectConflicts(&f, &f), (*pb.Event).GetConflict)
		return &pb.ListConflictsResponse{Conflicts: p.items, NextPageToken: p.next, Coverage: p.coverage, Gap: p.gap}, err
	}
	from, err := parsePageToken[place](q.GetPageToken())
	if err != nil {
		return nil, err
	}
	coverage := s.Coverage.Current()
	conflicts := NewPage[*pb.Conflict](q.GetPageSize())
	next := fill(conflicts, s.walkConflicts(&f, from))
	return &pb.ListConflictsResponse{Conflicts: conflicts.Items, NextPageToken: next, Coverage: coverage}, nil
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
			if c := s.Shards.Conflicts.Get(at.ID); c != nil && f.conflict(c) {
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

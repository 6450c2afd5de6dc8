package aggregator

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// findings are what is wrong and not yet a conflict. They are behind the store's mu.
type findings struct {
	hub   *hub
	clock func() verdict.Stamp
	byID  map[string]*found
	kinds map[string]int
	namesakes
}

// found is one finding, and since when it is known. Of an address there may be a hundred
// thousand. It is put into words when it is told.
type found struct {
	*verdict.Finding
	place findingPlace
	since verdict.Stamp
}

// about tells whether a finding is about an address, or about many and that one.
func (f *found) about(address string) bool {
	return f.place.address == address || slices.ContainsFunc(audit.Addresses(f.Finding), func(a netip.Addr) bool { return a.String() == address })
}

func newFindings(instance int64, clock func() verdict.Stamp) findings {
	return findings{
		hub: newHub(instance), clock: clock, byID: make(map[string]*found), kinds: make(map[string]int),
		namesakes: newNamesakes(),
	}
}

// put enters a finding, and tells whether that says something new, and what.
func (f *findings) put(one *verdict.Finding) (typ watchType, news bool) {
	now := &found{Finding: one, place: placeOf(one), since: f.clock()}
	typ = added
	if was := f.byID[one.ID]; was != nil {
		if typ, now.since = updated, was.since; audit.Same(was.Finding, one) {
			was.Finding = one // the same, with the newest of its owners
			return updated, false
		}
	}
	f.enter(now)
	return typ, true
}

// enter puts a finding in the place of any other one of its id.
func (f *findings) enter(one *found) {
	if f.byID[one.ID] == nil {
		f.kinds[one.Kind]++
	}
	f.byID[one.ID] = one
}

// leave takes a finding out; nil where there is none.
func (f *findings) leave(id string) *found {
	over := f.byID[id]
	if over != nil {
		delete(f.byID, id)
		f.kinds[over.Kind]--
	}
	return over
}

// said is a finding; nil for none.
func (f *findings) said(id string) *verdict.Finding {
	if one := f.byID[id]; one != nil {
		return one.Finding
	}
	return nil
}

// count is how many there are of each kind, also of those of which there is none.
func (f *findings) count() map[string]int {
	count := make(map[string]int)
	for _, kind := range verdict.FindingKinds() {
		count[kind] = f.kinds[kind]
	}
	return count
}

// findingPlace is where a finding is in the order of lists.
type findingPlace struct{ kind, address, id string }

func placeOf(f *verdict.Finding) findingPlace {
	at := findingPlace{kind: f.Kind, id: f.ID}
	switch {
	case f.Overlap != nil:
		at.address = f.Overlap.Range.String()
	default:
		at.address = addressText(f.Address)
	}
	return at
}

// addressText returns an address in the format of the API; empty for an invalid address.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func (p findingPlace) compare(other findingPlace) int {
	return cmp.Or(cmp.Compare(p.kind, other.kind), cmp.Compare(p.address, other.address), cmp.Compare(p.id, other.id))
}

func (p findingPlace) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.kind + " " + p.address + " " + p.id))
}

func parseFindingPlace(token string) (p findingPlace, err error) {
	if token == "" {
		return p, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	parts := strings.Split(string(raw), " ")
	if err != nil || len(parts) != 3 {
		return p, errPageToken
	}
	return findingPlace{parts[0], parts[1], parts[2]}, nil
}

// findingFilter is which findings are asked for.
type findingFilter struct{ kind, address, node string }

// on tells whether a finding is about a node.
func (f *found) on(node string) bool { return slices.Contains(audit.Nodes(f.Finding), node) }

// listFindings fills a page with findings and returns the token of the next one. It releases
// the lock while it sorts, because there may be many findings.
func (s *store) listFindings(from findingPlace, page *page[*pb.Finding], of findingFilter) (next string) {
	begin := from
	after := s.findingPlaces(page.size+1, func(f *found) bool {
		return f.place.compare(begin) > 0 && (of.kind == "" || f.place.kind == of.kind) && (of.address == "" || f.about(of.address)) &&
			(of.node == "" || f.on(of.node))
	})
	for i, p := range after {
		if i == page.size || page.full() {
			return from.token()
		}
		from = p
		for _, f := range s.findingsAt(after[i : i+1]) { // empty if the finding has ended
			page.add(f)
		}
	}
	return ""
}

// findingPlaces returns the places of the first n wanted findings, in order.
func (s *store) findingPlaces(n int, wanted func(*found) bool) []findingPlace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return least(n, findingPlace.compare, func(yield func(findingPlace) bool) {
		for _, f := range s.findings.byID {
			if wanted(f) && !yield(f.place) {
				return
			}
		}
	})
}

// findingsAt are the findings at places, but for those that are over.
func (s *store) findingsAt(places []findingPlace) []*pb.Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*pb.Finding, 0, len(places))
	for _, p := range places {
		if f := s.findings.byID[p.id]; f != nil {
			list = append(list, s.findingProto(f, false))
		}
	}
	return list
}

// ListFindings lists what is wrong and not yet a conflict.
func (w witness) ListFindings(_ context.Context, q *pb.ListFindingsRequest) (*pb.ListFindingsResponse, error) {
	from, err := parseFindingPlace(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	of := findingFilter{kind: q.GetKind(), address: q.GetAddress(), node: q.GetNode()}
	if kinds := verdict.FindingKinds(); of.kind != "" && !slices.Contains(kinds, of.kind) {
		return nil, status.Errorf(codes.InvalidArgument, "unknown kind of finding %q: use one of %s", of.kind, strings.Join(kinds, ", "))
	}
	if of.address != "" {
		addr, err := netip.ParseAddr(of.address)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "parse address %q: use an IPv4 or IPv6 address", of.address)
		}
		of.address = addr.Unmap().String()
	}
	coverage := w.store.currentCoverage()
	findings := newPage[*pb.Finding](q.GetPageSize())
	next := w.store.listFindings(from, findings, of)
	return &pb.ListFindingsResponse{Findings: findings.items, NextPageToken: next, Coverage: coverage}, nil
}

// WatchFindings sends the findings there are, then every change.
func (w witness) WatchFindings(q *pb.WatchFindingsRequest, stream pb.WitnessService_WatchFindingsServer) error {
	patience := newPatience()
	send := patient(patience, stream.Send)
	return watch{
		hub: w.store.findings.hub, clock: w.store.clock, patience: patience, coverage: w.store.currentCoverage,
		present: func() error {
			for from := (findingPlace{}); ; {
				places := w.store.findingPlaces(snapshotPlaces, func(f *found) bool { return f.place.compare(from) > 0 })
				for some := range slices.Chunk(places, snapshotPage) {
					for _, f := range w.store.findingsAt(some) {
						if err := send(&pb.WatchFindingsResponse{Type: added, Finding: f}); err != nil {
							return err
						}
					}
				}
				if len(places) < snapshotPlaces {
					return nil
				}
				from = places[len(places)-1]
			}
		},
		change: func(e *event) error {
			return send(&pb.WatchFindingsResponse{Type: e.typ, Finding: e.finding})
		},
		bookmark: func(token string, coverage *pb.Coverage) error {
			return send(&pb.WatchFindingsResponse{Type: pb.Watch_BOOKMARK, ResumeToken: token, Coverage: coverage})
		},
		lost: func(n uint32) error {
			return send(&pb.WatchFindingsResponse{Type: pb.Watch_LOST, Lost: n})
		},
	}.serve(stream.Context(), w.stopped, q.GetResumeToken())
}

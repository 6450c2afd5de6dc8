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
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// findings are what is wrong and not yet a conflict. Whoever finds something puts
// it here, anew when it changed, and drops it when it is over. It is behind the
// store's mu.
type findings struct {
	hub   *hub
	clock func() verdict.Stamp
	byID  map[string]*found
	kinds map[string]int
	namesakes
}

// found is one finding: in words already, or to be put in words when it is told. Of
// an address there may be a hundred thousand.
type found struct {
	place  findingPlace
	since  verdict.Stamp
	inWord *pb.Finding // never changes
	audit  *verdict.Finding
}

// about tells whether a finding is about an address, or about many and that one.
func (f *found) about(address string) bool {
	if f.audit != nil && f.audit.Spoof != nil && slices.ContainsFunc(f.audit.Spoof.Addresses, func(a netip.Addr) bool { return a.String() == address }) {
		return true
	}
	return f.place.address == address || slices.Contains(f.inWord.GetAddresses(), address)
}

func newFindings(instance int64, clock func() verdict.Stamp) findings {
	return findings{
		hub: newHub(instance), clock: clock, byID: make(map[string]*found), kinds: make(map[string]int),
		namesakes: newNamesakes(),
	}
}

// put makes a finding known, if it says something new.
func (f *findings) put(say *pb.Finding) {
	typ := added
	now := f.clock()
	say.DetectedAt = timestamp(now)
	say.Runbook = explain.Runbook(say.GetKind())
	if before := f.byID[say.GetId()]; before != nil {
		say.DetectedAt, now = before.inWord.GetDetectedAt(), before.since
		if proto.Equal(before.inWord, say) {
			return
		}
		typ = updated
	}
	f.enter(&found{place: placeOf(say), since: now, inWord: say})
	f.hub.publish(event{typ: typ, finding: say})
}

// enter puts a finding in the place of any other one of its id.
func (f *findings) enter(one *found) {
	if f.byID[one.place.id] == nil {
		f.kinds[one.place.kind]++
	}
	f.byID[one.place.id] = one
}

// leave takes a finding out; nil where there is none.
func (f *findings) leave(id string) *found {
	over := f.byID[id]
	if over != nil {
		delete(f.byID, id)
		f.kinds[over.place.kind]--
	}
	return over
}

// drop tells that a finding that was put is over.
func (f *findings) drop(id string) {
	if over := f.leave(id); over != nil {
		f.hub.publish(event{typ: removed, finding: over.inWord})
	}
}

// said is a finding that was put; nil for none.
func (f *findings) said(id string) *pb.Finding {
	if one := f.byID[id]; one != nil {
		return one.inWord
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

func placeOf(f *pb.Finding) findingPlace {
	return findingPlace{f.GetKind(), f.GetAddress(), f.GetId()}
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
func (f *found) on(node string) bool {
	if f.audit == nil {
		return slices.Contains(f.inWord.GetNodes(), node)
	}
	return f.audit.Pool != nil && f.audit.Pool.Node != nil && f.audit.Pool.Node.Name == node ||
		slices.ContainsFunc(f.audit.Owners, func(o verdict.Owner) bool { return o.Node.Name == node })
}

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
			list = append(list, s.findingProto(f))
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

package aggregator

import (
	"cmp"
	"context"
	"encoding/base64"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// findingKinds are all kinds of findings.
var findingKinds = []string{duplicateNodeName}

// findings are what is wrong and not yet a conflict. Whoever finds something puts
// it here, anew when it changed, and drops it when it is over. It is behind the
// store's mu.
type findings struct {
	hub   *hub
	clock func() verdict.Stamp
	byID  map[string]*pb.Finding // none ever changes
	namesakes
}

func newFindings(instance int64, clock func() verdict.Stamp) findings {
	return findings{
		hub: newHub(instance), clock: clock, byID: make(map[string]*pb.Finding),
		namesakes: newNamesakes(),
	}
}

// put makes a finding known, if it says something new.
func (f *findings) put(found *pb.Finding) {
	typ := added
	found.DetectedAt = timestamp(f.clock())
	if before := f.byID[found.GetId()]; before != nil {
		found.DetectedAt = before.GetDetectedAt()
		if proto.Equal(before, found) {
			return
		}
		typ = updated
	}
	f.byID[found.GetId()] = found
	f.hub.publish(event{typ: typ, finding: found})
}

// drop tells that a finding is over.
func (f *findings) drop(id string) {
	if over := f.byID[id]; over != nil {
		delete(f.byID, id)
		f.hub.publish(event{typ: removed, finding: over})
	}
}

// count is how many there are of each kind, also of those of which there is none.
func (f *findings) count() map[string]int {
	count := make(map[string]int)
	for _, kind := range findingKinds {
		count[kind] = 0
	}
	for _, found := range f.byID {
		count[found.GetKind()]++
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

// listFindings gives one page of findings and the token of the next one.
func (s *store) listFindings(from findingPlace, size int) (page []*pb.Finding, next string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	page = slices.SortedFunc(maps.Values(s.findings.byID), func(a, b *pb.Finding) int { return placeOf(a).compare(placeOf(b)) })
	page = slices.DeleteFunc(page, func(f *pb.Finding) bool { return placeOf(f).compare(from) <= 0 })
	if len(page) > size {
		page = page[:size]
		next = placeOf(page[size-1]).token()
	}
	return page, next
}

// ListFindings lists what is wrong and not yet a conflict.
func (w witness) ListFindings(_ context.Context, q *pb.ListFindingsRequest) (*pb.ListFindingsResponse, error) {
	from, err := parseFindingPlace(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	page, next := w.store.listFindings(from, pageSize(q.GetPageSize()))
	return &pb.ListFindingsResponse{Findings: page, NextPageToken: next}, nil
}

// WatchFindings sends the findings there are, then every change.
func (w witness) WatchFindings(q *pb.WatchFindingsRequest, stream pb.WitnessService_WatchFindingsServer) error {
	patience := newPatience()
	send := patient(patience, stream.Send)
	return watch{
		hub: w.store.findings.hub, clock: w.store.clock, patience: patience,
		present: func() error {
			page, _ := w.store.listFindings(findingPlace{}, math.MaxInt)
			for _, f := range page {
				if err := send(&pb.WatchFindingsResponse{Type: added, Finding: f}); err != nil {
					return err
				}
			}
			return nil
		},
		change: func(e *event) error {
			return send(&pb.WatchFindingsResponse{Type: e.typ, Finding: e.finding})
		},
		bookmark: func(token string) error {
			return send(&pb.WatchFindingsResponse{Type: pb.Watch_BOOKMARK, ResumeToken: token})
		},
		lost: func(n uint32) error {
			return send(&pb.WatchFindingsResponse{Type: pb.Watch_LOST, Lost: n})
		},
	}.serve(stream.Context(), w.stopped, q.GetResumeToken())
}

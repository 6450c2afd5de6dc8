package aggregator

import (
	"cmp"
	"context"
	"encoding/base64"
	"iter"
	"net/netip"
	"strings"
	"sync"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// findings are what is wrong and not yet a conflict.
type findings struct {
	events *events
	clock  func() verdict.Stamp
	// inOrder has those of byID.
	inOrder *index.Set[*found]

	mu    sync.Mutex
	byID  map[string]*found
	kinds map[string]int
}

// found is one finding, and since when it is known. Of an address there may be a hundred
// thousand. It is put into words when it is told. It never changes.
type found struct {
	*verdict.Finding
	place findingPlace
	since verdict.Stamp
}

func (f *found) less(o *found) bool { return f.place.compare(o.place) < 0 }

func newFindings(instance int64, clock func() verdict.Stamp) findings {
	return findings{
		events: newEvents(instance), clock: clock, byID: make(map[string]*found), kinds: make(map[string]int),
		inOrder: index.NewSet((*found).less),
	}
}

// put enters a finding. It returns what is there now and what was there before, nil for none, and
// reports whether the new one says something else. The facts are held.
func (f *findings) put(one *verdict.Finding) (now, was *found, news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now = &found{Finding: one, place: placeOf(one), since: f.clock()}
	news = true
	if was = f.byID[one.ID]; was != nil {
		now.since = was.since
		news = !audit.Same(was.Finding, one) // else it is the same, with the newest of its owners
	}
	f.enter(now)
	return now, was, news
}

// enter puts a finding in the place of any other one of its id.
func (f *findings) enter(one *found) {
	if before := f.byID[one.ID]; before == nil {
		f.kinds[one.Kind]++
	} else if before.place != one.place {
		f.inOrder.Delete(before)
	}
	f.byID[one.ID] = one
	f.inOrder.Put(one)
}

// leave takes a finding out; nil where there is none.
func (f *findings) leave(id string) *found {
	f.mu.Lock()
	defer f.mu.Unlock()
	over := f.byID[id]
	if over != nil {
		delete(f.byID, id)
		f.inOrder.Delete(over)
		f.kinds[over.Kind]--
	}
	return over
}

// get is a finding; nil for none.
func (f *findings) get(id string) *found {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byID[id]
}

// said is a finding; nil for none.
func (f *findings) said(id string) *verdict.Finding {
	if one := f.get(id); one != nil {
		return one.Finding
	}
	return nil
}

// all are all findings, in no order.
func (f *findings) all() (all []*found) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.byID {
		all = append(all, one)
	}
	return all
}

// count is how many there are of each kind, also of those of which there is none.
func (f *findings) count() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := make(map[string]int)
	for _, kind := range verdict.FindingKinds() {
		count[kind] = f.kinds[kind]
	}
	return count
}

// findingPlace is where a finding is in the order of lists.
type findingPlace struct{ kind, address, id string }

func placeOf(f *verdict.Finding) findingPlace {
	at := findingPlace{f.Kind, addressText(f.Address), f.ID}
	if f.Overlap != nil {
		at.address = f.Overlap.Range.String()
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

// walkFindings returns a walk of the findings that match and come after a place.
func (s *store) walkFindings(f *findingFilter, from findingPlace) *walk[*found, *pb.Finding] {
	if start := (findingPlace{kind: f.kind}); from.compare(start) < 0 {
		from = start
	}
	return &walk[*found, *pb.Finding]{
		store: s, events: s.findings.events, less: (*found).less, last: new(&found{place: from}),
		keys: func(last **found) iter.Seq[*found] {
			return until(s.findings.inOrder.Snapshot().From(*last), func(one *found) bool { return f.kind != "" && one.place.kind != f.kind })
		},
		read: func(one *found, _ int, into []item[*pb.Finding]) ([]item[*pb.Finding], bool) {
			if now := s.findings.get(one.place.id); now != nil && now.place == one.place && f.finding(matterOf(now.Finding)) {
				into = append(into, item[*pb.Finding]{now.place, s.findingProto(now, false)})
			}
			return into, false
		},
	}
}

// ListFindings lists what is wrong and not yet a conflict.
func (w witness) ListFindings(_ context.Context, q *pb.ListFindingsRequest) (*pb.ListFindingsResponse, error) {
	from, err := parseFindingPlace(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	f, err := newFindingFilter(q)
	if err != nil {
		return nil, err
	}
	coverage := w.store.currentCoverage()
	findings := newPage[*pb.Finding](q.GetPageSize())
	next := fill(findings, w.store.walkFindings(&f, from))
	return &pb.ListFindingsResponse{Findings: findings.items, NextPageToken: next, Coverage: coverage}, nil
}

// WatchFindings sends the findings there are, then every change.
func (w witness) WatchFindings(q *pb.WatchFindingsRequest, stream pb.WitnessService_WatchFindingsServer) error {
	f, err := newFindingFilter(q)
	if err != nil {
		return err
	}
	s := w.store
	return serveWatch(stream.Context(), w, &watch[*found, *pb.Finding, pb.WatchFindingsResponse]{
		events: s.findings.events, send: stream.Send,
		walk: func() *walk[*found, *pb.Finding] { return s.walkFindings(&f, findingPlace{}) },
		add: func(one *pb.Finding) *pb.WatchFindingsResponse {
			return &pb.WatchFindingsResponse{Type: added, Finding: one}
		},
		key: func(e *event) *found { return &found{place: placeOf(e.matter.Finding)} },
		event: func(e *event) *pb.WatchFindingsResponse {
			typ, ok := f.event(e)
			if !ok {
				return nil
			}
			return &pb.WatchFindingsResponse{Type: typ, Finding: e.finding}
		},
		bookmark: func(token string, coverage *pb.Coverage) *pb.WatchFindingsResponse {
			return &pb.WatchFindingsResponse{Type: pb.Watch_BOOKMARK, ResumeToken: token, Coverage: coverage}
		},
		lost: func(n uint32) *pb.WatchFindingsResponse {
			return &pb.WatchFindingsResponse{Type: pb.Watch_LOST, Lost: n}
		},
	}, q.GetResumeToken())
}

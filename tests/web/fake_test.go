package web

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	page "github.com/ipwitness/ipwitness/aggregator/web"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// fake is a server of the page whose API fails when a test wants that, and splits its answers in ways
// that a real aggregator does only under load.
type fake struct {
	*http.ServeMux
	url string
	// refuseFindings and refuseOwners make requests for them fail.
	refuseFindings, refuseOwners atomic.Bool
	// watches is the number of open watches of nodes, and reads that of lists of nodes.
	watches, reads atomic.Int64
	// many are messages of the watch of conflicts in place of the usual ones.
	many []proto.Message
	// histories is closed when the histories of pools may be answered.
	histories chan struct{}
}

func encode(m proto.Message) string {
	return string(must(protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// minute returns a time of the day before.
func minute(n int) *timestamppb.Timestamp {
	return timestamppb.New(time.Now().Truncate(24 * time.Hour).Add(-24*time.Hour + time.Duration(n)*time.Minute))
}

func heldBy(names ...string) []*pb.Owner {
	var owners []*pb.Owner
	for _, name := range names {
		owners = append(owners, &pb.Owner{Address: "10.9.9.9", Node: "node1", Netns: name, State: pb.Owner_LIVE, FirstSeen: minute(0), LastSeen: minute(1), Workload: &pb.Workload{Kind: pb.Workload_POD, Name: name}})
	}
	return owners
}

// answer serves a message, or refuses the request.
func (f *fake) answer(path string, refused *atomic.Bool, message func(r *http.Request) proto.Message) {
	f.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		if refused != nil && refused.Load() {
			http.Error(w, `{"code": 7, "message": "not for you"}`, http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, encode(message(r)))
	})
}

// watch sends messages in one chunk, and keeps the connection.
func (f *fake) watch(path string, refused *atomic.Bool, messages ...proto.Message) {
	f.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		if refused != nil && refused.Load() {
			http.Error(w, `{"error": {"code": 7, "message": "not for you"}}`, http.StatusForbidden)
			return
		}
		var chunk strings.Builder
		for _, m := range messages {
			fmt.Fprintf(&chunk, "{\"result\": %s}\n", strings.ReplaceAll(encode(m), "\n", ""))
		}
		_, _ = io.WriteString(w, chunk.String())
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
}

const fakeFindings, fakeEvents = 30, 1500

func newFake(t *testing.T) *fake {
	t.Helper()
	requireHost(t)
	f := &fake{ServeMux: http.NewServeMux(), histories: make(chan struct{})}
	site, err := page.New()
	if err != nil {
		t.Fatal(err)
	}
	f.Handle("GET /{$}", site.Index(http.NotFoundHandler()))
	f.Handle("GET /assets/", site)
	coverage := &pb.Coverage{Expected: 1, Heard: 1}
	conflict := func(id string, state pb.Conflict_State, resolved int) *pb.Conflict {
		c := &pb.Conflict{Id: id, Address: "10.9.9.9", State: state, Episode: 1, Owners: heldBy("red", "blue"), DetectedAt: minute(0)}
		if state == pb.Conflict_RESOLVED {
			c.ResolvedAt = minute(resolved)
		}
		return c
	}
	// The conflict follows the bookmark in the same chunk.
	usual := []proto.Message{
		&pb.WatchConflictsResponse{Type: pb.Watch_BOOKMARK, Coverage: coverage},
		&pb.WatchConflictsResponse{Type: pb.Watch_ADDED, Conflict: conflict("held", pb.Conflict_CONFIRMED, 0)},
	}
	f.HandleFunc("GET /v1/conflicts:watch", func(w http.ResponseWriter, r *http.Request) {
		if f.many != nil {
			usual = f.many
		}
		watched := &fake{ServeMux: http.NewServeMux()}
		watched.watch("/v1/conflicts:watch", nil, usual...)
		watched.ServeHTTP(w, r)
	})
	findings := []proto.Message{}
	for i := range fakeFindings {
		findings = append(findings, &pb.WatchFindingsResponse{Type: pb.Watch_ADDED, Finding: &pb.Finding{
			Id: fmt.Sprintf("f%d", i), Incident: "leaks", Kind: "leaked", Severity: pb.Finding_WARNING, Address: fmt.Sprintf("10.0.0.%d", i), Summary: fmt.Sprintf("leak %d.", i), DetectedAt: minute(0),
		}})
	}
	// A lost state and the one that replaces it are in one chunk.
	findings = append([]proto.Message{&pb.WatchFindingsResponse{Type: pb.Watch_BOOKMARK}, &pb.WatchFindingsResponse{Type: pb.Watch_LOST}}, findings...)
	f.watch("/v1/findings:watch", &f.refuseFindings, append(findings, &pb.WatchFindingsResponse{Type: pb.Watch_BOOKMARK})...)
	// 25 resolved conflicts are before the newest one, which is on the second page.
	f.answer("/v1/conflicts", nil, func(r *http.Request) proto.Message {
		if r.URL.Query().Get("page_token") != "" {
			return &pb.ListConflictsResponse{Conflicts: []*pb.Conflict{conflict("newest", pb.Conflict_RESOLVED, 100)}}
		}
		l := &pb.ListConflictsResponse{NextPageToken: "2"}
		for i := range 25 {
			l.Conflicts = append(l.Conflicts, conflict(fmt.Sprintf("r%d", i), pb.Conflict_RESOLVED, i+1))
		}
		return l
	})
	node := &pb.Node{Name: "node1", State: pb.Node_LIVE, Wire: "tcx"}
	f.answer("/v1/nodes", nil, func(*http.Request) proto.Message {
		f.reads.Add(1)
		return &pb.ListNodesResponse{Nodes: []*pb.Node{node}, Coverage: coverage}
	})
	watched := http.NewServeMux()
	f.HandleFunc("GET /v1/nodes:watch", func(w http.ResponseWriter, r *http.Request) {
		f.watches.Add(1)
		defer f.watches.Add(-1)
		watched.ServeHTTP(w, r)
	})
	(&fake{ServeMux: watched}).watch("/v1/nodes:watch", nil,
		&pb.WatchNodesResponse{Type: pb.Watch_ADDED, Node: node}, &pb.WatchNodesResponse{Type: pb.Watch_BOOKMARK, Coverage: coverage})
	f.answer("/v1/pools", nil, func(r *http.Request) proto.Message {
		history := r.URL.Query().Get("history") == "true"
		if history {
			select {
			case <-f.histories:
			case <-r.Context().Done():
			}
		}
		return &pb.ListPoolsResponse{Pools: fakePools(history)}
	})
	f.answer("/v1/incidents/", nil, func(*http.Request) proto.Message {
		return &pb.Incident{Id: "leaks", Summary: "Leaked allocations: 30 addresses."}
	})
	f.answer("/v1/owners", &f.refuseOwners, func(*http.Request) proto.Message { return &pb.ListOwnersResponse{Owners: heldBy("red", "blue")} })
	f.answer("/v1/explain", nil, func(*http.Request) proto.Message {
		return &pb.ExplainResponse{Address: "10.9.9.9", Summary: "nobody has it", Coverage: coverage}
	})
	// The owner appears and disappears. It is gone at the end, but not at the end of the first page.
	f.answer("/v1/events", nil, func(r *http.Request) proto.Message {
		from, to, next := 0, 999, "2"
		if r.URL.Query().Get("page_token") != "" {
			from, to, next = to, fakeEvents, ""
		}
		l := &pb.ListEventsResponse{NextPageToken: next, ReachesBackTo: minute(0)}
		for i := from; i < to; i++ {
			kind := pb.Watch_ADDED
			if i%2 == 1 {
				kind = pb.Watch_REMOVED
			}
			at := timestamppb.New(minute(0).AsTime().Add(time.Duration(i) * time.Second))
			l.Events = append(l.Events, &pb.Event{Time: at, Type: kind, Kind: pb.Event_OWNER, Owner: heldBy("red")[0]})
		}
		return l
	})
	f.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ipwitness_owners 2\n") })
	s := httptest.NewServer(f)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	f.url = s.URL
	return f
}

func TestThePageSaysWhatItCannotRead(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.refuseFindings.Store(true)
	f.refuseOwners.Store(true)
	b := newTab(t, f.url, "/#/ipam")
	leaked := `[...document.querySelectorAll('.stat')].find(s => s.innerText.includes('leaked'))?.querySelector('b').textContent`
	b.await("findings that are refused", `!!document.querySelector('[data-outdated=Findings]') && `+leaked+` === '–'`)
	b.text("Findings cannot be read: not for you")
	f.refuseFindings.Store(false)
	b.await("the findings", fmt.Sprintf(`!document.querySelector('[data-outdated]') && %s === '%d'`, leaked, fakeFindings))

	b.open("/#/address")
	b.text("not for you")
	f.refuseOwners.Store(false)
	b.do(chromedp.Click("main p button.link"))
	b.await("the owners", `document.querySelectorAll('.ownerrow').length === 2 && !document.body.innerText.includes('not for you')`)
	if b.takeMatching("403") < 2 {
		t.Error("got less than two refused requests")
	}
}

func TestThePageReadsAllPagesAndChunks(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := newTab(t, f.url, "/")
	b.await("the conflict that follows the bookmark", card("10.9.9.9", "confirmed"))
	b.await("the newest resolved conflict first", `document.querySelector('[data-resolved]')?.dataset.resolved === 'newest'`)
	b.text("30 addresses")
	for _, i := range []int{29, 3} {
		b.do(chromedp.Evaluate(fmt.Sprintf(`location.hash = '#/finding/f%d'`, i), nil))
		b.await("the linked finding", fmt.Sprintf(`document.querySelector('details[open] summary')?.innerText === 'leak %d.'`, i))
	}

	b.open("/#/address/10.9.9.9")
	b.text("Only the last 1000 changes are shown")
	b.await("an owner that is gone", `(l => !!l && l.includes('red from') && !l.includes('to now'))(document.querySelector('.history svg')?.getAttribute('aria-label'))`)
}

// manyMembers is the number of conflicts of one accident, and of unrelated ones.
const manyMembers = 10_000

// Ten thousand conflicts, of one incident or of one each, are rows of which only the visible ones are in the document, and
// are drawn in 200 ms.
func TestTenThousandConflictsStayUsable(t *testing.T) {
	for name, incident := range map[string]string{"one incident": "i%.0d", "unrelated": "i%d"} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			var all []proto.Message
			for i := range manyMembers {
				address := fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255)
				all = append(all, &pb.WatchConflictsResponse{Type: pb.Watch_ADDED, Conflict: &pb.Conflict{
					Id: fmt.Sprintf("c%d", i), Incident: fmt.Sprintf(incident, i), Address: address, State: pb.Conflict_CONFIRMED, Episode: 1, Owners: heldBy("red", "blue"), DetectedAt: minute(0),
					Cause: "ipam-state-lost",
				}})
			}
			f.many = append(all, &pb.WatchConflictsResponse{Type: pb.Watch_BOOKMARK, Coverage: &pb.Coverage{Expected: 1, Heard: 1}})
			b := newTab(t, f.url, "/#/ipam")
			b.await("all conflicts", fmt.Sprintf(`document.title.startsWith('(%d)')`, manyMembers))
			took := time.Duration(eval[float64](b, `new Promise(done => {
				const begin = performance.now()
				const look = () => document.querySelectorAll('.fold').length > 5 ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin))) : setTimeout(look)
				location.hash = '#/'
				look()
			})`) * float64(time.Millisecond))
			t.Logf("%d conflicts were drawn after %s", manyMembers, took.Round(time.Millisecond))
			if took > 200*time.Millisecond {
				t.Errorf("%d conflicts were drawn after %s", manyMembers, took)
			}
			b.do(chromedp.Evaluate(`scrollTo(0, document.body.scrollHeight / 2)`, nil))
			b.await("rows in the middle", `[...document.querySelectorAll('.fold')].some(r => (r => r.top > 0 && r.bottom < innerHeight)(r.getBoundingClientRect()))`)
			if got := eval[int](b, `document.querySelectorAll('.fold').length`); got > 200 {
				t.Errorf("got %d rows in the document, want those that are visible", got)
			}
			b.do(chromedp.Evaluate(`location.hash = '#/conflict/c7777'`, nil))
			b.await("the linked conflict", `!!document.querySelector('[data-member="10.1.30.97, confirmed"] article.conflict')`)
		})
	}
}

package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// A resumption is a watch of owners, through gRPC or HTTP, that has a resume token or none.
type resumption struct {
	t      *testing.T
	next   func() (*ipwitnessv1.WatchOwnersResponse, error)
	cancel func()
}

func (c *cluster) resumeGRPC(token string) *resumption {
	c.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+grpcServer, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dialTCP(c.t, c.Host, grpcServer), nil }))
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	stream, err := ipwitnessv1.NewWitnessServiceClient(conn).WatchOwners(ctx, &ipwitnessv1.WatchOwnersRequest{ResumeToken: token})
	if err != nil {
		c.t.Fatal(err)
	}
	r := &resumption{c.t, stream.Recv, func() { cancel(); _ = conn.Close() }}
	c.t.Cleanup(r.cancel)
	return r
}

func (c *cluster) resumeHTTP(token string) *resumption {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, netlab.Server+"/v1/owners:watch?resume_token="+url.QueryEscape(token), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	answer, err := c.Client().Do(q)
	if err != nil {
		c.t.Fatal(err)
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	r := &resumption{c.t, func() (*ipwitnessv1.WatchOwnersResponse, error) {
		if !lines.Scan() {
			return nil, fmt.Errorf("the stream ended: %w", lines.Err())
		}
		var line struct{ Result, Error json.RawMessage }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Error != nil {
			return nil, fmt.Errorf("%w: %s", err, line.Error)
		}
		m := &ipwitnessv1.WatchOwnersResponse{}
		return m, protojson.Unmarshal(line.Result, m)
	}, func() { cancel(); _ = answer.Body.Close() }}
	c.t.Cleanup(r.cancel)
	return r
}

// until returns the events of owners up to a bookmark that is like this.
func (r *resumption) until(bookmark func(token string) bool) (all []string, token string) {
	r.t.Helper()
	for {
		m, err := r.next()
		switch {
		case err != nil:
			r.t.Fatalf("after %v: %v", all, err)
		case m.GetType() == ipwitnessv1.Watch_BOOKMARK && bookmark(m.GetResumeToken()):
			return all, m.GetResumeToken()
		case watched(m.GetOwner()):
			all = append(all, ownerEvent(m.GetType(), m.GetOwner()))
		case m.GetType() == ipwitnessv1.Watch_LOST:
			all = append(all, "LOST")
		}
	}
}

// some returns the next events of owners.
func (r *resumption) some(n int) (all []string) {
	r.t.Helper()
	for len(all) < n {
		m, err := r.next()
		if err != nil {
			r.t.Fatalf("after %v: %v", all, err)
		}
		if watched(m.GetOwner()) {
			all = append(all, ownerEvent(m.GetType(), m.GetOwner()))
		}
	}
	return all
}

// watched reports whether an event is about an owner of an address that the test assigns: link-local
// addresses follow at any time.
func watched(o *ipwitnessv1.Owner) bool { return strings.HasPrefix(o.GetAddress(), "10.244.") }

func ownerEvent(typ ipwitnessv1.Watch_Type, o *ipwitnessv1.Owner) string {
	return fmt.Sprintf("%s %s %s %s %s", typ, o.GetAddress(), o.GetWorkload().GetName(), o.GetInterface(), o.GetState())
}

// outlives reports whether a token is that of a position in the journal, and current whether it is also
// that of the running aggregator, so that all events before it were sent.
func outlives(token string) bool { return strings.Count(token, "-") == 2 }
func current(token string) bool  { return !strings.Contains(token, "-0-") }

// toldSince returns the recorded events of owners since a token.
func (c *cluster) toldSince(token string) (all []string) {
	c.t.Helper()
	at, err := strconv.ParseInt(token[strings.LastIndex(token, "-")+1:], 36, 64)
	if err != nil {
		c.t.Fatal(err)
	}
	since := timestamppb.New(time.UnixMicro(at + 1)).AsTime().Format(time.RFC3339Nano)
	var m ipwitnessv1.ListEventsResponse
	if err := c.program.Get(c.t.Context(), "/v1/events?kind=OWNER&page_size=10000&since="+since, &m); err != nil {
		c.t.Fatal(err)
	}
	for _, e := range m.GetEvents() {
		if !watched(e.GetOwner()) {
			continue
		}
		all = append(all, ownerEvent(e.GetType(), e.GetOwner()))
	}
	return all
}

// whole waits until a gap of the journal has ended.
func (c *cluster) whole() {
	c.t.Helper()
	wait.Until(c.t, "the end of the gap", func() bool {
		var m ipwitnessv1.ListEventsResponse
		if err := c.program.Get(c.t.Context(), "/v1/events?page_size=1", &m); err != nil {
			c.t.Fatal(err)
		}
		return !slices.ContainsFunc(m.GetGaps(), func(g *ipwitnessv1.Gap) bool { return g.GetUntil() == nil })
	})
}

// What a watcher has received before SIGKILL and what it receives after it has resumed are the history:
// nothing is missing, and nothing is sent twice.
func TestAWatchResumesAfterSIGKILL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := newAggregator(t, "--data-dir", filepath.Join(dir, "data"))
	n := c.addNode("node1")
	c.awaitNodes(n)
	n.pod("a", "10.244.0.1/32")
	c.awaitOwner("10.244.0.1", "a")
	wait.Until(t, "the owner in the history", func() bool { return len(c.history("10.244.0.1").events) > 0 })
	_, begin := c.resumeGRPC("").until(outlives)

	live := c.resumeHTTP(begin)
	live.until(current)
	for i := 2; i < 8; i++ {
		n.pod(fmt.Sprintf("p%d", i), fmt.Sprintf("10.244.0.%d/32", i))
	}
	n.sh("ip -n p2 addr del 10.244.0.2/32 dev eth0", "ip -n p3 addr del 10.244.0.3/32 dev eth0")
	var told []string
	wait.Until(t, "the changes in the history", func() bool {
		told = c.toldSince(begin)
		removed := 0
		for _, e := range told {
			if strings.HasPrefix(e, "REMOVED ") {
				removed++
			}
		}
		return removed >= 2
	})
	if before := live.some(len(told)); !slices.Equal(before, told) {
		t.Errorf("got %q before SIGKILL, want the history %q", before, told)
	}
	_, middle := c.resumeGRPC("").until(outlives)
	if told = c.toldSince(begin); len(c.toldSince(middle)) > 0 {
		t.Errorf("got %q since the last bookmark, want nothing", c.toldSince(middle))
	}

	c.program.Kill()
	n.sh("ip -n a addr del 10.244.0.1/32 dev eth0")
	n.pod("meanwhile", "10.244.0.9/32")
	c.serve()
	lives := 0
	for name, resume := range map[string]func(string) *resumption{"gRPC": c.resumeGRPC, "HTTP": c.resumeHTTP} {
		watch := resume(middle) // at once: it waits until the node has reported
		after, _ := watch.until(current)
		c.whole()
		if want := c.toldSince(middle); !slices.Equal(after, want) {
			t.Errorf("%s: got %q after the restart, want the history since then: %q", name, after, want)
		}
		for _, want := range []string{"REMOVED 10.244.0.1 ", "ADDED 10.244.0.9 "} {
			if !slices.ContainsFunc(after, func(e string) bool { return strings.HasPrefix(e, want) }) {
				t.Errorf("%s: got %q, want %s in it", name, after, want)
			}
		}
		all, _ := resume(begin).until(current)
		if got := slices.Concat(told, after); !slices.Equal(got, all) || !slices.Equal(all, c.toldSince(begin)) {
			t.Errorf("%s: got %q and %q with the first token, want the history %q", name, got, all, c.toldSince(begin))
		}
		lives++
		addr := fmt.Sprintf("10.244.1.%d", lives)
		n.pod("live"+strings.ToLower(name), addr+"/32")
		if got := watch.some(1); !strings.HasPrefix(got[0], "ADDED "+addr+" ") {
			t.Errorf("%s: got %q, want the event of %s", name, got, addr)
		}
		wait.Until(t, "the event in the history", func() bool { return len(c.history(addr).events) > 0 })
	}

	c.program.Kill()
	c.flags = []string{"--data-dir", filepath.Join(dir, "another")}
	c.serve()
	c.awaitNodes(n)
	for name, resume := range map[string]func(string) *resumption{"gRPC": c.resumeGRPC, "HTTP": c.resumeHTTP} {
		got, _ := resume(begin).until(current)
		if len(got) < 2 || got[0] != "LOST" || !slices.ContainsFunc(got, func(e string) bool { return strings.HasPrefix(e, "ADDED 10.244.0.9 ") }) {
			t.Errorf("%s: got %q from another data directory, want LOST and the present state", name, got)
		}
	}
	if code := c.statusOf("/v1/owners:watch?resume_token=junk"); code != http.StatusBadRequest {
		t.Errorf("got status %d for a token that is none, want %d", code, http.StatusBadRequest)
	}
}

// statusOf returns the HTTP status of a request.
func (c *cluster) statusOf(path string) int {
	c.t.Helper()
	answer, err := c.Client().Get(netlab.Server + path)
	if err != nil {
		c.t.Fatal(err)
	}
	_ = answer.Body.Close() // only the status is of interest
	return answer.StatusCode
}

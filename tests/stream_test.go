package tests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
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

// openEvents opens a watch of events and returns a function that reads the next message.
type openEvents func(ctx context.Context, since time.Time, token string) (next func() (*ipwitnessv1.WatchEventsResponse, error), err error)

func (c *cluster) eventsGRPC(ctx context.Context, since time.Time, token string) (next func() (*ipwitnessv1.WatchEventsResponse, error), err error) {
	conn, err := grpc.NewClient("passthrough:///"+grpcServer, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dialTCP(c.t, c.Host, grpcServer), nil }))
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	stream, err := ipwitnessv1.NewWitnessServiceClient(conn).WatchEvents(ctx, &ipwitnessv1.WatchEventsRequest{Since: timestamppb.New(since), ResumeToken: token})
	if err != nil {
		return nil, err
	}
	return stream.Recv, nil
}

func (c *cluster) eventsHTTP(ctx context.Context, since time.Time, token string) (next func() (*ipwitnessv1.WatchEventsResponse, error), err error) {
	ask := url.Values{"since": {since.Format(time.RFC3339Nano)}, "resume_token": {token}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, netlab.Server+"/v1/events:watch?"+ask.Encode(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := c.Client().Do(q)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = answer.Body.Close() })
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	return func() (*ipwitnessv1.WatchEventsResponse, error) {
		if !lines.Scan() {
			return nil, fmt.Errorf("the stream ended: %w", lines.Err())
		}
		var line struct{ Result, Error json.RawMessage }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Error != nil {
			return nil, fmt.Errorf("%w: %s", err, line.Error)
		}
		m := &ipwitnessv1.WatchEventsResponse{}
		return m, protojson.Unmarshal(line.Result, m)
	}, nil
}

// A tail is what a watch of events has sent, over several connections.
type tail struct {
	open   openEvents
	token  string
	events []*ipwitnessv1.Event
	gaps   []*ipwitnessv1.Gap // that have ended
	lost   int
}

// read reads until the connection ends, or until the last event is like this.
func (w *tail) read(ctx context.Context, since time.Time, last func(*ipwitnessv1.Event) bool) error {
	next, err := w.open(ctx, since, w.token)
	for err == nil {
		var m *ipwitnessv1.WatchEventsResponse
		if m, err = next(); err != nil {
			break
		}
		w.token = m.GetResumeToken()
		switch {
		case m.GetEvent() != nil:
			w.events = append(w.events, m.GetEvent())
			if last(m.GetEvent()) {
				return nil
			}
		case m.GetGap().GetUntil() != nil:
			w.gaps = append(w.gaps, m.GetGap())
		case m.GetType() == ipwitnessv1.Watch_LOST:
			w.lost++
		}
	}
	return err
}

// eventNames returns texts that identify events.
func eventNames(events []*ipwitnessv1.Event) (all []string) {
	for _, e := range events {
		all = append(all, fmt.Sprint(e.GetTime().AsTime().UnixMicro(), e.GetType(), e.GetKind(), e.GetOwner().GetAddress(), e.GetOwner().GetWorkload().GetName(), e.GetConflict().GetState()))
	}
	return all
}

// printed returns the events and the gaps that 'history -w -o json' has printed.
func printed(t *testing.T, text string) (w tail) {
	t.Helper()
	for line := range bytes.Lines([]byte(text)) {
		var kind struct {
			Type string
			Gap  json.RawMessage
		}
		if line[len(line)-1] != '\n' {
			break // the rest has not been written yet
		}
		if err := json.Unmarshal(line, &kind); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		switch kind.Type {
		case "GAP":
			g := &ipwitnessv1.Gap{}
			if err := protojson.Unmarshal(kind.Gap, g); err != nil {
				t.Fatal(err)
			}
			if g.GetUntil() != nil {
				w.gaps = append(w.gaps, g)
			}
		case "BOOKMARK":
		case "LOST":
			w.lost++
		default:
			e := &ipwitnessv1.Event{}
			if err := protojson.Unmarshal(line, e); err != nil {
				t.Fatal(err)
			}
			w.events = append(w.events, e)
		}
	}
	return w
}

// What watches of events have received over several lives of an aggregator is the history: nothing is
// missing, and nothing was sent twice. The CLI reconnects by itself.
func TestAWatchOfEventsIsTheHistoryAcrossSIGKILL(t *testing.T) {
	t.Parallel()
	c := newAggregator(t, "--data-dir", filepath.Join(t.TempDir(), "data"))
	n := c.addNode("node1")
	c.awaitNodes(n)
	n.pod("before", "10.244.0.1/32")
	c.awaitOwner("10.244.0.1", "before")
	wait.Until(t, "the owner in the history", func() bool { return len(c.history("10.244.0.1").events) > 0 })
	since := time.Now().Add(-time.Hour)

	cli := c.Command(binary, "history", "-w", "--since", "-1h", "-o", "json")
	var out, notices netlab.Log
	cli.Stdout, cli.Stderr = &out, &notices
	if err := c.Start(cli); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cli.Process.Kill()
		_ = cli.Wait()
	})
	wait.Until(t, "the CLI to begin", func() bool { return len(printed(t, out.String()).events) > 0 })

	watches := map[string]*tail{"gRPC": {open: c.eventsGRPC}, "HTTP": {open: c.eventsHTTP}}
	follow := func(last string) (ended func(want error)) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		results := make(map[string]chan error)
		for name, w := range watches {
			result := make(chan error, 1)
			results[name] = result
			go func() {
				result <- w.read(ctx, since, func(e *ipwitnessv1.Event) bool {
					return e.GetType() == ipwitnessv1.Watch_ADDED && last != "" && e.GetOwner().GetWorkload().GetName() == last
				})
			}()
		}
		return func(want error) {
			t.Helper()
			defer cancel()
			for name, result := range results {
				if err := <-result; (err == nil) != (want == nil) || ctx.Err() != nil {
					t.Fatalf("%s: after %d events: %v", name, len(watches[name].events), err)
				}
			}
		}
	}
	for round := range 3 {
		ended := follow("")
		n.pod(fmt.Sprintf("pod%d", round), fmt.Sprintf("10.244.%d.1/32", round+1))
		for i := 2; i < 30; i++ {
			n.sh(fmt.Sprintf("ip -n pod%d addr add 10.244.%d.%d/32 dev eth0", round, round+1, i))
		}
		c.program.Kill() // while changes arrive
		ended(context.Canceled)
		n.sh(fmt.Sprintf("ip -n pod%d addr del 10.244.%d.2/32 dev eth0", round, round+1))
		c.serve()
		c.awaitNodes(n)
		c.whole() // otherwise the gap would last until after the next events, or the next kill
		wait.Until(t, "the CLI to continue", func() bool { return strings.Count(notices.String(), "The watch continues.") > round })
	}
	ended := follow("last")
	n.pod("last", "10.244.9.1/32")
	ended(nil)

	var list ipwitnessv1.ListEventsResponse
	if err := c.program.Get(t.Context(), "/v1/events?page_size=10000", &list); err != nil {
		t.Fatal(err)
	}
	all := list.GetEvents()
	end := slices.IndexFunc(all, func(e *ipwitnessv1.Event) bool { return e.GetOwner().GetWorkload().GetName() == "last" })
	if end < 80 || len(list.GetGaps()) != 3 {
		t.Fatalf("got %d events and gaps %v in the history: the test has no effect", end, list.GetGaps())
	}
	wait.Until(t, "the last event from the CLI", func() bool { return strings.Contains(out.String(), `"last"`) })
	told := printed(t, out.String())
	watches["CLI"] = &told
	for name, w := range watches {
		last := 1 + slices.IndexFunc(w.events, func(e *ipwitnessv1.Event) bool { return e.GetOwner().GetWorkload().GetName() == "last" })
		got, want := eventNames(w.events[:last]), eventNames(all[:end+1])
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Errorf("%s: got %d events, want %d, of which number %d differs:\ngot %q\nwant %q", name, len(got), len(want), i, got[i:min(i+5, len(got))], want[i:min(i+5, len(want))])
				break
			}
		}
		for i, g := range list.GetGaps() {
			if len(w.gaps) != len(list.GetGaps()) || !w.gaps[i].GetFrom().AsTime().Equal(g.GetFrom().AsTime()) || !w.gaps[i].GetUntil().AsTime().Equal(g.GetUntil().AsTime()) {
				t.Errorf("%s: got gaps %v, want %v", name, w.gaps, list.GetGaps())
				break
			}
		}
		if w.lost > 0 {
			t.Errorf("%s: got %d times LOST, want none", name, w.lost)
		}
	}
	if got := strings.Count(notices.String(), "The watch continues."); got != 3 {
		t.Errorf("got notices %q, want 3 reconnects", notices.String())
	}
}

package tests

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/stream"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/nats"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// natsCluster is a cluster of three real NATS servers on a host.
type natsCluster struct {
	t       *testing.T
	servers []*nats.Server
	urls    []string
	conn    *natsclient.Conn
}

func newNATSCluster(t *testing.T, h *netlab.Host) *natsCluster {
	t.Helper()
	bin, err := nats.Binary("..")
	if err != nil {
		t.Fatal(err)
	}
	n := &natsCluster{t: t}
	dir, routes := t.TempDir(), []int{6221, 6222, 6223}
	for i, route := range routes {
		s, err := nats.Start(h, bin, dir, nats.Config{Name: fmt.Sprintf("nats%d", i+1), Port: 4221 + i, Cluster: "one", Routes: routes, RoutePort: route})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Kill)
		n.servers, n.urls = append(n.servers, s), append(n.urls, fmt.Sprintf("nats://127.0.0.1:%d", 4221+i))
	}
	if n.conn, err = nats.Connect(h, strings.Join(n.urls, ",")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.conn.Close)
	t.Cleanup(func() {
		if t.Failed() {
			for _, s := range n.servers {
				t.Logf("%s said:\n%s", s.Name, s.Log)
			}
		}
	})
	return n
}

// info returns the state of the stream; nil if it cannot be had.
func (n *natsCluster) info() *jetstream.StreamInfo {
	js, err := jetstream.New(n.conn)
	if err != nil {
		n.t.Fatal(err)
	}
	s, err := js.Stream(n.t.Context(), stream.Name("prod"))
	if err != nil {
		return nil
	}
	return s.CachedInfo()
}

// leader returns the server that leads the stream.
func (n *natsCluster) leader() (leader *nats.Server) {
	n.t.Helper()
	wait.Until(n.t, "a leader of the stream", func() bool {
		if info := n.info(); info != nil && info.Cluster != nil {
			for _, s := range n.servers {
				if s.Name == info.Cluster.Leader {
					leader = s
				}
			}
		}
		return leader != nil
	})
	return leader
}

// restart starts servers again after SIGKILL.
func (n *natsCluster) restart(some ...*nats.Server) {
	n.t.Helper()
	for _, s := range some {
		if err := s.Start(); err != nil {
			n.t.Fatal(err)
		}
	}
}

// grow waits until more messages are in the stream.
func (n *natsCluster) grow(more uint64) {
	n.t.Helper()
	var from uint64
	wait.Until(n.t, "messages in the stream", func() bool {
		info := n.info()
		if info == nil {
			return false
		}
		if from == 0 {
			from = info.State.LastSeq
		}
		return info.State.LastSeq >= from+more
	})
}

// A streamed is a transition in the history and in the stream.
type streamed struct {
	at              time.Time
	kind            ipwitnessv1.Event_Kind
	typ             ipwitnessv1.Watch_Type
	what, pod, more string
}

func streamedOf(e *ipwitnessv1.Event) streamed {
	p := streamed{e.GetTime().AsTime(), e.GetKind(), e.GetType(), e.GetOwner().GetAddress(), e.GetOwner().GetWorkload().GetName(), ""}
	switch e.GetKind() {
	case ipwitnessv1.Event_CONFLICT:
		p.what, p.more = e.GetConflict().GetId(), e.GetConflict().GetState().String()
	case ipwitnessv1.Event_FINDING:
		p.what = e.GetFinding().GetId()
	case ipwitnessv1.Event_NODE:
		p.what, p.more = e.GetNode().GetName(), e.GetNode().GetState().String()
	default:
	}
	return p
}

// checkStream compares the stream with the history of the aggregator since the first state in the stream.
func checkStream(messages []*ipwitnessv1.TransitionBatch, history []*ipwitnessv1.Event) (problems []string) {
	var since, until time.Time
	inStream := make(map[streamed]int)
	for i, m := range messages {
		if m.GetSequence() != uint64(i+1) {
			problems = append(problems, fmt.Sprintf("message %d has the number %d", i+1, m.GetSequence()))
		}
		switch m.GetPart() {
		case ipwitnessv1.TransitionBatch_STATE_BEGINS:
			if since.IsZero() {
				since = m.GetUntil().AsTime()
			}
		case ipwitnessv1.TransitionBatch_UNSPECIFIED:
			for _, t := range m.GetTransitions() {
				if t.GetEvent() != nil {
					inStream[streamedOf(t.GetEvent())]++
				}
			}
		default:
		}
		until = m.GetUntil().AsTime()
	}
	recorded := make(map[streamed]bool)
	for _, e := range history {
		one := streamedOf(e)
		if e.GetPresent() || !one.at.After(since) || one.at.After(until) {
			continue
		}
		recorded[one] = true
		if inStream[one] != 1 {
			problems = append(problems, fmt.Sprintf("got %+v %d times in the stream, want once", one, inStream[one]))
		}
	}
	for one := range inStream {
		if !recorded[one] {
			problems = append(problems, fmt.Sprintf("the stream has %+v, which is not in the history", one))
		}
	}
	return problems
}

// everyEvent returns the whole history.
func (l *life) everyEvent() (all []*ipwitnessv1.Event) {
	l.t.Helper()
	q := &ipwitnessv1.ListEventsRequest{PageSize: 10_000, Until: timestamppb.Now()}
	for {
		out, err := l.client.ListEvents(l.ctx, q)
		if err != nil {
			l.t.Fatal(err)
		}
		all = append(all, out.GetEvents()...)
		if q.PageToken = out.GetNextPageToken(); q.PageToken == "" {
			return all
		}
	}
}

// Everything that the journal has recorded is in the stream once, and nothing else, while servers of NATS
// and the aggregator are killed under load.
func TestEachTransitionIsOnceInTheStreamWhileServersAreKilled(t *testing.T) {
	slow(t) // and without other tests, because it floods
	h := newHost(t)
	n := newNATSCluster(t, h)
	c := newAggregatorOn(t, h, "--cluster", "prod", "--data-dir", filepath.Join(t.TempDir(), "data"), "--settle", "100ms", "--nats", strings.Join(n.urls, ","))
	w, probe := newCrashWorld(), startDiskProbe(t)
	l := newLife(t, c, w)
	l.awaitRecording()
	n.grow(3)
	wait.Until(t, "three replicas of the stream", func() bool { // at once, or as soon as there are three servers
		info := n.info()
		return info != nil && info.Config.Replicas == 3 && info.Cluster != nil && len(info.Cluster.Replicas) == 2 &&
			!slices.ContainsFunc(info.Cluster.Replicas, func(p *jetstream.PeerInfo) bool { return !p.Current })
	})

	leader := n.leader()
	leader.Kill()
	n.grow(20) // the others go on
	n.restart(leader)
	n.grow(20)

	for _, s := range n.servers { // NATS is away altogether
		s.Kill()
	}
	l.repeatConflict(0) // detection and the history go on
	wait.Until(t, "the metrics to say that transitions wait", func() bool {
		text, err := c.program.Text(t.Context(), "/metrics")
		return err == nil && strings.Contains(text, `ipwitness_export_lag_seconds{exporter="nats",receiver="127.0.0.1:4221,127.0.0.1:4222,127.0.0.1:4223"} `) &&
			!strings.Contains(text, `ipwitness_export_lag_seconds{exporter="nats",receiver="127.0.0.1:4221,127.0.0.1:4222,127.0.0.1:4223"} 0`+"\n")
	})
	n.restart(n.servers...)
	n.grow(20)

	l.kill(probe) // the aggregator
	c.serve()
	l = newLife(t, c, w)
	l.awaitRecording()
	n.grow(20)
	other := n.leader()
	other.Kill()
	l.repeatConflict(1)
	n.restart(other)

	l.repeatConflict(2)
	history := l.everyEvent()
	last := history[len(history)-1].GetTime().AsTime()
	var messages []*ipwitnessv1.TransitionBatch
	wait.Until(t, "the last transition in the stream", func() bool {
		var err error
		messages, err = nats.Read(t.Context(), n.conn, "", stream.Name("prod"))
		return err == nil && len(messages) > 0 && !messages[len(messages)-1].GetUntil().AsTime().Before(last)
	})
	l.end()
	history = append(history, later(t, c, history)...)

	problems := checkStream(messages, history)
	for _, p := range problems[:min(len(problems), 20)] {
		t.Error(p)
	}
	t.Logf("%d messages for %d transitions; %d problems", len(messages), len(history), len(problems))
	if len(messages) > len(history) {
		t.Errorf("got %d messages for %d transitions, want several in each message", len(messages), len(history))
	}
	wantStreamCheckerToSee(t, messages, history)
}

// later returns the events that were recorded after a history.
func later(t *testing.T, c *cluster, history []*ipwitnessv1.Event) (all []*ipwitnessv1.Event) {
	t.Helper()
	known := make(map[streamed]bool, len(history))
	for _, e := range history {
		known[streamedOf(e)] = true
	}
	since := history[len(history)-1].GetTime().AsTime().Add(-time.Second).UTC().Format(time.RFC3339Nano)
	for token := ""; ; {
		var out ipwitnessv1.ListEventsResponse
		if err := c.program.Get(t.Context(), "/v1/events?pageSize=10000&since="+since+"&pageToken="+token, &out); err != nil {
			t.Fatal(err)
		}
		all = append(all, slices.DeleteFunc(out.GetEvents(), func(e *ipwitnessv1.Event) bool { return known[streamedOf(e)] })...)
		if token = out.GetNextPageToken(); token == "" {
			return all
		}
	}
}

// wantStreamCheckerToSee checks that the checker detects errors in the stream.
func wantStreamCheckerToSee(t *testing.T, messages []*ipwitnessv1.TransitionBatch, history []*ipwitnessv1.Event) {
	t.Helper()
	busiest := slices.MaxFunc(messages, func(a, b *ipwitnessv1.TransitionBatch) int {
		return len(a.GetTransitions())*inUse(a) - len(b.GetTransitions())*inUse(b)
	})
	some := busiest.GetTransitions()
	busiest.Transitions = some[1:]
	if len(checkStream(messages, history)) == 0 {
		t.Error("the checker does not see that a transition is missing")
	}
	busiest.Transitions = append(slices.Clone(some), some[0])
	if len(checkStream(messages, history)) == 0 {
		t.Error("the checker does not see that a transition is there twice")
	}
	busiest.Transitions = some
	invented := streamedOf(some[0].GetEvent())
	without := slices.DeleteFunc(slices.Clone(history), func(e *ipwitnessv1.Event) bool { return streamedOf(e) == invented })
	if len(checkStream(messages, without)) == 0 {
		t.Error("the checker does not see that a transition is invented")
	}
}

// inUse returns 1 for a message with transitions, and 0 for a part of a state.
func inUse(m *ipwitnessv1.TransitionBatch) int {
	if m.GetPart() == ipwitnessv1.TransitionBatch_UNSPECIFIED && len(m.GetTransitions()) > 0 && m.GetTransitions()[0].GetEvent() != nil {
		return 1
	}
	return 0
}

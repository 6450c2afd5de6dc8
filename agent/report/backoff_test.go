package report

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/tests/agenttest"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// fakeClient creates streams without gRPC, so that tests can control their time.
type fakeClient func(ctx context.Context, opts ...grpc.CallOption) (ipwitnessv1.ReportService_ReportClient, error)

func (f fakeClient) Report(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[ipwitnessv1.ReportRequest, ipwitnessv1.ReportResponse], error) {
	return f(ctx, opts...)
}

// fakeCall is such a stream, for both the agent and the test.
type fakeCall struct {
	grpc.ClientStream
	ctx     context.Context
	begun   bool   // the first response was received
	leadsTo string // the instance of the aggregator
	sent    chan *ipwitnessv1.ReportRequest
	answers chan *ipwitnessv1.ReportResponse
	ended   chan error
	broken  chan struct{} // closed when nothing can be sent any more
	tries   atomic.Int32  // calls of Send
}

func newFakeCall(ctx context.Context) *fakeCall {
	return &fakeCall{
		ctx: ctx, leadsTo: rand.Text(), sent: make(chan *ipwitnessv1.ReportRequest),
		answers: make(chan *ipwitnessv1.ReportResponse), ended: make(chan error), broken: make(chan struct{}),
	}
}

func (c *fakeCall) Send(m *ipwitnessv1.ReportRequest) error {
	c.tries.Add(1)
	select {
	case c.sent <- m:
		return nil
	case <-c.broken:
		return io.EOF
	case <-c.ctx.Done():
		return io.EOF
	}
}

func (c *fakeCall) Recv() (*ipwitnessv1.ReportResponse, error) {
	if !c.begun {
		c.begun = true
		return &ipwitnessv1.ReportResponse{Instance: c.leadsTo}, nil
	}
	select {
	case m := <-c.answers:
		return m, nil
	case err := <-c.ended:
		return nil, err
	case <-c.ctx.Done():
		return nil, status.FromContextError(c.ctx.Err()).Err()
	}
}

// logged has the lines of a log.
type logged struct {
	mu    sync.Mutex
	lines bytes.Buffer
	more  chan struct{} // holds one token after each line
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer table.Poke(l.more)
	return l.lines.Write(b)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.lines.String(), text)
}

// newTestReporter returns a reporter with its own log.
func newTestReporter(tab *table.Table, client ipwitnessv1.ReportServiceClient) (*Reporter, *logged) {
	l := &logged{more: make(chan struct{}, 1)}
	log := slog.New(slog.NewTextHandler(l, nil))
	return &Reporter{
		log: log, table: tab, hello: &ipwitnessv1.Hello{}, client: client,
		check:    func([]netip.Addr) bool { return true },
		believed: func(netip.Addr) *ipwitnessv1.BeliefAnswer { return &ipwitnessv1.BeliefAnswer{} },
		contests: NewContests(log, func(netip.Addr, bool) {}), instances: NewInstances(),
	}, l
}

// start runs a reporter, and returns a function that stops it.
func start(t *testing.T, r *Reporter) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("reporter: got %v after cancel, want nil", err)
		}
	}
}

// callsOf returns a client that passes its streams to a test.
func callsOf() (fakeClient, <-chan *fakeCall) {
	calls := make(chan *fakeCall, 1)
	return func(ctx context.Context, _ ...grpc.CallOption) (ipwitnessv1.ReportService_ReportClient, error) {
		c := newFakeCall(ctx)
		calls <- c
		return c, nil
	}, calls
}

func TestBackoffAfterStreamsThatEndEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, calls := callsOf()
		r, log := newTestReporter(table.New(), client)
		stop := start(t, r)
		refused := status.Error(codes.InvalidArgument, "no agent of this version")
		c := <-calls
		for backoff := FirstBackoff; ; backoff = min(2*backoff, LastBackoff) {
			c.ended <- refused
			ended := time.Now()
			c = <-calls
			if wait := time.Since(ended); wait < backoff/2 || wait > backoff {
				t.Errorf("wait: got %s, want half of %s to all of it", wait, backoff)
			}
			if backoff == LastBackoff {
				break
			}
		}
		if n := log.count("report stream to the aggregator ended"); n != 1 {
			t.Errorf("lines of the log: got %d, want 1 for one reason", n)
		}

		// This one lasts just too short.
		time.Sleep(LastBackoff)
		c.ended <- refused
		before := time.Now()
		c = <-calls
		if wait := time.Since(before); wait < LastBackoff/2 {
			t.Errorf("wait after a stream of %s: got %s, want half of that at least", LastBackoff, wait)
		}
		// This stream works and then ends: the server was stopped and will be back.
		time.Sleep(LastBackoff + time.Second)
		c.ended <- status.Error(codes.Unavailable, "stopping")
		ended := time.Now()
		c = <-calls
		if wait := time.Since(ended); wait > FirstBackoff {
			t.Errorf("wait after a good stream: got %s, want %s at most", wait, FirstBackoff)
		}
		c.ended <- refused
		<-calls
		if n := log.count("report stream to the aggregator ended"); n != 3 {
			t.Errorf("lines of the log: got %d, want 3: two more with new reasons", n)
		}
		lines := log.count("report stream to the aggregator ended")
		stop()
		if n := log.count("report stream to the aggregator ended"); n != lines {
			t.Errorf("lines of the log when the agent stops: got %d more, want none", n-lines)
		}
		if n := r.table.Attached(); n != 0 {
			t.Errorf("readers after the end: got %d, want none", n)
		}
	})
}

func TestOneOfTwoAgentsOfOneNodeBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, calls := callsOf()
		r, log := newTestReporter(table.New(), client)
		stop := start(t, r)
		for range 3 {
			c := <-calls
			c.ended <- status.Error(codes.Aborted, "another connection took over")
			ended := time.Now()
			c = <-calls
			if wait := time.Since(ended); wait < takenOverBackoff/2 || wait > takenOverBackoff {
				t.Errorf("wait: got %s, want half of %s to all of it", wait, takenOverBackoff)
			}
			c.ended <- status.Error(codes.Unavailable, "stopping")
			ended = time.Now()
			c = <-calls
			if wait := time.Since(ended); wait > LastBackoff {
				t.Errorf("wait after another reason: got %s, want %s at most", wait, LastBackoff)
			}
			c.ended <- status.Error(codes.Aborted, "another connection took over")
		}
		if log.count("another connection took over: was this machine cloned") == 0 {
			t.Errorf("log: got %s, want it to name possible reasons", &log.lines)
		}
		stop()
	})
}

func TestStreamEndsWhenPingsStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, calls := callsOf()
		r, log := newTestReporter(table.New(), client)
		stop := start(t, r)
		first := <-calls
		<-first.sent // the snapshot
		first.answers <- &ipwitnessv1.ReportResponse{Acknowledged: 1}
		time.Sleep(time.Hour) // an aggregator that has never pinged may be silent
		for range 20 {
			first.answers <- &ipwitnessv1.ReportResponse{Ping: 1}
			time.Sleep(silentFor - time.Second)
		}
		if first.ctx.Err() != nil {
			t.Fatal("the stream was ended though the aggregator pinged")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if first.ctx.Err() == nil {
			t.Fatalf("the stream goes on after %s of silence", silentFor)
		}
		if second := <-calls; second.ctx.Err() != nil {
			t.Error("the next stream has ended, too")
		}
		if log.count("the aggregator has sent nothing for 30s") != 1 {
			t.Errorf("log: got %s, want it to have the reason", &log.lines)
		}
		stop()
	})
}

func TestPongFollowsEarlierChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := table.New()
		client, calls := callsOf()
		r, _ := newTestReporter(tab, client)
		stop := start(t, r)
		c := <-calls
		if m := <-c.sent; !m.GetSnapshotEnd() {
			t.Fatalf("first message: got %v, want a snapshot", m)
		}
		// The aggregator does not read, so the sender is blocked by the first change.
		change := func(i int) { tab.Update(func() { tab.Add(agenttest.Claim(i), table.Claim{Count: 1}, time.Now()) }) }
		change(1)
		synctest.Wait()
		for i := range 10 {
			change(2)
			c.answers <- &ipwitnessv1.ReportResponse{Ping: uint64(i + 1)}
		}
		synctest.Wait()
		if m := <-c.sent; len(m.GetClaims()) != 1 || m.GetPong() != nil {
			t.Errorf("message before the pings: got %v, want a claim only", m)
		}
		m := <-c.sent
		if len(m.GetClaims()) != 1 || m.GetClaims()[0].GetCount() != 10 || m.GetPong().GetId() != 10 || !m.GetPong().GetSentAt().AsTime().Equal(time.Now()) {
			t.Errorf("answer: got %v, want the claim, seen ten times, and pong 10", m)
		}
		synctest.Wait()
		select {
		case m := <-c.sent:
			t.Errorf("after the pong: got %v, want nothing", m)
		default:
		}
		stop()
	})
}

func TestBlockedAggregatorDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := table.New()
		call := func() (*fakeCall, func()) {
			client, calls := callsOf()
			r, _ := newTestReporter(tab, client)
			stop := start(t, r)
			return <-calls, stop
		}
		stuck, stopStuck := call()
		good, stopGood := call()
		<-good.sent
		for i := range 10_000 {
			tab.Update(func() { tab.Add(agenttest.Claim(i%10), table.Claim{Count: 1}, time.Now()) })
			if m := <-good.sent; len(m.GetClaims()) != 1 {
				t.Fatalf("change %d: got %d claims, want one", i, len(m.GetClaims()))
			}
			if i%100 == 0 {
				stuck.answers <- &ipwitnessv1.ReportResponse{Resync: true} // the snapshot cannot be sent yet
			}
		}
		synctest.Wait()
		<-stuck.sent // the initial snapshot
		if m := <-stuck.sent; !m.GetSnapshotBegin() || !m.GetSnapshotEnd() || len(m.GetClaims()) != 10 || m.GetClaims()[0].GetCount() != 1000 {
			t.Errorf("after the aggregator reads again: got %v, want one snapshot for all of its requests", m)
		}
		synctest.Wait()
		select {
		case m := <-stuck.sent:
			t.Errorf("after the snapshot: got %v, want nothing", m)
		default:
		}
		stopStuck()
		stopGood()
	})
}

func TestReporterIsConnectedWhileTheAggregatorAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams, calls := callsOf()
		refusals := 2
		r, log := newTestReporter(table.New(), fakeClient(func(ctx context.Context, opts ...grpc.CallOption) (ipwitnessv1.ReportService_ReportClient, error) {
			if refusals--; refusals >= 0 {
				return nil, status.Error(codes.PermissionDenied, "no such token")
			}
			return streams(ctx, opts...)
		}))
		want := func(when string, connected bool, lines int) {
			t.Helper()
			synctest.Wait()
			if got := r.state.Load() == streamConnected; got != connected {
				t.Errorf("%s: got connected %v, want %v", when, got, connected)
			}
			if got := log.count("reporting to the aggregator"); got != lines {
				t.Errorf("%s: got %d lines of the log, want %d", when, got, lines)
			}
		}
		stop := start(t, r)
		for i := range 2 {
			c := <-calls
			<-c.sent
			want("before the first answer", false, i)
			c.answers <- &ipwitnessv1.ReportResponse{Acknowledged: 1}
			want("after it", true, i+1)
			c.answers <- &ipwitnessv1.ReportResponse{Acknowledged: 2}
			want("after another one", true, i+1)
			c.ended <- status.Error(codes.Unavailable, "stopping")
			want("after the end of the stream", false, i+1)
		}
		if log.count("no such token") != 1 {
			t.Errorf("log: got %s, want one line that says why the first attempt failed", &log.lines)
		}
		stop()
	})
}

func TestReasonOfTheAggregatorIsLoggedIfNothingCanBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := table.New()
		client, calls := callsOf()
		r, log := newTestReporter(tab, client)
		stop := start(t, r)
		c := <-calls
		close(c.broken)
		synctest.Wait()
		tries := c.tries.Load()
		tab.Update(func() { tab.Add(agenttest.Claim(1), table.Claim{Count: 1}, time.Now()) })
		synctest.Wait()
		if got := c.tries.Load(); got != tries {
			t.Errorf("messages sent on a broken stream: got %d more, want none", got-tries)
		}
		c.ended <- status.Error(codes.ResourceExhausted, "too many agents")
		<-calls
		if log.count("too many agents") != 1 {
			t.Errorf("log: got %s, want the reason of the aggregator", &log.lines)
		}
		stop()
	})
}

func TestUnreachableAggregatorIsLoggedOnceAndReconnected(t *testing.T) {
	listener := bufconn.Listen(1 << 20)
	there := make(chan struct{})
	tried := make(chan struct{}, 1)
	conn, err := grpc.NewClient("passthrough:///bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			select {
			case <-there:
				return listener.DialContext(ctx)
			default:
			}
			table.Poke(tried)
			return nil, errors.New("connection refused")
		}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}), // and hardly any backoff
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	server := grpc.NewServer()
	agg := &fakeAggregator{streams: make(chan *fakeStream)}
	ipwitnessv1.RegisterReportServiceServer(server, agg)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	tab := table.New()
	r, log := newTestReporter(tab, ipwitnessv1.NewReportServiceClient(conn))
	stop := start(t, r)
	defer stop()
	for log.count("cannot reach the aggregator") == 0 {
		<-log.more
	}
	for range 10 {
		<-tried
	}
	tab.Update(func() { tab.Add(agenttest.Claim(1), table.Claim{Count: 1}, time.Now()) })
	close(there)
	s := <-agg.streams
	s.t = t
	if m := s.next(); len(m.GetClaims()) != 1 {
		t.Errorf("first message: got %v, want the claims from meanwhile", m)
	}
	if n := log.count("cannot reach the aggregator"); n != 1 || log.count("connection refused") != 1 {
		t.Errorf("log: got %s, want one line with the reason", &log.lines)
	}
}

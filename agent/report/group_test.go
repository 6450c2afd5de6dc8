package report

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// fakeConn is a connection to an address that notices when it is closed.
type fakeConn struct {
	grpc.ClientConnInterface
	address string
	closed  chan struct{}
}

func (c *fakeConn) Close() error {
	close(c.closed)
	return nil
}

// replicas are the aggregators that a name leads to in a test.
type replicas struct {
	mu        sync.Mutex
	addresses []string
	err       error
	// leadTo has the instance that an address leads to, if it is not its own.
	leadTo map[string]string
	conns  map[string]*fakeConn
	calls  map[string]chan *fakeCall
	log    *logged
}

func (r *replicas) set(err error, addresses ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addresses, r.err = addresses, err
}

func (r *replicas) find(context.Context) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addresses, r.err
}

func (r *replicas) dial(address string) (Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &fakeConn{address: address, closed: make(chan struct{})}
	r.conns[address] = c
	return c, nil
}

// call returns the next stream to an address that has not ended.
func (r *replicas) call(address string) *fakeCall {
	for {
		if c := <-r.calls[address]; c.ctx.Err() == nil {
			return c
		}
	}
}

func (r *replicas) closed(address string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.conns[address].closed:
		return true
	default:
		return false
	}
}

// startGroup runs a group until the end of the test.
func startGroup(t *testing.T, addresses ...string) (*Group, *replicas) {
	names := &replicas{addresses: addresses, leadTo: map[string]string{}, conns: map[string]*fakeConn{}, calls: map[string]chan *fakeCall{}}
	for _, address := range []string{"a", "b", "[a]"} {
		names.calls[address] = make(chan *fakeCall, 10)
	}
	tab, instances := table.New(), NewInstances()
	_, names.log = newTestReporter(tab, nil)
	g := NewGroup(slog.New(slog.NewTextHandler(names.log, nil)), Target{Name: "name", Find: names.find, Dial: names.dial},
		func(log *slog.Logger, conn grpc.ClientConnInterface) *Reporter {
			address := conn.(*fakeConn).address
			r, _ := newTestReporter(tab, fakeClient(func(ctx context.Context, _ ...grpc.CallOption) (ipwitnessv1.ReportService_ReportClient, error) {
				c := newFakeCall(ctx)
				if id := names.leadTo[address]; id != "" {
					c.leadsTo = id
				}
				names.calls[address] <- c
				return c, nil
			}))
			r.log, r.instances = log, instances
			return r
		})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("group: got %v after cancel, want nil", err)
		}
		for address, c := range names.conns {
			select {
			case <-c.closed:
			default:
				t.Errorf("the connection to %s is open after the end", address)
			}
		}
	})
	return g, names
}

// connect lets a stream begin.
func (c *fakeCall) connect() {
	<-c.sent
	c.answers <- &ipwitnessv1.ReportResponse{Acknowledged: 1}
	synctest.Wait()
}

func (g *Group) want(t *testing.T, when string, connected, disconnected int) {
	t.Helper()
	synctest.Wait()
	if up, down := g.Streams(); up != connected || down != disconnected {
		t.Errorf("%s: got %d connected and %d disconnected, want %d and %d", when, up, down, connected, disconnected)
	}
}

func TestGroupFollowsReplicasThatComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, names := startGroup(t, "a")
		g.want(t, "before the first answer", 0, 1)
		a := names.call("a")
		a.connect()
		g.want(t, "with one replica", 1, 0)

		names.set(nil, "a", "b")
		b := names.call("b")
		b.connect()
		g.want(t, "with two replicas", 2, 0)

		names.set(nil, "a")
		time.Sleep(time.Minute)
		g.want(t, "while a replica that stops still answers", 2, 0)
		b.ended <- status.Error(codes.Unavailable, "stopping")
		time.Sleep(2 * time.Second)
		g.want(t, "after it has stopped", 1, 0)
		if !names.closed("b") {
			t.Error("the connection to the replica that is gone is open")
		}

		names.set(errors.New("no such host"))
		time.Sleep(time.Minute)
		g.want(t, "without an answer of DNS", 1, 0)
		if n := names.log.count("no such host"); n != 1 {
			t.Errorf("lines of the log: got %d, want 1 for one reason", n)
		}
		a.ended <- status.Error(codes.Unavailable, "stopping")
		a = names.call("a")
		a.connect()
		g.want(t, "after a new stream without an answer of DNS", 1, 0)

		names.set(nil, "b") // a new replica with the address of a former one
		names.call("b").connect()
		a.ended <- status.Error(codes.Unavailable, "stopping")
		time.Sleep(2 * time.Second)
		g.want(t, "after a replacement", 1, 0)
	})
}

func TestGroupWithoutAddressesIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, names := startGroup(t)
		time.Sleep(time.Minute)
		g.want(t, "without an address", 0, 1)
		names.set(nil, "a")
		time.Sleep(findAfter)
		names.call("a").connect()
		g.want(t, "with an address", 1, 0)
	})
}

func TestAddressesOfAFamilyThatCannotBeReachedAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, names := startGroup(t, "a", "b", "[a]")
		g.want(t, "before the first answer", 0, 3)
		names.call("a").connect()
		g.want(t, "with IPv4 only", 1, 1)
		names.call("[a]").connect()
		g.want(t, "with IPv6, too", 2, 1)
	})
}

func TestOnlyOneStreamLeadsToAnAggregator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, names := startGroup(t)
		names.leadTo = map[string]string{"a": "same", "b": "same"}
		names.set(nil, "a")
		first := names.call("a")
		first.connect()
		names.set(nil, "a", "b")
		second := <-names.calls["b"]
		g.want(t, "with two addresses of one aggregator", 1, 0)
		select {
		case m := <-second.sent:
			t.Errorf("the second stream has sent %v, want nothing", m)
		case <-second.ctx.Done():
		}

		first.ended <- status.Error(codes.Unavailable, "one of its interfaces is down")
		second = names.call("b")
		second.connect()
		time.Sleep(FirstBackoff)
		g.want(t, "when the first stream has ended", 1, 0)
	})
}

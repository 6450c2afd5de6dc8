package sim

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// Fleet is the set of agents of a cluster, each with its own connection.
type Fleet struct {
	host   *netlab.Host
	at     string
	size   Size
	all    []*agent
	agents sync.WaitGroup
	cancel context.CancelFunc
	sent   sent
}

// Size is the number of agents, and of owners that each reports (at most 254).
type Size struct {
	Nodes, Owners int
	// First is the number of the first node. The nodes of several fleets must not overlap.
	First int
	// LinkLocal also assigns every owner a link-local address, which doubles the number of owners.
	LinkLocal bool
	// IPAM makes each node report its host-local, with an allocation for each pod.
	IPAM bool
}

// Start starts agents, which report from inside the host to the aggregator at an
// address until Stop.
func Start(host *netlab.Host, at string, size Size) (*Fleet, error) {
	f, err := New(host, at, size)
	if err != nil {
		return nil, err
	}
	return f, f.Connect()
}

// New prepares agents. They report only after Connect or Deliver.
func New(host *netlab.Host, at string, size Size) (*Fleet, error) {
	f := &Fleet{host: host, at: at, size: size, cancel: func() {}}
	for i := range size.Nodes {
		a := newAgent(i, size)
		if err := a.encode(); err != nil {
			return nil, fmt.Errorf("encode the table of %s: %w", a.hello.GetNode(), err)
		}
		f.all = append(f.all, a)
	}
	return f, nil
}

// Connect starts all agents, each with its own connection. They report until Stop.
func (f *Fleet) Connect() error {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	for _, a := range f.all {
		conn, err := Dial(f.host, f.at, grpc.WithStatsHandler(&f.sent))
		if err != nil {
			f.Stop()
			return err
		}
		f.agents.Go(func() {
			a.run(ctx, conn)
			_ = conn.Close() // no message is in flight
		})
	}
	return nil
}

// Deliver makes each agent report its table once and disconnect, 8 at a time over one
// connection.
func (f *Fleet) Deliver(ctx context.Context) error {
	conn, err := Dial(f.host, f.at)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, a := range f.all {
		g.Go(func() error { return a.deliver(ctx, conn) })
	}
	return g.Wait()
}

// dials limits the connections that are being opened. Each needs a thread in the host's namespace,
// and thousands of threads would take CPU time from the measured programs.
var dials = semaphore.NewWeighted(8)

// opens limits the streams that are being opened. If thousands of goroutines did so at once,
// everything else in this process would be delayed, and these delays would be measured.
var opens = semaphore.NewWeighted(16)

// Dial opens a connection from inside the host, as the real agent does.
func Dial(host *netlab.Host, at string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+at, append(more,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: firstBackoff, Multiplier: backoff.DefaultConfig.Multiplier,
				Jitter: backoff.DefaultConfig.Jitter, MaxDelay: lastBackoff,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithContextDialer(func(ctx context.Context, at string) (conn net.Conn, err error) {
			if err := dials.Acquire(ctx, 1); err != nil {
				return nil, err
			}
			defer dials.Release(1)
			err = host.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", at)
				return err
			})
			return conn, err
		}))...)
	if err != nil {
		return nil, fmt.Errorf("connect to the aggregator %s: %w", at, err)
	}
	return conn, nil
}

// Stop disconnects all agents.
func (f *Fleet) Stop() {
	f.cancel()
	f.agents.Wait()
}

// Holders returns the addresses that the agents report, each with its node. It omits link-local
// addresses.
func (f *Fleet) Holders() map[netip.Addr]string {
	holders := make(map[netip.Addr]string)
	for i := range f.size.Nodes {
		node := f.size.First + i
		name := fmt.Sprintf("node-%d", node)
		holders[nodeAddress(node)] = name
		for pod := range f.size.Owners - 1 {
			holders[podAddress(node, pod)] = name
		}
	}
	return holders
}

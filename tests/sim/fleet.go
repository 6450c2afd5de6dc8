package sim

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// Fleet is the agents of a cluster of nodes, each with a connection of its own.
type Fleet struct {
	size   Size
	all    []*agent
	agents sync.WaitGroup
	cancel context.CancelFunc
}

// Size is how many agents there are, each with so many owners (254 at most).
type Size struct {
	Nodes, Owners int
	// IPAM has each node's host-local reported with an allocation for each pod.
	IPAM bool
}

// Start starts agents, which report from inside the host to the aggregator at an
// address until Stop.
func Start(host *netlab.Host, at string, size Size) (*Fleet, error) {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Fleet{size: size, cancel: cancel}
	for node := range size.Nodes {
		conn, err := Dial(host, at)
		if err != nil {
			f.Stop()
			return nil, err
		}
		a := newAgent(node, size)
		f.all = append(f.all, a)
		f.agents.Go(func() {
			a.run(ctx, conn)
			_ = conn.Close() // nothing is under way any more
		})
	}
	return f, nil
}

// Dial makes a connection from inside the host, as the real agent does.
func Dial(host *netlab.Host, at string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+at,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: firstBackoff, Multiplier: backoff.DefaultConfig.Multiplier,
				Jitter: backoff.DefaultConfig.Jitter, MaxDelay: lastBackoff,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithContextDialer(func(ctx context.Context, at string) (conn net.Conn, err error) {
			err = host.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", at)
				return err
			})
			return conn, err
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to the aggregator %s: %w", at, err)
	}
	return conn, nil
}

// Stop ends all agents.
func (f *Fleet) Stop() {
	f.cancel()
	f.agents.Wait()
}

// Holders are the addresses that the agents report, each with the node that has it.
func (f *Fleet) Holders() map[netip.Addr]string {
	holders := make(map[netip.Addr]string)
	for node := range f.size.Nodes {
		name := fmt.Sprintf("node-%d", node)
		holders[nodeAddress(node)] = name
		for pod := range f.size.Owners - 1 {
			holders[podAddress(node, pod)] = name
		}
	}
	return holders
}

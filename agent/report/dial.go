package report

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

const (
	// askAfter is the time without traffic after which the agent sends a keepalive ping to an
	// aggregator, and answerWithin is how long the answer may take. The aggregator rejects
	// pings that are more frequent.
	askAfter     = 10 * time.Second
	answerWithin = 5 * time.Second
	// connectWithin is the timeout of one attempt to connect.
	connectWithin = 5 * time.Second
)

// Replicas returns the aggregators at HOST:PORT: one for each address of the host.
func Replicas(at string, creds []grpc.DialOption) Target {
	host, port, _ := net.SplitHostPort(at) // the caller has checked it
	return Target{
		Name: at,
		Find: func(ctx context.Context) ([]string, error) {
			ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
			var all []string
			for _, ip := range ips {
				all = append(all, net.JoinHostPort(ip.Unmap().String(), port))
			}
			return all, err
		},
		Dial: func(address string) (Conn, error) { return dial(at, address, creds) },
	}
}

// dial returns a connection to an address of the aggregator at HOST:PORT. It connects at its first use and
// reconnects by itself.
func dial(at, address string, creds []grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+address, append(slices.Clip(creds),
		grpc.WithAuthority(at),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: askAfter, Timeout: answerWithin}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: FirstBackoff, Multiplier: backoff.DefaultConfig.Multiplier,
				Jitter: backoff.DefaultConfig.Jitter, MaxDelay: LastBackoff,
			},
			MinConnectTimeout: connectWithin,
		}))...)
	if err != nil {
		return nil, fmt.Errorf("connect to the aggregator %s at %s: %w", at, address, err)
	}
	return conn, nil
}

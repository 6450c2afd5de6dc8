package report

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

// A Target is a name that leads to one aggregator, or to several replicas.
type Target struct {
	// Name is the name in the log.
	Name string
	// Find returns the current addresses of the replicas.
	Find func(context.Context) ([]string, error)
	// Dial returns a connection to an address. It is closed when the replica is gone.
	Dial func(address string) (Conn, error)
}

// A Conn is a connection to an aggregator.
type Conn interface {
	grpc.ClientConnInterface
	io.Closer
}

// Fixed returns a target with one aggregator, to which there is a connection already.
func Fixed(name string, conn Conn) Target {
	return Target{
		Name: name,
		Find: func(context.Context) ([]string, error) { return []string{name}, nil },
		Dial: func(string) (Conn, error) { return conn, nil },
	}
}

// The interval at which a name is looked up again, and the shortest time between two look-ups. A
// name is also looked up when a stream ends, because its replica may have been replaced.
const (
	findEvery = 10 * time.Second
	findAfter = time.Second
	findIn    = 5 * time.Second
)

// A Group reports to all aggregators that a name leads to, and follows their changes.
type Group struct {
	log      *slog.Logger
	target   Target
	reporter func(*slog.Logger, grpc.ClientConnInterface) *Reporter
	// ended holds a token after a stream has ended.
	ended chan struct{}

	mu      sync.Mutex
	members map[string]*member // by address
}

// A member is a replica that a group reports to.
type member struct {
	reporter *Reporter
	stop     context.CancelFunc
}

// NewGroup returns a group. reporter returns a reporter that uses a connection.
func NewGroup(log *slog.Logger, target Target, reporter func(*slog.Logger, grpc.ClientConnInterface) *Reporter) *Group {
	return &Group{
		log: log.With("aggregator", target.Name), target: target, reporter: reporter,
		ended: make(chan struct{}, 1), members: make(map[string]*member),
	}
}

// Streams returns the number of aggregators that answer, and of those that do not. A name without any
// address counts as an aggregator that does not answer. Not counted are addresses that lead to an aggregator
// of another stream, and those of a family that no aggregator answers at while one answers at the other: a
// name often has IPv6 addresses that a node cannot reach.
func (g *Group) Streams() (connected, disconnected int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.members) == 0 {
		return 0, 1
	}
	var up, down [2]int // by family
	for address, m := range g.members {
		family := 0
		if strings.HasPrefix(address, "[") { // an IPv6 address and a port
			family = 1
		}
		switch m.reporter.state.Load() {
		case streamConnected:
			up[family]++
		case streamRedundant:
		default:
			down[family]++
		}
	}
	for family := range up {
		connected += up[family]
		if up[family] > 0 || up[1-family] == 0 {
			disconnected += down[family]
		}
	}
	return connected, disconnected
}

// Run reports until ctx ends.
func (g *Group) Run(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error {
		logged := "" // the last logged error, which is not logged again
		for {
			err := g.find(ctx, all)
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil:
				logged = ""
			case err.Error() != logged:
				logged = err.Error()
				g.log.Warn("cannot find the aggregator, trying again", "error", err)
			}
			if !g.rest(ctx) {
				return nil
			}
		}
	})
	return all.Wait()
}

// rest waits until the name is to be looked up again, and reports whether ctx goes on.
func (g *Group) rest(ctx context.Context) bool {
	wait := findEvery/2 + rand.N(findEvery)
	g.mu.Lock()
	if len(g.members) == 0 {
		wait = findAfter
	}
	g.mu.Unlock()
	least, most := time.NewTimer(min(wait, findAfter)), time.NewTimer(wait)
	defer least.Stop()
	defer most.Stop()
	select {
	case <-least.C:
	case <-ctx.Done():
		return false
	}
	select {
	case <-g.ended:
	case <-most.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// find looks the name up, starts reporters to new replicas, and stops those to replicas that are gone.
func (g *Group) find(ctx context.Context, all *errgroup.Group) error {
	looking, cancel := context.WithTimeout(ctx, findIn)
	addresses, err := g.target.Find(looking)
	cancel()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for address, m := range g.members {
		// A replica that still answers is stopping, or the answer was incomplete.
		if !slices.Contains(addresses, address) && m.reporter.state.Load() != streamConnected {
			m.stop()
			delete(g.members, address)
		}
	}
	for _, address := range addresses {
		if g.members[address] != nil {
			continue
		}
		conn, err := g.target.Dial(address)
		if err != nil {
			return err
		}
		log := g.log
		if len(addresses) > 1 || address != g.target.Name {
			log = log.With("address", address)
		}
		r := g.reporter(log, conn)
		r.ended = g.ended
		running, stop := context.WithCancel(ctx)
		g.members[address] = &member{reporter: r, stop: stop}
		all.Go(func() error {
			defer stop()
			defer func() { _ = conn.Close() }() // no call is in progress any more
			return r.Run(running)
		})
	}
	return nil
}

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

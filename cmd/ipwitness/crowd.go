package main

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/ipwitness/ipwitness/aggregator/access"
)

const (
	// maxClients and maxAgents are how many connections of HTTP and of gRPC are open at
	// once, and connectionsOfOne how many of HTTP of one address: who opens many and says
	// nothing on them takes no more than its share. All agents may come from one address,
	// that of a load balancer.
	maxClients       = 4096
	maxAgents        = 25_000
	connectionsOfOne = 1024
	// maxStrangers is how many connections of gRPC are open on which no call was let in
	// yet, and strangerWithin how long one has for that when others wait: each takes some
	// 70 kB of memory.
	maxStrangers   = 1024
	strangerWithin = 10 * time.Second
)

// crowd is a listener that hangs up on an address that has too many connections.
type crowd struct {
	net.Listener
	mu    sync.Mutex
	share map[netip.Addr]int
}

func newCrowd(l net.Listener) net.Listener {
	return netutil.LimitListener(&crowd{Listener: l, share: map[netip.Addr]int{}}, maxClients)
}

// Accept is for net.Listener.
func (c *crowd) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		of, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		if c.join(of.Addr()) {
			return &one{Conn: conn, leave: sync.OnceFunc(func() { c.leave(of.Addr()) })}, nil
		}
		_ = conn.Close() // it sees that
	}
}

func (c *crowd) join(a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.share[a] >= connectionsOfOne {
		return false
	}
	c.share[a]++
	return true
}

func (c *crowd) leave(a netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.share[a]--; c.share[a] == 0 {
		delete(c.share, a)
	}
}

// one is one connection of many.
type one struct {
	net.Conn
	leave func()
}

// Close is for net.Conn.
func (o *one) Close() error {
	defer o.leave()
	return o.Conn.Close()
}

// strangers is a listener that has few connections open of which it is not known that
// who called may call: with more, others wait, and those that had their time are hung
// up. Who is known stays, whoever else comes.
type strangers struct {
	net.Listener
	patience time.Duration
	room     chan struct{} // takes one for each
	closed   chan struct{}
	close    func() error

	mu    sync.Mutex
	those []*stranger // by when they came
}

func newStrangers(l net.Listener, most int, patience time.Duration) *strangers {
	s := &strangers{Listener: l, patience: patience, room: make(chan struct{}, most), closed: make(chan struct{})}
	s.close = sync.OnceValue(func() error {
		close(s.closed)
		return l.Close()
	})
	return s
}

// Accept is for net.Listener.
func (s *strangers) Accept() (net.Conn, error) {
	if err := s.makeRoom(); err != nil {
		return nil, err
	}
	conn, err := s.Listener.Accept()
	if err != nil {
		<-s.room
		return nil, err
	}
	c := &stranger{Conn: conn, among: s, came: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.those = append(s.those, c)
	return c, nil
}

// makeRoom waits until there is room for one more.
func (s *strangers) makeRoom() error {
	for {
		select {
		case s.room <- struct{}{}:
			return nil
		default:
		}
		var late <-chan time.Time
		first := s.first()
		if first != nil {
			late = time.After(time.Until(first.came.Add(s.patience)))
		}
		select {
		case s.room <- struct{}{}:
			return nil
		case <-s.closed:
			return net.ErrClosed
		case <-late:
			if s.leave(first) {
				_ = first.Conn.Close() // it sees that
			}
		}
	}
}

// first is the one that waits the longest, nil for none.
func (s *strangers) first() *stranger {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.those) == 0 {
		return nil
	}
	return s.those[0]
}

// leave makes room, and tells whether a connection was a stranger until then.
func (s *strangers) leave(c *stranger) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.those, c)
	if at < 0 {
		return false
	}
	s.those = slices.Delete(s.those, at, at+1)
	<-s.room
	return true
}

// Close is for net.Listener.
func (s *strangers) Close() error { return s.close() }

// stranger is a connection on which no call was let in, and later one of somebody known.
type stranger struct {
	net.Conn
	among *strangers
	came  time.Time
}

// RemoteAddr is for net.Conn. It has the connection with it, by which who looks after
// its calls finds it.
func (c *stranger) RemoteAddr() net.Addr { return strangerAddr{c.Conn.RemoteAddr(), c} }

// Close is for net.Conn.
func (c *stranger) Close() error {
	defer c.among.leave(c)
	return c.Conn.Close()
}

type strangerAddr struct {
	net.Addr
	of *stranger
}

// acquainted are the options of a server behind strangers, after those of the guard.
func acquainted() []grpc.ServerOption {
	letIn := func(ctx context.Context) {
		if access.Of(ctx) == nil {
			return // it is open to anybody
		}
		if p, ok := peer.FromContext(ctx); ok {
			if addr, ok := p.Addr.(strangerAddr); ok {
				addr.of.among.leave(addr.of)
			}
		}
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			letIn(ctx)
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			letIn(stream.Context())
			return next(srv, stream)
		}),
	}
}

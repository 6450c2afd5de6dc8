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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/access"
)

const (
	// maxClients and maxAgents are the maximum numbers of open HTTP and gRPC connections.
	// connectionsOfOne is the maximum number of HTTP connections per address, so that a client with
	// many idle connections cannot use up all of them. It does not apply to gRPC, because all agents
	// may come from the address of one load balancer.
	maxClients       = 1024
	maxAgents        = 25_000
	connectionsOfOne = 256
	// maxPreauth is the maximum number of unauthenticated gRPC connections, on which no call has been
	// accepted yet. preauthGrace is how long such a connection may stay open while others wait. Each
	// takes about 70 kB of memory.
	maxPreauth   = 1024
	preauthGrace = 10 * time.Second
	// maxProbes is the maximum number of open connections to a listener that serves only health
	// and metrics.
	maxProbes = 512
	// connectionsOfCaller is the maximum number of authenticated gRPC connections per caller. An
	// agent needs one; half-open connections end within a minute.
	connectionsOfCaller = 32
	// writeBuffer is how many bytes the kernel buffers per connection for a client that does not
	// read. By default the buffer may grow to megabytes, which count towards the container's
	// memory.
	writeBuffer = 128 << 10
)

// bufferLess limits the kernel's send buffer of a connection to writeBuffer.
func bufferLess(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(writeBuffer) // on error, the kernel's default size remains
	}
}

// connectionLimiter is a listener that closes new connections from an address that has too many.
type connectionLimiter struct {
	net.Listener
	mu    sync.Mutex
	share map[netip.Addr]int
}

func newConnectionLimiter(l net.Listener) net.Listener {
	return netutil.LimitListener(&connectionLimiter{Listener: l, share: map[netip.Addr]int{}}, maxClients)
}

// Accept implements net.Listener.
func (c *connectionLimiter) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		bufferLess(conn)
		of, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		if c.join(of.Addr()) {
			return &one{Conn: conn, leave: sync.OnceFunc(func() { c.leave(of.Addr()) })}, nil
		}
		_ = conn.Close() // the client sees the close
	}
}

func (c *connectionLimiter) join(a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.share[a] >= connectionsOfOne {
		return false
	}
	c.share[a]++
	return true
}

func (c *connectionLimiter) leave(a netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.share[a]--; c.share[a] == 0 {
		delete(c.share, a)
	}
}

// one is one of the connections of a connectionLimiter.
type one struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (o *one) Close() error {
	defer o.leave()
	return o.Conn.Close()
}

// evicting is a listener that closes its oldest connection when a new one would exceed the
// limit. Probes and scrapes are short, so clients that hold connections open cannot keep them
// out.
type evicting struct {
	net.Listener
	most int

	mu   sync.Mutex
	open []*evictable // oldest first
}

func newEvicting(l net.Listener, most int) net.Listener { return &evicting{Listener: l, most: most} }

// Accept implements net.Listener.
func (e *evicting) Accept() (net.Conn, error) {
	conn, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.open) >= e.most {
		_ = e.open[0].Conn.Close() // its server sees the close
		e.open = slices.Delete(e.open, 0, 1)
	}
	c := &evictable{conn, e}
	e.open = append(e.open, c)
	return c, nil
}

// evictable is a connection of an evicting listener.
type evictable struct {
	net.Conn
	of *evicting
}

// Close implements net.Conn.
func (c *evictable) Close() error {
	c.of.mu.Lock()
	if at := slices.Index(c.of.open, c); at >= 0 {
		c.of.open = slices.Delete(c.of.open, at, at+1)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// preauth is a listener that limits the number of unauthenticated connections. If there are more,
// new connections wait, and the oldest unauthenticated one is closed after its grace period.
// Authenticated connections stay open.
type preauth struct {
	net.Listener
	patience time.Duration
	room     chan struct{} // one element per unauthenticated connection
	closed   chan struct{}
	close    func() error

	mu   sync.Mutex
	open []*preauthConn // unauthenticated connections, oldest first
	// callers counts the authenticated connections of each caller.
	callers map[string]int
}

func newPreauth(l net.Listener, most int, patience time.Duration) *preauth {
	s := &preauth{Listener: l, patience: patience, room: make(chan struct{}, most), closed: make(chan struct{}), callers: make(map[string]int)}
	s.close = sync.OnceValue(func() error {
		close(s.closed)
		return l.Close()
	})
	return s
}

// Accept implements net.Listener.
func (s *preauth) Accept() (net.Conn, error) {
	if err := s.makeRoom(); err != nil {
		return nil, err
	}
	conn, err := s.Listener.Accept()
	if err != nil {
		<-s.room
		return nil, err
	}
	bufferLess(conn)
	c := &preauthConn{Conn: conn, among: s, came: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, c)
	return c, nil
}

// makeRoom waits until there is room for one more.
func (s *preauth) makeRoom() error {
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
				_ = first.Conn.Close() // the client sees the close
			}
		}
	}
}

// first returns the oldest unauthenticated connection, or nil.
func (s *preauth) first() *preauthConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) == 0 {
		return nil
	}
	return s.open[0]
}

// leave makes room, and reports whether the connection was unauthenticated until then.
func (s *preauth) leave(c *preauthConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.open, c)
	if at < 0 {
		return false
	}
	s.open = slices.Delete(s.open, at, at+1)
	<-s.room
	return true
}

// letIn records that a call of a caller was accepted on a connection, which then counts as
// authenticated. It returns false if the caller has too many connections.
func (s *preauth) letIn(c *preauthConn, caller string) bool {
	s.mu.Lock()
	ok := c.caller != "" || caller == "" || s.callers[caller] < connectionsOfCaller
	if ok && c.caller == "" && caller != "" && !c.closed {
		c.caller = caller
		s.callers[caller]++
	}
	s.mu.Unlock()
	if ok {
		s.leave(c)
	}
	return ok
}

// end records that a connection is closed.
func (s *preauth) end(c *preauthConn) {
	s.leave(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed = true; c.caller == "" {
		return
	}
	if s.callers[c.caller]--; s.callers[c.caller] == 0 {
		delete(s.callers, c.caller)
	}
	c.caller = ""
}

// Close implements net.Listener.
func (s *preauth) Close() error { return s.close() }

// preauthConn is a connection of a preauth listener. It is unauthenticated until a call is accepted
// on it.
type preauthConn struct {
	net.Conn
	among *preauth
	came  time.Time
	// caller is the account of the caller of an authenticated connection; empty if callers have no
	// names.
	caller string
	closed bool
}

// RemoteAddr implements net.Conn. The address contains the connection, so that the interceptors of
// calls can find it.
func (c *preauthConn) RemoteAddr() net.Addr { return preauthAddr{c.Conn.RemoteAddr(), c} }

// Close implements net.Conn.
func (c *preauthConn) Close() error {
	defer c.among.end(c)
	return c.Conn.Close()
}

type preauthAddr struct {
	net.Addr
	of *preauthConn
}

// HangUp implements access.Connection.
func (a preauthAddr) HangUp() { _ = a.of.Close() } // its server sees the close

// authenticated returns the options of a server behind a preauth listener. They must follow the
// options of the guard.
func authenticated() []grpc.ServerOption {
	letIn := func(ctx context.Context) error {
		caller := access.Of(ctx)
		if caller == nil {
			return nil // access is open to everyone
		}
		if p, ok := peer.FromContext(ctx); ok {
			if addr, ok := p.Addr.(preauthAddr); ok && !addr.of.among.letIn(addr.of, caller.Account()) {
				return status.Errorf(codes.ResourceExhausted, "too many connections: the limit is %d for %s; close some, because one connection can carry many calls", connectionsOfCaller, caller.Account())
			}
		}
		return nil
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := letIn(ctx); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := letIn(stream.Context()); err != nil {
				return err
			}
			return next(srv, stream)
		}),
	}
}

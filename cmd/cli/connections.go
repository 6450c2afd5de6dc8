package cli

import (
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// MaxIdle is the maximum number of connections of one listener on which no authorized call is
	// in progress. A gRPC connection takes about 70 kB of memory.
	MaxIdle = 1024
	// IdleGrace is how long such a connection stays open while others wait.
	IdleGrace = time.Second
	// writeBuffer is how many bytes the kernel buffers per connection for a client that does not
	// read. By default the buffer may grow to megabytes, which count towards the container's
	// memory.
	writeBuffer = 128 << 10
)

// Limited is a listener that limits the connections on which no authorized call is in progress.
// When there are MaxIdle, a new connection takes the place of the oldest one, after its grace
// period. So clients that only hold connections keep nobody out, and connections with calls stay
// open. access limits the calls of each caller.
type Limited struct {
	net.Listener

	mu   sync.Mutex
	idle []*limitedConn // oldest first
}

// Limit returns a listener that limits the idle connections of l.
func Limit(l net.Listener) *Limited { return &Limited{Listener: l} }

// Accept implements net.Listener.
func (l *Limited) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(writeBuffer) // on error, the kernel's default size remains
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.idle) >= MaxIdle {
		oldest := l.idle[0]
		if early := time.Until(oldest.since.Add(IdleGrace)); early > 0 {
			l.mu.Unlock()
			time.Sleep(min(early, 10*time.Millisecond))
			l.mu.Lock()
			continue
		}
		l.remove(oldest)
		_ = oldest.Conn.Close() // its server sees the close
	}
	c := &limitedConn{Conn: conn, of: l, since: time.Now()}
	l.idle = append(l.idle, c)
	return c, nil
}

// Idle returns the number of connections on which no authorized call is in progress.
func (l *Limited) Idle() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.idle)
}

// remove removes a connection from the idle ones. l.mu is locked.
func (l *Limited) remove(c *limitedConn) {
	l.idle = slices.DeleteFunc(l.idle, func(other *limitedConn) bool { return other == c })
}

type limitedConn struct {
	net.Conn
	of     *Limited
	since  time.Time // beginning of the connection, or end of its last call
	calls  int       // authorized calls in progress
	closed bool
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.of.mu.Lock()
	c.closed = true
	c.of.remove(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// RemoteAddr implements net.Conn. The address contains the connection, so that access finds it.
func (c *limitedConn) RemoteAddr() net.Addr { return limitedAddr{c.Conn.RemoteAddr(), c} }

// limitedAddr is the address of a client; it implements access.Connection.
type limitedAddr struct {
	net.Addr
	conn *limitedConn
}

// HangUp implements access.Connection.
func (a limitedAddr) HangUp() { _ = a.conn.Close() } // its server sees the close

func (a limitedAddr) Begin() (end func()) {
	c, l := a.conn, a.conn.of
	l.mu.Lock()
	defer l.mu.Unlock()
	c.calls++
	l.remove(c)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c.calls--; c.calls == 0 && !c.closed {
			c.since = time.Now()
			l.idle = append(l.idle, c)
		}
	}
}

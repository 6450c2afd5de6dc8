package chaos

import (
	"net"
	"sync"
)

// A Link carries connections until it is cut, as a network does: what is sent meanwhile arrives after it is
// mended, and neither side is told. Use NewLink.
type Link struct {
	mu sync.Mutex
	// open is closed while the link carries data.
	open chan struct{}
}

// NewLink returns a link that is not cut.
func NewLink() *Link {
	l := &Link{open: make(chan struct{})}
	close(l.open)
	return l
}

// Cut cuts the link.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

// Mend mends the link after Cut.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.open)
}

// carries returns a channel that is closed while the link carries data.
func (l *Link) carries() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Wait waits until the link carries data, or until done is closed. It reports whether the link does.
func (l *Link) Wait(done <-chan struct{}) bool {
	select {
	case <-l.carries():
		return true
	case <-done:
		return false
	}
}

// Conn returns a connection through the link.
func (l *Link) Conn(c net.Conn) net.Conn {
	return &linked{Conn: c, link: l, closed: make(chan struct{})}
}

// Listener returns a listener whose connections go through the link.
func (l *Link) Listener(in net.Listener) net.Listener { return listener{in, l} }

type listener struct {
	net.Listener
	link *Link
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.link.Conn(c), nil
}

// linked is a connection through a link.
type linked struct {
	net.Conn
	link   *Link
	once   sync.Once
	closed chan struct{}
}

// Read implements net.Conn.
func (c *linked) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.link.Wait(c.closed) {
		return 0, net.ErrClosed
	}
	return n, err
}

// Write implements net.Conn.
func (c *linked) Write(b []byte) (int, error) {
	if !c.link.Wait(c.closed) {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *linked) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

package main

import (
	"net"
	"net/netip"
	"sync"

	"golang.org/x/net/netutil"
)

const (
	// maxClients and maxAgents are how many connections of HTTP and of gRPC are open at
	// once, and connectionsOfOne how many of HTTP of one address: who opens many and says
	// nothing on them takes no more than its share. All agents may come from one address,
	// that of a load balancer.
	maxClients       = 4096
	maxAgents        = 25_000
	connectionsOfOne = 1024
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

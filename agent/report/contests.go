package report

import (
	"log/slog"
	"net/netip"
	"sync"
)

// maxContests limits the addresses that are contested at the same time, because the observer
// has no room for more.
const maxContests = 16384

// Contests has the addresses that the observer is asked to report more often. Each stays in it
// for as long as at least one aggregator wants it.
type Contests struct {
	log  *slog.Logger
	look func(addr netip.Addr, on bool)

	mu   sync.Mutex
	by   map[netip.Addr]int // the number of streams that want the address
	full bool               // the lack of room was logged
}

// contestsOf has the contests of one stream. It is not safe for concurrent use.
type contestsOf struct {
	all  *Contests
	held map[netip.Addr]struct{}
}

// NewContests returns an empty set of contests. It calls look when the first stream wants an
// address, and when the last one no longer does.
func NewContests(log *slog.Logger, look func(addr netip.Addr, on bool)) *Contests {
	return &Contests{log: log, look: look, by: map[netip.Addr]int{}}
}

func (c *Contests) of() *contestsOf { return &contestsOf{all: c, held: map[netip.Addr]struct{}{}} }

// set starts or ends the contest of an address for this stream.
func (s *contestsOf) set(addr netip.Addr, on bool) {
	c := s.all
	c.mu.Lock()
	defer c.mu.Unlock()
	switch _, held := s.held[addr]; {
	case held == on:
		return
	case !on:
		delete(s.held, addr)
		if c.by[addr]--; c.by[addr] == 0 {
			delete(c.by, addr)
			c.full = false
			c.look(addr, false)
		}
		return
	case c.by[addr] == 0 && len(c.by) >= maxContests:
		if !c.full {
			c.full = true
			c.log.Warn("too many contested addresses: further ones are reported at the normal rate", "limit", maxContests)
		}
		return
	case c.by[addr] == 0:
		c.look(addr, true)
	}
	c.by[addr]++
	s.held[addr] = struct{}{}
}

// end ends all contests of the stream, which is not used any more.
func (s *contestsOf) end() {
	for addr := range s.held {
		s.set(addr, false)
	}
}

// Instances has the aggregators that the streams of an agent lead to. Several names or addresses may
// lead to one aggregator, for example the IPv4 and the IPv6 address of a host. Only one stream of an
// agent reports to it.
type Instances struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when the stream ends
}

// NewInstances returns an empty set.
func NewInstances() *Instances { return &Instances{held: make(map[string]chan struct{})} }

// hold reserves an aggregator for a stream. If it is reserved for another one, hold returns a channel
// that is closed when that stream ends.
func (i *Instances) hold(id string) (release func(), taken <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if other := i.held[id]; other != nil {
		return nil, other
	}
	end := make(chan struct{})
	i.held[id] = end
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.held, id)
		close(end)
	}, nil
}

// A takenError is the error of a stream to an aggregator that another stream of the agent leads to.
type takenError struct {
	// until is closed when the other stream ends.
	until <-chan struct{}
}

func (*takenError) Error() string { return "another stream leads to the same aggregator" }

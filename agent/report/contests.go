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

// of returns the contests of a new stream.
func (c *Contests) of() *contestsOf {
	return &contestsOf{all: c, held: map[netip.Addr]struct{}{}}
}

// set starts or ends the contest of an address for this stream.
func (s *contestsOf) set(addr netip.Addr, on bool) {
	if _, held := s.held[addr]; held == on {
		return
	}
	if !on {
		delete(s.held, addr)
		s.all.less(addr)
	} else if s.all.more(addr) {
		s.held[addr] = struct{}{}
	}
}

// end ends all contests of the stream, which is not used any more.
func (s *contestsOf) end() {
	for addr := range s.held {
		s.all.less(addr)
	}
}

// more adds one stream that wants an address. It returns false if there is no room.
func (c *Contests) more(addr netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.by[addr]
	if n == 0 {
		if len(c.by) >= maxContests {
			if !c.full {
				c.full = true
				c.log.Warn("too many contested addresses: further ones are reported at the normal rate", "limit", maxContests)
			}
			return false
		}
		c.look(addr, true)
	}
	c.by[addr] = n + 1
	return true
}

// less removes one stream that wants an address.
func (c *Contests) less(addr netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[addr]--; c.by[addr] == 0 {
		delete(c.by, addr)
		c.full = false
		c.look(addr, false)
	}
}

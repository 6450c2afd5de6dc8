package agent

import (
	"log/slog"
	"net/netip"
	"sync"
)

// maxContests is how many addresses can be looked at more often at a time: the
// observer takes no more.
const maxContests = 16384

// contests are the addresses that aggregators want to be looked at more often:
// each of them as long as one of the aggregators does.
type contests struct {
	log  *slog.Logger
	look func(addr netip.Addr, on bool)

	mu   sync.Mutex
	by   map[netip.Addr]int // how many streams want it
	full bool               // that there is no room was said
}

// contestsOf are those of one stream.
type contestsOf struct {
	all  *contests
	held map[netip.Addr]struct{}
}

func newContests(log *slog.Logger, look func(addr netip.Addr, on bool)) *contests {
	return &contests{log: log, look: look, by: map[netip.Addr]int{}}
}

// of gives those of a stream that begins. They are of one goroutine.
func (c *contests) of() *contestsOf {
	return &contestsOf{all: c, held: map[netip.Addr]struct{}{}}
}

// set has an address looked at more often, or no longer for this stream.
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

// end takes back all of the stream.
func (s *contestsOf) end() {
	for addr := range s.held {
		s.all.less(addr)
	}
	clear(s.held)
}

// more adds one stream that wants an address, where there is room.
func (c *contests) more(addr netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.by[addr]
	if n == 0 {
		if len(c.by) >= maxContests {
			if !c.full {
				c.full = true
				c.log.Warn("too many addresses are contested: more of them are not looked at more often", "limit", maxContests)
			}
			return false
		}
		c.look(addr, true)
	}
	c.by[addr] = n + 1
	return true
}

// less takes one away.
func (c *contests) less(addr netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[addr]--; c.by[addr] == 0 {
		delete(c.by, addr)
		c.full = false
		c.look(addr, false)
	}
}

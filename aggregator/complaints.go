package aggregator

import (
	"net"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const (
	// complainEvery is how often the log says the same of one host.
	complainEvery = time.Minute
	// complaintsOfOne is how many different things it says of one host in that time:
	// what a peer is told may have its own words in it.
	complaintsOfOne = 10
	// maxComplaints is how many are remembered.
	maxComplaints = 1000
)

// complaints keep an agent that is refused, and tries again every few seconds, from
// filling the log.
type complaints struct {
	mu   sync.Mutex
	said map[complaint]verdict.Stamp
	of   map[string]int // by host
}

type complaint struct{ host, reason string }

// first tells whether something was not said of a peer lately, and not too much else.
func (c *complaints) first(peer, reason string, now verdict.Stamp) bool {
	host, _, err := net.SplitHostPort(peer)
	if err != nil {
		host = peer
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	one := complaint{host, reason}
	if at, ok := c.said[one]; ok && now.Sub(at) < complainEvery {
		return false
	}
	if c.said == nil {
		c.said, c.of = make(map[complaint]verdict.Stamp), make(map[string]int)
	}
	if len(c.said) >= maxComplaints || c.of[host] >= complaintsOfOne {
		c.forget(now)
	}
	if len(c.said) >= maxComplaints || c.of[host] >= complaintsOfOne {
		return false
	}
	if _, again := c.said[one]; !again {
		c.of[host]++
	}
	c.said[one] = now
	return true
}

// forget drops what was said long ago.
func (c *complaints) forget(now verdict.Stamp) {
	for one, at := range c.said {
		if now.Sub(at) < complainEvery {
			continue
		}
		delete(c.said, one)
		if c.of[one.host]--; c.of[one.host] == 0 {
			delete(c.of, one.host)
		}
	}
}

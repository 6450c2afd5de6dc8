package report

import (
	"net"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const (
	// complainEvery is the interval at which a complaint about one host is logged again.
	complainEvery = time.Minute
	// complaintsOfOne is the largest number of different complaints about one host in that
	// interval, because their text may contain strings that the peer chose.
	complaintsOfOne = 10
	// maxComplaints is the largest number of complaints that are remembered.
	maxComplaints = 1000
)

// complaints limits log messages, so that a refused agent that reconnects every few seconds does
// not fill the log.
type complaints struct {
	mu   sync.Mutex
	said map[complaint]verdict.Stamp
	of   map[string]int // number of complaints in said, by host
}

type complaint struct{ host, reason string }

// first reports whether a complaint about a peer must be logged: it was not logged within
// complainEvery, and no limit is reached.
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

// forget drops complaints that are older than complainEvery.
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

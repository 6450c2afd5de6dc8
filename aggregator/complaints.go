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
	// maxComplaints is how many are remembered.
	maxComplaints = 1000
)

// complaints keep an agent that is refused, and tries again every few seconds, from
// filling the log.
type complaints struct {
	mu   sync.Mutex
	said map[complaint]verdict.Stamp
}

type complaint struct{ host, reason string }

// first tells whether something was not said of a peer lately.
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
	if c.said == nil || len(c.said) >= maxComplaints {
		c.said = make(map[complaint]verdict.Stamp)
	}
	c.said[one] = now
	return true
}

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
	mu     sync.Mutex
	logged map[complaint]verdict.Stamp
}

type complaint struct{ host, reason string }

// shouldLog reports whether a complaint about a peer must be logged: it was not logged within
// complainEvery, and no limit is reached.
func (c *complaints) shouldLog(peer, reason string, now verdict.Stamp) bool {
	host, _, err := net.SplitHostPort(peer)
	if err != nil {
		host = peer
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	of := 0 // the number of complaints about the host
	for one, at := range c.logged {
		if now.Sub(at) >= complainEvery {
			delete(c.logged, one)
		} else if one.host == host {
			of++
		}
	}
	one := complaint{host, reason}
	if _, again := c.logged[one]; again || len(c.logged) >= maxComplaints || of >= complaintsOfOne {
		return false
	}
	if c.logged == nil {
		c.logged = make(map[complaint]verdict.Stamp)
	}
	c.logged[one] = now
	return true
}

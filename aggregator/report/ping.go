package report

import (
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// pingEvery is the interval between pings of one agent. It is longer if all agents together
	// would exceed pingsASecond.
	pingEvery    = 3 * time.Second
	pingsASecond = 250
	// silentAfter is the time without an answer after which an agent counts as gone.
	silentAfter = 10 * time.Second
)

// pings is the state of a session's liveness checks. The answer to a ping follows everything that
// the agent had to send, so it also shows how far the aggregator is behind.
type pings struct {
	// due is the ping to send, 0 for none.
	due, last uint64
	// sent is when the last ping was requested; 0 once it is answered.
	sent verdict.Stamp
	// took is how long the last answer took.
	took time.Duration
	// skew is how far the agent's wall clock is ahead of ours, if known.
	skew  time.Duration
	known bool
}

// pingInterval returns the interval at which each agent is pinged if there are that many sessions.
func pingInterval(sessions int64) time.Duration {
	return max(pingEvery, time.Duration(sessions)*time.Second/pingsASecond)
}

// Ping pings the agent, unless a ping is unanswered.
func (r *Session) Ping(now verdict.Stamp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ping(now)
}

// ping is Ping with the lock held.
func (r *Session) ping(now verdict.Stamp) {
	if r.sent == 0 {
		r.last++
		r.due, r.sent = r.last, now
		r.announce()
	}
}

// pong handles the answer to a ping.
func (r *Session) pong(p *pb.Pong, now verdict.Stamp) {
	r.mu.Lock()
	if p.GetId() != r.last || r.sent == 0 {
		r.mu.Unlock()
		return
	}
	r.took, r.sent = now.Sub(r.sent), 0
	if at := facts.Stamp(p.GetSentAt()); at != 0 {
		r.skew, r.known = at.Sub(verdict.At(time.Now()).Add(-r.took/2)), true
	}
	skew, known := r.skew, r.known
	r.mu.Unlock()
	if r.node != nil {
		r.service.Facts.Skewed(r, r.node, skew, known)
	}
}

// Lag returns how far the aggregator is behind the agent, if known.
func (r *Session) Lag(now verdict.Stamp) (lag time.Duration, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lag = r.took / 2
	if r.sent != 0 {
		lag = max(lag, now.Sub(r.sent))
	}
	return lag, r.took != 0 || lag > pingEvery
}

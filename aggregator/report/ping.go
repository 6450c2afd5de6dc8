package report

import (
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// pingEvery is the interval between pings of one agent. It grows with the number of agents to
	// keep the rate of all pings below pingsASecond.
	pingEvery    = 3 * time.Second
	pingsASecond = 250
	// silentAfter is the time without an answer after which an agent is disconnected.
	silentAfter = 10 * time.Second
)

// pings is the state of a session's liveness checks. An agent answers a ping after everything that
// it had to send, so the answer also shows how far the aggregator lags behind.
type pings struct {
	// due is the ID of the ping to send, 0 for none; last is the ID of the last ping.
	due, last uint64
	// sent is when the unanswered ping was requested; 0 if there is none.
	sent verdict.Stamp
	// took is the time from the last answered ping to its answer.
	took time.Duration
	// skew is how far the agent's clock is ahead of the aggregator's clock, if known is set.
	skew  time.Duration
	known bool
}

// pingInterval returns the interval between pings of one agent.
func pingInterval(sessions int64) time.Duration {
	return max(pingEvery, time.Duration(sessions)*time.Second/pingsASecond)
}

// Ping pings the agent unless a ping is unanswered.
func (r *Session) Ping(now verdict.Stamp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ping(now)
}

// ping is like Ping. The caller holds the lock.
func (r *Session) ping(now verdict.Stamp) {
	if r.sent == 0 {
		r.last++
		r.due, r.sent = r.last, now
		r.startSending()
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

// Lag returns how far the aggregator lags behind the agent, if that is known.
func (r *Session) Lag(now verdict.Stamp) (lag time.Duration, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lag = r.took / 2
	if r.sent != 0 {
		lag = max(lag, now.Sub(r.sent))
	}
	return lag, r.took != 0 || lag > pingEvery
}

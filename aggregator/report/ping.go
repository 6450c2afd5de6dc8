package report

import (
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// pings are how a session asks whether its agent is there. The answer comes after
// all that the agent knew, so that it also tells how far behind we are.
type pings struct {
	// due is the ping to send, 0 for none.
	due, last uint64
	// sent is when the last one was asked for; 0 when it was answered.
	sent verdict.Stamp
	// took is how long the last answered one took.
	took time.Duration
	// skew is how much the agent's wall clock is ahead, once that is known.
	skew  time.Duration
	known bool
}

// pingInterval returns how often each of so many agents is asked whether it is there.
func pingInterval(sessions int64) time.Duration {
	return max(pingEvery, time.Duration(sessions)*time.Second/pingsASecond)
}

// waits reports whether the agent has not answered yet.
func (r *Session) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent != 0
}

// Ping asks the agent whether it is there, if it is not asked already.
func (r *Session) Ping(now verdict.Stamp) {
	if !r.waits() {
		r.say(func() {
			r.last++
			r.due, r.sent = r.last, now
		})
	}
}

// pong takes an answer.
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

// waiting notes since when the next message is waited for.
func (r *Session) waiting(since verdict.Stamp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = since
}

// busy reports whether a message is being taken.
func (r *Session) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.idle == 0
}

// silent tells whether nothing was heard for long, though we asked. While a
// message is being taken, it is we who are slow.
func (r *Session) silent(now verdict.Stamp) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.idle != 0 && r.idle.Add(silentAfter) <= now && r.sent != 0 && r.sent.Add(silentAfter) <= now
}

// Lag is how far we are behind the agent.
func (r *Session) Lag(now verdict.Stamp) (lag time.Duration, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lag = r.took / 2
	if r.sent != 0 {
		lag = max(lag, now.Sub(r.sent))
	}
	return lag, r.took != 0 || lag > pingEvery
}

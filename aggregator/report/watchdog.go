package report

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// watchdog is the state of the checks that an agent responds and completes its snapshot. They are
// run by a timer, so that an idle session needs no goroutine for them.
type watchdog struct {
	// timer is nil before the first check and after the end of the session.
	timer *time.Timer
	// idle is the time since which the session has been waiting for a message; 0 while it processes
	// one.
	idle verdict.Stamp
	// synced is set once the first snapshot is complete. late is the deadline for it.
	synced bool
	late   verdict.Stamp
	// pinged is when the agent was last pinged by watch.
	pinged verdict.Stamp
}

// check checks the agent, and pings it if a ping is due.
func (r *Session) check() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil {
		return // the session has ended in the meantime
	}
	now := r.service.Facts.Clock()
	if !r.synced && r.late <= now {
		if r.idle != 0 {
			r.end(status.Errorf(codes.DeadlineExceeded, "no complete snapshot within %s: connect again", snapshotWithin))
			return
		}
		r.late = now.Add(snapshotWithin)
	}
	if r.idle != 0 && r.idle.Add(silentAfter) <= now && r.sent != 0 && r.sent.Add(silentAfter) <= now {
		r.end(status.Errorf(codes.DeadlineExceeded, "the agent has not responded for %s: connect again", silentAfter))
		return
	}
	interval := max(pingEvery, time.Duration(r.service.sessions.Load())*time.Second/pingsASecond)
	next := r.pinged.Add(interval).Sub(now)
	switch {
	case r.sent != 0: // the last ping is unanswered
		r.pinged, next = now, pingEvery
	case next <= 0:
		r.ping(now)
		r.pinged, next = now, min(interval, silentAfter)
	}
	if !r.synced {
		next = min(next, r.late.Sub(now))
	}
	r.timer.Reset(next)
}

// waiting records since when the session has been waiting for a message; 0 if it processes one.
func (r *Session) waiting(since verdict.Stamp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = since
}

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

// pong handles the answer to a ping, which was received at now: what came with it may have taken long to apply since.
func (r *Session) pong(p *pb.Pong, now verdict.Stamp) {
	r.mu.Lock()
	if p.GetId() != r.last || r.sent == 0 {
		r.mu.Unlock()
		return
	}
	r.took, r.sent = now.Sub(r.sent), 0
	var skew *facts.Skew
	if at := facts.Stamp(p.GetSentAt()); at != 0 {
		skew = &facts.Skew{Ahead: at.Sub(now.Add(-r.took / 2)), Within: r.took / 2}
	}
	r.mu.Unlock()
	if r.node != nil {
		r.service.Facts.Heard(r, r.node, skew)
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

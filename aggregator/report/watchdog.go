package report

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// watchdog is the state of the checks that an agent is alive and completes its snapshot. A timer
// runs them, so that a session that is idle needs no goroutine for them.
type watchdog struct {
	// timer is nil before the first check, and after the session has ended.
	timer *time.Timer
	// idle is the time since which the next message is awaited; 0 while one is processed.
	idle verdict.Stamp
	// synced is set once the first snapshot is complete; late is when it must be.
	synced bool
	late   verdict.Stamp
	// pinged is when the agent was last pinged by watch.
	pinged verdict.Stamp
}

// watch begins to check the agent.
func (r *Session) watch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.service.Facts.Clock()
	r.late, r.pinged = now.Add(snapshotWithin), now
	r.ping(now)
	r.timer = time.AfterFunc(pingEvery, r.check)
}

// unwatch ends the checks. The lock is held.
func (r *Session) unwatch() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// check checks the agent, and pings it if that is due.
func (r *Session) check() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil {
		return // ended meanwhile
	}
	now := r.service.Facts.Clock()
	if !r.synced && r.late <= now {
		if r.idle != 0 {
			r.end(status.Errorf(codes.DeadlineExceeded, "no complete snapshot within %s: connect again", snapshotWithin))
			return
		}
		r.late = now.Add(snapshotWithin)
	}
	if r.silent(now) {
		r.end(status.Errorf(codes.DeadlineExceeded, "nothing was heard of the agent for %s: connect again", silentAfter))
		return
	}
	interval := pingInterval(r.service.sessions.Load())
	next := r.pinged.Add(interval).Sub(now)
	switch {
	case r.sent != 0: // not answered yet
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

// complete notes that a snapshot is complete, and reports whether it is the first one.
func (r *Session) complete() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, r.synced = !r.synced, true
	return first
}

// waiting notes since when the next message is awaited.
func (r *Session) waiting(since verdict.Stamp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = since
}

// processing notes that a message is being processed.
func (r *Session) processing() { r.waiting(0) }

// silent reports whether nothing was heard for silentAfter although a ping is unanswered. While a
// message is being processed, the delay is ours.
func (r *Session) silent(now verdict.Stamp) bool {
	return r.idle != 0 && r.idle.Add(silentAfter) <= now && r.sent != 0 && r.sent.Add(silentAfter) <= now
}

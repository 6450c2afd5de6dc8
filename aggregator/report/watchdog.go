package report

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
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

// watch starts the checks.
func (r *Session) watch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.service.Facts.Clock()
	r.late, r.pinged = now.Add(snapshotWithin), now
	r.ping(now)
	r.timer = time.AfterFunc(pingEvery, r.check)
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
	interval := pingInterval(r.service.sessions.Load())
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

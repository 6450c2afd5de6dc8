package access

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	// callsPerSecond limits the average rate of one caller's calls, and callsAtOnce a burst. A
	// watch counts as one call. Report streams are not counted.
	callsPerSecond, callsAtOnce = 500, 1000
	// wrongToken is the number of calls that a rejected token counts as, for its address.
	wrongToken = 50
	// roomOfOne limits the calls of one caller that are in progress. A watch counts as one, a unary
	// call as roomOfAnswer, because its answer takes up to 4 MiB as JSON, until it has been read,
	// and a report stream as roomOfReport. Calls wait for up to roomWithin.
	roomOfOne, roomOfAnswer, roomOfReport = 64, 8, 3
	// roomOfMany is that of a call with thousands of questions, which takes several times as much.
	roomOfMany = 32
	roomWithin = 10 * time.Second
	// callWithin limits the time of a gRPC call from its first byte, except of streams of
	// authorized callers.
	callWithin = 30 * time.Second
	// takenWithin is the time that a gRPC client has to read an answer before its connection is
	// closed. For REST, the HTTP server sets its own limit.
	takenWithin = time.Minute
	// questionsPerSecond limits the average rate of one caller's calls for which agents are asked, and questionsAtOnce a
	// burst.
	questionsPerSecond, questionsAtOnce = 5, 20
	// maxCallers is the number of callers that are remembered, in addition to those with calls in
	// progress.
	maxCallers = 10_000
)

// limits keeps one caller from using up shared resources.
type limits struct {
	mu      sync.Mutex
	callers map[string]*quota
	log     *rate.Limiter // of refusals, so that they do not flood the log
}

type quota struct {
	calls, questions *rate.Limiter
	room             *semaphore.Weighted
}

func newLimits() *limits {
	return &limits{callers: map[string]*quota{}, log: rate.NewLimiter(rate.Every(10*time.Second), 5)}
}

// of returns the quota of a caller. A forgotten caller starts again with a full quota.
func (l *limits) of(key string) *quota {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.callers[key]
	if q == nil {
		if len(l.callers) >= maxCallers {
			maps.DeleteFunc(l.callers, func(_ string, q *quota) bool {
				idle := q.room.TryAcquire(roomOfOne)
				if idle {
					q.room.Release(roomOfOne)
				}
				return idle
			})
		}
		q = &quota{rate.NewLimiter(callsPerSecond, callsAtOnce), rate.NewLimiter(questionsPerSecond, questionsAtOnce), semaphore.NewWeighted(roomOfOne)}
		l.callers[key] = q
	}
	return q
}

// account returns the name that the caller's calls are counted under. For an agent this is its
// node, because agents may share a name.
func (c *Caller) account() string {
	switch {
	case c.agent && c.node != "":
		return "node " + c.node
	case c.name == "":
		return c.from.remote.String()
	}
	return c.name
}

// A Connection is a peer's address (net.Addr) whose connection is told about authorized calls.
type Connection interface {
	// Begin is called when an authorized call begins, and end when it is over.
	Begin() (end func())
	// HangUp closes the connection.
	HangUp()
}

func connection(ctx context.Context) Connection {
	if p, ok := peer.FromContext(ctx); ok {
		c, _ := p.Addr.(Connection)
		return c
	}
	return nil
}

func (l *limits) call(c *Caller) error {
	if l.of(c.account()).calls.Allow() {
		return nil
	}
	return status.Errorf(codes.ResourceExhausted, "too many calls: the limit is %d per second for one caller; use a watch, which sends all changes in one call", callsPerSecond)
}

// MayAsk reports whether agents may be asked for a call, and counts it: not if the caller makes too many such calls.
func (c *Caller) MayAsk() bool { return c == nil || c.questions == nil || c.questions.Allow() }

// begin waits until an authorized call may begin, and counts it until end is called. end may be
// called more than once.
func (l *limits) begin(ctx context.Context, c *Caller, what Action) (end func(), err error) {
	release := func() {}
	if !what.report || c.node != "" { // without access control, agents have no names
		q, weight := l.of(c.account()), int64(1)
		c.questions = q.questions
		switch {
		case what.report:
			weight = roomOfReport
		case what.many:
			weight = roomOfMany
		case !what.long:
			weight = roomOfAnswer
		}
		if !what.report {
			if err := l.call(c); err != nil {
				return nil, err
			}
		}
		waits, cancel := context.WithTimeout(ctx, roomWithin)
		defer cancel()
		if err := q.room.Acquire(waits, weight); err != nil {
			if ctx.Err() != nil {
				return nil, status.FromContextError(ctx.Err()).Err()
			}
			return nil, status.Errorf(codes.ResourceExhausted,
				"too many calls of %s in progress: one caller may have %d watches, or %d calls whose answers are not yet read; end one and try again", c.account(), roomOfOne, roomOfOne/roomOfAnswer)
		}
		release = func() { q.room.Release(weight) }
	}
	idle := func() {}
	if conn := connection(ctx); conn != nil {
		idle = conn.Begin()
	}
	return sync.OnceFunc(func() { idle(); release() }), nil
}

// come counts a call from an address before its message was read, until its context ends.
func (l *limits) come(ctx context.Context, by credential) (context.Context, error) {
	room := l.of("messages from " + by.remote.String()).room
	if !room.TryAcquire(1) {
		return ctx, status.Errorf(codes.ResourceExhausted, "too many concurrent calls: the limit is %d for one address; try again", roomOfOne)
	}
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	context.AfterFunc(ctx, func() { cancel(); room.Release(1) })
	return ctx, nil
}

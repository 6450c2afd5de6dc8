package access

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// callsPerSecond limits the average rate of one caller's calls, and callsAtOnce a burst. A
	// watch counts as one call.
	callsPerSecond, callsAtOnce = 500, 1000
	// failuresPerSecond and failuresAtOnce limit the rejected tokens from one address.
	failuresPerSecond, failuresAtOnce = 5, 50
	// maxWatches limits the open watches of all callers, watchesOfOne those of one caller. A
	// watch whose client does not read takes up to half a megabyte until it is disconnected.
	maxWatches, watchesOfOne = 256, 64
	// reportsOfOne limits the open report streams of one node's agent. An agent needs one
	// stream; half-open ones end within seconds. Each stream may hold a message of 4 MiB.
	reportsOfOne = 20
	// incoming limits the concurrent gRPC calls from one address, and callWithin limits the
	// time of each. Streams of authorized callers are not counted.
	incoming, callWithin = 64, 30 * time.Second
	// maxAnswers limits the unary calls of all callers that are in progress, answersOfOne those
	// of one caller. A call is in progress until its answer has been read. Further calls wait
	// for up to roomWithin. An answer takes up to about 4 MiB: that is the size of a 1 MiB page
	// once it is JSON.
	maxAnswers, answersOfOne = 32, 8
	roomWithin               = 10 * time.Second
	// takenWithin is the time that a gRPC client has to read an answer before its connection is
	// closed. For REST, the HTTP server sets its own limit.
	takenWithin = time.Minute
	// maxCallers is the number of callers that are remembered.
	maxCallers = 10_000
)

// limits keeps one caller from using up shared resources.
type limits struct {
	mu       *sync.Mutex
	calls    map[string]*rate.Limiter
	failures map[netip.Addr]*rate.Limiter
	watches  map[string]int
	reports  map[string]int
	incoming map[netip.Addr]int
	answers  map[string]*answers
	answered *semaphore.Weighted // for all callers together
	open     *int
	log      *rate.Limiter
}

// answers limits the unary calls of one caller. It exists only while the caller has calls.
type answers struct {
	room  *semaphore.Weighted
	calls int // including waiting calls
}

func newLimits() limits {
	return limits{
		mu: &sync.Mutex{}, calls: map[string]*rate.Limiter{}, failures: map[netip.Addr]*rate.Limiter{},
		watches: map[string]int{}, reports: map[string]int{}, incoming: map[netip.Addr]int{},
		answers: map[string]*answers{}, answered: semaphore.NewWeighted(maxAnswers), open: new(int), log: rate.NewLimiter(rate.Every(10*time.Second), 5),
	}
}

// limiter returns the limiter of a key. A forgotten key starts again with a full limiter.
func limiter[K comparable](of map[K]*rate.Limiter, key K, perSecond, burst int) *rate.Limiter {
	l := of[key]
	if l == nil {
		if len(of) >= maxCallers {
			clear(of)
		}
		l = rate.NewLimiter(rate.Limit(perSecond), burst)
		of[key] = l
	}
	return l
}

// key returns the name that a caller's calls are counted under.
func (c *Caller) key() string {
	if c.name == "" {
		return c.from.remote.String()
	}
	return c.name
}

// call counts a call.
func (l *limits) call(c *Caller) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if limiter(l.calls, c.key(), callsPerSecond, callsAtOnce).Allow() {
		return nil
	}
	return status.Errorf(codes.ResourceExhausted, "too many calls: the limit is %d per second for one caller; use a watch, which sends all changes in one call", callsPerSecond)
}

// answer waits until a unary call may start, and counts the call until its answer has been
// read. end may be called more than once.
func (l *limits) answer(ctx context.Context, c *Caller) (end func(), err error) {
	key := c.key()
	l.mu.Lock()
	of := l.answers[key]
	if of == nil {
		of = &answers{room: semaphore.NewWeighted(answersOfOne)}
		l.answers[key] = of
	}
	of.calls++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if of.calls--; of.calls == 0 {
			delete(l.answers, key)
		}
	}

	waits, cancel := context.WithTimeout(ctx, roomWithin)
	defer cancel()
	if err = of.room.Acquire(waits, 1); err == nil {
		if err = l.answered.Acquire(waits, 1); err == nil {
			return sync.OnceFunc(func() {
				l.answered.Release(1)
				of.room.Release(1)
				leave()
			}), nil
		}
		of.room.Release(1)
	}
	leave()
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return nil, status.Errorf(codes.ResourceExhausted,
		"too many concurrent calls: the limit is %d for one caller and %d in total, and a call ends when its answer is read; try again", answersOfOne, maxAnswers)
}

// watch counts a watch until end is called.
func (l *limits) watch(c *Caller) (end func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := c.key()
	if *l.open >= maxWatches || l.watches[key] >= watchesOfOne {
		return nil, status.Errorf(codes.ResourceExhausted, "too many watches: the limit is %d for one caller and %d in total: end one", watchesOfOne, maxWatches)
	}
	*l.open++
	l.watches[key]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		*l.open--
		if l.watches[key]--; l.watches[key] == 0 {
			delete(l.watches, key)
		}
	}, nil
}

// report counts a report stream until end is called. It does not count callers that may report
// for any node.
func (l *limits) report(c *Caller) (end func(), err error) {
	if c.node == "" {
		return func() {}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reports[c.node] >= reportsOfOne {
		return nil, status.Errorf(codes.ResourceExhausted,
			"too many report streams: the limit is %d for the agent of one node, which needs one: find out who else has the token or certificate of %s", reportsOfOne, c.node)
	}
	l.reports[c.node]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.reports[c.node]--; l.reports[c.node] == 0 {
			delete(l.reports, c.node)
		}
	}, nil
}

// come counts a call from an address until its context ends, which callWithin limits.
func (l *limits) come(ctx context.Context, a netip.Addr) (context.Context, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.incoming[a] >= incoming {
		return ctx, status.Errorf(codes.ResourceExhausted, "too many concurrent calls: the limit is %d for one address; try again", incoming)
	}
	l.incoming[a]++
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	context.AfterFunc(ctx, func() {
		cancel()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.incoming[a]--; l.incoming[a] == 0 {
			delete(l.incoming, a)
		}
	})
	return ctx, nil
}

// try returns an error if too many tokens from an address were rejected.
func (l *limits) try(a netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.failures[a]; of != nil && of.Tokens() < 1 {
		return status.Errorf(codes.ResourceExhausted, "too many invalid tokens from %s: wait a few seconds", a)
	}
	return nil
}

func (l *limits) failed(a netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter(l.failures, a, failuresPerSecond, failuresAtOnce).Allow()
}

// mayLog reports whether a refusal may be logged now. This keeps refusals from flooding the
// log.
func (l *limits) mayLog() bool { return l.log.Allow() }

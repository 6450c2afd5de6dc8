package export

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// firstPause and lastPause limit the pauses between attempts, which double. A receiver may ask for a
	// longer pause, up to longestPause.
	firstPause   = 500 * time.Millisecond
	lastPause    = time.Minute
	longestPause = time.Hour
	// patience is how long a receiver may take to answer.
	patience = 15 * time.Second
	// mostRefusals is how often transitions are sent to a receiver that does not accept their content.
	mostRefusals = 10
	// readAgainAfter is the pause after the journal could not be read.
	readAgainAfter = time.Second
	// movedEvery is how often the cursor moves while there is nothing to deliver.
	movedEvery = 10 * time.Second
	// claimedAtOnce is the number of transitions that are claimed at a time if there are other replicas.
	claimedAtOnce = 256
)

// A receiver delivers transitions to another system.
type receiver interface {
	// kinds are the kinds of transitions that it wants; nil for all. atOnce is the largest number that it
	// takes at a time.
	kinds() []pb.Event_Kind
	atOnce() int
	// wants reports whether it is to get a transition.
	wants(t *transition) bool
	// begin announces that the whole state follows. restore takes a part of it that was delivered before
	// the restart, at the latest at a time.
	begin()
	restore(t *transition, at time.Time)
	// deliver delivers some transitions in order, all or none. It is called again with the same ones
	// after an error.
	deliver(ctx context.Context, some []transition) error
	// again returns when deliver has to be called without transitions; zero for never.
	again() time.Time
	// stateful is set if the receiver gets a state, which may be repeated, rather than each transition
	// once.
	stateful() bool
}

// An exporter follows the journal for one receiver.
type exporter struct {
	Journal *journal.Journal
	// Shared and Complete are nil if there are no other replicas.
	Shared   Shared
	Complete func() bool
	Log      *slog.Logger
	Clock    func() time.Time
	name     string // of the cursor
	to       receiver
	phases   phases
	// handover is what the leaders have told; nil if there are no other replicas.
	handover *handover

	mu    sync.Mutex
	stats Stats
	// waiting is the time of the oldest transition that is being delivered; zero if there is none.
	waiting time.Time
	// rejected is why the receiver does not accept transitions. interrupted is why the journal or the
	// ledger cannot be used.
	rejected, interrupted trouble
}

// run exports until ctx ends.
func (x *exporter) run(ctx context.Context) {
	select {
	case <-x.Journal.Opened():
	case <-ctx.Done():
		return
	}
	if x.Journal.Stats().Memory {
		x.Log.Warn("the journal is in memory: what is not delivered when the aggregator ends is not delivered later")
	}
	for ctx.Err() == nil {
		err := x.follow(ctx)
		if ctx.Err() == nil && !errors.Is(err, journal.ErrReplaced) {
			x.Log.Error("cannot export what the journal has: trying again", "error", err)
			x.interrupt(err)
			_ = sleep(ctx, readAgainAfter)
		}
	}
	if err := x.handover.close(ctx); err != nil {
		x.Log.Warn("the next leader may repeat some transitions", "error", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.waiting, x.rejected, x.interrupted = time.Time{}, trouble{}, trouble{}
}

// follow delivers what is recorded, until ctx ends or the journal cannot be used.
func (x *exporter) follow(ctx context.Context) error {
	replaced := x.Journal.Replaced()
	cursor, err := x.Journal.Cursor(x.name)
	if err != nil {
		return err
	}
	at, err := x.begin(ctx, cursor, replaced)
	if err != nil {
		return err
	}
	moved := x.Clock()
	for {
		until, whole, more := x.Journal.Written()
		lost, from, err := x.Journal.Lost(at, until)
		if err != nil {
			return err
		}
		x.lose(lost)
		if from.After(at) { // the receiver gets the state from which on everything is known
			at = from
			if err := x.present(ctx, at); err != nil {
				return err
			}
			if err := cursor.Move(at); err != nil {
				return err
			}
		}
		some, reached, err := x.read(ctx, at, until)
		if err != nil {
			return err
		}
		now := x.Clock()
		if again := x.to.again(); len(some) > 0 || !again.IsZero() && !now.Before(again) {
			if err := x.tell(ctx, some); err != nil {
				return err
			}
		}
		if err := x.told(ctx, reached); err != nil {
			return err
		}
		if len(some) > 0 || now.Sub(moved) >= movedEvery && reached.After(at) {
			if err := cursor.Move(reached); err != nil {
				return err
			}
			moved = now
		}
		x.proceed()
		if at = reached; at.Before(until) {
			continue
		}
		if whole {
			if err := x.correct(ctx, at); err != nil {
				return err
			}
		}
		if err := x.idle(ctx, replaced, more); err != nil {
			return err
		}
	}
}

// begin returns the time from which on the receiver gets what is recorded. Before, the receiver gets the
// present state if it has got nothing yet.
func (x *exporter) begin(ctx context.Context, cursor *journal.Cursor, replaced <-chan struct{}) (at time.Time, err error) {
	x.handover = nil
	if at = cursor.At(); x.Shared != nil {
		if x.handover, err = loadLedger(ctx, x.Shared, x.name); err != nil {
			return at, err
		}
		if !x.handover.from.IsZero() {
			return x.resume(ctx, replaced)
		}
	}
	if !at.IsZero() {
		return at, x.state(ctx, at, func(t transition) {
			x.to.restore(&t, at)
			if x.handover != nil {
				x.handover.known(&t)
			}
		})
	}
	if at, err = x.whole(ctx, replaced); err != nil {
		return at, err
	}
	if x.handover != nil { // if this replica ends before it has told anything, the next one continues here
		if err := x.handover.begin(ctx, at); err != nil {
			return at, err
		}
	}
	if err := x.present(ctx, at); err != nil {
		return at, err
	}
	return at, cursor.Move(at)
}

// resume continues where the former leader has stopped, which may have been this replica. It returns the
// time from which on the records are compared with what was told.
func (x *exporter) resume(ctx context.Context, replaced <-chan struct{}) (at time.Time, err error) {
	if at = x.handover.from; !x.to.stateful() {
		at = at.Add(-overlap)
	}
	if oldest := x.Journal.Oldest(); at.Before(oldest) {
		at = oldest
	}
	gap, err := x.Journal.GapAt(at)
	switch {
	case err != nil:
		return at, err
	case gap == nil:
	case gap.GetUntil() != nil:
		at = gap.GetUntil().AsTime()
	default: // the state at that time will never be known
		if at, err = x.whole(ctx, replaced); err != nil {
			return at, err
		}
	}
	if x.to.stateful() {
		return at, x.state(ctx, at, func(t transition) { x.to.restore(&t, at) })
	}
	return at, x.present(ctx, at)
}

// addNews adds a transition if the receiver has to get it, given what was told.
func (x *exporter) addNews(some []transition, t *transition) []transition {
	if x.handover == nil || x.to.stateful() {
		return append(some, *t)
	}
	if told := x.handover.ended(t); told != nil { // the receiver gets each beginning after the end before
		some = append(some, x.handover.unseenEnd(t.subject, *told, t.at.Add(-time.Microsecond)))
	}
	if x.handover.news(t) {
		some = append(some, *t)
	}
	return some
}

// batch is the number of transitions that are delivered between two writes of what was told.
func (x *exporter) batch() int {
	if x.handover == nil {
		return x.to.atOnce()
	}
	return max(x.to.atOnce(), claimedAtOnce)
}

// tell delivers transitions, and writes down before which ones. There may be none.
func (x *exporter) tell(ctx context.Context, some []transition) error {
	if x.handover != nil && !x.to.stateful() {
		if err := x.handover.claim(ctx, some); err != nil {
			return err
		}
	}
	for {
		n := min(len(some), x.to.atOnce())
		if err := x.deliver(ctx, some[:n]); err != nil {
			return err
		}
		if some = some[n:]; len(some) == 0 {
			return nil
		}
	}
}

// told writes down that everything up to a time was told.
func (x *exporter) told(ctx context.Context, until time.Time) error {
	if x.handover == nil {
		return nil
	}
	return x.handover.told(ctx, until, x.Clock())
}

// idle waits until there is something to do.
func (x *exporter) idle(ctx context.Context, replaced, more <-chan struct{}) error {
	var due <-chan time.Time
	if again := earlier(x.to.again(), x.overdue(x.Clock())); !again.IsZero() {
		timer := time.NewTimer(again.Sub(x.Clock()))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-more:
		return nil
	case <-due:
		return nil
	case <-replaced:
		return journal.ErrReplaced
	case <-ctx.Done():
		return ctx.Err()
	}
}

// earlier returns the earlier of two times; zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// whole waits until the journal has the complete present state, and returns its time.
func (x *exporter) whole(ctx context.Context, replaced <-chan struct{}) (time.Time, error) {
	for {
		until, whole, more := x.Journal.Written()
		if whole {
			return until, nil
		}
		select {
		case <-more:
		case <-replaced:
			return until, journal.ErrReplaced
		case <-ctx.Done():
			return until, ctx.Err()
		}
	}
}

// present delivers the conflicts and findings that there were at a time.
func (x *exporter) present(ctx context.Context, at time.Time) error {
	var all []transition
	if err := x.state(ctx, at, func(t transition) { all = x.addNews(all, &t) }); err != nil {
		return err
	}
	for some := range slices.Chunk(all, x.batch()) {
		if err := x.tell(ctx, some); err != nil {
			return err
		}
		if x.handover != nil { // not all up to a time
			if err := x.told(ctx, x.handover.ledger.Until); err != nil {
				return err
			}
		}
	}
	return x.told(ctx, at)
}

// state calls do with the conflicts and findings that there were at a time.
func (x *exporter) state(ctx context.Context, at time.Time, do func(transition)) error {
	x.phases = make(phases)
	x.to.begin()
	for _, kind := range []pb.Event_Kind{pb.Event_CONFLICT, pb.Event_FINDING} {
		err := x.Journal.At(ctx, kind, at, ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
			if e.GetConflict().GetState() != pb.Conflict_RESOLVED {
				e.Type = pb.Watch_ADDED
				if t := x.phases.transition(e, true); x.to.wants(&t) {
					do(t)
				}
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// read returns the transitions between two times, at most as many as the receiver takes at a time, and
// the time up to which these are all.
func (x *exporter) read(ctx context.Context, after, until time.Time) (some []transition, reached time.Time, err error) {
	if !until.After(after) {
		return nil, after, nil
	}
	reached = until
	q := journal.Query{After: after, Until: until.Add(time.Microsecond), Kinds: x.to.kinds()}
	err = x.Journal.Events(ctx, &q, func(e *pb.Event) bool {
		t := x.phases.transition(e, false)
		if !x.to.wants(&t) {
			return true
		}
		if some = x.addNews(some, &t); len(some) < x.batch() {
			return true
		}
		reached = e.GetTime().AsTime()
		return false
	})
	return some, reached, err
}

// deliver delivers transitions. It tries again until the receiver accepts them, or has refused their
// content several times.
func (x *exporter) deliver(ctx context.Context, some []transition) error {
	x.mu.Lock()
	x.waiting = x.Clock()
	if len(some) > 0 && !some[0].present {
		x.waiting = some[0].at
	}
	x.mu.Unlock()
	refusals := 0
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		limited, cancel := context.WithTimeout(ctx, patience)
		err := x.to.deliver(limited, some)
		cancel()
		if ctx.Err() != nil && err != nil {
			return ctx.Err()
		}
		var answer *answerError
		partial := errors.As(err, &answer) && answer.accepted
		if err == nil || partial {
			x.delivered(len(some), answer)
			return nil
		}
		x.failed(err)
		wait := pause/2 + rand.N(pause/2)
		if answer != nil {
			wait = max(wait, min(answer.retryAfter, longestPause))
			if answer.content() {
				if refusals++; refusals == mostRefusals {
					x.refuse(some, err)
					return nil
				}
			}
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// sleep waits for some time.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

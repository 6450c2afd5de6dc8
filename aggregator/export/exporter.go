package export

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
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
	// overlap is the time before a change of leader of which the next leader delivers everything: it does not
	// know what the former one has delivered.
	overlap = 5 * time.Minute
)

// A receiver is another system to which transitions are delivered.
type receiver struct {
	*client
	// kinds are the kinds of transitions that it wants; nil for all. wants reports whether it wants one of
	// them; nil for all. atOnce is the largest number that it takes at a time.
	kinds  []pb.Event_Kind
	wants  func(*transition) bool
	atOnce int
	// deliver delivers some transitions in order, all or none. It is called again with the same ones
	// after an error.
	deliver func(ctx context.Context, some []transition) error
	// state is nil if the receiver gets each transition. Otherwise it gets the state that they lead to.
	state state
}

// state is what a receiver makes of the transitions.
type state interface {
	// begin announces that the whole state follows. restore takes a part of it that was delivered before
	// the restart, at the latest at a time.
	begin()
	restore(t *transition, at time.Time)
	// again returns when deliver has to be called without transitions; zero for never.
	again() time.Time
}

// An exporter follows the journal for one receiver.
type exporter struct {
	Journal *journal.Journal
	Log     *slog.Logger
	Clock   func() time.Time
	// replicas is set if another replica may have led before this one.
	replicas bool
	name     string // of the cursor
	to       *receiver
	phases   phases

	mu    sync.Mutex
	stats Stats
	// running is set while run runs.
	running bool
	// waiting is the time of the oldest transition that is being delivered; zero if there is none.
	waiting time.Time
	// rejected is why the receiver does not accept transitions, since a time; nil if it does.
	rejected      error
	rejectedSince time.Time
}

// run exports until ctx ends.
func (x *exporter) run(ctx context.Context) {
	select {
	case <-x.Journal.Opened():
	case <-ctx.Done():
		return
	}
	x.runs(true)
	defer x.runs(false)
	if x.Journal.Stats().Memory {
		x.Log.Warn("the journal is in memory: what is not delivered when the aggregator ends is not delivered later")
	}
	for ctx.Err() == nil {
		err := x.follow(ctx)
		if ctx.Err() == nil && !errors.Is(err, journal.ErrReplaced) {
			x.Log.Error("cannot export what the journal has: trying again", "error", err)
			_ = sleep(ctx, readAgainAfter)
		}
	}
}

// runs notes whether the exporter runs.
func (x *exporter) runs(running bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.running, x.waiting, x.rejected = running, time.Time{}, nil
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
		until, _, more := x.Journal.Written()
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
		if again := x.again(); len(some) > 0 || !again.IsZero() && !now.Before(again) {
			if err := x.deliver(ctx, some); err != nil {
				return err
			}
		}
		if len(some) > 0 || now.Sub(moved) >= movedEvery && reached.After(at) {
			if err := cursor.Move(reached); err != nil {
				return err
			}
			moved = now
		}
		if at = reached; at.Before(until) {
			continue
		}
		if err := x.idle(ctx, replaced, more); err != nil {
			return err
		}
	}
}

// begin returns the time from which on the receiver gets what is recorded. The receiver gets the conflicts and
// findings of that time if it has got nothing yet, or if another replica may not have delivered them.
func (x *exporter) begin(ctx context.Context, cursor *journal.Cursor, replaced <-chan struct{}) (at time.Time, err error) {
	at = cursor.At()
	switch {
	case at.IsZero():
		for whole := false; !whole; { // wait for the complete present state
			var more <-chan struct{}
			if at, whole, more = x.Journal.Written(); whole {
				break
			}
			select {
			case <-more:
			case <-replaced:
				return at, journal.ErrReplaced
			case <-ctx.Done():
				return at, ctx.Err()
			}
		}
		if x.replicas { // another replica may have led
			at = x.recent(at)
		}
	case !x.replicas || x.to.state != nil:
		all, err := x.stateAt(ctx, at)
		for i := range all {
			if x.to.state != nil {
				x.to.state.restore(&all[i], at)
			}
		}
		return at, err
	}
	if err := x.present(ctx, at); err != nil {
		return at, err
	}
	return at, cursor.Move(at)
}

// standby moves the cursor of a replica that does not lead, so that it stays some time behind.
func (x *exporter) standby() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	to, whole, _ := x.Journal.Written()
	if x.running || !whole {
		return nil
	}
	cursor, err := x.Journal.Cursor(x.name)
	if err != nil {
		return err
	}
	if to = x.recent(to); !to.After(cursor.At()) {
		return nil
	}
	return cursor.Move(to)
}

// recent returns the time before which everything was delivered by the former leader, if this replica becomes the
// leader now. The journal has been written until a time.
func (x *exporter) recent(until time.Time) time.Time {
	at := x.Clock().Add(-overlap)
	if oldest := x.Journal.Oldest(); at.Before(oldest) {
		at = oldest
	}
	if at.After(until) {
		return until
	}
	return at
}

// again returns when the receiver has to get its state again; zero for never.
func (x *exporter) again() time.Time {
	if x.to.state == nil {
		return time.Time{}
	}
	return x.to.state.again()
}

// idle waits until there is something to do.
func (x *exporter) idle(ctx context.Context, replaced, more <-chan struct{}) error {
	var due <-chan time.Time
	if again := x.again(); !again.IsZero() {
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

// present delivers the conflicts and findings that there were at a time.
func (x *exporter) present(ctx context.Context, at time.Time) error {
	all, err := x.stateAt(ctx, at)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(all, x.to.atOnce) {
		if err := x.deliver(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// stateAt returns the conflicts and findings that there were at a time.
func (x *exporter) stateAt(ctx context.Context, at time.Time) (all []transition, err error) {
	x.phases = make(phases)
	if x.to.state != nil {
		x.to.state.begin()
	}
	var active []*pb.Event
	for _, kind := range []pb.Event_Kind{pb.Event_CONFLICT, pb.Event_FINDING} {
		if err := x.Journal.At(ctx, kind, at, ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
			if e.GetConflict().GetState() == pb.Conflict_RESOLVED {
				x.phases.transition(e, true)
			} else {
				active = append(active, e)
			}
			return true
		}); err != nil {
			return nil, err
		}
	}
	for _, e := range active {
		if e.GetConflict().GetState() == pb.Conflict_SUSPECTED {
			if err := x.recall(ctx, e.GetConflict(), at); err != nil {
				return nil, err
			}
		}
		e.Type = pb.Watch_ADDED
		if t := x.phases.transition(e, true); x.wants(&t) {
			all = append(all, t)
		}
	}
	return all, nil
}

// recall reads whether a suspected conflict was confirmed before.
func (x *exporter) recall(ctx context.Context, c *pb.Conflict, at time.Time) error {
	addr, err := netip.ParseAddr(c.GetAddress())
	if err != nil {
		return err
	}
	q := journal.Query{Since: c.GetDetectedAt().AsTime(), Until: at, Kind: pb.Event_CONFLICT, Span: ipam.Range{First: addr, Last: addr}}
	return x.Journal.Events(ctx, &q, func(e *pb.Event) bool {
		if e.GetConflict().GetId() == c.GetId() {
			x.phases.transition(e, false)
		}
		return true
	})
}

func (x *exporter) wants(t *transition) bool { return x.to.wants == nil || x.to.wants(t) }

// read returns the transitions between two times, at most as many as the receiver takes at a time, and
// the time up to which these are all.
func (x *exporter) read(ctx context.Context, after, until time.Time) (some []transition, reached time.Time, err error) {
	if !until.After(after) {
		return nil, after, nil
	}
	reached = until
	q := journal.Query{After: after, Until: until.Add(time.Microsecond), Kinds: x.to.kinds}
	err = x.Journal.Events(ctx, &q, func(e *pb.Event) bool {
		if t := x.phases.transition(e, false); x.wants(&t) {
			some = append(some, t)
		}
		if len(some) < x.to.atOnce {
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

package export

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
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
	// complainAfter is how long a receiver may fail before that is a problem.
	complainAfter = time.Minute
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
	// alerts is nil if the receiver gets each transition. Otherwise it gets the state that they lead to.
	alerts *alertmanager
}

// An exporter follows the journal for one receiver.
type exporter struct {
	journal.Delivery
	Journal *journal.Journal
	// replicas is set if another replica may have led before this one.
	replicas bool
	// kind is otlp, alertmanager or webhook, and name that of the cursor.
	kind, name string
	to         *receiver
	phases     phases
}

// run follows the journal until ctx ends. now returns the role of this replica.
func (x *exporter) run(ctx context.Context, now func() role) {
	select {
	case <-x.Journal.Opened():
	case <-ctx.Done():
		return
	}
	for ctx.Err() == nil {
		as := now()
		term, end := context.WithCancel(ctx)
		go func() {
			select {
			case <-as.changed:
			case <-term.Done():
			}
			end()
		}()
		x.Reset()
		if as.leads && x.Journal.Stats().Memory {
			x.Log.Warn("the journal is in memory: what is not delivered when the aggregator ends is not delivered later")
		}
		for term.Err() == nil {
			switch err := x.follow(term, as); {
			case err == nil: // everything is delivered
				<-term.Done()
			case term.Err() == nil && !errors.Is(err, journal.ErrReplaced):
				x.Log.Error("cannot export what the journal has: trying again", "error", err)
				_ = journal.Sleep(term, readAgainAfter)
			}
		}
		end()
		x.Reset()
	}
}

// follow delivers what is recorded until ctx ends or the journal cannot be used. A replica that does not lead delivers
// what it recorded before that, if it led then, and returns nil.
func (x *exporter) follow(ctx context.Context, as role) error {
	replaced := x.Journal.Replaced()
	cursor, err := x.Journal.Cursor(x.name)
	if err != nil {
		return err
	}
	if !as.leads {
		if !x.replicas || x.to.alerts != nil || cursor.At().IsZero() {
			return nil
		}
		if err := x.flush(ctx, replaced); err != nil {
			return err
		}
	}
	at, err := x.begin(ctx, cursor, replaced)
	if err != nil {
		return err
	}
	moved := x.Clock()
	for {
		until, _, more := x.Journal.Written()
		if !as.leads && until.After(as.since) {
			until = as.since
		}
		lost, from, err := x.Journal.Lost(at, until)
		if err != nil {
			return err
		}
		x.Lose(lost)
		if from.After(at) { // the receiver gets the state from which on everything is known
			at = from
			if err := x.present(ctx, cursor, at); err != nil {
				return err
			}
		}
		some, reached, err := x.read(ctx, at, until)
		if err != nil {
			return err
		}
		if x.Journal.Dropped(at) { // before all of it was read, perhaps
			continue
		}
		now := x.Clock()
		due := x.to.alerts.due()
		if len(some) > 0 || !due.IsZero() && !now.Before(due) {
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
		if !as.leads {
			return cursor.Clear()
		}
		var again <-chan time.Time
		if due := x.to.alerts.due(); !due.IsZero() {
			again = time.After(due.Sub(x.Clock()))
		}
		select {
		case <-more:
		case <-again:
		case <-replaced:
			return journal.ErrReplaced
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// begin returns the time from which on the receiver gets what is recorded. It gets the conflicts and findings of that
// time if this replica has delivered nothing yet.
func (x *exporter) begin(ctx context.Context, cursor *journal.Cursor, replaced <-chan struct{}) (at time.Time, err error) {
	at = cursor.At()
	known := !at.IsZero()
	if !known {
		if at, err = x.Journal.Whole(ctx, replaced); err != nil {
			return at, err
		}
	}
	if x.replicas && !known { // another replica may have led
		at = x.recent(at)
	}
	if !known && (x.to.alerts == nil || !x.replicas) {
		return at, x.present(ctx, cursor, at)
	}
	all, err := x.stateAt(ctx, at)
	if a := x.to.alerts; a != nil { // it was sent the alerts of this state before the restart
		for i := range all {
			a.apply(&all[i])
		}
		a.known = a.alerts(at)
	}
	return at, err
}

// flush waits until everything that has happened is written.
func (x *exporter) flush(ctx context.Context, replaced <-chan struct{}) error {
	if _, err := x.Journal.Whole(ctx, replaced); err != nil {
		return err
	}
	written := make(chan error, 1)
	go func() { written <- x.Journal.Feed(pb.Event_CONFLICT).Flush() }() // which may wait for space on the disk
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
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

// present delivers the conflicts and findings that there were at a time, and moves the cursor to it.
func (x *exporter) present(ctx context.Context, cursor *journal.Cursor, at time.Time) error {
	all, err := x.stateAt(ctx, at)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(all, x.to.atOnce) {
		if err := x.deliver(ctx, some); err != nil {
			return err
		}
	}
	return cursor.Move(at)
}

func (x *exporter) stateAt(ctx context.Context, at time.Time) (all []transition, err error) {
	x.phases = make(phases)
	x.to.alerts.begin()
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
		if c := e.GetConflict(); c.GetState() == pb.Conflict_SUSPECTED { // perhaps it was confirmed before
			addr, err := netip.ParseAddr(c.GetAddress())
			if err != nil {
				return nil, err
			}
			q := journal.Query{Since: c.GetDetectedAt().AsTime(), Until: at, Kind: pb.Event_CONFLICT, Span: ipam.Range{First: addr, Last: addr}}
			if err := x.Journal.Events(ctx, &q, func(e *pb.Event) bool {
				if e.GetConflict().GetId() == c.GetId() {
					x.phases.transition(e, false)
				}
				return true
			}); err != nil {
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
	if len(some) > 0 && !some[0].present {
		x.Wait(some[0].at)
	} else {
		x.Wait(x.Clock())
	}
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
			refused := 0
			if partial {
				refused = min(len(some), answer.refused)
				x.Refuse(refused, "error", answer)
			}
			x.Deliver(len(some) - refused)
			return nil
		}
		x.Fail(err)
		wait := pause/2 + rand.N(pause/2)
		if answer != nil {
			wait = max(wait, min(answer.retryAfter, longestPause))
			if answer.content() {
				if refusals++; refusals == mostRefusals {
					x.Refuse(len(some), "first_id", append(some, transition{})[0].id, "error", err)
					return nil
				}
			}
		}
		if err := journal.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// problem describes why the receiver does not get transitions; empty if it does, or if that may be a
// matter of seconds.
func (x *exporter) problem() string {
	since, waiting, err := x.Failing()
	remedy := ""
	if answer, ok := errors.AsType[*answerError](err); ok {
		remedy = answer.remedy()
	}
	if err == nil || remedy == "" && x.Clock().Sub(since) < complainAfter {
		return ""
	}
	text := fmt.Sprintf("%s at %s has not accepted what happened since %s, which is sent as soon as it does: %s",
		titles[x.kind], x.to.host, waiting.UTC().Format(time.RFC3339), err)
	if remedy != "" {
		text += ": " + remedy
	}
	return text
}

// titles are the names of the receivers in sentences.
var titles = map[string]string{"otlp": "the OpenTelemetry receiver", "alertmanager": "Alertmanager", "webhook": "the webhook"}

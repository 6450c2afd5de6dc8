package stream

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// overlap is the time before the last message of another process whose transitions a new leader publishes again.
// Replicas learn of a change at slightly different times, and their clocks differ.
const overlap = 2 * time.Second

// A following is a period in which a publisher is the only one of a stream.
type following struct {
	*Publisher
	st       *store
	replaced <-chan struct{}
	// number is that of the last message, and at is the time up to which everything is published.
	number uint64
	at     time.Time
	// stateAt is when the last state was published, and stateFrom the number of its first message.
	stateAt   time.Time
	stateFrom uint64
	// covered is the coverage that was published last, and when.
	covered   *pb.Coverage
	coveredAt time.Time
	// skipped is the number of foreign messages before the last state.
	skipped uint64
	// lookedAt is when it was last looked what the stream has.
	lookedAt time.Time
}

// begin continues what this journal has published. After another leader, it publishes what happened since then, and
// the state, so that readers know the same as this replica.
func (f *following) begin(ctx context.Context) error {
	_, number, last, err := f.st.state(ctx)
	if err != nil {
		return err
	}
	f.number = number
	now, err := f.Journal.Whole(ctx, f.replaced)
	if err != nil {
		return err
	}
	f.at = last.GetUntil().AsTime()
	if last == nil || last.GetSequence() != number || last.GetStream() != f.st.created ||
		last.GetPart() == pb.TransitionBatch_STATE_BEGINS || last.GetPart() == pb.TransitionBatch_STATE {
		return f.publishState(ctx, now)
	}
	writer, known, err := f.Journal.Writer(f.at)
	if err != nil {
		return err
	}
	own := last.GetInstance() == f.Instance || known && writer == last.GetInstance()
	if !own {
		f.at = f.at.Add(-overlap)
	}
	_, from, err := f.Journal.Lost(f.at, f.at)
	if err != nil {
		return err
	}
	gap, err := f.Journal.GapAt(f.at)
	switch {
	case err != nil:
		return err
	case f.at.Before(f.Journal.Oldest()), from.After(f.at), !own && gap != nil:
		return f.publishState(ctx, now)
	}
	if own {
		b, err := f.st.lastState(ctx)
		if err == nil && b != nil {
			f.stateAt, f.stateFrom = b.GetUntil().AsTime(), b.GetSequence()
			return nil
		}
		return errors.Join(err, f.publishState(ctx, now))
	}
	f.Delivery.Log.Info("continuing where the former leader has stopped", "from", f.at)
	for f.at.Before(now) {
		if err := f.publishSome(ctx, now); err != nil {
			return err
		}
	}
	return f.publishState(ctx, now)
}

func (f *following) run(ctx context.Context) error {
	look := time.NewTicker(coverageEvery)
	defer look.Stop()
	for {
		if err := f.look(ctx); err != nil && !errors.Is(err, errPruned) {
			return err
		}
		until, _, more := f.Journal.Written()
		lost, from, err := f.Journal.Lost(f.at, until)
		if err != nil {
			return err
		}
		f.Lose(lost)
		if len(lost) > 0 {
			f.stateAt = time.Time{} // the state is published again, to be sure
		}
		if from.After(f.at) {
			if err := f.publishState(ctx, from); err != nil && !errors.Is(err, errPruned) {
				return err
			}
			continue
		}
		if until.After(f.at) {
			if err := f.publishSome(ctx, until); err != nil {
				return err
			}
			continue
		}
		f.Wait(time.Time{})
		now, coverage := f.Delivery.Clock(), f.Coverage()
		changed := !proto.Equal(coverage, f.covered) && now.Sub(f.coveredAt) >= coverageEvery
		if changed || now.Sub(f.coveredAt) >= coveredEvery { // so that readers know that the cluster is alive
			b := f.message()
			b.Coverage = coverage
			if err := f.publish(ctx, b); err != nil {
				return err
			}
		}
		select {
		case <-more:
		case <-look.C:
		case <-f.replaced:
			return journal.ErrReplaced
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// mostRead is the number of messages for which transitions are read at once: each reading begins with all
// that was recorded at about the same time.
const mostRead = 64

func (f *following) publishSome(ctx context.Context, until time.Time) error {
	var all []*pb.TransitionBatch
	b, reached, bytes, full := f.message(), f.at, 0, false
	end := func() {
		if len(b.Transitions) > 0 { // otherwise, the next message says how far it is complete
			b.Until = timestamppb.New(reached)
			all = append(all, b)
			b, bytes = f.message(), 0
		}
		full = len(all) >= mostRead
	}
	item := uint32(0)
	q := journal.Query{After: f.at, Until: until.Add(time.Microsecond), Item: func(n uint32) { item = n }}
	err := f.Journal.Follow(ctx, &q, func(at time.Time, e *pb.Event, g *pb.Gap) bool {
		t := &pb.Transition{Event: e, Gap: g}
		if e != nil {
			t.Item = item
		}
		size := proto.Size(t)
		if bytes+size > mostBytes && bytes > 0 {
			if end(); full {
				return false // it is the first one of the next message
			}
		}
		switch {
		case size > largest:
			f.Refuse(1, "time", at, "error", "it is too large for NATS")
		default:
			b.Transitions = append(b.Transitions, t)
			bytes += size
		}
		if reached = at; len(b.Transitions) == mostTransitions {
			end()
		}
		return !full
	})
	if err = errors.Join(f.current(), err); err != nil || f.Journal.Dropped(f.at) { // before all of it was read, perhaps
		return err
	}
	if !full {
		reached = until
		end()
	}
	for _, b := range all {
		if err := f.publish(ctx, b); err != nil {
			return err
		}
	}
	f.at = reached
	return nil
}

func (f *following) message() *pb.TransitionBatch {
	return &pb.TransitionBatch{
		Cluster: f.Cluster, Stream: f.st.created, Instance: f.Instance, Until: timestamppb.New(f.at),
		Coverage: f.Coverage(),
	}
}

func (f *following) publish(ctx context.Context, b *pb.TransitionBatch) error {
	b.Sequence = f.number + 1
	f.Wait(f.Delivery.Clock())
	if some := b.GetTransitions(); len(some) > 0 && b.GetPart() == pb.TransitionBatch_UNSPECIFIED && some[0].GetEvent() != nil {
		f.Wait(some[0].GetEvent().GetTime().AsTime())
	}
	if err := f.st.publish(ctx, b, f.fail); err != nil {
		return err
	}
	f.number, f.at = b.GetSequence(), b.GetUntil().AsTime()
	f.covered, f.coveredAt = b.GetCoverage(), f.Delivery.Clock()
	f.Deliver(len(b.GetTransitions()))
	return nil
}

// current returns an error if the journal has started again, so that what was read last may be from
// another store.
func (f *following) current() error {
	select {
	case <-f.replaced:
		return journal.ErrReplaced
	default:
		return nil
	}
}

var errPruned = errors.New("the journal has dropped the state before all of it was published")

// publishState publishes the complete state at a time, from which on everything is published. While it
// publishes a message, it does not read the journal: the journal waits for its readers.
func (f *following) publishState(ctx context.Context, at time.Time) error {
	f.at = at
	first, skipped := f.number+1, f.Publisher.skipped()
	b := f.message()
	b.Part = pb.TransitionBatch_STATE_BEGINS
	for _, kind := range []pb.Event_Kind{pb.Event_NODE, pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING} {
		position := journal.Position{}
		for {
			full, err := f.addState(ctx, b, kind, at, &position)
			if err != nil {
				return err
			}
			if !full {
				break
			}
			if err := f.publish(ctx, b); err != nil {
				return err
			}
			b = f.message()
			b.Part = pb.TransitionBatch_STATE
		}
	}
	if b.Part == pb.TransitionBatch_STATE_BEGINS { // a state has at least two messages
		if err := f.publish(ctx, b); err != nil {
			return err
		}
		b = f.message()
	}
	b.Part = pb.TransitionBatch_STATE_ENDS
	if err := f.publish(ctx, b); err != nil {
		return err
	}
	f.stateAt, f.stateFrom, f.skipped = f.Delivery.Clock(), first, skipped
	f.Delivery.Log.Info("published the complete state", "at", at, "messages", f.number-first+1)
	return nil
}

// addState adds the items of a kind at a time to a message, from a position on, which it moves. It
// reports whether the message is full, so that other items may follow.
func (f *following) addState(ctx context.Context, b *pb.TransitionBatch, kind pb.Event_Kind, at time.Time, position *journal.Position) (full bool, err error) {
	bytes := 0
	for _, t := range b.GetTransitions() { // of other kinds
		bytes += proto.Size(t)
	}
	err = f.Journal.At(ctx, kind, at, ipam.Range{}, *position, func(e *pb.Event, p journal.Position) bool {
		e.Type, e.Present = pb.Watch_ADDED, true
		t := &pb.Transition{Event: e, Item: p.Item()}
		switch size := proto.Size(t); {
		case size > largest:
			f.Refuse(1, "time", at, "error", "it is too large for NATS")
		case bytes > 0 && bytes+size > mostBytes || len(b.GetTransitions()) == mostTransitions:
			full = true
			return false // it is the first one of the next message
		default:
			b.Transitions = append(b.Transitions, t)
			bytes += size
		}
		*position = p
		return true
	})
	if err = errors.Join(f.current(), err); err == nil && at.Before(f.Journal.Oldest()) {
		err = errPruned
	}
	return full, err
}

// look publishes the state again now and then, and if the stream has lost the last one. It has the stream
// kept by more servers.
func (f *following) look(ctx context.Context) error {
	now := f.Delivery.Clock()
	if now.Sub(f.lookedAt) < lookAtStream || !f.st.conn.IsConnected() {
		return nil
	}
	f.lookedAt = now
	first, _, _, err := f.st.state(ctx)
	if err == nil {
		err = f.st.extend(ctx)
	}
	if err != nil {
		if !f.st.conn.IsConnected() { // NATS went away
			return nil
		}
		return err
	}
	age := now.Sub(f.stateAt)
	lost := first > f.stateFrom
	small := lost && age < smallWithin // it would be lost again
	f.mu.Lock()
	f.small = small
	f.mu.Unlock()
	every := stateEvery
	if f.st.age != 0 {
		every = min(every, f.st.age/2)
	}
	if lost && !small || age >= every || f.skipped != f.Publisher.skipped() { // readers may have begun meanwhile
		return f.publishState(ctx, f.at)
	}
	return nil
}

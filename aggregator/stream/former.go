package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// overlap is how long before the last message of the former leader a new leader begins to compare
	// what it has recorded with what was published. Replicas learn of a change at slightly different
	// times, and their clocks differ.
	overlap = 30 * time.Second
	// skew is the largest difference between the times at which two replicas record a change.
	skew = 2 * time.Second
	// mostFormer is the largest number of transitions that are compared.
	mostFormer = 500_000
)

// A change is what two replicas record in the same way when one thing happens.
type change struct {
	kind pb.Event_Kind
	// what identifies the owner, conflict, finding or node, and state is what it has become.
	what  string
	item  uint32
	state int32
}

func changeOf(t *pb.Transition) change {
	e := t.GetEvent()
	c := change{kind: e.GetKind(), state: 1}
	if e.GetType() == pb.Watch_REMOVED {
		c.state = 0
	}
	switch {
	case e.GetConflict() != nil:
		c.what, c.state = e.GetConflict().GetId(), int32(e.GetConflict().GetState())
	case e.GetFinding() != nil:
		c.what = e.GetFinding().GetId()
	case e.GetNode() != nil:
		c.what, c.state = e.GetNode().GetName(), int32(e.GetNode().GetState())
	default:
		c.what, c.item = e.GetOwner().GetAddress(), t.GetItem()
	}
	return c
}

// former is what the former leader has published shortly before its end.
type former struct {
	// from is the time from which on it is known, and until is the time up to which the former leader has
	// published everything.
	from, until time.Time
	published   map[change]int
}

// has reports whether a transition was published by the former leader. It is asked once for each.
func (f *former) has(t *pb.Transition, at time.Time) bool {
	if f == nil {
		return false
	}
	if t.GetGap() != nil { // the former leader may have had none
		return !at.After(f.until)
	}
	c := changeOf(t)
	if f.published[c] > 0 {
		f.published[c]--
		return true
	}
	return !at.After(f.from.Add(skew)) // the former leader may have recorded it before the overlap
}

// over reports whether nothing recorded after a time can be among what was published.
func (f *former) over(at time.Time) bool { return f != nil && at.After(f.until.Add(overlap)) }

// former reads what was published shortly before a time; nil if that is too much.
func (st *store) former(ctx context.Context, until time.Time) (*former, error) {
	f := &former{from: until.Add(-overlap), until: until, published: make(map[change]int)}
	// Nothing is in the stream before it has happened, but the clock of the server may be behind.
	begin := f.from.Add(-overlap)
	n := 0
	err := st.read(ctx, begin, func(b *pb.TransitionBatch) bool {
		if b.GetPart() != pb.TransitionBatch_UNSPECIFIED {
			return true
		}
		for _, t := range b.GetTransitions() {
			if t.GetEvent() != nil && !t.GetEvent().GetTime().AsTime().Before(f.from) {
				f.published[changeOf(t)]++
				n++
			}
		}
		return n <= mostFormer
	})
	if n > mostFormer {
		return nil, err
	}
	return f, err
}

// lastState returns the first message of the last state in the stream, without its content; nil if there
// is none, or if it is not complete.
func (st *store) lastState(ctx context.Context) (*pb.TransitionBatch, error) {
	begins, err := st.last(ctx, contentBegins)
	if begins == nil || err != nil {
		return nil, err
	}
	ends, err := st.last(ctx, contentEnds)
	if err != nil || ends.GetSequence() < begins.GetSequence() {
		return nil, err
	}
	begins.Transitions = nil
	return begins, nil
}

// last returns the last message with a content; nil if there is none.
func (st *store) last(ctx context.Context, content string) (*pb.TransitionBatch, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	raw, err := st.stream.GetLastMsgForSubject(ctx, root+token(st.cluster)+"."+content)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the last state in the stream: %w", err)
	}
	return decode(raw.Data)
}

// read calls do with the messages since a time that the stream has now, in order, until it returns false.
func (st *store) read(ctx context.Context, since time.Time, do func(*pb.TransitionBatch) bool) error {
	consumer, err := st.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerKept,
	})
	if err != nil {
		return fmt.Errorf("read the stream: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = st.stream.DeleteConsumer(ctx, consumer.CachedInfo().Name) // otherwise the server removes it
	}()
	for {
		some, err := consumer.FetchNoWait(readAtOnce)
		if err != nil {
			return fmt.Errorf("read the stream: %w", err)
		}
		n := 0
		for m := range some.Messages() {
			n++
			b, err := decode(m.Data())
			if err != nil {
				return fmt.Errorf("read a message of the stream, which something else has written: %w", err)
			}
			if !do(b) {
				return nil
			}
		}
		if err := some.Error(); err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
			return fmt.Errorf("read the stream: %w", err)
		}
		if n == 0 {
			return ctx.Err()
		}
	}
}

const (
	// readAtOnce is the number of messages that are read at a time.
	readAtOnce = 64
	// consumerKept is how long the server keeps a reader that has gone away.
	consumerKept = time.Minute
)

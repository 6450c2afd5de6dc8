package share

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// logAge is how long the log keeps messages, and logSize is the number of bytes that it may have. A
	// replica that does not run for longer asks the others for their state.
	logAge  = 24 * time.Hour
	logSize = 4 << 30
	// mostTransitions and mostBytes limit a message of the log.
	mostTransitions = 512
	mostBytes       = 256 << 10
	// mostWaiting is the number of bytes that may wait to be published while NATS is away. Beyond it, the
	// state is published instead when NATS is back.
	mostWaiting = 64 << 20
	// untidyAbove is the number of waiting bytes above which their memory is released afterwards.
	untidyAbove = 4 << 20
	// stateWithin is how long a replica that has missed messages waits for the state of the others.
	stateWithin = 15 * time.Second
	// largest is the size of the largest transition that is published.
	largest = 900 << 10
)

// LogName returns the name of the stream from which the replicas of a cluster fill their journals.
func LogName(cluster string) string { return "ipwitness_log_" + stream.Token(cluster) }

func logSubject(cluster string) string { return "ipwitness_log." + stream.Token(cluster) }

// openLog opens the log, and creates it if it does not exist.
func (s *Share) openLog(ctx context.Context) (st jetstream.Stream, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if st, err = s.link.JetStream().Stream(ctx, LogName(s.Cluster)); !errors.Is(err, jetstream.ErrStreamNotFound) {
		return st, err
	}
	cfg := jetstream.StreamConfig{
		Name: LogName(s.Cluster), Description: "log of the replicas of the cluster " + s.Cluster, Subjects: []string{logSubject(s.Cluster)},
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, MaxAge: logAge, MaxBytes: logSize, DenyDelete: true,
	}
	for _, cfg.Replicas = range []int{3, 1} {
		if st, err = s.link.JetStream().CreateStream(ctx, cfg); err == nil || !stream.FewServers(err) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create the stream %s: %w", cfg.Name, err)
	}
	return st, nil
}

// outbox fills messages. One goroutine uses it.
type outbox struct {
	// open is the message that is being filled; nil if there is none.
	open *pb.ShareBatch
	// size is that of open.
	size int
	// number is that of the last message.
	number uint64
}

// add adds a transition to a message of a part and a kind. It returns a message that is full.
func (o *outbox) add(s *Share, part pb.ShareBatch_Part, kind pb.Event_Kind, t *pb.Transition) (full *pb.ShareBatch) {
	size := proto.Size(t)
	if o.open != nil && (o.open.GetPart() != part || o.open.GetKind() != kind || o.size+size > mostBytes || len(o.open.Transitions) == mostTransitions) {
		full = o.take()
	}
	if o.open == nil {
		o.open = o.begin(s, part, kind)
	}
	if size > largest {
		s.Log.Error("a change is too large for the log of the replicas: their history lacks it", "bytes", size)
		return full
	}
	o.open.Transitions = append(o.open.Transitions, t)
	o.size += size
	return full
}

// begin returns the next message.
func (o *outbox) begin(s *Share, part pb.ShareBatch_Part, kind pb.Event_Kind) *pb.ShareBatch {
	o.number++
	return &pb.ShareBatch{Replica: s.Replica, Instance: s.Instance, Number: o.number, Part: part, Kind: kind}
}

// take returns the message that is being filled; nil if there is none.
func (o *outbox) take() *pb.ShareBatch {
	m := o.open
	o.open, o.size = nil, 0
	return m
}

// post passes a message to the publisher. If too much waits, everything that waits is dropped, and the state
// is published instead.
func (s *Share) post(m *pb.ShareBatch) {
	if m == nil {
		return
	}
	raw, err := proto.Marshal(m)
	if err != nil {
		s.Log.Error("cannot encode changes for the other replicas: their history lacks them", "error", err)
		return
	}
	s.mail.mu.Lock()
	defer s.mail.mu.Unlock()
	if s.mail.bytes+len(raw) > mostWaiting {
		if !s.mail.overflown {
			s.Log.Warn("too many changes wait for NATS: the state is published instead when it is back")
		}
		s.mail.overflown, s.mail.all, s.mail.bytes = true, nil, 0
		s.mail.cut = map[pb.Event_Kind]bool{pb.Event_OWNER: true, pb.Event_CONFLICT: true, pb.Event_FINDING: true, pb.Event_NODE: true}
	}
	switch {
	case s.mail.overflown: // the state is published when NATS is back
		return
	case m.GetPart() == pb.ShareBatch_BEGINS:
		delete(s.mail.cut, m.GetKind())
	case s.mail.cut[m.GetKind()]:
		return
	}
	s.mail.all = append(s.mail.all, letter{fmt.Sprintf("%d-%d", m.GetInstance(), m.GetNumber()), raw})
	s.mail.bytes += len(raw)
	s.mail.peak = max(s.mail.peak, s.mail.bytes)
	select {
	case s.mail.wake <- struct{}{}:
	default:
	}
}

// room waits until there is room for a part of a state, as long as messages are published.
func (s *Share) room(ctx context.Context) {
	for s.link.Conn().IsConnected() {
		s.mail.mu.Lock()
		waiting := s.mail.bytes
		s.mail.mu.Unlock()
		if waiting < mostWaiting/2 || sleep(ctx, lookEvery) != nil {
			return
		}
	}
}

// publish publishes what is posted until ctx ends.
func (s *Share) publish(ctx context.Context) {
	for ctx.Err() == nil {
		s.mail.mu.Lock()
		var m letter
		if len(s.mail.all) > 0 {
			m = s.mail.all[0]
		}
		overflown := s.mail.overflown
		s.mail.mu.Unlock()
		switch {
		case m.raw == nil && overflown && s.link.Conn().IsConnected():
			s.mail.mu.Lock()
			s.mail.overflown = false
			s.mail.mu.Unlock()
			s.Restate()
			continue
		case m.raw == nil:
			select {
			case <-s.mail.wake:
			case <-time.After(againAfter):
			case <-ctx.Done():
			}
			continue
		}
		if err := s.publishOne(ctx, m); err != nil {
			s.Log.Debug("cannot publish to the log of the replicas: trying again", "error", err)
			_ = sleep(ctx, againAfter)
			continue
		}
		s.mail.mu.Lock()
		if len(s.mail.all) > 0 && s.mail.all[0].id == m.id {
			s.mail.all[0] = letter{}
			s.mail.all = s.mail.all[1:]
			s.mail.bytes -= len(m.raw)
		}
		if s.mail.bytes == 0 {
			if s.mail.peak > untidyAbove {
				s.Untidy()
			}
			s.mail.all, s.mail.peak = nil, 0
		}
		s.mail.mu.Unlock()
	}
}

// publishOne publishes a message. JetStream recognizes one that is published again.
func (s *Share) publishOne(ctx context.Context, m letter) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := s.link.JetStream().Publish(ctx, logSubject(s.Cluster), m.raw, jetstream.WithMsgID(m.id))
	return err
}

// alive returns the names of the other replicas that have a lease.
func (s *Share) alive(ctx context.Context) (names []string, err error) {
	kv, err := s.openBucket(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	prefix := stream.Token(s.Cluster) + "."
	keys, err := kv.ListKeysFiltered(ctx, prefix+"*")
	if err != nil {
		return nil, err
	}
	for key := range keys.Keys() {
		if name := stream.NameOf(strings.TrimPrefix(key, prefix)); name != s.Replica {
			names = append(names, name)
		}
	}
	return names, nil
}

// errGap is the error for messages of the log that were dropped before they were read.
var errGap = errors.New("messages of the log of the replicas are missing")

// read passes the messages of the log after a position to the keeper, until ctx ends or the log cannot be read.
// It moves the position to the last message that was passed.
func (s *Share) read(ctx context.Context, at *note) error {
	st, err := s.openLog(ctx)
	if err != nil {
		return err
	}
	info, after := st.CachedInfo(), at.sequence
	if info.Created.UnixNano() != at.created || after > info.State.LastSeq { // another stream
		after = 0
	}
	// If reading broke off after the others were asked for their state, it may not have been read.
	missed := after == 0 && info.State.LastSeq > 0 || after > 0 && info.State.FirstSeq > after+1 || s.Clock().Sub(s.asked) < stateWithin
	if missed {
		after = info.State.LastSeq // the others publish their state, because what is before may be incomplete
	}
	consumer, err := st.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	begin := arrival{created: info.Created.UnixNano(), sequence: after, missed: missed}
	if missed {
		if begin.expected, err = s.alive(ctx); err != nil {
			return err
		}
	}
	if !s.keep(ctx, begin) {
		return ctx.Err()
	}
	switch {
	case len(begin.expected) > 0:
		if err := s.link.Conn().Publish(s.subject("state"), nil); err != nil {
			return err
		}
		s.asked = s.Clock()
		late := time.AfterFunc(stateWithin, func() {
			select {
			case <-s.caught:
				return
			default:
			}
			s.Log.Warn("not all replicas have sent their state: going on without it", "waited", stateWithin)
			s.caughtUp()
		})
		defer late.Stop()
	case after >= info.State.LastSeq:
		s.caughtUp()
	}
	*at = note{begin.created, begin.sequence}
	for {
		m, err := messages.Next()
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Stream != at.sequence+1 {
			*at = note{} // the others are asked for their state
			return errGap
		}
		b := new(pb.ShareBatch)
		if proto.Unmarshal(m.Data(), b) != nil {
			b = nil // of another version
		}
		if !s.keep(ctx, arrival{batch: b, created: info.Created.UnixNano(), sequence: meta.Sequence.Stream}) {
			return ctx.Err()
		}
		at.sequence = meta.Sequence.Stream
		if meta.NumPending == 0 && len(begin.expected) == 0 {
			s.caughtUp()
		}
	}
}

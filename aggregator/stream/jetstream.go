package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// mostReplicas is the number of servers that keep a stream, if there are as many. Two would be no
	// safer than one: without either of them, nothing can be written.
	mostReplicas = 3
	// duplicatesWithin is the period in which JetStream recognizes a message that is sent again.
	duplicatesWithin = 2 * time.Minute
)

type store struct {
	*Link
	cluster string
	stream  jetstream.Stream
	// created is the creation time of the stream, and age is how long it keeps messages; 0 for ever.
	created int64
	age     time.Duration
	// foreign is called with the number of each message that no aggregator of the cluster has published; nil to do nothing.
	foreign func(number uint64)
}

// open returns the stream of a cluster, which it creates if it does not exist. The settings of a stream
// that exists are left alone, except that it gets three replicas if there are servers for them.
func (l *Link) open(ctx context.Context, cluster string) (*store, error) {
	st := &store{Link: l, cluster: cluster}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var err error
	st.stream, err = l.js.Stream(ctx, Name(cluster))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		// It is not compressed: a server that is killed while it writes a compressed block cannot read that block again (s2:
		// unsupported input), and then accepts nothing.
		cfg := jetstream.StreamConfig{
			Name: Name(cluster), Description: "transitions of the cluster " + cluster, Subjects: []string{Subjects(cluster)},
			Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
			MaxAge: st.Retention, MaxBytes: st.Size, Duplicates: duplicatesWithin, DenyDelete: true,
		}
		for _, cfg.Replicas = range []int{mostReplicas, 1} {
			if st.stream, err = st.js.CreateStream(ctx, cfg); err == nil || !fewServers(err) {
				break
			}
		}
		if err == nil {
			st.log.Info("created the stream of transitions", "stream", cfg.Name, "replicas", cfg.Replicas)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the stream %s: %w", Name(cluster), err)
	}
	info := st.stream.CachedInfo()
	st.created, st.age = info.Created.UnixNano(), info.Config.MaxAge
	if !slices.Contains(info.Config.Subjects, Subjects(cluster)) {
		return nil, fmt.Errorf("the stream %s does not have the subject %s: it belongs to something else, or is a mirror; remove it, or use another --cluster", Name(cluster), Subjects(cluster))
	}
	return st, nil
}

// extend has the stream kept by three servers if it is not, and if there are three.
func (st *store) extend(ctx context.Context) error {
	cfg := st.stream.CachedInfo().Config
	if cfg.Replicas >= mostReplicas {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	cfg.Replicas = mostReplicas
	switch _, err := st.js.UpdateStream(ctx, cfg); {
	case err == nil:
		st.log.Info("the stream is kept by more servers from now on", "replicas", mostReplicas)
	case !fewServers(err):
		return fmt.Errorf("set the replicas of the stream: %w", err)
	}
	return nil
}

// The codes of errors of JetStream for a stream that needs more servers than there are.
const (
	codeNotClustered   = 10074
	codeNoPeers        = 10005
	codeOfflineReplica = 10009
)

func fewServers(err error) bool {
	api := (*jetstream.APIError)(nil)
	return errors.As(err, &api) && slices.Contains([]jetstream.ErrorCode{codeNotClustered, codeNoPeers, codeOfflineReplica}, api.ErrorCode)
}

// state returns the first and last numbers of the stream. last is nil if the last message was removed,
// or if there is none.
func (st *store) state(ctx context.Context) (first, number uint64, last *pb.TransitionBatch, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	info, err := st.stream.Info(ctx)
	if err != nil {
		return 0, 0, nil, fmt.Errorf("read the state of the stream: %w", err)
	}
	if info.Created.UnixNano() != st.created {
		return 0, 0, nil, errReplaced
	}
	first, number = info.State.FirstSeq, info.State.LastSeq
	if info.State.Msgs == 0 {
		return first, number, nil, nil
	}
	last, err = st.message(ctx, number)
	return first, number, last, err
}

// message returns a message of the stream; nil if it was removed, or if it is foreign.
func (st *store) message(ctx context.Context, number uint64) (*pb.TransitionBatch, error) {
	raw, err := st.stream.GetMsg(ctx, number)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the message %d of the stream: %w", number, err)
	}
	return st.decode(raw.Data, number), nil
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
	return st.decode(raw.Data, raw.Sequence), nil
}

var errReplaced = errors.New("the stream was removed and created again")

// decode decodes the message with a number; nil for a foreign one.
func (st *store) decode(raw []byte, number uint64) *pb.TransitionBatch {
	b := new(pb.TransitionBatch)
	if proto.Unmarshal(raw, b) == nil && b.GetCluster() == st.cluster && b.GetSequence() == number {
		return b
	}
	if st.foreign != nil {
		st.foreign(number)
	}
	return nil
}

// mostForeign is the number of foreign messages that are skipped one by one.
const mostForeign = 64

// errForeign is the error for more foreign messages than that.
var errForeign = errors.New("something else publishes to the stream")

// instead looks what the stream has instead of the message that it does not accept as the next one. It returns 0 if that is
// the message itself, and the number after foreign messages.
func (st *store) instead(ctx context.Context, b *pb.TransitionBatch) (next uint64, err error) {
	_, number, _, err := st.state(ctx)
	switch {
	case err != nil:
		return 0, err
	case number < b.GetSequence():
		return 0, errOther
	case number-b.GetSequence() >= mostForeign:
		return 0, errForeign
	}
	for n := b.GetSequence(); n <= number; n++ {
		switch has, err := st.message(ctx, n); {
		case err != nil:
			return 0, err
		case has == nil:
		case n == b.GetSequence() && has.GetInstance() == b.GetInstance() && proto.Equal(has.GetUntil(), b.GetUntil()) && has.GetPart() == b.GetPart():
			return 0, nil
		default:
			return 0, errOther
		}
	}
	return number + 1, nil
}

// errOther is the error for a message that is not the next one, because another publisher was faster.
var errOther = errors.New("another aggregator has published to the stream")

// publish adds a message to the stream, after the one before it. It tries again until the message is in
// the stream or cannot be the next one. A message that was added although its acknowledgement was lost
// is not added again. If foreign messages have its number, it gets the next one.
func (st *store) publish(ctx context.Context, b *pb.TransitionBatch, failed func(error)) error {
	for attempts := 1; ; attempts++ {
		raw, err := proto.Marshal(b)
		if err != nil {
			return err
		}
		id := fmt.Sprintf("%s-%d-%d-%d", token(b.GetCluster()), b.GetStream(), b.GetInstance(), b.GetSequence())
		if err := st.await(ctx); err != nil {
			return err
		}
		within, cancel := context.WithTimeout(ctx, answerWithin)
		ack, err := st.js.Publish(within, subject(b), raw, jetstream.WithMsgID(id), jetstream.WithExpectStream(Name(st.cluster)),
			jetstream.WithExpectLastSequence(b.GetSequence()-1), jetstream.WithRetryAttempts(0))
		cancel()
		switch {
		case err == nil && ack.Sequence == b.GetSequence():
			return nil
		case err == nil:
			return errOther
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if api := (*jetstream.APIError)(nil); errors.As(err, &api) &&
			(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
			next, err := st.instead(ctx, b)
			if err != nil || next == 0 {
				return err
			}
			b.Sequence = next
			continue
		}
		failed(err)
		if err := journal.Sleep(ctx, pause(attempts)); err != nil {
			return err
		}
		if attempts%lookAgainAfter == 0 { // perhaps the stream was removed
			if _, _, _, err := st.state(ctx); errors.Is(err, errReplaced) || errors.Is(err, jetstream.ErrStreamNotFound) {
				return err
			}
		}
	}
}

// lookAgainAfter is the number of failed attempts after which it is looked whether the stream exists.
const lookAgainAfter = 5

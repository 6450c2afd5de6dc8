package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Message is a message of the stream of a cluster, as a reader gets it.
type Message struct {
	*pb.TransitionBatch
	// Stored is when the cluster's own stream got the message.
	Stored time.Time
	// Foreign is set if no aggregator of the cluster has published it: only its number is known.
	Foreign bool
}

// ClusterOf returns the cluster of a stream, or of a mirror. ok is not set for other streams.
func ClusterOf(stream string) (cluster string, ok bool) {
	rest, ok := strings.CutPrefix(stream, prefix)
	if !ok || rest == "" {
		return "", false
	}
	cluster, err := url.PathUnescape(strings.ReplaceAll(rest, "=", "%"))
	return cluster, err == nil && token(cluster) == rest
}

// Clusters returns the names of the clusters that have streams, or mirrors of streams, at the servers, in
// order. It waits for a connection.
func (l *Link) Clusters(ctx context.Context) (names []string, err error) {
	if err := l.await(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	list := l.js.StreamNames(ctx)
	for name := range list.Name() {
		if cluster, ok := ClusterOf(name); ok {
			names = append(names, cluster)
		}
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list the streams: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// ErrNoStream is the error for a cluster without a stream.
var ErrNoStream = errors.New("the servers have no stream of the cluster")

const (
	// fetchWithin is how long a reader waits for a message before it looks whether the stream still exists.
	fetchWithin = 5 * time.Second
	// readAtOnce is the number of messages that are read at a time.
	readAtOnce = 64
	// consumerKept is how long the server keeps a reader that has gone away.
	consumerKept = time.Minute
)

// A Position is the last message of a stream that a reader has processed.
type Position struct {
	// Stream is the creation time of the stream, and Sequence the number of the message; 0 for none.
	Stream   int64
	Sequence uint64
}

// Follow calls do with the messages of a cluster after a position, and then with those that arrive, until
// ctx ends or one of them returns an error. It waits for a connection. If the stream does not have the
// next message, it begins with the last complete state.
func (l *Link) Follow(ctx context.Context, cluster string, after Position, do func(Message) error) error {
	if err := l.await(ctx); err != nil {
		return err
	}
	st := &store{Link: l, cluster: cluster}
	opening, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var err error
	if st.stream, err = l.js.Stream(opening, Name(cluster)); err != nil {
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return ErrNoStream
		}
		return fmt.Errorf("open the stream %s: %w", Name(cluster), err)
	}
	st.created = st.stream.CachedInfo().Created.UnixNano()
	first, number, last, err := st.state(opening)
	if err != nil {
		return err
	}
	begin := after.Sequence + 1
	replaced := number < after.Sequence || last != nil && last.GetStream() != after.Stream // or a new mirror does not have the message yet
	if after.Sequence == 0 || begin < first || replaced {
		state, err := st.lastState(opening)
		if begin = cmp.Or(state.GetSequence(), first, 1); err != nil {
			return err
		}
	}
	consumer, err := st.stream.CreateConsumer(opening, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: begin, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerKept,
	})
	if err != nil {
		return fmt.Errorf("read the stream %s: %w", Name(cluster), err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = st.stream.DeleteConsumer(ctx, consumer.CachedInfo().Name) // otherwise the server removes it
	}()
	for {
		n, err := st.fetch(ctx, consumer, do)
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		// Heartbeats come more often than this: perhaps the stream was replaced, or the server forgot the reader.
		if err := ctx.Err(); err != nil {
			return err
		}
		looking, cancel := context.WithTimeout(ctx, answerWithin)
		if _, _, _, err = st.state(looking); errors.Is(err, jetstream.ErrStreamNotFound) {
			err = ErrNoStream
		} else if err == nil {
			if _, err = consumer.Info(looking); err != nil {
				err = fmt.Errorf("read the stream %s: %w", Name(cluster), err)
			}
		}
		if cancel(); err != nil {
			return err
		}
	}
}

// fetch calls do with the next messages, and returns their number. It waits for some time if there is none.
func (st *store) fetch(ctx context.Context, consumer jetstream.Consumer, do func(Message) error) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	some, err := consumer.Fetch(readAtOnce, jetstream.FetchContext(ctx))
	if err != nil {
		return 0, fmt.Errorf("read the stream %s: %w", Name(st.cluster), err)
	}
	for m := range some.Messages() {
		n++
		meta, err := m.Metadata()
		if err != nil {
			return n, fmt.Errorf("read a message of the stream %s: %w", Name(st.cluster), err)
		}
		b := st.decode(m.Data(), meta.Sequence.Stream)
		foreign := b == nil
		if foreign {
			b = &pb.TransitionBatch{Sequence: meta.Sequence.Stream}
		}
		if err := do(Message{b, meta.Timestamp, foreign}); err != nil {
			return n, err
		}
	}
	if err := some.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return n, fmt.Errorf("read the stream %s: %w", Name(st.cluster), err)
	}
	return n, nil
}

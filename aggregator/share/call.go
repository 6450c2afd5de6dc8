package share

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/stream"
)

// Replicas ask each other what they serve by requests on NATS. An answer has several parts, each of which
// the asker acknowledges, so that it can be longer than a message, or last as long as a watch.

const (
	// partSize is the size of a part of an answer in bytes.
	partSize = 256 << 10
	// takenWithin is how long the asker may take for a part, and asleepFor is how long an answer that lasts
	// may be silent.
	takenWithin = 45 * time.Second
	asleepFor   = 45 * time.Second
	// lookConnected is how often a replica that waits for an answer looks whether it is connected.
	lookConnected = time.Second
	// reachWithin is how long a replica may take for the first part.
	reachWithin = 5 * time.Second
)

// The headers of requests and parts.
const (
	headerMethod = "Ipwitness-Method"
	headerKind   = "Ipwitness-Part"
	kindMore     = "more" // the message goes on in the next part
	kindWhole    = "whole"
	kindEnd      = "end"
)

// A Handler answers the request of another replica. It calls send with each message of the answer.
type Handler func(ctx context.Context, method string, request []byte, send func(proto.Message) error) error

// answer answers the requests of other replicas until the subscription ends.
func (s *Share) answer(ctx context.Context) (*nats.Subscription, error) {
	return s.link.Conn().Subscribe(s.subject("call."+stream.Token(s.Replica)), func(m *nats.Msg) {
		go s.answerOne(ctx, m)
	})
}

func (s *Share) answerOne(ctx context.Context, m *nats.Msg) {
	all := ctx
	ctx, cancel := context.WithCancel(all)
	defer cancel()
	var mu sync.Mutex // a watch may send from several goroutines
	part := func(kind string, data []byte) error {
		mu.Lock()
		defer mu.Unlock()
		out := nats.NewMsg(m.Reply)
		out.Header.Set(headerKind, kind)
		out.Data = data
		within, over := context.WithTimeout(all, takenWithin) // the end is sent even if a part was not taken
		defer over()
		_, err := s.link.Conn().RequestMsgWithContext(within, out)
		if err != nil {
			cancel() // the asker is gone
		}
		return err
	}
	err := s.Handle(ctx, m.Header.Get(headerMethod), m.Data, func(one proto.Message) error {
		raw, err := proto.Marshal(one)
		if err != nil {
			return err
		}
		for len(raw) > partSize {
			if err := part(kindMore, raw[:partSize]); err != nil {
				return err
			}
			raw = raw[partSize:]
		}
		return part(kindWhole, raw)
	})
	raw, _ := proto.Marshal(status.Convert(err).Proto()) // it has no invalid text
	_ = part(kindEnd, raw)                               // or the asker is gone
}

// Ask sends a request to another replica, and calls each with every message of the answer.
func (s *Share) Ask(ctx context.Context, replica, method string, request proto.Message, each func([]byte) error) error {
	raw, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	conn := s.link.Conn()
	sub, err := conn.SubscribeSync(conn.NewInbox())
	if err != nil {
		return unreachable(replica, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	m := nats.NewMsg(s.subject("call." + stream.Token(replica)))
	m.Header.Set(headerMethod, method)
	m.Reply, m.Data = sub.Subject, raw
	if err := conn.PublishMsg(m); err != nil {
		return unreachable(replica, err)
	}
	var whole []byte
	for within := reachWithin; ; within = asleepFor {
		part, err := next(ctx, conn, sub, within)
		switch {
		case ctx.Err() != nil:
			return status.FromContextError(ctx.Err()).Err()
		case err != nil:
			return unreachable(replica, err)
		case part.Header.Get("Status") != "": // nobody listens there
			return unreachable(replica, nats.ErrNoResponders)
		}
		switch part.Header.Get(headerKind) {
		case kindMore:
			whole = append(whole, part.Data...)
		case kindWhole:
			if err := each(append(whole, part.Data...)); err != nil {
				return err
			}
			whole = nil
		case kindEnd:
			_ = part.Respond(nil)
			st := new(statuspb.Status)
			if err := proto.Unmarshal(part.Data, st); err != nil {
				return unreachable(replica, err)
			}
			return status.ErrorProto(st)
		}
		if err := part.Respond(nil); err != nil {
			return unreachable(replica, err)
		}
	}
}

// next waits for the next part of an answer, as long as there is a connection.
func next(ctx context.Context, conn *nats.Conn, sub *nats.Subscription, within time.Duration) (part *nats.Msg, err error) {
	for end := time.Now().Add(within); ; {
		waiting, cancel := context.WithTimeout(ctx, min(time.Until(end), lookConnected))
		part, err = sub.NextMsgWithContext(waiting)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || !time.Now().Before(end):
			return part, err
		case !conn.IsConnected():
			return nil, nats.ErrDisconnected
		}
	}
}

// Call sends a request to another replica that has one message as its answer.
func (s *Share) Call(ctx context.Context, replica, method string, request, answer proto.Message) error {
	got := false
	err := s.Ask(ctx, replica, method, request, func(raw []byte) error {
		got = true
		return proto.Unmarshal(raw, answer)
	})
	if err == nil && !got {
		err = unreachable(replica, errors.New("it gave no answer"))
	}
	return err
}

func unreachable(replica string, err error) error {
	return status.Error(codes.Unavailable, fmt.Sprintf("cannot ask replica %s: %s", replica, err))
}

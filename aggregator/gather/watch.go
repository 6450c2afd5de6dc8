package gather

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/api"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// againAfter is the pause before a replica that did not answer is asked again.
const againAfter = 2 * time.Second

// A stream is a stream of the API whose messages go to a function.
type stream[M any] struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // that of the stream
	send func(*M) error
}

// Context implements grpc.ServerStream.
func (s *stream[M]) Context() context.Context { return s.ctx }

// Send implements grpc.ServerStreamingServer.
func (s *stream[M]) Send(m *M) error { return s.send(m) }

func streaming[Q proto.Message, M any](ctx context.Context, raw []byte, q Q, do func(Q, grpc.ServerStreamingServer[M]) error, send func(proto.Message) error) error {
	if err := proto.Unmarshal(raw, q); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return do(q, &stream[M]{ctx: ctx, send: func(m *M) error { return send(any(m).(proto.Message)) }})
}

// A message is a message of a watch.
type message[M any] interface {
	*M
	proto.Message
	GetType() pb.Watch_Type
	GetResumeToken() string
	GetCoverage() *pb.Coverage
}

// A watch merges the watches of all replicas.
type watch[Q proto.Message, M any, P message[M]] struct {
	service *Service
	method  string
	own     func(Q, grpc.ServerStreamingServer[M]) error
	// with returns the request with another token.
	with func(token string) Q
	// partition returns the partition of the item of a message.
	partition func(P) int
	// bookmark returns a bookmark, and lost the message that the state follows again.
	bookmark func(token string, coverage *pb.Coverage) P
	lost     func() P
}

// from is a message of one replica, or the end of its watch.
type from[P any] struct {
	replica int
	message P
	err     error
}

// serve serves a subscriber. If replicas come or go, the state begins again: what is known of their
// addresses may have changed unnoticed.
func (w *watch[Q, M, P]) serve(out grpc.ServerStreamingServer[M], stopped <-chan struct{}, token string) error {
	if err := check(token); err != nil {
		return err
	}
	last := token
	return api.Attend(out, stopped, func() string { return last }, func(ctx context.Context, send func(*M) error, flush func() error) error {
		tokens := parse(token)
		for ctx.Err() == nil {
			err := w.once(ctx, tokens, send, flush, func(t string) { last = t })
			if err != nil {
				return err
			}
			if err := send(w.lost()); err != nil {
				return err
			}
			tokens = nil
		}
		return ctx.Err()
	})
}

// once follows the replicas until they change. A replica that does not answer is asked again, and the others
// are followed meanwhile.
func (w *watch[Q, M, P]) once(ctx context.Context, tokens map[string]string, send func(*M) error, flush func() error, passed func(token string)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, changed := w.service.replicas()
	if tokens != nil && !same(tokens, &r) {
		return nil // the state begins again
	}
	messages := make(chan from[P], 16)
	deliver := func(m from[P]) error {
		select {
		case messages <- m:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for i := range r.all {
		go func() {
			name := r.all[i].name
			for token := tokens[name]; ctx.Err() == nil; {
				var err error
				if name == "" {
					err = w.own(w.with(token), &stream[M]{ctx: ctx, send: func(m *M) error { return deliver(from[P]{i, proto.CloneOf(P(m)), nil}) }})
				} else {
					err = w.service.Share.Ask(ctx, name, w.method, w.with(token), func(raw []byte) error {
						m := P(new(M))
						if err := proto.Unmarshal(raw, m); err != nil {
							return err
						}
						if m.GetType() == pb.Watch_BOOKMARK {
							token = m.GetResumeToken()
						}
						return deliver(from[P]{i, m, nil})
					})
				}
				if err == nil {
					err = status.Error(codes.Unavailable, "the watch has ended")
				}
				if deliver(from[P]{i, nil, err}) != nil {
					return // the subscriber is gone
				}
				select {
				case <-time.After(againAfter):
				case <-ctx.Done():
				}
			}
		}()
	}
	reached := make(map[string]string, len(r.all))
	begun, failing := make(map[string]bool, len(r.all)), make(map[string]bool)
	var coverage *pb.Coverage
	bookmark := func() error {
		var token string
		for _, one := range r.all {
			if reached[one.name] == "" && !failing[one.name] {
				return nil // its state is still arriving
			}
		}
		if len(failing) == 0 {
			token = format(reached)
			passed(token)
		}
		return send(w.bookmark(token, r.covered(coverage, len(failing))))
	}
	for {
		select {
		case <-changed: // before a message, so that it is taken from the right replica
			var now replicas
			if now, changed = w.service.replicas(); !now.are(&r) {
				return nil
			}
			r = now
		default:
		}
		var m from[P]
		select {
		case m = <-messages:
		default:
			if err := flush(); err != nil {
				return err
			}
			select {
			case m = <-messages:
			case <-changed:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		one := &r.all[m.replica]
		if m.err != nil {
			switch {
			case one.name == "" || status.Code(m.err) == codes.InvalidArgument:
				return m.err
			case begun[one.name] && reached[one.name] == "": // it has sent a part of its state
				return nil
			}
			if !failing[one.name] {
				if failing[one.name] = true; coverage == nil {
					continue
				}
				if err := bookmark(); err != nil {
					return err
				}
			}
			continue
		}
		delete(failing, one.name)
		begun[one.name] = true
		switch m.message.GetType() {
		case pb.Watch_LOST:
			return nil
		case pb.Watch_BOOKMARK:
			reached[one.name] = m.message.GetResumeToken()
			if one.name == "" {
				coverage = m.message.GetCoverage()
			}
			if coverage == nil {
				continue
			}
			if err := bookmark(); err != nil {
				return err
			}
		case pb.Watch_NODE: // every replica knows the nodes
			if one.name == "" {
				if err := send(m.message); err != nil {
					return err
				}
			}
		default:
			if !r.knows(one, w.partition(m.message)) {
				continue
			}
			if err := send(m.message); err != nil {
				return err
			}
		}
	}
}

// are reports whether the replicas are the same, apart from their partitions.
func (r *replicas) are(other *replicas) bool {
	if len(r.all) != len(other.all) {
		return false
	}
	for i := range r.all {
		if r.all[i].name != other.all[i].name {
			return false
		}
	}
	return true
}

// same reports whether tokens are those of all replicas.
func same(tokens map[string]string, r *replicas) bool {
	if len(tokens) != len(r.all) {
		return false
	}
	for _, one := range r.all {
		if _, there := tokens[one.name]; !there {
			return false
		}
	}
	return true
}

// A token has the tokens of all replicas. That of the replica that serves the watch has no name.
func format(tokens map[string]string) string {
	raw, _ := json.Marshal(tokens) // strings
	return base64.RawURLEncoding.EncodeToString(raw)
}

func parse(token string) (tokens map[string]string) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if token == "" || err != nil || json.Unmarshal(raw, &tokens) != nil {
		return nil
	}
	return tokens
}

func check(token string) error {
	if token != "" && parse(token) == nil {
		return status.Error(codes.InvalidArgument, "resume_token is invalid: omit it to start a new watch")
	}
	return nil
}

// WatchOwners sends the current owners, then every change.
func (s *Service) WatchOwners(q *pb.WatchOwnersRequest, out pb.WitnessService_WatchOwnersServer) error {
	w := &watch[*pb.WatchOwnersRequest, pb.WatchOwnersResponse, *pb.WatchOwnersResponse]{
		service: s, method: pb.WitnessService_WatchOwners_FullMethodName, own: s.Service.WatchOwners,
		with: func(token string) *pb.WatchOwnersRequest {
			of := proto.CloneOf(q)
			of.ResumeToken = token
			return of
		},
		partition: func(m *pb.WatchOwnersResponse) int { return ownersOrder.partition(m.GetOwner()) },
		bookmark: func(token string, coverage *pb.Coverage) *pb.WatchOwnersResponse {
			return &pb.WatchOwnersResponse{Type: pb.Watch_BOOKMARK, ResumeToken: token, Coverage: coverage}
		},
		lost: func() *pb.WatchOwnersResponse { return &pb.WatchOwnersResponse{Type: pb.Watch_LOST} },
	}
	return w.serve(out, s.Stopped, q.GetResumeToken())
}

// WatchConflicts sends the active conflicts, then every change.
func (s *Service) WatchConflicts(q *pb.WatchConflictsRequest, out pb.WitnessService_WatchConflictsServer) error {
	w := &watch[*pb.WatchConflictsRequest, pb.WatchConflictsResponse, *pb.WatchConflictsResponse]{
		service: s, method: pb.WitnessService_WatchConflicts_FullMethodName, own: s.Service.WatchConflicts,
		with: func(token string) *pb.WatchConflictsRequest {
			of := proto.CloneOf(q)
			of.ResumeToken = token
			return of
		},
		partition: func(m *pb.WatchConflictsResponse) int { return conflictsOrder.partition(m.GetConflict()) },
		bookmark: func(token string, coverage *pb.Coverage) *pb.WatchConflictsResponse {
			return &pb.WatchConflictsResponse{Type: pb.Watch_BOOKMARK, ResumeToken: token, Coverage: coverage}
		},
		lost: func() *pb.WatchConflictsResponse { return &pb.WatchConflictsResponse{Type: pb.Watch_LOST} },
	}
	return w.serve(out, s.Stopped, q.GetResumeToken())
}

// WatchFindings sends the current findings, then every change.
func (s *Service) WatchFindings(q *pb.WatchFindingsRequest, out pb.WitnessService_WatchFindingsServer) error {
	w := &watch[*pb.WatchFindingsRequest, pb.WatchFindingsResponse, *pb.WatchFindingsResponse]{
		service: s, method: pb.WitnessService_WatchFindings_FullMethodName, own: s.Service.WatchFindings,
		with: func(token string) *pb.WatchFindingsRequest {
			of := proto.CloneOf(q)
			of.ResumeToken = token
			return of
		},
		partition: func(m *pb.WatchFindingsResponse) int { return findingsOrder.partition(m.GetFinding()) },
		bookmark: func(token string, coverage *pb.Coverage) *pb.WatchFindingsResponse {
			return &pb.WatchFindingsResponse{Type: pb.Watch_BOOKMARK, ResumeToken: token, Coverage: coverage}
		},
		lost: func() *pb.WatchFindingsResponse { return &pb.WatchFindingsResponse{Type: pb.Watch_LOST} },
	}
	return w.serve(out, s.Stopped, q.GetResumeToken())
}

package api

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/live"

	"github.com/ipwitness/ipwitness/aggregator/index"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// bookmarkEvery is the interval at which a watcher gets bookmarks while nothing happens.
const bookmarkEvery = 15 * time.Second

// watch is one subscriber and its messages. K and T are the types of keys and items of its walk, and
// M is the type of its messages.
type watch[K, T, M any] struct {
	events *live.Bus
	send   func(*M) error
	// flush is called when there is nothing more to send for now.
	flush func() error
	// walk returns a walk of the current state. add returns the message for one of its items.
	walk func() *walk[K, T]
	add  func(item[T]) *M
	// key returns the key of the item that an event is about. event returns its message, or nil to
	// skip the event.
	key   func(*live.Event) K
	event func(*live.Event) *M
	// bookmark returns a message with the resume token and the coverage of the state that was sent.
	// lost returns a message with the number of lost events.
	bookmark func(token string, coverage *pb.Coverage) *M
	lost     func(n uint32) *M
	// coverage returns the coverage of the current state.
	coverage func() *pb.Coverage
	// past is what the journal has of the watch.
	past     recorded[M]
	patience *patience

	// reached is the revision after the last event that was passed on.
	reached uint64
	// covered is the coverage that was sent last. doubtful is set if a node has changed since.
	covered  *pb.Coverage
	doubtful bool
	some     []live.Event
}

// WatchOwners sends the current owners, then every change.
func (s *Service) WatchOwners(q *pb.WatchOwnersRequest, stream pb.WitnessService_WatchOwnersServer) error {
	if err := s.own(q); err != nil {
		return err
	}
	f, err := newOwnerFilter(q)
	if err != nil {
		return err
	}
	return serveWatch(stream, s, &watch[index.Address, *pb.Owner, pb.WatchOwnersResponse]{
		events: s.Events.Owners, send: stream.Send,
		past: recorded[pb.WatchOwnersResponse]{
			kind: pb.Event_OWNER, query: f.changes(pb.Event_OWNER, f.recorded),
			event: func(e *pb.Event) *pb.WatchOwnersResponse {
				return &pb.WatchOwnersResponse{Type: e.GetType(), Owner: e.GetOwner()}
			},
			node: func(n *pb.Node) *pb.WatchOwnersResponse {
				return &pb.WatchOwnersResponse{Type: pb.Watch_NODE, Node: n}
			},
		},
		walk: func() *walk[index.Address, *pb.Owner] { return s.walkOwners(&f, place{}) },
		add: func(o item[*pb.Owner]) *pb.WatchOwnersResponse {
			return &pb.WatchOwnersResponse{Type: pb.Watch_ADDED, Owner: o.it}
		},
		key: ownerKey,
		event: func(e *live.Event) *pb.WatchOwnersResponse {
			typ, ok := f.event(e)
			if !ok {
				return nil
			}
			return &pb.WatchOwnersResponse{Type: typ, Owner: e.Owner, Node: e.Node}
		},
		bookmark: func(token string, coverage *pb.Coverage) *pb.WatchOwnersResponse {
			return &pb.WatchOwnersResponse{Type: pb.Watch_BOOKMARK, ResumeToken: token, Coverage: coverage}
		},
		lost: func(n uint32) *pb.WatchOwnersResponse {
			return &pb.WatchOwnersResponse{Type: pb.Watch_LOST, Lost: n}
		},
	}, q.GetResumeToken())
}

// ownerKey returns the address of the owner that an event is about.
func ownerKey(e *live.Event) index.Address { return index.AddressOf(e.Address) }

// WatchConflicts sends the active conflicts, then every change.
func (s *Service) WatchConflicts(q *pb.WatchConflictsRequest, stream pb.WitnessService_WatchConflictsServer) error {
	if err := s.own(q); err != nil {
		return err
	}
	f, err := newConflictFilter(q)
	if err != nil {
		return err
	}
	present := f
	present.active = f.phase == 0
	return serveWatch(stream, s, &watch[place, *pb.Conflict, pb.WatchConflictsResponse]{
		events: s.Events.Conflicts, send: stream.Send,
		past: recorded[pb.WatchConflictsResponse]{
			kind: pb.Event_CONFLICT, query: f.changes(pb.Event_CONFLICT, func(e *pb.Event) bool { return f.recorded(e.GetConflict()) }),
			event: func(e *pb.Event) *pb.WatchConflictsResponse {
				return &pb.WatchConflictsResponse{Type: e.GetType(), Conflict: e.GetConflict()}
			},
			node: func(n *pb.Node) *pb.WatchConflictsResponse {
				return &pb.WatchConflictsResponse{Type: pb.Watch_NODE, Node: n}
			},
		},
		walk: func() *walk[place, *pb.Conflict] { return s.walkConflicts(&present, place{}) },
		add: func(c item[*pb.Conflict]) *pb.WatchConflictsResponse {
			return &pb.WatchConflictsResponse{Type: pb.Watch_ADDED, Conflict: c.it}
		},
		key: conflictKey,
		event: func(e *live.Event) *pb.WatchConflictsResponse {
			typ, ok := f.event(e)
			if !ok {
				return nil
			}
			return &pb.WatchConflictsResponse{Type: typ, Conflict: e.Conflict, Node: e.Node}
		},
		bookmark: func(token string, coverage *pb.Coverage) *pb.WatchConflictsResponse {
			return &pb.WatchConflictsResponse{Type: pb.Watch_BOOKMARK, ResumeToken: token, Coverage: coverage}
		},
		lost: func(n uint32) *pb.WatchConflictsResponse {
			return &pb.WatchConflictsResponse{Type: pb.Watch_LOST, Lost: n}
		},
	}, q.GetResumeToken())
}

// conflictKey returns the place of the conflict that an event is about.
func conflictKey(e *live.Event) place { return place{e.Address, e.Conflict.GetId()} }

// serveWatch serves a subscriber until it leaves, one Send blocks for too long, or the aggregator
// stops.
func serveWatch[K, T, M any](stream grpc.ServerStream, s *Service, x *watch[K, T, M], token string) error {
	x.coverage, x.flush = s.Coverage.Current, func() error { return nil }
	x.past.instance, x.past.journal = instanceText(s.Instance), s.Journal
	if f, ok := stream.(flusher); ok {
		x.flush = f.Flush
	}
	return x.serve(stream.Context(), s.Stopped, token)
}

// A flusher is a stream that may buffer messages until Flush is called.
type flusher interface{ Flush() error }

func (w *watch[K, T, M]) serve(ctx context.Context, stopped <-chan struct{}, token string) error {
	w.events.Join()
	defer w.events.Leave()
	w.patience = newPatience()
	send, flush := w.send, w.flush
	w.send = func(m *M) error { return w.patience.limit(func() error { return send(m) }) }
	w.flush = func() error { return w.patience.limit(flush) }
	return attend(ctx, stopped, w.patience, w.cutOff, func(ctx context.Context) error { return w.follow(ctx, token) })
}

// attend runs follow, which serves a subscriber. It returns before follow does if one Send blocks for
// too long, if the caller's access is revoked, or if the aggregator stops. cutOff returns the token of
// the last message that the subscriber has received.
func attend[T fmt.Stringer](ctx context.Context, stopped <-chan struct{}, p *patience, cutOff func() T, follow func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- follow(ctx) }()
	select {
	case err := <-done:
		return err
	case <-p.late.C:
		return errCutOff(cutOff().String())
	case <-access.Revoked(ctx):
		return access.ErrRevoked
	case <-stopped:
		return errStopping
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// follow sends the current state, then changes. One of its Sends may block forever.
func (w *watch[K, T, M]) follow(ctx context.Context, token string) error {
	next, err := w.start(ctx, token)
	quiet := time.NewTicker(bookmarkEvery)
	defer quiet.Stop()
	for err == nil {
		var lost uint64
		var changed <-chan struct{}
		if next, lost, changed, err = w.pass(next, live.Latest, nil); err != nil {
			break
		}
		if lost > 0 {
			next, err = w.again(ctx, lost)
			continue
		}
		if err = w.reassure(ctx, next); err != nil || changed == nil {
			err = cmp.Or(err, ctx.Err())
			continue
		}
		if err = w.flush(); err != nil {
			break
		}
		select {
		case <-changed:
		case <-quiet.C:
			err = w.mark(ctx, next)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

// start sends the current state, or, for a token, what has changed since. It returns the revision of the
// events that follow.
func (w *watch[K, T, M]) start(ctx context.Context, token string) (next uint64, err error) {
	if token == "" {
		return w.present(ctx)
	}
	t, err := parseResumeToken(token)
	if err != nil {
		return 0, err
	}
	if t.instance == w.past.instance && w.events.Holds(t.revision) {
		return t.revision, w.mark(ctx, t.revision)
	}
	if next, ok, err := w.catchUp(ctx, t); err != nil || ok {
		return next, err
	}
	return w.again(ctx, 0)
}

var errStopping = status.Error(codes.Unavailable, "the aggregator is stopping: reconnect with the last resume token")

var errResumeToken = status.Error(codes.InvalidArgument, "resume_token is invalid: omit it to start a new watch")

// mark sends a bookmark: the subscriber has received all events before the revision.
func (w *watch[K, T, M]) mark(ctx context.Context, next uint64) error {
	return w.markWith(ctx, next, w.coverage())
}

func (w *watch[K, T, M]) markWith(ctx context.Context, next uint64, coverage *pb.Coverage) error {
	w.covered, w.doubtful, w.reached = coverage, false, next
	w.patience.from.Store(next)
	return w.send(w.bookmark(w.past.settled(ctx, next).String(), coverage))
}

// reassure sends a bookmark if the change of a node has changed the coverage.
func (w *watch[K, T, M]) reassure(ctx context.Context, next uint64) error {
	if !w.doubtful {
		return nil
	}
	w.doubtful = false
	if now := w.coverage(); now != w.covered && !proto.Equal(now, w.covered) {
		return w.markWith(ctx, next, now)
	}
	return nil
}

// again sends the current state to a subscriber that has lost events.
func (w *watch[K, T, M]) again(ctx context.Context, lost uint64) (next uint64, err error) {
	w.patience.from.Store(fromStart)
	w.patience.at.Store(0)
	if err := w.send(w.lost(uint32(min(lost, math.MaxUint32)))); err != nil {
		return 0, err
	}
	return w.present(ctx)
}

// present sends the current state and a bookmark, and returns the revision of that state. It reads
// the state in parts. Before each further part, it sends the changes of the parts that it has
// already sent.
func (w *watch[K, T, M]) present(ctx context.Context) (next uint64, err error) {
	coverage := w.coverage()
	next = w.events.Revision()
	for walk := w.walk(); ; {
		part := walk.step(watchStep)
		for next < part.revision {
			var lost uint64
			if next, lost, _, err = w.pass(next, part.revision, walk); err != nil {
				return next, err
			}
			if lost > 0 {
				return w.again(ctx, lost)
			}
		}
		for _, one := range part.items {
			if err := w.send(w.add(one)); err != nil {
				return next, err
			}
		}
		if part.done {
			break
		}
		if len(part.items) == 0 { // the next matching item may be far away
			if err := w.flush(); err != nil {
				return next, err
			}
		}
		if ctx.Err() != nil {
			return next, ctx.Err()
		}
	}
	doubtful := w.doubtful
	if err := w.markWith(ctx, next, coverage); err != nil {
		return next, err
	}
	w.doubtful = doubtful
	return next, nil
}

// pass sends some of the events from a revision on and before another one, and returns the revision
// after them. If walk is not nil, it sends only events about nodes and about items that the walk
// has passed. The other results are those of bus.Since.
func (w *watch[K, T, M]) pass(from, before uint64, walk *walk[K, T]) (next, lost uint64, changed <-chan struct{}, err error) {
	w.some, next, lost, changed = w.events.Since(from, before, w.some[:0])
	for i := range w.some {
		e := &w.some[i]
		w.reached = from + uint64(i) + 1
		w.doubtful = w.doubtful || e.Node != nil
		if walk == nil || e.Node != nil || walk.passed(w.key(e)) {
			if m := w.event(e); m != nil {
				if err := w.send(m); err != nil {
					return next, 0, nil, err
				}
			}
		}
		if walk == nil {
			w.patience.from.Store(w.reached)
		}
	}
	clear(w.some)
	return next, lost, changed, nil
}

package api

import (
	"cmp"
	"context"
	"math"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/live"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// bookmarkEvery is the interval at which a watcher gets bookmarks while nothing happens.
const bookmarkEvery = 15 * time.Second

// A message is what a watch sends, whatever its kind: an item, a node, or where the watch is.
type message struct {
	typ      pb.Watch_Type
	owner    *pb.Owner
	conflict *pb.Conflict
	finding  *pb.Finding
	node     *pb.Node
	// event is the event that the message is about; nil if it is about an item of the present state, or
	// about the watch. id identifies an owner of the present state.
	event *live.Event
	id    string
	// token and coverage belong to a bookmark, and lost is the number of lost events.
	token    string
	coverage *pb.Coverage
	lost     uint32
}

// watch is one subscriber. K and T are the types of keys and items of its walk.
type watch[K, T any] struct {
	events *live.Bus
	send   func(*message) error
	// flush is called when there is nothing more to send for now.
	flush func() error
	// walk returns a walk of the current state. add returns the message for one of its items.
	walk func() *walk[K, T]
	add  func(item[T]) *message
	// key returns the key of the item that an event is about. filter returns the type of an event as the
	// subscriber sees it, and whether the subscriber gets it.
	key    func(*live.Event) K
	filter func(*live.Event) (pb.Watch_Type, bool)
	// coverage returns the coverage of the current state.
	coverage func() *pb.Coverage
	// past is what the journal has of the watch.
	past recorded

	// reached is the revision after the last event that was passed on.
	reached uint64
	// from is the revision to resume from: the watcher has received all earlier events. While it is
	// fromStart, at is the same in the journal, in microseconds since 1970; 0 if it is not known.
	from atomic.Uint64
	at   atomic.Int64
	// covered is the coverage that was sent last. doubtful is set if a node has changed since.
	covered  *pb.Coverage
	doubtful bool
	some     []live.Event
}

// fromStart is a revision before the first one: a watcher that resumes from it receives LOST with 0, and
// the current state.
const fromStart = 0

// WatchOwners sends the current owners, then every change.
func (s *Service) WatchOwners(q *pb.WatchOwnersRequest, stream pb.WitnessService_WatchOwnersServer) error {
	f, err := newOwnerFilter(q)
	return serveWatch(stream, s, q, err, s.watchOwners(&f), func(m *message) *pb.WatchOwnersResponse {
		return &pb.WatchOwnersResponse{Type: m.typ, Owner: m.owner, Node: m.node, ResumeToken: m.token, Coverage: m.coverage, Lost: m.lost}
	})
}

func (s *Service) watchOwners(f *filter) *watch[index.Address, *pb.Owner] {
	return &watch[index.Address, *pb.Owner]{
		events: s.Events.Owners,
		past:   recorded{kind: pb.Event_OWNER, query: selectOwners(f).Changes, nodes: true},
		walk:   func() *walk[index.Address, *pb.Owner] { return s.walkOwners(f, place{}) },
		add:    func(o item[*pb.Owner]) *message { return &message{owner: o.it, id: o.at.(place).ID} },
		key:    func(e *live.Event) index.Address { return index.AddressOf(e.Address) },
		filter: func(e *live.Event) (pb.Watch_Type, bool) {
			if e.Owner == nil || !f.address(e.Address) {
				return e.Type, e.Owner == nil
			}
			was := e.Type != pb.Watch_ADDED && f.owner(&e.Before.Owner, e.Before.Node)
			return change(e.Type, was, f.owner(&e.Holder.Owner, e.Holder.Node))
		},
	}
}

// WatchConflicts sends the active conflicts, then every change.
func (s *Service) WatchConflicts(q *pb.WatchConflictsRequest, stream pb.WitnessService_WatchConflictsServer) error {
	f, err := newConflictFilter(q)
	present := f
	present.active = f.phase == 0
	return serveWatch(stream, s, q, err, s.watchConflicts(&present, &f), func(m *message) *pb.WatchConflictsResponse {
		return &pb.WatchConflictsResponse{Type: m.typ, Conflict: m.conflict, Node: m.node, ResumeToken: m.token, Coverage: m.coverage, Lost: m.lost}
	})
}

func (s *Service) watchConflicts(present, f *conflictFilter) *watch[place, *pb.Conflict] {
	return &watch[place, *pb.Conflict]{
		events: s.Events.Conflicts,
		past:   recorded{kind: pb.Event_CONFLICT, query: selectConflicts(present, f).Changes, nodes: true},
		walk:   func() *walk[place, *pb.Conflict] { return s.walkConflicts(present, place{}) },
		add:    func(c item[*pb.Conflict]) *message { return &message{conflict: c.it} },
		key:    func(e *live.Event) place { return place{e.Address, e.Conflict.GetId()} },
		filter: func(e *live.Event) (pb.Watch_Type, bool) {
			if e.Conflict == nil || !f.address(e.Address) {
				return e.Type, e.Conflict == nil
			}
			return change(e.Type, f.contest(&e.Contested), f.contest(&e.Contest))
		},
	}
}

// WatchFindings sends the current findings, then every change.
func (s *Service) WatchFindings(q *pb.WatchFindingsRequest, stream pb.WitnessService_WatchFindingsServer) error {
	f, err := newFindingFilter(q)
	return serveWatch(stream, s, q, err, s.watchFindings(&f), func(m *message) *pb.WatchFindingsResponse {
		return &pb.WatchFindingsResponse{Type: m.typ, Finding: m.finding, ResumeToken: m.token, Coverage: m.coverage, Lost: m.lost}
	})
}

func (s *Service) watchFindings(f *findingFilter) *watch[*judge.Found, *pb.Finding] {
	return &watch[*judge.Found, *pb.Finding]{
		events: s.Events.Findings,
		past:   recorded{kind: pb.Event_FINDING, query: selectFindings(f).Changes},
		walk:   func() *walk[*judge.Found, *pb.Finding] { return s.walkFindings(f, judge.FindingPlace{}) },
		add:    func(one item[*pb.Finding]) *message { return &message{finding: one.it} },
		key:    func(e *live.Event) *judge.Found { return &judge.Found{Place: e.Matter.Place} },
		filter: func(e *live.Event) (pb.Watch_Type, bool) {
			return change(e.Type, e.Found.Finding != nil && f.finding(e.Found), f.finding(e.Matter))
		},
	}
}

// Watching is a request for a watch.
type Watching interface {
	GetCluster() []string
	GetResumeToken() string
}

// serveWatch serves a subscriber, unless its request has an error. as returns a message as its kind of
// watch sends it.
func serveWatch[K, T, M any](stream grpc.ServerStreamingServer[M], s *Service, q Watching, err error, w *watch[K, T], as func(*message) *M) error {
	if err := cmp.Or(s.own(q), err); err != nil {
		return err
	}
	w.coverage = s.Coverage.Current
	w.past.instance, w.past.journal = instanceText(s.Instance), s.Journal
	w.events.Join()
	defer w.events.Leave()
	token := func() string { // of the last event that the subscriber has received
		from, at := w.from.Load(), w.at.Load()
		if from == fromStart && at != 0 {
			return w.past.within(time.UnixMicro(at)).String()
		}
		return w.past.token(from).String()
	}
	return Attend(stream, s.Stopped, token, func(ctx context.Context, send func(*M) error, flush func() error) error {
		w.send, w.flush = func(m *message) error { return send(as(m)) }, flush
		return w.follow(ctx, q.GetResumeToken())
	})
}

// follow sends the current state, then changes. One of its Sends may block forever.
func (w *watch[K, T]) follow(ctx context.Context, token string) error {
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
		if w.doubtful { // the change of a node may have changed the coverage
			w.doubtful = false
			if now := w.coverage(); now != w.covered && !proto.Equal(now, w.covered) {
				err = w.markWith(ctx, next, now)
			}
		}
		if err != nil || changed == nil {
			err = cmp.Or(err, ctx.Err())
			continue
		}
		if err = w.flush(); err != nil {
			break
		}
		select {
		case <-changed:
		case <-whileAwaited(w.covered):
			w.doubtful = true
		case <-quiet.C:
			err = w.mark(ctx, next)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return err
}

// whileAwaited returns a channel that tells when to look whether anything is still awaited; nil if nothing is.
func whileAwaited(c *pb.Coverage) <-chan time.Time {
	if len(c.GetAwaited()) == 0 {
		return nil
	}
	return time.After(time.Second)
}

// start sends the current state, or, for a token, what has changed since. It returns the revision of the
// events that follow.
func (w *watch[K, T]) start(ctx context.Context, token string) (next uint64, err error) {
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
func (w *watch[K, T]) mark(ctx context.Context, next uint64) error {
	return w.markWith(ctx, next, w.coverage())
}

func (w *watch[K, T]) markWith(ctx context.Context, next uint64, coverage *pb.Coverage) error {
	w.covered, w.doubtful, w.reached = coverage, false, next
	w.from.Store(next)
	return w.send(&message{typ: pb.Watch_BOOKMARK, token: w.past.settled(ctx, next).String(), coverage: coverage})
}

// again sends the current state to a subscriber that has lost events.
func (w *watch[K, T]) again(ctx context.Context, lost uint64) (next uint64, err error) {
	w.from.Store(fromStart)
	w.at.Store(0)
	if err := w.send(&message{typ: pb.Watch_LOST, lost: uint32(min(lost, math.MaxUint32))}); err != nil {
		return 0, err
	}
	return w.present(ctx)
}

// present sends the current state and a bookmark, and returns the revision of that state. It reads
// the state in parts. Before each further part, it sends the changes of the parts that it has
// already sent.
func (w *watch[K, T]) present(ctx context.Context) (next uint64, err error) {
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
			m := w.add(one)
			m.typ = pb.Watch_ADDED
			if err := w.send(m); err != nil {
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
// after them. If walk is not nil, it sends only events about nodes, and about items that the walk
// has read or around which it has listed the keys. The other results are those of bus.Since.
func (w *watch[K, T]) pass(from, before uint64, walk *walk[K, T]) (next, lost uint64, changed <-chan struct{}, err error) {
	w.some, next, lost, changed = w.events.Since(from, before, w.some[:0])
	for i := range w.some {
		e := &w.some[i]
		w.reached = from + uint64(i) + 1
		w.doubtful = w.doubtful || e.Node != nil
		if walk == nil || e.Node != nil || walk.bound != nil && !walk.less(*walk.bound, w.key(e)) {
			if typ, ok := w.filter(e); ok {
				m := &message{typ: typ, owner: e.Owner, conflict: e.Conflict, finding: e.Finding, node: e.Node, event: e}
				if err := w.send(m); err != nil {
					return next, 0, nil, err
				}
			}
		}
		if walk == nil {
			w.from.Store(w.reached)
		}
	}
	clear(w.some)
	return next, lost, changed, nil
}

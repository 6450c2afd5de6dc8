package fleet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// bookmarkEvery is the interval at which a watcher gets bookmarks while nothing happens, and watchEvery
	// is the shortest interval between two reads of the journals.
	bookmarkEvery = 15 * time.Second
	watchEvery    = 100 * time.Millisecond
)

// A watch is one subscriber. It has no queue: it reads each journal from its position on when more is
// written, so that nothing waits for it.
type watch struct {
	s     *Service
	names []string
	// sel selects the items that the watch begins with, and the events that follow. Without present, it
	// begins with the events after since, or from now on if that is zero.
	sel     api.Selection
	present bool
	since   time.Time
	// send sends a message. gaps is set if the watch shows gaps.
	send  func(message) error
	gaps  bool
	flush func() error

	mu sync.Mutex
	// at is the position in each journal: everything up to this time was sent.
	at      positions
	covered *pb.Coverage
}

// A message is what a watch sends: an event or a gap, that events are missing (LOST), or a bookmark with the coverage.
// The token resumes the watch after it; it is empty for the events of the present.
type message struct {
	typ      pb.Watch_Type
	event    *pb.Event
	gap      *pb.Gap
	token    string
	coverage *pb.Coverage
}

// bookmarkToken returns the token of a bookmark: watches of the present can be resumed only there.
func (m *message) bookmarkToken() string {
	if m.typ == pb.Watch_BOOKMARK {
		return m.token
	}
	return ""
}

// positions are the times up to which a subscriber has got the events of each cluster.
type positions map[string]time.Time

// tokenPrefix tells the tokens of a fleet from those of an aggregator.
const tokenPrefix = "f"

func (p positions) token() string { return tokenPrefix + api.Token(p) }

// parsePositions parses a token; nil for none.
func parsePositions(token string) (p positions, err error) {
	text, ours := strings.CutPrefix(token, tokenPrefix)
	if p, err = api.ParseToken[positions](text); err != nil || token != "" && (!ours || text == "") {
		return nil, status.Error(codes.InvalidArgument, "resume_token is invalid: omit it to start a new watch")
	}
	return p, nil
}

// token returns the token of the last message that was sent.
func (w *watch) token() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at.token()
}

func (w *watch) move(name string, to time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[name] = to
}

// follow sends what the watch begins with, and then what happens.
func (w *watch) follow(ctx context.Context) error {
	quiet := time.NewTicker(bookmarkEvery)
	defer quiet.Stop()
	for first := true; ; first = false {
		soon := time.After(watchEvery)
		all, changed, err := w.s.Fleet.sources(w.names, w.sel.Changes.Kind)
		if err != nil {
			return err
		}
		var written []<-chan struct{}
		again := false
		for _, r := range all {
			more, err := w.advance(ctx, r)
			if err != nil {
				return err
			}
			if again = more == nil; again {
				break
			}
			written = append(written, more)
		}
		if again { // before anything else, the present of all clusters is sent
			continue
		}
		if err := errors.Join(w.bookmark(first), w.flush()); err != nil {
			return err
		}
		some, stop := context.WithCancel(ctx)
		for _, more := range written {
			go func() {
				select {
				case <-more:
					stop()
				case <-some.Done():
				}
			}()
		}
		select {
		case <-some.Done():
		case <-changed:
		case <-quiet.C:
			err = w.bookmark(true)
		}
		stop()
		if err != nil {
			return err
		}
		select {
		case <-soon:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// advance sends what is new in one journal. written is closed when there is more; it is nil if the present of
// all clusters has to be sent again.
func (w *watch) advance(ctx context.Context, r *records) (written <-chan struct{}, err error) {
	select {
	case <-r.journal.Opened():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	until, _, written := r.journal.Written()
	at, known := w.at[r.name] // which only this goroutine changes
	expired := false
	if known { // the events after the position were dropped, or the journal was lost and has begun again
		_, from, err := r.journal.Lost(at, at)
		if expired = until.Before(at) || err == nil && from.After(at); expired {
			if err := w.send(message{typ: pb.Watch_LOST, token: w.token()}); err != nil {
				return written, err
			}
		}
	}
	switch {
	case !known && r.journal.Fresh(): // its first state is arriving
		return written, nil
	case expired && w.present:
		w.mu.Lock()
		clear(w.at) // the present of all clusters follows
		w.mu.Unlock()
		return nil, nil
	case expired:
		if until.Before(at) {
			w.move(r.name, until)
		}
	case !known && w.present:
		if err := r.items(ctx, w.sel, until, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
			e.Type = pb.Watch_ADDED
			err = w.send(message{typ: e.Type, event: e})
			return err == nil
		}); err != nil {
			return written, err
		}
		w.move(r.name, until)
		return written, err
	case !known && w.since.IsZero():
		w.move(r.name, until)
		return written, nil
	case !known:
		at = w.since.Add(-time.Microsecond)
		w.move(r.name, at)
	}
	for at.Before(until) {
		if at, err = w.replay(ctx, r, at, until); err != nil {
			return written, err
		}
	}
	return written, nil
}

// replay sends some of the events of a journal, and returns the time up to which it has sent all.
func (w *watch) replay(ctx context.Context, r *records, at, until time.Time) (time.Time, error) {
	q := w.sel.Changes
	q.After, q.Until = at, until.Add(time.Microsecond)
	type record struct {
		at  time.Time
		e   *pb.Event
		gap *pb.Gap
	}
	var some []record
	if err := r.journal.Follow(ctx, &q, func(t time.Time, e *pb.Event, g *pb.Gap) bool {
		some = append(some, record{t, e, g})
		return len(some) < readAtOnce
	}); err != nil {
		return at, failed(err)
	}
	for _, one := range some {
		if one.e == nil && !w.gaps || one.e != nil && !r.selected(one.e) {
			continue
		}
		w.move(r.name, one.at)
		var err error
		if one.e != nil {
			r.label(one.e)
			err = w.send(message{typ: one.e.GetType(), event: one.e, token: w.token()})
		} else {
			err = w.send(message{typ: pb.Watch_GAP, gap: r.gap(one.gap), token: w.token()})
		}
		if err != nil {
			return at, err
		}
	}
	if len(some) == readAtOnce {
		until = some[len(some)-1].at
	}
	w.move(r.name, until)
	return until, nil
}

// bookmark sends a bookmark, always or only if the coverage has changed.
func (w *watch) bookmark(always bool) error {
	clusters, _, err := w.s.Fleet.named(w.names)
	if err != nil {
		return err
	}
	now := w.s.Fleet.coverage(clusters)
	if !always && proto.Equal(now, w.covered) {
		return nil
	}
	w.covered = now
	return w.send(message{typ: pb.Watch_BOOKMARK, token: w.token(), coverage: w.covered})
}

// watching is a request for a watch.
type watching interface {
	GetCluster() []string
	GetResumeToken() string
}

// serve runs a watch, unless its request has an error. of makes the messages of the API.
func serve[M any](stream grpc.ServerStreamingServer[M], s *Service, q watching, err error, w *watch, of func(message) *M) error {
	if err != nil {
		return err
	}
	w.s, w.names = s, q.GetCluster()
	if _, _, err := s.Fleet.named(w.names); err != nil {
		return err
	}
	if w.at, err = parsePositions(q.GetResumeToken()); err != nil {
		return err
	}
	if w.at == nil {
		w.at = make(positions)
	}
	return api.Attend(stream, s.Stopped, w.token, func(ctx context.Context, send func(*M) error, flush func() error) error {
		w.send, w.flush = func(m message) error { return send(of(m)) }, flush
		return w.follow(ctx)
	})
}

// WatchOwners sends the current owners, then every change.
func (s *Service) WatchOwners(q *pb.WatchOwnersRequest, stream pb.WitnessService_WatchOwnersServer) error {
	sel, err := api.SelectOwners(q)
	return serve(stream, s, q, err, &watch{sel: sel, present: true}, func(m message) *pb.WatchOwnersResponse {
		return &pb.WatchOwnersResponse{Type: m.typ, Owner: m.event.GetOwner(), ResumeToken: m.bookmarkToken(), Coverage: m.coverage}
	})
}

// WatchConflicts sends the active conflicts, then every change of a conflict.
func (s *Service) WatchConflicts(q *pb.WatchConflictsRequest, stream pb.WitnessService_WatchConflictsServer) error {
	sel, err := api.SelectConflicts(q, false)
	return serve(stream, s, q, err, &watch{sel: sel, present: true}, func(m message) *pb.WatchConflictsResponse {
		return &pb.WatchConflictsResponse{Type: m.typ, Conflict: m.event.GetConflict(), ResumeToken: m.bookmarkToken(), Coverage: m.coverage}
	})
}

// WatchFindings sends the current findings, then every change.
func (s *Service) WatchFindings(q *pb.WatchFindingsRequest, stream pb.WitnessService_WatchFindingsServer) error {
	sel, err := api.SelectFindings(q)
	return serve(stream, s, q, err, &watch{sel: sel, present: true}, func(m message) *pb.WatchFindingsResponse {
		return &pb.WatchFindingsResponse{Type: m.typ, Finding: m.event.GetFinding(), ResumeToken: m.bookmarkToken(), Coverage: m.coverage}
	})
}

// WatchNodes sends the nodes, then every change of a node.
func (s *Service) WatchNodes(q *pb.WatchNodesRequest, stream pb.WitnessService_WatchNodesServer) error {
	w := &watch{sel: api.SelectNode(q.GetName()), present: true}
	return serve(stream, s, q, nil, w, func(m message) *pb.WatchNodesResponse {
		out := &pb.WatchNodesResponse{Type: m.typ, Node: m.event.GetNode(), ResumeToken: m.bookmarkToken(), Coverage: m.coverage}
		if m.typ == pb.Watch_BOOKMARK {
			out.Problems = s.Fleet.Problems()
		}
		return out
	})
}

// WatchEvents sends the recorded events since a time, then every event as it is recorded. The events of
// each cluster are in order.
func (s *Service) WatchEvents(q *pb.WatchEventsRequest, stream pb.WitnessService_WatchEventsServer) error {
	query, err := api.SelectEvents(q)
	w := &watch{sel: api.Selection{Changes: query}, gaps: true}
	if q.GetSince() != nil {
		w.since = time.UnixMicro(max(1, query.Since.UnixMicro()))
	}
	return serve(stream, s, q, err, w, func(m message) *pb.WatchEventsResponse {
		out := &pb.WatchEventsResponse{Type: m.typ, Event: m.event, Gap: m.gap, ResumeToken: m.token, Coverage: m.coverage}
		if m.typ == pb.Watch_BOOKMARK {
			all, _, _ := s.Fleet.sources(w.names, query.Kind) // an error ends the watch
			out.ReachesBackTo = reachBackTo(all)
		}
		return out
	})
}

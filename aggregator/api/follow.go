package api

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// readEvery is the shortest interval between two reads of a watch of events while events are recorded.
const readEvery = 100 * time.Millisecond

// An eventWatch is one subscriber to recorded events. It has no queue: it reads the journal from its
// position on when more is written, so that nothing waits for it.
type eventWatch struct {
	s     *Service
	send  func(*pb.WatchEventsResponse) error
	flush func() error
	query journal.Query
	past  recorded

	// at is the position: everything up to this time was sent. received is the same in microseconds.
	at       time.Time
	received atomic.Int64
	// oldest is the start of the journal that the subscriber knows: what was before is not lost.
	oldest time.Time
	// covered is the coverage that was sent last, and open is the gap that was sent before its end.
	covered *pb.Coverage
	open    *pb.Gap
}

// WatchEvents sends the recorded events since a time or a resume token, then every event as soon as it
// is recorded.
func (s *Service) WatchEvents(q *pb.WatchEventsRequest, stream pb.WitnessService_WatchEventsServer) error {
	if err := s.own(q); err != nil {
		return err
	}
	if s.Journal == nil {
		return errNoJournal
	}
	query, err := SelectEvents(q)
	if err != nil {
		return err
	}
	var token resumeToken
	if text := q.GetResumeToken(); text != "" {
		if token, err = parseResumeToken(text); err != nil {
			return err
		}
	}
	s.EventWatches.Add(1)
	defer s.EventWatches.Add(-1)
	w := &eventWatch{s: s, query: query, past: recorded{instance: instanceText(s.Instance), journal: s.Journal}}
	received := func() string { return w.past.within(time.UnixMicro(w.received.Load())).String() }
	return Attend(stream, s.Stopped, received, func(ctx context.Context, send func(*pb.WatchEventsResponse) error, flush func() error) error {
		w.send, w.flush = send, flush
		return w.follow(ctx, q, token)
	})
}

// move moves the position.
func (w *eventWatch) move(to time.Time) {
	w.at = to
	w.received.Store(to.UnixMicro())
}

// follow sends the events since the start, then the events that are recorded. One of its Sends may
// block forever.
func (w *eventWatch) follow(ctx context.Context, q *pb.WatchEventsRequest, token resumeToken) error {
	if err := w.start(ctx, q, token); err != nil {
		return err
	}
	quiet := time.NewTicker(bookmarkEvery)
	defer quiet.Stop()
	for {
		soon := time.NewTimer(readEvery)
		until, _, more := w.s.Journal.Written()
		for w.at.Before(until) {
			if err := w.read(ctx, until); err != nil {
				return err
			}
			select {
			case <-quiet.C:
				if err := w.mark(); err != nil {
					return err
				}
			default:
			}
		}
		if open := w.s.Journal.OpenGap(); open != nil && (w.open == nil || !proto.Equal(open.GetFrom(), w.open.GetFrom())) {
			w.open = open
			if err := w.send(&pb.WatchEventsResponse{Type: pb.Watch_GAP, Gap: open, ResumeToken: w.past.within(w.at).String()}); err != nil {
				return err
			}
		}
		done := w.flush
		if now := w.s.Coverage.Current(); w.covered == nil || now != w.covered && !proto.Equal(now, w.covered) {
			done = w.mark
		}
		if err := done(); err != nil {
			return err
		}
		select {
		case <-more:
			select {
			case <-soon.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		case <-whileAwaited(w.covered):
		case <-quiet.C:
			if err := w.mark(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// start sets the position of the first event. It waits until the journal has begun.
func (w *eventWatch) start(ctx context.Context, q *pb.WatchEventsRequest, token resumeToken) error {
	j := w.s.Journal
	select {
	case <-j.Opened():
	case <-ctx.Done():
		return ctx.Err()
	}
	until, _, more := j.Written()
	for w.query.Since.Before(until) && (q.GetSince() != nil || token.instance != "") && j.Fresh() {
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
		until, _, more = j.Written()
	}
	_, oldest, err := j.Lost(time.UnixMicro(0), time.UnixMicro(0))
	if err != nil {
		return errJournal(err)
	}
	switch {
	case token.instance != "" && w.past.valid(ctx, token):
		w.move(token.at)
		return nil // what is no longer in the journal since then is lost
	case token.instance != "":
		if token.at.IsZero() || token.at.After(until) {
			token.at = until
		}
		w.move(token.at)
		w.oldest = oldest
		return w.lost()
	case q.GetSince() != nil:
		w.move(time.UnixMicro(max(0, w.query.Since.UnixMicro()-1)))
	default:
		w.move(until)
	}
	w.oldest = oldest
	return nil
}

// read sends some of the recorded events and gaps up to a time, and moves the position.
func (w *eventWatch) read(ctx context.Context, until time.Time) error {
	j, q := w.s.Journal, w.query
	reached, oldest := w.at, j.Oldest()
	if begin := oldest.Add(-journal.PresentBefore); reached.Before(begin) {
		reached = begin
	}
	if reached = reached.Add(replayedPeriod); oldest.IsZero() || until.Before(reached) {
		reached = until
	}
	q.After, q.Until = w.at, reached.Add(time.Microsecond)
	var some []*pb.WatchEventsResponse
	var at []time.Time
	if err := j.Follow(ctx, &q, func(time time.Time, e *pb.Event, g *pb.Gap) bool {
		m := &pb.WatchEventsResponse{Type: pb.Watch_GAP, Gap: g, Event: e}
		if e != nil {
			m.Type = e.GetType()
		}
		some, at = append(some, m), append(at, time)
		return len(some) < replayedAtOnce
	}); err != nil {
		return errJournal(err)
	}
	// What was dropped before this was perhaps not read.
	switch _, oldest, err := j.Lost(w.at, w.at); {
	case err != nil:
		return errJournal(err)
	case oldest.After(w.at) && oldest.After(w.oldest):
		w.oldest = oldest
		return w.lost()
	}
	if len(some) == replayedAtOnce {
		reached = at[len(at)-1]
	}
	for i, m := range some {
		m.ResumeToken = w.past.within(at[i]).String()
		if err := w.send(m); err != nil {
			return err
		}
		w.move(at[i])
	}
	w.move(reached)
	return nil
}

// lost tells the subscriber that the journal no longer has some of the events since its position.
func (w *eventWatch) lost() error {
	return w.send(&pb.WatchEventsResponse{Type: pb.Watch_LOST, ResumeToken: w.past.within(w.at).String()})
}

// mark sends a bookmark.
func (w *eventWatch) mark() error {
	w.covered = w.s.Coverage.Current()
	m := &pb.WatchEventsResponse{Type: pb.Watch_BOOKMARK, ResumeToken: w.past.within(w.at).String(), Coverage: w.covered}
	if oldest := w.s.Journal.Oldest(); !oldest.IsZero() {
		m.ReachesBackTo = timestamppb.New(oldest)
	}
	if err := w.send(m); err != nil {
		return err
	}
	return w.flush()
}

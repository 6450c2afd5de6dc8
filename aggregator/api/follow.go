package api

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// readEvery is the shortest interval between two reads of a watch while events are recorded.
	readEvery = 100 * time.Millisecond
	// replayedAtOnce is the number of recorded events that are read at a time, and replayedPeriod is the
	// longest period: other readers and the writer do not wait for longer.
	replayedAtOnce = 64
	replayedPeriod = time.Hour
)

// A Recorded is an event or a gap that is recorded, or what a watch of them says: that events are missing (LOST), or
// a bookmark with the coverage.
type Recorded struct {
	Type  pb.Watch_Type
	Event *pb.Event
	Gap   *pb.Gap
	// Token resumes the watch after it; empty for an item of the present.
	Token string
	// Coverage and ReachesBackTo belong to a bookmark.
	Coverage      *pb.Coverage
	ReachesBackTo *timestamppb.Timestamp
	at            time.Time
}

// next returns some of the events and gaps of a query after a time and up to another one, and the time up to which
// these are all.
func (r *Records) next(ctx context.Context, q journal.Query, after, until time.Time) (some []Recorded, reached time.Time, err error) {
	oldest := r.Journal.Oldest()
	reached = after
	if begin := oldest.Add(-journal.PresentBefore); reached.Before(begin) {
		reached = begin
	}
	if reached = reached.Add(replayedPeriod); oldest.IsZero() || until.Before(reached) {
		reached = until
	}
	q.After, q.Until = after, reached.Add(time.Microsecond)
	err = r.Journal.Follow(ctx, &q, func(at time.Time, e *pb.Event, g *pb.Gap) bool {
		one := Recorded{Type: pb.Watch_GAP, Event: e, Gap: r.gap(g), at: at}
		if e != nil {
			one.Type = e.GetType()
		}
		some = append(some, one)
		return len(some) < replayedAtOnce
	})
	if len(some) == replayedAtOnce {
		reached = some[len(some)-1].at
	}
	return some, reached, errJournal(err)
}

// oldest returns the time from which on the journal has all events after a time.
func (r *Records) oldest(after time.Time) (time.Time, error) {
	_, from, err := r.Journal.Lost(after, after)
	return from, errJournal(err)
}

// Positions are the times up to which a subscriber has got the events of each cluster.
type Positions map[string]time.Time

// A RecordedWatch is one subscriber to what is recorded. It has no queue: it reads each journal from its position on
// when more is written, so that nothing waits for it.
type RecordedWatch struct {
	// Sources returns the records to follow. changed is closed when there are others; nil if there never are.
	Sources func() (all []*Records, changed <-chan struct{}, err error)
	// Select selects the items that the watch begins with, and the events that follow. Unless Present is set, it
	// begins with the events after Since, or from now on if that is zero.
	Select  Selection
	Present bool
	Since   time.Time
	// Gaps is set if the watch shows gaps.
	Gaps bool
	// Own is set if the records are those of this aggregator, which are complete soon: the watch waits for the state
	// with which they begin, and shows a gap before its end.
	Own      bool
	Coverage func() *pb.Coverage
	// Token returns the token of positions.
	Token func(Positions) string
	// At is where the watch is resumed: everything up to these times was sent. Foreign is set if that was by other
	// journals.
	At      Positions
	Foreign bool
	// Send sends a message, and Flush is called when there is nothing more to send for now.
	Send  func(Recorded) error
	Flush func() error

	mu sync.Mutex // guards At, which only the goroutine of Follow changes
	// oldest has the start of each journal that the subscriber knows: what was before is not lost.
	oldest Positions
	// covered is the coverage that was sent last, and open is the gap that was sent before its end.
	covered *pb.Coverage
	open    *pb.Gap
	all     []*Records
}

// ServeRecorded serves a subscriber. as returns a message as its kind of watch sends it.
func ServeRecorded[M any](stream grpc.ServerStreamingServer[M], stopped <-chan struct{}, w *RecordedWatch, as func(*Recorded) *M) error {
	if w.At == nil {
		w.At = make(Positions)
	}
	received := func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.Token(w.At)
	}
	return Attend(stream, stopped, received, func(ctx context.Context, send func(*M) error, flush func() error) error {
		w.Send, w.Flush = func(m Recorded) error { return send(as(&m)) }, flush
		return w.Follow(ctx)
	})
}

// move notes that everything of a cluster up to a time was sent.
func (w *RecordedWatch) move(name string, to time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.At[name] = to
}

// Has reports whether what the watch begins with was sent of a cluster.
func (w *RecordedWatch) Has(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, has := w.At[name]
	return has
}

// Follow sends what the watch begins with, and then what is recorded. One of its Sends may block forever.
func (w *RecordedWatch) Follow(ctx context.Context) error {
	w.oldest = make(Positions)
	quiet := time.NewTicker(bookmarkEvery)
	defer quiet.Stop()
	for {
		soon := time.After(readEvery)
		all, changed, err := w.Sources()
		if err != nil {
			return err
		}
		w.all = all
		var written []<-chan struct{}
		again := false
		for _, r := range all {
			more, err := w.advance(ctx, r, quiet.C)
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
		if now := w.Coverage(); w.covered == nil || now != w.covered && !proto.Equal(now, w.covered) {
			err = w.mark(now)
		}
		if err := cmp.Or(err, w.Flush()); err != nil {
			return err
		}
		some, stop := context.WithCancel(ctx) // ends when there is more to read
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
		case <-whileAwaited(w.covered):
		case <-quiet.C:
			err = w.mark(w.Coverage())
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

// advance sends what is new in one journal. more is closed when there is more to read; it is nil if the present of all
// clusters has to be sent again.
func (w *RecordedWatch) advance(ctx context.Context, r *Records, quiet <-chan time.Time) (more <-chan struct{}, err error) {
	select {
	case <-r.Journal.Opened():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	until, _, more := r.Journal.Written()
	at, known := w.At[r.Name]
	for r.Journal.Fresh() && (known || w.Present || !w.Since.IsZero()) { // the state with which it begins is arriving
		if !w.Own {
			return more, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		until, _, more = r.Journal.Written()
	}
	switch {
	case known && (w.Foreign || until.Before(at)): // it was another journal, or it has begun again
		if at.IsZero() || until.Before(at) {
			at = until
		}
		if again, err := w.lose(r, at); err != nil || again {
			return nil, err
		}
	case known:
	case w.Present:
		if err := w.present(ctx, r, until); err != nil {
			return more, err
		}
		at = until
	case w.Since.IsZero():
		at = until
	default:
		at = time.UnixMicro(max(0, w.Since.UnixMicro()-1))
		if w.oldest[r.Name], err = r.oldest(at); err != nil {
			return more, err
		}
	}
	w.move(r.Name, at)
	for at.Before(until) {
		some, reached, err := r.next(ctx, w.Select.Changes, at, until)
		if err != nil {
			return more, err
		}
		// What was dropped before this was perhaps not read.
		oldest, err := r.oldest(at)
		if err != nil {
			return more, err
		}
		if oldest.After(at) && oldest.After(w.oldest[r.Name]) {
			if again, err := w.lose(r, at); err != nil || again {
				return nil, err
			}
			continue
		}
		for i := range some {
			m := &some[i]
			if m.Event == nil && !w.Gaps || m.Event != nil && !r.selected(m.Event) {
				continue
			}
			if m.Event != nil {
				r.label(m.Event)
			}
			after := maps.Clone(w.At)
			after[r.Name] = m.at
			m.Token = w.Token(after)
			if err := w.Send(*m); err != nil {
				return more, err
			}
			w.move(r.Name, m.at)
		}
		at = reached
		w.move(r.Name, at)
		select {
		case <-quiet:
			if err := w.mark(w.Coverage()); err != nil {
				return more, err
			}
		default:
		}
	}
	if open := r.Journal.OpenGap(); w.Own && open != nil && (w.open == nil || !proto.Equal(open.GetFrom(), w.open.GetFrom())) {
		w.open = open
		return more, w.Send(Recorded{Type: pb.Watch_GAP, Gap: open, Token: w.Token(w.At)})
	}
	return more, nil
}

// present sends the items of one journal at a time. It reads some at a time, because the journal waits for its readers, and a
// subscriber may be slow.
func (w *RecordedWatch) present(ctx context.Context, r *Records, at time.Time) error {
	var position journal.Position
	for more := true; more; {
		more = false
		var some []*pb.Event
		if err := r.Items(ctx, w.Select, at, position, func(e *pb.Event, p journal.Position) bool {
			some, position = append(some, e), p
			more = len(some) == replayedAtOnce
			return !more
		}); err != nil {
			return err
		}
		for _, e := range some {
			e.Type = pb.Watch_ADDED
			if err := w.Send(Recorded{Type: e.Type, Event: e}); err != nil {
				return err
			}
		}
	}
	return nil
}

// lose tells the subscriber that events since its position are lost. again is set if the present follows.
func (w *RecordedWatch) lose(r *Records, at time.Time) (again bool, err error) {
	w.Foreign = false
	if w.oldest[r.Name], err = r.oldest(at); err != nil {
		return false, err
	}
	w.move(r.Name, at)
	token := w.Token(w.At)
	if w.Present {
		w.mu.Lock()
		clear(w.At)
		w.mu.Unlock()
		w.covered = nil
	}
	return w.Present, w.Send(Recorded{Type: pb.Watch_LOST, Token: token})
}

// mark sends a bookmark.
func (w *RecordedWatch) mark(now *pb.Coverage) error {
	w.covered = now
	return w.Send(Recorded{Type: pb.Watch_BOOKMARK, Token: w.Token(w.At), Coverage: now, ReachesBackTo: reachBackTo(w.all)})
}

// records are those of the aggregator's journal.
func (s *Service) records() []*Records { return []*Records{{Journal: s.Journal}} }

// WatchEvents sends the recorded events since a time or a resume token, then every event as soon as it
// is recorded.
func (s *Service) WatchEvents(q *pb.WatchEventsRequest, stream pb.WitnessService_WatchEventsServer) error {
	if err := s.own(q); err != nil {
		return err
	}
	if s.Journal == nil {
		return errNoJournal
	}
	query, err := SelectEvents(q, s.isNode)
	if err != nil {
		return err
	}
	all, past := s.records(), recorded{instance: instanceText(s.Instance), journal: s.Journal}
	w := &RecordedWatch{
		Sources: func() ([]*Records, <-chan struct{}, error) { return all, nil, nil },
		Select:  Selection{Changes: query}, Since: query.Since, Gaps: true, Own: true,
		Coverage: s.Coverage.Current, Token: func(at Positions) string { return past.within(at[""]).String() },
	}
	if text := q.GetResumeToken(); text != "" {
		token, err := parseResumeToken(text)
		if err != nil {
			return err
		}
		w.At, w.Foreign = Positions{"": token.at}, !past.valid(stream.Context(), token)
	}
	s.EventWatches.Add(1)
	defer s.EventWatches.Add(-1)
	return ServeRecorded(stream, s.Stopped, w, EventMessage)
}

// EventMessage returns a message of a watch of events.
func EventMessage(m *Recorded) *pb.WatchEventsResponse {
	return &pb.WatchEventsResponse{
		Type: m.Type, Event: m.Event, Gap: m.Gap, ResumeToken: m.Token, Coverage: m.Coverage, ReachesBackTo: m.ReachesBackTo,
	}
}

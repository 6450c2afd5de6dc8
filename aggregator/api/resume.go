package api

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// recordedWithin is how long a bookmark waits until the events before it are in the journal.
	recordedWithin = 200 * time.Millisecond
	// readyWithin is how long a watch that resumes waits after a restart for the journal, which waits for
	// the agents that were connected before.
	readyWithin = time.Minute
	// nodesBefore is how much earlier nodes may be recorded than the owners before them, and vice versa.
	nodesBefore = time.Minute
)

// A resumeToken is a position of a watch: INSTANCE-REVISION, in the events of one process, or
// INSTANCE-REVISION-TIME. The time is the same position in the journal, in microseconds since 1970. A
// revision of 0 is not known.
type resumeToken struct {
	instance string
	revision uint64
	at       time.Time
}

func (t resumeToken) String() string {
	text := t.instance + "-" + strconv.FormatUint(t.revision, 36)
	if !t.at.IsZero() {
		text += "-" + strconv.FormatInt(t.at.UnixMicro(), 36)
	}
	return text
}

func parseResumeToken(text string) (t resumeToken, err error) {
	parts := strings.Split(text, "-")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
		return t, errResumeToken
	}
	t.instance = parts[0]
	if t.revision, err = strconv.ParseUint(parts[1], 36, 64); err != nil {
		return t, errResumeToken
	}
	if len(parts) == 3 {
		at, err := strconv.ParseUint(parts[2], 36, 63)
		if err != nil {
			return t, errResumeToken
		}
		t.at = time.UnixMicro(int64(at))
	}
	return t, nil
}

// instanceText returns an instance as tokens have it.
func instanceText(instance int64) string { return strconv.FormatInt(instance, 36) }

// recorded is what the journal has of a watch.
type recorded struct {
	// instance is this process in tokens.
	instance string
	// journal is nil if there is none, or if the watch is that of the journal itself.
	journal *journal.Journal
	kind    pb.Event_Kind
	// query selects the events, and sets their types as a subscriber sees them.
	query journal.Query
	// nodes is set if the watch sends the states of nodes, too.
	nodes bool
	// hasty is set if the journal did not have the events before a bookmark in time.
	hasty bool
}

// seen returns a function that reports whether a subscriber gets a recorded event, and sets its type as
// the subscriber sees it.
func seen(matches func(*pb.Event) bool) func(e, before *pb.Event) bool {
	return func(e, before *pb.Event) (ok bool) {
		is := matches(e)
		was := is
		if before != nil {
			was = matches(before)
		}
		e.Type, ok = change(e.GetType(), was, is)
		return ok
	}
}

// token returns the token of a revision.
func (r *recorded) token(revision uint64) resumeToken {
	t := resumeToken{instance: r.instance, revision: revision}
	if r.journal != nil {
		if m, known := r.journal.MarkOf(r.kind, revision); known {
			t.at = m.At
		}
	}
	return t
}

// settled returns the token of a revision. It waits for a moment until the journal has the events
// before it: such a token outlives this process.
func (r *recorded) settled(ctx context.Context, revision uint64) resumeToken {
	if r.journal == nil {
		return r.token(revision)
	}
	var limit <-chan time.Time
	for {
		latest, known, more := r.journal.Mark(r.kind)
		t := r.token(revision)
		if !t.at.IsZero() {
			r.hasty = false
			return t
		}
		if !known || r.hasty || latest.Revision >= revision {
			return t
		}
		if limit == nil {
			timer := time.NewTimer(recordedWithin)
			defer timer.Stop()
			limit = timer.C
		}
		select {
		case <-more:
		case <-limit:
			r.hasty = true
			return t
		case <-ctx.Done():
			return t
		}
	}
}

// within returns the token of a time in the journal. If the journal cannot be read, it leads to LOST.
func (r *recorded) within(at time.Time) resumeToken {
	instance, _, err := r.journal.Writer(at)
	if err != nil {
		return resumeToken{instance: r.instance}
	}
	return resumeToken{instance: instanceText(instance), at: at}
}

// valid reports whether the journal has the position of a token: the process of the token wrote it.
func (r *recorded) valid(ctx context.Context, t resumeToken) bool {
	if r.journal == nil || t.at.IsZero() {
		return false
	}
	select {
	case <-r.journal.Opened():
	case <-ctx.Done():
		return false
	}
	instance, known, err := r.journal.Writer(t.at)
	return err == nil && known && instanceText(instance) == t.instance
}

// catchUp sends what the journal has recorded since a token, and returns the revision of the events
// that follow. ok is not set if the journal does not have everything since then, or not in time.
func (w *watch[K, T]) catchUp(ctx context.Context, t resumeToken) (next uint64, ok bool, err error) {
	if !w.past.valid(ctx, t) {
		return 0, false, nil
	}
	deadline := time.NewTimer(readyWithin)
	defer deadline.Stop()
	quiet := time.NewTicker(bookmarkEvery)
	defer quiet.Stop()
	at := t.at
	if err := w.markAt(at); err != nil {
		return 0, false, err
	}
	for {
		latest, known, more := w.past.journal.Mark(w.past.kind)
		switch {
		case !known, !at.Before(latest.At) && !w.events.Holds(latest.Revision): // or the journal is too far behind
			if err := w.flush(); err != nil {
				return 0, false, err
			}
			select {
			case <-more:
				continue
			case <-quiet.C:
			case <-deadline.C:
				return 0, false, nil
			case <-ctx.Done():
				return 0, false, ctx.Err()
			}
		case at.Before(latest.At):
			if at, ok, err = w.replay(ctx, at, latest.At); err != nil || !ok {
				return 0, false, err
			}
			select {
			case <-quiet.C:
			default:
				continue
			}
		case w.past.lost(at):
			return 0, false, nil
		default:
			if err := w.nodesSince(ctx, t.at); err != nil {
				return 0, false, err
			}
			return latest.Revision, true, w.mark(ctx, latest.Revision)
		}
		if err := w.markAt(at); err != nil {
			return 0, false, err
		}
	}
}

// lost reports whether the journal lacks events after a time.
func (r *recorded) lost(since time.Time) bool {
	lost, _, err := r.journal.Lost(since, r.journal.Clock())
	return err != nil || len(lost) > 0
}

// replay sends some of the recorded events between two times, and returns the time up to which these
// are all. ok is not set if the journal does not have all of them.
func (w *watch[K, T]) replay(ctx context.Context, after, until time.Time) (reached time.Time, ok bool, err error) {
	if w.past.lost(after) {
		return after, false, nil
	}
	r := Records{Journal: w.past.journal}
	some, reached, err := r.next(ctx, w.past.query, after, until)
	if err != nil {
		return after, false, ctx.Err()
	}
	for _, one := range some {
		e := one.Event
		if e == nil {
			continue // it is the end of a gap in which nothing was lost
		}
		if err := w.send(&message{typ: one.Type, owner: e.GetOwner(), conflict: e.GetConflict(), finding: e.GetFinding()}); err != nil {
			return after, false, err
		}
		w.at.Store(one.at.UnixMicro())
	}
	return reached, true, nil
}

// nodesSince sends the last state of each node that has changed since a time.
func (w *watch[K, T]) nodesSince(ctx context.Context, since time.Time) error {
	if !w.past.nodes {
		return nil
	}
	changed := make(map[string]*pb.Node)
	q := journal.Query{Kind: pb.Event_NODE, After: since.Add(-nodesBefore)}
	if err := w.past.journal.Events(ctx, &q, func(e *pb.Event) bool {
		changed[e.GetNode().GetName()] = e.GetNode()
		return true
	}); err != nil {
		return ctx.Err() // otherwise, the journal is damaged, and the watch continues without it
	}
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		if err := w.send(&message{typ: pb.Watch_NODE, node: changed[name]}); err != nil {
			return err
		}
	}
	return nil
}

// markAt sends a bookmark with a time in the journal up to which all events were sent.
func (w *watch[K, T]) markAt(at time.Time) error {
	w.at.Store(at.UnixMicro())
	return w.send(&message{typ: pb.Watch_BOOKMARK, token: w.past.within(at).String(), coverage: w.coverage()})
}

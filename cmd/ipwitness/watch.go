package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// silence is how long a watch may be without an event: three bookmarks.
	silence = 45 * time.Second
	// A disconnected watch is retried after firstWait, and then after twice the previous time, up to
	// lastWait.
	firstWait = 500 * time.Millisecond
	lastWait  = 10 * time.Second
)

// lasting are the codes of errors with which a retry would fail in the same way.
var lasting = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.FailedPrecondition, codes.OutOfRange,
}

// A watched message is a message of a watch.
type watched interface {
	proto.Message
	GetType() pb.Watch_Type
	GetResumeToken() string
	GetCoverage() *pb.Coverage
}

// watcher follows a watch. It reconnects when it is disconnected, and resumes with the last token.
type watcher[T watched] struct {
	client *client
	notice io.Writer // for messages about disconnects and reconnects; nil for none
	path   string
	query  url.Values
	event  func(T) error
	// connected, if set, is called before the first event of each stream. whole reports whether the stream
	// sends the whole state, which a resumed one does not.
	connected func(whole bool)
	// disconnected, if set, is called when a stream has ended. A watch with it is retried even if the first
	// attempt fails.
	disconnected func(error)
	// resume is the last token, with which the next stream resumes; empty to start from the beginning.
	resume string
}

// run follows the watch until ctx is done. It returns an error only if the first attempt fails, if
// the server rejects the watch, or if event fails.
func (w *watcher[T]) run(ctx context.Context) error {
	connected, wait := w.disconnected != nil, firstWait
	for {
		failed, err := w.stream(ctx, func() {
			if connected && wait > firstWait {
				w.note("The watch continues.")
			}
			connected, wait = true, firstWait
			if w.connected != nil {
				w.connected(w.resume == "")
			}
		})
		refused, _ := errors.AsType[*serverError](err)
		switch {
		case failed:
			return err
		case ctx.Err() != nil:
			return nil
		case refused != nil && refused.resume != "":
			w.resume = refused.resume
			continue // this client was slow, but nothing is lost
		case refused != nil && slices.Contains(lasting, refused.code), !connected:
			return err
		}
		if unreachable, ok := errors.AsType[*unreachableError](err); ok {
			err = unreachable.reason // without the advice
		}
		if wait == firstWait {
			w.note("The watch of %s was disconnected (%s). Reconnecting; stop with Ctrl-C.", w.client.base, form.Visible(err.Error()))
		}
		if w.disconnected != nil {
			w.disconnected(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, lastWait)
	}
}

// note writes a message about the connection.
func (w *watcher[T]) note(format string, args ...any) {
	if w.notice != nil {
		fmt.Fprintf(w.notice, format+"\n", args...)
	}
}

// stream follows one stream to its end. It always returns an error; failed reports whether event has returned it.
func (w *watcher[T]) stream(ctx context.Context, begin func()) (failed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(silence, func() {
		cancel(fmt.Errorf("no event for %s", silence))
	})
	defer quiet.Stop()

	query := maps.Clone(w.query)
	if w.resume != "" {
		query.Set("resume_token", w.resume)
	}
	body, err := w.client.open(ctx, http.MethodGet, w.path, query, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = body.Close() }() // opened for reading only
	lines := json.NewDecoder(body)
	for first := true; ; first = false {
		var event T
		event = event.ProtoReflect().Type().New().Interface().(T)
		if err := w.client.next(ctx, lines, event); err != nil {
			return false, err
		}
		quiet.Reset(silence)
		if first {
			begin()
		}
		if err := w.event(event); err != nil {
			return true, err
		}
		if token := event.GetResumeToken(); token != "" {
			w.resume = token
		} else if event.GetType() == pb.Watch_LOST {
			w.resume = "" // the whole state follows
		}
	}
}

// coverageWatch prints during a watch what the server does not see, each time that it changes.
type coverageWatch struct {
	*query
	last *pb.Coverage
}

// follow handles one event.
func (w *coverageWatch) follow(c *pb.Coverage) error {
	if c == nil || proto.Equal(c, w.last) || w.last == nil && !c.GetIncomplete() && c.GetWithoutFrames() == 0 {
		return nil
	}
	first := w.last == nil
	w.last = c
	if w.format.Whole() {
		return show.Event(w.sys.stdout, w.format, pb.Watch_BOOKMARK.String(), show.Field{Name: "coverage", Value: c})
	}
	w.noteUnseen(c)
	if !first && len(show.Unseen(c)) == 0 {
		w.note("Everything is seen now: %s.", show.Count(int(c.GetHeard()), "node", "nodes"))
	}
	return nil
}

// A tableWatch shows the items of a watch as they appear, change and end.
type tableWatch[E watched, T proto.Message] struct {
	kind show.Kind[T]
	ask  url.Values
	item func(E) T
	// changed reports whether an event is news for programs; nil if all are.
	changed func(pb.Watch_Type, T) bool
	mark    func(E) error // called at each bookmark; may be nil
}

func (t tableWatch[E, T]) run(ctx context.Context, q *query) error {
	seen, table := coverageWatch{query: q}, show.NewWatch(q.sys.stdout, t.kind, q.layout())
	event := func(e E) error {
		if err := seen.follow(e.GetCoverage()); err != nil {
			return err
		}
		table.Of(e.GetCoverage())
		kind, item := e.GetType(), t.item(e)
		switch kind {
		case pb.Watch_ADDED, pb.Watch_UPDATED, pb.Watch_REMOVED:
			if q.format.ForPrograms() {
				if t.changed != nil && !t.changed(kind, item) {
					return nil
				}
				return show.ItemEvent(q.sys.stdout, q.format, kind, t.kind, item)
			}
		case pb.Watch_LOST:
			counted, ok := any(e).(interface{ GetLost() uint32 })
			if !ok { // a node whose changes are lost is sent again
				break
			}
			switch lost := counted.GetLost(); {
			case q.format.Whole():
				return show.Event(q.sys.stdout, q.format, kind.String(), show.Field{Name: "lost", Value: lost})
			case lost == 0:
				q.note("Some events have expired; the current state follows.")
			default:
				q.note("%d events came too fast and were dropped; the current state follows.", lost)
			}
		case pb.Watch_BOOKMARK:
			if t.mark != nil {
				if err := t.mark(e); err != nil {
					return err
				}
			}
		default:
		}
		if q.format.ForPrograms() {
			return nil
		}
		return table.Event(kind, item, q.sys.now())
	}
	connected := func(whole bool) {
		if whole {
			table.Begin()
		}
	}
	path := "/v1/" + t.kind.Plural() + ":watch"
	w := &watcher[E]{client: q.client(), notice: q.sys.stderr, path: path, query: q.within(t.ask), event: event, connected: connected}
	return w.run(ctx)
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"time"

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
	// begin is called before the first event of each stream that sends the whole state, which a
	// resumed stream does not.
	begin func()
	event func(T) error
	// connected and disconnected, if set, are called when a stream begins, before begin, and when it
	// ends. A watch with them is retried even if the first attempt fails.
	connected    func(whole bool)
	disconnected func(error)
	// resume is the last token, with which the next stream resumes; empty to start from the beginning.
	resume string
}

// run follows the watch until ctx is done. It returns an error only if the first attempt fails, if
// the server rejects the watch, or if event fails.
func (w *watcher[T]) run(ctx context.Context) error {
	connected, wait := w.disconnected != nil, firstWait
	for {
		err := w.stream(ctx, func() {
			if connected && wait > firstWait {
				w.note("The watch continues.")
			}
			connected, wait = true, firstWait
			if w.connected != nil {
				w.connected(w.resume == "")
			}
			if w.resume == "" {
				w.begin()
			}
		})
		var refused *serverError
		var failed *eventError
		switch {
		case errors.As(err, &failed):
			return failed.err
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &refused) && refused.resume != "":
			w.resume = refused.resume
			continue // this client was slow, but nothing is lost
		case errors.As(err, &refused) && refused.lasting(), !connected:
			return err
		}
		if wait == firstWait {
			w.note("The watch of %s was disconnected (%s). Reconnecting; stop with Ctrl-C.", w.client.base, form.Visible(why(err).Error()))
		}
		if w.disconnected != nil {
			w.disconnected(why(err))
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

// why returns the reason of an error without the advice.
func why(err error) error {
	if unreachable, ok := errors.AsType[*unreachableError](err); ok {
		return unreachable.reason
	}
	return err
}

// eventError is an error of the function that handles events.
type eventError struct{ err error }

func (e *eventError) Error() string { return e.err.Error() }

// stream follows one stream to its end. It always returns an error.
func (w *watcher[T]) stream(ctx context.Context, begin func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(silence, func() {
		cancel(fmt.Errorf("no event for %s", silence))
	})
	defer quiet.Stop()

	query := url.Values{}
	maps.Copy(query, w.query)
	if w.resume != "" {
		query.Set("resume_token", w.resume)
	}
	body, err := w.client.open(ctx, w.path, query)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // opened for reading only
	lines := bufio.NewReader(body)
	for first := true; ; first = false {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return w.client.unreachable(ctx, err)
		}
		quiet.Reset(silence)
		event, err := w.decode(line)
		if err != nil {
			return err
		}
		if first {
			begin()
		}
		if err := w.event(event); err != nil {
			return &eventError{err}
		}
		if token := event.GetResumeToken(); token != "" {
			w.resume = token
		} else if event.GetType() == pb.Watch_LOST {
			w.resume = "" // the whole state follows
		}
	}
}

// decode reads one line: {"result":EVENT} or {"error":STATUS}.
func (w *watcher[T]) decode(line []byte) (T, error) {
	var event T
	var envelope struct{ Result, Error json.RawMessage }
	if err := json.Unmarshal(line, &envelope); err != nil {
		return event, fmt.Errorf("%s sent a line that is not from an ipwitness server: check --server (%w)", w.client.base, err)
	}
	if err := decodeStatus(envelope.Error); err != nil {
		return event, err
	}
	event = event.ProtoReflect().Type().New().Interface().(T)
	if err := decode(envelope.Result, event); err != nil {
		return event, fmt.Errorf("%s sent an event that is not from an ipwitness server: check --server (%w)", w.client.base, err)
	}
	return event, nil
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
		return show.Event(w.sys.stdout, w.format, pb.Watch_BOOKMARK.String(), "coverage", c)
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
	keep func(T) bool // whether an item is selected; nil for all
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
			if t.keep != nil && !t.keep(item) {
				return nil
			}
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
				return show.Lost(q.sys.stdout, q.format, kind.String(), lost)
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
	w := &watcher[E]{client: q.client(), notice: q.sys.stderr, path: "/v1/" + t.kind.Plural() + ":watch", query: q.within(t.ask), begin: table.Begin, event: event}
	return w.run(ctx)
}

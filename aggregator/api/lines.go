package api

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/apijson"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A linesWriter writes the response to a request. If the response is a stream, it collects lines
// until they are flushed or fill a part. Other responses are passed through.
type linesWriter struct {
	http.ResponseWriter
	// headerOnly is set if the request is a HEAD, stream if the response is a stream, and events if
	// that consists of server-sent events instead of lines of JSON.
	headerOnly, stream, events bool

	// turn is a lock for the fields below: it contains an element while a goroutine uses them. A
	// write may block for readWithin. A channel, unlike a mutex, lets synctest recognize waiting.
	turn  chan struct{}
	lines []byte
	// ended is set when the service sends no more messages, or after a failed write, because the
	// connection may still accept later lines.
	ended error
	// silence runs beat when nothing was written for a while; nil if there are no heartbeats.
	silence *time.Timer
}

func newLinesWriter(w http.ResponseWriter, r *http.Request) *linesWriter {
	return &linesWriter{ResponseWriter: w, headerOnly: r.Method == http.MethodHead, turn: make(chan struct{}, 1)}
}

// Unwrap supports http.ResponseController.
func (w *linesWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *linesWriter) lock()   { w.turn <- struct{}{} }
func (w *linesWriter) unlock() { <-w.turn }

// linesKey is the key of the *linesWriter in the context of a request.
type linesKey struct{}

// errHeaderOnly ends a stream of which only the header was requested.
var errHeaderOnly = errors.New("only the header was requested")

// send adds a message to the stream. The header is written with the first one.
func (w *linesWriter) send(m proto.Message) (err error) {
	w.lock()
	defer w.unlock()
	if w.ended != nil {
		return w.ended
	}
	if !w.stream {
		w.stream = true
		w.Header().Set("Content-Type", streamType)
		w.Header().Set("X-Accel-Buffering", "no") // nginx would collect lines
		if w.events {
			w.Header().Set("Content-Type", eventsType)
			w.lines = append(w.lines, retryAfter...)
		}
		w.WriteHeader(http.StatusOK)
		if w.events && !w.headerOnly {
			w.silence = time.AfterFunc(heartbeatEvery, w.beat)
		}
	}
	if w.headerOnly {
		w.ended = errHeaderOnly
		return w.ended
	}
	out := w.lines
	if event, ok := m.(watchEvent); ok && w.events {
		out, err = appendEvent(out, event.GetType().String(), m, event.GetResumeToken(), event.GetType() == pb.Watch_LOST)
	} else {
		out, err = appendLine(out, "result", m)
	}
	if err != nil {
		return err
	}
	if w.lines = out; len(w.lines) < answerPart {
		return nil
	}
	return w.write()
}

// beat writes a heartbeat.
func (w *linesWriter) beat() {
	w.lock()
	defer w.unlock()
	if w.ended == nil {
		w.lines = append(w.lines, heartbeat...)
		_ = w.write() // which has set ended if it failed
	}
}

// appendLine appends a message as a line of JSON.
func appendLine(out []byte, key string, m proto.Message) (_ []byte, err error) {
	out = append(append(append(out, `{"`...), key...), `":`...)
	if out, err = apijson.Append(out, m); err != nil {
		return nil, err
	}
	return append(out, "}\n"...), nil
}

// write writes the collected lines. The caller holds the lock.
func (w *linesWriter) write() error {
	if len(w.lines) == 0 {
		return nil
	}
	control := http.NewResponseController(w.ResponseWriter)
	_ = control.SetWriteDeadline(time.Now().Add(readWithin)) // as for other responses
	_, err := w.Write(w.lines)
	if err == nil {
		err = control.Flush()
	}
	w.lines = w.lines[:0]
	if err != nil {
		w.lines, w.ended = nil, err
	} else if w.silence != nil {
		w.silence.Reset(heartbeatEvery)
	}
	return err
}

// flush writes the collected lines.
func (w *linesWriter) flush() error {
	w.lock()
	defer w.unlock()
	if w.ended != nil {
		return w.ended
	}
	return w.write()
}

// end ends the stream with the error that the service returned, or nil. It waits for a write in
// progress, and reports whether the stream had begun.
func (w *linesWriter) end(err error) (begun bool) {
	w.lock()
	defer w.unlock()
	if w.silence != nil {
		w.silence.Stop()
		w.silence = nil
	}
	if w.ended != nil {
		return w.stream
	}
	w.ended = io.ErrClosedPipe
	if !w.stream || err == nil {
		return w.stream
	}
	out := w.lines
	if w.events {
		// Browsers dispatch events of the type error themselves.
		out, err = appendEvent(out, "ERROR", status.Convert(err).Proto(), ResumeToken(err), false)
	} else {
		out, err = appendLine(out, "error", status.Convert(err).Proto())
	}
	if err == nil { // all details of errors are of known types
		w.lines = out
	}
	return w.stream
}

// finish writes the remaining data after the end. It fails only if the client is gone.
func (w *linesWriter) finish() {
	w.lock()
	defer w.unlock()
	_ = w.write()
}

const (
	// eventsType is the media type of server-sent events (HTML, section 9.2).
	eventsType = "text/event-stream"
	// retryAfter is how long a browser waits before it reconnects, as a field of the stream.
	retryAfter = "retry: 1000\n\n"
	// heartbeat is a comment, which is sent if there was nothing else to send for heartbeatEvery. Proxies
	// and browsers then see that the connection is alive.
	heartbeat      = ":\n\n"
	heartbeatEvery = 5 * time.Second
	// lastEventID is the header with which a browser resumes: the last id that it received.
	lastEventID = "Last-Event-ID"
)

// wantsEvents reports whether a client prefers server-sent events to lines of JSON: of the two, its
// Accept header has them first.
func wantsEvents(r *http.Request) bool {
	for accepted := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		kind, params, err := mime.ParseMediaType(accepted)
		if err != nil || params["q"] == "0" {
			continue
		}
		switch kind {
		case eventsType:
			return true
		case streamType, "application/json":
			return false
		}
	}
	return false
}

// A watchEvent is a message of a watch.
type watchEvent interface {
	proto.Message
	GetType() pb.Watch_Type
	GetResumeToken() string
}

// appendEvent appends a message of a watch, or the error that ends it, as a server-sent event. The id of an event is
// the token with which the watch continues after it. LOST, which may have no token, has an id nevertheless: if it is empty,
// a browser that is disconnected before the next bookmark starts anew.
func appendEvent(out []byte, typ string, m proto.Message, token string, lost bool) (_ []byte, err error) {
	out = append(append(out, "event: "...), typ...)
	if out, err = apijson.Append(append(out, "\ndata: "...), m); err != nil {
		return nil, err
	}
	if token != "" || lost {
		out = append(append(out, "\nid: "...), token...)
	}
	return append(out, "\n\n"...), nil
}

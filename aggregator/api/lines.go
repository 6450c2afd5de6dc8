package api

import (
	"context"
	"errors"
	"io"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/apijson"
)

// A linesWriter writes the response to a request. If the response is a stream, it collects lines
// until they are flushed or fill a part. Other responses are passed through.
type linesWriter struct {
	*impatient
	// headerOnly is set if the request is a HEAD.
	headerOnly bool

	// turn is a lock for the fields below: it contains an element while a goroutine uses them. A
	// write may block for as long as impatient allows. A channel, unlike a mutex, lets synctest
	// recognize waiting.
	turn  chan struct{}
	lines []byte
	// ended is set when the service sends no more messages, or after a failed write, because the
	// connection may still accept later lines.
	ended error
}

func newLinesWriter(w *impatient, r *http.Request) *linesWriter {
	return &linesWriter{impatient: w, headerOnly: r.Method == http.MethodHead, turn: make(chan struct{}, 1)}
}

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
		w.Header().Set("Content-Type", streamType)
		w.WriteHeader(http.StatusOK)
		w.stream = true
	}
	if w.headerOnly {
		w.ended = errHeaderOnly
		return w.ended
	}
	if err := w.add(`{"result":`, m); err != nil || len(w.lines) < answerPart {
		return err
	}
	return w.write()
}

// add adds a line. The caller holds the lock.
func (w *linesWriter) add(key string, m proto.Message) error {
	lines, err := apijson.Append(append(w.lines, key...), m)
	if err == nil {
		w.lines = append(lines, "}\n"...)
	}
	return err
}

// write writes the collected lines. The caller holds the lock.
func (w *linesWriter) write() error {
	if len(w.lines) == 0 {
		return nil
	}
	_, err := w.impatient.Write(w.lines)
	if err == nil {
		err = http.NewResponseController(w.impatient).Flush()
	}
	w.lines = w.lines[:0]
	if err != nil {
		w.lines, w.ended = nil, err
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
	if w.ended == nil {
		w.ended = io.ErrClosedPipe
		if w.stream && err != nil {
			_ = w.add(`{"error":`, status.Convert(err).Proto()) // all details of errors are known types
		}
	}
	return w.stream
}

// finish writes the remaining data after the end. It fails only if the client is gone.
func (w *linesWriter) finish() {
	w.lock()
	defer w.unlock()
	_ = w.write()
}

// lineServer is the service's end of a stream. It has only the methods that a watch calls.
type lineServer[M any] struct {
	grpc.ServerStream
	ctx   context.Context // of the call
	lines *linesWriter
}

// Context implements grpc.ServerStream.
func (s lineServer[M]) Context() context.Context { return s.ctx }

// Send implements grpc.ServerStreamingServer. The line is written together with later ones, or by
// Flush.
func (s lineServer[M]) Send(m *M) error { return s.lines.send(any(m).(proto.Message)) }

// Flush implements flusher.
func (s lineServer[M]) Flush() error { return s.lines.flush() }

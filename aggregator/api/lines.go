package api

import (
	"context"
	"io"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/apijson"
)

// A linesWriter writes the response to a request. If the response is a stream, it collects lines
// until they are flushed or fill a part. Other responses are passed through.
type linesWriter struct {
	*impatient

	// turn is a lock for the fields below: it contains an element while a goroutine uses them. A
	// write may block for as long as impatient allows. A channel, unlike a mutex, lets synctest
	// recognize waiting.
	turn  chan struct{}
	lines []byte
	// ended is set when the service sends no more messages, or after a failed write, because the
	// connection may still accept later lines.
	ended error
}

func newLinesWriter(w *impatient) *linesWriter {
	return &linesWriter{impatient: w, turn: make(chan struct{}, 1)}
}

func (w *linesWriter) lock()   { w.turn <- struct{}{} }
func (w *linesWriter) unlock() { <-w.turn }

// linesKey is the key of the *linesWriter in the context of a request.
type linesKey struct{}

// WriteHeader implements http.ResponseWriter. The header of a stream is written with its first line.
func (w *linesWriter) WriteHeader(code int) {
	if !w.stream {
		w.impatient.WriteHeader(code)
	}
}

// Write implements io.Writer. In a stream, only the error that ends it is written by this method.
func (w *linesWriter) Write(p []byte) (int, error) {
	if !w.stream {
		return w.impatient.Write(p)
	}
	w.lock()
	defer w.unlock()
	w.lines = append(w.lines, p...)
	return len(p), nil
}

// send adds a message to the stream.
func (w *linesWriter) send(m proto.Message) (err error) {
	w.lock()
	defer w.unlock()
	if w.ended != nil {
		return w.ended
	}
	if !w.stream {
		w.Header().Set("Content-Type", streamType)
		w.impatient.WriteHeader(http.StatusOK)
		w.stream = true
	}
	before := len(w.lines)
	if w.lines, err = apijson.Append(append(w.lines, `{"result":`...), m); err != nil {
		w.lines = w.lines[:before]
		return err
	}
	if w.lines = append(w.lines, "}\n"...); len(w.lines) < answerPart {
		return nil
	}
	return w.write()
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

// end ends the stream: only an error may follow. It waits for a write in progress.
func (w *linesWriter) end() {
	w.lock()
	defer w.unlock()
	if w.ended == nil {
		w.ended = io.ErrClosedPipe
	}
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

// lineClient is the gateway's end of a stream. It has only the methods that the gateway calls.
type lineClient[M any] struct {
	grpc.ClientStream
	serve  func(grpc.ServerStreamingServer[M]) error
	server lineServer[M]
}

// Header implements grpc.ClientStream.
func (lineClient[M]) Header() (metadata.MD, error) { return nil, nil }

// Recv implements grpc.ServerStreamingClient. It serves the whole stream and returns the error that
// ended it. The gateway receives no messages, because the service writes them itself, so no other
// goroutine has to wake up for each message.
func (c lineClient[M]) Recv() (*M, error) {
	err := c.serve(c.server)
	c.server.lines.end()
	if err == nil {
		err = io.EOF
	}
	return nil, err
}

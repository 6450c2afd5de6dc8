package api

import (
	"bufio"
	"context"
	"net/http"
)

// A linesWriter collects the lines of a stream, which the gateway flushes one at a time, until the
// stream has none for the moment. Everything else passes through.
type linesWriter struct {
	http.ResponseWriter
	collected *bufio.Writer // nil before the first line
}

// linesKey is the key of the *linesWriter in the context of a request.
type linesKey struct{}

// Unwrap is for http.ResponseController.
func (w *linesWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write is for io.Writer.
func (w *linesWriter) Write(p []byte) (int, error) {
	if w.Header().Get("Content-Type") != streamType {
		return w.ResponseWriter.Write(p)
	}
	if w.collected == nil {
		w.collected = bufio.NewWriterSize(w.ResponseWriter, answerPart)
	}
	return w.collected.Write(p)
}

// FlushError is for http.ResponseController.
func (w *linesWriter) FlushError() error {
	if w.collected != nil {
		return nil // send does it
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// send sends the lines that are collected.
func (w *linesWriter) send() error {
	if w.collected == nil || w.collected.Buffered() == 0 {
		return nil
	}
	if err := w.collected.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// sendLines sends the lines that are collected for the request of ctx.
func sendLines(ctx context.Context) error {
	if w, ok := ctx.Value(linesKey{}).(*linesWriter); ok {
		return w.send()
	}
	return nil
}

package api

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/access"
)

// sendWithin is how long one Send may block before the caller is disconnected.
const sendWithin = 30 * time.Second

// A server serves the caller of a stream with the functions that it is given: send sends a message, and flush is
// called when there is nothing more to send for now.
type server[M any] func(ctx context.Context, send func(*M) error, flush func() error) error

// patiently runs serve. It returns before serve does if send or flush blocks for too long, with the error of late; if
// the caller's access is revoked; or when stopped is closed, with the error stopping. A Send cannot be cancelled, so
// serve runs in another goroutine.
func patiently[M any](stream grpc.ServerStreamingServer[M], stopped <-chan struct{}, stopping error, late func() error, serve server[M]) error {
	blocked := time.NewTimer(sendWithin)
	blocked.Stop()
	limit := func(do func() error) error {
		blocked.Reset(sendWithin)
		defer blocked.Stop()
		return do()
	}
	send := func(m *M) error { return limit(func() error { return stream.Send(m) }) }
	flush := func() error { return nil }
	if lines, ok := stream.Context().Value(linesKey{}).(*linesWriter); ok {
		flush = func() error { return limit(lines.flush) }
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, send, flush) }()
	select {
	case err := <-done:
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		return err
	case <-blocked.C:
		return late()
	case <-access.Revoked(ctx):
		return access.ErrRevoked
	case <-stopped:
		return stopping
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// Attend runs follow, which serves a subscriber, patiently. token returns the token of the last message that the
// subscriber has received.
func Attend[M any](stream grpc.ServerStreamingServer[M], stopped <-chan struct{}, token func() string, follow server[M]) error {
	return patiently(stream, stopped, errStopping, func() error {
		resume := token()
		s := status.Newf(codes.ResourceExhausted,
			"the watch was disconnected because the client read nothing for %s; watch again with resume_token=%s: no event is lost, "+
				"but the last one may be sent twice", sendWithin, resume)
		if detailed, err := s.WithDetails(&errdetails.ErrorInfo{
			Reason: cutOffReason, Domain: errorDomain, Metadata: map[string]string{resumeTokenKey: resume},
		}); err == nil { // it fails only if the status is OK
			s = detailed
		}
		return s.Err()
	}, follow)
}

const (
	// cutOffReason and errorDomain identify the error for programs (google.rpc.ErrorInfo).
	cutOffReason = "WATCH_CUT_OFF"
	errorDomain  = "ipwitness"
	// resumeTokenKey is the key of the token in the metadata of the ErrorInfo.
	resumeTokenKey = "resume_token"
)

// ResumeToken returns the token to resume with if err ended a watch because its watcher did not
// read, and an empty string otherwise.
func ResumeToken(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetReason() == cutOffReason {
			return info.GetMetadata()[resumeTokenKey]
		}
	}
	return ""
}

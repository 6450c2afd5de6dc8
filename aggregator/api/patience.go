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

// sendWithin is how long one Send may block before the watcher is disconnected.
const sendWithin = 30 * time.Second

// patience limits how long a watch waits for its watcher to read. A Send cannot be cancelled, so
// another goroutine ends the watch.
type patience struct {
	// late fires if one Send takes too long.
	late *time.Timer
}

func newPatience() *patience {
	p := &patience{late: time.NewTimer(sendWithin)}
	p.late.Stop()
	return p
}

// limit runs do with the time limit of p.
func (p *patience) limit(do func() error) error {
	p.late.Reset(sendWithin)
	defer p.late.Stop()
	return do()
}

// Attend runs follow, which serves a subscriber with the functions that it is given: send sends a
// message, and flush is called when there is nothing more to send for now. It returns before follow does if
// one of these blocks for too long, if the caller's access is revoked, or when stopped is closed. token
// returns the token of the last message that the subscriber has received.
func Attend[M any](stream grpc.ServerStreamingServer[M], stopped <-chan struct{}, token func() string, follow func(ctx context.Context, send func(*M) error, flush func() error) error) error {
	p := newPatience()
	send := func(m *M) error { return p.limit(func() error { return stream.Send(m) }) }
	flush := func() error { return nil }
	if lines, ok := stream.Context().Value(linesKey{}).(*linesWriter); ok {
		flush = func() error { return p.limit(lines.flush) }
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- follow(ctx, send, flush) }()
	select {
	case err := <-done:
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		return err
	case <-p.late.C:
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
	case <-access.Revoked(ctx):
		return access.ErrRevoked
	case <-stopped:
		return errStopping
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
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

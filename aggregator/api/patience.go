package api

import (
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// sendWithin is how long a watcher may let one Send wait before it is cut off.
const sendWithin = 30 * time.Second

// patience is how long a watch waits for its watcher to read. A Send cannot be
// given up, so that whoever ends the watch is another goroutine.
type patience struct {
	// late rings while one Send takes too long.
	late *time.Timer
	// from is the revision that the watcher is to resume from: it has all before.
	from atomic.Uint64
}

// anew is a revision before the first: who resumes from it reads LOST with 0 and
// the present state.
const anew = 0

func newPatience() *patience {
	p := &patience{late: time.NewTimer(sendWithin)}
	p.late.Stop()
	return p
}

// patient is a send that p looks at.
func patient[T any](p *patience, send func(*T) error) func(*T) error {
	return func(m *T) error {
		p.late.Reset(sendWithin)
		defer p.late.Stop()
		return send(m)
	}
}

const (
	// cutOffReason and errorDomain name the error for programs (google.rpc.ErrorInfo).
	cutOffReason = "WATCH_CUT_OFF"
	errorDomain  = "ipwitness"
	// resumeTokenKey is what the ErrorInfo has the token by.
	resumeTokenKey = "resume_token"
)

// errCutOff ends a watch whose watcher does not read.
func errCutOff(token string) error {
	s := status.Newf(codes.ResourceExhausted,
		"the watch was cut off: nothing was read for %s; watch again with resume_token=%s: nothing is left out, "+
			"and the event that was under way may come twice", sendWithin, token)
	if detailed, err := s.WithDetails(&errdetails.ErrorInfo{
		Reason: cutOffReason, Domain: errorDomain, Metadata: map[string]string{resumeTokenKey: token},
	}); err == nil { // it has no other error than that s is no error
		s = detailed
	}
	return s.Err()
}

// ResumeToken is what a watch goes on with that ended with err because its
// watcher did not read; empty where it ended otherwise.
func ResumeToken(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetReason() == cutOffReason {
			return info.GetMetadata()[resumeTokenKey]
		}
	}
	return ""
}

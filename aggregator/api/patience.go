package api

import (
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// sendWithin is how long one Send may block before the watcher is disconnected.
const sendWithin = 30 * time.Second

// patience limits how long a watch waits for its watcher to read. A Send cannot be cancelled, so
// another goroutine ends the watch.
type patience struct {
	// late fires if one Send takes too long.
	late *time.Timer
	// from is the revision to resume from: the watcher has received all earlier events.
	from atomic.Uint64
	// at is the same in the journal, in microseconds since 1970, while from is fromStart; 0 if it is not
	// known.
	at atomic.Int64
}

// fromStart is a revision before the first one: a watcher that resumes from it receives LOST with 0, and
// the current state.
const fromStart = 0

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

const (
	// cutOffReason and errorDomain identify the error for programs (google.rpc.ErrorInfo).
	cutOffReason = "WATCH_CUT_OFF"
	errorDomain  = "ipwitness"
	// resumeTokenKey is the key of the token in the metadata of the ErrorInfo.
	resumeTokenKey = "resume_token"
)

// errCutOff returns the error that ends a watch whose watcher does not read.
func errCutOff(token string) error {
	s := status.Newf(codes.ResourceExhausted,
		"the watch was disconnected because the client read nothing for %s; watch again with resume_token=%s: no event is lost, "+
			"but the last one may be sent twice", sendWithin, token)
	if detailed, err := s.WithDetails(&errdetails.ErrorInfo{
		Reason: cutOffReason, Domain: errorDomain, Metadata: map[string]string{resumeTokenKey: token},
	}); err == nil { // it fails only if the status is OK
		s = detailed
	}
	return s.Err()
}

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

package facts

import (
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits for what one node may report: an agent that misbehaves must not take the memory of all.
const (
	MaxClaims     = 250_000 // kernel claims, and as many wire claims
	MaxInterfaces = 100_000
	MaxNamespaces = 50_000
	MaxLinks      = 100_000
	MaxProblems   = 256
	maxNodes      = 20_000
	maxOfOneName  = 16                            // nodes that one agent says it is: it may be rebooted often
	maxSeconds    = math.MaxInt64 / 1_000_000_000 // of a stamp: in the year 2262
)

// TooMany is the error for an agent that reports more than a node may.
func TooMany(what, limit string) error {
	return status.Errorf(codes.ResourceExhausted,
		"the agent reports too many %s: the limit is %s for one node; exclude interfaces that are not to be watched", what, limit)
}

// ErrTakenOver ends a stream when another stream of the same node connects.
var ErrTakenOver = status.Error(codes.Aborted, "another connection of this node's agent took over")

package facts

import (
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What one node may report at most: an agent that counts wrongly must not take
// the memory of all.
const (
	MaxClaims     = 250_000 // kernel claims, and as many wire claims
	MaxInterfaces = 100_000
	MaxNamespaces = 50_000
	MaxLinks      = 100_000
	MaxProblems   = 256
	maxNodes      = 20_000
	maxOfOneName  = 16                            // nodes that one agent says it is: it may be booted often
	maxSeconds    = math.MaxInt64 / 1_000_000_000 // of a stamp: in the year 2262
)

// TooMany is the error for an agent that reports more than a node may.
func TooMany(what, limit string) error {
	return status.Errorf(codes.ResourceExhausted,
		"the agent reports too many %s: the limit is %s for one node; exclude interfaces that are not to be watched", what, limit)
}

// ErrTakenOver is the end of a stream when another one of the node came.
var ErrTakenOver = status.Error(codes.Aborted, "another connection of this node's agent took over")

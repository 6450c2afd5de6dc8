package facts

import (
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits for the records of one node. A misbehaving agent must not use up the memory of all.
const (
	MaxClaims     = 250_000 // kernel claims; the same number of wire claims is allowed, too
	MaxInterfaces = 100_000
	MaxNamespaces = 50_000
	MaxLinks      = 100_000
	MaxProblems   = 256
	maxNodes      = 20_000
	maxOfOneName  = 16                            // nodes per agent name; a machine may reboot often
	maxSeconds    = math.MaxInt64 / 1_000_000_000 // of a Stamp, which ends in the year 2262
)

// TooMany returns the error for an agent that reports more than a node may have.
func TooMany(what, limit string) error {
	return status.Errorf(codes.ResourceExhausted,
		"the agent reports too many %s: the limit is %s for one node; exclude interfaces that need not be watched", what, limit)
}

// ErrTakenOver ends a stream when another stream of the same node connects.
var ErrTakenOver = status.Error(codes.Aborted, "replaced by another connection of this node's agent")

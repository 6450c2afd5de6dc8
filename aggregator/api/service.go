// Package api serves the WitnessService over gRPC and REST: lists, watches, explanations and
// acknowledgements. It holds no state: it reads the state of the other rooms, a few items at a time.
package api

import (
	"sync/atomic"

	"github.com/ipwitness/ipwitness/aggregator/live"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/kube"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Service is the WitnessService. All fields are required, except that Kubernetes is nil if no
// Kubernetes API is configured, and Journal is nil if none is kept.
type Service struct {
	pb.UnimplementedWitnessServiceServer
	Facts            *facts.Facts
	Shards           *judge.Shards
	Kubernetes       *kube.Cluster
	Findings         *judge.Findings
	Acknowledgements *live.Acknowledgements
	Coverage         *live.Coverage
	Convert          *live.Converter
	Events           *live.Events
	Journal          *journal.Journal
	// EventWatches and NodeWatches are the numbers of watches of events and of nodes.
	EventWatches, NodeWatches atomic.Int64
	// Instance identifies this process in resume tokens, and in the journal.
	Instance int64
	// Problems returns descriptions of the problems of the aggregator itself.
	Problems func() []string
	// Version is the version of this program, for cases.
	Version string
	// Stopped is closed when watches must end.
	Stopped <-chan struct{}
}

// Package api serves the WitnessService over gRPC and REST: lists, watches, explanations and
// acknowledgements. It holds no state: it reads the state of the other rooms, a few items at a time.
package api

import (
	"context"
	"sync/atomic"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/report"
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
	Reports          *report.Service // nil if agents cannot be asked
	// EventWatches, NodeWatches and IncidentWatches are the numbers of watches of events, of nodes and of incidents.
	EventWatches, NodeWatches, IncidentWatches atomic.Int64
	// Instance identifies this process in resume tokens, and in the journal.
	Instance int64
	// Problems returns descriptions of the problems of the aggregator itself.
	Problems func() []string
	// Version is the version of this program, for cases.
	Version string
	// Stopped is closed when watches must end.
	Stopped <-chan struct{}
}

// AcknowledgeConflict silences a conflict until the acknowledgement expires, or withdraws it.
func (s *Service) AcknowledgeConflict(ctx context.Context, q *pb.AcknowledgeConflictRequest) (*pb.AcknowledgeConflictResponse, error) {
	c, err := s.Acknowledgements.Acknowledge(q, access.Of(ctx).Name())
	if err != nil {
		return nil, err
	}
	s.Facts.RLock()
	defer s.Facts.RUnlock()
	if now := s.Shards.Conflicts.Get(c.ID); now != nil {
		c = now
	}
	return &pb.AcknowledgeConflictResponse{Conflict: s.Convert.Conflict(c)}, nil
}

package api

import (
	"context"

	"github.com/ipwitness/ipwitness/aggregator/access"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

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

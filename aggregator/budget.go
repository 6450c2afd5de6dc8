package aggregator

import (
	"context"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
)

// refillEvery is the interval at which an incomplete node may be asked for a snapshot.
const refillEvery = 5 * time.Second

// memoryProblem describes in words that records of a node are left out for want of memory.
func (s *store) memoryProblem(n *facts.Node) []string {
	left := n.LeftOut()
	if left == (facts.LeftOut{}) {
		return nil
	}
	_, limit := s.facts.Budget()
	return []string{explain.NoMemory(left.Records, left.Wire, n.Charged(), limit)}
}

// refillNodes asks incomplete nodes for a snapshot once there is room, until ctx is done.
func (s *store) refillNodes(ctx context.Context) {
	ticker := time.NewTicker(refillEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.facts.Refill()
		}
	}
}

package aggregator

import (
	"context"
	"fmt"
	"time"

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
	return []string{fmt.Sprintf(
		"the aggregator has no memory for all that this node reports: %d records of its kernel and IPAM and %d sightings on the wire are left out, "+
			"so that duplicates of them are not seen. The node uses %d MiB of the %d MiB that all nodes share: "+
			"find out why it reports so much (a port that floods, interfaces that are not to be watched), or give the aggregator more memory",
		left.Records, left.Wire, n.Charged()>>20, limit>>20)}
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

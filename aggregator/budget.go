package aggregator

import (
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
)

// memoryProblem describes in words that records of a node are left out for want of memory.
func (s *store) memoryProblem(n *facts.Node) []string {
	left := n.LeftOut()
	if left == (facts.LeftOut{}) {
		return nil
	}
	_, limit := s.facts.Budget()
	return []string{explain.NoMemory(left.Records, left.Wire, n.Charged(), limit)}
}

package convert

import (
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
)

// nameProblem is what is said of a node that shares its name; empty for others.
func (s *Converter) nameProblem(n *facts.Node) []string {
	if !s.Findings.Names.Shared(n) {
		return nil
	}
	others, id := s.Findings.Names.Others(n)
	return []string{explain.SharedName(n.Name, others, id)}
}

// placeProblem is what is said of a node that is not alone where it says that it is;
// empty for others.
func (s *Converter) placeProblem(n *facts.Node) []string {
	if others := s.Facts.InOnePlace(n); others != nil {
		return []string{explain.SharedPlace(others)}
	}
	return nil
}

// memoryProblem describes in words that records of a node are left out for want of memory.
func (s *Converter) memoryProblem(n *facts.Node) []string {
	left := n.LeftOut()
	if left == (facts.LeftOut{}) {
		return nil
	}
	_, limit := s.Facts.Budget()
	return []string{explain.NoMemory(left.Records, left.Wire, n.Charged(), limit)}
}

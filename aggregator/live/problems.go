package live

import (
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
)

// nameProblem returns the problem of a node that shares its name, and nil for other nodes.
func (s *Converter) nameProblem(n *facts.Node) []string {
	if !s.Findings.Names.Shared(n) {
		return nil
	}
	others, id := s.Findings.Names.Others(n)
	return []string{explain.SharedName(n.Name, others, id)}
}

// placeProblem returns the problem that another node reports the same boot ID and network namespace. It
// returns nil for other nodes.
func (s *Converter) placeProblem(n *facts.Node) []string {
	if others := s.Facts.InOnePlace(n); others != nil {
		return []string{explain.SharedPlace(others)}
	}
	return nil
}

// memoryProblem returns the problem that records of a node were left out for lack of memory.
func (s *Converter) memoryProblem(n *facts.Node) []string {
	left := n.LeftOut()
	if left == (facts.LeftOut{}) {
		return nil
	}
	_, limit := s.Facts.Budget()
	return []string{explain.NoMemory(left.Records, left.Wire, n.Charged(), limit)}
}

// tenantProblem returns the problem that the tenants of a node's pods are not known.
func (s *Converter) tenantProblem(n *facts.Node) []string {
	if pods := s.Facts.WithoutTenant(n); pods > 0 {
		return []string{explain.TenantsUnknown(pods, s.Facts.Followed)}
	}
	return nil
}

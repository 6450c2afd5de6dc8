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
	return []string{explain.Text("shared-name", "name", n.Name, "others", explain.Names(others), "finding", id)}
}

// placeProblem returns the problem that another node reports the same boot ID and network namespace. It
// returns nil for other nodes.
func (s *Converter) placeProblem(n *facts.Node) []string {
	if others := s.Facts.InOnePlace(n); others != nil {
		return []string{explain.Text("shared-place", "others", explain.Names(others))}
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
	return []string{explain.Text("no-memory", "records", left.Records, "sightings", left.Wire, "used", n.Charged()>>20, "limit", limit>>20)}
}

// tenantProblem returns the problem that the tenants of a node's pods are not known.
func (s *Converter) tenantProblem(n *facts.Node) []string {
	if pods := s.Facts.WithoutTenant(n); pods > 0 {
		key := "tenants-unknown"
		if s.Facts.Followed {
			key += "/followed"
		}
		return []string{explain.Text(key, "pods", pods)}
	}
	return nil
}

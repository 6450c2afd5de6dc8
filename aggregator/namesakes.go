package aggregator

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// namesakes are the nodes that are heard from, by what they call themselves. They are behind the
// lock of the facts.
type namesakes struct {
	byName map[string][]*facts.Node
	// called is by which name a node is there.
	called map[*facts.Node]string
	// found has the nodes that share their name and, as false, those that are asked
	// whether they are there: when a machine was booted, the stream of before may be
	// open for a while, and is none of a second node.
	found map[*facts.Node]bool
}

func newNamesakes() namesakes {
	return namesakes{byName: make(map[string][]*facts.Node), called: make(map[*facts.Node]string), found: make(map[*facts.Node]bool)}
}

// checkNames looks whether a node has its name for itself: after it came, left, or
// was called otherwise.
func (s *store) checkNames(n *facts.Node) {
	names := &s.names
	live := n.Peer != nil && !n.Rec.Unheard
	before, was := names.called[n]
	if was && (!live || before != n.Name) {
		delete(names.called, n)
		delete(names.found, n)
		names.byName[before] = slices.DeleteFunc(names.byName[before], func(other *facts.Node) bool { return other == n })
		s.checkName(before)
		was = false
	}
	if !live {
		return
	}
	if !was {
		names.called[n] = n.Name
		names.byName[n.Name] = append(names.byName[n.Name], n)
	}
	s.checkName(n.Name)
}

// answered tells that a node is there, just now.
func (s *store) answered(n *facts.Node) {
	n.LastHeard = s.clock()
	if found, ok := s.names.found[n]; ok && !found {
		s.checkNames(n)
	}
}

// checkName looks which nodes are there that have a name.
func (s *store) checkName(name string) {
	names := &s.names
	nodes := names.byName[name]
	if len(nodes) == 0 {
		delete(names.byName, name)
	}
	var newest verdict.Stamp
	for _, n := range nodes {
		newest = max(newest, n.ConnectedAt)
	}
	var sure []*facts.Node
	for _, n := range nodes {
		if names.found[n] || n.LastHeard >= newest {
			sure = append(sure, n)
		} else {
			names.found[n] = false
			n.Peer.Ping(s.clock())
		}
	}
	id := audit.NamesID(&s.policy, name)
	if len(sure) < 2 {
		for _, n := range sure {
			delete(names.found, n)
		}
		s.endFinding(id, false)
		return
	}
	for _, n := range sure {
		names.found[n] = true
	}
	f := audit.Names(&s.policy, name, machines(sure))
	s.tellFinding(&f)
}

// machines are the nodes as a finding tells of them.
func machines(nodes []*facts.Node) (list []verdict.Machine) {
	for _, n := range nodes {
		list = append(list, verdict.Machine{
			Name: n.Rec.Name, Boot: n.ID.Boot, Netns: n.ID.Netns, Kernel: n.Kernel, Version: n.Version, Since: n.ConnectedAt,
		})
	}
	return list
}

// nameProblem is what is said of a node that shares its name; empty for others.
func (s *store) nameProblem(n *facts.Node) []string {
	if !s.names.found[n] {
		return nil
	}
	var others []string
	id := audit.NamesID(&s.policy, n.Name)
	if f := s.findings.said(id); f != nil {
		for _, m := range f.Namesakes.Machines {
			if m.Name != n.Rec.Name {
				others = append(others, m.Name)
			}
		}
	}
	return []string{explain.SharedName(n.Name, others, id)}
}

// placeProblem is what is said of a node that is not alone where it says that it is;
// empty for others.
func (s *store) placeProblem(n *facts.Node) []string {
	if others := s.facts.InOnePlace(n); others != nil {
		return []string{explain.SharedPlace(others)}
	}
	return nil
}

package aggregator

import (
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// namesakes are the nodes that are heard from, by what they call themselves.
type namesakes struct {
	byName map[string][]*node
	// called is by which name a node is there.
	called map[*node]string
	// found has the nodes that share their name and, as false, those that are asked
	// whether they are there: when a machine was booted, the stream of before may be
	// open for a while, and is none of a second node.
	found map[*node]bool
}

func newNamesakes() namesakes {
	return namesakes{byName: make(map[string][]*node), called: make(map[*node]string), found: make(map[*node]bool)}
}

// checkNames looks whether a node has its name for itself: after it came, left, or
// was called otherwise.
func (s *store) checkNames(n *node) {
	names := &s.findings.namesakes
	live := n.session != nil && !n.rec.Unheard
	before, was := names.called[n]
	if was && (!live || before != n.name) {
		delete(names.called, n)
		delete(names.found, n)
		names.byName[before] = slices.DeleteFunc(names.byName[before], func(other *node) bool { return other == n })
		s.checkName(before)
		was = false
	}
	if !live {
		return
	}
	if !was {
		names.called[n] = n.name
		names.byName[n.name] = append(names.byName[n.name], n)
	}
	s.checkName(n.name)
}

// answered tells that a node is there, just now.
func (s *store) answered(n *node) {
	n.lastHeard = s.clock()
	if found, ok := s.findings.found[n]; ok && !found {
		s.checkNames(n)
	}
}

// checkName looks which nodes are there that have a name.
func (s *store) checkName(name string) {
	names := &s.findings.namesakes
	nodes := names.byName[name]
	if len(nodes) == 0 {
		delete(names.byName, name)
	}
	var newest verdict.Stamp
	for _, n := range nodes {
		newest = max(newest, n.connectedAt)
	}
	var sure []*node
	for _, n := range nodes {
		if names.found[n] || n.lastHeard >= newest {
			sure = append(sure, n)
		} else {
			names.found[n] = false
			n.session.ping(s.clock())
		}
	}
	id := audit.NamesID(&s.policy, name)
	if len(sure) < 2 {
		for _, n := range sure {
			delete(names.found, n)
		}
		s.dropFinding(id)
		return
	}
	for _, n := range sure {
		names.found[n] = true
	}
	f := audit.Names(&s.policy, name, machines(sure))
	s.tellFinding(nil, &f)
}

// machines are the nodes as a finding tells of them.
func machines(nodes []*node) (list []verdict.Machine) {
	for _, n := range nodes {
		list = append(list, verdict.Machine{
			Name: n.rec.Name, Boot: n.id.boot, Netns: n.id.netns, Kernel: n.kernel, Version: n.version, Since: n.connectedAt,
		})
	}
	return list
}

// nameProblem is what is said of a node that shares its name; empty for others.
func (s *store) nameProblem(n *node) []string {
	if !s.findings.found[n] {
		return nil
	}
	var others []string
	id := audit.NamesID(&s.policy, n.name)
	if f := s.findings.said(id); f != nil {
		for _, m := range f.Namesakes.Machines {
			if m.Name != n.rec.Name {
				others = append(others, m.Name)
			}
		}
	}
	return []string{explain.SharedName(n.name, others, id)}
}

// inOnePlace are the names of the other nodes that say that they are where a node says that it
// is.
func (s *store) inOnePlace(n *node) (others []string) {
	for other := s.places.get(n.id.place()); other != nil; other = other.alike {
		if other != n && !other.rec.Unheard && !n.rec.Unheard {
			others = append(others, other.rec.Name)
		}
	}
	slices.Sort(others)
	return others
}

// placeProblem is what is said of a node that is not alone where it says that it is;
// empty for others.
func (s *store) placeProblem(n *node) []string {
	if others := s.inOnePlace(n); others != nil {
		return []string{explain.SharedPlace(others)}
	}
	return nil
}

// warnOfPlace tells the log of a node that came and is not alone where it says that it is.
func (s *store) warnOfPlace(n *node) {
	s.mu.Lock()
	name, others, now := n.rec.Name, s.inOnePlace(n), s.clock()
	s.mu.Unlock()
	if others != nil && s.complaints.first(name, "place "+strings.Join(others, " "), now) {
		s.log.Warn("two nodes say that they are in one place", "node", name, "problem", explain.SharedPlace(others))
	}
}

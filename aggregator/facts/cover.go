package facts

import (
	"slices"
	"strings"
	"time"
)

// coverFor is how long a cached result is used if nothing is known to have changed.
const coverFor = time.Second

// Label returns the part that all spellings of a node's name share: in lower case and without the
// domain.
func Label(name string) string {
	first, _, _ := strings.Cut(strings.ToLower(name), ".")
	return first
}

// coverageChanged discards the cached result.
func (f *Facts) coverageChanged() {
	f.coverage.mu.Lock()
	f.coverage.at = 0
	f.coverage.mu.Unlock()
	f.changes.Coverage = true
}

// reports reports whether an agent reports for the node with a name and can see into its pods.
func (f *Facts) reports(name string) bool {
	return slices.ContainsFunc(f.called[name], func(n *Node) bool { return n.Covers() })
}

// Reporting returns a function that reports whether an agent reports for a node, given by any
// spelling of its name. The caller holds the lock.
func (f *Facts) Reporting() func(name string) bool {
	var called map[string][]*Node
	return func(name string) bool {
		if f.reports(name) {
			return true
		}
		if called == nil {
			called = make(map[string][]*Node, len(f.byID))
			for n := range f.Nodes {
				called[Label(n.Name)] = append(called[Label(n.Name)], n)
			}
		}
		return slices.ContainsFunc(called[Label(name)], func(n *Node) bool { return n.Covers() && n.Rec.Called(name) })
	}
}

// covered reports whether everything on the node with a name is known. The caller holds the lock.
func (f *Facts) covered(name string) bool {
	if f.reports(name) {
		return true
	}
	if shown := f.shown[name]; len(shown) > 0 { // the displayed name is longer if two nodes share a name
		return shown[len(shown)-1].Covers()
	}
	for n := range f.Nodes {
		if n.Covers() && n.Rec.Called(name) {
			return true
		}
	}
	return false
}

// coveredAll reports whether everything on all nodes is known.
func (f *Facts) coveredAll() bool {
	f.coverage.mu.Lock()
	defer f.coverage.mu.Unlock()
	now := f.now()
	if f.coverage.at != 0 && now.Sub(f.coverage.at) < coverFor {
		return f.coverage.all
	}
	all, asked := false, false
	if f.Followed {
		all, asked = f.Kubernetes.NodesCovered(f.Reporting())
	}
	if !asked {
		all = len(f.byID) > 0
	}
	for n := range f.Nodes {
		if n.Rec.Unheard && !n.Rec.TimedOut || n.Blind() {
			all = false
		}
	}
	f.coverage.at, f.coverage.all = now, all
	return all
}

// Shown returns the nodes with a name for display. The caller holds the lock.
func (f *Facts) Shown(name string) []*Node { return f.shown[name] }

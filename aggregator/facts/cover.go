package facts

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// coverFor is how long a cached result is used if nothing is known to have changed.
const coverFor = time.Second

// cover caches whether all nodes are covered. It has its own lock because readers of the facts
// update it.
type cover struct {
	*Facts

	mu  sync.Mutex
	at  verdict.Stamp
	all bool
}

// Label returns the part that all spellings of a node's name share: in lower case and without the
// domain.
func Label(name string) string {
	first, _, _ := strings.Cut(strings.ToLower(name), ".")
	return first
}

// coverageChanged discards the cached result.
func (f *cover) coverageChanged() {
	f.mu.Lock()
	f.at = 0
	f.mu.Unlock()
	f.Listener.CoverageChanged()
}

// reports reports whether an agent reports for the node with a name and can see into its pods.
func (f *cover) reports(name string) bool {
	return slices.ContainsFunc(f.called[name], func(n *Node) bool { return n.Covers() })
}

// Reporting returns a function that reports whether an agent reports for a node, given by any
// spelling of its name. The caller holds the lock.
func (f *cover) Reporting() func(name string) bool {
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
func (f *cover) covered(name string) bool {
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
func (f *cover) coveredAll() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if f.at != 0 && now.Sub(f.at) < coverFor {
		return f.all
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
	f.at, f.all = now, all
	return all
}

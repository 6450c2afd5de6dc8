package facts

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// coverFor is how long a cached result is used if no change is known.
const coverFor = time.Second

// cover caches briefly whether all nodes are covered. It has a lock of its own, because readers of
// the facts write it too.
type cover struct {
	*Facts

	mu  sync.Mutex
	at  verdict.Stamp
	all bool
}

// Label returns what all spellings of a node's name have in common: it is in lower case and without
// a domain.
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

// reports reports whether an agent reports for the node with a name, and sees into its pods.
func (f *cover) reports(name string) bool {
	return slices.ContainsFunc(f.called[name], func(n *Node) bool { return n.Covers() })
}

// Reporting is Covered for many names, which others have for nodes: in capitals, or with a domain
// or without. The caller holds the lock.
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

// Covered reports whether everything on the node with a name is known. The caller holds the lock.
func (f *cover) Covered(name string) bool { return f.covered(name) }

func (f *cover) covered(name string) bool {
	if f.reports(name) {
		return true
	}
	if shown := f.shown[name]; len(shown) > 0 { // under a longer name, if two nodes share one
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

package explain

import "github.com/ipwitness/ipwitness/aggregator/verdict"

// Told is a finding in words. Nothing here runs anything.
type Told struct {
	// Summary is one or two sentences for a person.
	Summary string
	// Evidence lists the facts that the finding follows from.
	Evidence []string
	// Remedy is the steps to take, in order.
	Remedy []Action
	// Fixes are commands that would put it right, in order.
	Fixes []Fix
}

// Fix is one step that would put IPAM right.
type Fix struct {
	// Node is where to run it; empty for anywhere with kubectl.
	Node string
	// What it does and why.
	What string
	// Command is of POSIX shell, can run twice, and does nothing where the state is
	// not as it was found.
	Command string
	// Manual tells that it is not to be run as it is.
	Manual bool
}

// Finding puts a finding into words. For a finding about one address, use is how full its pool is
// now, the zero value if that is not known.
func Finding(f *verdict.Finding, use verdict.PoolUse) Told {
	switch f.Kind {
	case verdict.FindingIPAMStateLost, verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion:
		return tellPool(f).readable()
	case verdict.FindingPodCIDROverlap, verdict.FindingRangesOverlap:
		return tellOverlap(f).readable()
	case verdict.FindingDuplicateNodeName:
		return tellNamesakes(f.Namesakes).readable()
	}
	return tellAddress(f, use).readable()
}

// Superseded returns the words for a finding that ended because it has become a conflict.
func (t Told) Superseded() Told {
	t.Summary = "It has become a conflict. Before: " + t.Summary
	return t
}

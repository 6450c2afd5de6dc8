package explain

import "github.com/ipwitness/ipwitness/aggregator/form"

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

// Superseded returns the words for a finding that ended because it has become a conflict.
func (t Told) Superseded() Told {
	t.Summary = "It has become a conflict. Before: " + t.Summary
	return t
}

// readable returns t without commands that cannot be read.
func (t Told) readable() Told {
	readable(t.Remedy)
	for i, f := range t.Fixes {
		if form.Withheld(f.Command) {
			t.Fixes[i] = Fix{Node: f.Node, What: f.What + " " + withheld, Manual: true}
		}
	}
	return t
}

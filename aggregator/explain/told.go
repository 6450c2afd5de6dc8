package explain

import "github.com/ipwitness/ipwitness/aggregator/form"

// Told is the text of a finding. Nothing here runs a command.
type Told struct {
	// Summary is one or two sentences.
	Summary string
	// Evidence lists the facts that the finding follows from.
	Evidence []string
	// Remedy lists the steps to take, in order.
	Remedy []Action
	// Fixes lists the commands that repair IPAM, in order.
	Fixes []Fix
}

// Fix is one step that repairs IPAM.
type Fix struct {
	// Node is the node to run the command on; empty for any host with kubectl.
	Node string
	// What says what the step does and why.
	What string
	// Command is a POSIX shell script. It can run more than once, and does nothing if the
	// state is no longer as it was found.
	Command string
	// Manual marks a step that must not be run without a person's decision.
	Manual bool
}

// Superseded returns the text of a finding that ended because it became a conflict.
func (t Told) Superseded() Told {
	t.Summary = "This finding has become a conflict. It said: " + t.Summary
	return t
}

// readable returns t without commands that contain unreadable names.
func (t Told) readable() Told {
	readable(t.Remedy)
	for i, f := range t.Fixes {
		if form.Withheld(f.Command) {
			t.Fixes[i] = Fix{Node: f.Node, What: f.What + " " + withheld, Manual: true}
		}
	}
	return t
}

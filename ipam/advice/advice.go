// Package advice has the types of repair steps and commands, the texts that they come from, and quotes words for
// a shell. It imports no other package of ipwitness. Nothing here runs a command.
package advice

import "fmt"

// Advice is what a finding is based on, and what to do about it.
type Advice struct {
	// Evidence lists the facts that the finding follows from.
	Evidence []string
	// Remedy lists the steps to take, in order.
	Remedy []Action
	// Fixes lists the commands that repair IPAM, in order.
	Fixes []Fix
}

// An Action is one step to resolve a conflict or a finding. Actions are carried out in order
// and as written. No action may take the address from its rightful owner.
type Action struct {
	// Text says what to do. For a choice, it says how to decide, and which person can decide.
	Text string
	// Command is a POSIX shell command for the step; empty if no command can do it.
	Command string
	// Node is the node to run the command on; empty for any host with kubectl or ipwitness.
	Node string
	// Choice lists alternatives, of which exactly one must be carried out.
	Choice []Alternative
	// Verify is set for a step that only checks whether the others have helped.
	Verify bool
}

// An Alternative is one of several ways to proceed, of which exactly one must be carried out.
type Alternative struct {
	// When is the condition of this alternative, as a clause.
	When    string
	Actions []Action
}

// A Fix is one step that repairs IPAM.
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

// State adds a fact to the evidence.
func (a *Advice) State(format string, args ...any) {
	a.Evidence = append(a.Evidence, fmt.Sprintf(format, args...))
}

// Act adds actions.
func (a *Advice) Act(actions ...Action) { a.Remedy = append(a.Remedy, actions...) }

// Add adds the steps and the commands of other advice.
func (a *Advice) Add(more Advice) {
	a.Act(more.Remedy...)
	a.Fixes = append(a.Fixes, more.Fixes...)
}

// Fix adds a command.
func (a *Advice) Fix(f Fix) { a.Fixes = append(a.Fixes, f) }

// Either returns an alternative.
func Either(when string, actions ...Action) Alternative {
	return Alternative{When: when, Actions: actions}
}

// ShortID returns a container ID in its usual short form.
func ShortID(id string) string { return id[:min(len(id), 12)] }

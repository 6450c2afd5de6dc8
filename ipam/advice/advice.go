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

// Say returns an action without a command.
func Say(format string, args ...any) Action { return Action{Text: fmt.Sprintf(format, args...)} }

// By returns the action with a command to run on a node, or, if node is empty, on any host with
// kubectl.
func (a Action) By(node, command string) Action {
	a.Node, a.Command = node, command
	return a
}

// Or returns the action with alternatives.
func (a Action) Or(alternatives ...Alternative) Action {
	a.Choice = alternatives
	return a
}

// Either returns an alternative.
func Either(when string, actions ...Action) Alternative {
	return Alternative{When: when, Actions: actions}
}

// MakePlan is the command that writes the script that repairs IPAM.
const MakePlan = "ipwitness audit --fix-plan > plan.sh"

// RunPlan returns the command that runs the part of the repair plan for a node, or for the cluster
// if node is empty.
func RunPlan(node string) string {
	if node == "" {
		return "sh plan.sh cluster"
	}
	return "sh plan.sh node " + Quote(node)
}

// Plan returns the steps that write the script that repairs IPAM and run its part for a node.
// An empty node means the part for the cluster.
func Plan(node string) []Action {
	part := "the cluster"
	if node != "" {
		part = "node " + node
	}
	return []Action{
		Say("Generate the repair plan.").By("", MakePlan),
		Say("Review plan.sh, then run its part for %s.", part).By(node, RunPlan(node)),
	}
}

// Cordon returns the action that stops new pods from starting on a node.
func Cordon(node string) Action {
	return Say("Start no pods on node %s until this is repaired. DaemonSet pods still start on a cordoned node.", node).By("", "kubectl cordon "+Argument(node))
}

// Uncordon returns the action that reverts Cordon.
func Uncordon(node string) Action {
	return Say("Allow pods on node %s again.", node).By("", "kubectl uncordon "+Argument(node))
}

// Drain returns the action that moves the pods of a node to other nodes.
func Drain(node string) Action {
	return Say("Move the pods of node %s to other nodes.", node).By("", "kubectl drain --ignore-daemonsets --delete-emptydir-data "+Argument(node))
}

// ShortID returns a container ID in its usual short form.
func ShortID(id string) string { return id[:min(len(id), 12)] }

package explain

import "fmt"

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

// say returns an action without a command.
func say(format string, args ...any) Action { return Action{Text: fmt.Sprintf(format, args...)} }

// by returns the action with a command to run on a node, or, if node is empty, on any host with
// kubectl.
func (a Action) by(node, command string) Action {
	a.Node, a.Command = node, command
	return a
}

// either returns an alternative.
func either(when string, actions ...Action) Alternative {
	return Alternative{When: when, Actions: actions}
}

// or returns the action with alternatives.
func (a Action) or(alternatives ...Alternative) Action {
	a.Choice = alternatives
	return a
}

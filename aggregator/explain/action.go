package explain

import "fmt"

// An Action is one step to resolve a conflict or a finding. Actions are carried out in order
// and as written. No action may take the address from its rightful owner.
type Action struct {
	// Text says what to do. For a choice, it says how to decide, and which person knows.
	Text string
	// Command is a POSIX shell command for the step; empty if the step needs other means.
	Command string
	// Node is the node to run the command on; empty for any host with kubectl or ipwitness.
	Node string
	// Choice has alternatives, of which exactly one is to be carried out.
	Choice []Alternative
}

// An Alternative is one of several ways, of which exactly one is to be carried out.
type Alternative struct {
	// When is the condition for this alternative, as a clause.
	When    string
	Actions []Action
}

// say returns an action without a command.
func say(format string, args ...any) Action { return Action{Text: fmt.Sprintf(format, args...)} }

// by returns the action with a command, to be run on a node or wherever kubectl works.
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

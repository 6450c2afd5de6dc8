package verdict

import "fmt"

// Action is one thing to do about a conflict or a finding. Actions are carried out in their
// order, each as it is written: none of them may take the address from its rightful owner.
type Action struct {
	// Text says what to do; where there is a choice, what decides it, and who can tell.
	Text string
	// Command is of POSIX shell and does it; empty where it must be done in another way.
	Command string
	// Node is where to run the command; empty for anywhere with kubectl or ipwitness.
	Node string
	// Choice has alternatives, of which exactly one is to be carried out.
	Choice []Alternative
}

// Alternative is one of several ways, of which exactly one is to be taken.
type Alternative struct {
	// When says when this is the one to take, as a clause.
	When    string
	Actions []Action
}

// say is an action for a person.
func say(format string, args ...any) Action { return Action{Text: fmt.Sprintf(format, args...)} }

// by is the action with a command that does it, on a node or wherever kubectl works.
func (a Action) by(node, command string) Action {
	a.Node, a.Command = node, command
	return a
}

// either is an alternative.
func either(when string, actions ...Action) Alternative {
	return Alternative{When: when, Actions: actions}
}

// or is the action with alternatives.
func (a Action) or(alternatives ...Alternative) Action {
	a.Choice = alternatives
	return a
}

package explain

import "github.com/ipwitness/ipwitness/aggregator/form"

// Names come from agents and APIs, and anyone who creates a container or an interface can choose
// them. A printed command must not run anything that is part of a name.

// quote returns a text as one word of a POSIX shell.
func quote(s string) string { return form.Quote(s) }

// argument returns a text as the last argument of a command, so that the command does not
// interpret it as an option.
func argument(s string) string { return form.Argument(s) }

// withheld replaces a command that contains invisible characters.
const withheld = "The command is withheld because a name in it has unprintable characters, is too long or looks like an option. Handle this step by hand."

// readable returns actions with withheld in place of each command that contains an unreadable name.
func readable(actions []Action) []Action {
	for i := range actions {
		a := &actions[i]
		switch {
		case form.Withheld(a.Text):
			a.Text, a.Command = "There is one more step. "+withheld, ""
		case form.Withheld(a.Command):
			a.Text, a.Command = a.Text+" "+withheld, ""
		}
		a.Node = form.Visible(a.Node)
		for n := range a.Choice {
			a.Choice[n].When = form.Visible(a.Choice[n].When)
			readable(a.Choice[n].Actions)
		}
	}
	return actions
}

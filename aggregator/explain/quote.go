package explain

import "github.com/ipwitness/ipwitness/aggregator/form"

// Names come from agents and from APIs, and from whoever made a container or an
// interface. What is printed to be run must not run anything of theirs.

// quote is a text as a word of a POSIX shell.
func quote(s string) string { return form.Quote(s) }

// argument is a text as the last argument of a command, which must not take it for an
// option.
func argument(s string) string { return form.Argument(s) }

// withheld replaces a command that contains invisible characters.
const withheld = "Its command is withheld: a name in it has characters that cannot be printed, was too long or looks like an option, so that nobody could tell what the command does. Look at it by hand."

// readable returns actions with withheld in place of each command that cannot be read.
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

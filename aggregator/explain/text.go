package explain

import (
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/proto/form"
)

// FindingText is the text of a finding.
type FindingText struct {
	// Summary is one or two sentences.
	Summary string
	advice.Advice
}

// Superseded returns the text of a finding that ended because it became a conflict.
func (t FindingText) Superseded() FindingText {
	t.Summary = "This finding has become a conflict. Its summary was: " + t.Summary
	return t
}

// withheld replaces a command that contains invisible characters.
const withheld = "The command is withheld because a name in it has unprintable characters, is too long or looks like an option. Handle this step by hand."

// readable returns t without commands that contain unreadable names.
func (t FindingText) readable() FindingText {
	readable(t.Remedy)
	for i, f := range t.Fixes {
		if advice.Withheld(f.Command) {
			t.Fixes[i] = advice.Fix{Node: f.Node, What: f.What + " " + withheld, Manual: true}
		}
	}
	return t
}

// readable returns actions with withheld in place of each command that contains an unreadable name.
func readable(actions []advice.Action) []advice.Action {
	for i := range actions {
		a := &actions[i]
		switch {
		case advice.Withheld(a.Text):
			a.Text, a.Command = "There is one more step. "+withheld, ""
		case advice.Withheld(a.Command):
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

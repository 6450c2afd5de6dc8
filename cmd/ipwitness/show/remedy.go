package show

import (
	"fmt"
	"strings"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// remedy adds the actions of a remedy, numbered in their order. Alternatives have letters;
// exactly one of them is to be carried out. Commands are on separate lines below the node
// on which to run them.
func (p *page) remedy(actions []*pb.Action) {
	if len(actions) == 0 {
		return
	}
	p.heading("What to do:")
	p.actions("  ", actions)
}

// indent is the additional indentation of lines that belong to the line above. They align
// with its text.
const indent = "   "

// command returns the command of an action. If it invokes this program where the user is, it does so as
// the user has invoked it.
func (p *page) command(a *pb.Action) string {
	arguments, own := strings.CutPrefix(a.GetCommand(), "ipwitness ")
	if !own || a.GetNode() != "" || p.layout.Program == "" {
		return a.GetCommand()
	}
	return p.layout.Program + " " + arguments
}

func (p *page) actions(margin string, actions []*pb.Action) {
	for i, a := range actions {
		p.text(fmt.Sprintf("%s%d. ", margin, i+1), a.GetText())
		if a.GetNode() != "" && a.GetCommand() != "" {
			p.line("%s%sOn node %s:", margin, indent, a.GetNode())
		}
		for line := range strings.Lines(p.command(a)) {
			p.line("%s%s  %s", margin, indent, strings.TrimRight(line, "\n"))
		}
		for k, alternative := range a.GetChoice() {
			word := "EITHER"
			if k > 0 {
				word = "OR"
			}
			p.text(fmt.Sprintf("%s%s%s %c) ", margin, indent, word, 'a'+rune(k)), alternative.GetWhen()+":")
			p.actions(margin+indent+indent, alternative.GetActions())
		}
	}
}

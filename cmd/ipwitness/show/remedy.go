package show

import (
	"strings"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// remedy adds what to do: actions by number, in their order; alternatives by letter, of
// which exactly one is to be taken. A command stands on lines of its own, below the node
// that it is for.
func (p *page) remedy(actions []*pb.Action) {
	if len(actions) == 0 {
		return
	}
	p.line("")
	p.line("What to do:")
	p.actions("  ", actions)
}

// indent is how much further in that is which belongs to a line: as far as its text begins.
const indent = "   "

func (p *page) actions(margin string, actions []*pb.Action) {
	for i, a := range actions {
		p.line("%s%d. %s", margin, i+1, a.GetText())
		if a.GetNode() != "" && a.GetCommand() != "" {
			p.line("%s%sOn node %s:", margin, indent, a.GetNode())
		}
		for line := range strings.Lines(a.GetCommand()) {
			p.line("%s%s  %s", margin, indent, strings.TrimRight(line, "\n"))
		}
		for k, alternative := range a.GetChoice() {
			word := "EITHER"
			if k > 0 {
				word = "OR"
			}
			p.line("%s%s%s %c) %s:", margin, indent, word, 'a'+rune(k), alternative.GetWhen())
			p.actions(margin+indent+indent, alternative.GetActions())
		}
	}
}

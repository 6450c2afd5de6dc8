package show

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Origin is what a plan was made from.
type Origin struct {
	Server, Program string
	// Nodes are those that report: a part of the plan runs on its own node only.
	Nodes []*pb.Node
	// Coverage is the coverage of the findings.
	Coverage *pb.Coverage
	Now      time.Time
}

// FixPlan writes one POSIX shell script that would put right what findings, which are
// in order, tell of. It has a part for each node, and one for the cluster. Where it is
// called without an argument it only says what it would do.
func FixPlan(w io.Writer, findings []*pb.Finding, from Origin) error {
	plan := &fixPlan{origin: from}
	for _, f := range findings {
		for _, fix := range f.GetFixes() {
			plan.add(f, readable(fix))
		}
	}
	plan.header(len(findings))
	switch unseen := Unseen(from.Coverage); {
	case len(plan.parts) > 0:
		plan.body()
	case len(unseen) > 0:
		plan.say("", "Nothing is known that is to be put right. %s", strings.Join(unseen, " "))
	default:
		plan.line("echo 'There is nothing to put right.'")
	}
	_, err := w.Write(plan.text.Bytes())
	return err
}

// fixPlan is a script that is being made.
type fixPlan struct {
	origin Origin
	text   bytes.Buffer
	parts  []*fixPart
}

// fixPart is what runs on one node; on none, where kubectl works.
type fixPart struct {
	node  string
	steps []fixStep
}

// fixStep is one fix, and the finding that it is for.
type fixStep struct {
	finding *pb.Finding
	fix     *pb.Fix
}

// runs tells whether the script runs the step; else it only tells of it.
func (s fixStep) runs() bool { return !s.fix.GetManual() && s.fix.GetCommand() != "" }

// add adds a fix to its part, once.
func (p *fixPlan) add(f *pb.Finding, fix *pb.Fix) {
	i := slices.IndexFunc(p.parts, func(part *fixPart) bool { return part.node == fix.GetNode() })
	if i < 0 {
		i = len(p.parts)
		p.parts = append(p.parts, &fixPart{node: fix.GetNode()})
	}
	part := p.parts[i]
	same := func(s fixStep) bool {
		return s.fix.GetManual() == fix.GetManual() && s.fix.GetCommand() == fix.GetCommand() && (fix.GetCommand() != "" || s.fix.GetWhat() == fix.GetWhat())
	}
	if !slices.ContainsFunc(part.steps, same) {
		part.steps = append(part.steps, fixStep{f, fix})
	}
}

// line adds one line of the script; it is the script's own text.
func (p *fixPlan) line(format string, args ...any) { fmt.Fprintf(&p.text, format+"\n", args...) }

// comment adds a comment with words of others: on one line, whatever is in them.
func (p *fixPlan) comment(format string, args ...any) {
	p.line("%s", strings.TrimRight("# "+clean(fmt.Sprintf(format, args...)), " "))
}

// say adds a command that prints words of others.
func (p *fixPlan) say(indent, format string, args ...any) {
	p.line("%sprintf '%%s\\n' %s", indent, form.Literal(fmt.Sprintf(format, args...)))
}

func (p *fixPlan) header(findings int) {
	p.line("#!/bin/sh")
	p.comment("What would put IPAM right, made by ipwitness from %s", p.origin.Server)
	p.comment("at %s, for %s.", p.origin.Now.UTC().Format("2006-01-02 15:04:05 MST"), Count(findings, "finding", "findings"))
	for _, s := range Unseen(p.origin.Coverage) {
		p.comment("NOT SEEN: %s", s)
	}
	p.comment("ipwitness changes nothing: read this before you run it.")
	p.comment("Each step looks first, and does nothing where things are not as they were then.")
	p.comment("It can run twice. Where a step fails, it stops.")
	if len(p.parts) > 0 {
		p.comment("")
		p.comment("  sh plan.sh              says what it would do, and how to call it")
		p.comment("  sh plan.sh node NAME    puts right what is on that node: run it there, as root")
		p.comment("  sh plan.sh cluster      puts right what is in the Kubernetes API: run it where kubectl works")
	}
	p.line("set -eu")
	p.line("")
}

// body writes what the script does.
func (p *fixPlan) body() {
	// The nodes first: pods that are restarted need a right IPAM.
	slices.SortStableFunc(p.parts, func(a, b *fixPart) int {
		switch {
		case a.node == b.node:
			return 0
		case a.node == "":
			return 1
		case b.node == "":
			return -1
		}
		return strings.Compare(a.node, b.node)
	})
	p.usage()
	p.line("# Run on another node, or after a reboot, a part would do what is wrong there.")
	p.line("on_node() { # NAME BOOT-ID NETNS")
	p.line("\tif [ \"$(cat /proc/sys/kernel/random/boot_id)\" != \"$2\" ] || [ \"$(readlink /proc/self/ns/net)\" != \"net:[$3]\" ]; then")
	p.line("\t\techo \"This is not node $1, or it was booted since the plan was made, or this is no shell of the host itself.\" >&2")
	p.line("\t\texit 1")
	p.line("\tfi")
	p.line("\tif [ \"$(id -u)\" != 0 ]; then echo 'This must run as root.' >&2; exit 1; fi")
	p.line("}")
	p.line("")
	for i, part := range p.parts {
		p.part(fmt.Sprintf("part_%d", i+1), part)
	}
	p.line("case \"${1-} ${2-}\" in")
	for i, part := range p.parts {
		p.line("%s) part_%d ;;", form.Literal(part.name()+part.end()), i+1)
	}
	p.line("' ') usage ;;")
	p.line("*) echo \"There is no such part: $*\" >&2; usage >&2; exit 1 ;;")
	p.line("esac")
}

// name is how a part is called on the command line.
func (part *fixPart) name() string {
	if part.node == "" {
		return "cluster"
	}
	return "node " + part.node
}

// end is what follows the name where there is no second argument.
func (part *fixPart) end() string {
	if part.node == "" {
		return " "
	}
	return ""
}

// runs counts the steps that the script runs.
func (part *fixPart) runs() (n int) {
	for _, s := range part.steps {
		if s.runs() {
			n++
		}
	}
	return n
}

// mostSteps is how many steps of a part are named where it is only said what it does.
const mostSteps = 10

// usage writes what the script prints without an argument.
func (p *fixPlan) usage() {
	p.line("usage() {")
	for _, s := range Unseen(p.origin.Coverage) {
		p.say("\t", "Steps may be missing. %s", s)
	}
	hands := false
	for _, part := range p.parts {
		for _, s := range part.steps {
			if s.runs() {
				continue
			}
			if !hands {
				p.say("\t", "By hand, in this order:")
				hands = true
			}
			p.say("\t", "  %s%s", s.fix.GetWhat(), prefixed(" Command: ", s.fix.GetCommand()))
		}
	}
	p.say("\t", "By this script, in this order:")
	for _, part := range p.parts {
		n := part.runs()
		if n == 0 {
			continue
		}
		where := "where kubectl works"
		if part.node != "" {
			where = "on that node, as root"
		}
		p.line("\tprintf '%%s\\n' \"  sh $0 \"%s", form.Literal(fmt.Sprintf("%s    (%s, %s)", part.call(), Count(n, "step", "steps"), where)))
		told := 0
		for _, s := range part.steps {
			if s.runs() && told < mostSteps {
				told++
				p.say("\t", "      %s", s.fix.GetWhat())
			}
		}
		if n > told {
			p.say("\t", "      … and %d more", n-told)
		}
	}
	p.line("}")
	p.line("")
}

// call is the part's arguments, as one would type them.
func (part *fixPart) call() string {
	if part.node == "" {
		return "cluster"
	}
	return "node " + form.Quote(part.node)
}

// part writes the function of one part.
func (p *fixPlan) part(function string, part *fixPart) {
	p.line("%s() {", function)
	if part.node == "" {
		p.line("kubectl version >/dev/null # fails here, if the cluster cannot be reached")
	} else if i := slices.IndexFunc(p.origin.Nodes, func(n *pb.Node) bool { return n.GetName() == part.node }); i >= 0 {
		n := p.origin.Nodes[i]
		p.line("on_node %s %s %s", form.Literal(n.GetName()), form.Literal(n.GetBootId()), form.Literal(n.GetNetns()))
	} else {
		p.say("", "Nothing is known of node %s now: make a new plan when its agent reports.", part.node)
		p.line("exit 1")
	}
	total, done := part.runs(), 0
	for _, s := range part.steps {
		p.line("")
		p.comment("%s", join(" ", s.finding.GetSeverity().String(), s.finding.GetKind(), s.finding.GetAddress(), prefixed("finding ", s.finding.GetId())))
		p.comment("why: %s", s.fix.GetWhat())
		if !s.runs() {
			p.say("", "BY HAND: %s", s.fix.GetWhat())
			for line := range strings.Lines(s.fix.GetCommand()) {
				p.comment("  %s", strings.TrimRight(line, "\n"))
			}
			if s.fix.GetCommand() != "" && !strings.Contains(s.fix.GetCommand(), "\n") {
				p.say("", "  %s", s.fix.GetCommand())
			}
			continue
		}
		done++
		p.say("", "%d/%d %s", done, total, s.fix.GetWhat())
		p.line("%s", s.fix.GetCommand())
	}
	p.line("}")
	p.line("")
}

// readable returns a fix that is safe to show. If the command has unprintable characters
// or a name that looks like an option, the fix says that the command is withheld.
func readable(fix *pb.Fix) *pb.Fix {
	if !form.Withheld(fix.GetCommand()) {
		return fix
	}
	return &pb.Fix{
		Node: fix.GetNode(), Manual: true,
		What: fix.GetWhat() + " Its command is withheld: it has characters that cannot be printed or a name that looks like an option, so that nobody could tell what it does.",
	}
}

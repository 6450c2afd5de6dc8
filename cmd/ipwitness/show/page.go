package show

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// page is a text for people that is built in memory.
type page struct {
	out    strings.Builder
	layout Layout
	now    time.Time
}

// textWidth is the line width of texts.
const textWidth = 100

// Write adds the output of a table.
func (p *page) Write(b []byte) (int, error) { return p.out.Write(b) }

// line adds one line, which is not folded: a title, or a command that can be copied.
func (p *page) line(format string, args ...any) {
	p.out.WriteString(clean(fmt.Sprintf(format, args...)))
	p.out.WriteByte('\n')
}

// text adds a text after a lead. In a terminal, it is folded to its width, or to textWidth if that is
// less; the lines after the first are aligned with the text.
func (p *page) text(lead, text string) { p.toned(PlainTone, "", lead, text) }

// toned is like text, with the first occurrence of a word in a tone.
func (p *page) toned(t Tone, word, lead, text string) {
	p.fold(min(p.layout.Width, textWidth), t, word, lead, text)
}

// item is like text, and also folds to textWidth if the output is not shown in a terminal.
func (p *page) item(lead, text string) {
	columns := textWidth
	if p.layout.Width > 0 {
		columns = min(p.layout.Width, textWidth)
	}
	p.fold(columns, PlainTone, "", lead, text)
}

// fold adds a text, folded to a number of columns; 0 is any.
func (p *page) fold(columns int, t Tone, word, lead, text string) {
	p.out.WriteString(painter(p.layout.Color).tint(t, clean(word), hanging(clean(lead), clean(text), columns)))
	p.out.WriteByte('\n')
}

// link adds a URL after a lead, on a line of its own if the terminal is too narrow for both.
func (p *page) link(lead, url string) {
	if w := p.layout.Width; w > 0 && width(lead+url) > w {
		p.line("%s", strings.TrimSpace(lead))
		lead = "  "
	}
	p.line("%s%s", lead, url)
}

// table returns a table without a header on the page. The cells of its last column are folded in a
// terminal, or below their rows.
func (p *page) table(columns int) *Table {
	t := newTable(p, Layout{Width: p.layout.Width}, make([]trait, columns))
	t.traits[columns-1] = trait{folds: true, below: true}
	return t
}

// rows adds rows of the same number of cells as a table.
func (p *page) rows(title string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	p.heading(title)
	t := p.table(len(rows[0]))
	for _, r := range rows {
		t.add(nil, r...)
	}
	_ = t.Flush() // writing to a page cannot fail
}

// fields adds names and values, except empty values.
func (p *page) fields(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			p.text(fmt.Sprintf("%-10s ", pairs[i]+":"), pairs[i+1])
		}
	}
}

// bullets adds facts, each on its own line after a lead.
func (p *page) bullets(title, lead string, facts ...string) {
	for i, fact := range facts {
		if i == 0 {
			p.heading(title)
		}
		p.text(lead, fact)
	}
}

// owners adds each owner with its evidence.
func (p *page) owners(title string, owners []*pb.Owner) {
	if len(owners) == 0 {
		return
	}
	p.heading(title)
	for i, name := range OwnerNames(owners) {
		o := owners[i]
		p.text("  ", name)
		state := o.GetState().String()
		line := state
		if since := heldSince(o); since != nil {
			line += ", since " + clock(since, p.now) + " (" + ago(since, p.now) + ")"
		}
		p.toned(ownerTone(o), state, detailLead("state"), line)
		where := prefixed("interface ", place(o))
		if o.GetInterface() == "" {
			where = prefixed("seen on interface ", o.GetHostInterface())
		}
		p.detail("where", join(", ", prefixed("cluster ", o.GetCluster()), prefixed("node ", o.GetNode()), where,
			prefixed("MAC ", o.GetMac()), prefixed("netns ", o.GetNetns())))
		w := o.GetWorkload()
		p.detail("named by", cmp.Or(w.GetSources()["name"], w.GetSource()))
		for _, attribute := range []struct{ name, field, value string }{
			{"pod uid", "uid", w.GetUid()},
			{"container", "containerId", pb.ShortID(w.GetContainerId())},
			{"process", "", w.GetProcess()},
			{"machine", "virtualMachine", w.GetVirtualMachine()},
			{"made by", "controller", controller(w)},
			{"phase", "phase", phase(w)},
		} {
			if attribute.value != "" {
				p.detail(attribute.name, attribute.value+from(w.GetSources()[attribute.field]))
			}
		}
		for _, i := range o.GetIntended() {
			p.detail("intended", join(" ", i.GetAddress(), prefixed("on ", i.GetInterface()))+", but not configured"+from(i.GetSource()))
		}
		for _, e := range o.GetEvidence() {
			p.detail("evidence", evidence(e, p.now))
		}
		if o.GetPrevious() != nil {
			p.detail("before it", previous(o.GetPrevious(), "15:04:05.000", p.now))
		}
	}
}

// previous describes the owner that had an address before, with times of day in a layout.
func previous(was *pb.PreviousOwner, layout string, now time.Time) string {
	o := &pb.Owner{Workload: was.GetWorkload(), Node: was.GetNode(), Mac: was.GetMac()}
	left := "until " + clockTo(layout, was.GetUntil(), now) + " (" + ago(was.GetUntil(), now) + ")"
	if was.GetNotBefore() != nil {
		left = "until a time between " + clock(was.GetNotBefore(), now) + " and " + clockTo(layout, was.GetUntil(), now)
	}
	text := join(", ", pb.OwnerName(o), prefixed("node ", was.GetNode()), prefixed("interface ", was.GetInterface()), prefixed("MAC ", was.GetMac()), left)
	switch {
	case was.GetGap() == nil:
		return text
	case was.GetGap().AsDuration() == 0:
		return text + ", overlapping with this owner"
	}
	return text + ", " + Duration(was.GetGap().AsDuration()) + " before this owner"
}

// Previous describes the last other owner of an address in a sentence of its own; empty if there is
// none.
func Previous(o *pb.Owner, now time.Time) string {
	if o.GetPrevious() == nil {
		return ""
	}
	return fmt.Sprintf("Before %s, %s was held by %s.", pb.OwnerName(o), o.GetAddress(), previous(o.GetPrevious(), "15:04:05.000 "+zone, now))
}

// from returns the source of a field, if it is not the source of the name.
func from(source string) string {
	if source == "" {
		return ""
	}
	return " (from " + source + ")"
}

// controller returns the controller of a pod, as KIND/NAME.
func controller(w *pb.Workload) string {
	if c := w.GetController(); c != nil {
		return c.GetKind() + "/" + c.GetName()
	}
	return ""
}

// phase returns the phase of a pod in the Kubernetes API.
func phase(w *pb.Workload) string {
	switch {
	case w.GetOrphaned() && w.GetPhase() == "":
		return "orphaned, the pod does not exist in the API"
	case w.GetOrphaned():
		return w.GetPhase() + ", orphaned"
	case w.GetDeletionTimestamp() != nil:
		return w.GetPhase() + ", terminating"
	}
	return w.GetPhase()
}

// related adds the Kubernetes objects related to a conflict.
func (p *page) related(title string, list []*pb.Related) {
	var rows [][]string
	for _, r := range list {
		name := r.GetName()
		if r.GetNamespace() != "" {
			name = r.GetNamespace() + "/" + name
		}
		count := ""
		if r.GetCount() > 1 {
			count = fmt.Sprintf(" (%d times)", r.GetCount())
		}
		rows = append(rows, []string{
			"  " + r.GetKind() + " " + name, cmp.Or(r.GetNode(), none), r.GetReason() + count, prefixed("last ", ago(r.GetLastSeen(), p.now)), r.GetMessage(),
		})
	}
	p.rows(title, rows)
}

// detail adds one fact of an owner, if it is not empty.
func (p *page) detail(name, value string) {
	if value != "" {
		p.text(detailLead(name), value)
	}
}

func detailLead(name string) string { return fmt.Sprintf("    %-13s ", name) }

// seen says what frames of a kind of evidence show, for readers who are new to the terms.
var seen = map[pb.Evidence_Kind]string{
	pb.Evidence_ANNOUNCED: ": it announced the address to all neighbours",
	pb.Evidence_ANSWERED:  ": it answered requests for the address",
	pb.Evidence_USED:      ": it used the address as the sender of requests",
}

// evidence describes how, where and when an owner was seen with an address.
func evidence(e *pb.Evidence, now time.Time) string {
	s, when := e.GetKind().String(), "last read "
	inside := e.GetWitness()[strings.LastIndexByte(e.GetWitness(), '/')+1:]
	switch e.GetKind() {
	case pb.Evidence_ASSIGNED:
		s += ": its kernel has the address on " + inside
	case pb.Evidence_WOULD_ANSWER:
		s += ": its kernel answers for the address on " + inside + ", without having it there"
	case pb.Evidence_DAD_FAILED:
		s += ": its kernel tried to configure the address on " + inside + " and found another host using it"
	default:
		when = "last seen "
		if e.GetCount() > 1 {
			s += fmt.Sprintf(" %d times", e.GetCount())
		}
		s += seen[e.GetKind()] + prefixed(", seen on ", e.GetWitness())
	}
	if e.GetNoOverride() {
		s += " without the Override flag"
	}
	return join(", ", s, prefixed("MAC ", e.GetMac()), prefixed(when, clock(e.GetLastSeen(), now)))
}

// write writes the page.
func (p *page) write(w io.Writer) error {
	_, err := io.WriteString(w, p.out.String())
	return err
}

// prefixed prepends a word to a value that is not empty.
func prefixed(word, value string) string {
	if value == "" {
		return ""
	}
	return word + value
}

// join joins the parts that are not empty.
func join(sep string, parts ...string) string {
	var out []string
	for _, s := range parts {
		if s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, sep)
}

// remedy adds the actions of a remedy, numbered in their order. Alternatives have letters;
// exactly one of them is to be carried out. Commands are on separate lines below the node
// on which to run them.
func (p *page) remedy(actions []*pb.Action) {
	if len(actions) > 0 {
		p.heading("What to do:")
		p.actions("  ", actions)
	}
}

func (p *page) actions(margin string, actions []*pb.Action) {
	const indent = "   " // of lines that belong to the line above, to align them with its text
	for i, a := range actions {
		p.text(fmt.Sprintf("%s%d. ", margin, i+1), a.GetText())
		command := a.GetCommand()
		if a.GetNode() != "" && command != "" {
			p.line("%s%sOn node %s:", margin, indent, a.GetNode())
		}
		if arguments, own := strings.CutPrefix(command, "ipwitness "); own && a.GetNode() == "" && p.layout.Program != "" {
			command = p.layout.Program + " " + arguments // as the user has invoked it
		}
		for line := range strings.Lines(command) {
			p.line("%s%s  %s", margin, indent, strings.TrimRight(line, "\n"))
		}
		for k, alternative := range a.GetChoice() {
			p.text(fmt.Sprintf("%s%s%c) ", margin, indent, 'a'+rune(k)), "If "+alternative.GetWhen()+":")
			p.actions(margin+indent+indent, alternative.GetActions())
		}
	}
}

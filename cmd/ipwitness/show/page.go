package show

import (
	"fmt"
	"io"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// page is a text for a person, made in memory.
type page struct {
	text strings.Builder
	now  time.Time
}

// Write adds what a table wrote.
func (p *page) Write(b []byte) (int, error) { return p.text.Write(b) }

// line adds one line.
func (p *page) line(format string, args ...any) {
	p.text.WriteString(clean(fmt.Sprintf(format, args...)))
	p.text.WriteByte('\n')
}

// fields adds names and values, and leaves out the values that are empty.
func (p *page) fields(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			p.line("%-10s %s", pairs[i]+":", pairs[i+1])
		}
	}
}

// owners adds each owner with what was witnessed of it.
func (p *page) owners(title string, owners []*pb.Owner) {
	if len(owners) == 0 {
		return
	}
	p.line("")
	p.line("%s", title)
	for i, name := range names(owners) {
		o := owners[i]
		p.line("  %s", name)
		p.detail("state", o.GetState().String()+", since "+clock(heldSince(o), p.now)+" ("+ago(heldSince(o), p.now)+")")
		where := prefixed("interface ", place(o))
		if o.GetInterface() == "" {
			where = prefixed("seen on interface ", o.GetHostInterface())
		}
		p.detail("where", join(", ", prefixed("node ", o.GetNode()), where,
			prefixed("MAC ", o.GetMac()), prefixed("netns ", o.GetNetns())))
		p.workload(o.GetWorkload())
		for _, i := range o.GetIntended() {
			p.detail("intended", join(" ", i.GetAddress(), prefixed("on ", i.GetInterface()))+", which it does not have"+from(i.GetSource()))
		}
		for _, e := range o.GetEvidence() {
			p.detail("evidence", evidence(e, p.now))
		}
	}
}

// workload adds what is known of who an owner is, besides its name.
func (p *page) workload(w *pb.Workload) {
	p.detail("named by", first(w.GetSources()["name"], w.GetSource()))
	said := func(name, field, value string) {
		if value != "" {
			p.detail(name, value+from(w.GetSources()[field]))
		}
	}
	said("pod uid", "uid", w.GetUid())
	said("container", "containerId", shortID(w.GetContainerId()))
	p.detail("process", w.GetProcess())
	said("machine", "virtualMachine", w.GetVirtualMachine())
	said("made by", "controller", controller(w))
	said("phase", "phase", phase(w))
}

// from says where a field is from, if not from where the name is.
func from(source string) string {
	if source == "" {
		return ""
	}
	return " (from " + source + ")"
}

// controller gives what made a pod, as KIND/NAME.
func controller(w *pb.Workload) string {
	if c := w.GetController(); c != nil {
		return c.GetKind() + "/" + c.GetName()
	}
	return ""
}

// phase gives how far a pod has come, as the Kubernetes API says.
func phase(w *pb.Workload) string {
	switch {
	case w.GetOrphaned() && w.GetPhase() == "":
		return "orphaned, the API has no such pod"
	case w.GetOrphaned():
		return w.GetPhase() + ", orphaned"
	case w.GetDeletionTimestamp() != nil:
		return w.GetPhase() + ", terminating"
	}
	return w.GetPhase()
}

// intended gives the addresses that an owner was meant to have and has not, each
// with who says so.
func intended(o *pb.Owner) string {
	var words []string
	for _, i := range o.GetIntended() {
		words = append(words, i.GetAddress()+" ("+i.GetSource()+")")
	}
	return strings.Join(words, ", ")
}

// related adds what Kubernetes says beside a conflict.
func (p *page) related(title string, list []*pb.Related) {
	if len(list) == 0 {
		return
	}
	p.line("")
	p.line("%s", title)
	t := NewTable(p)
	for _, r := range list {
		name := r.GetName()
		if r.GetNamespace() != "" {
			name = r.GetNamespace() + "/" + name
		}
		count := ""
		if r.GetCount() > 1 {
			count = fmt.Sprintf(" (%d times)", r.GetCount())
		}
		t.Row("  "+r.GetKind()+" "+name, first(r.GetNode(), none), r.GetReason()+count, prefixed("last ", ago(r.GetLastSeen(), p.now)), r.GetMessage())
	}
	_ = t.Flush() // a page keeps its text in memory
}

// detail adds one fact of an owner, if there is one.
func (p *page) detail(name, value string) {
	if value != "" {
		p.line("    %-13s %s", name, value)
	}
}

// evidence says how, by whom and when a holding was witnessed, in words for
// somebody who has never read them before.
func evidence(e *pb.Evidence, now time.Time) string {
	s := e.GetKind().String()
	inside := e.GetWitness()[strings.LastIndexByte(e.GetWitness(), '/')+1:]
	when := "last seen "
	switch e.GetKind() {
	case pb.Evidence_ASSIGNED:
		s += ": its kernel has the address on " + inside
		when = "last read "
	case pb.Evidence_DAD_FAILED:
		s += ": its kernel was to have the address on " + inside + " and found somebody else using it"
		when = "last read "
	case pb.Evidence_ANNOUNCED:
		s += times(e.GetCount()) + ": it told everybody so, seen on " + e.GetWitness()
	case pb.Evidence_ANSWERED:
		s += times(e.GetCount()) + ": it said so when asked, seen on " + e.GetWitness()
	case pb.Evidence_USED:
		s += times(e.GetCount()) + ": it asked for other addresses with it, seen on " + e.GetWitness()
	default:
		s += times(e.GetCount()) + join("", prefixed(", by ", e.GetWitness()))
	}
	if e.GetNoOverride() {
		s += " without the Override flag"
	}
	return join(", ", s, prefixed("MAC ", e.GetMac()), prefixed(when, clock(e.GetLastSeen(), now)))
}

// times counts what was seen more than once.
func times(n uint32) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(" %d times", n)
}

// write writes the page.
func (p *page) write(w io.Writer) error {
	_, err := io.WriteString(w, p.text.String())
	return err
}

// prefixed puts a word before a value that is there.
func prefixed(word, value string) string {
	if value == "" {
		return ""
	}
	return word + value
}

// join joins what is not empty.
func join(sep string, parts ...string) string {
	var out []string
	for _, s := range parts {
		if s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, sep)
}

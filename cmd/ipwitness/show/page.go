package show

import (
	"fmt"
	"io"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// page is a text for people that is built in memory.
type page struct {
	text strings.Builder
	now  time.Time
}

// Write adds the output of a table.
func (p *page) Write(b []byte) (int, error) { return p.text.Write(b) }

// line adds one line.
func (p *page) line(format string, args ...any) {
	p.text.WriteString(clean(fmt.Sprintf(format, args...)))
	p.text.WriteByte('\n')
}

// fields adds names and values, except empty values.
func (p *page) fields(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			p.line("%-10s %s", pairs[i]+":", pairs[i+1])
		}
	}
}

// owners adds each owner with its evidence.
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
			p.detail("intended", join(" ", i.GetAddress(), prefixed("on ", i.GetInterface()))+", but not configured"+from(i.GetSource()))
		}
		for _, e := range o.GetEvidence() {
			p.detail("evidence", evidence(e, p.now))
		}
		if o.GetPrevious() != nil {
			p.detail("before it", previous(o.GetPrevious(), p.now))
		}
	}
}

// previous describes the owner that had an address before.
func previous(was *pb.PreviousOwner, now time.Time) string {
	o := &pb.Owner{Workload: was.GetWorkload(), Node: was.GetNode(), Mac: was.GetMac()}
	left := "until " + clock(was.GetUntil(), now) + " (" + ago(was.GetUntil(), now) + ")"
	if was.GetNotBefore() != nil {
		left = "until a time between " + clock(was.GetNotBefore(), now) + " and " + clock(was.GetUntil(), now)
	}
	text := join(", ", Name(o), prefixed("node ", was.GetNode()), prefixed("interface ", was.GetInterface()), prefixed("MAC ", was.GetMac()), left)
	switch {
	case was.GetGap() == nil:
		return text
	case was.GetGap().AsDuration() == 0:
		return text + ", overlapping with this owner"
	}
	return text + ", " + Duration(was.GetGap().AsDuration()) + " before this owner"
}

// Previous describes the last other owner of an address; empty if there is none.
func Previous(o *pb.Owner, now time.Time) string {
	if o.GetPrevious() == nil {
		return ""
	}
	return fmt.Sprintf("Before %s, %s was held by %s.", Name(o), o.GetAddress(), previous(o.GetPrevious(), now))
}

// workload adds what is known about the workload of an owner, in addition to its name.
func (p *page) workload(w *pb.Workload) {
	p.detail("named by", first(w.GetSources()["name"], w.GetSource()))
	attribute := func(name, field, value string) {
		if value != "" {
			p.detail(name, value+from(w.GetSources()[field]))
		}
	}
	attribute("pod uid", "uid", w.GetUid())
	attribute("container", "containerId", shortID(w.GetContainerId()))
	p.detail("process", w.GetProcess())
	attribute("machine", "virtualMachine", w.GetVirtualMachine())
	attribute("made by", "controller", controller(w))
	attribute("phase", "phase", phase(w))
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

// intended lists the addresses that an owner should have but does not, each with the source of that
// information.
func intended(o *pb.Owner) string {
	var words []string
	for _, i := range o.GetIntended() {
		words = append(words, i.GetAddress()+" ("+i.GetSource()+")")
	}
	return strings.Join(words, ", ")
}

// related adds the Kubernetes objects related to a conflict.
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
	_ = t.Flush() // writing to a page cannot fail
}

// detail adds one fact of an owner, if it is not empty.
func (p *page) detail(name, value string) {
	if value != "" {
		p.line("    %-13s %s", name, value)
	}
}

// evidence describes how, where and when an owner was seen with an address, for readers who are new
// to the terms.
func evidence(e *pb.Evidence, now time.Time) string {
	s := e.GetKind().String()
	inside := e.GetWitness()[strings.LastIndexByte(e.GetWitness(), '/')+1:]
	when := "last seen "
	switch e.GetKind() {
	case pb.Evidence_ASSIGNED:
		s += ": its kernel has the address on " + inside
		when = "last read "
	case pb.Evidence_DAD_FAILED:
		s += ": its kernel tried to configure the address on " + inside + " and found another host using it"
		when = "last read "
	case pb.Evidence_ANNOUNCED:
		s += times(e.GetCount()) + ": it announced the address to all neighbours, seen on " + e.GetWitness()
	case pb.Evidence_ANSWERED:
		s += times(e.GetCount()) + ": it answered requests for the address, seen on " + e.GetWitness()
	case pb.Evidence_USED:
		s += times(e.GetCount()) + ": it used the address as the sender of requests, seen on " + e.GetWitness()
	default:
		s += times(e.GetCount()) + join("", prefixed(", seen on ", e.GetWitness()))
	}
	if e.GetNoOverride() {
		s += " without the Override flag"
	}
	return join(", ", s, prefixed("MAC ", e.GetMac()), prefixed(when, clock(e.GetLastSeen(), now)))
}

// times formats a count of more than one.
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

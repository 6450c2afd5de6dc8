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
		p.detail("where", join(", ", prefixed("node ", o.GetNode()), prefixed("interface ", place(o)),
			prefixed("MAC ", o.GetMac()), prefixed("netns ", o.GetNetns())))
		p.workload(o.GetWorkload())
		p.detail("not compared", o.GetExcluded())
		for _, e := range o.GetEvidence() {
			p.detail("evidence", evidence(e, p.now))
		}
	}
}

// workload adds what is known of who an owner is, besides its name.
func (p *page) workload(w *pb.Workload) {
	p.detail("named by", w.GetSource())
	p.detail("pod uid", w.GetUid())
	p.detail("container", shortID(w.GetContainerId()))
	p.detail("process", w.GetProcess())
}

// detail adds one fact of an owner, if there is one.
func (p *page) detail(name, value string) {
	if value != "" {
		p.line("    %-13s %s", name, value)
	}
}

// evidence says how, by whom and when a holding was witnessed.
func evidence(e *pb.Evidence, now time.Time) string {
	s := e.GetKind().String()
	if e.GetCount() > 1 {
		s += fmt.Sprintf(" %d times", e.GetCount())
	}
	return join(", ", s, prefixed("by ", e.GetWitness()), prefixed("MAC ", e.GetMac()), prefixed("last ", clock(e.GetLastSeen(), now)))
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

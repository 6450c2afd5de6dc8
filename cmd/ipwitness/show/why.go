package show

import (
	"strings"
	"unicode/utf8"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// causes are the causes in words.
var causes = map[string]string{
	"ipam-state-lost":       "IPAM lost its record of an address in use, and gave it out again",
	"ipam-booked-elsewhere": "IPAM had the address for another node or pod than the one that had it, and freed it with that",
	"pod-cidr-overlap":      "two nodes give pods addresses of one range",
	"overlapping-networks":  "two networks that meet give addresses of one range",
	"static-address":        "somebody set an address of pods by hand",
	"tunnel-address":        "a tunnel of a node has what a pod has, too",
	"orphaned-sandbox":      "the sandbox of a pod that is no more still has the address",
	"split-brain":           "an address that is to move from one to the other stays at both",
	"external-device":       "a device outside of the cluster has taken the address",
	"unknown":               "no known cause fits. Who has had the address since when:",
}

// why adds the cause of a conflict with what it follows from, what else was looked at,
// and where it is explained.
func (p *page) why(c *pb.Conflict) {
	if len(c.GetBecause()) > 0 || len(c.GetExcluded()) > 0 || c.GetRunbook() != "" && c.GetState() != pb.Conflict_SUSPECTED {
		p.heading("Why:")
		p.item("  ", join(": ", c.GetCause(), causes[c.GetCause()]))
		for _, fact := range c.GetBecause() {
			p.item("  - ", fact)
		}
		if c.GetCause() == verdict.CauseUnknown {
			p.arrivals(c)
		}
	}
	var excluded, steps [][2]string
	for _, e := range c.GetExcluded() {
		excluded = append(excluded, [2]string{e.GetCause(), e.GetReason()})
	}
	for _, d := range c.GetDiagnosis() {
		steps = append(steps, [2]string{d.GetStep(), d.GetAnswer()})
	}
	p.items("Excluded:", excluded)
	p.items("Diagnosis:", steps)
	p.allocations(c.GetAllocations())
	if c.GetRunbook() != "" {
		p.line("")
		p.line("Runbook: %s", c.GetRunbook())
	}
}

// arrivals adds when, where and by which process each owner got the address. It shows
// the best known data if no event recorded how the conflict arose.
func (p *page) arrivals(c *pb.Conflict) {
	owners := c.GetOwners()
	called := names(owners)
	for _, i := range c.GetOrder() {
		if int(i) >= len(owners) {
			continue
		}
		o := owners[i]
		at := place(o)
		if o.GetInterface() == "" {
			at = o.GetHostInterface()
		}
		since := "was first seen with it at " + clock(o.GetFirstSeen(), p.now)
		if o.GetAssignedAt() != nil {
			since = "since " + clock(o.GetAssignedAt(), p.now)
		}
		p.item("  - ", join(", ", called[i]+" "+since, join(" of ", prefixed("on ", at), prefixed("node ", o.GetNode())),
			prefixed("process ", o.GetWorkload().GetProcess())))
	}
}

// allocations adds what IPAM has of the address.
func (p *page) allocations(all []*pb.Allocation) {
	if len(all) == 0 {
		return
	}
	p.heading("IPAM has it for:")
	t := NewTable(p)
	for _, al := range all {
		who := al.GetPod()
		if al.GetNamespace() != "" {
			who = al.GetNamespace() + "/" + who
		}
		t.Row("  "+first(who, prefixed("container ", shortID(al.GetContainerId())), none), prefixed("node ", al.GetNode()),
			prefixed("since ", clock(al.GetAllocatedAt(), p.now)), join(" ", al.GetIpam(), first(al.GetLocation(), al.GetPool())))
	}
	_ = t.Flush() // a page keeps its text in memory
}

func (p *page) heading(title string) {
	p.line("")
	p.line("%s", title)
}

// items adds names and what is said of each.
func (p *page) items(title string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}
	p.heading(title)
	width := 0
	for _, r := range rows {
		width = max(width, utf8.RuneCountInString(r[0]))
	}
	for _, r := range rows {
		p.item("  "+r[0]+strings.Repeat(" ", width-utf8.RuneCountInString(r[0]))+gap, r[1])
	}
}

// textWidth is how wide a text is that people read.
const textWidth = 100

// item adds a text after what leads to it, in as many lines as it needs.
func (p *page) item(lead, text string) {
	line, used := lead, utf8.RuneCountInString(lead)
	indent := strings.Repeat(" ", used)
	empty := true
	for word := range strings.FieldsSeq(clean(text)) {
		n := utf8.RuneCountInString(word)
		switch {
		case empty:
		case used+1+n > textWidth:
			p.line("%s", line)
			line, used = indent, len(indent)
		default:
			line, used = line+" ", used+1
		}
		line, used, empty = line+word, used+n, false
	}
	p.line("%s", strings.TrimRight(line, " "))
}

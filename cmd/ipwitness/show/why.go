package show

import (
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// causes describes each cause.
var causes = map[string]string{
	"ipam-state-lost":       "IPAM lost its record of an address in use and allocated it again",
	"ipam-allocated-twice":  "IPAM allocated the address to several owners",
	"ipam-booked-elsewhere": "IPAM had allocated the address to a node or pod other than its holder, and freed the address together with that allocation",
	"pod-cidr-overlap":      "two nodes assign pods addresses from the same range",
	"overlapping-networks":  "two connected networks assign addresses from the same range",
	"static-address":        "a pod address was set by hand",
	"tunnel-address":        "a tunnel device of a node and a pod have the same address",
	"orphaned-sandbox":      "the sandbox of a pod that no longer exists still has the address",
	"replaced-namespace":    "a container got a new network namespace, and a previous one still has the address",
	"split-brain":           "an address that should move between nodes stays on both",
	"external-device":       "a device outside the cluster uses the address",
	"unknown":               "no known cause fits. The owners got the address in this order:",
}

// why adds the cause of a conflict, the facts that it follows from, the excluded causes, the
// diagnosis and the runbook.
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
		p.link("Runbook: ", c.GetRunbook())
	}
}

// arrivals adds when, where and by which process each owner got the address. It is the best
// available information if the cause is not known.
func (p *page) arrivals(c *pb.Conflict) {
	owners := c.GetOwners()
	called := OwnerNames(owners)
	for _, i := range c.GetOrder() {
		if int(i) >= len(owners) {
			continue
		}
		o := owners[i]
		at := place(o)
		if o.GetInterface() == "" {
			at = o.GetHostInterface()
		}
		since := "was first seen with the address at " + clock(o.GetFirstSeen(), p.now)
		if o.GetAssignedAt() != nil {
			since = "got the address at " + clock(o.GetAssignedAt(), p.now)
		}
		p.item("  - ", join(", ", called[i]+" "+since, join(" of ", prefixed("on ", at), prefixed("node ", o.GetNode())),
			prefixed("process ", o.GetWorkload().GetProcess())))
	}
}

// allocations adds the IPAM records of the address.
func (p *page) allocations(all []*pb.Allocation) {
	if len(all) == 0 {
		return
	}
	p.heading("Allocated by IPAM to:")
	t := p.table(4)
	for _, al := range all {
		who := al.GetPod()
		if al.GetNamespace() != "" {
			who = al.GetNamespace() + "/" + who
		}
		t.Row("  "+first(who, prefixed("container ", shortID(al.GetContainerId())), prefixed("MAC ", al.GetMac()), none), prefixed("node ", al.GetNode()),
			prefixed("since ", clock(al.GetAllocatedAt(), p.now)), join(" ", al.GetIpam(), first(al.GetLocation(), al.GetPool())))
	}
	_ = t.Flush() // writing to a page cannot fail
}

func (p *page) heading(title string) { p.out.WriteString("\n" + title + "\n") }

// items adds names, each with a text.
func (p *page) items(title string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}
	p.heading(title)
	widest := 0
	for _, r := range rows {
		widest = max(widest, width(r[0]))
	}
	for _, r := range rows {
		p.item("  "+r[0]+strings.Repeat(" ", widest-width(r[0]))+gap, r[1])
	}
}

package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Explain writes why an address is, or is not, in conflict: first the answer, then the evidence.
func Explain(w io.Writer, e *pb.ExplainResponse, layout Layout, now time.Time) error {
	p := &page{layout: layout, now: now}
	p.explain(e, "`"+layout.Program+" conflicts ID` shows one of them with its timeline and the steps to take.")
	return p.write(w)
}

// What an explanation lacks.
const (
	PastLacks  = "The rules that applied, the evidence and the steps to take are not recorded: steps may be unsafe later."
	FleetLacks = "The rules that applied, the evidence and the steps to take are known to the aggregator of the cluster only."
)

// ExplainRecorded writes what is recorded of an address at a time: in the past, or by a fleet. lacking says what is not.
func ExplainRecorded(w io.Writer, e *pb.ExplainResponse, layout Layout, at time.Time, lacking string) error {
	p := &page{layout: layout, now: at}
	p.explain(e, "")
	p.line("")
	p.text("", lacking)
	p.text("", "`"+layout.Program+" history "+e.GetAddress()+"` shows what happened before and after.")
	return p.write(w)
}

// explain adds an explanation. more follows the list of conflicts.
func (p *page) explain(e *pb.ExplainResponse, more string) {
	p.text("", e.GetSummary())
	p.line("")
	p.fields("Address", e.GetAddress(), "Scope", scope(e.GetScope()), "Times", zone)

	var holding, excluded []*pb.Owner
	for _, o := range e.GetOwners() {
		if o.GetExcluded() == "" {
			holding = append(holding, o)
		} else {
			excluded = append(excluded, o)
		}
	}
	p.owners("Held by:", holding)
	p.owners("Seen with it, but not compared:", excluded)
	if p.senders(e.GetSenders(), e.GetOwners()); e.GetSenders() == nil {
		p.items("Neighbour tables and connection tracking that were not looked at:", unseen(e.GetUnseen()))
	}
	p.findings(e.GetFindings())

	unresolved := slices.DeleteFunc(slices.Clone(e.GetConflicts()), func(c *pb.Conflict) bool { return c.GetState() == pb.Conflict_RESOLVED })
	if len(unresolved) > 0 { // the related objects of all conflicts of an address are nearly the same
		p.related("Kubernetes says:", unresolved[0].GetRelated())
	}
	for _, c := range unresolved {
		p.why(c)
	}
	p.steps("Rules that applied:", e.GetSteps(), true)
	p.steps("Rules that did not apply:", e.GetSteps(), false)

	if len(e.GetConflicts()) > 0 {
		p.heading("Conflicts:")
		t := p.table(5)
		t.traits[3], t.traits[4] = trait{folds: true}, trait{}
		for _, c := range e.GetConflicts() {
			t.add(nil, "  "+c.GetId(), ConflictState(c)+lasting(c, p.now), scope(c.GetScope()), ConflictNames(c), prefixed("cause ", c.GetCause()))
		}
		_ = t.Flush() // writing to a page cannot fail
		for _, c := range e.GetConflicts() {
			if ack := c.GetAcknowledgement(); ack != nil {
				p.text("  ", c.GetId()+" is acknowledged "+until(ack, time.TimeOnly, p.now))
			}
		}
		if more != "" {
			p.line("")
			p.text("", more)
		}
	}
}

// findings adds findings about the address, with the steps to take if they are known.
func (p *page) findings(all []*pb.Finding) {
	for i, f := range all {
		if i == 0 {
			p.heading("Findings:")
		}
		p.toned(findingTone(f), f.GetSeverity().String(), "  ", fmt.Sprintf("%s %s: %s", f.GetSeverity(), f.GetKind(), f.GetSummary()))
		p.actions("    ", f.GetRemedy())
	}
}

// steps adds the rules that applied, or the rules that did not.
func (p *page) steps(title string, steps []*pb.ExplainResponse_Step, applied bool) {
	var rows [][]string
	for _, s := range steps {
		if s.GetApplied() == applied {
			rows = append(rows, []string{"  " + s.GetRule(), scope(s.GetScope()), s.GetReason()})
		}
	}
	p.rows(title, rows)
}

// causes describes each cause.
var causes = map[string]string{
	"ipam-state-lost":       "IPAM lost its record of an address in use and allocated it again",
	"ipam-allocated-twice":  "IPAM allocated the address to several owners",
	"ipam-booked-elsewhere": "IPAM had allocated the address to a node or pod other than its holder, and freed the address together with that allocation",
	"pod-cidr-overlap":      "two nodes assign pods addresses from the same range",
	"overlapping-networks":  "two connected networks assign addresses from the same range",
	"static-address":        "an address that is assigned automatically was set by hand",
	"tunnel-address":        "a tunnel device of a node and a pod have the same address",
	"orphaned-sandbox":      "the sandbox of a pod that no longer exists still has the address",
	"replaced-namespace":    "a container got a new network namespace, and a previous one still has the address",
	"split-brain":           "an address that should move between nodes stays on both",
	"leftover-namespace":    "a network namespace without processes still has the address of a workload that runs",
	"address-taken-along":   "a device was moved into a pod together with an address of its node",
	"dhcp-client-identity":  "a DHCP server takes several machines or containers for one client",
	"two-dhcp-servers":      "two DHCP servers have leased the address, each to another client",
	"cloned-machine":        "a copy of a machine has the address and the MAC of its original",
	"external-device":       "a device outside the cluster uses the address",
	"unknown":               "no known cause fits. The owners got the address in this order:",
}

// why adds the cause of a conflict, the facts that it follows from, the excluded causes, the
// diagnosis and the runbook.
func (p *page) why(c *pb.Conflict) {
	if len(c.GetBecause()) > 0 || len(c.GetExcluded()) > 0 || c.GetRunbook() != "" && c.GetState() != pb.Conflict_SUSPECTED {
		p.heading("Why:")
		cause := causes[c.GetCause()]
		if c.GetCause() == verdict.CauseSplitBrain && c.GetResolvedAt() != nil {
			cause = "an address that moves between nodes was on both"
		}
		p.item("  ", join(": ", c.GetCause(), cause))
		if c.GetCause() == verdict.CauseUnknown {
			// When, where and by which process each owner got the address is the best available information.
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
		for _, fact := range c.GetBecause() {
			p.item("  - ", fact)
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

// allocations adds the IPAM records of the address.
func (p *page) allocations(all []*pb.Allocation) {
	var rows [][]string
	for _, al := range all {
		who := al.GetPod()
		if al.GetNamespace() != "" {
			who = al.GetNamespace() + "/" + who
		}
		rows = append(rows, []string{
			"  " + cmp.Or(who, prefixed("container ", pb.ShortID(al.GetContainerId())), prefixed("MAC ", al.GetMac()), none), prefixed("node ", al.GetNode()),
			prefixed("since ", clock(al.GetAllocatedAt(), p.now)), join(" ", al.GetIpam(), cmp.Or(al.GetLocation(), al.GetPool())),
		})
	}
	p.rows("Allocated by IPAM to:", rows)
}

func (p *page) heading(title string) { p.out.WriteString("\n" + title + "\n") }

// items adds names, each with a text.
func (p *page) items(title string, rows [][2]string) {
	widest := 0
	for _, r := range rows {
		widest = max(widest, width(r[0]))
	}
	for i, r := range rows {
		if i == 0 {
			p.heading(title)
		}
		p.item("  "+r[0]+strings.Repeat(" ", widest-width(r[0]))+gap, r[1])
	}
}

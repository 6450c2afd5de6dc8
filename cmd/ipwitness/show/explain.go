package show

import (
	"fmt"
	"io"
	"slices"
	"time"

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
	if len(e.GetFindings()) > 0 {
		p.heading("Findings:")
		for _, f := range e.GetFindings() {
			p.toned(findingTone(f), f.GetSeverity().String(), "  ", fmt.Sprintf("%s %s: %s", f.GetSeverity(), f.GetKind(), f.GetSummary()))
		}
	}
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

	unresolved := slices.DeleteFunc(slices.Clone(e.GetConflicts()), func(c *pb.Conflict) bool { return c.GetState() == pb.Conflict_RESOLVED })
	if len(unresolved) > 0 { // the related objects of all conflicts of an address are nearly the same
		p.related("Kubernetes says:", unresolved[0].GetRelated())
	}
	for _, c := range unresolved {
		p.why(c)
	}
	p.steps("Rules that applied:", e.GetSteps(), true)
	p.steps("Rules that did not:", e.GetSteps(), false)

	if len(e.GetConflicts()) > 0 {
		p.heading("Conflicts:")
		t := p.table(5)
		t.traits[3], t.traits[4] = trait{folds: true}, trait{}
		for _, c := range e.GetConflicts() {
			t.Row("  "+c.GetId(), ConflictState(c)+lasting(c, p.now), scope(c.GetScope()), ConflictNames(c), prefixed("cause ", c.GetCause()))
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

// steps adds the rules that applied, or the rules that did not.
func (p *page) steps(title string, steps []*pb.ExplainResponse_Step, applied bool) {
	t := p.table(3)
	for _, s := range steps {
		if s.GetApplied() == applied {
			t.Row("  "+s.GetRule(), scope(s.GetScope()), s.GetReason())
		}
	}
	if len(t.rows) > 0 {
		p.heading(title)
	}
	_ = t.Flush() // writing to a page cannot fail
}

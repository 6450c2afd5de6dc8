package situations

import (
	"strings"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/situations/row"
)

// rowOf returns an explanation as a row.
func rowOf(e *ipwitnessv1.ExplainResponse) (r row.Row) {
	r.Scope = scopeText(e.GetScope())
	for _, o := range e.GetOwners() {
		owner := row.Owner{Name: nameOf(o), Node: o.GetNode(), State: o.GetState().String(), Excluded: o.GetExcluded() != ""}
		for _, v := range o.GetEvidence() {
			owner.Evidence = append(owner.Evidence, v.GetKind().String())
		}
		r.Owners = append(r.Owners, owner)
	}
	for _, c := range e.GetConflicts() {
		conflict := row.Conflict{
			State: c.GetState().String(), Scope: scopeText(c.GetScope()), Rule: c.GetRule(), Cause: c.GetCause(),
		}
		if p := c.GetLinkProof(); p != ipwitnessv1.LinkProof_UNSPECIFIED {
			conflict.LinkProof = p.String()
		}
		for _, o := range c.GetOwners() {
			conflict.Owners = append(conflict.Owners, nameOf(o))
		}
		r.Conflicts = append(r.Conflicts, conflict)
	}
	for _, s := range e.GetSteps() {
		step := strings.TrimSpace(s.GetRule() + " " + scopeText(s.GetScope()))
		if s.GetApplied() {
			r.Applied = append(r.Applied, step)
		} else {
			r.NotApplied = append(r.NotApplied, step)
		}
	}
	return r
}

// nameOf returns the kind and name of an owner. An external device has only its MAC.
func nameOf(o *ipwitnessv1.Owner) string {
	w := o.GetWorkload()
	name := w.GetName()
	switch {
	case w.GetKind() == ipwitnessv1.Workload_EXTERNAL:
		name = o.GetMac()
	case w.GetNamespace() != "":
		name = w.GetNamespace() + "/" + name
	}
	return strings.TrimSpace(w.GetKind().String() + " " + name)
}

func scopeText(s *ipwitnessv1.Scope) string {
	if s == nil {
		return ""
	}
	return strings.TrimSpace(s.GetKind().String() + " " + s.GetName())
}

package verdict

import (
	"cmp"
	"net/netip"
	"slices"
)

// An Explanation is a judgement together with the rules that were applied. Package explain renders
// it as text.
type Explanation struct {
	Address netip.Addr
	// Kind and Scope are the scope of the first conflict or, without a conflict, the widest scope
	// in which the address is compared.
	Kind   ScopeKind
	Scope  string
	Owners []Owner
	// Compared are the owners that are compared, with their scopes.
	Compared []Compared
	// Conflicts are the active conflicts.
	Conflicts []Conflict
	// Lasting is set if a conflict that was found before has not ended, although the rules no longer find it.
	Lasting bool
	Steps   []Step
	// Findings are the kinds of the findings about the address that need action, according to the last audit.
	Findings []string
	// Contested is set if several senders claim the address on the wire.
	Contested bool
	// Incomplete is set if some nodes are not observed. Awaited is set if reports or records are awaited.
	Incomplete, Awaited bool
}

// Explain judges one address and returns the judgement with its reasons.
func (p *Policy) Explain(in *Case) Explanation {
	j := evaluation{policy: p, in: in, memory: new(memory), explain: true}
	out := j.judge()
	e := Explanation{Address: in.Address, Owners: out.Owners, Conflicts: out.Conflicts, Contested: out.Contested, Incomplete: in.Incomplete, Awaited: in.Awaited}
	for i := range in.Before {
		if f := &in.Before[i]; f.Severity > Info && !f.Waiting && !slices.Contains(e.Findings, f.Kind) {
			e.Findings = append(e.Findings, f.Kind)
		}
	}
	e.Lasting = slices.ContainsFunc(in.Conflicts, func(c Memory) bool {
		return c.Active() && !slices.ContainsFunc(out.Conflicts, func(now Conflict) bool { return now.ID == c.ID }) &&
			!slices.ContainsFunc(out.Ended, func(end Ended) bool { return end.ID == c.ID })
	})
	var compared []*Owner
	var widest Scope
	for i := range out.Owners {
		o := &out.Owners[i]
		j.noteOwner(o)
		if o.Excluded != nil || !o.Alive() {
			continue
		}
		compared = append(compared, o)
		e.Compared = append(e.Compared, j.compared(o))
		if o.Scope.Kind != 0 && (widest.Kind == 0 || cmp.Or(cmp.Compare(widest.Kind, o.Scope.Kind), cmp.Compare(o.Scope.Node, widest.Node), cmp.Compare(o.Scope.Name, widest.Name)) < 0) {
			widest = o.Scope
		}
	}
	e.Kind, e.Scope = widest.Kind, widest.Text()
	if len(out.Conflicts) > 0 {
		e.Kind, e.Scope = out.Conflicts[0].Kind, out.Conflicts[0].Scope
	}
	if in.Address.IsLinkLocalUnicast() && len(compared) > 0 {
		j.note(Step{Rule: RuleLinkLocal, Applied: true})
	}
	for _, al := range in.Allocations {
		if al.Service != nil {
			j.note(Step{Rule: RuleService, Applied: true, Service: al.Service})
		}
	}
	j.noteScopes(compared)
	j.noteApart(compared)
	e.Steps = j.steps
	return e
}

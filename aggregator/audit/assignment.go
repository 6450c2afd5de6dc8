package audit

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// auditAssignments compares the nodes that hold a virtual address with the node that its controller
// assigns it to. It finds nothing if the agent of that node does not report, because a node may have
// another name in Kubernetes than for its agent.
func (a *addressAudit) auditAssignments() {
	for _, al := range a.in.Allocations {
		p := al.Pool
		if !p.Assigns() {
			continue
		}
		if p.State != ipam.Known || !al.Covered {
			a.keep(p, verdict.FindingVIPHeldElsewhere)
			a.again(a.in.Now.Add(a.policy.HandoverGrace)) // no fact changes when agents are connected again
			continue
		}
		var wrong, right []verdict.Owner
		waits := false
		for i := range a.judged.Owners {
			switch o := &a.judged.Owners[i]; {
			case o.Kind() != verdict.Host || !o.Alive() || o.Scope.Kind == 0:
			case o.Excluded != nil && !o.ExcludedBy(verdict.RuleHandedOver): // that is no news until the frames expire
			case a.in.Assigns(o):
				right = append(right, *o)
			case o.Assigned:
				wrong, waits = append(wrong, *o), true
			case a.claimsAfterHandover(al.Allocation, o):
				wrong = append(wrong, *o)
			}
		}
		if len(wrong) == 0 {
			continue
		}
		patience := a.policy.HandoverGrace
		if !waits {
			patience = 0 // the frames were sent after the grace
		}
		f := verdict.Finding{
			Kind: verdict.FindingVIPHeldElsewhere, Severity: verdict.Critical, Pool: p,
			Allocations: []*verdict.Allocation{al.Allocation}, Owners: slices.Concat(wrong, right),
		}
		a.record(f, p.Subject()+" ", patience)
	}
}

// claimsAfterHandover reports whether an owner claimed the address on the wire when the controller
// had already assigned it to another node for the time of a hand-over. Its earlier frames are those
// of the node that rightly held the address.
func (a *addressAudit) claimsAfterHandover(al *verdict.Allocation, o *verdict.Owner) bool {
	return slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool {
		return c.Wire() && !c.Weak() && c.Seen >= al.Heard.Add(a.policy.HandoverGrace)
	})
}

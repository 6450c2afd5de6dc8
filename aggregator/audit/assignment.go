package audit

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// auditAssignments compares the nodes that hold a virtual address with the node that its controller
// assigns it to. It finds nothing new if the agent of that node does not report, because a node may
// have another name in Kubernetes than for its agent.
func (a *addressAudit) auditAssignments() {
	if !a.in.Virtual() {
		return
	}
	for i := range a.judged.Conflicts {
		if c := &a.judged.Conflicts[i]; c.Active() && verdict.Alternates(a.out.Past, c.DetectedAt) {
			return // the conflict says why, and the finding would alternate
		}
	}
	for i := range a.in.Allocations {
		al := &a.in.Allocations[i]
		if !al.Pool.Assigns {
			continue
		}
		h := a.holdersOf(al.Allocation)
		rival := a.rivalAssignment(al.Allocation, h.right)
		switch {
		case len(h.wrong) == 0 && !h.unheard && rival == nil:
			continue
		case len(h.wrong) == 0 && rival == nil || al.Pool.State != ipam.Known || rival != nil && rival.Pool.State != ipam.Known || !al.Covered:
			a.keep(al.Pool, verdict.FindingVIPHeldElsewhere)
			a.again(a.in.Now.Add(a.policy.HandoverGrace)) // no fact changes when agents are connected again
			continue
		}
		patience := a.policy.HandoverGrace
		if !h.kernel && rival == nil {
			patience = 0 // the frames were sent after the grace
		}
		f := verdict.Finding{
			Kind: verdict.FindingVIPHeldElsewhere, Severity: verdict.Critical, Pool: al.Pool,
			Allocations: []*verdict.Allocation{al.Allocation}, Owners: slices.Concat(h.wrong, h.right),
		}
		if rival != nil {
			f.Allocations = append(f.Allocations, rival)
		}
		a.record(f, al.Pool.Subject()+" ", patience)
	}
}

// rivalAssignment returns the assignment of the address by the controller of another program to another node, if nodes hold the
// address for both; nil otherwise. It returns one for the first of both alone. A record that a controller has left behind is
// none, because nothing holds the address for it.
func (a *addressAudit) rivalAssignment(al *verdict.Allocation, holders []verdict.Owner) *verdict.Allocation {
	held := func(by, not *verdict.Allocation) bool {
		return slices.ContainsFunc(holders, func(o verdict.Owner) bool {
			return o.OnNode(by.Node) && !o.OnNode(not.Node) && (o.Assigned || a.claimsAfterGrace(&o, by))
		})
	}
	for i := range a.in.Allocations {
		other := a.in.Allocations[i].Allocation
		if other.Pool.Assigns && al.Pool.IPAM < other.Pool.IPAM && held(al, other) && held(other, al) {
			return other
		}
	}
	return nil
}

// claimsAfterGrace reports whether a node has claimed an address on the wire after a controller may have handed it over. Earlier
// frames are those of the node that rightly held the address.
func (a *addressAudit) claimsAfterGrace(o *verdict.Owner, al *verdict.Allocation) bool {
	return slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool {
		return c.Wire() && !c.Weak() && c.Seen >= al.Heard.Add(a.policy.HandoverGrace)
	})
}

// holders are the nodes that hold a virtual address.
type holders struct {
	// right are those that it is assigned to, and wrong are the others. kernel is set if a kernel of
	// the others has it.
	right, wrong []verdict.Owner
	kernel       bool
	// unheard is set if a disconnected node may hold it.
	unheard bool
}

// holdersOf returns the nodes that hold a virtual address that a controller assigns to one of them.
func (a *addressAudit) holdersOf(al *verdict.Allocation) (h holders) {
	for i := range a.judged.Owners {
		switch o := &a.judged.Owners[i]; {
		case o.Kind() != verdict.Host || !o.Alive() || o.Scope.Kind == 0 || o.Excluded != nil:
		case a.in.Assigns(o):
			h.right = append(h.right, *o)
		case o.State == verdict.Unheard:
			h.unheard = true // it may have failed, which is why the address moved
		case o.Assigned:
			h.wrong, h.kernel = append(h.wrong, *o), true
		case a.claimsAfterGrace(o, al):
			h.wrong = append(h.wrong, *o)
		}
	}
	return h
}

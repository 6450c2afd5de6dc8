package verdict

import (
	"slices"
)

// A cause follows from facts; without them it is unknown. Causes are tried in a fixed order. For
// each cause that does not fit, the fact that rules it out is recorded.

// causes are all causes in order of preference.
var causes = []struct {
	name string
	ask  func(*inquiry) reason
}{
	{CauseOrphanedSandbox, (*inquiry).orphanedSandbox},
	{CauseReplacedNamespace, (*inquiry).replacedNamespace},
	{CauseSplitBrain, (*inquiry).splitBrain},
	{CauseExternalDevice, (*inquiry).externalDevice},
	{CauseTunnelAddress, (*inquiry).tunnelAddress},
	{CauseIPAMBookedElsewhere, (*inquiry).bookedElsewhere},
	{CausePodCIDROverlap, (*inquiry).podCIDROverlap},
	{CauseOverlappingNetworks, (*inquiry).overlappingNetworks},
	{CauseIPAMStateLost, (*inquiry).stateLost},
	{CauseIPAMAllocatedTwice, (*inquiry).allocatedTwice},
	{CauseStaticAddress, (*inquiry).staticAddress},
}

// Causes returns the names of all causes, in alphabetical order.
func Causes() []string {
	names := []string{CauseUnknown}
	for _, c := range causes {
		names = append(names, c.name)
	}
	slices.Sort(names)
	return names
}

// inquire determines the cause of a conflict and records the facts that it follows from.
func (j *evaluation) inquire(c *Conflict) {
	q := inquiry{evaluation: j, c: c, owners: c.Parties()}
	q.gather()
	c.Pools, c.Past, c.Why = q.pools, j.in.Past, q.why()
	c.Checks = q.checks()
	for _, o := range q.owners {
		c.Titles = append(c.Titles, q.title(o))
	}
	if keep, right := c.Rightful(q.owners); keep != nil {
		c.Keeper, c.Right = keep.ID, right
	}
}

// why returns the first cause that fits, and the reasons why others do not.
func (q *inquiry) why() Why {
	found := Why{Cause: CauseUnknown}
	var others []RuledOut
	for _, cause := range causes {
		r := cause.ask(q)
		switch {
		case r.fits() && found.Cause == CauseUnknown:
			found = r.Why
			found.Cause = cause.name
		case !r.fits() && r.contrary.Kind != "":
			others = append(others, RuledOut{Cause: cause.name, Fact: r.contrary, Open: r.open})
		}
	}
	found.RuledOut = slices.DeleteFunc(others, func(r RuledOut) bool { return r.Open && found.Cause != CauseUnknown })
	return found
}

// orphanedSandbox: the pod of an owner no longer exists in the Kubernetes API.
func (q *inquiry) orphanedSandbox() (r reason) {
	if gone := orphans(q.c.Owners); len(gone) > 0 { // includes a virt-launcher pod that ended after a migration
		for _, o := range gone {
			r.Wrong = append(r.Wrong, o.ID)
			left := Fact{Kind: FactSandboxLeft, Owners: ids(o)}
			if !o.Pod.Absent {
				left.Text = o.Pod.Phase
			}
			r.fact(left)
		}
		r.Headline = &Fact{Kind: FactSandboxLeft, Owners: r.Wrong}
		return r
	}
	if q.c.Expected() {
		return reason{}
	}
	var there []*Owner
	for _, o := range q.owners {
		if o.Kind() == Pod && o.Assigned {
			if o.Pod == nil || o.Pod.Absent || o.Pod.Ended() {
				return reason{} // the API is not followed, or may lag behind
			}
			there = append(there, o)
		}
	}
	if len(there) == 0 {
		return reason{}
	}
	return ruledOut(Fact{Kind: NotPodsThere, Owners: ids(there...)})
}

// splitBrain: two nodes have an address that may move between them.
func (q *inquiry) splitBrain() (r reason) {
	switch c := q.c; {
	case c.Rule == RuleSameVM && c.Phase == Confirmed:
		r.fact(Fact{Kind: FactOneMachine})
	case c.Rule == RuleSplitBrain && c.Kind == LinkScope:
		r.fact(Fact{Kind: FactOneLink})
		if c.Phase == Confirmed {
			r.fact(Fact{Kind: FactBeyondGrace})
		}
	case c.Rule == RuleSplitBrain:
		return ruledOut(Fact{Kind: NotOneLink})
	}
	return r
}

package verdict

import (
	"cmp"
	"slices"
)

// A cause follows from facts, or it stays unknown. What a cause needs is looked for in
// the order of causes; of what does not fit it is told why.

// causes are all of them, those that explain the most first.
var causes = []struct {
	name string
	ask  func(*inquiry) reason
}{
	{CauseOrphanedSandbox, (*inquiry).orphanedSandbox},
	{CauseSplitBrain, (*inquiry).splitBrain},
	{CauseExternalDevice, func(q *inquiry) reason { return devices{q}.externalDevice() }},
	{CauseTunnelAddress, func(q *inquiry) reason { return devices{q}.tunnelAddress() }},
	{CauseIPAMBookedElsewhere, func(q *inquiry) reason { return records{q}.bookedElsewhere() }},
	{CausePodCIDROverlap, func(q *inquiry) reason { return ranges{q}.podCIDROverlap() }},
	{CauseOverlappingNetworks, func(q *inquiry) reason { return ranges{q}.overlappingNetworks() }},
	{CauseIPAMStateLost, func(q *inquiry) reason { return records{q}.stateLost() }},
	{CauseStaticAddress, func(q *inquiry) reason { return devices{q}.staticAddress() }},
}

// reason is why something is the cause of a conflict, or is not; neither, where it
// cannot be.
type reason struct {
	Why
	// not is why it is not the cause, where that was looked at; open tells that it may
	// be, but that what would tell is missing.
	not  Fact
	open bool
}

func (r *reason) fits() bool { return len(r.Facts) > 0 }

func (r *reason) fact(facts ...Fact) { r.Facts = append(r.Facts, facts...) }

func not(f Fact) reason { return reason{not: f} }

func open(f Fact) reason { return reason{not: f, open: true} }

// inquiry looks for the cause of one conflict.
type inquiry struct {
	*judging
	c      *Conflict
	owners []*Owner
	// pools and allocations are those of IPAMs.
	pools       []*Pool
	allocations []*Allocation
	// outside are the allocations for nodes without an agent.
	outside []*Allocation
}

// inquire finds out why a conflict came about, and what is known of that.
func (j *judging) inquire(c *Conflict) {
	q := inquiry{judging: j, c: c, owners: c.Parties()}
	q.gather()
	c.Pools, c.Why = q.pools, q.why()
	c.Checks = q.checks()
	for _, o := range q.owners {
		c.Titles = append(c.Titles, q.title(o))
	}
	if keep, right := c.Rightful(q.owners); keep != nil {
		c.Keeper, c.Right = keep.ID, right
	}
}

// gather lists the pools and allocations of IPAMs, always in one order.
func (q *inquiry) gather() {
	all := slices.SortedFunc(slices.Values(q.in.Allocations), func(a, b AllocationFacts) int { return compareAllocations(a.Allocation, b.Allocation) })
	for _, al := range all {
		q.c.Allocations = append(q.c.Allocations, al.Allocation)
		if al.Pool.IPAM == KubernetesAPI {
			continue
		}
		q.allocations = append(q.allocations, al.Allocation)
		if al.Node != "" && !al.Covered {
			q.outside = append(q.outside, al.Allocation)
		}
	}
	for _, p := range q.in.Pools {
		if p.IPAM != KubernetesAPI {
			q.pools = append(q.pools, p)
		}
	}
	for _, al := range q.allocations {
		if !slices.ContainsFunc(q.pools, al.Pool.Is) {
			q.pools = append(q.pools, al.Pool)
		}
	}
	slices.SortFunc(q.pools, comparePools)
}

// why returns the first cause that fits, and why the others do not.
func (q *inquiry) why() Why {
	found := Why{Cause: CauseUnknown}
	var others []RuledOut
	for _, cause := range causes {
		r := cause.ask(q)
		switch {
		case r.fits() && found.Cause == CauseUnknown:
			found = r.Why
			found.Cause = cause.name
		case !r.fits() && r.not.Kind != "":
			others = append(others, RuledOut{Cause: cause.name, Fact: r.not, Open: r.open})
		}
	}
	found.RuledOut = slices.DeleteFunc(others, func(r RuledOut) bool { return r.Open && found.Cause != CauseUnknown })
	return found
}

// plain tells whether a conflict is of owners that have nothing to do with each other.
func (q *inquiry) plain() bool { return q.c.Rule != RuleSamePod && q.c.Rule != RuleSameVM }

// pairs gives each two owners, both ways round, until told to stop.
func (q *inquiry) pairs(yield func(a, b *Owner) bool) {
	for _, a := range q.owners {
		for _, b := range q.owners {
			if a != b && !yield(a, b) {
				return
			}
		}
	}
}

// orphanedSandbox: the Kubernetes API has the pod of an owner no more.
func (q *inquiry) orphanedSandbox() (r reason) {
	if gone := orphans(q.c.Owners); len(gone) > 0 { // also of a launcher that has ended after a migration
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
				return reason{} // it is not asked, or may not know yet
			}
			there = append(there, o)
		}
	}
	if len(there) == 0 {
		return reason{}
	}
	return not(Fact{Kind: NotPodsThere, Owners: ids(there...)})
}

// splitBrain: an address that may move is at both ends.
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
		return not(Fact{Kind: NotOneLink})
	}
	return r
}

// ids returns the ids of owners.
func ids(owners ...*Owner) []string {
	all := make([]string, len(owners))
	for i, o := range owners {
		all[i] = o.ID
	}
	return all
}

// comparePools orders pools, those of the whole cluster first.
func comparePools(a, b *Pool) int {
	switch {
	case a.Node == nil && b.Node != nil:
		return -1
	case a.Node != nil && b.Node == nil:
		return 1
	case a.Node != nil:
		if c := compareNodes(a.Node, b.Node); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(a.IPAM, b.IPAM), cmp.Compare(a.Name, b.Name))
}

// compareAllocations orders allocations by their pools.
func compareAllocations(a, b *Allocation) int {
	return cmp.Or(
		comparePools(a.Pool, b.Pool), cmp.Compare(a.Location, b.Location), cmp.Compare(a.Node, b.Node),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
		cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.Interface, b.Interface),
	)
}

package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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
	{CauseExternalDevice, (*inquiry).externalDevice},
	{CauseTunnelAddress, (*inquiry).tunnelAddress},
	{CauseIPAMBookedElsewhere, (*inquiry).bookedElsewhere},
	{CausePodCIDROverlap, (*inquiry).podCIDROverlap},
	{CauseOverlappingNetworks, (*inquiry).overlappingNetworks},
	{CauseIPAMStateLost, (*inquiry).stateLost},
	{CauseStaticAddress, (*inquiry).staticAddress},
}

// reason is why something is the cause of a conflict, or is not; neither, where it
// cannot be.
type reason struct {
	// cause is its name.
	cause string
	// short says it in a sentence.
	short string
	// facts are what it follows from.
	facts []string
	// not is why it is not the cause, where that was looked at; open tells that it may
	// be, but that what would tell is missing.
	not  string
	open bool
	// wrong are the owners that are to give the address up, where the cause tells it.
	wrong []*Owner
	// pools are those that it is about.
	pools []*Pool
	// networks are what has one range, and at who has the address by each; nodes are
	// those that have one.
	networks []side
	at       []*Owner
	nodes    []*Node
	// gateway is set if a node has the address as the gateway of pods.
	gateway bool
	// kubernetes tells that it is in Node.spec.podCIDRs that the ranges are one,
	// uncovered that there may be nodes without an agent.
	kubernetes, uncovered bool
}

func (r *reason) fits() bool { return len(r.facts) > 0 }

func (r *reason) fact(format string, args ...any) {
	r.facts = append(r.facts, capital(fmt.Sprintf(format, args...)))
}

func not(format string, args ...any) reason { return reason{not: fmt.Sprintf(format, args...)} }

func open(format string, args ...any) reason {
	return reason{not: fmt.Sprintf(format, args...), open: true}
}

// mostAsked is of how many owners a cause is looked for: each two are compared.
const mostAsked = 32

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

// inquire says of a conflict why it came about, and what is known of that.
func (j *judging) inquire(c *Conflict) reason {
	q := inquiry{judging: j, c: c}
	for i := range c.Owners[:min(len(c.Owners), mostAsked)] {
		q.owners = append(q.owners, &c.Owners[i])
	}
	all := slices.SortedFunc(slices.Values(j.in.Allocations), func(a, b AllocationFacts) int { return compareAllocations(a.Allocation, b.Allocation) })
	c.Allocations = nil
	for _, al := range all {
		c.Allocations = append(c.Allocations, al.Allocation)
		if al.Pool.IPAM == KubernetesAPI {
			continue
		}
		q.allocations = append(q.allocations, al.Allocation)
		if al.Node != "" && !al.Covered {
			q.outside = append(q.outside, al.Allocation)
		}
	}
	for _, p := range j.in.Pools {
		if p.IPAM != KubernetesAPI {
			q.pools = append(q.pools, p)
		}
	}
	for _, al := range q.allocations {
		if !slices.ContainsFunc(q.pools, al.Pool.Is) {
			q.pools = append(q.pools, al.Pool)
		}
	}

	slices.SortFunc(q.pools, comparePools) // so that one thing is always said in one way

	found := reason{cause: CauseUnknown}
	var excluded []reason
	for _, cause := range causes {
		r := cause.ask(&q)
		r.cause = cause.name
		switch {
		case r.fits() && found.cause == CauseUnknown:
			found = r
		case !r.fits() && r.not != "":
			excluded = append(excluded, r)
		}
	}
	c.Excluded = nil
	for _, r := range excluded {
		if !r.open || found.cause == CauseUnknown {
			c.Excluded = append(c.Excluded, Exclusion{r.cause, r.not})
		}
	}
	c.Cause, c.Because = found.cause, found.facts
	c.Diagnosis = q.diagnosis()
	c.Keeper, c.Right = "", RightUndecided
	if keep, right := q.rightful(q.owners); keep != nil {
		c.Keeper, c.Right = keep.ID, right
	}
	c.Remedy = readable(q.remedy(&found))
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
	if r.wrong = orphans(q.c.Owners); len(r.wrong) > 0 { // also of a launcher that has ended after a migration
		for _, o := range r.wrong {
			if o.Pod.Absent {
				r.fact("The Kubernetes API has no %s: its sandbox on node %s was left behind.", o.exactly(), o.Node.Name)
			} else {
				r.fact("%s has ended (%s), but its sandbox on node %s was left behind.", o.name(), o.Pod.Phase, o.Node.Name)
			}
		}
		r.short = strings.Join(r.facts, " ")
		return r
	}
	if q.c.Expected() {
		return reason{}
	}
	var there []string
	for _, o := range q.owners {
		if o.Kind() == Pod && o.Assigned {
			if o.Pod == nil || o.Pod.Absent || o.Pod.Ended() {
				return reason{} // it is not asked, or may not know yet
			}
			there = append(there, o.name())
		}
	}
	switch len(there) {
	case 0:
		return reason{}
	case 1:
		return not("the Kubernetes API has %s, which has not ended", there[0])
	}
	return not("the Kubernetes API has %s, and none of them has ended", list(there))
}

// splitBrain: an address that may move is at both ends.
func (q *inquiry) splitBrain() (r reason) {
	names := list(each(q.c.Owners, (*Owner).name))
	switch c := q.c; {
	case c.Rule == RuleSameVM && c.Phase == Confirmed:
		r.fact("%s run one virtual machine, and have had its address for longer than the %s that a migration may take.", names, q.policy.MigrationGrace)
	case c.Rule == RuleSplitBrain && c.Kind == LinkScope:
		r.fact("%s are on one link, where an address can move from one to the other.", names)
		if c.Phase == Confirmed {
			r.fact("They have had it for longer than the %s that a hand-over may take.", q.policy.HandoverGrace)
		}
	case c.Rule == RuleSplitBrain:
		return not("%s are on no link in common that is known: an address cannot move from one to the other", names)
	}
	return r
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

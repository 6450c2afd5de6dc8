package verdict

import (
	"slices"
)

// A reason is the outcome of testing one cause. It is empty if the cause cannot apply.
type reason struct {
	Why
	// contrary is the fact that rules the cause out. open is set if the cause is not ruled out, and
	// not is then the fact that is missing.
	contrary Fact
	open     bool
}

func (r *reason) fits() bool { return len(r.Facts) > 0 }

func (r *reason) fact(facts ...Fact) { r.Facts = append(r.Facts, facts...) }

func ruledOut(f Fact) reason { return reason{contrary: f} }

func undecided(f Fact) reason { return reason{contrary: f, open: true} }

// inquiry looks for the cause of one conflict.
type inquiry struct {
	*evaluation
	c      *Conflict
	owners []*Owner
	// pools and allocations exclude those of the Kubernetes API and of controllers of virtual
	// addresses.
	pools       []*Pool
	allocations []*Allocation
	// outside are the allocations for nodes without an agent.
	outside []*Allocation
	// assignments say which node a controller wants to hold the address.
	assignments []*Allocation
}

// gather lists the pools and allocations of IPAMs in a fixed order.
func (q *inquiry) gather() {
	all := slices.SortedFunc(slices.Values(q.in.Allocations), func(a, b AllocationFacts) int { return compareAllocations(a.Allocation, b.Allocation) })
	for _, al := range all {
		q.c.Allocations = append(q.c.Allocations, al.Allocation)
		switch {
		case al.Pool.Assigns:
			q.assignments = append(q.assignments, al.Allocation)
			continue
		case al.Pool.Status:
			continue
		}
		q.allocations = append(q.allocations, al.Allocation)
		if al.Node != "" && !al.Covered {
			q.outside = append(q.outside, al.Allocation)
		}
	}
	for _, p := range q.in.Pools {
		if !p.Status && !p.Assigns {
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

// unrelated reports whether the owners of the conflict are unrelated: neither one workload nor copies of one.
func (q *inquiry) unrelated() bool { return !q.c.SamePod() && !q.c.SameVM() && !q.c.Copied() }

// pairs yields every ordered pair of owners.
func (q *inquiry) pairs(yield func(a, b *Owner) bool) {
	for _, a := range q.owners {
		for _, b := range q.owners {
			if a != b && !yield(a, b) {
				return
			}
		}
	}
}

// ids returns the IDs of owners.
func ids(owners ...*Owner) []string {
	all := make([]string, len(owners))
	for i, o := range owners {
		all[i] = o.ID
	}
	return all
}

// inPodRange reports whether the address is in a range from which pods get addresses.
func (q *inquiry) inPodRange() bool {
	return q.in.InPodCIDR || slices.ContainsFunc(q.pools, func(p *Pool) bool { return p.Contains(q.c.Address) })
}

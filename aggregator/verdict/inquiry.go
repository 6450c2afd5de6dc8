package verdict

import "slices"

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

// ids returns the ids of owners.
func ids(owners ...*Owner) []string {
	all := make([]string, len(owners))
	for i, o := range owners {
		all[i] = o.ID
	}
	return all
}

// inPodRange tells whether the address is one that pods may be given.
func (q *inquiry) inPodRange() bool {
	return q.in.InPodCIDR || slices.ContainsFunc(q.pools, func(p *Pool) bool { return p.Contains(q.c.Address) })
}

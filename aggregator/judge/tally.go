package judge

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// tally counts the findings about addresses of pools, and collects the pools to check.
type tally struct {
	clock func() verdict.Stamp
	wake  chan struct{}
	// inOrder has the places of all pools in the order of lists.
	inOrder *index.Set[PoolPlace]

	mu sync.Mutex
	of map[*facts.Pool]*poolAudit
	// changed has the pools that changed; since is when the first of them changed. due is when
	// pools are checked again.
	changed []*facts.Pool
	since   verdict.Stamp
	due     map[*facts.Pool]verdict.Stamp
}

// poolAudit is the result of audits for one pool.
type poolAudit struct {
	// leaked is the number of leaked allocations.
	leaked audit.Tally
	// atRisk has the addresses in use that the pool considers free, with their owners.
	atRisk map[netip.Addr][]verdict.Owner
	growth audit.Growth
	// checkedAt is when the pool was last checked.
	checkedAt verdict.Stamp
	changed   bool
}

func newTally(clock func() verdict.Stamp) *tally {
	return &tally{clock: clock, wake: make(chan struct{}, 1), inOrder: index.NewSet(PoolPlace.Less), of: make(map[*facts.Pool]*poolAudit), due: make(map[*facts.Pool]verdict.Stamp)}
}

// Changed schedules a check of a pool for when the current change has been judged.
func (a *tally) Changed(p *facts.Pool) {
	if p.Ended {
		return
	}
	a.inOrder.Put(PoolPlaceOf(p))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.markChanged(p)
}

// markChanged adds a pool to changed. The caller holds a.mu.
func (a *tally) markChanged(p *facts.Pool) *poolAudit {
	one := a.of[p]
	if one == nil {
		one = &poolAudit{atRisk: make(map[netip.Addr][]verdict.Owner)}
		a.of[p] = one
	}
	if !one.changed {
		one.changed = true
		if len(a.changed) == 0 {
			a.since = a.clock()
		}
		a.changed = append(a.changed, p)
	}
	return one
}

// ended removes the place of a pool that was removed or is about to be renamed.
func (a *tally) ended(p *facts.Pool) { a.inOrder.Delete(PoolPlaceOf(p)) }

// AtRisk returns the addresses in use that a pool considers free.
func (a *tally) AtRisk(p *facts.Pool) []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	var addrs []netip.Addr
	if one := a.of[p]; one != nil {
		for addr := range one.atRisk {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// count records a finding about an address of a pool. there is false if the finding ended; first is
// set if it is new.
func (a *tally) count(p *facts.Pool, f *verdict.Finding, there, first bool) {
	if p == nil || f.Kind != verdict.FindingInUseUnallocated && f.Kind != verdict.FindingLeaked {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.markChanged(p)
	switch {
	case f.Kind == verdict.FindingInUseUnallocated && there:
		one.atRisk[f.Address] = f.Owners
	case f.Kind == verdict.FindingInUseUnallocated:
		delete(one.atRisk, f.Address)
	case first:
		one.leaked[audit.FamilyOf(f.Address)]++
	case !there:
		one.leaked[audit.FamilyOf(f.Address)]--
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// updateOwners records all owners of an address that a pool considers free, including owners that
// the finding does not name.
func (a *tally) updateOwners(p *facts.Pool, f *verdict.Finding, owners []verdict.Owner) {
	if p == nil || f.Kind != verdict.FindingInUseUnallocated {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.of[p]
	if one == nil {
		return
	}
	if !slices.EqualFunc(one.atRisk[f.Address], owners, sameAtRisk) {
		a.markChanged(p)
	}
	one.atRisk[f.Address] = owners
}

// sameAtRisk reports whether two versions of an owner are equal in everything that matters for an
// address at risk.
func sameAtRisk(a, b verdict.Owner) bool {
	return a.ID == b.ID && a.Assigned == b.Assigned && a.AssignedAt() == b.AssignedAt() && a.Workload() == b.Workload()
}

// Use returns how full a pool is. The caller holds the facts.
func (a *tally) Use(p *facts.Pool) verdict.PoolUse {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.of[p]
	if one == nil {
		one = &poolAudit{}
	}
	return audit.Use(&p.Rec, p.Allocated, one.leaked, &one.growth, a.clock())
}

// History returns how the use of a pool has changed in the last day. The caller holds the facts.
func (a *tally) History(p *facts.Pool) []audit.Used {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.of[p]; one != nil {
		return one.growth.History(&p.Rec, p.Allocated)
	}
	return nil
}

// Rested wakes the check of the pools that changed. It must be called when the queue of addresses
// is empty.
func (a *tally) Rested() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.changed) > 0 {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// arm schedules another check of a pool, unless an earlier one is scheduled.
func (a *tally) arm(p *facts.Pool, at verdict.Stamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if was, set := a.due[p]; !set || at < was {
		a.due[p] = at
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

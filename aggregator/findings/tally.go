package findings

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
	facts *facts.Facts
	hints *hints
	clock func() verdict.Stamp
	wake  chan struct{}
	// inOrder has the places of all pools in the order of lists.
	inOrder *index.Set[PoolPlace]

	mu sync.Mutex
	of map[*facts.Pool]*poolAudit
	// told is what other replicas tell of their addresses.
	told map[facts.PoolID]map[index.Address][]PoolHint
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

func newTally(f *facts.Facts, hints *hints) *tally {
	return &tally{facts: f, hints: hints, clock: f.Clock, told: make(map[facts.PoolID]map[index.Address][]PoolHint), wake: make(chan struct{}, 1), inOrder: index.NewSet(PoolPlace.Less), of: make(map[*facts.Pool]*poolAudit), due: make(map[*facts.Pool]verdict.Stamp)}
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
func (a *tally) ended(p *facts.Pool) {
	a.inOrder.Delete(PoolPlaceOf(p))
	a.hints.ended(p)
}

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
		a.hints.pool(index.AddressOf(f.Address), p, false, true, f.Owners)
	case f.Kind == verdict.FindingInUseUnallocated:
		delete(one.atRisk, f.Address)
		a.hints.pool(index.AddressOf(f.Address), p, false, false, nil)
	case first:
		one.leaked[audit.FamilyOf(f.Address)]++
		a.hints.pool(index.AddressOf(f.Address), p, true, true, nil)
	case !there:
		one.leaked[audit.FamilyOf(f.Address)]--
		a.hints.pool(index.AddressOf(f.Address), p, true, false, nil)
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// tell takes what other replicas tell of an address. The caller holds the facts.
func (a *tally) tell(at index.Address, before, now []PoolHint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range before {
		if delete(a.told[h.Pool], at); len(a.told[h.Pool]) == 0 {
			delete(a.told, h.Pool)
		}
	}
	for _, h := range now {
		of := a.told[h.Pool]
		if of == nil {
			of = make(map[index.Address][]PoolHint)
			a.told[h.Pool] = of
		}
		of[at] = append(of[at], h)
	}
	for _, h := range slices.Concat(before, now) {
		if p := a.facts.PoolAt(h.Pool); p != nil && !p.Ended {
			a.markChanged(p)
		}
	}
}

// leakedElsewhere returns the number of leaked allocations of a pool that other replicas tell.
func (a *tally) leakedElsewhere(p *facts.Pool) (n audit.Tally) {
	for at, of := range a.told[p.ID()] {
		if slices.ContainsFunc(of, func(h PoolHint) bool { return h.Leaked }) && !a.facts.Complete(at) {
			n[audit.FamilyOf(at.Addr())]++
		}
	}
	return n
}

// riskElsewhere returns the addresses at risk of a pool that only other replicas know.
func (a *tally) riskElsewhere(p *facts.Pool, own map[netip.Addr][]verdict.Owner) (all []audit.Risk) {
	for at, of := range a.told[p.ID()] {
		i := slices.IndexFunc(of, func(h PoolHint) bool { return !h.Leaked })
		if _, known := own[at.Addr()]; i >= 0 && !known {
			all = append(all, audit.Risk{Address: at.Addr(), Owners: of[i].owners(a.facts)})
		}
	}
	return all
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
		a.hints.pool(index.AddressOf(f.Address), p, false, true, owners)
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
	leaked, elsewhere := one.leaked, a.leakedElsewhere(p)
	for i := range leaked {
		leaked[i] += elsewhere[i]
	}
	return audit.Use(&p.Rec, p.Allocated, leaked, &one.growth, a.clock())
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

package judge

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const (
	// poolPause is the minimum time between two checks of one pool.
	poolPause = 200 * time.Millisecond
	// poolEvery is the interval at which a growing pool is checked again.
	poolEvery = time.Minute
	// collectFor is how long a check waits for further changes while addresses are queued for
	// judgement.
	collectFor = 20 * time.Millisecond
)

// Pools finds problems of whole pools, and counts the findings about their addresses.
type Pools struct {
	facts *facts.Facts
	set   *Set
	// waiting returns the number of addresses that are queued for judgement.
	waiting func() int
	wake    signal
	// inOrder has the places of all pools in the order of lists.
	inOrder *index.Set[PoolPlace]
	// checking is held while pools are checked.
	checking sync.Mutex

	mu     sync.Mutex
	audits map[*facts.Pool]*poolAudit
	// due is when pools are checked: at once if they changed.
	due map[*facts.Pool]verdict.Stamp
}

// poolAudit is the result of audits for one pool.
type poolAudit struct {
	// leaked is the number of leaked allocations.
	leaked audit.Tally
	growth audit.Growth
	// checkedAt is when the pool was last checked.
	checkedAt verdict.Stamp
}

// Places returns the places of all pools in the order of lists.
func (a *Pools) Places() *index.Set[PoolPlace] { return a.inOrder }

// changed schedules a check of a pool for when the current change has been judged.
func (a *Pools) changed(p *facts.Pool) {
	if p.Ended {
		return
	}
	a.inOrder.Put(PoolPlaceOf(p))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.schedule(p, a.facts.Clock())
}

// ended ends the findings about a pool that was removed or is about to be renamed.
func (a *Pools) ended(p *facts.Pool) {
	a.inOrder.Delete(PoolPlaceOf(p))
	for _, kind := range audit.PoolKinds() {
		a.set.End(audit.PoolID(a.facts.Policy, kind, &p.Rec), false)
	}
	if p.Ended {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.audits, p)
		delete(a.due, p)
	}
}

// schedule schedules a check of a pool, unless an earlier one is scheduled. The caller holds mu.
func (a *Pools) schedule(p *facts.Pool, at verdict.Stamp) *poolAudit {
	one := a.audits[p]
	if one == nil {
		one = &poolAudit{}
		a.audits[p] = one
	}
	if was, set := a.due[p]; !set || at < was {
		a.due[p] = at
	}
	return one
}

// count records a finding about an address of a pool. there is false if the finding ended; first is
// set if it is new. The caller holds the facts.
func (a *Pools) count(f *verdict.Finding, there, first bool) {
	p := a.facts.Pool(f.Pool)
	if p == nil || f.Kind != verdict.FindingInUseUnallocated && f.Kind != verdict.FindingLeaked {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.schedule(p, a.facts.Clock())
	switch {
	case f.Kind == verdict.FindingInUseUnallocated && there:
		p.AtRisk[f.Address] = facts.Risk{Finding: f.ID, Owners: f.Owners}
	case f.Kind == verdict.FindingInUseUnallocated:
		// That of a node which was renamed may end after the one that replaces it.
		if p.AtRisk[f.Address].Finding == f.ID {
			delete(p.AtRisk, f.Address)
		}
	case first:
		one.leaked[audit.FamilyOf(f.Address)]++
	case !there:
		one.leaked[audit.FamilyOf(f.Address)]--
	}
	a.wake.set()
}

// updateOwners records all owners of an address that a pool considers free, including owners that
// the finding does not name. The caller holds the facts.
func (a *Pools) updateOwners(f *verdict.Finding, owners []verdict.Owner) {
	p := a.facts.Pool(f.Pool)
	if p == nil || f.Kind != verdict.FindingInUseUnallocated {
		return
	}
	same := func(a, b verdict.Owner) bool { // in everything that matters for an address at risk
		return a.ID == b.ID && a.Has() == b.Has() && a.AssignedAt() == b.AssignedAt() && a.Workload() == b.Workload() && slices.Equal(a.Networks(), b.Networks())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.audits[p] != nil {
		if !slices.EqualFunc(p.AtRisk[f.Address].Owners, owners, same) {
			a.schedule(p, a.facts.Clock())
		}
		p.AtRisk[f.Address] = facts.Risk{Finding: f.ID, Owners: owners}
	}
}

// Use returns how full a pool is. The caller holds the facts.
func (a *Pools) Use(p *facts.Pool) verdict.PoolUse {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.audits[p]
	if one == nil {
		one = &poolAudit{}
	}
	return audit.Use(&p.Rec, p.Allocated, one.leaked, &one.growth, a.facts.Clock())
}

// History returns how the use of a pool has changed in the last day. The caller holds the facts.
func (a *Pools) History(p *facts.Pool) []audit.Used {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.audits[p]; one != nil {
		return one.growth.History(&p.Rec, p.Allocated)
	}
	return nil
}

// next returns when the next pool is due; 0 for never.
func (a *Pools) next() (at verdict.Stamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, due := range a.due {
		if at == 0 || due < at {
			at = due
		}
	}
	return at
}

// wakeIfWaiting wakes the check of pools that are due.
func (a *Pools) wakeIfWaiting() {
	if at := a.next(); at != 0 && at <= a.facts.Clock() {
		a.wake.set()
	}
}

// run checks the pools that are due, and returns when to call it again; 0 for never. Changes from agents are
// checked by Judged; this covers the others.
func (a *Pools) run() verdict.Stamp {
	if at := a.next(); at != 0 && a.facts.Clock() < at.Add(collectFor) && a.waiting() > 0 {
		return at.Add(collectFor)
	}
	return a.check()
}

// check checks the pools that are due, and returns when the next one is due; 0 for never.
func (a *Pools) check() verdict.Stamp {
	if a.next() == 0 {
		return 0
	}
	a.checking.Lock()
	defer a.checking.Unlock()
	now := a.facts.Clock()
	a.mu.Lock()
	var some []*facts.Pool
	for p, at := range a.due {
		if at <= now {
			some = append(some, p)
			delete(a.due, p)
		}
	}
	a.mu.Unlock()
	for _, p := range some {
		a.checkPool(p, now)
	}
	return a.next()
}

// checkPool updates the findings about a pool itself, unless it was just checked.
func (a *Pools) checkPool(p *facts.Pool, now verdict.Stamp) {
	a.facts.RLock()
	defer a.facts.RUnlock()
	a.mu.Lock()
	one := a.audits[p]
	if p.Ended {
		a.mu.Unlock()
		return
	}
	one.growth.See(now, p.Allocated)
	next := one.checkedAt.Add(poolPause)
	early := one.checkedAt != 0 && now < next
	a.mu.Unlock()

	rec := p.Rec
	given := audit.Given{Pool: &rec, Use: a.Use(p), Allocated: p.Allocated.Of(audit.Both)}
	a.mu.Lock()
	for addr, r := range p.AtRisk {
		given.AtRisk = append(given.AtRisk, audit.Risk{Address: addr, Owners: r.Owners})
	}
	// That all records of the pool were lost is reported at once.
	lost := early && a.set.finding(audit.PoolID(a.facts.Policy, verdict.FindingIPAMStateLost, &p.Rec)) == nil && audit.Lost(given)
	if early && !lost {
		a.schedule(p, next)
		a.mu.Unlock()
		a.wake.set() // Judged does not wait for it
		return
	}
	one.checkedAt = now
	a.mu.Unlock()

	found := audit.Pool(a.facts.Policy, given)
	for i := range found {
		a.set.Publish(&found[i])
	}
	for _, kind := range audit.PoolKinds() {
		if !slices.ContainsFunc(found, func(f verdict.Finding) bool { return f.Kind == kind }) {
			a.set.End(audit.PoolID(a.facts.Policy, kind, &p.Rec), false)
		}
	}
	if given.Use.ExhaustedIn > 0 {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.schedule(p, now.Add(poolEvery))
		a.wake.set()
	}
}

// PoolPlace is a pool with its sort key in lists.
type PoolPlace struct {
	IPAM, Node, Name string
	Pool             *facts.Pool
}

// PoolPlaceOf returns the place of a pool.
func PoolPlaceOf(p *facts.Pool) PoolPlace {
	at := PoolPlace{IPAM: p.Rec.IPAM, Name: p.Rec.Name, Pool: p}
	if p.Node != nil {
		at.Node = p.Node.Rec.Name
	}
	return at
}

// Less reports whether a pool comes before another one in lists.
func (p PoolPlace) Less(other PoolPlace) bool { return p.Compare(other) < 0 }

// Compare orders places by IPAM, node and name. If two nodes briefly share a name, their pools are
// ordered by the identities of the nodes. A place without a pool comes last.
func (p PoolPlace) Compare(other PoolPlace) int {
	order := cmp.Or(cmp.Compare(p.IPAM, other.IPAM), cmp.Compare(p.Node, other.Node), cmp.Compare(p.Name, other.Name))
	switch {
	case order != 0 || p.Pool == other.Pool:
		return order
	case p.Pool == nil:
		return 1
	case other.Pool == nil:
		return -1
	case p.Pool.Node == nil || other.Pool.Node == nil:
		return 0
	}
	return p.Pool.Node.ID.Compare(other.Pool.Node.ID)
}

package judge

import (
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Pools finds problems of whole pools.
type Pools struct {
	*tally
	facts     *facts.Facts
	publisher *Publisher
	// waiting returns the number of addresses that are queued for judgement.
	waiting func() int
	// checking is held while pools are checked.
	checking sync.Mutex
}

// InOrder returns the places of all pools in the order of lists.
func (a *Pools) InOrder() *index.Set[PoolPlace] { return a.inOrder }

// Ended ends the findings about a pool that was removed or is about to be renamed.
func (a *Pools) Ended(p *facts.Pool) {
	a.ended(p)
	for _, kind := range audit.PoolKinds() {
		a.publisher.End(audit.PoolID(a.facts.Policy, kind, &p.Rec), false)
	}
}

const (
	// poolPause is the minimum time between two checks of one pool.
	poolPause = 200 * time.Millisecond
	// poolEvery is the interval at which a growing pool is checked again.
	poolEvery = time.Minute
)

// collectFor is how long a check waits for further changes while addresses are queued for
// judgement.
const collectFor = 20 * time.Millisecond

// run checks the pools that changed or are due, and returns when to call it again; 0 for never.
// Changes from agents are checked by Judged; this covers the others.
func (a *Pools) run() verdict.Stamp {
	a.mu.Lock()
	at := a.since.Add(collectFor)
	wait := len(a.changed) > 0 && a.clock() < at
	a.mu.Unlock()
	if wait && a.waiting() > 0 {
		return at
	}
	return a.check()
}

// check checks the pools that changed or are due, and returns when the next one is due; 0 for
// never.
func (a *Pools) check() (next verdict.Stamp) {
	a.mu.Lock()
	idle := len(a.changed)+len(a.due) == 0
	a.mu.Unlock()
	if idle {
		return 0
	}
	a.checking.Lock()
	defer a.checking.Unlock()
	now := a.clock()
	a.mu.Lock()
	some := a.changed
	a.changed = nil
	for p, at := range a.due {
		if at <= now {
			delete(a.due, p)
			if one := a.of[p]; one != nil && !one.changed {
				some = append(some, p)
			}
		}
	}
	for _, p := range some {
		a.of[p].changed = false
	}
	a.mu.Unlock()
	for _, p := range some {
		a.checkIfDue(p, now)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.due {
		if next == 0 || at < next {
			next = at
		}
	}
	return next
}

// checkIfDue checks a pool, or schedules the check if the last one was less than poolPause ago.
func (a *Pools) checkIfDue(p *facts.Pool, now verdict.Stamp) {
	a.facts.RLock()
	defer a.facts.RUnlock()
	a.mu.Lock()
	one := a.of[p]
	if p.Ended {
		delete(a.of, p)
		delete(a.due, p)
		a.mu.Unlock()
		return
	}
	one.growth.See(now, p.Allocated)
	checked := one.checkedAt
	a.mu.Unlock()
	if next := checked.Add(poolPause); checked != 0 && now < next && !a.newlyLost(p) {
		a.arm(p, next)
		return
	}
	a.mu.Lock()
	one.checkedAt = now
	a.mu.Unlock()
	a.checkPool(p, now)
}

// checkPool updates the findings about a pool itself. The caller holds the facts.
func (a *Pools) checkPool(p *facts.Pool, now verdict.Stamp) {
	given := a.given(p)
	found := audit.Pool(a.facts.Policy, given)
	for i := range found {
		a.publisher.Publish(&found[i])
	}
	for _, kind := range audit.PoolKinds() {
		if !slices.ContainsFunc(found, func(f verdict.Finding) bool { return f.Kind == kind }) {
			a.publisher.End(audit.PoolID(a.facts.Policy, kind, &p.Rec), false)
		}
	}
	if given.Use.ExhaustedIn > 0 {
		a.arm(p, now.Add(poolEvery))
	}
}

// given returns the use of a pool. The caller holds the facts.
func (a *Pools) given(p *facts.Pool) audit.Given {
	rec := p.Rec
	g := audit.Given{Pool: &rec, Use: a.Use(p), Allocated: p.Allocated.Of(audit.Both)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.of[p]; one != nil {
		for addr, owners := range one.atRisk {
			g.AtRisk = append(g.AtRisk, audit.Risk{Address: addr, Owners: owners})
		}
	}
	return g
}

// newlyLost reports whether all records of a pool were lost and no finding reports it yet.
func (a *Pools) newlyLost(p *facts.Pool) bool {
	return a.publisher.finding(audit.PoolID(a.facts.Policy, verdict.FindingIPAMStateLost, &p.Rec)) == nil && audit.Lost(a.given(p))
}

package aggregator

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// poolAudits is what is found of pools as a whole.
type poolAudits struct {
	wake chan struct{}
	// inOrder has the places of all pools in the list.
	inOrder *index.Set[poolPlace]
	// looking is held while the findings of pools are made.
	looking sync.Mutex

	mu sync.Mutex
	of map[*facts.Pool]*poolAudit
	// looked are the pools of which something changed, since when there are any, due those that
	// are looked at again at a time.
	looked []*facts.Pool
	since  verdict.Stamp
	due    map[*facts.Pool]verdict.Stamp
}

// poolAudit is what is found of one pool.
type poolAudit struct {
	// leaked counts the allocations that are found to be held by nobody.
	leaked audit.Tally
	// atRisk are the addresses in use that it takes for free, with their owners.
	atRisk map[netip.Addr][]verdict.Owner
	growth audit.Growth
	// told is when its own findings were made.
	told   verdict.Stamp
	looked bool
}

func newPoolAudits() poolAudits {
	return poolAudits{wake: make(chan struct{}, 1), inOrder: index.NewSet(poolPlace.less), of: make(map[*facts.Pool]*poolAudit), due: make(map[*facts.Pool]verdict.Stamp)}
}

// changed has the pool's own findings made when what is being done is judged.
func (a *poolAudits) changed(p *facts.Pool, now verdict.Stamp) {
	if p.Ended {
		return
	}
	a.inOrder.Put(poolPlaceOf(p))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lookAt(p, now)
}

// lookAt is changed; a.mu is held.
func (a *poolAudits) lookAt(p *facts.Pool, now verdict.Stamp) *poolAudit {
	one := a.of[p]
	if one == nil {
		one = &poolAudit{atRisk: make(map[netip.Addr][]verdict.Owner)}
		a.of[p] = one
	}
	if !one.looked {
		one.looked = true
		if len(a.looked) == 0 {
			a.since = now
		}
		a.looked = append(a.looked, p)
	}
	return one
}

// ended forgets the place of a pool that is no more or is going to have another name.
func (a *poolAudits) ended(p *facts.Pool) { a.inOrder.Delete(poolPlaceOf(p)) }

// atRisk returns the addresses in use that a pool takes for free.
func (s *store) atRisk(p *facts.Pool) []netip.Addr {
	a := &s.pools
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

// count keeps what a pool's own findings say of its addresses: there is set while f is, first
// if it was not before.
func (a *poolAudits) count(p *facts.Pool, f *verdict.Finding, there, first bool, now verdict.Stamp) {
	if p == nil || f.Kind != verdict.FindingInUseUnallocated && f.Kind != verdict.FindingLeaked {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.lookAt(p, now)
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

// atStake keeps the owners of an address that a pool takes for free: also others than its finding
// is about.
func (a *poolAudits) atStake(p *facts.Pool, f *verdict.Finding, owners []verdict.Owner, now verdict.Stamp) {
	if p == nil || f.Kind != verdict.FindingInUseUnallocated {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.of[p]
	if one == nil {
		return
	}
	if !slices.EqualFunc(one.atRisk[f.Address], owners, sameRisk) {
		a.lookAt(p, now)
	}
	one.atRisk[f.Address] = owners
}

// sameRisk reports whether two owners say the same of an address at risk.
func sameRisk(a, b verdict.Owner) bool {
	return a.ID == b.ID && a.Assigned == b.Assigned && a.AssignedAt() == b.AssignedAt() && a.Workload() == b.Workload()
}

// use is how full a pool is. The facts are held.
func (s *store) use(p *facts.Pool) verdict.PoolUse {
	s.pools.mu.Lock()
	defer s.pools.mu.Unlock()
	one := s.pools.of[p]
	if one == nil {
		one = &poolAudit{}
	}
	return audit.Use(&p.Rec, p.Allocated, one.leaked, &one.growth, s.clock())
}

const (
	// poolPause is how often the findings of one pool are made at most.
	poolPause = 200 * time.Millisecond
	// poolEvery is when those of a pool that grows are made again.
	poolEvery = time.Minute
)

// collectFor is how long it is waited for more changes while addresses are judged.
const collectFor = 20 * time.Millisecond

// ringPools makes the findings of pools that are due, and of those of which something changed
// though no message came.
func (s *store) ringPools() verdict.Stamp {
	a := &s.pools
	a.mu.Lock()
	at := a.since.Add(collectFor)
	wait := len(a.looked) > 0 && s.clock() < at
	a.mu.Unlock()
	if wait && s.shards.Waiting() > 0 {
		return at
	}
	return s.lookAtPools()
}

// lookAtPools makes the findings of pools of which something changed, and of those that are due.
// It returns when the next one is; 0 for never.
func (s *store) lookAtPools() (next verdict.Stamp) {
	a := &s.pools
	a.mu.Lock()
	idle := len(a.looked)+len(a.due) == 0
	a.mu.Unlock()
	if idle {
		return 0
	}
	a.looking.Lock()
	defer a.looking.Unlock()
	now := s.clock()
	a.mu.Lock()
	some := a.looked
	a.looked = nil
	for p, at := range a.due {
		if at <= now {
			delete(a.due, p)
			if one := a.of[p]; one != nil && !one.looked {
				some = append(some, p)
			}
		}
	}
	for _, p := range some {
		a.of[p].looked = false
	}
	a.mu.Unlock()
	for _, p := range some {
		s.lookAtPool(p, now)
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

// rested has the pools looked at of which something changed.
func (a *poolAudits) rested() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.looked) > 0 {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// arm has a pool looked at again.
func (a *poolAudits) arm(p *facts.Pool, at verdict.Stamp) {
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

// lookAtPool makes a pool's own findings, but not too often.
func (s *store) lookAtPool(p *facts.Pool, now verdict.Stamp) {
	s.facts.RLock()
	defer s.facts.RUnlock()
	a := &s.pools
	a.mu.Lock()
	one := a.of[p]
	if p.Ended {
		delete(a.of, p)
		delete(a.due, p)
		a.mu.Unlock()
		return
	}
	one.growth.See(now, p.Allocated)
	told := one.told
	a.mu.Unlock()
	if next := told.Add(poolPause); told != 0 && now < next && !s.newlyLost(p) {
		a.arm(p, next)
		return
	}
	a.mu.Lock()
	one.told = now
	a.mu.Unlock()
	s.checkPool(p, now)
}

// checkPool makes a pool's own findings. The facts are held.
func (s *store) checkPool(p *facts.Pool, now verdict.Stamp) {
	given := s.given(p)
	found := audit.Pool(&s.policy, given)
	for i := range found {
		s.tellFinding(&found[i])
	}
	for _, kind := range audit.PoolKinds() {
		if !slices.ContainsFunc(found, func(f verdict.Finding) bool { return f.Kind == kind }) {
			s.endFinding(audit.PoolID(&s.policy, kind, &p.Rec), false)
		}
	}
	if given.Use.ExhaustedIn > 0 {
		s.pools.arm(p, now.Add(poolEvery))
	}
}

// given is what a pool has given. The facts are held.
func (s *store) given(p *facts.Pool) audit.Given {
	rec := p.Rec
	g := audit.Given{Pool: &rec, Use: s.use(p), Allocated: p.Allocated.Of(audit.Both)}
	a := &s.pools
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.of[p]; one != nil {
		for addr, owners := range one.atRisk {
			g.AtRisk = append(g.AtRisk, audit.Risk{Address: addr, Owners: owners})
		}
	}
	return g
}

// newlyLost reports whether it is not told yet that all that a pool has given was lost.
func (s *store) newlyLost(p *facts.Pool) bool {
	return s.findings.said(audit.PoolID(&s.policy, verdict.FindingIPAMStateLost, &p.Rec)) == nil && audit.Lost(s.given(p))
}

func (s *store) dropPoolFindings(p *facts.Pool) {
	for _, kind := range audit.PoolKinds() {
		s.endFinding(audit.PoolID(&s.policy, kind, &p.Rec), false)
	}
}

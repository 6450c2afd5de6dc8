package kube

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ipams make what reads the IPAMs of a cluster, one each.
var ipams = []func(*Cluster) *ipam{newWhereabouts, newCalico, newCilium, newPodAddresses}

// ipam is an IPAM that is read. What it says is told as pools and allocations, and
// again only what differs. It is behind the cluster's mu.
type ipam struct {
	cluster *Cluster
	name    string // as verdict has it
	// sources are the custom resources that it is read from.
	sources []*source
	// used tells that something was allocated at some time: installed alone says
	// nothing, for another IPAM may give out addresses.
	used bool
	// settle is called when a source changed its state.
	settle func()
	// check looks from time to time at what is odd only if it lasts; nil for nothing.
	check func()

	pools map[string]*ipamPool
	// state and problem are what holds for all pools.
	state   verdict.PoolState
	problem string
	// stand is told in the place of pools that cannot be read; nil while there is none.
	stand *verdict.Pool
}

// ipamPool is a pool that was told.
type ipamPool struct {
	told *verdict.Pool // never changes
	// odd says what is odd about it, bad that it cannot be relied on because of that.
	odd string
	bad bool
	// lost tells that its records are gone, though it is still to give addresses.
	lost bool
}

// newIPAM makes one that is read from some resources.
func newIPAM(c *Cluster, name string, sources ...*source) *ipam {
	m := &ipam{cluster: c, name: name, sources: sources, state: verdict.PoolReading, pools: make(map[string]*ipamPool), settle: func() {}}
	for _, s := range sources {
		s.ipam = m
		s.feed.source = s
	}
	return m
}

// assess says anew how far all is known.
func (m *ipam) assess() {
	state, problem := m.known()
	if state != m.state || problem != m.problem {
		m.state, m.problem = state, problem
		for _, name := range slices.Sorted(maps.Keys(m.pools)) {
			if p := m.pools[name]; p.lost {
				m.lose(*p.told, p.odd)
			} else {
				m.put(*p.told, p.odd, p.bad)
			}
		}
	}
	m.standIn()
}

// known tells how far the pools are, and why not.
func (m *ipam) known() (verdict.PoolState, string) {
	for _, s := range m.sources {
		if !s.extra && (s.state == strange || s.state == forbiddenHere) {
			return verdict.PoolUnreadable, s.problem
		}
	}
	for _, s := range m.sources {
		if !s.extra && (!s.decided() || s.needed && s.state == absentHere) {
			return verdict.PoolReading, ""
		}
	}
	for _, s := range m.sources {
		if !s.extra && s.state == failing {
			return verdict.PoolStale, s.problem
		}
	}
	switch {
	case !m.used, m.cluster.health.state == pb.Kubernetes_SYNCING:
		return verdict.PoolReading, ""
	case m.cluster.health.state != pb.Kubernetes_LIVE:
		return verdict.PoolStale, "the Kubernetes API is not heard from"
	}
	return verdict.PoolKnown, ""
}

// use notes that something was allocated.
func (m *ipam) use() {
	if !m.used {
		m.used = true
		m.assess()
	}
}

// put has a pool, or what its records say of it anew. Its state is found here.
func (m *ipam) put(next verdict.Pool, odd string, bad bool) {
	next.IPAM, next.State, next.Problem = m.name, m.state, cmp.Or(m.problem, odd)
	if bad {
		next.State, next.Problem = verdict.PoolUnreadable, odd
	}
	m.say(next, ipamPool{odd: odd, bad: bad})
}

// lose has a pool whose records are gone, though it is still to give addresses: it will
// take all for free. Its allocations are taken back before.
func (m *ipam) lose(next verdict.Pool, how string) {
	next.IPAM, next.State, next.Problem = m.name, m.state, cmp.Or(m.problem, how)
	if next.State == verdict.PoolKnown {
		next.State = verdict.PoolMissing
	}
	m.say(next, ipamPool{odd: how, lost: true})
}

// say tells of a pool, if that is new.
func (m *ipam) say(next verdict.Pool, is ipamPool) {
	correctPool(&next)
	p := m.pools[next.Name]
	if p == nil {
		p = &ipamPool{}
		m.pools[next.Name] = p
		m.standIn()
	}
	p.odd, p.bad, p.lost = is.odd, is.bad, is.lost
	if p.told != nil && reflect.DeepEqual(*p.told, next) {
		return
	}
	p.told = &next
	m.cluster.pending.ipam(IPAMChange{Pool: p.told})
}

// drop has a pool no more: its allocations are taken back before.
func (m *ipam) drop(name string) {
	correct(poolName, &name)
	p := m.pools[name]
	if p == nil {
		return
	}
	delete(m.pools, name)
	m.cluster.pending.ipam(IPAMChange{Pool: p.told, Gone: true})
	m.standIn()
}

// standIn tells of a pool in the place of those that are not known because nothing
// can be read.
func (m *ipam) standIn() {
	wanted := m.state == verdict.PoolUnreadable && len(m.pools) == 0 && len(m.sources) > 0
	switch {
	case wanted && (m.stand == nil || m.stand.Problem != m.problem):
		m.stand = &verdict.Pool{IPAM: m.name, Name: m.sources[0].kind.group, State: m.state, Problem: m.problem}
		m.cluster.pending.ipam(IPAMChange{Pool: m.stand})
	case !wanted && m.stand != nil:
		m.cluster.pending.ipam(IPAMChange{Pool: m.stand, Gone: true})
		m.stand = nil
	}
}

// allocate tells of an allocation of a pool, or that it is gone. Of the pool only
// the name is given.
func (m *ipam) allocate(pool string, al verdict.Allocation, gone bool) {
	correct(poolName, &pool)
	p := m.pools[pool]
	if p == nil {
		return
	}
	al.Pool = p.told
	correctAllocation(&al)
	m.cluster.pending.ipam(IPAMChange{Allocation: &al, Gone: gone})
}

// reassess says anew how far the pools of all IPAMs are known.
func (c *Cluster) reassess() {
	for _, m := range c.ipams {
		m.assess()
	}
}

// ipamKey is what a pool or an allocation is known by.
type ipamKey struct{ ipam, pool, address, location string }

func (c *IPAMChange) key() ipamKey {
	if c.Pool != nil {
		return ipamKey{ipam: c.Pool.IPAM, pool: c.Pool.Name}
	}
	al := c.Allocation
	return ipamKey{al.Pool.IPAM, al.Pool.Name, al.Address.String(), al.Location}
}

// ipam notes what an IPAM says anew.
func (p *pending) ipam(change IPAMChange) {
	p.changes.IPAM = append(p.changes.IPAM, change)
	if len(p.changes.IPAM) >= max(p.compactIPAM, firstCompact) {
		p.changes.IPAM = lastOfEach(p.changes.IPAM)
		p.compactIPAM = 2 * len(p.changes.IPAM)
	}
	p.ring()
}

// lastOfEach leaves out what was said in between. A pool stays where it came first:
// before its allocations.
func lastOfEach(changes []IPAMChange) []IPAMChange {
	last := make(map[ipamKey]int, len(changes))
	for i := range changes {
		last[changes[i].key()] = i
	}
	kept := changes[:0]
	for i := range changes {
		change := changes[i]
		at, wanted := last[change.key()]
		switch {
		case !wanted, change.Allocation != nil && at != i:
			continue
		case change.Pool != nil:
			delete(last, change.key()) // once
			if at != i {
				change = changes[at]
			}
		}
		kept = append(kept, change)
	}
	clear(changes[len(kept):])
	return kept
}

package kube

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ipams has the constructor of each IPAM.
var ipams = []func(*Cluster) *publisher{newWhereabouts, newCalico, newCilium, newPodAddresses}

// publisher publishes the pools and allocations of one IPAM. It publishes changes only. The
// cluster's mu guards it.
type publisher struct {
	cluster *Cluster
	name    string // as in package verdict
	// sources are the custom resources of the IPAM.
	sources []*source
	// used means that the IPAM has allocated something. An IPAM that is merely installed may
	// not be the one that allocates addresses.
	used bool
	// settle is called when the state of a source changed.
	settle func()
	// check looks for inconsistencies that count only if they last; nil if there are none to
	// look for.
	check func()

	pools map[string]*ipamPool
	// state and problem apply to all pools.
	state   ipam.State
	problem string
	// stand is the pool that is published in place of pools that cannot be read; nil if there
	// is none.
	stand *verdict.Pool
}

// ipamPool is a published pool.
type ipamPool struct {
	told *verdict.Pool // never changes
	// odd describes an inconsistency; bad means that the pool is unreliable because of it.
	odd string
	bad bool
	// lost means that the records of the pool are gone although addresses are still allocated
	// from it.
	lost bool
}

// newIPAM returns an IPAM that is read from the given sources.
func newIPAM(c *Cluster, name string, sources ...*source) *publisher {
	m := &publisher{cluster: c, name: name, sources: sources, state: ipam.Reading, pools: make(map[string]*ipamPool), settle: func() {}}
	for _, s := range sources {
		s.ipam = m
		s.feed.source = s
	}
	return m
}

// assess updates the state of the pools.
func (m *publisher) assess() {
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

// known returns the state of the pools and its cause.
func (m *publisher) known() (ipam.State, string) {
	for _, s := range m.sources {
		if !s.extra && (s.state == strange || s.state == forbiddenHere) {
			return ipam.Unreadable, s.problem
		}
	}
	for _, s := range m.sources {
		if !s.extra && (!s.decided() || s.needed && s.state == absentHere) {
			return ipam.Reading, ""
		}
	}
	for _, s := range m.sources {
		if !s.extra && s.state == failing {
			return ipam.Stale, s.problem
		}
	}
	switch {
	case !m.used, m.cluster.health.state == pb.Kubernetes_SYNCING:
		return ipam.Reading, ""
	case m.cluster.health.state != pb.Kubernetes_LIVE:
		return ipam.Stale, "the Kubernetes API is not heard from"
	}
	return ipam.Known, ""
}

// use records that the IPAM has allocated something.
func (m *publisher) use() {
	if !m.used {
		m.used = true
		m.assess()
	}
}

// put publishes a pool, new or changed. It sets the pool's state.
func (m *publisher) put(next verdict.Pool, odd string, bad bool) {
	next.IPAM, next.State, next.Problem = m.name, m.state, cmp.Or(m.problem, odd)
	if bad {
		next.State, next.Problem = ipam.Unreadable, odd
	}
	m.say(next, ipamPool{odd: odd, bad: bad})
}

// lose publishes a pool whose records are gone although addresses are still allocated from it:
// the IPAM will consider all of them free. The caller withdraws the allocations first.
func (m *publisher) lose(next verdict.Pool, how string) {
	next.IPAM, next.State, next.Problem = m.name, m.state, cmp.Or(m.problem, how)
	if next.State == ipam.Known {
		next.State = ipam.Missing
	}
	m.say(next, ipamPool{odd: how, lost: true})
}

// say publishes a pool if it changed.
func (m *publisher) say(next verdict.Pool, is ipamPool) {
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

// drop withdraws a pool. The caller withdraws its allocations first.
func (m *publisher) drop(name string) {
	correct(poolName, &name)
	p := m.pools[name]
	if p == nil {
		return
	}
	delete(m.pools, name)
	m.cluster.pending.ipam(IPAMChange{Pool: p.told, Gone: true})
	m.standIn()
}

// standIn publishes one pool in place of the unknown pools while nothing can be read, and
// withdraws it afterwards.
func (m *publisher) standIn() {
	wanted := m.state == ipam.Unreadable && len(m.pools) == 0 && len(m.sources) > 0
	switch {
	case wanted && (m.stand == nil || m.stand.Problem != m.problem):
		m.stand = &verdict.Pool{Pool: ipam.Pool{IPAM: m.name, Name: m.sources[0].kind.group, State: m.state, Problem: m.problem}}
		m.cluster.pending.ipam(IPAMChange{Pool: m.stand})
	case !wanted && m.stand != nil:
		m.cluster.pending.ipam(IPAMChange{Pool: m.stand, Gone: true})
		m.stand = nil
	}
}

// allocate publishes or withdraws an allocation of the named pool.
func (m *publisher) allocate(pool string, al verdict.Allocation, gone bool) {
	correct(poolName, &pool)
	p := m.pools[pool]
	if p == nil {
		return
	}
	al.Pool = p.told
	correctAllocation(&al)
	m.cluster.pending.ipam(IPAMChange{Allocation: &al, Gone: gone})
}

// reassess updates the state of the pools of all IPAMs.
func (c *Cluster) reassess() {
	for _, m := range c.ipams {
		m.assess()
	}
}

// ipamKey identifies a pool or an allocation.
type ipamKey struct{ ipam, pool, address, location string }

func (c *IPAMChange) key() ipamKey {
	if c.Pool != nil {
		return ipamKey{ipam: c.Pool.IPAM, pool: c.Pool.Name}
	}
	al := c.Allocation
	return ipamKey{al.Pool.IPAM, al.Pool.Name, al.Address.String(), al.Location}
}

// ipam queues a change of an IPAM.
func (p *pending) ipam(change IPAMChange) {
	p.changes.IPAM = append(p.changes.IPAM, change)
	if len(p.changes.IPAM) >= max(p.compactIPAM, firstCompact) {
		p.changes.IPAM = lastOfEach(p.changes.IPAM)
		p.compactIPAM = 2 * len(p.changes.IPAM)
	}
	p.ring()
}

// lastOfEach removes intermediate changes. A pool keeps its first position, so that it comes
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
			delete(last, change.key()) // keep only one change of the pool
			if at != i {
				change = changes[at]
			}
		}
		kept = append(kept, change)
	}
	clear(changes[len(kept):])
	return kept
}

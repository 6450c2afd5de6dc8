package kube

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/vip"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// publisher publishes the pools and allocations of one IPAM. It implements ipam.Publisher, and
// publishes changes only. The cluster's mu guards it.
type publisher struct {
	cluster *Cluster
	name    string // of the IPAM
	objects *ipam.Objects
	// sources are the custom resources of the IPAM.
	sources []*source
	// used means that the IPAM has allocated something.
	used bool

	pools map[string]*poolState
	// state and problem apply to all pools.
	state   ipam.State
	problem string
	// unread has the pools that stand for objects that cannot be read, by kind.
	unread map[ipam.Kind]*ipam.Pool
	// stand is the pool that is published in place of pools that cannot be read; nil if there
	// is none.
	stand *verdict.Pool
}

type poolState struct {
	published *verdict.Pool // never changes
	// problem describes an inconsistency; unreadable means that the pool is unreliable because of
	// it.
	problem    string
	unreadable bool
	// lost means that the records of the pool are gone although addresses are still allocated
	// from it.
	lost bool
}

func (c *Cluster) newPublishers() (all []*publisher) {
	for _, m := range registry.All {
		if m.Objects == nil {
			continue
		}
		p := newPublisher(c, m.Name)
		p.objects = m.Objects(p)
		for _, r := range p.objects.Resources {
			s := &source{Resource: r, ipam: p, reads: r.Kind, bell: make(chan struct{}, 1)}
			s.feed = &feed{
				cluster: c, name: r.Kind.String(), lost: r.Lost, client: c.clients.custom[versionOf(r.Kind)], resource: r.Kind.Resource,
				into: r.Store, list: func() list { return &objects{} }, source: s,
			}
			p.sources = append(p.sources, s)
		}
		all = append(all, p)
		if m.Name == vip.KubeProxy.Name {
			c.services.Unread = &ipam.Unread{Publisher: p, Kind: ipam.Kind{Name: "Service"}}
		}
	}
	p, o, v := newPublisher(c, podips.IPAM.Name), newPublisher(c, ovn.OVNKubernetes.Name), newPublisher(c, vip.KubeVIP.Name)
	c.addresses = podips.NewAddresses[*podRecord](p, podips.Pool, podips.Status)
	c.nodeAddresses = podips.NewAddresses[nodeAddresses](p, podips.NodePool, podips.NodeStatus)
	c.addresses.Compared, c.nodeAddresses.Compared = c.podCompared, c.nodeCompared
	c.annotated = podips.NewAddresses[annotatedPod](o, ovn.DefaultNetwork, ovn.Annotated)
	c.nodes.Unread = &ipam.Unread{Publisher: p, Kind: ipam.Kind{Name: "Node"}}
	c.kubeVIP = ipam.NewAssignments(v, "addresses")
	return append(all, p, o, v)
}

func newPublisher(c *Cluster, name string) *publisher {
	return &publisher{cluster: c, name: name, objects: &ipam.Objects{}, state: ipam.Reading, pools: make(map[string]*poolState), unread: make(map[ipam.Kind]*ipam.Pool)}
}

// assess updates the state of the pools.
func (m *publisher) assess() {
	state, problem := m.known()
	if state != m.state || problem != m.problem {
		m.state, m.problem = state, problem
		m.putAll()
	}
	m.standIn()
}

// putAll publishes the pools that changed with what applies to all.
func (m *publisher) putAll() {
	for _, name := range m.Pools() {
		if p := m.pools[name]; p.lost {
			m.Lose(p.published.Pool, p.problem)
		} else {
			m.Put(p.published.Pool, p.problem, p.unreadable)
		}
	}
}

// known returns the state of the pools and its cause.
func (m *publisher) known() (ipam.State, string) {
	for _, s := range m.sources {
		if s.Role != ipam.Extra && (s.state == strange || s.state == forbiddenHere) {
			return ipam.Unreadable, s.problem
		}
	}
	for _, s := range m.sources {
		if s.Role != ipam.Extra && !s.Decided || s.Role == ipam.Needed && s.state == absentHere {
			return ipam.Reading, ""
		}
	}
	for _, s := range m.sources {
		if s.Role != ipam.Extra && s.state == failing {
			return ipam.Stale, s.problem
		}
	}
	switch {
	case !m.used, m.cluster.health.state == pb.Kubernetes_SYNCING:
		return ipam.Reading, ""
	case m.cluster.health.state != pb.Kubernetes_LIVE:
		return ipam.Stale, "the Kubernetes API does not respond"
	}
	return ipam.Known, ""
}

// Unread returns the Changes.Records of a Cluster that has read nothing yet.
func Unread() map[string]ipam.State { return map[string]ipam.State{podips.IPAM.Name: ipam.Reading} }

// unknown returns the IPAMs whose records are not known. The caller holds mu.
func (c *Cluster) unknown() map[string]ipam.State {
	refused := func(f *feed) bool { return f.refused >= sourceMisses }
	if c.health.state == pb.Kubernetes_SYNCING && !slices.ContainsFunc(c.feeds, func(f *feed) bool { return (f.name == podFeed || f.name == nodeFeed) && refused(f) }) {
		return Unread() // the other ones do not matter yet
	}
	records := make(map[string]ipam.State)
	for _, f := range c.feeds {
		s := f.source
		switch {
		case s == nil && (f.read || f.resource == "events"): // Events are only told
		case s == nil && !refused(f):
			records[podips.IPAM.Name] = ipam.Reading
		case s == nil:
			if records[podips.IPAM.Name] == 0 {
				records[podips.IPAM.Name] = ipam.Unreadable
			}
		case s.state == strange, s.state == forbiddenHere, !s.Decided && (c.health.problems[f.name] != "" || refused(f)),
			s.state == undiscovered && (c.health.problems[discoveryProblem] != "" || c.discovery.missed >= sourceMisses):
			if s.Role != ipam.Extra && records[s.ipam.name] == 0 {
				records[s.ipam.name] = ipam.Unreadable
			}
		case !s.Decided:
			records[s.ipam.name] = ipam.Reading
		}
	}
	return records
}

// Use implements ipam.Publisher.
func (m *publisher) Use() {
	if !m.used {
		m.used = true
		m.assess()
	}
}

func (m *publisher) Pool(name string) *ipam.Pool {
	correct(poolName, &name)
	if p := m.pools[name]; p != nil {
		return &p.published.Pool
	}
	return nil
}

func (m *publisher) Pools() []string { return slices.Sorted(maps.Keys(m.pools)) }

func (m *publisher) State() ipam.State { return m.state }

func (m *publisher) HasNode(name string) (has, known bool) {
	c := m.cluster
	return c.nodes.of(name) != nil, c.health.placed && len(c.nodes.Records) > 0
}

func (m *publisher) Service(at ipam.Key) *ipam.Service {
	if s := m.cluster.services.Records[at]; s != nil {
		return &s.Service
	}
	return nil
}

func (m *publisher) MachineChanged(pods []string) int64 {
	for _, uid := range pods {
		if r := m.cluster.pods.byUID[uid]; r != nil {
			m.cluster.pending.pod(&r.PodObject)
		}
	}
	return m.cluster.clock()
}

func (m *publisher) DevicesChanged(uid string) {
	pods := &m.cluster.pods
	if r := pods.byUID[uid]; r != nil {
		next := *r
		pods.Records[ipam.Key{Namespace: r.Namespace, Name: r.Name}] = &next
		pods.changed(r, &next)
	}
}

func (m *publisher) DefinitionChanged(at ipam.Key) {
	pods := &m.cluster.pods
	for _, r := range slices.Collect(maps.Keys(pods.attached[at])) {
		if named := (ipam.Key{Namespace: r.Namespace, Name: r.Name}); pods.Records[named] == r {
			next := *r
			pods.Records[named] = &next
			pods.changed(r, &next)
		}
	}
}

func (m *publisher) Put(next ipam.Pool, problem string, unreadable bool) {
	next.State, next.Problem = m.state, cmp.Or(m.problem, problem)
	if unreadable {
		next.State, next.Problem = ipam.Unreadable, problem
	}
	m.publish(next, poolState{problem: problem, unreadable: unreadable})
}

func (m *publisher) Lose(next ipam.Pool, problem string) {
	next.State, next.Problem = m.state, cmp.Or(m.problem, problem)
	if next.State == ipam.Known {
		next.State = ipam.Missing
	}
	m.publish(next, poolState{problem: problem, lost: true})
}

func (m *publisher) publish(pool ipam.Pool, is poolState) {
	pool.IPAM, pool.Partial = m.name, ipam.Partial(maps.Values(m.unread))
	next := &verdict.Pool{Pool: pool}
	correctPool(next)
	was := m.pools[next.Name]
	if is.published = next; was != nil && reflect.DeepEqual(was.published, next) {
		is.published = was.published
	}
	m.pools[next.Name] = &is
	if was == nil {
		m.standIn()
	}
	var before *verdict.Pool
	if was != nil {
		before = was.published
	}
	m.cluster.servicePoolChanged(before, is.published)
	if is.published == next {
		m.cluster.changeIPAM(IPAMChange{Pool: next})
	}
}

func (m *publisher) Unread(k ipam.Kind, allocates bool, problem string) {
	is := &verdict.Pool{Pool: *ipam.UnreadPool(m.name, k, allocates, problem)}
	correctPool(is)
	if problem != "" {
		m.unread[k] = &is.Pool
	} else {
		delete(m.unread, k)
	}
	m.cluster.changeIPAM(IPAMChange{Pool: is, Gone: problem == ""})
	m.putAll()
}

func (m *publisher) Drop(name string) {
	correct(poolName, &name)
	p := m.pools[name]
	if p == nil {
		return
	}
	delete(m.pools, name)
	m.cluster.servicePoolChanged(p.published, nil)
	m.cluster.changeIPAM(IPAMChange{Pool: p.published, Gone: true})
	m.standIn()
}

// standIn publishes one pool in place of the unknown pools while nothing can be read, and
// withdraws it afterwards.
func (m *publisher) standIn() {
	wanted := m.state == ipam.Unreadable && len(m.pools) == 0 && len(m.sources) > 0
	switch {
	case wanted && (m.stand == nil || m.stand.Problem != m.problem):
		m.stand = &verdict.Pool{Pool: ipam.Pool{IPAM: m.name, Name: m.sources[0].Kind.Group, State: m.state, Problem: m.problem}}
		m.cluster.changeIPAM(IPAMChange{Pool: m.stand})
	case !wanted && m.stand != nil:
		m.cluster.changeIPAM(IPAMChange{Pool: m.stand, Gone: true})
		m.stand = nil
	}
}

func (m *publisher) Allocate(pool string, al ipam.Allocation, at int64) {
	m.change(pool, &verdict.Allocation{Allocation: al, AllocatedAt: verdict.Stamp(at)}, false)
}

func (m *publisher) Release(pool string, al ipam.Allocation) {
	m.change(pool, &verdict.Allocation{Allocation: al}, true)
}

// change publishes or withdraws an allocation of the named pool.
func (m *publisher) change(pool string, al *verdict.Allocation, gone bool) {
	correct(poolName, &pool)
	p := m.pools[pool]
	if p == nil {
		return
	}
	al.Pool = p.published
	correctAllocation(al)
	m.cluster.changeIPAM(IPAMChange{Allocation: al, Gone: gone})
}

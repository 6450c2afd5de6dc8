package aggregator

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// What IPAM says comes from the nodes (host-local) and from the Kubernetes API (the
// others). Here is what it gives addresses from; what it has given is in bookings.go,
// and what both are found to be wrong in is in audit.go.

// What one node, and the whole cluster, may have of pools and allocations.
const (
	maxNodePools       = 1024
	maxNodeAllocations = 250_000
	maxPools           = 100_000
	maxAllocations     = 5_000_000
	maxRanges          = 1024
)

// poolKey is what a pool is known by; node is nil for one of the whole cluster.
type poolKey struct {
	node       *node
	ipam, name string
}

// pool is what one IPAM gives addresses from, and what hangs on it.
type pool struct {
	rec  verdict.Pool // never moves: allocations point at it
	node *node
	// entries are the addresses that it has given: each once for each allocation.
	entries lookup[netip.Addr, *entry]
	// allocated counts addresses that it has given, however often that is written, leaked
	// those that are found to be.
	allocated, leaked tally
	// atRisk are the addresses in use that it takes for free.
	atRisk map[*entry]struct{}
	growth growth
	// alarm is when its own findings are looked at again, told when they were.
	alarm alarm
	told  verdict.Stamp
	sweep uint32
	cost  int32
	// looked tells that they are made at the end of what is being done.
	looked, ended bool
}

// tally counts addresses of IPv4 and of IPv6.
type tally [2]int

// of is the count of one family, or of both.
func (t tally) of(family int) int {
	if family == families {
		return t[0] + t[1]
	}
	return t[family]
}

// families stands for both.
const families = 2

// scarce is the family that says how full the pool is, where it gives addresses of
// both: a pod gets one of each, and none where it cannot.
func (p *pool) scarce() (family int, size uint64) {
	v4, v6 := p.rec.SizeOf(true), p.rec.SizeOf(false)
	switch {
	case v4 == 0 || v6 == 0:
		return families, p.rec.Size()
	case float64(p.allocated[1])/float64(v6) > float64(p.allocated[0])/float64(v4):
		return 1, v6
	}
	return 0, v4
}

func (p *pool) clock() *alarm { return &p.alarm }

func (p *pool) key() poolKey { return poolKey{p.node, p.rec.IPAM, p.rec.Name} }

// pools are all of them.
type pools struct {
	byKey map[poolKey]*pool
	// byRec finds the pool that a verdict names.
	byRec map[*verdict.Pool]*pool
	// cluster finds those of the whole cluster that may give an address.
	cluster prefixes
	// allocations counts all.
	allocations int
	// bySandbox finds the addresses that a sandbox was given, once for each allocation.
	bySandbox map[string][]*entry
	// lent is what covering gives.
	lent []*verdict.Pool
}

func newPools() pools {
	return pools{
		byKey: make(map[poolKey]*pool), byRec: make(map[*verdict.Pool]*pool), cluster: newPrefixes(), bySandbox: make(map[string][]*entry),
	}
}

func (p *pools) enterSandbox(id string, e *entry) {
	if id != "" {
		p.bySandbox[id] = append(p.bySandbox[id], e)
	}
}

func (p *pools) leaveSandbox(id string, e *entry) {
	list := p.bySandbox[id]
	if i := slices.Index(list, e); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if p.bySandbox[id] = list; len(list) == 0 {
		delete(p.bySandbox, id)
	}
}

// prefixes find pools by addresses. Each range is entered by the smallest prefix that
// has all of it, so that what is found may not contain the address.
type prefixes struct {
	pools map[netip.Prefix][]*pool
	// lengths count the prefixes of each length, of IPv4 and IPv6.
	lengths [2][129]int
}

func newPrefixes() prefixes { return prefixes{pools: make(map[netip.Prefix][]*pool)} }

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func (x *prefixes) enter(p *pool) {
	for _, r := range p.rec.Ranges {
		at := r.Prefix()
		if !slices.Contains(x.pools[at], p) {
			x.pools[at] = append(x.pools[at], p)
			x.lengths[family(r.First)][at.Bits()]++
		}
	}
}

func (x *prefixes) leave(p *pool) {
	for _, r := range p.rec.Ranges {
		at := r.Prefix()
		if i := slices.Index(x.pools[at], p); i >= 0 {
			x.pools[at] = slices.Delete(x.pools[at], i, i+1)
			x.lengths[family(r.First)][at.Bits()]--
			if len(x.pools[at]) == 0 {
				delete(x.pools, at)
			}
		}
	}
}

// covering are the pools that may give an address to somebody, or have. The list is
// lent until the next call.
func (s *store) covering(e *entry) []*verdict.Pool {
	if len(s.pools.byKey) == 0 {
		return nil
	}
	list := s.pools.lent[:0]
	add := func(p *verdict.Pool) {
		if !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	var last *node
	for _, h := range e.holdings {
		if h.mac != nil {
			break // the kernels' come first
		}
		if n := s.nodeOf(h); n != nil && n != last {
			last = n
			for _, p := range n.pools {
				if p.rec.Contains(e.addr) || len(p.rec.Ranges) == 0 && e.gotFrom(p.rec.Network) {
					add(&p.rec)
				}
			}
		}
	}
	x := &s.pools.cluster
	for length, count := range x.lengths[family(e.addr)][:e.addr.BitLen()+1] {
		if count == 0 {
			continue
		}
		at, _ := e.addr.Prefix(length)
		for _, p := range x.pools[at] {
			if p.rec.Contains(e.addr) {
				add(&p.rec)
			}
		}
	}
	if e.booking != nil {
		for _, al := range e.booking.allocations {
			add(al.Pool)
		}
	}
	s.pools.lent = list
	return list
}

// gotFrom tells whether a CNI network gave the address to somebody.
func (e *entry) gotFrom(network string) bool {
	return network != "" && slices.ContainsFunc(e.holdings, func(h *holding) bool { return h.Network == network })
}

// applyPool brings what a node says of a pool into the tables.
func (s *store) applyPool(n *node, rec *pb.PoolRecord, now verdict.Stamp) {
	p := s.pools.byKey[poolKey{n, rec.GetIpam(), rec.GetName()}]
	if rec.GetGone() {
		if p != nil {
			s.endPool(p)
		}
		return
	}
	next := verdict.Pool{
		IPAM: rec.GetIpam(), Name: rec.GetName(), Node: n.rec, Network: rec.GetNetwork(),
		State: known(rec.GetState(), verdict.PoolStale), Problem: rec.GetProblem(),
		LostAt: stamp(rec.GetLostAt()), Lost: rec.GetLost(),
		Plugin: rec.GetPlugin(), Device: rec.GetDevice(), Routed: rec.GetRouted(), Config: rec.GetConfig(),
	}
	for _, r := range rec.GetRanges() {
		first, _ := netip.AddrFromSlice(r.GetFirst())
		last, _ := netip.AddrFromSlice(r.GetLast())
		next.Ranges = append(next.Ranges, verdict.Range{First: first.Unmap(), Last: last.Unmap()})
	}
	for _, g := range rec.GetGateways() {
		a, _ := netip.AddrFromSlice(g)
		next.Gateways = append(next.Gateways, a.Unmap())
	}
	// A node may report its own IPAM only, never the IPAM of the cluster.
	if next.IPAM != verdict.HostLocal || next.Name == "" || next.State == 0 || p == nil && len(n.pools) >= maxNodePools {
		s.metrics.dropped("pool")
		return
	}
	var cost int32
	if p != nil {
		cost = p.cost
	}
	if !s.charge(n, &cost, poolCostOf(rec), true) {
		s.refuse(n, "pool", false)
		return
	}
	if next.LostAt != 0 {
		if next.LostHeard = now; p != nil && p.rec.LostAt == next.LostAt {
			next.LostHeard = p.rec.LostHeard
		}
	}
	p = s.setPool(n, p, &next)
	p.sweep, p.cost = n.sweep, cost
}

// setPool enters a pool, or what is said of it anew.
func (s *store) setPool(n *node, p *pool, next *verdict.Pool) *pool {
	if p == nil {
		p = &pool{node: n, entries: newLookup(func(e *entry) netip.Addr { return e.addr }), atRisk: make(map[*entry]struct{})}
		p.rec.IPAM, p.rec.Name, p.rec.Node = next.IPAM, next.Name, next.Node
		s.pools.byKey[p.key()], s.pools.byRec[&p.rec] = p, p
		if n != nil {
			n.pools = append(n.pools, p)
		}
	}
	old := p.rec
	if samePool(&old, next) {
		return p
	}
	if n == nil {
		s.pools.cluster.leave(p)
	}
	p.rec = *next
	if n == nil {
		s.pools.cluster.enter(p)
	}
	s.lookAt(p)
	s.overlapped(n)
	for e := range p.entries.all() {
		s.touch(e)
	}
	switch {
	case n != nil:
		s.touchNode(n)
		s.touchDisputes(n)
	default:
		s.reach = append(append(s.reach, old.Ranges...), next.Ranges...)
	}
	return p
}

func samePool(a, b *verdict.Pool) bool {
	return a.State == b.State && a.Problem == b.Problem && a.Network == b.Network && a.Realm == b.Realm && slices.Equal(a.Networks, b.Networks) &&
		a.LostAt == b.LostAt && a.Lost == b.Lost && a.Plugin == b.Plugin && a.Device == b.Device && a.Routed == b.Routed && a.Asked == b.Asked && a.Grows == b.Grows &&
		a.Config == b.Config && a.Base == b.Base && slices.Equal(a.Ranges, b.Ranges) && slices.Equal(a.Gateways, b.Gateways)
}

// endPool ends a pool with all that it has given.
func (s *store) endPool(p *pool) {
	if p.ended {
		return
	}
	p.ended = true
	p.rec.State = verdict.PoolStale // what it had is not known to be gone
	for _, e := range slices.Collect(p.entries.all()) {
		for _, al := range slices.Clone(e.booking.allocations) {
			if al.Pool == &p.rec {
				s.unbook(p, e, al)
			}
		}
	}
	for e := range p.atRisk {
		s.touch(e)
	}
	if p.node != nil { // another pool may give what it gave
		s.touchNode(p.node)
		s.touchDisputes(p.node)
	} else {
		s.reach = append(s.reach, p.rec.Ranges...)
	}
	s.charge(p.node, &p.cost, 0, true)
	delete(s.pools.byKey, p.key())
	delete(s.pools.byRec, &p.rec)
	if p.node != nil {
		p.node.pools = slices.DeleteFunc(p.node.pools, func(other *pool) bool { return other == p })
	} else {
		s.pools.cluster.leave(p)
	}
	s.disarm(p)
	s.dropPoolFindings(p)
	s.overlapped(p.node)
}

// endPools ends all pools of a node.
func (s *store) endPools(n *node) {
	for _, p := range slices.Clone(n.pools) {
		s.endPool(p)
	}
}

// sweepPools ends what the snapshot of a node did not have.
func (s *store) sweepPools(n *node) {
	for _, p := range slices.Clone(n.pools) {
		if p.sweep != n.sweep {
			s.endPool(p)
			continue
		}
		for _, e := range slices.Collect(p.entries.all()) {
			for _, al := range slices.Clone(e.booking.allocations) {
				if al.Pool == &p.rec && al.sweep != n.sweep {
					s.unbook(p, e, al)
				}
			}
		}
	}
}

// judgedIPAM is how many changes of IPAM are taken at a time.
const judgedIPAM = judgedAtOnce

// ipamChanged brings what the cluster's IPAMs say to the addresses that it is about.
// It is called with the lock, and gives it up now and then.
func (s *store) ipamChanged(changes []kube.IPAMChange) {
	for some := range slices.Chunk(changes, judgedIPAM) {
		base := len(s.touched)
		now := s.clock()
		for i := range some {
			s.applyIPAM(&some[i], now)
		}
		s.judgeTouched(base, received{})
		s.mu.Unlock()
		s.mu.Lock()
	}
	if reach := s.reach; len(reach) > 0 {
		s.reach = nil
		var within []netip.Prefix
		for _, r := range reach {
			within = append(within, r.Prefix())
		}
		s.judgeInside(kube.Within(within))
	}
}

func (s *store) applyIPAM(c *kube.IPAMChange, now verdict.Stamp) {
	if rec := c.Pool; rec != nil {
		p := s.pools.byKey[poolKey{nil, rec.IPAM, rec.Name}]
		switch {
		case c.Gone && p != nil:
			s.endPool(p)
		case c.Gone:
		case p == nil && len(s.pools.byKey) >= maxPools:
			s.metrics.dropped("pool")
		default:
			next := *rec
			next.Node = nil
			s.setPool(nil, p, &next)
		}
		return
	}
	al := c.Allocation
	p := s.pools.byKey[poolKey{nil, al.Pool.IPAM, al.Pool.Name}]
	if p == nil {
		s.metrics.dropped("allocation")
		return
	}
	if c.Gone {
		s.takeBack(p, al.Address, al.Location)
		return
	}
	s.book(p, *al, now)
}

// poolsOf returns what the own IPAM of a node gives addresses from.
func (s *store) poolsOf(rec *verdict.Node) []*verdict.Pool {
	n := s.nodes[idOf(rec)]
	if n == nil {
		return nil
	}
	list := make([]*verdict.Pool, 0, len(n.pools))
	for _, p := range n.pools {
		list = append(list, &p.rec)
	}
	return list
}

// subnets returns the addresses of a node itself, with their prefixes.
func (s *store) subnets(rec *verdict.Node) (list []verdict.Subnet) {
	n := s.nodes[idOf(rec)]
	if n == nil {
		return nil
	}
	own := n.namespaces.get(verdict.OwnRecord)
	if own == nil {
		return nil
	}
	for _, i := range own.ifaces {
		if i.rec.Attachment == verdict.Local {
			continue
		}
		lan := i.rec.Kind == "bridge" && slices.ContainsFunc(own.ifaces, func(port *iface) bool { return port.rec.Link == i.rec.Link && leadsOut(port.rec) })
		for _, h := range i.holdings {
			if h.Kind == verdict.Assigned {
				list = append(list, verdict.Subnet{Prefix: netip.PrefixFrom(h.entry.addr, int(h.PrefixLength)), Interface: i.rec, LAN: lan})
			}
		}
	}
	return list
}

// reports tells whether an agent reports for the node of a name, and sees what is in
// its pods.
func (s *store) reports(name string) bool {
	return slices.ContainsFunc(s.findings.byName[name], func(n *node) bool { return !n.blind() })
}

// covers tells whether an agent reports for a node, and sees what is in its pods.
func (n *node) covers() bool { return n.session != nil && !n.rec.Unheard && !n.blind() }

// reporting is reports for many names, also for those that others have for nodes: in
// capitals, or with a domain or without.
func (s *store) reporting() func(name string) bool {
	var called map[string][]*node
	return func(name string) bool {
		if s.reports(name) {
			return true
		}
		if called == nil {
			called = make(map[string][]*node, len(s.nodes))
			for _, n := range s.nodes {
				called[label(n.name)] = append(called[label(n.name)], n)
			}
		}
		return slices.ContainsFunc(called[label(name)], func(n *node) bool { return n.covers() && n.rec.Called(name) })
	}
}

// covered reports whether everything is known that is on the node of a name.
func (s *store) covered(name string) bool {
	if s.reports(name) {
		return true
	}
	if n := s.shown.get(name); n != nil { // with a longer name, where two have one
		return n.covers()
	}
	for _, n := range s.nodes {
		if n.covers() && n.rec.Called(name) {
			return true
		}
	}
	return false
}

// coveredAll reports whether everything is known that is on all nodes.
func (s *store) coveredAll() bool {
	now := s.clock()
	if s.coverage.at != 0 && now.Sub(s.coverage.at) < coverageFor {
		return s.coverage.all
	}
	all, asked := s.kube.NodesCovered(s.reporting())
	if !asked {
		all = len(s.nodes) > 0
	}
	for _, n := range s.nodes {
		if n.rec.Unheard && !n.rec.TimedOut || n.blind() {
			all = false
		}
	}
	s.coverage.at, s.coverage.all = now, all
	return all
}

// poolPlace is where a pool is in the order of lists.
type poolPlace struct{ ipam, node, name string }

func (s *store) poolPlace(p *pool) poolPlace {
	at := poolPlace{ipam: p.rec.IPAM, name: p.rec.Name}
	if p.node != nil {
		at.node = p.node.rec.Name
	}
	return at
}

func (p poolPlace) compare(other poolPlace) int {
	return cmp.Or(cmp.Compare(p.ipam, other.ipam), cmp.Compare(p.node, other.node), cmp.Compare(p.name, other.name))
}

func (p poolPlace) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.ipam + "\n" + p.node + "\n" + p.name))
}

func parsePoolPlace(token string) (p poolPlace, err error) {
	if token == "" {
		return p, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	parts := strings.Split(string(raw), "\n")
	if err != nil || len(parts) != 3 {
		return p, errPageToken
	}
	return poolPlace{parts[0], parts[1], parts[2]}, nil
}

// listPools fills a page with pools and returns the token of the next one.
func (s *store) listPools(from poolPlace, page *page[*pb.Pool]) (next string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var after []*pool
	for _, p := range s.pools.byKey {
		if s.poolPlace(p).compare(from) > 0 {
			after = append(after, p)
		}
	}
	slices.SortFunc(after, func(a, b *pool) int { return s.poolPlace(a).compare(s.poolPlace(b)) })
	for i, p := range after {
		if page.full() {
			return s.poolPlace(after[i-1]).token()
		}
		page.add(s.poolProto(p))
	}
	return ""
}

// ListPools lists what IPAM gives addresses from, and how full it is.
func (w witness) ListPools(_ context.Context, q *pb.ListPoolsRequest) (*pb.ListPoolsResponse, error) {
	from, err := parsePoolPlace(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	coverage := w.store.currentCoverage()
	pools := newPage[*pb.Pool](q.GetPageSize())
	next := w.store.listPools(from, pools)
	return &pb.ListPoolsResponse{Pools: pools.items, NextPageToken: next, Coverage: coverage}, nil
}

package facts

import (
	"encoding/hex"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	ipams "github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The data of IPAMs comes from the nodes (host-local) and from the Kubernetes API (all others).
// This file stores pools; allocations.go stores allocations.

// Limits for the pools and allocations of one node and of the whole cluster.
const (
	MaxNodePools       = 1024
	MaxNodeAllocations = 250_000
	maxPools           = 100_000
	maxAllocations     = 5_000_000
)

// poolKey identifies a pool; node is nil for a cluster-wide pool.
type poolKey struct {
	node       *Node
	ipam, name string
}

// Pool is a pool of an IPAM with its allocations. It is guarded by the lock of the facts.
type Pool struct {
	Rec  verdict.Pool // never moves, because allocations point to it, but may change
	Node *Node
	// Allocated is the number of allocated addresses. An address with several allocations counts
	// once.
	Allocated audit.Tally
	// AtRisk has the addresses in use that the pool considers free. Package judge changes it under its own lock, while
	// the lock of Facts is held for reading.
	AtRisk map[netip.Addr]Risk
	// Ended is set once the pool is removed.
	Ended bool
	// entries has the number of allocations of each allocated address.
	entries map[index.Address]int
	sweep   uint8
	// former is set if the agent has restarted since it reported the pool, inherited if it has since it reported
	// the loss of the pool.
	former, inherited bool
	cost              int32
}

// A Risk is an address in use that a pool considers free: the ID of the finding about it, and its owners.
type Risk struct {
	Finding string
	Owners  []verdict.Owner
}

func (p *Pool) key() poolKey { return poolKey{p.Node, p.Rec.IPAM, p.Rec.Name} }

// ipamRecords are the pools and allocations of IPAMs.
type ipamRecords struct {
	byKey map[poolKey]*Pool
	// byRec maps records in verdicts to their pools.
	byRec map[*verdict.Pool]*Pool
	// cluster finds the cluster-wide pools that may contain an address.
	cluster prefixes
	// allocations has the allocations by address; allocationCount is their number.
	allocations     map[index.Address][]*allocation
	allocationCount int
	// bySandbox has the addresses allocated for a sandbox, once for each allocation.
	bySandbox map[string][]index.Address
	// unknown has the IPAMs whose records in the Kubernetes API are not known, and whether they are being read.
	unknown map[string]ipam.State
	// lost has the pools that had lost their records before the start, until their nodes report them.
	lost map[lostPool]*verdict.Pool
}

// lostPool identifies a pool of a node before the start.
type lostPool struct{ node, boot, ipam, name string }

func lostKey(p *verdict.Pool) lostPool { return lostPool{p.Node.Name, p.Node.Boot, p.IPAM, p.Name} }

func newIPAM() ipamRecords {
	return ipamRecords{
		byKey: make(map[poolKey]*Pool), byRec: make(map[*verdict.Pool]*Pool), cluster: newPrefixes(),
		allocations: make(map[index.Address][]*allocation), bySandbox: make(map[string][]index.Address), lost: make(map[lostPool]*verdict.Pool),
	}
}

func (f *Facts) enterSandbox(id string, a index.Address) {
	if id != "" {
		f.bySandbox[id] = append(f.bySandbox[id], a)
	}
}

func (f *Facts) leaveSandbox(id string, a index.Address) {
	list := f.bySandbox[id]
	if i := slices.Index(list, a); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if f.bySandbox[id] = list; len(list) == 0 {
		delete(f.bySandbox, id)
	}
}

// touchSandbox touches the addresses that are allocated for a sandbox, before the sandbox appears
// or ends.
func (f *Facts) touchSandbox(who verdict.Who) {
	if len(f.bySandbox) == 0 {
		return
	}
	for _, a := range f.bySandbox[who.Workload().ContainerID] {
		f.touch(a)
	}
}

// poolUsed schedules a comparison of the networks of a node if a pool may have come into use or gone
// out of use, because the severity of an overlap depends on it. If a node itself has the address that was allocated
// or released, all ranges are compared.
func (f *Facts) poolUsed(p *Pool, a index.Address) {
	if p.Node == nil {
		return
	}
	if p.Allocated.Of(audit.Both) < 2 {
		f.changes.ranges(p.Node)
	}
	for n, c := range f.claimsTo(a) {
		if one := n.claims.at(c); one.kind == verdict.Assigned && n.interfaces.at(one.port).attachment == verdict.Own {
			f.changes.ranges(nil)
		}
	}
}

// Allocators returns the pools of nodes that have allocated an address. The caller holds the lock.
func (f *Facts) Allocators(a netip.Addr) (pools []*Pool) {
	for _, al := range f.allocations[index.AddressOf(a)] {
		if p := f.byRec[al.Pool]; p.Node != nil {
			pools = append(pools, p)
		}
	}
	return pools
}

// Pools yields all pools. The caller holds the lock.
func (f *Facts) Pools(yield func(*Pool) bool) {
	for _, p := range f.byKey {
		if !yield(p) {
			return
		}
	}
}

// Pool returns the pool with a record; nil if it no longer exists. The caller holds the lock.
func (f *Facts) Pool(rec *verdict.Pool) *Pool { return f.byRec[rec] }

// Readable reports whether the records of a pool are known, as far as the pool exists. The caller holds
// the lock.
func (f *Facts) Readable(rec *verdict.Pool) bool {
	nodes := []*Node{nil}
	if rec.Node != nil {
		nodes = f.shown[rec.Node.Name]
	}
	for _, n := range nodes {
		if p := f.byKey[poolKey{n, rec.IPAM, rec.Name}]; p != nil {
			return p.Rec.State == ipam.Known || p.Rec.State == ipam.Missing
		}
	}
	if rec.Node == nil {
		return f.unknown[rec.IPAM] == 0
	}
	return !slices.ContainsFunc(nodes, func(n *Node) bool { return slices.Contains(n.Status.GetUnreadableIpams(), rec.IPAM) })
}

// RecordsChanged sets the IPAMs whose records in the Kubernetes API are not known, after all that is known was judged.
// It takes over the map.
func (f *Facts) RecordsChanged(unknown map[string]ipam.State) {
	f.Update(func() { f.unknown, f.changes.Coverage = unknown, true })
}

// Unread returns the IPAMs whose records in the Kubernetes API are awaited after the start, in order. The caller holds
// the lock.
func (f *Facts) Unread() (ipams []string) {
	for name, state := range f.unknown {
		if state == ipam.Reading {
			ipams = append(ipams, name)
		}
	}
	slices.Sort(ipams)
	return ipams
}

// Allocations returns the number of allocations. The caller holds the lock.
func (f *Facts) Allocations() int { return f.allocationCount }

// prefixes finds pools by address. Each range is indexed under the smallest prefix that contains
// it, so a pool that is found need not contain the address.
type prefixes struct {
	pools map[netip.Prefix][]*Pool
	// lengths is the number of prefixes of each length, for IPv4 and IPv6.
	lengths [2][129]int
}

func newPrefixes() prefixes { return prefixes{pools: make(map[netip.Prefix][]*Pool)} }

func (x *prefixes) enter(p *Pool) {
	for _, r := range p.Rec.Ranges {
		at := r.Prefix()
		if !slices.Contains(x.pools[at], p) {
			x.pools[at] = append(x.pools[at], p)
			x.lengths[audit.FamilyOf(r.First)][at.Bits()]++
		}
	}
}

func (x *prefixes) leave(p *Pool) {
	for _, r := range p.Rec.Ranges {
		at := r.Prefix()
		if i := slices.Index(x.pools[at], p); i >= 0 {
			x.pools[at] = slices.Delete(x.pools[at], i, i+1)
			x.lengths[audit.FamilyOf(r.First)][at.Bits()]--
			if len(x.pools[at]) == 0 {
				delete(x.pools, at)
			}
		}
	}
}

// covering returns the pools that have allocated the address of the case or may allocate it, and those from which a
// Service may get it.
func (b *Builder) covering(a netip.Addr, allocations []*allocation) (list, services []*verdict.Pool) {
	f := b.facts
	if len(f.byKey) == 0 {
		return nil, nil
	}
	add := func(p *verdict.Pool) {
		into := &list
		if p.Services != "" {
			into = &services
		}
		if !slices.Contains(*into, p) {
			*into = append(*into, p)
		}
	}
	gotFrom := func(network string) bool {
		return network != "" && slices.ContainsFunc(b.c.Claims, func(c *verdict.Claim) bool { return c.Network == network })
	}
	for k, c := range b.c.Claims {
		for _, p := range f.nodes[b.refs[k].node()].Pools {
			switch inRange := p.Rec.Contains(a); {
			case wired(c): // a DHCP server also serves machines without an agent
				if inRange && ipams.Of(p.Rec.IPAM).Leases {
					add(&p.Rec)
				}
			case inRange, len(p.Rec.Ranges) == 0 && gotFrom(p.Rec.Network):
				add(&p.Rec)
			}
		}
	}
	x := &f.cluster
	for length, count := range x.lengths[audit.FamilyOf(a)][:a.BitLen()+1] {
		if count == 0 {
			continue
		}
		at, _ := a.Prefix(length)
		for _, p := range x.pools[at] {
			if p.Rec.Contains(a) {
				add(&p.Rec)
			}
		}
	}
	for _, al := range allocations {
		add(al.Pool)
	}
	return list, services
}

// applyPool applies the record of a pool that a node sent.
func (f *Facts) applyPool(n *Node, rec *pb.PoolRecord, now verdict.Stamp) {
	p := f.byKey[poolKey{n, rec.GetIpam(), rec.GetName()}]
	if rec.GetGone() {
		if p != nil {
			f.endPool(p)
		}
		return
	}
	next := verdict.Pool{
		Pool: ipam.Pool{IPAM: rec.GetIpam(), Name: rec.GetName(), Served: ipam.Served{Network: rec.GetNetwork()}, State: Known(rec.GetState(), ipam.Stale), Problem: rec.GetProblem(), Wiring: ipam.Wiring{Plugin: rec.GetPlugin(), Device: rec.GetDevice(), Routed: rec.GetRouted()}, Config: rec.GetConfig()}, Node: n.Rec, Loss: verdict.Loss{LostAt: Stamp(rec.GetLostAt()), Lost: rec.GetLost()},
	}
	next.Server, _ = netip.AddrFromSlice(rec.GetServer())
	next.ClientID = hex.EncodeToString(rec.GetClientId())
	for _, r := range rec.GetRanges() {
		first, _ := netip.AddrFromSlice(r.GetFirst())
		last, _ := netip.AddrFromSlice(r.GetLast())
		next.Ranges = append(next.Ranges, ipam.Range{First: first.Unmap(), Last: last.Unmap()})
	}
	for _, g := range rec.GetGateways() {
		a, _ := netip.AddrFromSlice(g)
		next.Gateways = append(next.Gateways, a.Unmap())
	}
	// A node may only report an IPAM with files on nodes, and not a cluster-wide one.
	if ipams.Of(next.IPAM).Files == nil || next.Name == "" || next.State == 0 || p == nil && len(n.Pools) >= MaxNodePools {
		f.changes.Dropped["pool"]++
		return
	}
	var cost int32
	if p != nil {
		cost = p.cost
	}
	if !f.charge(n, &cost, poolCostOf(rec), true) {
		f.countRefused(n, "pool", false)
		return
	}
	inherited := false
	if next.LostAt == 0 { // an agent does not know what happened before its start
		switch was := f.lost[lostKey(&next)]; {
		case p == nil && was != nil:
			next.Loss, inherited = was.Loss, true
			delete(f.lost, lostKey(&next))
		case p != nil && (p.inherited || p.former):
			next.Loss, inherited = p.Rec.Loss, p.Rec.LostAt != 0
		}
	} else {
		if next.LostHeard = now; p != nil && p.Rec.LostAt == next.LostAt {
			next.LostHeard = p.Rec.LostHeard
		}
	}
	p, _ = f.setPool(n, p, &next)
	p.sweep, p.cost, p.former, p.inherited = n.sweep, cost, false, inherited
}

// RecallLost takes over pools that had lost their records before the start. Their records name the node
// and its boot ID. A pool without ranges only has the loss.
func (f *Facts) RecallLost(pools []*verdict.Pool) *Batch {
	b := newBatch()
	f.piece(b, func() {
		for _, p := range pools {
			if k := lostKey(p); f.lost[k] == nil || len(f.lost[k].Ranges) == 0 {
				f.lost[k] = p
			}
		}
		for n := range f.Nodes {
			if n.Rec.Unheard {
				continue
			}
			for _, p := range n.Pools {
				if was := f.lost[lostKey(&p.Rec)]; was != nil && p.Rec.LostAt == 0 {
					next := p.Rec
					next.Loss, p.inherited = was.Loss, true
					f.setPool(n, p, &next)
					delete(f.lost, lostKey(&next))
				}
			}
			f.restorePools(n)
		}
	})
	f.close(b)
	return b
}

// restorePools adds the pools of a node that had lost their records before the start, and that the agent
// does not report, because nothing is left that names them.
func (f *Facts) restorePools(n *Node) {
	for k, was := range f.lost {
		if k.node != n.Rec.Name || k.boot != n.ID.Boot || len(was.Ranges) == 0 || slices.Contains(n.Status.GetUnreadIpams(), k.ipam) || f.byKey[poolKey{n, k.ipam, k.name}] != nil {
			continue
		}
		next := *was
		next.Node = n.Rec
		p, _ := f.setPool(n, nil, &next)
		p.sweep, p.former, p.inherited = n.sweep, true, true
		delete(f.lost, k)
	}
}

// setPool adds or updates a pool. For a change of a cluster-wide pool, it returns the affected
// ranges.
func (f *Facts) setPool(n *Node, p *Pool, next *verdict.Pool) (now *Pool, reach []ipam.Range) {
	if p == nil {
		p = &Pool{Node: n, AtRisk: make(map[netip.Addr]Risk), entries: make(map[index.Address]int)}
		p.Rec.IPAM, p.Rec.Name, p.Rec.Node = next.IPAM, next.Name, next.Node
		f.byKey[p.key()], f.byRec[&p.Rec] = p, p
		if n != nil {
			n.Pools = append(n.Pools, p)
		}
	}
	next.Traits = ipams.Traits(next.IPAM)
	old := p.Rec
	if old.Same(next) {
		return p, nil
	}
	for a := range p.entries {
		f.touch(a)
	}
	if n != nil {
		if (old.State == ipam.Unreadable || old.State == ipam.Stale) && next.State == ipam.Known {
			n.ReadableAt = f.now()
			f.coverageChanged()
		}
		f.touchNode(n)
		f.touchDisputes(n)
	} else {
		reach = append(slices.Clone(old.Ranges), next.Ranges...)
	}
	if n == nil {
		f.cluster.leave(p)
	}
	p.Rec = *next
	if n == nil {
		f.cluster.enter(p)
	}
	f.changes.pool(p)
	f.changes.ranges(n)
	return p, reach
}

// endPool removes a pool with all of its allocations.
func (f *Facts) endPool(p *Pool) {
	p.Ended = true
	f.touchPool(p)
	p.Rec.State = ipam.Stale // its allocations are not known to have ended
	f.removeAllocations(p, func(*allocation) bool { return true })
	setCharge(f, p.Node, &p.cost, 0)
	delete(f.byKey, p.key())
	delete(f.byRec, &p.Rec)
	if p.Node != nil {
		p.Node.Pools = slices.DeleteFunc(p.Node.Pools, func(other *Pool) bool { return other == p })
	} else {
		f.cluster.leave(p)
	}
	f.changes.Ended = append(f.changes.Ended, p)
	f.changes.ranges(p.Node)
}

// touchPool touches the addresses with findings about the pool.
func (f *Facts) touchPool(p *Pool) {
	for a := range p.entries {
		f.touch(a)
	}
	for a := range p.AtRisk {
		f.touch(index.AddressOf(a))
	}
	if p.Node != nil {
		f.touchNode(p.Node) // other pools may have allocated the same addresses
		f.touchDisputes(p.Node)
	}
}

// endPools removes all pools of a node.
func (f *Facts) endPools(n *Node) {
	for _, p := range slices.Clone(n.Pools) {
		f.endPool(p)
	}
}

// sweepPools removes the pools and allocations that the snapshot of a node did not contain.
func (f *Facts) sweepPools(n *Node) {
	for _, p := range slices.Clone(n.Pools) {
		switch {
		case p.sweep == n.sweep:
		case p.former && p.Rec.LostAt != 0 && p.Rec.State == ipam.Missing && len(p.AtRisk) > 0:
			// Only an earlier agent saw the pool, before all of it was removed.
		default:
			f.endPool(p)
			continue
		}
		f.removeAllocations(p, func(al *allocation) bool { return al.sweep != n.sweep })
	}
	f.restorePools(n)
}

// removeAllocations removes the allocations of a pool for which which returns true.
func (f *Facts) removeAllocations(p *Pool, which func(*allocation) bool) {
	for a := range p.entries {
		for _, al := range slices.Clone(f.allocations[a]) {
			if al.Pool == &p.Rec && which(al) {
				f.removeAllocation(p, a, al)
			}
		}
	}
}

package facts

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// allocation is an entry of the table. It is immutable, except for the number of the last snapshot
// that contained it.
type allocation struct {
	verdict.Allocation
	cost  int32
	sweep uint8
}

// applyAllocation applies an allocation that an IPAM on a node added or removed.
func (f *Facts) applyAllocation(n *Node, rec *pb.AllocationRecord, now verdict.Stamp) {
	p := f.byKey[poolKey{n, rec.GetIpam(), rec.GetPool()}]
	addr, _ := netip.AddrFromSlice(rec.GetAddress())
	addr = addr.Unmap()
	switch {
	case p == nil:
		if !rec.GetGone() { // a removed one ended together with its pool
			f.changes.Dropped["allocation"]++
		}
		return
	case rec.GetGone():
		f.withdraw(p, addr, "")
		return
	}
	al := verdict.Allocation{
		Allocation: ipam.Allocation{
			Address: addr, ContainerID: rec.GetContainerId(), Interface: rec.GetInterface(), Namespace: rec.GetNamespace(), Pod: rec.GetPod(),
			MAC: verdict.MAC(rec.GetMac()).String(), FormerMAC: verdict.MAC(rec.GetFormerMac()).String(), Hostname: rec.GetHostname(),
			FixedIn: rec.GetFixedIn(), ReservedFor: rec.GetReservedFor(),
		},
		AllocatedAt: Stamp(rec.GetAllocatedAt()), KeptUntil: Stamp(rec.GetKeptUntil()), Expires: Stamp(rec.GetExpiresAt()),
	}
	if have := f.putAllocation(p, al, now); have != nil {
		have.sweep = n.sweep
	}
}

// putAllocation adds or updates an allocation.
func (f *Facts) putAllocation(p *Pool, al verdict.Allocation, now verdict.Stamp) *allocation {
	al.Pool, al.Heard = &p.Rec, now
	cost := allocationCostOf(&al)
	a := index.AddressOf(al.Address)
	all := f.allocations[a]
	for i, have := range all {
		if have.Pool != al.Pool || have.Location != al.Location {
			continue
		}
		if have.sameAs(al) {
			return have
		}
		if renewed := *have; renewed.Expires != al.Expires { // that a lease is renewed changes no judgement
			if renewed.Expires = al.Expires; renewed.sameAs(al) {
				all[i] = &renewed
				return &renewed
			}
		}
		if !f.charge(p.Node, &have.cost, cost, true) {
			f.countRefused(p.Node, "allocation", false)
			return nil
		}
		item := f.touch(a)
		f.leaseChanges(p, a)
		if have.ContainerID != al.ContainerID || have.Pod != al.Pod || have.Namespace != al.Namespace || have.MAC != al.MAC ||
			al.Pool.Assigns && have.Node != al.Node {
			item.Vanished = append(item.Vanished, &have.Allocation)
		}
		next := &allocation{Allocation: al, cost: have.cost}
		f.leaveSandbox(have.ContainerID, a)
		f.enterSandbox(al.ContainerID, a)
		all[i] = next
		return next
	}
	if f.allocationCount >= maxAllocations || p.Node != nil && p.Node.allocated >= MaxNodeAllocations {
		f.changes.Dropped["allocation"]++
		return nil
	}
	next := &allocation{Allocation: al}
	if !f.charge(p.Node, &next.cost, cost, true) {
		f.countRefused(p.Node, "allocation", false)
		return nil
	}
	f.touch(a)
	f.leaseChanges(p, a)
	f.allocations[a] = append(f.allocations[a], next)
	f.enterSandbox(al.ContainerID, a)
	if p.entries[a]++; p.entries[a] == 1 {
		p.Allocated[audit.FamilyOf(al.Address)]++
		f.poolUsed(p, a)
	}
	f.count(p, 1)
	f.changes.pool(p)
	return next
}

// sameAs reports whether two allocations from one location are equal.
func (al *allocation) sameAs(other verdict.Allocation) bool {
	was := al.Allocation
	was.Heard = other.Heard
	return was == other
}

// withdraw removes the allocation of an address from a pool.
func (f *Facts) withdraw(p *Pool, addr netip.Addr, location string) {
	a := index.AddressOf(addr)
	all := f.allocations[a]
	if i := slices.IndexFunc(all, func(al *allocation) bool { return al.Pool == &p.Rec && al.Location == location }); i >= 0 {
		f.removeAllocation(p, a, all[i])
	}
}

// count changes the number of allocations of a pool.
func (f *Facts) count(p *Pool, n int) {
	f.allocationCount += n
	if p.Node != nil {
		p.Node.allocated += n
	}
}

// leaseChanges touches disputes that may depend on a lease of an address of their node (Subnet.Leased), before it changes.
func (f *Facts) leaseChanges(p *Pool, a index.Address) {
	if !p.Rec.Leases {
		return
	}
	for n, c := range f.claimsTo(a) {
		if one := n.claims.at(c); one.kind == verdict.Assigned && n.interfaces.at(one.port).namespace == n.own() {
			f.touchDisputesWithin(n, []netip.Prefix{netip.PrefixFrom(a.Addr(), int(one.prefix))})
		}
	}
}

// removeAllocation removes an allocation.
func (f *Facts) removeAllocation(p *Pool, a index.Address, al *allocation) {
	item := f.touch(a)
	f.leaseChanges(p, a)
	item.Vanished = append(item.Vanished, &al.Allocation)
	left := slices.DeleteFunc(slices.Clone(f.allocations[a]), func(other *allocation) bool { return other == al })
	if f.allocations[a] = left; len(left) == 0 {
		delete(f.allocations, a)
	}
	if p.entries[a]--; p.entries[a] == 0 {
		delete(p.entries, a)
		p.Allocated[audit.FamilyOf(al.Address)]--
		f.poolUsed(p, a)
	}
	f.leaveSandbox(al.ContainerID, a)
	setCharge(f, p.Node, &al.cost, 0)
	f.count(p, -1)
	f.changes.pool(p)
}

// IPAMChanged applies changes of cluster-wide IPAMs. It also returns the ranges of the pools that
// changed: all owners in them must be judged again.
func (f *Facts) IPAMChanged(changes []kube.IPAMChange) (*Batch, []ipam.Range) {
	b := newBatch()
	var reach []ipam.Range
	inPieces(f, b, changes, func(c kube.IPAMChange) { reach = append(reach, f.applyIPAM(&c, f.now())...) })
	f.close(b)
	return b, reach
}

func (f *Facts) applyIPAM(c *kube.IPAMChange, now verdict.Stamp) (reach []ipam.Range) {
	if rec := c.Pool; rec != nil {
		p := f.byKey[poolKey{nil, rec.IPAM, rec.Name}]
		switch {
		case c.Gone && p != nil:
			reach = slices.Clone(p.Rec.Ranges) // other pools may have allocated the same addresses
			f.endPool(p)
		case c.Gone:
		case p == nil && len(f.byKey) >= maxPools:
			f.changes.Dropped["pool"]++
		default:
			_, reach = f.setPool(nil, p, rec)
		}
		return reach
	}
	al := c.Allocation
	p := f.byKey[poolKey{nil, al.Pool.IPAM, al.Pool.Name}]
	switch {
	case p == nil && c.Gone:
	case p == nil:
		f.changes.Dropped["allocation"]++
	case c.Gone:
		f.withdraw(p, al.Address, al.Location)
	default:
		f.putAllocation(p, *al, now)
	}
	return nil
}

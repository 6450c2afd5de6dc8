package aggregator

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// allocation is one in the table.
type allocation struct {
	verdict.Allocation
	// sweep is the last snapshot that had it.
	sweep uint32
	cost  int32
}

// booking is what IPAM says of one address, and what the audit found.
type booking struct {
	allocations []*allocation
	// vanished are allocations that are gone since the last audit.
	vanished []*verdict.Allocation
	past     []verdict.Past
	// found are what the last audit found, also what waits.
	found []verdict.Finding
	// clones are the cloned hardware addresses in claims to the address.
	clones []cloneKey
}

// booked is the entry's booking, made where there is none.
func (e *entry) booked() *booking {
	if e.booking == nil {
		e.booking = &booking{}
	}
	return e.booking
}

// unbooked forgets a booking of which nothing is left.
func (e *entry) unbooked() {
	if b := e.booking; b != nil && len(b.allocations) == 0 && len(b.past) == 0 && len(b.found) == 0 && len(b.vanished) == 0 && len(b.clones) == 0 {
		e.booking = nil
	}
}

// coverage is whether an agent reports for each node.
type coverage struct {
	at  verdict.Stamp
	all bool
}

// applyAllocation brings what a node's IPAM has given into the tables.
func (s *store) applyAllocation(n *node, rec *pb.AllocationRecord, now verdict.Stamp) {
	p := s.pools.byKey[poolKey{n, rec.GetIpam(), rec.GetPool()}]
	addr, _ := netip.AddrFromSlice(rec.GetAddress())
	addr = addr.Unmap()
	switch {
	case p == nil:
		if !rec.GetGone() { // it went with its pool
			s.metrics.dropped("allocation")
		}
		return
	case rec.GetGone():
		s.takeBack(p, addr, "")
		return
	case n.allocated >= maxNodeAllocations:
		s.metrics.dropped("allocation")
		return
	}
	al := verdict.Allocation{
		Address: addr, ContainerID: rec.GetContainerId(), Interface: rec.GetInterface(), AllocatedAt: stamp(rec.GetAllocatedAt()),
	}
	if have := s.book(p, al, now); have != nil {
		have.sweep = n.sweep
	}
}

// book enters an allocation, or what is said of it anew.
func (s *store) book(p *pool, al verdict.Allocation, now verdict.Stamp) *allocation {
	if s.pools.allocations >= maxAllocations {
		s.metrics.dropped("allocation")
		return nil
	}
	al.Pool, al.Heard = &p.rec, now
	cost := allocationCostOf(&al)
	var fresh int32
	if e := s.table.get(al.Address); e == nil || e.booking == nil || !e.booking.has(&al) {
		if !s.charge(p.node, &fresh, cost, true) {
			s.refuse(p.node, "allocation", false)
			return nil
		}
	}
	e := s.table.enter(al.Address)
	b := e.booked()
	for i, have := range b.allocations {
		if have.Pool == al.Pool && have.Location == al.Location {
			if same := al; have.sameAs(&same) {
				return have
			}
			if !s.charge(p.node, &have.cost, cost, true) {
				s.refuse(p.node, "allocation", false)
				return nil
			}
			if have.ContainerID != al.ContainerID || have.Pod != al.Pod || have.Namespace != al.Namespace {
				b.vanished = append(b.vanished, &have.Allocation)
			}
			next := &allocation{Allocation: al, cost: have.cost}
			s.pools.leaveSandbox(have.ContainerID, e)
			s.pools.enterSandbox(al.ContainerID, e)
			b.allocations[i] = next
			s.touch(e)
			return next
		}
	}
	next := &allocation{Allocation: al, cost: fresh}
	b.allocations = append(b.allocations, next)
	s.pools.enterSandbox(al.ContainerID, e)
	if p.entries.get(al.Address) == nil {
		p.entries.put(e)
		p.allocated[family(al.Address)]++
		s.used(p)
	}
	s.count(p, 1)
	s.touch(e)
	s.lookAt(p)
	return next
}

// used has the networks of a node compared again if a pool may be used from now on, or no more:
// that tells how much it matters that two have addresses in common.
func (s *store) used(p *pool) {
	if p.node != nil && p.allocated.of(families) < 2 {
		s.overlapped(p.node)
	}
}

// has reports whether the booking has an allocation in the same place.
func (b *booking) has(al *verdict.Allocation) bool {
	return slices.ContainsFunc(b.allocations, func(have *allocation) bool {
		return have.Pool == al.Pool && have.Location == al.Location
	})
}

// sameAs tells whether two allocations of one place say the same.
func (al *allocation) sameAs(other *verdict.Allocation) bool {
	was := al.Allocation
	was.Heard = other.Heard
	return was == *other
}

// takeBack ends the allocation of an address in a pool.
func (s *store) takeBack(p *pool, addr netip.Addr, location string) {
	e := p.entries.get(addr)
	if e == nil {
		return
	}
	for _, al := range e.booking.allocations {
		if al.Pool == &p.rec && al.Location == location {
			s.unbook(p, e, al)
			return
		}
	}
}

// count counts allocations of a pool.
func (s *store) count(p *pool, n int) {
	s.pools.allocations += n
	if p.node != nil {
		p.node.allocated += n
	}
}

// unbook ends an allocation.
func (s *store) unbook(p *pool, e *entry, al *allocation) {
	b := e.booking
	b.allocations = slices.DeleteFunc(b.allocations, func(other *allocation) bool { return other == al })
	if !slices.ContainsFunc(b.allocations, func(other *allocation) bool { return other.Pool == al.Pool }) {
		p.entries.remove(e.addr)
		p.allocated[family(e.addr)]--
		s.used(p)
	}
	b.vanished = append(b.vanished, &al.Allocation)
	s.pools.leaveSandbox(al.ContainerID, e)
	s.charge(p.node, &al.cost, 0, true)
	s.count(p, -1)
	s.touch(e)
	s.lookAt(p)
}

// pastOf is what is remembered of an address.
func (e *entry) pastOf() []verdict.Past {
	if e.booking == nil {
		return nil
	}
	return e.booking.past
}

package verdict

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// minClockDifference is the smallest difference between times of two nodes that decides which is
// earlier. Skew is measured to within milliseconds, and kernels stamp addresses by the tick.
const minClockDifference = 200 * time.Millisecond

// title returns what is known about an owner's right to the address.
func (q *inquiry) title(o *Owner) Title {
	t := Title{Owner: o.ID, Gateway: q.poolGateway(o), Given: q.given(o), Own: q.in.asOwn(o, q.c.Owners)}
	t.Internal = o.Kind() == Host && o.Assigned && q.in.node(o.Node).Internal
	t.First = q.first(o)
	t.Unclear = o.Namespace != nil && q.bestMatch(nil, o) == possibleMatch
	for _, al := range q.assignments {
		if q.in.Virtual() && al.Pool.State == ipam.Known && al.matches(o) == certainMatch {
			t.Controller = al.Pool
			break
		}
	}
	for _, al := range q.allocations {
		if (t.Pool == nil || t.Pool.Client) && q.matches(al, o) == certainMatch { // a server's record counts more than a client's
			t.Pool = al.Pool
			if al.Kept {
				t.Kept = al.Pool
			}
		}
	}
	if past := q.vanishedRecord(o); past != nil && t.Pool == nil && past.Allocation.Kept {
		t.Kept = past.Allocation.Pool
	}
	for _, p := range q.pools {
		if (p.State == ipam.Known || p.State == ipam.Missing) && len(q.allocationsOf(p)) == 0 && q.gave(p, o) {
			t.Missing = append(t.Missing, p)
		}
	}
	return t
}

// HeldAsOwn reports whether nodes have the address as their own, and others as a virtual one.
func (c *Conflict) HeldAsOwn() bool {
	return slices.ContainsFunc(c.Titles, func(t Title) bool { return t.Own })
}

// Alternates reports whether a controller assigns the address to its owners by turns.
func (c *Conflict) Alternates() bool {
	return slices.ContainsFunc(c.Facts, func(f Fact) bool { return f.Kind == FactAlternates })
}

// LeasedAnother reports whether an owner has another address from DHCP on the same interface instead.
func (c *Conflict) LeasedAnother(o *Owner) bool {
	return slices.ContainsFunc(c.Facts, func(f Fact) bool { return f.Kind == FactLeasedAnother && f.Owners[0] == o.ID })
}

// Controllers returns the controllers of different programs that assign the address to owners, if there are several.
func (c *Conflict) Controllers() (all []*Pool) {
	for _, t := range c.Titles {
		if p := t.Controller; p != nil && !slices.ContainsFunc(all, func(other *Pool) bool { return other.IPAM == p.IPAM }) {
			all = append(all, p)
		}
	}
	if len(all) < 2 {
		return nil
	}
	return all
}

// OnlyOnEngines reports whether a device outside has the address, and all other owners are nodes that have it on a
// bridge of a container engine alone. Engines choose the ranges of their networks by themselves.
func (c *Conflict) OnlyOnEngines() bool {
	return c.Cause == CauseExternalDevice && !slices.ContainsFunc(c.Owners, func(o Owner) bool {
		return !slices.Contains(c.Wrong, o.ID) && (o.Kind() != Host || !o.Assigned ||
			slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Kind == Assigned && c.Counts() && !MadeByEngine(c.Interface.Name) }))
	})
}

// JoinsEngines reports whether all owners are nodes that have the address on a bridge of a container engine alone, and these
// bridges are one link.
func (c *Conflict) JoinsEngines() bool {
	return c.Kind == LinkScope && len(c.Owners) > 1 && !slices.ContainsFunc(c.Owners, func(o Owner) bool { return o.hasVIPProgram() || !o.setByEngine(c.Address) })
}

// Fixed reports whether the owners are containers whose configurations fix the address, so that nothing tells which is the
// wrong one: of a service that was moved, it is the older one.
func (c *Conflict) Fixed() bool { return c.Headline != nil && c.Headline.Kind == HeadFixed }

// Title returns what is known about an owner's right to the address.
func (c *Conflict) Title(o *Owner) Title {
	for _, t := range c.Titles {
		if t.Owner == o.ID {
			return t
		}
	}
	return Title{Owner: o.ID}
}

// Rightful returns the owner that should keep the address, and the reason; nil if that is
// undecided. A namespace without processes never keeps the address against an owner with processes.
// A node keeps its own address: the one in the Kubernetes API, or the one that it had on a LAN before a network
// there assigned it to a workload. Between nodes, the controller of a virtual address decides next. Then the allocation
// decides, then whether a restart would change the address, then the program that moves virtual
// addresses, then the older assignment, then intent; each only decides between the owners that
// remain. All remedies follow this decision.
func (c *Conflict) Rightful(owners []*Owner) (*Owner, Right) {
	left := filterOwners(owners, func(o *Owner) bool { return !o.Orphaned })
	switch len(left) {
	case 0:
		return nil, RightUndecided
	case 1:
		return left[0], RightIntent // the pods of the other owners have ended
	}
	busy := filterOwners(left, (*Owner).busy)
	if len(busy) > 0 {
		if left = filterOwners(left, func(o *Owner) bool { return !o.idle() }); len(left) == 1 {
			return left[0], RightAlive
		}
	}
	if c.Cause == CauseDHCPClientIdentity || c.Cause == CauseTwoDHCPServers || c.Copied() || c.Fixed() {
		return nil, RightUndecided // each has a lease, or the same right to the address
	}
	if c.SameVM() {
		if runs := filterOwners(left, (*Owner).runsMachine); len(runs) == 1 {
			return runs[0], RightMachine
		}
	}
	if c.Cause == CauseReplacedNamespace {
		if current := filterOwners(left, func(o *Owner) bool { return !slices.Contains(c.Wrong, o.ID) }); len(current) == 1 {
			return current[0], RightCurrent
		}
	}
	// A device outside of all nodes may be the router, or may have had the address first. Neither the Kubernetes API
	// nor an IPAM that knows the addresses of one cluster decides against it. A DHCP server knows the devices of its
	// network.
	outside := slices.ContainsFunc(left, func(o *Owner) bool { return o.Kind() == External && o.Guest() == NoGuest })
	leased := slices.ContainsFunc(left, func(o *Owner) bool { t := c.Title(o); return !t.OfNode() && t.Pool.leasedByServer() })
	own := filterOwners(left, func(o *Owner) bool { return c.Title(o).Internal })
	if len(own) == 0 {
		own = filterOwners(left, func(o *Owner) bool { return c.Title(o).First })
	}
	if len(own) == 1 && !outside && !leased {
		return own[0], RightNode
	}
	if c.Alternates() || c.OnlyOnEngines() || c.JoinsEngines() {
		return nil, RightUndecided // advice would alternate, too; a record of the engine is no right against a router, or another engine
	}
	if len(c.Controllers()) > 0 {
		return nil, RightUndecided // each would set the address again
	}
	if c.HeldAsOwn() {
		return nil, RightUndecided // what set the virtual address would set it again, and so would what set the own one
	}
	if c.Moves && !outside {
		if assigned := filterOwners(left, func(o *Owner) bool { return c.Title(o).Controller != nil }); len(assigned) == 1 {
			return assigned[0], RightAssignment
		}
	}
	allocated := filterOwners(left, func(o *Owner) bool {
		t := c.Title(o)
		return t.Allocated() && (!outside || t.Pool != nil && t.Pool.Leases)
	})
	if len(allocated) == 1 {
		return allocated[0], RightAllocation
	} else if len(allocated) > 1 {
		left = allocated
		if kept := filterOwners(left, func(o *Owner) bool { return c.Title(o).Kept != nil }); len(kept) == 1 {
			return kept[0], RightKept
		}
		// The newer lease counts. The record of a client does not show whether the server has ended it since.
		if !slices.ContainsFunc(left, func(o *Owner) bool { p := c.Title(o).Pool; return p == nil || !p.Leases }) &&
			slices.ContainsFunc(left, func(o *Owner) bool { return c.Title(o).Pool.Client }) {
			return nil, RightUndecided
		}
	} else if outside {
		return nil, RightUndecided
	} else if maybe := filterOwners(left, func(o *Owner) bool { return c.Title(o).Unclear }); len(maybe) > 0 && len(maybe) < len(left) {
		return nil, RightUndecided // IPAM has the address for an owner that cannot be identified with certainty
	}
	if c.SamePod() {
		return nil, RightUndecided // kubelet removes the older sandbox once it knows about the newer one
	}
	// The owner that took a virtual address over has it later, and rightly. An address that was given to an owner is
	// none that its program moves.
	moves := slices.ContainsFunc(left, func(o *Owner) bool { return o.hasVIPProgram() && !c.Title(o).Given })
	if c.Moves && (moves || c.Cause == CauseSplitBrain) {
		return c.servedByProgram(left)
	}
	if c.Cause == CauseClonedMachine || OneService(left) != "" {
		return nil, RightUndecided // which one is the copy, or which one its program has scheduled
	}
	if first := oldest(left); first != nil && !moves && !bothEnds(left) {
		if !first.lives() || len(busy) > 0 && !first.busy() && first.Node.SeesProcesses {
			return nil, RightUndecided // it may be what is left of a workload that has ended
		}
		if slices.ContainsFunc(left, func(o *Owner) bool { return o != first && o.ID == c.Eldest }) {
			return nil, RightUndecided // the other one was restarted
		}
		return first, RightOlderAssignment
	}
	if meant := filterOwners(left, func(o *Owner) bool { return c.Title(o).Given }); len(meant) == 1 {
		return meant[0], RightIntent
	}
	return nil, RightUndecided
}

// leasedByServer reports whether the pool is that of a DHCP server. It is not if there is none, or if a client has
// recorded what it was leased.
func (p *Pool) leasedByServer() bool { return p != nil && p.Leases && !p.Client }

// servedByProgram returns the only owner on whose node, or in whose namespace, a program that moves virtual
// addresses runs, if the same program has ended at all others; nil otherwise. A program that was never seen
// may run where its agent cannot see it, and one on a node may move other addresses alone.
func (c *Conflict) servedByProgram(owners []*Owner) (*Owner, Right) {
	var running []*Owner
	programs := map[string]bool{}
	for _, o := range owners {
		program, ended := o.VIPProgram()
		if programs[program] = true; program != "" && !ended {
			running = append(running, o)
		}
	}
	if len(running) != 1 || len(programs) != 1 || slices.ContainsFunc(owners, func(o *Owner) bool { return o.mainAddress(c.Address) }) {
		return nil, RightUndecided
	}
	return running[0], RightProgram
}

// mainAddress reports whether a node itself has the address as the first one of a subnet, on an interface with a
// hardware address of its own. Programs set virtual addresses beside it: with the prefix of a single host, as
// further addresses of the subnet, not to be used for connections, or on the interface of a virtual router.
func (o *Owner) mainAddress(a netip.Addr) bool {
	return o.Kind() == Host && slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.main(a) })
}

// main reports whether the claim of a node is one to its main address.
func (c *Claim) main(a netip.Addr) bool {
	return c.Counts() && int(c.PrefixLength) < a.BitLen() && c.Flags&FlagSecondary == 0 && !c.Interface.MAC.Virtual() &&
		c.Flags&(FlagPermanent|flagDeprecated) != FlagPermanent|flagDeprecated
}

// first reports whether a node had the address as its main one before networks assigned it to all others, on the
// same LAN: their range contains the address of the node. A DHCP server that leases it to another owner knows the
// hosts of that LAN.
func (q *inquiry) first(o *Owner) bool {
	if !o.MainAddress(q.c.Address) || oldest(q.owners) != o || q.c.Eldest != "" && q.c.Eldest != o.ID {
		return false
	}
	return !slices.ContainsFunc(q.owners, func(other *Owner) bool {
		return other != o && (other.Kind() == Host || other.Namespace == nil || !q.given(other) ||
			!slices.ContainsFunc(o.Claims, func(c *Claim) bool {
				return c.main(q.c.Address) && q.onLAN(c.Interface) && sameLink(c.Interface.Link, other.Interface.Link)
			}) || slices.ContainsFunc(q.allocations, func(al *Allocation) bool { return al.Pool.leasedByServer() && al.leasedTo(other) == certainMatch }))
	})
}

// MainAddress reports whether a node has the address as its main one, and no program there moves virtual addresses.
func (o *Owner) MainAddress(a netip.Addr) bool { return !o.hasVIPProgram() && o.mainAddress(a) }

// asOwn reports whether a node has the address as its own and another owner as a virtual one: as the main address, or from a
// DHCP server, which may have a reservation for a node on which a program sets the address. Such a node does not hand the
// address over. That it is the first one of its subnet on one node and a further one on the other says nothing by itself:
// a virtual address is the first one, too, on a node that has no other one of the subnet yet. But if all others have it with the
// prefix of a single host, no program has set it with that of a subnet on this node, whatever runs there: keepalived, for one, goes
// on running, in state FAULT, if the node has the virtual address as the only one of the interface.
func (c *Case) asOwn(o *Owner, owners []Owner) bool {
	leased := func(o *Owner) bool {
		return (o.Temporary() || !o.hasVIPProgram()) && slices.ContainsFunc(c.Allocations, func(al AllocationFacts) bool {
			return al.Pool.Leases && al.matches(o) == certainMatch
		})
	}
	single := !slices.ContainsFunc(owners, func(other Owner) bool {
		return other.ID != o.ID && (!other.Assigned || slices.ContainsFunc(other.Claims, func(k *Claim) bool { return k.Counts() && int(k.PrefixLength) < c.Address.BitLen() }))
	})
	own := func(o *Owner) bool {
		return o.Kind() == Host && o.Assigned && !c.Assigns(o) && (o.MainAddress(c.Address) || single && o.mainAddress(c.Address) || leased(o))
	}
	return own(o) && slices.ContainsFunc(owners, func(other Owner) bool {
		return c.moves(&other) && !own(&other) && !other.mainAddress(c.Address) && (c.Assigns(&other) || other.hasVIPProgram() ||
			other.Assigned && (leased(o) || !other.withoutOrder().mainAddress(c.Address)))
	}) && !slices.ContainsFunc(c.Nodes, func(f NodeFacts) bool { return f.Internal })
}

// onLAN reports whether an interface of a node leads out of the node: a card, or a bridge with one.
func (q *inquiry) onLAN(i *Interface) bool {
	return i.Link != nil && (i.Uplink || slices.ContainsFunc(q.in.node(i.Namespace.Node).Subnets, func(s Subnet) bool { return s.LAN && s.Interface.Is(i) }))
}

// filterOwners returns the owners for which holds returns true.
func filterOwners(owners []*Owner, holds func(*Owner) bool) (found []*Owner) {
	for _, o := range owners {
		if holds(o) {
			found = append(found, o)
		}
	}
	return found
}

// poolGateway reports whether an owner is a node that has the gateway address of its own pool
// on the bridge that the pool serves.
func (q *inquiry) poolGateway(o *Owner) bool {
	return o.Kind() == Host && o.Assigned && slices.ContainsFunc(q.in.node(o.Node).Pools, func(p *Pool) bool {
		return p.Device != "" && slices.Contains(p.Gateways, q.c.Address) &&
			slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Counts() && c.Interface.Name == p.Device })
	})
}

// oldest returns the owner whose kernel got the address first and has had it since, but for short interruptions; nil if
// that is not known, two got it at the same time, or another one got it while the first one did not have it. Times of different nodes are corrected by clock skew.
//
// The assignment time of an owner that is only seen on the wire, behind a port of a namespace, is
// not known. It counts as younger than an assignment from before its first frame. If the assignment
// is later than the first frame, the order is not known: an attacker could send a frame early to
// appear older. The age of an external device is never known.
func oldest(owners []*Owner) *Owner {
	var first *Owner
	for _, o := range owners {
		if o.Namespace == nil {
			return nil
		}
		if at := o.TenureSince(); o.Assigned && !o.DADFailed() {
			if at == 0 {
				return nil
			}
			if first == nil || at.Add(-o.Node.Skew) < first.TenureSince().Add(-first.Node.Skew) {
				first = o
			}
		}
	}
	if first == nil {
		return nil
	}
	// doubt is how wrong a time of a node may be.
	doubt := func(n *Node, at Stamp) time.Duration {
		if at < n.ClockSet {
			return n.SkewWithin + n.ClockStep.Abs()
		}
		return n.SkewWithin
	}
	began, got := first.TenureSince().Add(-first.Node.Skew), first.AssignedAt().Add(-first.Node.Skew)
	for _, o := range owners {
		if o == first {
			continue
		}
		if o.DADFailed() && !o.Yielded() && o.Node.Is(first.Node) {
			continue // its kernel found that the address was already in use
		}
		at := o.TenureSince()
		if !o.Assigned && !o.Yielded() {
			at = o.FirstSeen()
		}
		if at == 0 {
			return nil
		}
		certain := minClockDifference + doubt(o.Node, at) + doubt(first.Node, first.TenureSince())
		at = at.Add(-o.Node.Skew)
		if at <= began || began < got && at <= got {
			return nil // it is older, or came while the first one did not have the address
		}
		if !o.Node.Is(first.Node) && (!o.Node.SkewKnown || !first.Node.SkewKnown || at.Sub(began) < certain) {
			return nil
		}
	}
	return first
}

// bothEnds reports whether a node has the address on one end of a veth, and the namespace with the other end has it,
// too. One program has set both, and which of them it set first says nothing.
func bothEnds(owners []*Owner) bool {
	return slices.ContainsFunc(owners, func(host *Owner) bool {
		return host.Kind() == Host && slices.ContainsFunc(host.Claims, func(c *Claim) bool {
			return (c.Counts() || c.Kind == DADFailed) && c.Interface.isPodPort() && slices.ContainsFunc(owners, func(o *Owner) bool {
				return o != host && o.Namespace != nil && o.Namespace.Record == c.Interface.Peer && o.Node.Is(host.Node)
			})
		})
	})
}

// FirstSeen returns when a frame of the owner was first seen, by the clock of the node that saw
// it; 0 if that is not known.
func (o *Owner) FirstSeen() (first Stamp) {
	for _, c := range o.Claims {
		if c.First != 0 && (first == 0 || c.First < first) {
			first = c.First
		}
	}
	return first
}

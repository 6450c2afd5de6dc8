package verdict

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// bookedElsewhere: IPAM had recorded the address for a node or pod other than the owner, and freed
// it together with that node or pod.
func (q *inquiry) bookedElsewhere() (r reason) {
	if !q.unrelated() {
		return reason{}
	}
	for _, o := range q.owners {
		if o.Namespace == nil || o.Kind() == Host || !slices.ContainsFunc(q.owners, func(other *Owner) bool { return other != o && q.given(other) }) {
			continue
		}
		past := q.pastElsewhere(o)
		// An IPAM with its own names for nodes may use the name of another node.
		nodename := o.Node.IPAMName
		if nodename.Name != "" && (o.OnNode(nodename.Name) || !q.namesNodes() || q.bestMatch(nil, o) == certainMatch || q.vanishedRecord(o) != nil) {
			nodename = ipam.NodeName{}
		}
		if past == nil && nodename.Name == "" {
			continue
		}
		r.Wrong = append(r.Wrong, o.ID)
		if past != nil {
			al := past.Allocation
			r.From = append(r.From, al.Pool)
			r.Headline = &Fact{Kind: HeadAllocatedElsewhere, Owners: ids(o), Records: al.records()}
			r.fact(Fact{Kind: FactAllocatedElsewhere, Owners: ids(o), Pool: al.Pool.Label(), Records: al.records(), At: past.Since})
		}
		if nodename.Name != "" {
			if past == nil {
				r.Headline = &Fact{Kind: HeadWrongNodeName, Owners: ids(o), NodeName: nodename}
			}
			r.fact(Fact{Kind: FactWrongNodeName, Owners: ids(o), NodeName: nodename})
		}
	}
	if r.fits() {
		var pools []*Pool // those of the cause that have records of the address; all with records if it names none
		for _, al := range q.allocations {
			if !slices.ContainsFunc(pools, al.Pool.Is) && (len(r.From) == 0 || slices.ContainsFunc(r.From, al.Pool.Is)) {
				pools = append(pools, al.Pool)
				r.fact(q.record(al.Pool))
			}
		}
		return r
	}
	// IPAM did not have the address for another node or pod, as far as that is known.
	var nodes []string
	for _, o := range q.owners {
		if name := o.Node.IPAMName; name.Name != "" && o.Namespace != nil {
			switch {
			case o.OnNode(name.Name):
				nodes = append(nodes, o.Node.Name)
			case !q.namesNodes():
				return ruledOut(Fact{Kind: NotNodeNamed, Nodes: []string{o.Node.Name}, NodeName: name})
			}
		}
	}
	for _, p := range q.pools {
		if p.Node == nil && p.State == ipam.Known && q.pods() {
			return ruledOut(Fact{Kind: NotElsewhere, Pool: p.Label(), Nodes: nodes})
		}
	}
	return reason{}
}

// pastElsewhere returns the past state in which IPAM had the address of an owner for another
// holder; nil if there is none. An allocation that is for one of the current owners does not count,
// because it is right.
func (q *inquiry) pastElsewhere(o *Owner) *Past {
	past := q.pastOf(o, FindingBookedElsewhere)
	if past == nil || past.Allocation == nil || q.vanishedRecord(o) != nil {
		return nil
	}
	al := past.Allocation
	for _, rival := range q.owners {
		if rival != o && al.matches(rival) != noMatch {
			return nil
		}
	}
	if al.Node != "" && !o.OnNode(al.Node) {
		return past
	}
	for _, rival := range q.owners {
		if rival != o && rival.Begun() <= past.Since {
			return nil // both owners are older: either may have had the record
		}
	}
	return past
}

// namesNodes reports whether an IPAM with its own names for nodes has the address in a pool.
func (q *inquiry) namesNodes() bool {
	return slices.ContainsFunc(q.pools, func(p *Pool) bool { return p.NamesNodes })
}

// stateLost: an IPAM lost the record of an allocation and allocated the address again.
func (q *inquiry) stateLost() reason {
	if !q.unrelated() {
		return reason{}
	}
	var excluded reason
	for _, p := range q.pools {
		mine := filterOwners(q.owners, func(o *Owner) bool { return q.gave(p, o) })
		if len(mine) < 2 {
			if len(mine) == 1 && !p.Leases && excluded.contrary.Kind == "" { // a lease that ended before is not known
				excluded = ruledOut(Fact{Kind: NotGivenTwice, Pool: p.Label(), Owners: ids(mine...)})
			}
			continue
		}
		r := q.recordsLost(p, mine)
		if r.fits() {
			return r
		}
		excluded = r
	}
	if excluded.contrary.Kind != "" {
		return excluded
	}
	// The owners were given the address, but the records of their IPAM may not be known.
	given := filterOwners(q.owners, q.given)
	known := len(q.pools) > 0 && !slices.ContainsFunc(q.pools, func(p *Pool) bool { return p.State != ipam.Known })
	if len(given) < 2 || known {
		return reason{}
	}
	network := given[0].network()
	for _, o := range given {
		if o.network() != network || !o.Node.Is(given[0].Node) {
			network = ""
		}
	}
	return undecided(Fact{Kind: NotRecorded, Network: network, Nodes: nodesOf(given)})
}

// recordsLost returns the reason why a pool allocated the address twice: the owners for which it
// has no record.
func (q *inquiry) recordsLost(p *Pool, mine []*Owner) (r reason) {
	if p.State == ipam.Reading {
		return undecided(Fact{Kind: NotRead, Pool: p.Label()})
	}
	free := q.allocationsOf(p)
	var lost, unsure []*Owner
	for _, o := range mine {
		switch q.bestMatch(p, o) {
		case certainMatch:
			free = slices.DeleteFunc(free, func(al *Allocation) bool { return al.matches(o) == certainMatch })
		case possibleMatch:
			unsure = append(unsure, o)
		default:
			lost = append(lost, o)
		}
	}
	if len(free) == 0 {
		lost, unsure = append(lost, unsure...), nil // all records are for other owners
	}
	readable := p.State == ipam.Known || p.State == ipam.Missing
	switch {
	case !readable && !q.sameNetwork(p, mine):
		return undecided(Fact{Kind: NotReadable, Pool: p.Label(), Text: p.Problem})
	case readable && len(lost) == 0 && len(unsure) <= len(free):
		return ruledOut(Fact{Kind: NotLost, Pool: p.Label(), Owners: ids(mine...)})
	}
	for _, o := range lost {
		if q.endedLease(o) != nil {
			return reason{} // the server did as it should
		}
		if o.Pod != nil && o.Pod.DeletionTimestamp != 0 {
			return ruledOut(Fact{Kind: NotYetFree, Owners: ids(o)})
		}
	}
	r.From = []*Pool{p}
	for _, o := range mine {
		r.fact(q.sourceFacts(o)...)
	}
	r.fact(q.record(p))
	r.Headline = &Fact{Kind: HeadRecordLost, Pool: p.Label()}
	switch {
	case !readable:
		r.fact(Fact{Kind: FactNeverTwice, Pool: p.Label()})
		r.Headline.Kind = HeadRecordsLost
	case len(lost) > 0 && len(lost) < len(mine):
		r.Headline.Owners = ids(lost...)
	}
	if p.LostAt != 0 {
		r.fact(Fact{Kind: FactRecordsLost, Pool: p.Label(), At: p.LostAt, Count: p.Lost})
	}
	for _, o := range mine {
		if past := q.vanishedRecord(o); past != nil {
			r.fact(Fact{Kind: FactRecordVanished, Pool: p.Label(), Owners: ids(o), At: past.Since})
		}
	}
	return r
}

// endedLease returns the past of an owner whose DHCP lease was not renewed, or is gone before its end: the client may have
// given it back. It returns nil if there is none, or if the server lost all leases at once.
func (q *inquiry) endedLease(o *Owner) *Past {
	past := q.vanishedRecord(o)
	if past == nil || q.bestMatch(past.Allocation.Pool, o) == certainMatch {
		return nil
	}
	p := past.Allocation.Pool
	if i := slices.IndexFunc(q.pools, p.Is); i >= 0 {
		p = q.pools[i]
	}
	if past.Ended == 0 && (!p.leasedByServer() || p.LostAt != 0) {
		return nil
	}
	return past
}

// leasedAnother returns the fact that the node of an owner has another address of the subnet on the same interface, which a
// DHCP server has leased to it; nil if it is not known to have one.
func (q *inquiry) leasedAnother(o *Owner) []Fact {
	if o.Kind() != Host {
		return nil
	}
	for _, s := range q.in.node(o.Node).Subnets {
		if s.Leased && s.Prefix.Addr() != q.c.Address && slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Counts() && c.Interface.Is(s.Interface) }) {
			return []Fact{{Kind: FactLeasedAnother, Owners: ids(o), Device: s.Interface.Name, Addresses: []netip.Addr{s.Prefix.Addr()}}}
		}
	}
	return nil
}

// successor returns the lease of another client that was read when a lease was gone, or that is by the same reservation; nil
// if there is none.
func (q *inquiry) successor(past *Past) *Allocation {
	for _, al := range q.allocationsOf(past.Allocation.Pool) {
		if al.MAC != "" && al.MAC != past.Allocation.MAC && (al.Heard != 0 && al.Heard <= past.Since || al.reservedFor(past.Allocation.MAC)) {
			return al
		}
	}
	return nil
}

// reservedFor reports whether the reservation of a lease is for a client.
func (al *Allocation) reservedFor(mac string) bool {
	return slices.Contains(strings.Fields(al.ReservedFor), mac)
}

// leaseEnded: owners go on using the address after the ends of their DHCP leases.
func (q *inquiry) leaseEnded() (r reason) {
	for _, o := range q.owners {
		past := q.endedLease(o)
		if past == nil {
			continue
		}
		p := past.Allocation.Pool
		if r.Headline == nil {
			r.Headline = &Fact{Kind: HeadLeaseEnded, Pool: p.Label()}
		}
		r.Headline.Owners = append(r.Headline.Owners, o.ID)
		if !slices.ContainsFunc(r.From, p.Is) {
			r.From = append(r.From, p)
		}
		if past.Ended != 0 {
			r.fact(Fact{Kind: FactLeaseEnded, Pool: p.Label(), Owners: ids(o), At: past.Ended})
		} else if next := q.successor(past); next == nil {
			r.Headline.Kind = HeadLeaseGone
			r.fact(Fact{Kind: FactLeaseGone, Pool: p.Label(), Owners: ids(o), At: past.Since})
		} else {
			r.Headline.Kind = HeadLeaseReplaced
			r.fact(Fact{Kind: FactLeaseReplaced, Pool: p.Label(), Owners: ids(o), At: past.Since})
			if next.reservedFor(past.Allocation.MAC) {
				r.Headline.Kind, r.Headline.Text = HeadOneReservation, next.FixedIn
				r.fact(Fact{Kind: FactOneReservation, Owners: ids(o), Text: next.FixedIn})
			}
		}
		r.fact(q.leasedAnother(o)...)
	}
	for _, p := range r.From {
		r.fact(q.record(p))
	}
	return r
}

// allocatedTwice: an IPAM has allocated the address to several of the owners. What only mirrors an
// IPAM, or the state of pods, does not prove that.
func (q *inquiry) allocatedTwice() (r reason) {
	if !q.unrelated() {
		return reason{}
	}
	for i, al := range q.allocations {
		if al.Pool.Mirrored || al.Pool.Status || al.Pool.State != ipam.Known {
			continue
		}
		for _, other := range q.allocations[i+1:] {
			if al.Pool.IPAM != other.Pool.IPAM || al.Pool.Realm != other.Pool.Realm || !al.Pool.Node.Is(other.Pool.Node) || other.Pool.State != ipam.Known {
				continue
			}
			for a, b := range q.pairs {
				if al.matches(a) != certainMatch || other.matches(b) != certainMatch || al.matches(b) == certainMatch || other.matches(a) == certainMatch {
					continue
				}
				r.fact(Fact{Kind: FactAllocated, Owners: ids(a), Pool: al.Pool.Label()})
				r.fact(Fact{Kind: FactAllocated, Owners: ids(b), Pool: other.Pool.Label()})
				r.From = []*Pool{al.Pool}
				if !other.Pool.Is(al.Pool) {
					r.From = append(r.From, other.Pool)
				}
				for _, p := range r.From {
					r.fact(q.record(p))
				}
				r.Headline = &Fact{Kind: HeadAllocatedTwice, Owners: ids(a, b), Pool: al.Pool.Label()}
				return r
			}
		}
	}
	return reason{}
}

// sameNetwork reports whether a pool of one node gave the address to all of the owners for one
// network. It cannot do so with complete records.
func (q *inquiry) sameNetwork(p *Pool, mine []*Owner) bool {
	network := mine[0].network()
	return p.Node != nil && network != "" &&
		!slices.ContainsFunc(mine, func(o *Owner) bool { return o.network() != network })
}

// nodesOf returns the names of the nodes of owners.
func nodesOf(owners []*Owner) (names []string) {
	for _, o := range owners {
		if !slices.Contains(names, o.Node.Name) {
			names = append(names, o.Node.Name)
		}
	}
	return names
}

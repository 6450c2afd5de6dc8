package verdict

import (
	"net/netip"
	"slices"
)

// ownRange returns the range of its node from which an owner has the address: a pool of the node,
// an object that assigns ranges to the node, or the prefix of a bridge to whose ports a CNI network
// assigns addresses. A DHCP server, or a client, on the node has no range of the node.
func (q *inquiry) ownRange(o *Owner) (s Origin, ok bool) {
	s = Origin{Owner: o.ID, Node: o.Node.Key()}
	for _, p := range q.pools {
		if !p.Leases && p.Node.Is(o.Node) && (p.Contains(q.c.Address) && q.gave(p, o) || q.bestMatch(p, o) == certainMatch) || q.assignsTo(p, o) {
			s.Pool, s.Ranges = p, rangesOf(p)
			return s, true
		}
	}
	if o.Kind() == Host { // it may be the gateway of its pods
		for _, p := range q.in.node(o.Node).Pools {
			if i := o.Interface; !p.Leases && p.Device == i.Name && i.isBridge() && (p.Contains(q.c.Address) || slices.Contains(p.Gateways, q.c.Address)) {
				s.Pool, s.Ranges = p, rangesOf(p)
				return s, true
			}
		}
	}
	if prefix := q.prefixOf(o); o.network() != "" && prefix.IsValid() && q.c.Kind == NetworkScope {
		s.Ranges, s.Device = rangeOf(prefix), o.Interface.Link.Name
		return s, true
	}
	return s, false
}

// assignsTo reports whether a pool is an object that assigns the range of the address to the node of an
// owner, and whether the IPAM gave the owner the address. The record of the owner may be in the object
// of another node, if that one has the range, too.
func (q *inquiry) assignsTo(p *Pool, o *Owner) bool {
	if !p.OfNode() || !o.OnNode(p.Name) || !p.Contains(q.c.Address) {
		return false
	}
	return q.gave(p, o) || slices.ContainsFunc(q.allocations, func(al *Allocation) bool { return al.Pool.IPAM == p.IPAM && q.matches(al, o) == certainMatch })
}

// prefixOf returns the prefix of the bridge that an owner's interface is on: the one that the node
// has on the bridge, or the one that a CNI network assigned with the address. It is invalid if it is
// not known or if the bridge is connected to a LAN.
func (q *inquiry) prefixOf(o *Owner) netip.Prefix {
	l := o.Interface.Link
	if o.Namespace == nil || l == nil || l.Kind != Bridge || l.Domain != nil {
		return netip.Prefix{}
	}
	var on Subnet // the narrowest, as a bridge may have several that contain the address
	for _, s := range q.in.node(o.Node).Subnets {
		fits := s.Interface.Name == l.Name && s.Interface.isBridge() && s.Prefix.Contains(q.c.Address) && !s.Prefix.IsSingleIP()
		if fits && (on.Interface == nil || s.Prefix.Bits() > on.Prefix.Bits()) {
			on = s
		}
	}
	if on.Interface != nil {
		if on.LAN {
			return netip.Prefix{}
		}
		return on.Prefix.Masked()
	}
	for _, c := range o.Claims {
		if bits := int(c.PrefixLength); c.Counts() && l.Routed && o.network() != "" && c.Network == o.network() && bits > 0 && bits < q.c.Address.BitLen() {
			return netip.PrefixFrom(q.c.Address, bits).Masked()
		}
	}
	return netip.Prefix{}
}

// madeBridge returns the bridge with the address's range that a CNI plugin made for a pool; empty if there is none.
func (q *inquiry) madeBridge(p *Pool) string {
	if p != nil && slices.ContainsFunc(q.in.node(p.Node).Subnets, func(s Subnet) bool { return s.MadeFor(p) && s.Prefix.Contains(q.c.Address) }) {
		return p.Device
	}
	return ""
}

// podCIDROverlap: two nodes give pods addresses from one range.
func (q *inquiry) podCIDROverlap() reason {
	return q.ofPairs(q.rangesOfNodes, func(a, b *Owner) bool {
		return !a.Node.Is(b.Node) && a.Namespace != nil && b.Namespace != nil
	})
}

// ofPairs compares each pair of owners that meet, and returns the first reason that fits. If none
// fits, it returns a reason why not.
func (q *inquiry) ofPairs(compare func(a, b *Owner) reason, meet func(a, b *Owner) bool) (r reason) {
	if !q.unrelated() || q.fixed() != nil {
		return reason{}
	}
	q.pairs(func(a, b *Owner) bool {
		if compareOwners(*a, *b) > 0 || !meet(a, b) {
			return true
		}
		if one := compare(a, b); one.fits() || one.contrary.Kind != "" {
			r = one
		}
		return !r.fits()
	})
	return r
}

// rangesOfNodes compares the ranges of the nodes of two owners.
func (q *inquiry) rangesOfNodes(a, b *Owner) (r reason) {
	for _, p := range q.pools {
		if p.Node == nil && !p.OfNode() && (q.gave(p, a) || q.gave(p, b)) {
			return ruledOut(Fact{Kind: NotByNode, Pool: p.Label()})
		}
	}
	nodes := []string{a.Node.Name, b.Node.Name}
	x, known := q.ownRange(a)
	y, both := q.ownRange(b)
	r.Kubernetes = q.in.node(a.Node).InPodCIDR && q.in.node(b.Node).InPodCIDR && q.podLike(a) && q.podLike(b)
	switch {
	case r.Kubernetes, known && both:
	case q.in.node(a.Node).InPodCIDR:
		return ruledOut(Fact{Kind: NotInPodCIDRs, Nodes: nodes})
	case q.in.node(b.Node).InPodCIDR:
		return ruledOut(Fact{Kind: NotInPodCIDRs, Nodes: []string{b.Node.Name, a.Node.Name}})
	case q.in.InPodCIDR:
		return ruledOut(Fact{Kind: NotInPodCIDRs})
	case known:
		return undecided(Fact{Kind: NotRangeOf, Owners: ids(b)})
	case both:
		return undecided(Fact{Kind: NotRangeOf, Owners: ids(a)})
	case q.given(a) && q.given(b):
		return undecided(Fact{Kind: NotRangesOf, Nodes: nodes})
	case q.pods():
		return undecided(Fact{Kind: NotGivenToBoth})
	default:
		return reason{}
	}
	if !r.Kubernetes && x.Ranges.apart(y.Ranges, q.c.Address) {
		return ruledOut(Fact{Kind: NotOneRange, Nodes: nodes})
	}
	r.Headline = &Fact{Kind: HeadOneRange, Nodes: nodes}
	if x.Ranges.equal(y.Ranges) {
		r.Headline.Ranges = x.Ranges
	}
	if r.Kubernetes {
		r.fact(Fact{Kind: FactInPodCIDRs, Nodes: nodes})
	}
	for i, s := range []Origin{x, y} {
		o := []*Owner{a, b}[i]
		if i == 0 && !known || i == 1 && !both {
			s.Device, s.Pool = "", nil
			r.Networks = append(r.Networks, s)
			continue
		}
		if s.Pool != nil {
			r.From = append(r.From, s.Pool)
			r.fact(Fact{Kind: FactPoolRange, Pool: s.Pool.Label(), Ranges: s.Ranges})
		} else {
			r.fact(Fact{Kind: FactBridgeRange, Device: s.Device, Nodes: []string{s.Node.Name}, Ranges: s.Ranges})
		}
		s.Bridge = q.madeBridge(s.Pool)
		r.Networks = append(r.Networks, s)
		r.fact(q.sourceFacts(o)...)
	}
	return r
}

// oneGateway: the pools of several nodes have one gateway, which each node has on its bridge.
func (q *inquiry) oneGateway() (r reason) {
	for _, o := range q.owners {
		s, ok := q.ownRange(o)
		if !ok || o.Kind() != Host || s.Pool == nil || !slices.Contains(s.Pool.Gateways, q.c.Address) {
			return reason{}
		}
		r.Networks = append(r.Networks, s)
		r.fact(Fact{Kind: FactPoolRange, Pool: s.Pool.Label(), Ranges: s.Ranges})
	}
	nodes := nodesOf(q.owners)
	if len(nodes) < 2 {
		return reason{}
	}
	r.Headline = &Fact{Kind: HeadOneGateway, Nodes: nodes}
	return r
}

// podLike reports whether an owner is a pod that was given the address, or a node that has the
// address on a device that serves pods.
func (q *inquiry) podLike(o *Owner) bool {
	if o.Kind() == Host {
		return o.Assigned && o.Interface.isBridge() && !MadeByEngine(o.Interface.Name) || o.Interface.isPodPort()
	}
	return o.Kind() == Pod && q.given(o)
}

// origin returns the CNI network or the bridge from which an owner has the address.
func (q *inquiry) origin(o *Owner) (s Origin, ok bool) {
	if o.Namespace == nil {
		return s, false
	}
	i := o.Interface
	s.Owner, s.Node, s.Network = o.ID, o.Node.Key(), o.network()
	if i.Link != nil && i.Link.Kind == Bridge {
		s.Device = i.Link.Name
	}
	s.Ranges = rangeOf(q.prefixOf(o))
	if s.Network != "" {
		for _, p := range q.pools {
			if serves, _ := p.Serves(s.Network); serves && q.gave(p, o) {
				s.Pool = p
				if len(p.Ranges) > 0 {
					s.Ranges = rangesOf(p)
				}
			}
		}
		return s, true
	}
	if o.Kind() == Host && (!i.isBridge() || !MadeByEngine(i.Name)) {
		return s, false // it is an address of the node itself and not of a network
	}
	return s, s.Device != "" && s.Ranges.Bridge
}

// overlappingNetworks: two networks that meet allocate addresses from one range.
func (q *inquiry) overlappingNetworks() reason {
	return q.ofPairs(q.rangesOfNetworks, func(a, b *Owner) bool { return a.Node.Is(b.Node) || q.c.Kind == LinkScope })
}

// rangesOfNetworks compares the ranges of the networks of two owners.
func (q *inquiry) rangesOfNetworks(a, b *Owner) (r reason) {
	x, known := q.origin(a)
	y, both := q.origin(b)
	bridges, one := x.Network == "" && y.Network == "", x.Network == y.Network && (x.Network != "" || x.Device == y.Device)
	switch {
	case !known || !both:
		return reason{}
	case one && x.Network != "":
		return ruledOut(Fact{Kind: NotTwoNetworks, Network: x.Network})
	case one && bridges:
		return reason{} // it is not known how either owner got the address
	case x.Device != "" && x.Device == y.Device && (x.Network == "" || y.Network == ""):
		return ruledOut(Fact{Kind: NotTwoBridges, Device: x.Device})
	}
	for _, p := range q.pools {
		served := func(network string) bool { serves, _ := p.Serves(network); return serves }
		if q.gave(p, a) && q.gave(p, b) && slices.ContainsFunc(a.Networks(), served) {
			return ruledOut(Fact{Kind: NotTwoPools, Pool: p.Label()})
		}
	}
	r.Networks = []Origin{x, y}
	r.Headline = &Fact{Kind: HeadNetworksOverlap}
	for k, s := range r.Networks {
		o := []*Owner{a, b}[k]
		if gift := q.sourceFacts(o); gift != nil {
			r.fact(gift...)
		} else {
			r.fact(Fact{Kind: FactOnNetwork, Owners: ids(o), Network: s.Network, Device: s.Device})
		}
		if s.Pool != nil {
			r.From, r.Networks[k].Bridge = append(r.From, s.Pool), q.madeBridge(s.Pool)
		}
		if len(s.Ranges.List) > 0 {
			r.fact(Fact{Kind: FactNetworkRange, Network: s.Network, Device: s.Device, Ranges: s.Ranges})
		}
	}
	if a.Node.Is(b.Node) {
		r.Headline.Nodes = []string{a.Node.Name}
		r.fact(Fact{Kind: FactMeetOnNode, Nodes: []string{a.Node.Name}})
	} else {
		r.fact(Fact{Kind: FactMeetOnLink, Device: q.c.Scope})
	}
	return r
}

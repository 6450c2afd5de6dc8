package verdict

import (
	"net/netip"
	"slices"
)

// externalDevice: a device outside of the cluster uses an address of the cluster.
func (q *inquiry) externalDevice() (r reason) {
	var excluded reason
	for _, o := range q.owners {
		if o.Guest() != NoGuest {
			excluded = ruledOut(Fact{Kind: NotGuest, Owners: ids(o)})
			continue // other nodes receive its frames from outside
		}
		if o.Namespace != nil || q.bestMatch(nil, o) == certainMatch || !slices.ContainsFunc(q.owners, func(o *Owner) bool { return o.Namespace != nil }) {
			continue
		}
		var ports []string // the first uplinks through which frames of the owner enter nodes
		for _, c := range o.Claims {
			if name := c.Node().Name + "/" + c.Interface.Name; c.Interface.Uplink && len(ports) < maxUplinks && !slices.Contains(ports, name) {
				ports = append(ports, name)
			}
		}
		// An allocation for a node without an agent, which matches no owner inside of the cluster.
		outside := slices.IndexFunc(q.outside, func(al *Allocation) bool {
			return !slices.ContainsFunc(q.owners, func(o *Owner) bool { return o.Namespace != nil && al.matches(o) != noMatch })
		})
		switch {
		case len(ports) == 0:
		case o.MAC.Virtual():
			excluded = ruledOut(Fact{Kind: NotVirtualRouter, Owners: ids(o)})
		case o.MAC.Responder() != "":
			excluded = ruledOut(Fact{Kind: NotResponder, Owners: ids(o), Text: o.MAC.Responder()})
		case outside >= 0:
			al := q.outside[outside]
			excluded = ruledOut(Fact{Kind: NotUncoveredHolder, Owners: ids(o), Pool: al.Pool.Label(), Records: al.records()})
		default:
			r.Wrong = append(r.Wrong, o.ID)
			mac := Fact{Kind: FactForeignMAC}
			if c := o.Outside(); c != nil {
				mac = Fact{Kind: FactCopiedMAC, Nodes: []string{c.Node().Name}}
			}
			r.fact(Fact{Kind: FactFromOutside, Owners: ids(o), Devices: ports}, mac)
		}
	}
	if !r.fits() {
		return excluded
	}
	for _, o := range q.owners {
		if o.Namespace != nil {
			r.fact(Fact{Kind: FactHolds, Owners: ids(o)})
		}
	}
	if r.Uncovered = !q.in.Covered; r.Uncovered {
		r.fact(Fact{Kind: FactUncovered})
	}
	r.Headline = &Fact{Kind: HeadOutside, Owners: r.Wrong}
	return r
}

// maxUplinks is the largest number of uplinks that a fact lists.
const maxUplinks = 6

// routersAnycast: the kernels of all owners found the address in use, which is the first one of their prefix. Each router on
// the link answers for it (RFC 4291, section 2.6.1): Linux does so if it forwards packets there, unless the prefix is a /127
// (RFC 6164) or a /128 (addrconf_join_anycast in net/ipv6/addrconf.c).
func (q *inquiry) routersAnycast() (r reason) {
	for _, o := range q.owners {
		p, found := q.anycast(o)
		if !found || o.Assigned || o.Yielded() {
			return reason{}
		}
		r.Headline = &Fact{Kind: HeadAnycast, Owners: ids(q.owners...), Text: p.String()}
	}
	r.fact(*r.Headline)
	return r
}

// anycast returns the prefix of which the address that the kernel of an owner refused is the subnet-router anycast address.
func (q *inquiry) anycast(o *Owner) (prefix netip.Prefix, found bool) {
	first := func(p netip.Prefix) bool {
		prefix = p.Masked()
		return q.c.Address.Is6() && p.Bits() > 0 && p.Bits() < 127 && prefix.Addr() == q.c.Address
	}
	for _, c := range o.Claims {
		if c.Kind != DADFailed {
			continue
		}
		if first(netip.PrefixFrom(q.c.Address, int(c.PrefixLength))) || slices.ContainsFunc(q.in.node(o.Node).Subnets, func(s Subnet) bool { return s.Interface.Is(c.Interface) && first(s.Prefix) }) {
			return prefix, true
		}
	}
	return netip.Prefix{}, false
}

// Guest is the kind of sender that claims the address from behind a port of a node.
type Guest uint8

// The kinds of guests.
const (
	// NoGuest: the sender is not behind a port.
	NoGuest Guest = iota
	// TapGuest: the sender is a virtual machine behind a tap or macvtap device of a node.
	TapGuest
	// PortGuest: the sender is behind the port of a namespace that does not have the address
	// itself.
	PortGuest
)

// Guest returns the kind of sender that claims the address from behind a port of a node.
func (o *Owner) Guest() Guest {
	switch i := o.Interface; {
	case o.Namespace == nil && i != nil && (i.Tap || i.Macvtap):
		return TapGuest
	case o.Namespace != nil && !o.Assigned && !o.DADFailed() && i.Namespace.ID != o.ID && o.Kind() != Host:
		return PortGuest
	}
	return NoGuest
}

// onBridge reports whether an owner's interface is attached to a bridge.
func (o *Owner) onBridge(bridge *Interface) bool {
	l := o.Interface.Link
	return o.Node.Is(bridge.Namespace.Node) && l != nil && l.Kind == Bridge && l.Name == bridge.Name && !o.Interface.Is(bridge)
}

// podsBridge reports whether an interface of a node is the bridge of a CNI network.
func (q *inquiry) podsBridge(i *Interface) bool {
	return i.isBridge() && slices.ContainsFunc(q.in.node(i.Namespace.Node).Pools, func(p *Pool) bool { return p.Device == i.Name })
}

// tunnelAddress: a tunnel device of a node has the same address as a pod.
func (q *inquiry) tunnelAddress() (r reason) {
	var excluded reason
	q.pairs(func(host, pod *Owner) bool {
		if host.Kind() != Host || !host.Assigned || pod.Kind() == Host || pod.Namespace == nil {
			return true
		}
		for _, c := range host.Claims {
			i := c.Interface
			if !c.Counts() {
				continue
			}
			if i.Tunnel() == "" {
				excluded = ruledOut(Fact{Kind: NotTunnel, Device: i.Name, Nodes: []string{host.Node.Name}})
				continue
			}
			r.Headline = &Fact{Kind: FactTunnel, Owners: ids(host, pod), Device: i.Name, Text: i.Tunnel()}
			r.fact(*r.Headline)
			if r.Wrong = ids(pod); q.namesNodes() && q.bestMatch(nil, pod) == certainMatch && q.bestMatch(nil, host) != certainMatch {
				r.Wrong = ids(host)
			}
			for _, p := range q.pools {
				if q.gave(p, pod) {
					r.From = append(r.From, p)
				}
			}
			if gift := q.sourceFacts(pod); gift != nil {
				r.fact(gift...)
			} else {
				r.fact(q.byHand(pod)...)
			}
			for _, al := range q.allocations {
				if al.Purpose != "" && al.matches(host) == certainMatch {
					r.fact(Fact{Kind: FactPurpose, Pool: al.Pool.Label(), Records: al.records()})
				}
			}
			return false
		}
		return true
	})
	if !r.fits() {
		return excluded
	}
	return r
}

// staticAddress: the address is in a range of pods and was configured by hand, on a node maybe before the range was.
func (q *inquiry) staticAddress() (r reason) {
	if !q.unrelated() {
		return reason{}
	}
	if r.Facts = q.fixed(); r.fits() {
		r.Headline = &Fact{Kind: HeadFixed, Owners: ids(q.owners...)}
		return r
	}
	q.pairs(func(o, other *Owner) bool {
		why, gateway := q.byHand(o), q.gateway(other, o)
		if why == nil || !q.given(other) && !q.inPodRange() && gateway == nil {
			return true
		}
		r.Wrong = ids(o)
		r.Headline = &Fact{Kind: HeadNotGiven, Owners: ids(o)}
		if p := q.dhcp(); p != nil {
			r.Headline.Pool = p.Label()
		}
		if r.Gateway = gateway != nil; r.Gateway {
			r.Headline = &Fact{Kind: HeadNotGivenGateway, Owners: ids(o), Device: gateway.Name}
			r.fact(Fact{Kind: FactBridgeOfPods, Owners: ids(other), Device: gateway.Name})
		}
		first := gateway == nil && q.first(o)
		if first {
			r.Wrong = ids(slices.DeleteFunc(slices.Clone(q.owners), func(other *Owner) bool { return other == o })...)
			r.Headline = &Fact{Kind: HeadNodeFirst, Owners: ids(o, other)}
		}
		r.fact(q.sourceFacts(other)...)
		r.fact(why...)
		for _, p := range q.pools {
			if p.Contains(q.c.Address) {
				r.From = append(r.From, p)
				r.fact(Fact{Kind: FactPoolRange, Pool: p.Label(), Ranges: rangesOf(p)})
			}
		}
		if first && len(r.From) > 0 {
			r.Headline.Pool = r.From[0].Label()
		}
		if len(r.From) == 0 && q.in.InPodCIDR {
			r.fact(Fact{Kind: FactInPodCIDR})
		}
		return false
	})
	if r.fits() {
		return r
	}
	for _, o := range q.owners {
		switch i := o.Interface; {
		case q.given(o):
		case o.Temporary():
			return ruledOut(Fact{Kind: NotPermanent, Owners: ids(o)})
		case o.Kind() == Host && o.Assigned && MadeByEngine(i.Name):
			return ruledOut(Fact{Kind: NotByHandDevice, Device: i.Name})
		case o.Namespace == nil || o.Kind() == Host || !q.pods():
			return reason{}
		default:
			return undecided(Fact{Kind: NotGiverKnown, Owners: ids(o)})
		}
	}
	return ruledOut(Fact{Kind: NotByHand, Owners: ids(q.owners...)})
}

// dhcp returns the pool of the DHCP server that leases the address; nil if there is none, or if the
// address is in a range of another IPAM, too.
func (q *inquiry) dhcp() (found *Pool) {
	for _, p := range q.pools {
		inRange := p.Contains(q.c.Address)
		switch {
		case !p.Leases && inRange:
			return nil
		case found == nil && (inRange || len(q.allocationsOf(p)) > 0):
			found = p
		}
	}
	return found
}

// gateway returns the bridge on which a node has the address itself, if the bridge connects
// pods or an owner. The address is then their gateway and belongs to nothing else. It returns
// nil if there is no such bridge.
func (q *inquiry) gateway(host, o *Owner) *Interface {
	if host.Kind() != Host {
		return nil
	}
	for _, c := range host.Claims {
		if i := c.Interface; c.Counts() && i.isBridge() && (o.onBridge(i) || q.podsBridge(i)) {
			return i
		}
	}
	return nil
}

// byHand returns the fact that shows that neither an IPAM nor a runtime assigned the address to an
// owner; nil if that is not known.
func (q *inquiry) byHand(o *Owner) []Fact {
	if q.given(o) || o.Temporary() {
		return nil
	}
	w, i, guest := o.Workload(), o.Interface, o.Guest() != NoGuest
	listed := o.Pod != nil && len(o.Pod.IPs) > 0 // the Kubernetes API lists addresses of the pod
	if l := i.Link; o.Assigned && o.Kind() != Host && (l != nil && MadeByEngine(l.Name) || w.Kind == Container && !w.OnlyNetns() && w.ContainerID != "") {
		return q.youngerThanRecord(o) // its container engine has its own IPAM; podman writes CNI results as well
	}
	switch {
	case o.Namespace == nil && guest:
		return []Fact{{Kind: FactGuest, Owners: ids(o)}}
	case o.Namespace == nil:
		return nil
	case w.Kind == Host:
		gateway := q.podsBridge(i) || slices.ContainsFunc(q.owners, func(other *Owner) bool { return i.isBridge() && other.onBridge(i) })
		gateway = gateway && !slices.ContainsFunc(q.pools, func(p *Pool) bool { // an address that pods get is none
			return p.Device == i.Name && p.Contains(q.c.Address) && !slices.Contains(p.Gateways, q.c.Address)
		})
		if o.Assigned && !i.isPodPort() && i.Tunnel() == "" && !gateway && !MadeByEngine(i.Name) {
			return []Fact{{Kind: FactNodeDevice, Owners: ids(o), Device: i.Name}}
		}
		return nil
	case guest && (o.Namespace.Intended != "" || w.Source == sourceOfResult || listed): // it is known which addresses it was given
		return []Fact{{Kind: FactGuestOfOther, Owners: ids(o)}}
	case guest:
		return nil
	case w.Kind == Pod && o.Assigned && i.Name == FirstInterface && listed && !slices.Contains(o.Pod.IPs, q.c.Address):
		return []Fact{{Kind: FactNotListed, Owners: ids(o), Addresses: slices.Clone(o.Pod.IPs)}}
	case w.Kind == Pod && o.Assigned && i.Name == FirstInterface && w.Source == sourceOfResult:
		return []Fact{{Kind: FactNotInResult, Owners: ids(o)}}
	}
	// IPAM may have the address for another owner and not for this one.
	if w.Kind == Pod || slices.ContainsFunc(q.allocations, func(al *Allocation) bool { return q.matches(al, o) != noMatch }) {
		return nil
	}
	for _, other := range q.owners {
		if other != o && q.bestMatch(nil, other) == certainMatch {
			return []Fact{{Kind: FactAllocatedToOther, Owners: ids(o, other)}}
		}
	}
	return nil
}

// youngerThanRecord returns the fact that a container engine has the address for another container of
// the node, which got it earlier; nil if that is not known. The engine allocates no address for which
// it has a record, so it did not give this one to the younger container.
func (q *inquiry) youngerThanRecord(o *Owner) []Fact {
	for _, al := range q.allocations {
		if !al.Pool.Engine || !al.Pool.Node.Is(o.Node) {
			continue
		}
		for _, other := range q.owners {
			if at := other.AssignedAt(); other != o && al.matches(other) == certainMatch && at != 0 && at < o.AssignedAt() {
				return []Fact{{Kind: FactAllocatedToOther, Owners: ids(o, other)}}
			}
		}
	}
	return nil
}

// sourceOfResult is the source that an agent reports for a workload that a CNI result identifies.
const sourceOfResult = "cni-result"

package verdict

import (
	"fmt"
	"slices"
	"strings"
)

// Causes that are told by the device that has the address.

// externalDevice: a device outside has taken an address of ours.
func (q *inquiry) externalDevice() (r reason) {
	var excluded reason
	for _, o := range q.owners {
		if guest := o.guest(); guest != "" {
			excluded = not("%s", guest)
		}
		if o.Namespace != nil || !slices.ContainsFunc(q.owners, func(o *Owner) bool { return o.Namespace != nil }) {
			continue
		}
		var ports []string
		for _, c := range o.Claims {
			if w := witness(c); c.Interface.Uplink && len(ports) < fewest && !slices.Contains(ports, w) {
				ports = append(ports, w)
			}
		}
		switch {
		case len(ports) == 0:
		case o.MAC.Virtual():
			excluded = not("%s is a virtual router's hardware address (VRRP or CARP): whoever is the master has it", o.MAC)
		case responders[o.MAC] != "":
			excluded = not("%s is the hardware address with which %s answers for others", o.MAC, responders[o.MAC])
		case q.bookedOutside() != nil:
			al := q.bookedOutside()
			excluded = not("%s has it for %s, where no agent is heard from: the device with MAC %s may be that", callPool(al.Pool), al.whom(), o.MAC)
		default:
			r.wrong = append(r.wrong, o)
			r.fact("The device with MAC %s claims it in frames that enter the node from outside, by %s.", o.MAC, list(ports))
			r.fact("No node with an agent has that MAC on this link.")
		}
	}
	if !r.fits() {
		return excluded
	}
	for _, o := range q.owners {
		if o.Namespace != nil {
			r.fact("%s has it%s.", o.placed(), o.how())
		}
	}
	if r.uncovered = !q.in.Covered; r.uncovered {
		r.fact("Not known: whether every node has an agent that is heard from. If the MAC is that of a node without one, the device is that node, or what runs there.")
	}
	r.short = fmt.Sprintf("%s is outside of all nodes that have an agent.", capital(list(names(r.wrong))))
	return r
}

// how says how it is known that an owner has the address.
func (o *Owner) how() string {
	switch {
	case o.Assigned:
		return " by its kernel"
	case o.dadFailed():
		return ": its kernel was to have it"
	}
	return ", as its frames show"
}

// guest says what claims the address behind a port of the node; empty for what does
// not.
func (o *Owner) guest() string {
	switch i := o.Interface; {
	case o.Namespace == nil && o.Claims[0].Interface.Tap:
		return fmt.Sprintf("the device with MAC %s is behind %s of node %s, a tap: it is a virtual machine of that node", o.MAC, o.Claims[0].Interface.Name, o.Node.Name)
	case o.Namespace != nil && !o.Assigned && !o.dadFailed() && i.Namespace.ID != o.ID && o.Kind() != Host:
		return fmt.Sprintf("what has MAC %s enters by %s, the port of %s: it is behind that", o.MAC, witness(o.Claims[0]), o.name())
	}
	return ""
}

// bookedOutside is an allocation for a node without an agent; nil for none.
func (q *inquiry) bookedOutside() *Allocation {
	for _, al := range q.outside {
		ours := slices.ContainsFunc(q.owners, func(o *Owner) bool { return o.Namespace != nil && al.books(o) != notBooked })
		if !ours {
			return al
		}
	}
	return nil
}

// tunnels are the kinds of devices that carry frames to other nodes, as rtnetlink names
// them.
var tunnels = []string{
	"ipip", "sit", "ip6tnl", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan", "wireguard", "bareudp", "vti", "vti6", "xfrm",
}

// Tunnel says what kind of tunnel a device is; empty for none. Cilium's is known by
// its name: it is a veth pair with both ends in the node.
func (i *Interface) Tunnel() string {
	switch {
	case slices.Contains(tunnels, i.Kind):
		return "a tunnel device (" + i.Kind + ")"
	case i.Name == "cilium_host":
		return "the device by which Cilium reaches pods"
	}
	return ""
}

// bridge tells whether an interface is a bridge.
func (i *Interface) bridge() bool {
	return i.Kind == "bridge" || i.Kind == "" && i.Link != nil && i.Link.Kind == Bridge && i.Link.Name == i.Name && !i.Uplink
}

// on tells whether an owner's interface is on a bridge.
func (o *Owner) on(bridge *Interface) bool {
	l := o.Interface.Link
	return o.Node.Is(bridge.Namespace.Node) && l != nil && l.Kind == Bridge && l.Name == bridge.Name && !o.Interface.Is(bridge)
}

// podsBridge tells whether an interface of a node is the bridge of a CNI network.
func (q *inquiry) podsBridge(i *Interface) bool {
	return i.bridge() && slices.ContainsFunc(q.in.node(i.Namespace.Node).Pools, func(p *Pool) bool { return p.Device == i.Name })
}

// MadeByEngine tells whether a bridge has the name of one that docker, podman or
// libvirt made: they have one range on every node.
func MadeByEngine(name string) bool {
	id, own := strings.CutPrefix(name, "br-")
	return name == "docker0" || own && len(id) == 12 && strings.Trim(id, "0123456789abcdef") == "" ||
		strings.HasPrefix(name, "podman") || strings.HasPrefix(name, "cni-podman") || strings.HasPrefix(name, "virbr")
}

// tunnelAddress finds a tunnel of a node that has the same address as a pod.
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
			what := i.Tunnel()
			if what == "" {
				excluded = not("%s of node %s is no tunnel device", i.Name, host.Node.Name)
				continue
			}
			r.wrong = []*Owner{pod}
			if q.ofCalico() && q.bookedFor(nil, pod) == booked && q.bookedFor(nil, host) != booked {
				r.wrong = []*Owner{host}
			}
			for _, p := range q.pools {
				if q.gave(p, pod) {
					r.pools = append(r.pools, p)
				}
			}
			r.short = fmt.Sprintf("Device %s of node %s is %s, and %s has its address.", i.Name, host.Node.Name, what, pod.name())
			r.fact("Device %s of node %s is %s, and its kernel has the address on it.", i.Name, host.Node.Name, what)
			q.tellHow(&r, pod)
			for _, al := range q.allocations {
				if al.Purpose != "" && al.books(host) == booked {
					r.fact("%s has it for %s.", callPool(al.Pool), al.whom())
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

// tellHow says who gave an owner the address, or that nobody did.
func (q *inquiry) tellHow(r *reason, o *Owner) {
	if gift := q.gift(o); gift != "" {
		r.fact("%s", gift)
		return
	}
	if why := q.byHand(o); why != "" {
		r.fact("%s", why)
	}
}

// staticAddress: somebody set the address by hand, inside a range of pods.
func (q *inquiry) staticAddress() (r reason) {
	if !q.plain() {
		return reason{}
	}
	var all []string
	q.pairs(func(o, other *Owner) bool {
		why, gateway := q.byHand(o), q.gateway(other, o)
		if why == "" || !q.given(other) && !q.inPodRange() && gateway == nil {
			return true
		}
		r.wrong = []*Owner{o}
		whom := o.placed()
		if o.Namespace != nil && o.guest() != "" {
			whom = "what is behind " + witness(o.Claims[0]) + ", the port of " + o.name()
		}
		r.short = fmt.Sprintf("No CNI network or IPAM gave it to %s, and it is an address of pods.", whom)
		if r.gateway = gateway != nil; r.gateway {
			r.short = fmt.Sprintf("No CNI network or IPAM gave it to %s, and it is the address of bridge %s, which connects pods.", whom, gateway.Name)
			r.fact("Bridge %s of node %s connects pods, and its kernel has the address on it.", gateway.Name, other.Node.Name)
		}
		if gift := q.gift(other); gift != "" {
			r.fact("%s", gift)
		}
		r.fact("%s", why)
		q.tellRange(&r)
		return false
	})
	if r.fits() {
		return r
	}
	for _, o := range q.owners {
		switch i := o.Interface; {
		case q.given(o):
			all = append(all, o.name())
		case o.Kind() == Host && o.Assigned && MadeByEngine(i.Name):
			return not("%s has its address from what made it: docker, podman or libvirt", i.Name)
		case o.Namespace == nil || o.Kind() == Host || !q.pods():
			return reason{}
		default:
			return open("who gave it to %s is not known: no CNI result and no container runtime tells, and no IPAM has it for the other one alone", o.name())
		}
	}
	return not("it was given to %s: nobody set it by hand", list(all))
}

// gateway returns the bridge on which a node has the address itself, if the bridge connects
// pods or an owner. The address is then their gateway and belongs to nothing else. It returns
// nil if there is no such bridge.
func (q *inquiry) gateway(host, o *Owner) *Interface {
	if host.Kind() != Host {
		return nil
	}
	for _, c := range host.Claims {
		if i := c.Interface; c.Counts() && i.bridge() && (o.on(i) || q.podsBridge(i)) {
			return i
		}
	}
	return nil
}

// pods tells whether one of the owners is a pod, or is known to have been given the
// address.
func (q *inquiry) pods() bool {
	return slices.ContainsFunc(q.owners, func(o *Owner) bool { return o.Kind() == Pod || q.given(o) })
}

// inPodRange tells whether the address is one that pods may be given.
func (q *inquiry) inPodRange() bool {
	return q.in.InPodCIDR || slices.ContainsFunc(q.pools, func(p *Pool) bool { return p.Contains(q.c.Address) })
}

// tellRange says whose range the address is in.
func (q *inquiry) tellRange(r *reason) {
	for _, p := range q.pools {
		if p.Contains(q.c.Address) {
			r.pools = append(r.pools, p)
			r.fact("%s gives addresses from %s.", callPool(p), rangesOf(p))
		}
	}
	if len(r.pools) == 0 && q.in.InPodCIDR {
		r.fact("It is in the range of pods of a node (Node.spec.podCIDRs).")
	}
}

// byHand says why it is known that nobody whose task it is gave an owner the address;
// empty where it is not known.
func (q *inquiry) byHand(o *Owner) string {
	if q.given(o) {
		return ""
	}
	w := o.Workload()
	guest := o.guest()
	if l := o.Interface.Link; o.Assigned && o.Kind() != Host && (l != nil && MadeByEngine(l.Name) || w.Kind == Container && !w.OnlyNetns() && w.ContainerID != "") {
		return "" // its runtime has an IPAM of its own: podman has results of CNI, too
	}
	switch {
	case o.Namespace == nil && guest != "":
		return capital(guest) + ". No CNI network gives addresses to it."
	case o.Namespace == nil:
		return ""
	case w.Kind == Host:
		if i := o.Interface; o.Assigned && !i.portOfPod() && i.Tunnel() == "" && !q.podsBridge(i) && !MadeByEngine(i.Name) &&
			!slices.ContainsFunc(q.owners, func(other *Owner) bool { return i.bridge() && other.on(i) }) {
			return fmt.Sprintf("It is on %s of node %s itself, and no CNI network gives addresses to that.", i.Name, o.Node.Name)
		}
		return ""
	case guest != "" && (o.told() || o.listed()):
		return capital(guest) + fmt.Sprintf(". %s was given other addresses.", capital(o.name()))
	case guest != "":
		return ""
	case w.Kind == Pod && o.Assigned && o.Interface.Name == FirstInterface && (w.Source == sourceOfResult || o.listed() && !q.listedIn(o)):
		if o.listed() {
			return fmt.Sprintf("Nobody gave it to %s: its addresses are %s, as the Kubernetes API says.", o.placed(), list(each(o.Pod.IPs, addrText)))
		}
		return fmt.Sprintf("The CNI result of %s does not have it.", o.placed())
	}
	for _, al := range q.allocations {
		if q.books(al, o) != notBooked {
			return ""
		}
	}
	for _, other := range q.owners {
		if other != o && w.Kind != Pod && q.bookedFor(nil, other) == booked {
			return fmt.Sprintf("IPAM has it for %s, and not for %s; no CNI result has it for that either.", other.name(), o.placed())
		}
	}
	return ""
}

// sourceOfResult is what an agent names workloads by that a CNI result names.
const sourceOfResult = "cni-result"

// told tells whether it is known what an owner was given.
func (o *Owner) told() bool {
	return o.Namespace.Intended != "" || o.Workload().Source == sourceOfResult
}

// listed tells whether the Kubernetes API has addresses of the owner's pod.
func (o *Owner) listed() bool { return o.Pod != nil && len(o.Pod.IPs) > 0 }

// listedIn tells whether the Kubernetes API has the address for the owner's pod.
func (q *inquiry) listedIn(o *Owner) bool { return slices.Contains(o.Pod.IPs, q.c.Address) }

// portOfPod tells whether the other end of an interface is in another namespace: a
// plugin gives such a port the address of a gateway.
func (i *Interface) portOfPod() bool { return i.Peer != 0 && !i.Uplink }

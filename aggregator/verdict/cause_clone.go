package verdict

import (
	"net/netip"
	"slices"
	"strings"
)

// Causes that have to do with copies, and with what is left of a workload.

// leftoverNamespace: a namespace without any process has the address of a workload that runs.
func (q *inquiry) leftoverNamespace() (r reason) {
	idle := filterOwners(q.owners, (*Owner).idle)
	busy := filterOwners(q.owners, (*Owner).busy)
	switch routers := filterOwners(q.owners, func(o *Owner) bool { return o.Workload().MayForward }); {
	case len(busy) == 0 || q.c.Expected():
		return reason{}
	case len(idle) == 0 && len(routers) > 0:
		return undecided(Fact{Kind: NotNeedsProcess, Owners: ids(routers[0])})
	case len(idle) == 0:
		return reason{}
	}
	r.Wrong = ids(idle...)
	r.Headline = &Fact{Kind: HeadIdle, Owners: r.Wrong}
	for _, o := range idle {
		r.fact(Fact{Kind: FactIdle, Owners: ids(o)})
	}
	for _, o := range busy {
		r.fact(Fact{Kind: FactBusy, Owners: ids(o), Text: o.Workload().Process})
	}
	return r
}

// idle reports whether the owner is a namespace that is known to have no process, and to need one. A router needs none,
// with or without a program that moves virtual addresses, nor do a namespace that somebody made with `ip netns add` and
// in which no process ever ran, and those that Docker Swarm names itself: its load balancers (lb_NETWORK, ingress_sbox),
// and the bridges of overlay networks (NUMBER-NETWORK).
func (o *Owner) idle() bool {
	w := o.Workload()
	swarm := w.Source == "docker-netns" && strings.ContainsAny(w.Name, "_-")
	byHand := w.OnlyNetns() && w.Kind == Unknown && !w.Ended
	return o.Namespace != nil && w.Idle && !w.MayForward && w.VIPProgram == "" && !swarm && !byHand
}

// busy reports whether a process is known to run in the owner.
func (o *Owner) busy() bool {
	w := o.Workload()
	return w.Kind == Host || w.PID != 0 && !w.Ended
}

// lives reports whether it is known that something runs in the owner: by its processes, by a program that knows its
// containers, or by the Kubernetes API. A namespace that may be a router either forwards or was left behind.
func (o *Owner) lives() bool {
	if o.Workload().Idle || o.Workload().MayForward {
		return false
	}
	if o.busy() || o.Node.SeesProcesses || o.Pod != nil && !o.Pod.Absent && o.Pod.Phase == "Running" {
		return true
	}
	return !slices.Contains([]string{"", "cni-result", "netns", "docker-netns"}, o.Workload().Source)
}

// takenAlong: the plugin host-device moved a device with its addresses into a pod. Nothing there renews a
// lease, or hands a virtual address over.
func (q *inquiry) takenAlong() (r reason) {
	for _, o := range q.owners {
		if i := slices.IndexFunc(o.Claims, func(c *Claim) bool { return c.Counts() && c.TakenAlong }); i >= 0 {
			r.fact(Fact{Kind: FactTakenAlong, Owners: ids(o), Network: o.Claims[i].Network})
		}
	}
	return r
}

// dhcpClientIdentity: a DHCP server takes several owners for one client, and so leases one address to
// all of them.
func (q *inquiry) dhcpClientIdentity() (r reason) {
	for _, al := range q.allocations {
		if al.MAC == "" {
			continue
		}
		holders := filterOwners(q.owners, func(o *Owner) bool { return al.leasedTo(o) == certainMatch })
		former := filterOwners(q.owners, func(o *Owner) bool { return o.HasMAC(al.FormerMAC) && !o.HasMAC(al.MAC) })
		switch {
		case al.Pool.Client:
			other := q.sameClient(al)
			if other == nil {
				continue
			}
			r.Wrong = ids(q.client(al), other)
			r.fact(Fact{Kind: FactLeasedToBoth, Owners: r.Wrong, Text: al.Pool.ClientID})
			r.Headline = &Fact{Kind: HeadOneClient, Owners: r.Wrong}
			return r
		case len(holders) > 1:
			r.Wrong = ids(holders...)
			r.fact(Fact{Kind: FactLeasedToOneMAC, Owners: r.Wrong, Pool: al.Pool.Label(), Records: al.records()})
		case len(holders) == 1 && len(former) > 0:
			r.Wrong = ids(append(former, holders...)...)
			r.fact(Fact{Kind: FactLeaseTaken, Owners: ids(former[0], holders[0]), Pool: al.Pool.Label(), Records: al.records()})
		default:
			continue
		}
		r.From = []*Pool{al.Pool}
		r.Headline = &Fact{Kind: HeadOneClient, Owners: r.Wrong, Pool: al.Pool.Label()}
		return r
	}
	return reason{}
}

// client returns the owner whose DHCP client recorded the lease; nil if it is not an owner.
func (q *inquiry) client(al *Allocation) *Owner {
	i := slices.IndexFunc(q.owners, func(o *Owner) bool {
		return al.Pool.Client && o.Node.Is(al.Pool.Node) && al.leasedTo(o) == certainMatch
	})
	if i < 0 {
		return nil
	}
	return q.owners[i]
}

// sameClient returns another owner whose DHCP client recorded a lease from the same server with the same client
// identifier; nil if no other owner's did.
func (q *inquiry) sameClient(al *Allocation) *Owner {
	o := q.client(al)
	for _, other := range q.allocations {
		if p := other.Pool; o == nil || p.ClientID == "" || p.ClientID != al.Pool.ClientID || p.Server != al.Pool.Server {
			continue
		}
		if c := q.client(other); c != nil && c != o {
			return c
		}
	}
	return nil
}

// twoDHCPServers: DHCP servers that do not know the leases of each other have leased the address, each to another owner.
func (q *inquiry) twoDHCPServers() reason {
	if r := q.leasedByTwo(false); r.fits() {
		return r
	}
	return q.leasedByTwo(true)
}

// leasedByTwo returns the reason for twoDHCPServers by the records of the servers, or by those of their clients.
func (q *inquiry) leasedByTwo(client bool) (r reason) {
	var by []*Allocation
	for _, o := range q.owners {
		i := slices.IndexFunc(q.allocations, func(al *Allocation) bool {
			p := al.Pool
			return p.Leases && p.Client == client && (!client || p.Server.IsValid()) && al.leasedTo(o) == certainMatch
		})
		if i < 0 {
			return reason{}
		}
		al := q.allocations[i]
		if slices.ContainsFunc(by, func(other *Allocation) bool {
			return al.Pool.Is(other.Pool) || client && al.Pool.Server == other.Pool.Server
		}) {
			return reason{} // one server
		}
		by = append(by, al)
		f := Fact{Kind: FactLeased, Owners: ids(o), Pool: al.Pool.Label()}
		if client {
			f.Addresses = []netip.Addr{al.Pool.Server}
		}
		r.fact(f)
		r.From = append(r.From, al.Pool)
	}
	r.Headline = &Fact{Kind: HeadTwoServers, Owners: ids(q.owners...)}
	return r
}

// HasMAC reports whether the owner has a hardware address, in the usual notation; no owner has the empty
// one.
func (o *Owner) HasMAC(mac string) bool {
	return mac != "" && slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Wire() && c.MAC.String() == mac || !c.Wire() && c.Interface.MAC.String() == mac
	})
}

// clonedMachine: owners are one container on several machines, or owners that nothing gave the address have one
// hardware address, which is not made from the address and not shared by design.
func (q *inquiry) clonedMachine() (r reason) {
	if same := copies(q.c.Owners); len(same) > 0 && !q.c.Expected() {
		r.Wrong = ids(same...)
		r.Headline = &Fact{Kind: HeadCopies, Owners: r.Wrong}
		r.fact(Fact{Kind: FactOneContainer, Owners: r.Wrong, Nodes: nodesOf(same), Text: same[0].Workload().ContainerID})
		return r
	}
	if q.c.Expected() || q.c.Kind != LinkScope || !q.unrelated() {
		return reason{}
	}
	for i, first := range q.owners {
		same := filterOwners(q.owners[i:], func(o *Owner) bool { return o.MAC == first.MAC && !q.given(o) })
		if len(same) < 2 || first.MAC.Shared() || OneService(same) != "" {
			continue
		}
		r.Wrong = ids(same...)
		r.Headline = &Fact{Kind: HeadClone, Owners: r.Wrong}
		r.fact(Fact{Kind: FactOneMAC, Owners: r.Wrong, Text: first.MAC.String()})
		name, _, _ := strings.Cut(first.Node.Name, "@")
		if !slices.ContainsFunc(same, func(o *Owner) bool { return o.Kind() != Host || !o.Node.Called(name) }) {
			r.fact(Fact{Kind: FactOneName, Owners: r.Wrong, Text: name})
		}
		return r
	}
	return reason{}
}

// OneService returns the name of the network namespaces that owners are, if each is on a node of its own; empty if that is
// not so. A program has made them: a router of OpenStack has one name, and one MAC, on each node that it is scheduled to.
func OneService(owners []*Owner) string {
	if len(owners) < 2 {
		return ""
	}
	name := owners[0].Workload().Name
	for i, o := range owners {
		if w := o.Workload(); !w.OnlyNetns() || w.Name != name || slices.ContainsFunc(owners[:i], func(other *Owner) bool { return other.Node.Is(o.Node) }) {
			return ""
		}
	}
	return name
}

// oneMAC reports whether two of the owners have one hardware address that is not shared by design. A
// frame of one of them then does not show on which link it is.
func oneMAC(owners []Owner) bool {
	for i := range owners {
		if mac := owners[i].MAC; !mac.Shared() && slices.ContainsFunc(owners[:i], func(o Owner) bool { return o.MAC == mac }) {
			return true
		}
	}
	return false
}

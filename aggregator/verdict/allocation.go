package verdict

import (
	"slices"
	"strings"
)

// How owners, allocations and pools are matched.

// Networks returns the networks that assigned the address to the owner, according to CNI results.
func (o *Owner) Networks() (names []string) {
	for _, c := range o.Claims {
		if n := o.networkOf(c); n != "" && n != NetworkOfRuntime && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// networkOf returns the network that assigned the address of a claim to the owner; empty if none is known.
func (o *Owner) networkOf(c *Claim) string {
	switch {
	case c.Kind == Assigned:
		return c.Network
	case o.Served != nil && c.Wire() && o.behind(c):
		return o.Served.Network
	}
	return ""
}

// Meets reports whether a recipient of an address from the pool would be in the same scope as an
// owner that has the address from another source.
func (p *Pool) Meets(o *Owner) bool {
	switch i := o.Interface; {
	case p.Leases, p.Node != nil && o.Kind() == External:
		return p.serves(o)
	case i.Attachment == Inner: // the engine that runs inside of a container has pools of its own
		return false
	case p.Node == nil && !p.Secondary: // a cluster-wide pool, which is routed everywhere outside of other tenants' networks
		return (p.Realm == "" || p.OfTenant(o)) && o.Scope.Kind >= NodeScope && !o.inVRF() && (!p.Asked || o.Kind() != Host) && !MadeByEngine(i.Name) && (i.Link == nil || !MadeByEngine(i.Link.Name))
	case p.Node == nil: // a pool on a link: the one that its pods are on
		onBridge := p.Device != "" && i.Link != nil && i.Link.Kind == Bridge && i.Link.Name == p.Device
		return o.Kind() != Host && (i.Attachment == Lower || onBridge)
	case p.Wires(o):
		return true
	case MadeByEngine(p.Device) && i.Link != nil && MadeByEngine(i.Link.Name):
		return false // container engines do not use a range that another bridge has
	default:
		return p.Routed && o.Scope.Kind >= NodeScope && !o.inVRF()
	}
}

// Wires reports whether the interface of an owner is on the device of a pool: the bridge of its ports, or the master of its
// devices.
func (p *Pool) Wires(o *Owner) bool {
	i := o.Interface
	return p.Device != "" && (i.Link != nil && i.Link.Name == p.Device || i.HostInterface == p.Device)
}

// MayServe reports whether a pool may serve a network that assigned the address to an owner, as far as both are known.
func (p *Pool) MayServe(o *Owner) bool {
	networks := o.Networks()
	return len(networks) == 0 || slices.ContainsFunc(networks, func(n string) bool {
		serves, unknown := p.Serves(n)
		return serves || unknown
	})
}

// OfTenant reports whether a cluster-wide pool allocates addresses for the network of a tenant that an
// owner is in.
func (p *Pool) OfTenant(o *Owner) bool {
	return p.Node == nil && p.Realm != "" && o.Scope.Kind == NetworkScope && o.Scope.Name == p.Realm
}

// serves reports whether the device of the pool is on the link on which its node sees an owner.
func (p *Pool) serves(o *Owner) bool {
	return slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		l := c.Interface.Link
		if c.Wire() {
			l = c.Link
		}
		return c.Node().Is(p.Node) && l != nil && l.Name == p.Device
	})
}

// inVRF reports whether an owner is in a VRF and thus shares a scope only with owners in that VRF.
func (o *Owner) inVRF() bool { return o.Scope.Kind == NodeScope && o.Scope.Name != "" }

// OnNode reports whether a node name from an IPAM or from Kubernetes names the node of the owner.
func (o *Owner) OnNode(name string) bool {
	return o.Pod != nil && o.Pod.Node != "" && o.Pod.Node == name || o.Node.Called(name)
}

// Called reports whether a name from another source may name this node. It ignores case, and one of
// the two names may lack the domain.
func (n *Node) Called(name string) bool {
	own, _, _ := strings.Cut(n.Name, "@")
	short, long := strings.ToLower(own), strings.ToLower(name)
	if len(short) > len(long) {
		short, long = long, short
	}
	return short == long || short != "" && strings.HasPrefix(long, short+".")
}

// For reports whether an allocation may be for an owner, as far as both are identified.
func (al *Allocation) For(o *Owner) bool {
	w := o.Workload()
	switch {
	case al.Node != "" && !o.OnNode(al.Node):
		return false
	case al.MAC != "":
		return al.leasedTo(o) == certainMatch
	case al.Nameless():
		return true
	case al.Purpose != "" || w.Kind == Host:
		return al.Purpose != "" && (w.Kind == Host || al.ofEndpoint(w))
	case al.ContainerID != "" && al.ContainerID == w.ContainerID:
		return true
	case al.Pod != "" && w.Kind == Pod && w.Name != "":
		return al.Names(o)
	case al.ContainerID != "" && w.Sandbox() != "":
		return false
	}
	return true // one of them is not identified
}

// Names reports whether an allocation names the pod of an owner, or the virtual machine that the pod
// runs, on any node.
func (al *Allocation) Names(o *Owner) bool {
	w := o.Workload()
	return w.Kind == Pod && al.Pod != "" && (al.Pod == w.Name || al.Kept && al.Pod == w.VirtualMachine) && al.Namespace == w.Namespace
}

// Nameless reports whether an allocation names no holder. It still reserves the address, like a
// file that an administrator created in the host-local directory to keep an address out of use.
func (al *Allocation) Nameless() bool {
	return al.Purpose == "" && al.ContainerID == "" && al.Pod == "" && al.MAC == ""
}

// ofEndpoint reports whether an allocation may be for a namespace of Cilium itself. Cilium's health
// endpoint is in a namespace that belongs to no pod.
func (al *Allocation) ofEndpoint(w Workload) bool {
	return al.Pool.OwnNamespaces && w.Kind == Unknown
}

// OfNode reports whether the pool is an object of the cluster in which an IPAM assigns ranges to the
// node with the name of the pool, such as a CiliumNode.
func (p *Pool) OfNode() bool {
	return p.Node == nil && !p.Single && p.NodePools && p.Services == ""
}

// Sandbox returns the container ID that IPAM was given for a workload. It is empty if the ID is not
// known: an ID from a cgroup or process may be that of another container in the pod.
func (w Workload) Sandbox() string {
	source := w.Source
	for word := range strings.SplitSeq(w.Sources, ",") {
		if field, from, _ := strings.Cut(word, "="); field == "containerId" {
			source = from
		}
	}
	if source == "cgroup" || source == "process" {
		return ""
	}
	return w.ContainerID
}

// Subject returns the name of the pool in the IDs of findings.
func (p *Pool) Subject() string {
	if p.Node != nil {
		return p.IPAM + " " + p.Name + " " + p.Node.Name
	}
	return p.IPAM + " " + p.Name
}

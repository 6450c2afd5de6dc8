package verdict

import (
	"slices"
	"strings"
)

// How owners, allocations and pools belong to each other.

// Networks returns the networks that gave the owner its address, as CNI results name them.
func (o *Owner) Networks() (names []string) {
	for _, c := range o.Claims {
		if c.Kind == Assigned && c.Network != "" && c.Network != NetworkOfRuntime && !slices.Contains(names, c.Network) {
			names = append(names, c.Network)
		}
	}
	return names
}

// Meets tells whether who gets an address of the pool meets an owner that has it from
// somebody else.
func (p *Pool) Meets(o *Owner) bool {
	switch i := o.Interface; {
	case p.Node == nil && p.IPAM != Whereabouts: // routed in the whole cluster
		return o.Scope.Kind >= NodeScope && !o.inVRF() && (!p.Asked || o.Kind() != Host) && !MadeByEngine(i.Name) && (i.Link == nil || !MadeByEngine(i.Link.Name))
	case p.Node == nil: // on some link: that of its pods
		return o.Kind() != Host && i.Attachment == Lower
	case p.Device != "" && i.Link != nil && i.Link.Name == p.Device, p.Device != "" && i.HostInterface == p.Device:
		return true
	default:
		return p.Routed && o.Scope.Kind >= NodeScope && !o.inVRF()
	}
}

// inVRF tells whether an owner is in a VRF: it meets only what is in that, too.
func (o *Owner) inVRF() bool { return o.Scope.Kind == NodeScope && o.Scope.Name != "" }

// OnNode tells whether a name that an IPAM or Kubernetes has for a node is that of
// an owner's.
func (o *Owner) OnNode(name string) bool {
	return o.Pod != nil && o.Pod.Node != "" && o.Pod.Node == name || o.Node.Called(name)
}

// Called tells whether a name that somebody else has for a node may be the node's: in
// capitals, or with a domain or without.
func (n *Node) Called(name string) bool {
	own, _, _ := strings.Cut(n.Name, "@")
	short, long := strings.ToLower(own), strings.ToLower(name)
	if len(short) > len(long) {
		short, long = long, short
	}
	return short == long || short != "" && strings.HasPrefix(long, short+".")
}

// For tells whether an allocation is for an owner, as far as both say who they are.
func (al *Allocation) For(o *Owner) bool {
	w := o.Workload()
	switch {
	case al.Node != "" && !o.OnNode(al.Node):
		return false
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
	return true // neither says
}

// Names tells whether an allocation is for the pod of an owner, on whatever node.
func (al *Allocation) Names(o *Owner) bool {
	w := o.Workload()
	return w.Kind == Pod && al.Pod != "" && al.Pod == w.Name && al.Namespace == w.Namespace
}

// Nameless tells whether an allocation does not say for whom it is: nobody else gets it
// all the same, as with a file that somebody made for host-local to leave an address out.
func (al *Allocation) Nameless() bool {
	return al.Purpose == "" && al.ContainerID == "" && al.Pod == ""
}

// ofEndpoint tells whether an allocation may be for a namespace of Cilium's own: its
// health endpoint is in one that is no pod's.
func (al *Allocation) ofEndpoint(w Workload) bool {
	return al.Pool.IPAM == Cilium && w.Kind == Unknown
}

// Sandbox is the id that IPAM was given for a workload; empty where it is not known: the
// one that a cgroup tells may be another container's.
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

// Subject is what a pool is called in ids of findings.
func (p *Pool) Subject() string {
	if p.Node != nil {
		return p.IPAM + " " + p.Name + " " + p.Node.Name
	}
	return p.IPAM + " " + p.Name
}

package verdict

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// A Case is everything that the judgement of one address needs. It is a value: it does not change
// while it is judged, two cases share no mutable state, and records are identified by their keys
// and never by their pointers.
type Case struct {
	Address netip.Addr
	// Now is the time of the judgement.
	Now Stamp
	// Claims are all claims to the address, in any order.
	Claims []*Claim
	// Conflicts are the remembered conflicts, active or resolved; the latest of each ID.
	Conflicts []Memory
	// Former are the owners that have recently left the address, the latest first. They are remembered
	// only if Policy.ReusedWithin is set.
	Former []Former

	// Stations are the interfaces whose hardware address is named by a claim: those on the node of
	// the claim, and those on other nodes in the domain of its link.
	Stations []*Interface
	// Namespaces has the facts about the namespaces of claims and about the namespaces behind the
	// ports that frames entered through. A namespace without facts may be missing.
	Namespaces []NamespaceFacts
	// Nodes has the facts about the nodes of the claims. A node without facts may be missing.
	Nodes []NodeFacts
	// Answers has the number of addresses for which senders answer.
	Answers []Answer
	// Beliefs are the hardware addresses to which others send packets for the address, as far as the claims of their node do
	// not bear them out.
	Beliefs []Belief
	// Endpoints are endpoints of Services with the address that get packets, for pods that do not have the address according
	// to the Kubernetes API, in order.
	Endpoints []ipam.Endpoint
	// Stitches are the evidence that the links of the claims' domains are one. They are needed for
	// explanations only.
	Stitches []Stitch

	IPAM
	Sight
}

// IPAM has the records of IPAMs that concern the address of a case.
type IPAM struct {
	// Pools are the pools that have allocated the address or may allocate it.
	Pools []*Pool
	// ServicePools are the pools from which a Service may get the address.
	ServicePools []*Pool
	// Allocations are the IPAM records of the address. Vanished are the allocations that
	// disappeared since the last audit.
	Allocations []AllocationFacts
	Vanished    []*Allocation
	// Past has earlier states of the owners' allocations. Before has the findings of the last
	// audit.
	Past   []Past
	Before []Finding
}

// Sight is how far the cluster that the address belongs to is observed.
type Sight struct {
	// InPodCIDR is set if the address is in the pod range of some node (Node.spec.podCIDRs).
	InPodCIDR bool
	// OneTenant is set if, according to the Kubernetes API, no pod belongs to a tenant with a network
	// of its own.
	OneTenant bool
	// Covered is set if agents report everything on all nodes.
	Covered bool
	// Unread is set while the Kubernetes API, or the records of an IPAM in it, are being read after a start. Which
	// network an owner is in may not be known then.
	Unread bool
	// NodesAwaited is set while nodes that were connected before the start have not reported since: until this time, a
	// device outside of all nodes may be one of them. Conflicts from before the start last longer.
	NodesAwaited Stamp
	// PodsKnownUntil is the time until which the facts about pods are complete: pods that were
	// created later may be missing. It is 0 if the API is not followed.
	PodsKnownUntil Stamp
	// EndpointsKnown is set if Endpoints are all that there are.
	EndpointsKnown bool
	// Incomplete is set if some nodes are not observed. The absence of an owner then proves
	// nothing. Awaited is set if reports of agents or records of IPAMs are awaited, so that nothing is
	// certain yet. Both are needed for explanations only.
	Incomplete, Awaited bool
}

// NamespaceFacts is a namespace with facts from other sources.
type NamespaceFacts struct {
	*Namespace
	// Nested is set if an agent reports from inside the namespace. The namespace is then a node
	// of its own, as in kind or in a test lab.
	Nested bool
	// Pod is what the Kubernetes API says about the pod in the namespace: Absent if the API has no
	// such pod, nil if there is no pod or its state is not known.
	Pod *PodObject
}

// NodeFacts are the facts about a node that concern the address of a case.
type NodeFacts struct {
	Node NodeKey
	// InPodCIDR is set if the address is in the pod range of the node (Node.spec.podCIDRs).
	InPodCIDR bool
	// Internal is set if the Kubernetes API has the address as the node's own (the first InternalIP of its
	// family).
	Internal bool
	// Covered is set if an agent reports for the node and can see into its pods.
	Covered bool
	// Pools are the pools of the node's own IPAM. They are set if there are several claims to the
	// address.
	Pools []*Pool
	// Subnets are the node's own addresses whose prefixes contain the address. They are set if
	// there are several claims to the address.
	Subnets []Subnet
}

// An Answer is the number of addresses for which a hardware address only ever answered on a link,
// and the number of owners whose kernels have one of these addresses. Counting may stop at
// ManyAnswers and SeveralOwned.
type Answer struct {
	Link              LinkKey
	MAC               MAC
	Addresses, Owners int
}

// AllocationFacts is an allocation with facts from other sources.
type AllocationFacts struct {
	*Allocation
	// Object is what the Kubernetes API says about the pod that the allocation names, on any node:
	// Absent if the API has no such pod, nil if no pod is named or its state is not known.
	Object *PodObject
	// Sandbox is set if a network namespace of the sandbox that the allocation names exists.
	Sandbox bool
	// Covered is set if an agent reports for the node that the allocation names and can see into
	// its pods.
	Covered bool
}

// Virtual reports whether a controller assigns the address to a node. A node's own address is not virtual, even
// if a controller assigns it: kube-vip does so with each address in the status of a Service, also with those of
// nodes, which another load balancer has written there.
func (c *Case) Virtual() bool {
	return slices.ContainsFunc(c.Allocations, func(al AllocationFacts) bool { return al.Pool.Assigns }) &&
		!slices.ContainsFunc(c.Nodes, func(f NodeFacts) bool { return f.Internal })
}

// Assigns reports whether a controller assigns the address to the node of an owner. Several objects may
// do so while one of them is replaced.
func (c *Case) Assigns(o *Owner) bool {
	return c.Virtual() && slices.ContainsFunc(c.Allocations, func(al AllocationFacts) bool { return al.Pool.Assigns && o.OnNode(al.Node) })
}

// pod returns what the Kubernetes API says about the pod in a namespace.
func (c *Case) pod(ns *Namespace) *PodObject {
	for i := range c.Namespaces {
		if f := &c.Namespaces[i]; f.Pod != nil && f.Is(ns) {
			return f.Pod
		}
	}
	return nil
}

// nested reports whether an agent reports from inside a namespace.
func (c *Case) nested(ns *Namespace) bool {
	return slices.ContainsFunc(c.Namespaces, func(f NamespaceFacts) bool { return f.Nested && f.Is(ns) })
}

// behind returns the namespace at the other end of an interface; nil if it is not known.
func (c *Case) behind(port *Interface) *Namespace {
	n := port.Namespace.Node
	for i := range c.Namespaces {
		if ns := c.Namespaces[i].Namespace; ns.Record == port.Peer && ns.Node.Is(n) {
			return ns
		}
	}
	return nil
}

// node returns the facts about a node.
func (c *Case) node(n *Node) (none NodeFacts) {
	for i := range c.Nodes {
		if c.Nodes[i].Node == n.Key() {
			return c.Nodes[i]
		}
	}
	return none
}

// holders returns the interfaces of a node that have a hardware address.
func (c *Case) holders(n *Node, mac MAC) (found []*Interface) {
	for _, i := range c.Stations {
		if i.MAC == mac && i.Namespace.Node.Is(n) {
			found = append(found, i)
		}
	}
	return found
}

// neighbours returns the interfaces of other nodes that have a hardware address and are on the
// same domain as a link. A hardware address that is shared by design has none.
func (c *Case) neighbours(l *Link, mac MAC) (found []*Interface) {
	if l == nil || l.Domain == nil || mac.Shared() {
		return nil
	}
	for _, i := range c.Stations {
		if i.MAC == mac && i.Link != nil && l.Domain.Is(i.Link.Domain) && !i.Namespace.Node.Is(l.Node) {
			found = append(found, i)
		}
	}
	return found
}

// answers returns the number of addresses for which a hardware address answers on a link, and of
// their owners.
func (c *Case) answers(l *Link, mac MAC) (addresses, owners int) {
	if l == nil {
		return 0, 0
	}
	for _, a := range c.Answers {
		if a.MAC == mac && a.Link == l.Key() {
			return a.Addresses, a.Owners
		}
	}
	return 0, 0
}

// stitches returns the evidence that the links of a domain are one.
func (c *Case) stitches(d LinkKey) (found []Stitch) {
	for _, s := range c.Stitches {
		if s.Entered.Domain.Key() == d {
			found = append(found, s)
		}
	}
	return found
}

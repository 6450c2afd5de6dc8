package verdict

import (
	"net/netip"
	"slices"
)

// A Case is everything that the judgement of one address needs. It is a value: nothing in it
// changes while it is judged, two cases share nothing that one of them may change, and records
// are told apart by their keys and never by where they are in memory.
type Case struct {
	Address netip.Addr
	// Now is the time of the judgement.
	Now Stamp
	// Claims are all ways in which the address is held, in any order.
	Claims []*Claim
	// Conflicts is what is remembered of conflicts, the latest of each id, active or resolved.
	Conflicts []Memory

	// Stations are the interfaces that have a hardware address which a claim names: those on
	// the node of the claim, and those on other nodes that are in the domain of its link.
	Stations []*Interface
	// Namespaces has the facts about the namespaces of claims, and about the namespaces behind
	// the ports that frames entered by. A namespace about which there are none may be missing.
	Namespaces []NamespaceFacts
	// Nodes has the facts about the nodes of the claims. A node about which there are none may be
	// missing.
	Nodes []NodeFacts
	// Answers has the number of addresses that senders answer for.
	Answers []Answer
	// Stitches are how the links of the claims' domains are known to be one. They are only
	// needed for explanations.
	Stitches []Stitch

	IPAM
	Sight
}

// IPAM is what IPAMs say about the address of a case.
type IPAM struct {
	// Pools are the pools that may give the address to somebody, or have.
	Pools []*Pool
	// Allocations are what IPAMs say of the address. Vanished are the allocations that are gone
	// since the last audit.
	Allocations []AllocationFacts
	Vanished    []*Allocation
	// Past is what is remembered of the owners' allocations, Before what the last audit found.
	Past   []Past
	Before []Finding
}

// Sight is how far the cluster is seen that the address of a case is in.
type Sight struct {
	// InPodCIDR is set if the address is in the range of pods of some node
	// (Node.spec.podCIDRs).
	InPodCIDR bool
	// Covered is set if everything is known that is on all nodes.
	Covered bool
	// PodsKnownUntil is the time until which the facts about pods are complete: the Kubernetes
	// API may have a pod that was created later. It is 0 if the API is not followed.
	PodsKnownUntil Stamp
	// Incomplete is set if some nodes are not seen. The absence of an owner then proves nothing.
	// It is only needed for explanations.
	Incomplete bool
}

// NamespaceFacts are what others say about a namespace.
type NamespaceFacts struct {
	*Namespace
	// Nested is set if an agent reports from inside the namespace. The namespace is then a node
	// of its own, as in kind or in a test lab.
	Nested bool
	// Pod is what the Kubernetes API says about the pod in the namespace: Absent if the API has
	// no such pod, nil if there is no pod or the API does not tell.
	Pod *PodObject
}

// NodeFacts are what is known about a node with respect to the address of a case.
type NodeFacts struct {
	Node NodeKey
	// InPodCIDR is set if the address is in the node's range of pods (Node.spec.podCIDRs).
	InPodCIDR bool
	// Covered is set if an agent reports for the node and sees what is in its pods.
	Covered bool
	// Pools are what the node's own IPAM gives addresses from. They are known if several claim
	// the address.
	Pools []*Pool
	// Subnets are the addresses of the node itself whose subnets have the address, with their
	// prefixes. They are known if several claim the address.
	Subnets []Subnet
}

// An Answer counts the addresses that a hardware address only ever answered for on a link, and
// the owners that have one of these addresses by their kernels. Counting may stop at
// ManyAnswers and SeveralOwned.
type Answer struct {
	Link              LinkKey
	MAC               MAC
	Addresses, Owners int
}

// AllocationFacts are an allocation and what others say about it.
type AllocationFacts struct {
	*Allocation
	// Object is what the Kubernetes API says about the pod that the allocation names, wherever
	// it is: Absent if the API has no such pod, nil if no pod is named or the API does not tell.
	Object *PodObject
	// Sandbox is set if a namespace of the sandbox that the allocation names is there.
	Sandbox bool
	// Covered is set if an agent reports for the node that the allocation names, and sees what
	// is in its pods.
	Covered bool
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

// answers returns what a hardware address answers for on a link.
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

// stitches returns how the links of a domain are known to be one.
func (c *Case) stitches(d LinkKey) (found []Stitch) {
	for _, s := range c.Stitches {
		if s.Entered.Domain.Key() == d {
			found = append(found, s)
		}
	}
	return found
}

package verdict

import (
	"cmp"
	"net/netip"
)

// An extent is a scope with the identity by which scopes are compared.
type extent struct {
	Kind ScopeKind
	// Node is zero for a network.
	Node NodeKey
	Name string
	// Domain is the domain of the link; zero if the link is on one node only.
	Domain LinkKey
}

// Scope returns the scope as it is displayed.
func (s extent) Scope() Scope { return Scope{s.Kind, s.Node.Name, s.Name} }

// Text returns the name of the scope as the API shows it.
func (s extent) Text() string { return s.Scope().Text() }

// canonical returns the scope by which owners are compared. It is the same for all links of a
// domain.
func (s extent) canonical() extent {
	if s.Domain != (LinkKey{}) {
		return extent{s.Kind, s.Domain.Node, s.Domain.Name, s.Domain}
	}
	return s
}

// scopes yields the scopes in which one claim of an owner is compared.
func (j *evaluation) scopes(o *Owner, c *Claim, yield func(extent)) {
	if !c.Weak() {
		j.reaches(o, c, yield)
	}
}

// reaches yields the scopes in which others receive a claim of an owner, even if the claim does not
// make the owner a rival.
func (j *evaluation) reaches(o *Owner, c *Claim, yield func(extent)) {
	a := c.Interface.Attachment
	if a == Local || (a == Private && !c.Wire()) || c.Kind == Believed {
		return
	}
	link := c.Interface.Link
	if c.Wire() {
		link = c.Link
	}
	alone := j.in.Address.IsLinkLocalUnicast()
	if !alone {
		if name := j.network(o, c, link); name != "" {
			yield(extent{Kind: NetworkScope, Name: name})
		}
		if routed(o, c, link) {
			yield(extent{Kind: NodeScope, Node: c.Node().Key(), Name: c.Interface.VRF})
		}
	}
	if link != nil {
		s := extent{Kind: LinkScope, Node: link.Node.Key(), Name: link.Name, Domain: link.Domain.Key()}
		if alone {
			s.Domain = LinkKey{} // never compared across nodes
		}
		yield(s)
	}
}

// podNetwork is the network that is discovered without configuration: in Kubernetes, every pod has
// an address that is unique in the cluster.
const podNetwork = "pods"

// NetworkOfRuntime is what agents report as the network of an address that only the container
// runtime is known to have given.
const NetworkOfRuntime = "cri"

// FirstInterface is the interface to which container runtimes give the address by which Kubernetes
// knows a pod. Addresses of further interfaces (Multus) are often the same on each node.
const FirstInterface = "eth0"

// network returns the network in which a claim is compared: the declared network that contains the
// address, or the pod network if it is an address of pods; empty if there is none. External devices
// are compared on their links only, and addresses in a VRF on their node.
func (j *evaluation) network(o *Owner, c *Claim, link *Link) string {
	i := c.Interface
	switch {
	case i.VRF != "":
		return ""
	case c.Wire():
		if i.Uplink || !inside(o, i) {
			return ""
		}
		name, _ := j.declared()
		return name
	case i.Attachment != Own && i.Attachment != Peer && i.Attachment != Lower:
		return ""
	}
	if name, _ := j.declared(); name != "" {
		return name
	}
	if j.ofPods(c, link) {
		return podNetwork
	}
	return ""
}

// ofPods reports whether the address of a kernel belongs to the pod network: a CNI network or
// runtime gave it to a pod, or it is in a pod range. The node's own addresses belong to it only in
// the node's own pod range, and never on an uplink.
func (j *evaluation) ofPods(c *Claim, link *Link) bool {
	i := c.Interface
	switch {
	case link != nil && link.Kind == OVSPort:
		return false // tenants may use the same ranges on purpose
	case i.Attachment == Own:
		// Bridges that are the same on all nodes (docker0) may be in the pod range of another node.
		return !i.Uplink && j.in.node(c.Node()).InPodCIDR
	case i.Namespace.Who.Kind() != Pod:
		return false
	}
	return c.Network != "" && i.Name == FirstInterface || j.in.InPodCIDR
}

// declared returns the declared network with the longest prefix that contains the address, and that
// prefix. The name is empty if there is none.
func (j *evaluation) declared() (name string, prefix netip.Prefix) {
	bits := -1
	for i := range j.policy.Networks {
		n := &j.policy.Networks[i]
		for _, p := range n.Prefixes {
			if p.Bits() > bits && p.Contains(j.in.Address) {
				name, prefix, bits = n.Name, p, p.Bits()
			}
		}
	}
	return name, prefix
}

// routed reports whether the node itself routes to the interface that has the address, so that the
// address must be unique on the whole node.
func routed(o *Owner, c *Claim, link *Link) bool {
	reached := link != nil && (link.Kind == PointToPoint || link.Kind == Bridge && link.Routed)
	if c.Wire() {
		// A claim that enters through a port of a namespace or virtual machine belongs to that
		// port. A claim with the hardware address of the node may come from elsewhere.
		return reached && !c.Interface.Uplink && inside(o, c.Interface)
	}
	switch c.Interface.Attachment {
	case Own:
		return true
	case Peer:
		return reached
	}
	return false
}

// inside reports whether the sender behind a port is a namespace or a virtual machine of the node.
func inside(o *Owner, port *Interface) bool {
	return port.Peer != 0 || o.Namespace == nil && port.Tap
}

func linkScope(c *Claim) extent {
	l := c.Link
	if !c.Wire() {
		l = c.Interface.Link
	}
	if l == nil {
		return extent{}
	}
	return extent{Kind: LinkScope, Node: l.Node.Key(), Name: l.Name, Domain: l.Domain.Key()}
}

// compareScopes orders scopes, the widest first.
func compareScopes(a, b extent) int {
	if c := cmp.Compare(b.Kind, a.Kind); c != 0 {
		return c
	}
	if a.Node != (NodeKey{}) && b.Node != (NodeKey{}) {
		if c := a.Node.compare(b.Node); c != 0 {
			return c
		}
	}
	return cmp.Compare(a.Name, b.Name)
}

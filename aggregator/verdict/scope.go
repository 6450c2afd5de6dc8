package verdict

import (
	"cmp"
	"net/netip"
)

// An extent is a scope by its identity, with which others are compared.
type extent struct {
	Kind ScopeKind
	// Node is empty for a network.
	Node NodeKey
	Name string
	// Domain is the one of the link, if it is another node's, too.
	Domain LinkKey
}

// Scope returns the scope as it is shown.
func (s extent) Scope() Scope { return Scope{s.Kind, s.Node.Name, s.Name} }

// Text is the scope's name in the contract.
func (s extent) Text() string { return s.Scope().Text() }

// whole is the scope by which others are compared with it: all links of one
// domain have one.
func (s extent) whole() extent {
	if s.Domain != (LinkKey{}) {
		return extent{s.Kind, s.Domain.Node, s.Domain.Name, s.Domain}
	}
	return s
}

// scopes yields the scopes in which one claim of an owner is compared.
func (j *judging) scopes(o *Owner, c *Claim, yield func(extent)) {
	if !c.Weak() {
		j.reaches(o, c, yield)
	}
}

// reaches yields the scopes in which others receive a claim of an owner, even if the claim does
// not make the owner a rival.
func (j *judging) reaches(o *Owner, c *Claim, yield func(extent)) {
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
			s.Domain = LinkKey{} // across nodes only by what the wire shows
		}
		yield(s)
	}
}

// podNetwork is the network that is discovered: Kubernetes wants every pod to
// have an address of its own in the whole cluster, whatever gives them out.
const podNetwork = "pods"

// NetworkOfRuntime is what an agent calls the network of an address of which only the
// container runtime says that it gave it.
const NetworkOfRuntime = "cri"

// FirstInterface is what container runtimes call the interface with the address
// by which Kubernetes knows a pod. What more a pod has (Multus) is often the same
// on each node.
const FirstInterface = "eth0"

// network is the network in which a claim is compared: the declared one that the
// address is in, or else that of pods, if it is one of theirs; empty for none.
// Devices outside are compared on their links only, and what is in a VRF on its node.
func (j *judging) network(o *Owner, c *Claim, link *Link) string {
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

// ofPods tells whether what a kernel has is an address of the network of pods:
// who runs pods says so, or it is in the range of a node. What a node has itself is
// one in its own range only, and never on an uplink.
func (j *judging) ofPods(c *Claim, link *Link) bool {
	i := c.Interface
	switch {
	case link != nil && link.Kind == OVSPort:
		return false // its tenants may have equal ranges on purpose
	case i.Attachment == Own:
		// Bridges that are the same on all nodes (docker0) may be in the range of another.
		return !i.Uplink && j.in.node(c.Node()).InPodCIDR
	case i.Namespace.Who.Kind() != Pod:
		return false
	}
	return c.Network != "" && i.Name == FirstInterface || j.in.InPodCIDR
}

// declared returns the declared network that the address is in, by its longest prefix, and that
// prefix; none has no name.
func (j *judging) declared() (name string, prefix netip.Prefix) {
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

// routed tells whether the node itself routes to the interface that has the
// address: then it must be unique on the whole node.
func routed(o *Owner, c *Claim, link *Link) bool {
	reached := link != nil && (link.Kind == PointToPoint || link.Kind == Bridge && link.Routed)
	if c.Wire() {
		// What enters by a namespace's own port, or a virtual machine's, stands
		// where its interface does; what the node's own hardware address shows
		// does not stand where it was seen.
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

// inside tells whether what enters by a port is a namespace behind it, or a
// virtual machine.
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

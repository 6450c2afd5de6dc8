package verdict

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
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
	switch {
	case c.Weak(), j.passedOn(c):
	case j.weakHost(o, c):
		j.reaches(o, c, func(s extent) {
			if j.held[s.canonical()] {
				yield(s)
			}
		})
	default:
		j.reaches(o, c, yield)
	}
}

// weakHost reports whether a frame does not put an owner on the link on which it was seen, unless another owner is there: see
// Case.weakHost. Programs and controllers may move virtual addresses on devices apart from the LAN, too.
func (j *evaluation) weakHost(o *Owner, c *Claim) bool {
	return j.in.weakHost(o, c) && !j.in.Virtual() &&
		(!o.hasVIPProgram() || o.setByEngine(j.in.Address) || j.in.Address.IsLinkLocalUnicast())
}

// weakHost reports whether a frame shows only that the kernel of an owner answers for the address, or sends requests with it, on
// a link on which it does not have the address: the frame has the MAC of another of its interfaces. Linux is a weak host (RFC
// 1122, section 3.3.4.2) and does so with any IPv4 address that it has (arp_ignore and arp_announce are 0), such as that of a
// bridge that each node has for its containers.
func (c *Case) weakHost(o *Owner, frame *Claim) bool {
	return (frame.Kind == Answered || frame.Kind == Used) && !frame.Weak() && o.Assigned && c.Address.Is4() &&
		!slices.ContainsFunc(o.Claims, func(has *Claim) bool {
			return has.Counts() && (has.Interface.MAC == frame.MAC || !has.Interface.NoARP && sameLink(has.Interface.Link, frame.Link))
		}) &&
		slices.ContainsFunc(c.holders(o.Node, frame.MAC), func(i *Interface) bool { return i.Namespace.Is(o.Namespace) })
}

// hold finds the scopes in which owners are by more than frames of weak hosts, which are compared with them.
func (j *evaluation) hold() {
	if !slices.ContainsFunc(j.out.Owners, func(o Owner) bool {
		return slices.ContainsFunc(o.Claims, func(c *Claim) bool { return j.weakHost(&o, c) })
	}) {
		return
	}
	held := map[extent]bool{}
	for i := range j.out.Owners {
		if o := &j.out.Owners[i]; o.Excluded == nil && o.Alive() {
			for _, c := range o.Claims {
				j.scopes(o, c, func(s extent) { held[s.canonical()] = true })
			}
		}
	}
	j.held = held
}

// passedOn reports whether frames for the link-local address of a device of a node go to a namespace that has the address,
// too. A macvlan device in mode passthru has the MAC of its lower device, so that both kernels make one address from it,
// and takes all unicast frames that the lower device receives (macvlan_handle_frame in drivers/net/macvlan.c). In any other
// mode, a device with that MAC cannot be up (macvlan_addr_busy). ipvlan devices have the MAC of their lower device as well,
// but make other addresses from it, because each has a number of its own (dev_id, addrconf_ifid_eui48).
func (j *evaluation) passedOn(c *Claim) bool {
	below := c.Interface
	if c.Kind != Assigned || below.Attachment != Own || !below.MAC.makes(j.in.Address) || below.MAC.Shared() {
		return false
	}
	return slices.ContainsFunc(j.in.Claims, func(other *Claim) bool {
		i := other.Interface
		return other.Kind == Assigned && i.Attachment == Lower && (i.Kind == "macvlan" || i.Kind == "macvtap") &&
			i.HostInterface == below.Name && i.MAC == below.MAC && other.Node().Is(c.Node())
	})
}

// reaches yields the scopes in which others receive a claim of an owner, even if the claim does not
// make the owner a rival.
func (j *evaluation) reaches(o *Owner, c *Claim, yield func(extent)) {
	a := c.Interface.Attachment
	if a == Local || (a == Private && !c.Wire()) || c.Kind == Believed || c.Kind == WouldAnswer {
		return
	}
	link := c.link()
	alone, cut := j.in.Address.IsLinkLocalUnicast(), j.cutOff(o, c)
	if !alone {
		if name := j.network(o, c, link); name != "" && !cut {
			yield(extent{Kind: NetworkScope, Name: name})
		}
		if routed(o, c, link) {
			yield(extent{Kind: NodeScope, Node: c.Node().Key(), Name: c.Interface.VRF})
		}
	}
	nobody := cut && (c.fromOutside() || a == Own && link.Kind == Uplink)
	if link != nil && (c.Wire() || !c.Interface.NoARP || j.in.Address.Is6()) && !nobody {
		s := extent{Kind: LinkScope, Node: link.Node.Key(), Name: link.Name, Domain: link.Domain.Key()}
		if alone || cut {
			s.Domain = LinkKey{} // never compared across nodes
		}
		yield(s)
	}
}

// fromOutside reports whether a claim is a frame that entered its node from outside.
func (c *Claim) fromOutside() bool { return c.Wire() && c.Interface.Uplink }

// cutOff reports whether a claim does not put its owner on a LAN any longer, because a cable is out: the claim is on a link
// without a carrier, or is a frame that has passed such a link before. A kernel that answers on another interface on the LAN is
// not cut off.
func (j *evaluation) cutOff(o *Owner, c *Claim) bool {
	lost := func(at *Claim) bool { return at.unplugged() && !o.answersBeside(at) }
	return lost(c) || c.fromOutside() && slices.ContainsFunc(j.unplugged, func(at *Claim) bool {
		if at.Wire() {
			return at.MAC == c.MAC && lost(at)
		}
		return at.Interface.MAC == c.MAC && at.Interface.Namespace.Is(o.Namespace) && lost(at)
	})
}

// unplugged reports whether a claim is on a link without a carrier.
func (c *Claim) unplugged() bool {
	l := c.link()
	return l != nil && l.CarrierLost != 0 && (c.Counts() || c.Wire())
}

// answersBeside reports whether the kernel of an owner has the address, or answers for it, on another link of its node that is
// the same LAN as that of one of its claims.
func (o *Owner) answersBeside(c *Claim) bool {
	return !c.Wire() && slices.ContainsFunc(o.Claims, func(other *Claim) bool {
		l := other.Interface.Link
		return (other.Kind == WouldAnswer || other.Counts()) && l != nil && l.CarrierLost == 0 && sameLink(l, c.link())
	})
}

// away returns a claim of a kernel, or of a sender behind a port, that does not put its owner on a LAN any longer, because a
// cable is out; nil if there is none.
func (j *evaluation) away(o *Owner) *Claim {
	if i := slices.IndexFunc(o.Claims, func(c *Claim) bool { return !c.fromOutside() && j.cutOff(o, c) }); i >= 0 {
		return o.Claims[i]
	}
	return nil
}

// podNetwork is the network that is discovered without configuration: in Kubernetes, every pod has
// an address that is unique in the cluster.
const podNetwork = "pods"

// definitionPrefix begins the name of the network of a NetworkAttachmentDefinition.
const definitionPrefix = "nad/"

// DefinitionNetwork returns the name of the network of a NetworkAttachmentDefinition.
func DefinitionNetwork(namespace, name string) string {
	return definitionPrefix + namespace + "/" + name
}

// Definition returns the NetworkAttachmentDefinition in whose network the owners meet; empty if they
// meet in another scope.
func (i *Identity) Definition() (namespace, name string) {
	definition, found := strings.CutPrefix(i.Scope, definitionPrefix)
	if i.Kind != NetworkScope || !found {
		return "", ""
	}
	namespace, name, _ = strings.Cut(definition, "/")
	return namespace, name
}

// NetworkOfRuntime is what agents report as the network of an address that only the container
// runtime is known to have given.
const NetworkOfRuntime = "cri"

// NetworkOfAPI stands for the network of an address that only the Kubernetes API says a pod has.
const NetworkOfAPI = "kubernetes"

// NetworkOfDevice stands for the network of an address that a node has on the device through which its
// IPAM reaches pods.
const NetworkOfDevice = "device"

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
		if s := o.Served; name == "" && s != nil && o.Kind() == Pod && o.behind(c) { // as if its kernel had the address
			inside := Interface{Namespace: o.Namespace, Name: s.Interface, HostInterface: i.Name, MAC: c.MAC}
			return j.ofPod(&Claim{Kind: Assigned, Interface: &inside, Network: s.Network}, link)
		}
		return name
	case i.Attachment == Inner && i.isBridge():
		return "" // the gateway of an overlay network, which each node has
	case i.Attachment != Own && i.Attachment != Peer && i.Attachment != Lower && i.Attachment != Inner:
		return ""
	}
	if name, _ := j.declared(); name != "" {
		return name
	}
	switch {
	case i.Attachment == Inner:
		if link != nil && link.Kind == Overlay {
			return link.Name
		}
		return ""
	case i.Attachment == Own:
		return j.ofNode(c)
	case i.Namespace.Who.Kind() != Pod:
		return ""
	}
	return j.ofPod(c, link)
}

// ofNode returns the network of an address that a node itself has: the pod network if the address
// is in the node's own pod range, except on an uplink, or on the device through which its IPAM reaches
// pods.
func (j *evaluation) ofNode(c *Claim) string {
	// Bridges that are the same on all nodes (docker0) may be in the pod range of another node.
	if i := c.Interface; !i.PodDevice && (i.Uplink || !j.in.node(c.Node()).InPodCIDR) {
		return ""
	}
	return podNetwork
}

// ofPod returns the discovered network of an address that the kernel of a pod has.
func (j *evaluation) ofPod(c *Claim, link *Link) string {
	i := c.Interface
	pod := j.in.pod(i.Namespace)
	given := c.Network != "" && i.Name == FirstInterface
	if link == nil || link.Kind != OVSPort {
		if given || j.in.InPodCIDR {
			return podNetwork
		}
	} else {
		// Tenants may use the same ranges on purpose, so a range proves nothing.
		if at, known := pod.Membership(i.Name, j.in.Address, true); known {
			return at.Network
		}
		if ipam.SeparatesTenants(i.HostInterface) && !j.in.OneTenant {
			return "" // it is not known which tenant the pod belongs to
		}
		if given || pod != nil && slices.Contains(pod.IPs, j.in.Address) {
			return podNetwork
		}
	}
	at, known := pod.Membership(i.Name, j.in.Address, false)
	if !known || at.PerNode && !j.shareLAN(c, at.Network) {
		return ""
	}
	return at.Network
}

// shareLAN reports whether frames show that a pod shares a LAN with a pod on another node that has
// the address in the same network: a frame with the address and the MAC of each entered the node of
// the other from outside.
func (j *evaluation) shareLAN(c *Claim, network string) bool {
	return slices.ContainsFunc(j.in.Claims, func(other *Claim) bool {
		if other.Kind != Assigned || other.Node().Is(c.Node()) {
			return false
		}
		i := other.Interface
		at, known := j.in.pod(i.Namespace).Membership(i.Name, j.in.Address, false)
		return known && at.Network == network && j.entered(c, other.Node()) && j.entered(other, c.Node())
	})
}

// entered reports whether a frame with the address and the MAC of an interface entered a node from
// outside.
func (j *evaluation) entered(c *Claim, n *Node) bool {
	return slices.ContainsFunc(j.in.Claims, func(frame *Claim) bool {
		return frame.Wire() && !frame.Weak() && frame.Interface.Uplink && frame.MAC == c.Interface.MAC && frame.Node().Is(n)
	})
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

// link returns the link on which the address of a kernel is, or a frame was seen.
func (c *Claim) link() *Link {
	if c.Wire() {
		return c.Link
	}
	return c.Interface.Link
}

func linkScope(c *Claim) extent {
	l := c.link()
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

package verdict

import (
	"cmp"
	"slices"
)

// sender returns the namespace that sent a wire claim, and its interface if it is known. The
// namespace is nil for an external device, and the interface that of a macvtap device if it is a virtual machine behind one.
// The namespace behind the port comes first: if hardware addresses are derived from IP addresses, duplicates have the same one.
func (j *attribution) sender(c *Claim) (ns *Namespace, via *Interface, rule string) {
	port, n := c.Interface, c.Node()
	holders := j.in.holders(n, c.MAC)
	if port.Uplink && c.MAC.Shared() {
		// The frame came from outside. A namespace on another link of the node with the same
		// hardware address is not evidence.
		holders = slices.DeleteFunc(holders, func(h *Interface) bool { return !sameLink(h.Link, c.Link) })
	}
	if port.Peer != 0 {
		for _, h := range holders {
			if h.Namespace.Record == port.Peer && (via == nil || compareInterfaces(h, via) < 0) {
				via = h
			}
		}
		if via != nil {
			return via.Namespace, via, ""
		}
	}
	if j.cloned(c, c.MAC) != nil {
		return j.in.behind(port), nil, RuleMACCloned
	}
	if via = j.holderWithMAC(c); via == nil && port.Tap {
		via = j.guestNode(c)
	}
	if via != nil {
		return via.Namespace, via, ""
	}

	// Find the interface with the hardware address, on the node itself or on another node on this
	// link. A virtual router's address is no evidence, because any node may be the next master.
	if !c.MAC.Virtual() {
		via = j.nearest(holders)
	}
	inside := port.Peer != 0 && !port.Uplink
	if via == nil && !inside && !c.MAC.Virtual() {
		via = j.nearest(j.in.neighbours(c.Link, c.MAC))
	}
	if via != nil && via.Macvtap && inside {
		via = nil // a namespace uses the MAC of a virtual machine
	}
	switch {
	case via != nil && j.outside(c):
		return j.guestOn(c), nil, ""
	case via != nil && via.Macvtap && !j.mayAnswer(via, c):
		if guest := j.guestNode(c); guest != nil {
			return guest.Namespace, guest, ""
		}
		return nil, via, ""
	case via != nil:
		// A claim with the hardware address of a node that hosts the owner is a claim of the owner.
		if owner := j.assignedOn(via.Namespace.Node, c.Link); owner != nil && !j.assignedTo(via.Namespace) {
			return owner.Namespace, owner, RuleNodeMAC
		}
		return via.Namespace, via, ""
	case inside:
		if ns := j.in.behind(port); ns != nil {
			return ns, nil, RuleGuest
		}
	case j.hadMAC(c):
		return c.HadMAC.Namespace, c.HadMAC, ""
	case !c.MAC.Shared():
		return j.guestOn(c), nil, ""
	}
	return nil, nil, ""
}

// hadMAC reports whether a program in a namespace that has the address announced it with a MAC that an interface on the link had
// before. The announcement of another machine, which has the MAC now, would have entered the node of the interface, too.
func (j *attribution) hadMAC(c *Claim) bool {
	return c.HadMAC != nil && !c.Weak() && c.Interface.Uplink && sameLink(c.HadMAC.Link, c.Link) && c.HadMAC.Namespace.Node.reports() && j.assignedTo(c.HadMAC.Namespace) &&
		!slices.ContainsFunc(j.in.Claims, func(o *Claim) bool { return o.MAC == c.MAC && o.Wire() && o.Node().Is(c.HadMAC.Namespace.Node) })
}

// outside reports whether a machine outside with the MAC of a namespace has sent a frame: it sends others with that MAC and address
// that enter the node of the namespace.
func (j *attribution) outside(c *Claim) bool {
	if j.strangers == nil {
		j.strangers = []*Claim{}
		for _, o := range j.in.Claims {
			if o.FromOutside && j.stranger(o) {
				j.strangers = append(j.strangers, o)
			}
		}
	}
	return slices.ContainsFunc(j.strangers, func(o *Claim) bool { return o.MAC == c.MAC && sameLink(o.Link, c.Link) })
}

// stranger reports whether nothing on the node that a frame entered from outside, with a MAC of the node, may have sent it. Children
// of an ipvlan device have its MAC, and their frames for the node enter its uplink. A distributed gateway has one MAC on many
// nodes and switches.
func (j *attribution) stranger(c *Claim) bool {
	if c.Weak() || c.Link == nil || c.Link.Distributed || c.Interface.Tunnel() != "" || j.in.Virtual() || len(j.in.neighbours(c.Link, c.MAC)) > 0 {
		return false
	}
	onLink := false
	for _, h := range j.in.holders(c.Node(), c.MAC) {
		if h.Macvtap || h.Kind == "ipvlan" || h.Kind == "ipvtap" || j.in.runsMachine(h.Namespace) || h.Namespace.intent(j.in.Address).Source != "" {
			return false
		}
		onLink = onLink || sameLink(h.Link, c.Link)
	}
	return onLink && !slices.ContainsFunc(j.in.Claims, func(o *Claim) bool {
		return o.Node().Is(c.Node()) && (o.Kind.Kernel() || o.Wire() && !o.Interface.Uplink && o.MAC == c.MAC)
	})
}

// guestOn returns the pod whose virtual machine sent a frame that entered another node from outside; nil
// if there is none. The machine is known by its frames with the same hardware address, which enter through
// the port of the pod.
func (j *attribution) guestOn(c *Claim) *Namespace {
	if j.guests == nil { // computed once, because many nodes may have seen the frames
		j.guests = []*Claim{}
		for _, o := range j.in.Claims {
			if i := o.Interface; o.Wire() && !o.Weak() && i.Peer != 0 && !i.Uplink && j.in.runsMachine(j.in.behind(i)) {
				j.guests = append(j.guests, o)
			}
		}
	}
	var last *Claim
	for _, o := range j.guests {
		if o.MAC != c.MAC || o.Node().Is(c.Node()) || !sameLink(o.Link, c.Link) {
			continue
		}
		// After a migration, the frames are those of the pod that the machine is in now.
		if last == nil || o.Seen > last.Seen || o.Seen == last.Seen && compareClaims(o, last) < 0 {
			last = o
		}
	}
	if last == nil {
		return nil
	}
	return j.in.behind(last.Interface)
}

// holderWithMAC returns the interface on the claim's link that has both the address and the
// hardware address of the claim; nil if there is none. The claim's own node is preferred, unless the
// frame entered it from outside: then a clone of the node sent it.
func (j *attribution) holderWithMAC(c *Claim) (via *Interface) {
	for _, a := range j.assigned {
		i := a.Interface
		if i.MAC != c.MAC || !sameLink(i.Link, c.Link) {
			continue
		}
		order := -1
		if via != nil {
			order = compareFrom(c.Node(), i, via)
			if own := i.Namespace.Node.Is(c.Node()); c.Interface.Uplink && !c.MAC.Shared() && own != via.Namespace.Node.Is(c.Node()) {
				order = -order
			}
		}
		if order < 0 {
			via = i
		}
	}
	return via
}

// guestNode returns the interface of a virtual machine that runs an agent, if the interface has the
// address and the hardware address of a frame that a machine behind a port or macvtap device sent; nil if there is none. The
// frame then shows no second owner, even while the machine's uplink is not known to be on this
// link.
func (j *attribution) guestNode(c *Claim) (via *Interface) {
	if c.MAC.Shared() {
		return nil
	}
	for _, a := range j.assigned {
		if i := a.Interface; !a.Node().Is(c.Node()) && a.Counts() && i.MAC == c.MAC &&
			(via == nil || compareFrom(nil, i, via) < 0) {
			via = i
		}
	}
	return via
}

// mayAnswer reports whether the kernel of a node may have sent a frame with the MAC of a macvtap device of the node. While no
// virtual machine has opened it, the kernel receives the requests that arrive there (tap_handle_frame in drivers/net/tap.c), and
// answers them for all IPv4 addresses that it has, as on any interface (arp_ignore is 0). It announces none of them there.
func (j *attribution) mayAnswer(device *Interface, c *Claim) bool {
	return slices.ContainsFunc(j.in.Claims, func(k *Claim) bool {
		switch {
		case !k.Kind.Kernel() || !k.Interface.Namespace.Is(device.Namespace):
			return false
		case k.Kind == WouldAnswer:
			return sameLink(k.Interface.Link, c.Link)
		}
		return (c.Kind == Answered || c.Kind == Believed) && j.in.Address.Is4() && !j.sentUnsolicited(c)
	})
}

// nearest returns the first of several interfaces with a hardware address. Macvtap devices of virtual machines come last, and
// nodes that host an owner of the address first.
func (j *attribution) nearest(holders []*Interface) (via *Interface) {
	hosts := func(i *Interface) int {
		switch {
		case i.Macvtap:
			return 2
		case j.assignedOn(i.Namespace.Node, i.Link) != nil:
			return 0
		}
		return 1
	}
	for _, h := range holders {
		if via == nil || cmp.Or(hosts(h)-hosts(via), compareFrom(nil, h, via)) < 0 {
			via = h
		}
	}
	return via
}

// assignedOn returns the interface of a node whose kernel has the address, the nearest to a link;
// nil if there is none.
func (j *attribution) assignedOn(n *Node, l *Link) (owner *Interface) {
	for _, a := range j.assigned {
		if a.Node().Is(n) && (owner == nil || compareWitnessed(a.Interface, owner, l) < 0) {
			owner = a.Interface
		}
	}
	return owner
}

// assignedTo reports whether a namespace has the address on any interface.
func (j *attribution) assignedTo(ns *Namespace) bool {
	return slices.ContainsFunc(j.assigned, func(c *Claim) bool { return c.Interface.Namespace.Is(ns) })
}

// compareFrom orders interfaces of several nodes; those of n come first.
func compareFrom(n *Node, a, b *Interface) int {
	na, nb := a.Namespace.Node, b.Namespace.Node
	switch {
	case na.Is(nb):
		return compareInterfaces(a, b)
	case na.Is(n):
		return -1
	case nb.Is(n):
		return 1
	}
	return compareNodes(na, nb)
}

// compareWitnessed orders interfaces with the address by how near they are to a link.
func compareWitnessed(a, b *Interface, l *Link) int {
	far := func(i *Interface) int {
		switch {
		case i.Attachment == Local || i.Attachment == Private:
			return 2
		case !sameLink(i.Link, l):
			return 1
		}
		return 0
	}
	return cmp.Or(far(a)-far(b), compareInterfaces(a, b))
}

// sameLink reports whether two links are the same broadcast domain.
func sameLink(a, b *Link) bool {
	return a.Is(b) || a != nil && b != nil && a.Domain.Is(b.Domain)
}

// cloned returns the interface of another namespace that has a hardware address on the link of
// a claim; nil if there is none or the sender itself has the address. Hardware addresses that
// several interfaces share by design are ignored, and those of namespaces behind the port of another one.
func (j *evaluation) cloned(c *Claim, mac MAC) (victim *Interface) {
	port := c.Interface
	if mac == "" || port.Peer == 0 || port.Uplink || c.Link == nil || mac.Group() || mac.sharedByRouters() {
		return nil
	}
	sender := j.in.behind(port)
	if sender == nil || j.in.nested(sender) {
		return nil
	}
	two := []Owner{{ID: sender.ID, Node: sender.Node, Namespace: sender}, {}}
	for _, h := range j.in.holders(c.Node(), mac) {
		if h.Namespace.ID == sender.ID {
			return nil
		}
		if h.Is(port) || !h.Link.Is(c.Link) || h.Attachment == Inner || victim != nil && compareInterfaces(victim, h) <= 0 {
			continue
		}
		if two[1] = (Owner{ID: h.Namespace.ID, Node: h.Namespace.Node, Namespace: h.Namespace}); !samePod(two) && !sameVM(two) {
			victim = h
		}
	}
	return victim
}

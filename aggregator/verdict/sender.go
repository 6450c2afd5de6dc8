package verdict

import (
	"cmp"
	"slices"
)

// sender is the namespace whose frame a wire claim is, and its interface where
// that is known; no namespace for an external device. The port's own namespace
// comes first: where MACs are derived from addresses, duplicates have one MAC.
func (j *attributing) sender(c *Claim) (ns *Namespace, via *Interface, rule string) {
	port, n := c.Interface, c.Node()
	holders := j.in.holders(n, c.MAC)
	if port.Uplink && c.MAC.Shared() {
		// It came from outside: that a namespace elsewhere on the node has it, too,
		// says nothing.
		holders = slices.DeleteFunc(holders, func(h *Interface) bool { return !oneLink(h.Link, c.Link) })
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
	if via = j.both(c); via == nil {
		via = j.machine(c)
	}
	if via != nil {
		return via.Namespace, via, ""
	}

	// Who has the MAC: of the node itself, or of another one on this link. A
	// virtual router's says nothing: whoever may be the master next has it, too.
	if !c.MAC.Virtual() {
		via = j.nearest(holders)
	}
	inside := port.Peer != 0 && !port.Uplink
	if via == nil && !inside && !c.MAC.Virtual() {
		via = j.nearest(j.in.neighbours(c.Link, c.MAC))
	}
	switch {
	case via != nil:
		// The MAC of a node that hosts the owner witnesses that owner.
		if owner := j.hosted(via.Namespace.Node, c.Link); owner != nil && !j.assignedTo(via.Namespace) {
			return owner.Namespace, owner, RuleNodeMAC
		}
		return via.Namespace, via, ""
	case inside:
		if ns := j.in.behind(port); ns != nil {
			return ns, nil, RuleGuest
		}
	}
	return nil, nil, ""
}

// both is who has the address and the MAC of a wire claim on its link, whatever
// the node: its own node comes first.
func (j *attributing) both(c *Claim) (via *Interface) {
	for _, a := range j.assigned {
		if i := a.Interface; i.MAC == c.MAC && oneLink(i.Link, c.Link) &&
			(via == nil || compareFrom(c.Node(), i, via) < 0) {
			via = i
		}
	}
	return via
}

// machine is who has the address and the MAC of a frame that a virtual machine
// sent, on whatever link: one that is a node with an agent of its own. It is no
// second owner of a network, though no frame showed yet that its uplink is here.
func (j *attributing) machine(c *Claim) (via *Interface) {
	if !c.Interface.Tap || c.MAC.Shared() {
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

// nearest is the first of the interfaces that have a MAC. Where several nodes
// have it, one that hosts an owner of the address comes first.
func (j *attributing) nearest(holders []*Interface) (via *Interface) {
	hosts := func(i *Interface) int {
		if j.hosted(i.Namespace.Node, i.Link) != nil {
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

// hosted is the interface of a node that has the address by its kernel: the
// nearest to a link; nil for none.
func (j *attributing) hosted(n *Node, l *Link) (owner *Interface) {
	for _, a := range j.assigned {
		if a.Node().Is(n) && (owner == nil || compareWitnessed(a.Interface, owner, l) < 0) {
			owner = a.Interface
		}
	}
	return owner
}

// assignedTo tells whether a namespace has the address, on whatever interface.
func (j *attributing) assignedTo(ns *Namespace) bool {
	return slices.ContainsFunc(j.assigned, func(c *Claim) bool { return c.Interface.Namespace.Is(ns) })
}

// compareFrom orders interfaces of several nodes, those of one node first.
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
		case !oneLink(i.Link, l):
			return 1
		}
		return 0
	}
	return cmp.Or(far(a)-far(b), compareInterfaces(a, b))
}

// oneLink tells whether two links are one broadcast domain.
func oneLink(a, b *Link) bool {
	return a.Is(b) || a != nil && b != nil && a.Domain.Is(b.Domain)
}

// cloned returns the interface of another namespace that has a hardware address on the link of
// a claim; nil if there is none or the sender itself has the address. Hardware addresses that
// several interfaces share by design are ignored.
func (j *judging) cloned(c *Claim, mac MAC) (victim *Interface) {
	port := c.Interface
	if mac == "" || port.Peer == 0 || port.Uplink || c.Link == nil || mac.Group() || mac.routers() {
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
		if h.Is(port) || !h.Link.Is(c.Link) || victim != nil && compareInterfaces(victim, h) <= 0 {
			continue
		}
		if two[1] = (Owner{ID: h.Namespace.ID, Node: h.Namespace.Node, Namespace: h.Namespace}); !samePod(two) && !sameVM(two) {
			victim = h
		}
	}
	return victim
}

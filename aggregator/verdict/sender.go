package verdict

import (
	"cmp"
	"fmt"
	"slices"
)

// sender is the namespace whose frame a wire claim is, and its interface where
// that is known; no namespace for an external device. The port's own namespace
// comes first: where MACs are derived from addresses, duplicates have one MAC.
func (j *judging) sender(c *Claim) (ns *Namespace, via *Interface, rule string) {
	port, n := c.Interface, c.Node()
	holders := j.tables.Holders(n, c.MAC)
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

	// Who on this link has both address and MAC; of the node, who is nearest.
	var owner *Interface
	for _, a := range j.in.Claims {
		if a.Kind != Assigned || a.Node() != n {
			continue
		}
		i := a.Interface
		if i.MAC == c.MAC && sameLink(i.Link, c.Link) && (via == nil || compareInterfaces(i, via) < 0) {
			via = i
		}
		if owner == nil || compareWitnessed(i, owner, c.Link) < 0 {
			owner = i
		}
	}
	if via != nil {
		return via.Namespace, via, ""
	}
	// Who of the node has the MAC: it witnesses the node's owner, or is it.
	for _, h := range holders {
		if via == nil || compareInterfaces(h, via) < 0 {
			via = h
		}
	}
	switch {
	case via != nil && owner != nil && !j.assignedTo(via.Namespace):
		return owner.Namespace, owner, RuleNodeMAC
	case via != nil:
		return via.Namespace, via, ""
	case port.Peer != 0 && !port.Uplink:
		if ns := j.tables.Namespace(n, port.Peer); ns != nil {
			return ns, nil, RuleGuest
		}
	}
	return nil, nil, ""
}

// assignedTo tells whether a namespace has the address, on whatever interface.
func (j *judging) assignedTo(ns *Namespace) bool {
	return slices.ContainsFunc(j.in.Claims, func(c *Claim) bool {
		return c.Kind == Assigned && c.Interface.Namespace == ns
	})
}

// compareInterfaces orders the interfaces of one node, the agent's own first.
func compareInterfaces(a, b *Interface) int {
	return cmp.Or(cmp.Compare(a.Namespace.Record, b.Namespace.Record), cmp.Compare(a.Index, b.Index))
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

func sameLink(a, b *Link) bool {
	return a == b || (a != nil && b != nil && a.Node == b.Node && a.Name == b.Name)
}

func linkName(l *Link) string {
	if l == nil {
		return ""
	}
	return l.Name
}

// noteSender tells how a wire claim was attributed, where that is not plain.
func (j *judging) noteSender(rule string, c *Claim, ns *Namespace) {
	if c.Source != "" {
		j.note(RuleWeakSource, linkScope(c), true, fmt.Sprintf(
			"A frame on %s said that %s has the address, but was sent by %s: noted, never a rival.",
			witness(c), c.MAC, c.Source))
	}
	switch rule {
	case RuleNodeMAC:
		j.note(rule, linkScope(c), true, fmt.Sprintf(
			"%s, seen on %s, is a hardware address of node %s, which hosts %s: it witnesses that owner and is no rival.",
			c.MAC, witness(c), c.Node().Name, describe(ns, c)))
	case RuleGuest:
		j.note(rule, linkScope(c), true, fmt.Sprintf(
			"%s, seen on %s, is unknown and enters by the port of %s: a guest (such as a virtual machine) behind it, counted as that owner.",
			c.MAC, witness(c), describe(ns, c)))
	}
}

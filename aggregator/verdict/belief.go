package verdict

import (
	"net/netip"
	"slices"
)

// EntryState is how kernels use entries of their neighbour tables. The numbers are those of the API.
type EntryState uint8

// The states of entries.
const (
	EntryInUse     EntryState = iota + 1 // at least one was confirmed or used within the last minute
	EntryPermanent                       // set by a person or a program; the kernel never changes it
	EntryOld                             // neither; only in answers of agents
)

// A Belief is the hardware address to which namespaces of one node send packets for the address on a link. It is immutable.
type Belief struct {
	Link  *Link
	MAC   MAC
	State EntryState
	// Count is the number of holders, and Holders are the interfaces of some of them.
	Count   uint32
	Holders []*Interface
	// Since is since when the entries are wrong, by the clock of the node.
	Since Stamp
	// Receivers are the interfaces in the domain of the link that have the hardware address.
	Receivers []*Interface
	// Cards are the interfaces that have the hardware address and were not seen in that domain, of namespaces that have the
	// address.
	Cards []*Interface
	// Tunnel is the address to which the VXLAN device of the holders sends the frames, and Far is the only node that has it; the
	// zero Addr and nil if that is not known.
	Tunnel netip.Addr
	Far    *Node
	// Addresses is the number of addresses that are believed to have the hardware address on the link.
	Addresses int
	// Inside is set if agents see all interfaces on the link: no frames enter it from outside of the node, and no virtual
	// machine is on it.
	Inside bool
	// Left is when an owner with the hardware address left the address, and Former is its namespace; 0 and nil if that is
	// not known.
	Left   Stamp
	Former *Namespace
	// HadMAC is an interface of an owner that had the hardware address until Left, and with which the owner still announces the
	// address; nil if there is none. Nobody is known to believe it if Count is 0.
	HadMAC *Interface
	// RelayedBy are the hardware addresses of third parties whose frames keep the entries alive: see Relayed.
	RelayedBy []MAC
}

// Relayed returns the hardware addresses of third parties, such as access points with proxy ARP, if their frames are all that
// names an owner as the one with the hardware address, and its kernel, which an agent reports, lacks the address.
func (b *Belief) Relayed(o *Owner) (by []MAC) {
	if o.Namespace == nil || !o.Node.reports() || o.Has() {
		return nil
	}
	for _, c := range o.Claims {
		if c.Kind == Believed {
			continue
		}
		if c.Source == "" || c.MAC != b.MAC {
			return nil
		}
		if !slices.Contains(by, c.Source) {
			by = append(by, c.Source)
		}
	}
	return by
}

// Announced returns the newest announcement of the address by an owner with a hardware address that its interface had
// before, unless the owner has claimed the address rightly since; nil if there is none.
func (o *Owner) Announced() (last *Claim) {
	for _, c := range o.Claims {
		if c.announcedBy(o) && (last == nil || c.Seen > last.Seen) {
			last = c
		}
	}
	if last != nil && slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return (c.Kind == Announced || c.Kind == Used) && c.MAC == last.HadMAC.MAC && c.Seen > last.Seen
	}) {
		return nil
	}
	return last
}

// announcedBy reports whether a claim is an announcement of an owner with a hardware address that its interface had before.
func (c *Claim) announcedBy(o *Owner) bool {
	return c.HadMAC != nil && c.Link != nil && o.Namespace.Is(c.HadMAC.Namespace)
}

// BorneOut reports whether an owner has claimed the address with the hardware address, or both hardware addresses are of one
// group of GLBP.
func (b *Belief) BorneOut(o *Owner) bool {
	return len(b.Relayed(o)) == 0 && (b.MAC.balances(o.MAC) || slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.MAC == b.MAC && !c.announcedBy(o) || c.Source == b.MAC || c.Kind.Kernel() && c.Interface.MAC == b.MAC
	}))
}

// OfOwner reports whether an owner may receive what the holders send: it bears the belief out, or has the hardware address on
// another one of its interfaces.
func (b *Belief) OfOwner(o *Owner) bool {
	return b.BorneOut(o) || len(b.Relayed(o)) == 0 && slices.ContainsFunc(b.Receivers, func(i *Interface) bool { return i.Namespace.ID == o.ID })
}

// Meets reports whether an owner has address a on the link of the belief, elsewhere in its domain, or at the other end of the
// tunnel.
func (b *Belief) Meets(o *Owner, a netip.Addr) bool {
	return slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		l := c.Interface.Link
		switch {
		case c.Wire():
			l = c.Link
		case c.Kind != Assigned || c.Interface.NoARP && a.Is4():
			return false
		}
		return l != nil && (l.Is(b.Link) || l.Domain.Is(b.Link.Domain) || !c.Wire() && b.leadsTo(c.Interface)) && !c.Weak()
	})
}

// ReceivedBy returns which of some owners of address a get what the holders send, as indexes: those on the link of the belief,
// or else those elsewhere, unless several hosts have the hardware address by design. met is set if any of the owners is on the
// link.
func (b *Belief) ReceivedBy(owners []*Owner, a netip.Addr) (got []int, met bool) {
	near := false
	for i, o := range owners {
		on := b.Meets(o, a)
		met = met || on
		if !b.OfOwner(o) || !on && b.MAC.Shared() {
			continue
		}
		if on && !near {
			got, near = nil, true
		}
		if on == near {
			got = append(got, i)
		}
	}
	return got, met
}

// leadsTo reports whether the frames leave a tunnel at an interface: the VXLAN device of the same name on the node to which they are
// sent. Two clusters may have one name (which has the VNI in it, or is that of a plugin) and one range, but not one node.
func (b *Belief) leadsTo(i *Interface) bool {
	return b.Far != nil && i.Namespace.Node.Is(b.Far) && i.Attachment == Own && i.Kind == "vxlan" && i.Link.Name == b.Link.Name
}

// ToNode reports whether a node itself receives what the holders send. It passes it on if it forwards packets.
func (b *Belief) ToNode() bool {
	return slices.ContainsFunc(b.Receivers, func(i *Interface) bool { return i.Attachment == Own })
}

// Witnessed reports whether it is known that the hardware address is that of no host that passes the packets on. Routers and
// programs that answer for others have one hardware address for several addresses.
func (b *Belief) Witnessed() bool {
	switch {
	case b.MAC.Group(), b.MAC.sharedByRouters():
		return false
	case b.State == EntryPermanent: // a node that routes may be meant
		return !b.ToNode()
	case b.Left != 0:
		return true
	case b.Addresses >= SeveralOwned, b.ToNode():
		return false
	}
	return b.Inside || len(b.Receivers) > 0
}

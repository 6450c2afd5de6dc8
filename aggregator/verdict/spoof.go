package verdict

import (
	"net/netip"
	"slices"
)

// spoofDetection finds false claims to an address. The owners must be known.
type spoofDetection struct{ *evaluation }

// spoofs finds claims that use the address or the hardware address of another owner.
func (j spoofDetection) spoofs() {
	for i := range j.out.Owners {
		o := &j.out.Owners[i]
		for _, c := range o.Claims {
			if o.Outside() != nil && c.FromOutside {
				j.copied(o, c)
				continue
			}
			sender := j.behind(c)
			if sender == nil || sender.ID == o.ID && o.Assigned && c.MAC == o.MAC && c.Source == "" {
				continue // its own address
			}
			if j.in.nested(sender) {
				continue // the agent inside the namespace reports its own claims
			}
			j.clones(c, sender)
			j.spoof(c, sender)
		}
	}
	for i := range j.out.Spoofs {
		s := &j.out.Spoofs[i]
		if o := j.ownerOf(s.Sender); o != nil && o.Excluded != nil && o.Excluded.Rule != RuleStale {
			o.Excluded = &Exclusion{Rule: RuleAddressSpoofed, Port: s.Port.Name}
			for k := range s.Victims {
				o.Excluded.Victims = append(o.Excluded.Victims, s.Victims[k].ID)
			}
		}
		s.Owner = j.senderOwner(s)
	}
	for i := range j.out.Clones {
		j.out.Clones[i].Owner = j.senderOwner(&j.out.Clones[i])
	}
}

// senderOwner returns the sender of a spoof as an owner.
func (j spoofDetection) senderOwner(s *Spoof) Owner {
	if s.Sender == nil {
		return s.Owner
	}
	if o := j.ownerOf(s.Sender); o != nil {
		return *o
	}
	return Owner{ID: s.Sender.ID, Node: s.Sender.Node, Namespace: s.Sender, Interface: s.Port, MAC: s.MACs[0], State: Live}
}

// spoof records a claim to an address that the kernel of another owner has in the same scope,
// unless the sender is known to answer for it on purpose.
func (j spoofDetection) spoof(c *Claim, sender *Namespace) {
	if o := j.ownerOf(sender); o != nil && (o.Excluded == nil || o.Excluded.Rule == RuleStale || o.Excluded.Rule == RuleDeclaredShared) {
		return // two owners are a conflict, not a spoof
	}
	if c.Routed || j.holds(sender, c) {
		return
	}
	if _, declared := j.router(c, sender); declared {
		return
	}
	var victims []Owner
	for i := range j.out.Owners {
		if o := &j.out.Owners[i]; j.wronged(o, c, sender) {
			victims = append(victims, *o)
		}
	}
	if victims == nil {
		return
	}
	i := slices.IndexFunc(j.out.Spoofs, func(s Spoof) bool { return s.Port.Is(c.Interface) })
	if i < 0 {
		i = len(j.out.Spoofs)
		j.out.Spoofs = append(j.out.Spoofs, Spoof{Port: c.Interface, Sender: sender, Link: c.Link})
	}
	s := &j.out.Spoofs[i]
	s.see(c, c.MAC)
	for _, v := range victims {
		if !slices.ContainsFunc(s.Victims, func(o Owner) bool { return o.ID == v.ID }) {
			s.Victims = append(s.Victims, v)
		}
	}
}

// holds reports whether the kernel of a namespace has the address on an interface that counts, or that of
// another one behind it, which sent the frame.
func (j spoofDetection) holds(ns *Namespace, frame *Claim) bool {
	return slices.ContainsFunc(j.in.Claims, func(c *Claim) bool {
		i := c.Interface
		return (c.Kind == Assigned || c.Kind == DADFailed) && i.Attachment != Local && i.Attachment != Private &&
			(i.Namespace.ID == ns.ID || i.Attachment == Inner && i.MAC == frame.MAC && sameLink(i.Link, frame.Link))
	})
}

// wronged reports whether a claim falsely claims the address of an owner in the same scope. A claim
// that names the hardware address of the owner, or of the node that hosts the owner, is true,
// regardless of its sender.
func (j spoofDetection) wronged(o *Owner, c *Claim, sender *Namespace) bool {
	if !o.Assigned || !o.Alive() || o.Excluded != nil || o.Namespace == nil || o.ID == sender.ID {
		return false
	}
	two := []Owner{{ID: sender.ID, Node: sender.Node, Namespace: sender}, *o}
	if samePod(two) || sameVM(two) {
		return false
	}
	if o.Node.Is(c.Node()) && !c.MAC.sharedByRouters() && slices.ContainsFunc(j.in.holders(o.Node, c.MAC), func(h *Interface) bool { return h.Namespace.Record == OwnRecord }) {
		return false // legitimate: the hosting node delivers packets to the owner
	}
	for _, has := range o.Claims {
		if i := has.Interface; has.Counts() && i.MAC == c.MAC && sameLink(i.Link, c.Link) {
			return false
		}
	}
	meets := false
	j.reaches(&two[0], c, func(s extent) {
		for _, has := range o.Claims {
			if has.Counts() {
				j.scopes(o, has, func(other extent) { meets = meets || s.canonical() == other.canonical() })
			}
		}
	})
	return meets
}

// router returns the declaration by which a sender answers for others on purpose. A hardware
// address counts only for the namespace that has it, because any sender can write it into a
// frame.
func (j spoofDetection) router(c *Claim, sender *Namespace) (Router, bool) {
	for _, r := range j.policy.Routers {
		switch {
		case r.MAC != "":
			if r.MAC == c.MAC && slices.ContainsFunc(j.in.holders(c.Node(), c.MAC), func(h *Interface) bool { return h.Namespace.Is(sender) }) {
				return r, true
			}
		case r.names(sender):
			return r, true
		}
	}
	return Router{}, false
}

// clones records the hardware addresses of others in a frame. It waits for the settle time,
// because a frame may be reported before the hardware address of the sender's interface.
func (j spoofDetection) clones(c *Claim, sender *Namespace) {
	for _, mac := range []MAC{c.MAC, c.Source} {
		victim := j.cloned(c, mac)
		if victim == nil {
			continue
		}
		j.clone(c, mac, victim, Spoof{Sender: sender})
	}
}

// copied records the hardware address of a namespace in a frame of a machine outside that entered its node.
func (j spoofDetection) copied(o *Owner, c *Claim) {
	if holders := j.in.holders(c.Node(), c.MAC); holders != nil {
		j.clone(c, c.MAC, slices.MinFunc(holders, compareInterfaces), Spoof{Owner: *o})
	}
}

// clone records a frame with the hardware address of another namespace. by names the sender.
func (j spoofDetection) clone(c *Claim, mac MAC, victim *Interface, by Spoof) {
	if due := c.Begun.Add(j.policy.Settle); j.in.Now < due {
		j.again(due)
		return
	}
	i := slices.IndexFunc(j.out.Clones, func(s Spoof) bool { return s.Port.Is(c.Interface) && s.MACs[0] == mac })
	if i < 0 {
		ns := victim.Namespace
		i = len(j.out.Clones)
		by.Port, by.Link, by.Addresses = c.Interface, c.Link, []netip.Addr{j.in.Address}
		by.Victims = []Owner{{ID: ns.ID, Node: ns.Node, Namespace: ns, Interface: victim, MAC: mac, State: Live}}
		j.out.Clones = append(j.out.Clones, by)
	}
	j.out.Clones[i].see(c, mac)
}

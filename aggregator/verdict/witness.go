package verdict

import (
	"cmp"
	"slices"
)

// When owners were witnessed, and by which nodes.

// arrivals returns the indexes of owners in the order in which they got the address. The first
// sighting counts if that time is not known.
func arrivals(owners []Owner) []uint32 {
	order := make([]uint32, len(owners))
	for i := range owners {
		order[i] = uint32(i)
	}
	slices.SortStableFunc(order, func(a, b uint32) int { return cmp.Compare(owners[a].heldSince(), owners[b].heldSince()) })
	return order
}

// heldSince returns when an owner got the address or was first seen with it. Times are by the
// node's clock, corrected by its skew.
func (o *Owner) heldSince() Stamp {
	since := o.AssignedAt()
	for _, c := range o.Claims {
		if since == 0 || o.AssignedAt() == 0 && c.First != 0 && c.First < since {
			since = c.First
		}
	}
	return since.Add(-o.Node.Skew)
}

// Begun returns when the owner was first reported.
func (o *Owner) Begun() Stamp {
	first := o.Claims[0].Begun
	for _, c := range o.Claims {
		first = min(first, c.Begun)
	}
	return first
}

// readSince reports whether a connected node read the address from its kernel at a time or later.
func (o *Owner) readSince(at Stamp) bool {
	return o.State == Live && slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Counts() && c.Read >= at && !c.Node().Unheard
	})
}

// claimedSince reports whether the owner was seen on the wire at a time or later.
func (o *Owner) claimedSince(at Stamp) bool {
	return slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Wire() && !c.Weak() && c.Seen >= at && !c.Node().Unheard
	})
}

// claimedAs reports whether frames of a kind from the owner were seen at a time or later.
func (o *Owner) claimedAs(k Evidence, at Stamp) bool {
	return slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Kind == k && c.Wire() && !c.Weak() && c.Seen >= at && !c.Node().Unheard
	})
}

// readers appends the connected nodes that can read the owner's address again.
func (o *Owner) readers(nodes []*Node) []*Node {
	for _, c := range o.Claims {
		if n := c.Node(); c.Counts() && !n.Unheard && !slices.ContainsFunc(nodes, n.Is) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Counts reports whether the claim makes its owner an assigned one.
func (c *Claim) Counts() bool {
	return c.Kind == Assigned && c.Interface.Attachment != Local && c.Interface.Attachment != Private
}

// WouldAnswer reports whether the owner's kernel answers for the address on a link on which it does not have it, or
// may use it there as the sender of ARP requests.
func (o *Owner) WouldAnswer() bool {
	return o.ExcludedBy(RuleLoopbackOrDummy) || slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Kind == WouldAnswer })
}

// AnswerTogether returns the owners that do not have the address on a link but answer for it there, by frames after since or as
// their kernels would, if one of them was seen to answer or, with the address on a loopback or dummy device, to announce it; nil
// if there are no two. A node with rules about ARP may well drop its answers. If nobody is known to have the address, a proxy entry
// for it says that whoever has it is behind the node: with such entries on two nodes, it may be given to two hosts. proxy_arp alone,
// as on two routers to one network, says no such thing.
func (c *Case) AnswerTogether(owners []Owner, since Stamp) []Owner {
	unknown := !slices.ContainsFunc(owners, func(o Owner) bool { return o.Alive() && o.Excluded == nil })
	would := func(o *Owner, l extent) bool {
		proxy := unknown && o.ExcludedBy(RuleReachableVia)
		return (proxy || o.ExcludedBy(RuleLoopbackOrDummy) || o.Excluded == nil && o.Assigned) && slices.ContainsFunc(o.Claims, func(k *Claim) bool {
			return k.Kind == WouldAnswer && (!proxy || k.Answer.By == ByProxyEntry) && k.Answer.Filter != FilterRules && linkScope(k).canonical() == l
		})
	}
	did := func(o *Owner, frame *Claim, l extent) bool {
		return frame.Wire() && !frame.Weak() && linkScope(frame).canonical() == l && (frame.shows(since) || would(o, l)) &&
			(o.ExcludedBy(RuleLoopbackOrDummy) || o.Excluded == nil && c.weakHost(o, frame) || o.ExcludedBy(RuleReachableVia) && would(o, l))
	}
	for i := range owners {
		for _, shown := range owners[i].Claims {
			l := linkScope(shown).canonical()
			if len(owners) < 2 || l == (extent{}) || shown.Kind != Announced && shown.Kind != Answered || !did(&owners[i], shown, l) {
				continue
			}
			together := slices.DeleteFunc(slices.Clone(owners), func(o Owner) bool {
				return !o.Alive() || !would(&o, l) && !slices.ContainsFunc(o.Claims, func(frame *Claim) bool { return did(&o, frame, l) })
			})
			if len(together) > 1 {
				return together
			}
		}
	}
	return nil
}

// AnswersFor returns the claim by which the owner's kernel answers for the address on a link on which another
// owner has it, or used it there as the sender of ARP requests or answers after since; nil if it does so on no such link. Frames with
// another MAC than that of an owner whose kernel has the address may be answers of the node itself.
func (o *Owner) AnswersFor(other *Owner, since Stamp) *Claim {
	for _, c := range o.Claims {
		if l := linkScope(c).canonical(); (c.Kind == WouldAnswer || c.Seen > since && o.leaks(c, other)) && l != (extent{}) && slices.ContainsFunc(other.Claims, func(has *Claim) bool {
			return (has.Counts() || has.Wire() && !has.Weak() && (!other.Assigned || has.MAC == other.MAC)) && linkScope(has).canonical() == l
		}) {
			return c
		}
	}
	return nil
}

// reports reports whether what the node has is known.
func (n *Node) reports() bool { return n.Listed != 0 && !n.Unheard }

// RespondsFor returns the claim by which the owner answers for the address after since, although its kernel would not, on a
// link on which another owner has the address and shows it: the node that saw the answer is the other owner's, or has seen the
// other owner's own hardware address there, too. The owner is a node on which a program answers, or a device outside of all nodes
// that answers for several owners. It is nil if there is no such claim. A proxy answers for owners that are not on the link,
// or that neighbours do not reach there. If it was reported before, a node that is disconnected since counts as it was.
func (o *Owner) RespondsFor(other *Owner, since Stamp, reported bool) *Claim {
	known := func(n *Node) bool { return n.reports() || reported && !n.TimedOut }
	if !o.ExcludedBy(RuleReachableVia) || o.Namespace != nil && !known(o.Node) ||
		(o.Excluded.Proxy != ByOwnMAC || o.Kind() != Host) && o.Excluded.Proxy != BySeveralOwners {
		return nil
	}
	for _, c := range o.Claims {
		l := linkScope(c).canonical()
		if c.Kind != Answered || c.Weak() || c.Seen <= since || l == (extent{}) || !known(c.Node()) || o.Namespace != nil && other.isBehind(o.Node, l, since) {
			continue
		}
		on, shown := false, false
		for _, has := range other.Claims {
			on = on || (has.Counts() || o.Namespace != nil && !other.Assigned && has.shows(since)) && linkScope(has).canonical() == l
			shown = shown || has.Counts() && has.Interface.Attachment == Own && has.Interface.Link.Is(c.Link) ||
				has.Wire() && !has.Weak() && has.MAC != c.MAC && has.Interface.Is(c.Interface) && has.Link.Is(c.Link)
		}
		if on && shown {
			return c
		}
	}
	return nil
}

// Proxies reports whether a claim is that of a kernel that answers for the address as a proxy.
func (c *Claim) Proxies() bool {
	return c.Kind == WouldAnswer && (c.Answer.By == ByProxyARP || c.Answer.By == ByProxyEntry)
}

// Misleads returns the claim by which the owner's kernel answers for the address as a proxy, although no owner is behind
// its node, on a link where another node answers for the other owner, which is behind that node. It returns nil if there
// is no such claim.
func (o *Owner) Misleads(other *Owner, all []Owner, since Stamp) *Claim {
	for _, c := range o.Claims {
		l := linkScope(c).canonical()
		if !c.Proxies() || l == (extent{}) || slices.ContainsFunc(all, func(r Owner) bool { return r.isBehind(o.Node, l, since) }) {
			continue
		}
		for i := range all {
			if p := &all[i]; p.Alive() && !p.Node.Is(o.Node) && other.isInside(p.Node, l, since) &&
				slices.ContainsFunc(p.Claims, func(c *Claim) bool { return c.Proxies() && linkScope(c).canonical() == l }) {
				return c
			}
		}
	}
	return nil
}

// isBehind reports whether the owner has the address on another link of a node than the given one, by a kernel or by frames
// after since.
func (o *Owner) isBehind(n *Node, l extent, since Stamp) bool {
	return o.Alive() && o.Excluded == nil && slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Node().Is(n) && c.shows(since) && linkScope(c).canonical() != l
	})
}

// isInside reports whether the owner has the address on a link of a node to which no other node is known to be connected, and
// otherwise at most on the given link, where the node answers for it.
func (o *Owner) isInside(n *Node, at extent, since Stamp) bool {
	inside := false
	for _, c := range o.Claims {
		l := c.Interface.Link
		if c.Wire() {
			l = c.Link
		}
		switch {
		case !c.shows(since), linkScope(c).canonical() == at:
		case l == nil || l.Domain != nil || l.Kind != Bridge && l.Kind != PointToPoint || !c.Node().Is(n):
			return false
		default:
			inside = true
		}
	}
	return inside && o.Alive() && o.Excluded == nil
}

// On returns the claim by which the owner has the address on a link of a node: that of a kernel, or else the newest of the
// frames that entered there after since. It returns nil if there is none.
func (o *Owner) On(l *Link, since Stamp) (newest *Claim) {
	at := extent{Kind: LinkScope, Node: l.Node.Key(), Name: l.Name, Domain: l.Domain.Key()}
	for _, c := range o.Claims {
		if c.shows(since) && linkScope(c) == at && (newest == nil || !newest.Counts() && (c.Counts() || c.Seen > newest.Seen)) {
			newest = c
		}
	}
	return newest
}

// shows reports whether a kernel has the address, or a frame after since claims it. Frames that a disconnected node saw do not
// expire, because nothing can refresh them.
func (c *Claim) shows(since Stamp) bool {
	return c.Counts() || c.Wire() && !c.Weak() && (c.Seen > since || c.Node().Unheard)
}

// leaks reports whether the owner, which has the address on a loopback or dummy device, used it as the sender of an ARP
// request, or answered for it if it is no node, after both owners had it as they have it now. It may have given the address up
// on the link before. What the kernel of a node would answer is known, and programs on nodes answer for virtual addresses.
func (o *Owner) leaks(c *Claim, other *Owner) bool {
	if !o.ExcludedBy(RuleLoopbackOrDummy) || c.Kind != Used && (o.Kind() == Host || c.Kind != Answered && c.Kind != Announced) || c.Weak() {
		return false
	}
	for _, since := range []*Owner{o, other} {
		certain := minClockDifference
		if !since.Node.Is(c.Node()) {
			certain += since.Node.SkewWithin + c.Node().SkewWithin
		}
		together := since.Node.Is(c.Node()) || since.Node.SkewKnown && c.Node().SkewKnown // their clocks can be compared
		if !together || c.Last.Add(-c.Node().Skew).Sub(since.heldSince()) < certain {
			return false
		}
	}
	return true
}

// DADFailed reports whether duplicate address detection failed in a kernel of the owner.
func (o *Owner) DADFailed() bool {
	return o.Excluded == nil && slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Kind == DADFailed && c.Interface.Attachment != Local && c.Interface.Attachment != Private
	})
}

// Yielded reports whether a program of the owner, such as a DHCP client, gave the address up because another host claimed it
// (RFC 5227, section 2.4).
func (o *Owner) Yielded() bool {
	return o.DADFailed() && slices.ContainsFunc(o.Claims, (*Claim).yielded)
}

// yielded reports whether detection failed in a program, and not in the kernel.
func (c *Claim) yielded() bool { return c.Kind == DADFailed && c.Flags&FlagDADFailed == 0 }

// Deleted reports whether the kernel of the owner deleted the address when detection of duplicates failed, as it
// does with an address that has a lifetime.
func (o *Owner) Deleted() bool {
	return o.DADFailed() && !o.Yielded() && !slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Kind == DADFailed && c.Flags&FlagPermanent != 0
	})
}

// FlagDADFailed is IFA_F_DADFAILED, which a kernel sets in Claim.Flags.
const FlagDADFailed = 0x08

// Temporary reports whether the owner has the address for a limited time: a DHCP client or a router advertisement set it.
func (o *Owner) Temporary() bool {
	all := o.Assigned
	for _, c := range o.Claims {
		all = all && (c.Kind != Assigned || !c.Counts() || c.Flags&FlagPermanent == 0)
	}
	return all
}

// FlagPermanent is IFA_F_PERMANENT, which a kernel sets in Claim.Flags for an address without a lifetime.
const FlagPermanent = 0x80

// FlagSecondary is IFA_F_SECONDARY, which a kernel sets in Claim.Flags for each IPv4 address of an interface but the
// first one in its subnet, and an agent for each IPv6 address that was set after another one. It is IFA_F_TEMPORARY, too.
const FlagSecondary = 0x01

// flagDeprecated is IFA_F_DEPRECATED, which a kernel sets in Claim.Flags for an address with a preferred lifetime of 0.
const flagDeprecated = 0x20

// alternate reports whether two owners alternate on the wire (A-B-A) within AlternateWithin.
func alternate(owners []Owner) bool {
	for i := range owners {
		for k := range owners {
			if i != k && owners[i].surrounds(&owners[k]) {
				return true
			}
		}
	}
	return false
}

// surrounds reports whether the owner was seen before and after the other one. Answers that different nodes have got may be
// those of one machine, which balances its load by answering each asker with another MAC (bonding in mode balance-alb), and so
// may those of the routers of one group of GLBP.
func (o *Owner) surrounds(other *Owner) bool {
	if o.Namespace == nil && other.Namespace == nil && o.MAC.balances(other.MAC) {
		return false
	}
	for _, a := range o.Claims {
		if !a.Wire() || a.Weak() || a.Before == 0 || a.Seen.Sub(a.Before) > AlternateWithin {
			continue
		}
		for _, b := range other.Claims {
			asked := a.Kind == Answered && b.Kind == Answered && !a.Node().Is(b.Node())
			if b.Wire() && !b.Weak() && !asked && a.Before < b.Seen && b.Seen < a.Seen {
				return true
			}
		}
	}
	return false
}

package verdict

import (
	"cmp"
	"slices"
)

// When and by what owners are witnessed.

// arrivals returns the indexes of owners in the order in which they got the address. If that is
// not known, the time of the first sighting counts.
func arrivals(owners []Owner) []uint32 {
	order := make([]uint32, len(owners))
	for i := range owners {
		order[i] = uint32(i)
	}
	slices.SortStableFunc(order, func(a, b uint32) int { return cmp.Compare(owners[a].heldSince(), owners[b].heldSince()) })
	return order
}

// heldSince returns when an owner got the address or was first seen with it, by its node's
// clock minus the clock's skew.
func (o *Owner) heldSince() Stamp {
	since := o.AssignedAt()
	for _, c := range o.Claims {
		if since == 0 || o.AssignedAt() == 0 && c.First != 0 && c.First < since {
			since = c.First
		}
	}
	return since.Add(-o.Node.Skew)
}

// Begun is when the owner was first heard of.
func (o *Owner) Begun() Stamp {
	first := o.Claims[0].Begun
	for _, c := range o.Claims {
		first = min(first, c.Begun)
	}
	return first
}

// readSince tells whether a kernel that is heard from had the address at a time or later.
func (o *Owner) readSince(at Stamp) bool {
	return o.State == Live && slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Counts() && c.Read >= at && !c.Node().Unheard
	})
}

// claimedSince tells whether the wire showed the owner at a time or later.
func (o *Owner) claimedSince(at Stamp) bool {
	return slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Wire() && !c.Weak() && c.Seen >= at && !c.Node().Unheard
	})
}

// readers adds the nodes that can read the owner's address again.
func (o *Owner) readers(nodes []*Node) []*Node {
	for _, c := range o.Claims {
		if n := c.Node(); c.Counts() && !n.Unheard && !slices.ContainsFunc(nodes, n.Is) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Counts tells whether the claim makes its owner an assigned one.
func (c *Claim) Counts() bool {
	return c.Kind == Assigned && c.Interface.Attachment != Local && c.Interface.Attachment != Private
}

// DADFailed reports whether duplicate address detection failed in a kernel of the owner.
func (o *Owner) DADFailed() bool {
	return o.Excluded == nil && slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Kind == DADFailed && c.Interface.Attachment != Local && c.Interface.Attachment != Private
	})
}

// alternate tells whether two owners were seen A-B-A within ten seconds.
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

// surrounds tells whether the owner was seen before and after the other one.
func (o *Owner) surrounds(other *Owner) bool {
	for _, a := range o.Claims {
		if !a.Wire() || a.Weak() || a.Before == 0 || a.Seen.Sub(a.Before) > AlternateWithin {
			continue
		}
		for _, b := range other.Claims {
			if b.Wire() && !b.Weak() && a.Before < b.Seen && b.Seen < a.Seen {
				return true
			}
		}
	}
	return false
}

package verdict

import "slices"

// What a subscriber is to hear of: a change of what is shown. That an owner was seen once more is
// none.

// Equal reports whether two judgements say the same about an owner.
func (o *Owner) Equal(other *Owner) bool {
	return o.ID == other.ID && o.State == other.State && o.Scope == other.Scope && o.MAC == other.MAC && o.Assigned == other.Assigned &&
		o.Orphaned == other.Orphaned && o.Excluded.Equal(other.Excluded) && o.Pod.equal(other.Pod) &&
		o.Interface.shownAs(other.Interface) && o.Namespace.shownAs(other.Namespace) &&
		slices.EqualFunc(o.Claims, other.Claims, func(a, b *Claim) bool {
			return a == b || a.Kind == b.Kind && a.MAC == b.MAC && a.Node().Is(b.Node()) && a.Interface.Name == b.Interface.Name
		})
}

// shownAs reports whether two records of an interface look the same.
func (i *Interface) shownAs(other *Interface) bool {
	return i == other || i.Name == other.Name && i.HostInterface == other.HostInterface && i.MAC == other.MAC
}

// shownAs reports whether two records of a namespace look the same.
func (ns *Namespace) shownAs(other *Namespace) bool {
	return ns == other || ns != nil && other != nil && ns.Who == other.Who && ns.Intended == other.Intended
}

// equal reports whether the Kubernetes API says the same.
func (p *PodObject) equal(other *PodObject) bool {
	if p == nil || other == nil {
		return p == other
	}
	return p == other || p.Namespace == other.Namespace && p.Name == other.Name && p.UID == other.UID && p.Node == other.Node &&
		p.Phase == other.Phase && p.ControllerKind == other.ControllerKind && p.Controller == other.Controller &&
		p.VirtualMachine == other.VirtualMachine && slices.Equal(p.IPs, other.IPs) && p.HostNetwork == other.HostNetwork &&
		p.RuntimeClass == other.RuntimeClass && p.DeletionTimestamp == other.DeletionTimestamp && p.Absent == other.Absent
}

// Equal reports whether two judgements say the same about a conflict.
func (c *Conflict) Equal(other *Conflict) bool {
	same := func(a, b Owner) bool { return a.Equal(&b) }
	return c.Phase == other.Phase && c.Episode == other.Episode && c.Rule == other.Rule && c.LinkProof == other.LinkProof &&
		c.Why.equal(&other.Why) && c.Keeper == other.Keeper && c.Right == other.Right &&
		c.Ending.Kind == other.Ending.Kind && c.Ending.Owner == other.Ending.Owner && c.Ending.Excluded.Equal(other.Ending.Excluded) &&
		slices.EqualFunc(c.Owners, other.Owners, same) && slices.EqualFunc(c.Bystanders, other.Bystanders, same) &&
		slices.EqualFunc(c.Checks, other.Checks, Check.equal) && slices.EqualFunc(c.Allocations, other.Allocations, (*Allocation).Is)
}

// equal reports whether the causes are the same and follow from the same facts.
func (w *Why) equal(other *Why) bool {
	return w.Cause == other.Cause && w.Headline.same(other.Headline) && slices.EqualFunc(w.Facts, other.Facts, Fact.Equal) &&
		slices.EqualFunc(w.RuledOut, other.RuledOut, func(a, b RuledOut) bool {
			return a.Cause == b.Cause && a.Open == b.Open && a.Fact.Equal(b.Fact)
		})
}

// equal reports whether the same is to be seen.
func (c Check) equal(other Check) bool {
	return c.Step == other.Step && slices.EqualFunc(c.Facts, other.Facts, Fact.Equal)
}

// Equal reports whether two audits say the same about a finding. That a spoof was seen once more
// is no change.
func (f *Finding) Equal(other *Finding) bool {
	return f.Severity == other.Severity && f.Pool.Is(other.Pool) && f.Spoof.equal(other.Spoof) &&
		slices.EqualFunc(f.Allocations, other.Allocations, (*Allocation).Is) &&
		slices.EqualFunc(f.Owners, other.Owners, func(a, b Owner) bool { return a.Equal(&b) })
}

func (s *Spoof) equal(other *Spoof) bool {
	return s == other || s != nil && other != nil && slices.Equal(s.MACs, other.MACs)
}

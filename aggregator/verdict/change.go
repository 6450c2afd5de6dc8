package verdict

import "slices"

// Same reports whether two records of an owner look the same to a subscriber. A later sighting is
// not a change.
func (o *Owner) Same(other *Owner) bool {
	return o.ID == other.ID && o.State == other.State && o.Scope == other.Scope && o.Excluded.Same(other.Excluded) && o.MAC == other.MAC &&
		o.Assigned == other.Assigned && o.Orphaned == other.Orphaned &&
		o.Interface.same(other.Interface) && o.Pod.same(other.Pod) && o.Namespace.same(other.Namespace, o, other) &&
		slices.EqualFunc(o.Claims, other.Claims, (*Claim).same)
}

// same reports whether two interfaces look the same to a subscriber.
func (i *Interface) same(other *Interface) bool {
	return i == other || i != nil && other != nil &&
		i.Name == other.Name && i.HostInterface == other.HostInterface && i.MAC == other.MAC
}

// same reports whether two namespaces, with their owners, look the same to a subscriber.
func (ns *Namespace) same(other *Namespace, o, p *Owner) bool {
	return ns == other || ns != nil && other != nil && ns.Intended == other.Intended && o.Workload() == p.Workload()
}

// same reports whether two claims look the same to a subscriber.
func (c *Claim) same(other *Claim) bool {
	return c == other || c.Kind == other.Kind && c.MAC == other.MAC && c.Node().Is(other.Node()) && c.Interface.Name == other.Interface.Name && (c.Wire() || c.Routed == other.Routed)
}

// same reports whether two versions of a pod are equal, apart from when they were received.
func (p *PodObject) same(other *PodObject) bool {
	if p == other || p == nil || other == nil {
		return p == other
	}
	return slices.Equal(p.IPs, other.IPs) && slices.Equal(p.Memberships, other.Memberships) && p.Namespace == other.Namespace && p.Name == other.Name && p.UID == other.UID &&
		p.Node == other.Node && p.Phase == other.Phase && p.ControllerKind == other.ControllerKind && p.Controller == other.Controller &&
		p.VirtualMachine == other.VirtualMachine && p.MachineNode == other.MachineNode && p.Migrating == other.Migrating && p.HostNetwork == other.HostNetwork && p.RuntimeClass == other.RuntimeClass &&
		p.DeletionTimestamp == other.DeletionTimestamp && p.Absent == other.Absent
}

// Same reports whether two records of a pool are equal.
func (p *Pool) Same(other *Pool) bool {
	return p.Is(other) && p.Traits == other.Traits && p.State == other.State && p.Problem == other.Problem && p.Network == other.Network && p.Realm == other.Realm &&
		slices.Equal(p.Networks, other.Networks) && p.LostAt == other.LostAt && p.Lost == other.Lost &&
		p.Wiring == other.Wiring && p.Asked == other.Asked && p.Grows == other.Grows && p.Single == other.Single && p.Unread == other.Unread && p.Partial == other.Partial &&
		p.Config == other.Config && p.Base == other.Base && slices.Equal(p.Ranges, other.Ranges) && slices.Equal(p.Divided, other.Divided) && p.Services == other.Services && slices.Equal(p.Gateways, other.Gateways) && p.Server == other.Server && p.ClientID == other.ClientID
}

// Same reports whether two records of a conflict look the same to a subscriber.
func (c *Conflict) Same(other *Conflict) bool {
	same := func(a, b Owner) bool { return a.Same(&b) }
	return c.Phase == other.Phase && c.Episode == other.Episode && c.Rule == other.Rule && c.Moves == other.Moves && c.LinkProof == other.LinkProof &&
		sameWhy(&c.Why, &other.Why) && c.Keeper == other.Keeper && c.Right == other.Right &&
		c.Ending.Kind == other.Ending.Kind && c.Ending.Owner == other.Ending.Owner && c.Ending.Excluded.Same(other.Ending.Excluded) &&
		slices.EqualFunc(c.Owners, other.Owners, same) && slices.EqualFunc(c.Bystanders, other.Bystanders, same) &&
		slices.EqualFunc(c.Checks, other.Checks, Check.same) && slices.EqualFunc(c.Allocations, other.Allocations, (*Allocation).Is)
}

// sameWhy reports whether the causes are the same and follow from the same facts.
func sameWhy(w, other *Why) bool {
	return w.Cause == other.Cause && w.Headline.same(other.Headline) && slices.EqualFunc(w.Facts, other.Facts, Fact.Equal) &&
		slices.EqualFunc(w.RuledOut, other.RuledOut, func(a, b RuledOut) bool {
			return a.Cause == b.Cause && a.Open == b.Open && a.Fact.Equal(b.Fact)
		})
}

// same reports whether two checks have the same facts.
func (c Check) same(other Check) bool {
	return c.Step == other.Step && slices.EqualFunc(c.Facts, other.Facts, Fact.Equal)
}

package verdict

import "cmp"

// compareClaims orders the claims of one owner: kernel claims before wire claims, and interfaces
// that count before others.
func compareClaims(a, b *Claim) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Interface.Attachment, b.Interface.Attachment),
		compareNodes(a.Node(), b.Node()),
		cmp.Compare(a.Interface.Name, b.Interface.Name),
		cmp.Compare(a.Interface.Index, b.Interface.Index),
		cmp.Compare(a.MAC, b.MAC),
		cmp.Compare(a.VLAN, b.VLAN),
		cmp.Compare(a.InnerVLAN, b.InnerVLAN),
		compareBools(a.NoOverride, b.NoOverride),
		cmp.Compare(a.Source, b.Source),
	)
}

// compareOwners orders owners as the API does: by node, namespace and interface.
func compareOwners(a, b Owner) int {
	return cmp.Or(
		cmp.Compare(a.Node.Name, b.Node.Name),
		compareNumbers(a.netns(), b.netns()),
		cmp.Compare(a.Interface.Name, b.Interface.Name),
		cmp.Compare(a.ID, b.ID),
	)
}

// compareNodes orders nodes by name, then by identity.
func compareNodes(a, b *Node) int {
	return a.Key().compare(b.Key())
}

// compare orders keys as compareNodes does.
func (k NodeKey) compare(other NodeKey) int {
	return cmp.Or(cmp.Compare(k.Name, other.Name), cmp.Compare(k.Boot, other.Boot), cmp.Compare(k.Netns, other.Netns), cmp.Compare(k.Vouched, other.Vouched))
}

// Compare orders links by node, then by name.
func (k LinkKey) Compare(other LinkKey) int {
	return cmp.Or(k.Node.compare(other.Node), cmp.Compare(k.Name, other.Name))
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// compareNumbers orders decimal numbers without leading zeros.
func compareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// comparePools orders pools; cluster-wide pools come first.
func comparePools(a, b *Pool) int {
	switch {
	case a.Node == nil && b.Node != nil:
		return -1
	case a.Node != nil && b.Node == nil:
		return 1
	case a.Node != nil:
		if c := compareNodes(a.Node, b.Node); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(a.IPAM, b.IPAM), cmp.Compare(a.Name, b.Name))
}

// compareAllocations orders allocations by their pools.
func compareAllocations(a, b *Allocation) int {
	return cmp.Or(
		comparePools(a.Pool, b.Pool), cmp.Compare(a.Location, b.Location), cmp.Compare(a.Node, b.Node),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
		cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.MAC, b.MAC),
	)
}

// compareInterfaces orders the interfaces of one node, the agent's own first.
func compareInterfaces(a, b *Interface) int {
	return cmp.Or(cmp.Compare(a.Namespace.Record, b.Namespace.Record), cmp.Compare(a.Index, b.Index))
}

func (o *Owner) netns() string {
	if o.Namespace == nil {
		return ""
	}
	return o.Namespace.Netns
}

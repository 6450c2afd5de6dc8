package audit

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Same reports whether two findings with the same ID look the same to a subscriber. A later
// sighting of an owner is not a change.
func Same(a, b *verdict.Finding) bool {
	return a.Severity == b.Severity && a.Address == b.Address && a.Source == b.Source && slices.Equal(a.Addresses, b.Addresses) &&
		slices.EqualFunc(a.Allocations, b.Allocations, (*verdict.Allocation).Is) &&
		slices.EqualFunc(a.Owners, b.Owners, func(a, b verdict.Owner) bool { return a.Same(&b) }) &&
		// In a finding about a pool, all of its contents are compared.
		(a.Stock != nil || a.Pool.Is(b.Pool)) && sameParts(a.Stock, b.Stock, func(s, t *verdict.Stock) bool {
		return a.Pool.Same(b.Pool) && s.Use == t.Use && slices.EqualFunc(s.AtRisk, t.AtRisk, sameHeld)
	}) &&
		sameParts(a.Spoof, b.Spoof, func(a, b *verdict.Spoof) bool { return slices.Equal(a.MACs, b.MACs) }) &&
		slices.Equal(a.Endpoints, b.Endpoints) && slices.EqualFunc(a.Beliefs, b.Beliefs, sameBelief) &&
		sameParts(a.Former, b.Former, func(a, b *verdict.Former) bool {
			return a.Owner.ID == b.Owner.ID && a.Until == b.Until && a.Since == b.Since && a.Owner.Workload() == b.Owner.Workload()
		}) &&
		sameParts(a.Overlap, b.Overlap, func(a, b *verdict.Overlap) bool {
			same := func(a, b verdict.Side) bool {
				a.LAN = b.LAN // a LAN may get another name
				return SameSide(a, b)
			}
			return a.Range == b.Range && same(a.Sides[0], b.Sides[0]) && same(a.Sides[1], b.Sides[1]) && slices.Equal(a.Nodes, b.Nodes)
		}) &&
		sameParts(a.Namesakes, b.Namesakes, func(a, b *verdict.Namesakes) bool { return a.Name == b.Name && slices.Equal(a.Machines, b.Machines) })
}

// sameParts compares parts of findings that are nil in findings of other kinds.
func sameParts[T any](a, b *T, same func(a, b *T) bool) bool {
	return a == nil && b == nil || a != nil && b != nil && same(a, b)
}

func sameBelief(a, b verdict.Belief) bool {
	return a.MAC == b.MAC && a.Link.Is(b.Link) && a.State == b.State && a.Count == b.Count && a.Former == b.Former &&
		slices.EqualFunc(a.Holders, b.Holders, func(i, k *verdict.Interface) bool { return i.Is(k) && i.Namespace.Who == k.Namespace.Who })
}

func sameHeld(a, b verdict.Held) bool {
	if a.Owner == nil || b.Owner == nil {
		return a == b
	}
	return a.Address == b.Address && a.Owner.ID == b.Owner.ID && a.Owner.Workload() == b.Owner.Workload()
}

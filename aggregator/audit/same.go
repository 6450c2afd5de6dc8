package audit

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Same reports whether two findings with the same ID look the same to a subscriber. A later
// sighting of an owner is not a change.
func Same(a, b *verdict.Finding) bool {
	return a.Severity == b.Severity && a.Address == b.Address && a.Source == b.Source && samePool(a, b) && sameSpoof(a.Spoof, b.Spoof) &&
		slices.EqualFunc(a.Allocations, b.Allocations, (*verdict.Allocation).Is) &&
		slices.EqualFunc(a.Owners, b.Owners, func(a, b verdict.Owner) bool { return a.Same(&b) }) &&
		sameFormer(a.Former, b.Former) && sameOverlap(a.Overlap, b.Overlap) && sameNames(a.Namesakes, b.Namesakes)
}

// samePool compares the pools of two findings. In a finding about a pool, all of its contents are
// compared.
func samePool(a, b *verdict.Finding) bool {
	if a.Stock == nil || b.Stock == nil {
		return a.Stock == b.Stock && a.Pool.Is(b.Pool)
	}
	return a.Pool.Same(b.Pool) && a.Stock.Use == b.Stock.Use && slices.EqualFunc(a.Stock.AtRisk, b.Stock.AtRisk, sameHeld)
}

func sameHeld(a, b verdict.Held) bool {
	if a.Owner == nil || b.Owner == nil {
		return a == b
	}
	return a.Address == b.Address && a.Owner.ID == b.Owner.ID && a.Owner.Workload() == b.Owner.Workload()
}

func sameFormer(a, b *verdict.Former) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Owner.ID == b.Owner.ID && a.Until == b.Until && a.Since == b.Since &&
		a.Owner.Workload() == b.Owner.Workload()
}

func sameSpoof(a, b *verdict.Spoof) bool {
	return a == nil && b == nil || a != nil && b != nil && slices.Equal(a.MACs, b.MACs)
}

func sameOverlap(a, b *verdict.Overlap) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Range == b.Range &&
		SameSide(a.Sides[0], b.Sides[0]) && SameSide(a.Sides[1], b.Sides[1]) && slices.Equal(a.Nodes, b.Nodes)
}

func sameNames(a, b *verdict.Namesakes) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Name == b.Name && slices.Equal(a.Machines, b.Machines)
}

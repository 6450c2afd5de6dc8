package show

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// order is an order in which items can be sorted.
type order[T any] struct {
	name    string
	compare func(a, b T) int
}

func ownerOrders() []order[*pb.Owner] {
	return []order[*pb.Owner]{
		{"address", func(a, b *pb.Owner) int { return CompareAddresses(a.GetAddress(), b.GetAddress()) }},
		{"age", func(a, b *pb.Owner) int { return CompareTimes(heldSince(a), heldSince(b)) }},
		{"interface", by((*pb.Owner).GetInterface)},
		{"node", by((*pb.Owner).GetNode)},
		{"scope", func(a, b *pb.Owner) int { return compareScopes(a.GetScope(), b.GetScope()) }},
		{"state", by((*pb.Owner).GetState)},
		{"workload", by(Name)},
	}
}

func conflictOrders() []order[*pb.Conflict] {
	return []order[*pb.Conflict]{
		{"address", func(a, b *pb.Conflict) int { return CompareAddresses(a.GetAddress(), b.GetAddress()) }},
		{"cause", by((*pb.Conflict).GetCause)},
		{"id", by((*pb.Conflict).GetId)},
		{"owners", by(ConflictNames)},
		{"scope", func(a, b *pb.Conflict) int { return compareScopes(a.GetScope(), b.GetScope()) }},
		{"since", func(a, b *pb.Conflict) int { return CompareTimes(a.GetDetectedAt(), b.GetDetectedAt()) }},
		{"state", by((*pb.Conflict).GetState)},
	}
}

// OwnerOrders returns the names of the orders of owners.
func OwnerOrders() []string { return orderNames(ownerOrders()) }

// ConflictOrders returns the names of the orders of conflicts.
func ConflictOrders() []string { return orderNames(conflictOrders()) }

// SortOwners sorts owners in an order, the oldest first if it is one of time. Equal owners, and all if
// the name is empty, stay in the order that they have.
func SortOwners(owners []*pb.Owner, name string) { sortBy(owners, ownerOrders(), name) }

// SortConflicts sorts conflicts as SortOwners sorts owners.
func SortConflicts(conflicts []*pb.Conflict, name string) { sortBy(conflicts, conflictOrders(), name) }

func orderNames[T any](orders []order[T]) (names []string) {
	for _, o := range orders {
		names = append(names, o.name)
	}
	return names
}

func sortBy[T any](items []T, orders []order[T], name string) {
	for _, o := range orders {
		if o.name == name {
			slices.SortStableFunc(items, o.compare)
		}
	}
}

// by returns the order of a field.
func by[T any, K cmp.Ordered](key func(T) K) func(a, b T) int {
	return func(a, b T) int { return cmp.Compare(key(a), key(b)) }
}

// CompareAddresses compares addresses as numbers, IPv4 first. Other texts are before all addresses.
func CompareAddresses(a, b string) int {
	x, _ := netip.ParseAddr(a)
	y, _ := netip.ParseAddr(b)
	return cmp.Or(x.Compare(y), strings.Compare(a, b))
}

// CompareTimes compares times. Unknown times are last.
func CompareTimes(a, b *timestamppb.Timestamp) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.AsTime().Compare(b.AsTime())
}

// compareScopes compares scopes by their kind, from narrow to wide, and by their name.
func compareScopes(a, b *pb.Scope) int {
	return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), strings.Compare(a.GetName(), b.GetName()))
}

package show

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// OwnerOrders and ConflictOrders are the columns by which lists can be sorted.
var (
	OwnerOrders    = []string{"address", "age", "interface", "node", "scope", "state", "workload"}
	ConflictOrders = []string{"address", "cause", "id", "owners", "scope", "since", "state"}
)

// SortOwners sorts owners by a column, the oldest first if it is one of time. Equal owners, and all if
// the name is empty, stay in the order that they have.
func SortOwners(owners []*pb.Owner, name string) { sortBy(owners, OwnerColumns(), name) }

// SortConflicts sorts conflicts as SortOwners sorts owners.
func SortConflicts(conflicts []*pb.Conflict, name string) { sortBy(conflicts, ConflictColumns(), name) }

func sortBy[T any](items []T, columns []Column[T], name string) {
	for _, c := range columns {
		if strings.EqualFold(c.Header, name) {
			slices.SortStableFunc(items, c.Compare)
		}
	}
}

// by returns the order of a field.
func by[T any, K cmp.Ordered](key func(T) K) func(a, b T) int {
	return func(a, b T) int { return cmp.Compare(key(a), key(b)) }
}

// most returns the order of a field, the highest value first.
func most[T any, K cmp.Ordered](key func(T) K) func(a, b T) int {
	return func(a, b T) int { return cmp.Compare(key(b), key(a)) }
}

// byAddress returns the order of an address.
func byAddress[T any](address func(T) string) func(a, b T) int {
	return func(a, b T) int { return CompareAddresses(address(a), address(b)) }
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

// byScope returns the order of a scope: by its kind, from narrow to wide, and by its name.
func byScope[T interface{ GetScope() *pb.Scope }](a, b T) int {
	x, y := a.GetScope(), b.GetScope()
	return cmp.Or(cmp.Compare(x.GetKind(), y.GetKind()), strings.Compare(x.GetName(), y.GetName()))
}

// CompareUrgency compares conflicts by how urgent they are, and by when they began, the newest first.
func CompareUrgency(a, b *pb.Conflict) int {
	rank := func(c *pb.Conflict) int { return slices.Index(urgency, conflictTone(c)) }
	return cmp.Or(cmp.Compare(rank(a), rank(b)), CompareTimes(b.GetDetectedAt(), a.GetDetectedAt()))
}

// urgency has the tones of conflicts, the most urgent first.
var urgency = []Tone{BadTone, WarnTone, DimTone, GoodTone}

package show

import (
	"net/netip"
	"slices"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Marks says which owners do not have their address to themselves.
type Marks struct {
	conflicts map[string]*pb.Conflict // by the key of an owner
	holders   map[string]int          // number of listed owners of an address
}

// NewMarks returns the marks of listed owners.
func NewMarks(owners []*pb.Owner, conflicts []*pb.Conflict) *Marks {
	m := &Marks{conflicts: map[string]*pb.Conflict{}, holders: map[string]int{}}
	for _, o := range owners {
		m.holders[o.GetAddress()]++
	}
	for _, c := range conflicts {
		for _, o := range c.GetOwners() {
			key := OwnerKey(o)
			if before := m.conflicts[key]; before == nil || worse(c, before) {
				m.conflicts[key] = c
			}
		}
	}
	return m
}

// worse reports whether a conflict matters more than another one of the same owner, in another scope.
func worse(c, than *pb.Conflict) bool {
	return slices.Index(urgency, conflictTone(c)) < slices.Index(urgency, conflictTone(than))
}

// of returns the state of the conflict that an owner takes part in; "shared" if there is none and the
// address has other owners.
func (m *Marks) of(o *pb.Owner) string {
	switch c := m.conflicts[OwnerKey(o)]; {
	case c != nil:
		return ConflictState(c)
	case m.holders[o.GetAddress()] > 1:
		return "shared"
	}
	return ""
}

// tone returns the tone of a mark.
func (m *Marks) tone(o *pb.Owner) Tone {
	if c := m.conflicts[OwnerKey(o)]; c != nil {
		return conflictTone(c)
	}
	return PlainTone
}

// marked inserts the column of the marks, if there are any, after the columns of each table.
func marked(columns []Column[*pb.Owner], m *Marks) []Column[*pb.Owner] {
	if m == nil {
		return columns
	}
	at := slices.IndexFunc(columns, func(c Column[*pb.Owner]) bool { return c.wide })
	return slices.Insert(columns, at, NewColumn("CONFLICT", 0, m.of, m.tone))
}

// WithoutLinkLocal returns the owners whose addresses are not link-local, and those that take part in
// a conflict. Every interface has an IPv6 link-local address, which says nothing about a workload.
func (m *Marks) WithoutLinkLocal(owners []*pb.Owner) []*pb.Owner {
	return slices.DeleteFunc(slices.Clone(owners), func(o *pb.Owner) bool {
		a, err := netip.ParseAddr(o.GetAddress())
		return err == nil && a.IsLinkLocalUnicast() && (m == nil || m.conflicts[OwnerKey(o)] == nil)
	})
}

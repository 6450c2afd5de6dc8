package show

import (
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const evidenceHeader = "EVIDENCE"

// OwnerKind is how owners of addresses are listed.
var OwnerKind = Kind[*pb.Owner]{
	Name: "owner", Key: ownerKey, ID: (*pb.Owner).GetAddress, columns: ownerColumns,
	Orders: []string{"address", "age", "interface", "node", "scope", "state", "workload"},
}

func ownerColumns() []Column[*pb.Owner] {
	return []Column[*pb.Owner]{
		{Header: "ADDRESS", Order: byAddress((*pb.Owner).GetAddress), room: 15, cell: func(o *pb.Owner, _ time.Time) string { return o.GetAddress() }},
		{Header: "WORKLOAD", trait: trait{cut: 24}, room: 24, cell: func(o *pb.Owner, _ time.Time) string { return pb.OwnerName(o) }},
		{Header: "NODE", trait: trait{rank: 2, cut: 12}, room: 12, cell: func(o *pb.Owner, _ time.Time) string { return o.GetNode() }},
		{Header: "INTERFACE", trait: trait{rank: 7}, room: 9, cell: func(o *pb.Owner, _ time.Time) string { return o.GetInterface() }},
		{Header: evidenceHeader, trait: trait{rank: 8}, room: 17, cell: func(o *pb.Owner, _ time.Time) string { return evidenceKinds(o) }},
		{Header: "STATE", trait: trait{rank: 3}, Tone: ownerTone, Order: by((*pb.Owner).GetState), room: 7, cell: func(o *pb.Owner, _ time.Time) string { return o.GetState().String() }},
		{Header: "AGE", trait: trait{rank: 5}, ages: true, at: heldSince, cell: func(o *pb.Owner, now time.Time) string { return age(heldSince(o), now) }},
		{Header: "MAC", trait: trait{rank: 9}, wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetMac() }},
		{Header: "HOST-INTERFACE", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetHostInterface() }},
		{Header: "NETNS", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetNetns() }},
		{Header: "SOURCE", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetWorkload().GetSource() }},
		{Header: "CONTAINER", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return pb.ShortID(o.GetWorkload().GetContainerId()) }},
		{Header: "PROCESS", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetWorkload().GetProcess() }},
		{Header: "CONTROLLER", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return controller(o.GetWorkload()) }},
		{Header: "PHASE", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return phase(o.GetWorkload()) }},
		{Header: "INTENDED", wide: true, cell: func(o *pb.Owner, _ time.Time) string {
			var words []string
			for _, i := range o.GetIntended() { // the addresses that the owner should have but does not
				words = append(words, i.GetAddress()+" ("+i.GetSource()+")")
			}
			return strings.Join(words, ", ")
		}},
		{Header: "SCOPE", Order: byScope[*pb.Owner], trait: trait{rank: 10}, wide: true, cell: func(o *pb.Owner, _ time.Time) string { return scope(o.GetScope()) }},
		{Header: "NOT COMPARED", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetExcluded() }},
	}
}

// Owners writes owners as a table. The table has no evidence if no owner has any, as in a state of
// the past, and does not say which owners are in conflict without marks.
func Owners(w io.Writer, owners []*pb.Owner, marks *Marks, layout Layout, now time.Time) error {
	columns := narrow(marks.Kind().columns(), layout.Wide)
	if !slices.ContainsFunc(owners, func(o *pb.Owner) bool { return len(o.GetEvidence()) > 0 }) {
		columns = slices.DeleteFunc(columns, func(c Column[*pb.Owner]) bool { return c.Header == evidenceHeader })
	}
	return list(w, layout, clustered(columns, owners), owners, now)
}

func ownerKey(o *pb.Owner) string { return o.GetAddress() + "|" + holder(o) }

// holder returns the key of an owner, which is the same for all of its addresses: its namespace or,
// for an external device, its MAC address on one port.
func holder(o *pb.Owner) string {
	if o.GetWorkload().GetKind() == pb.Workload_EXTERNAL || o.GetNetns() == "" {
		return o.GetCluster() + "|" + o.GetNode() + "|" + o.GetInterface() + "|" + o.GetMac()
	}
	return o.GetCluster() + "|" + o.GetNode() + "|" + o.GetNetns()
}

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
			key := ownerKey(o)
			if before := m.conflicts[key]; before == nil || urgency(c) < urgency(before) { // it may be in several scopes
				m.conflicts[key] = c
			}
		}
	}
	return m
}

// of returns the state of the conflict that an owner takes part in. If there is none, it returns "orphaned" for the
// sandbox of a pod that has ended or no longer exists, and "shared" if the address has other owners.
func (m *Marks) of(o *pb.Owner) string {
	switch c := m.conflicts[ownerKey(o)]; {
	case c != nil:
		return ConflictState(c)
	case o.GetWorkload().GetOrphaned():
		return "orphaned"
	case m.holders[o.GetAddress()] > 1:
		return "shared"
	}
	return ""
}

// Kind returns how owners with marks are listed, or without if there are none.
func (m *Marks) Kind() Kind[*pb.Owner] {
	if m == nil {
		return OwnerKind
	}
	return OwnerKind.WithColumn("CONFLICT", m.of, func(o *pb.Owner) Tone {
		if c := m.conflicts[ownerKey(o)]; c != nil {
			return conflictTone(c)
		}
		return PlainTone
	})
}

// WithoutLinkLocal returns the owners whose addresses are not link-local, and those that take part in
// a conflict. Every interface has an IPv6 link-local address, which says nothing about a workload.
func (m *Marks) WithoutLinkLocal(owners []*pb.Owner) []*pb.Owner {
	return slices.DeleteFunc(slices.Clone(owners), func(o *pb.Owner) bool {
		a, err := netip.ParseAddr(o.GetAddress())
		return err == nil && a.IsLinkLocalUnicast() && (m == nil || m.conflicts[ownerKey(o)] == nil)
	})
}

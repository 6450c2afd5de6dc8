package show

import (
	"io"
	"slices"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Headers of columns that are looked for.
const evidenceHeader, addressHeader = "EVIDENCE", "ADDRESS"

// ownerColumns returns the columns of a table of owners.
func ownerColumns() []column[*pb.Owner] {
	return []column[*pb.Owner]{
		{header: addressHeader, room: 15, cell: func(o *pb.Owner, _ time.Time) string { return o.GetAddress() }},
		{header: "WORKLOAD", room: 24, cell: func(o *pb.Owner, _ time.Time) string { return Name(o) }},
		{header: "NODE", trait: trait{rank: 2}, room: 12, cell: func(o *pb.Owner, _ time.Time) string { return o.GetNode() }},
		{header: "INTERFACE", trait: trait{rank: 7}, room: 9, cell: func(o *pb.Owner, _ time.Time) string { return o.GetInterface() }},
		{header: evidenceHeader, trait: trait{rank: 8}, room: 17, cell: func(o *pb.Owner, _ time.Time) string { return evidenceKinds(o) }},
		{header: "STATE", trait: trait{rank: 3}, tone: ownerTone, room: 7, cell: func(o *pb.Owner, _ time.Time) string { return o.GetState().String() }},
		{header: "AGE", trait: trait{rank: 5}, ages: true, at: heldSince, cell: func(o *pb.Owner, now time.Time) string { return age(heldSince(o), now) }},
		{header: "MAC", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetMac() }},
		{header: "HOST-INTERFACE", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetHostInterface() }},
		{header: "NETNS", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetNetns() }},
		{header: "SOURCE", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetWorkload().GetSource() }},
		{header: "CONTAINER", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return shortID(o.GetWorkload().GetContainerId()) }},
		{header: "PROCESS", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetWorkload().GetProcess() }},
		{header: "CONTROLLER", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return controller(o.GetWorkload()) }},
		{header: "PHASE", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return phase(o.GetWorkload()) }},
		{header: "INTENDED", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return intended(o) }},
		{header: "SCOPE", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return scope(o.GetScope()) }},
		{header: "NOT COMPARED", wide: true, cell: func(o *pb.Owner, _ time.Time) string { return o.GetExcluded() }},
	}
}

// Owners writes owners as a table. The table has no evidence if no owner has any, as in a state of
// the past, and does not say which owners are in conflict without marks.
func Owners(w io.Writer, owners []*pb.Owner, marks *Marks, layout Layout, now time.Time) error {
	columns := narrow(marked(ownerColumns(), marks), layout.Wide)
	if !slices.ContainsFunc(owners, func(o *pb.Owner) bool { return len(o.GetEvidence()) > 0 }) {
		columns = slices.DeleteFunc(columns, func(c column[*pb.Owner]) bool { return c.header == evidenceHeader })
	}
	return list(w, layout, clustered(columns, owners), owners, now)
}

// OwnerChanges returns a Changes of owners.
func OwnerChanges() *Changes[*pb.Owner] { return NewChanges(OwnerKey) }

// OwnerKey returns the key of an owner of an address, which is the same in all events of a watch.
func OwnerKey(o *pb.Owner) string { return o.GetAddress() + "|" + holder(o) }

// holder returns the key of an owner, which is the same for all of its addresses: its namespace or,
// for an external device, its MAC address on one port.
func holder(o *pb.Owner) string {
	if o.GetWorkload().GetKind() == pb.Workload_EXTERNAL || o.GetNetns() == "" {
		return o.GetCluster() + "|" + o.GetNode() + "|" + o.GetInterface() + "|" + o.GetMac()
	}
	return o.GetCluster() + "|" + o.GetNode() + "|" + o.GetNetns()
}

package top

import (
	"cmp"
	"time"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A conflict that is resolved stays in the list for a while, so that its end is seen.
const resolvedFor = 5 * time.Minute

// listedConflict returns what the list shows of a conflict. The evidence and the steps to take, which are
// most of it, are requested when the conflict is opened.
func listedConflict(c *pb.Conflict) *pb.Conflict {
	return &pb.Conflict{
		Id: c.GetId(), Address: c.GetAddress(), State: c.GetState(), Acknowledgement: c.GetAcknowledgement(), Scope: c.GetScope(),
		Cause: c.GetCause(), DetectedAt: c.GetDetectedAt(), ResolvedAt: c.GetResolvedAt(), Owners: listedOwners(c.GetOwners()),
	}
}

// listedFinding returns what the list shows of a finding.
func listedFinding(f *pb.Finding) *pb.Finding {
	return &pb.Finding{
		Id: f.GetId(), Kind: f.GetKind(), Severity: f.GetSeverity(), Address: f.GetAddress(), Addresses: f.GetAddresses(), Nodes: f.GetNodes(),
		Pool: f.GetPool(), Summary: f.GetSummary(), DetectedAt: f.GetDetectedAt(), Owners: listedOwners(f.GetOwners()),
	}
}

// listedOwners returns what names owners.
func listedOwners(owners []*pb.Owner) (out []*pb.Owner) {
	for _, o := range owners {
		out = append(out, &pb.Owner{Node: o.GetNode(), Netns: o.GetNetns(), Interface: o.GetInterface(), Mac: o.GetMac(), Workload: o.GetWorkload()})
	}
	return out
}

// active reports whether a conflict is not resolved.
func active(c *pb.Conflict) bool { return c.GetState() != pb.Conflict_RESOLVED }

func conflictTable() table[*pb.Conflict] {
	columns := show.ConflictKind.Pick("STATE", "ADDRESS", "OWNERS", "SINCE", "CAUSE", "SCOPE", "ID")
	columns.Columns[0].Order = show.CompareUrgency
	return table[*pb.Conflict]{grid: columns, key: show.ConflictKind.Key, details: conflictPage, sorted: -1, order: func(a, b *pb.Conflict) int {
		return cmp.Or(show.CompareUrgency(a, b), show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetId(), b.GetId()))
	}}
}

func findingTable() table[*pb.Finding] {
	columns := show.FindingKind.Pick("SEVERITY", "KIND", "ADDRESS", "HOLDER", "NODE", "POOL", "SINCE", "SUMMARY")
	return table[*pb.Finding]{grid: columns, key: show.FindingKind.Key, details: findingPage, sorted: -1, order: func(a, b *pb.Finding) int {
		return cmp.Or(cmp.Compare(b.GetSeverity(), a.GetSeverity()), cmp.Compare(a.GetKind(), b.GetKind()),
			cmp.Compare(show.PoolName(a.GetPool()), show.PoolName(b.GetPool())),
			show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetId(), b.GetId()))
	}}
}

// ownerTable returns the table of owners. conflicts has the states of the addresses in conflict.
func ownerTable(conflicts map[string]pb.Conflict_State) table[*pb.Owner] {
	state := func(o *pb.Owner) string {
		switch state, ok := conflicts[o.GetAddress()]; {
		case ok:
			return state.String()
		case o.GetExcluded() != "":
			return "not compared"
		}
		return ""
	}
	toned := func(o *pb.Owner) tone {
		switch state := conflicts[o.GetAddress()]; {
		case state == pb.Conflict_CONFIRMED:
			return bad
		case state == pb.Conflict_SUSPECTED:
			return warn
		case o.GetExcluded() != "":
			return dim
		}
		return plain
	}
	columns := show.OwnerKind.WithColumn("CONFLICT", state, toned).Pick(
		"ADDRESS", "WORKLOAD", "CONFLICT", "NODE", "INTERFACE", "STATE", "AGE", "EVIDENCE", "MAC", "SCOPE")
	columns.Columns[0].Tone, columns.Columns[1].Tone = toned, toned
	details := func(s *Server, o *pb.Owner) *page { return explainPage(s, o.GetAddress()) }
	return table[*pb.Owner]{grid: columns, key: show.OwnerKind.Key, details: details, sorted: -1, order: func(a, b *pb.Owner) int {
		return cmp.Or(show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(show.OwnerKind.Key(a), show.OwnerKind.Key(b)))
	}}
}

func nodeTable() table[*pb.Node] {
	toned := func(n *pb.Node) tone {
		switch {
		case n.GetState() != pb.Node_LIVE:
			return bad
		case len(n.GetProblems()) > 0:
			return warn
		}
		return good
	}
	urgent := func(a, b *pb.Node) int { return cmp.Compare(toned(a), toned(b)) } // the tones are in this order
	columns := show.NodeKind.Pick("STATE", "NAME", "LAST HEARD", "WIRE", "PORTS", "CLAIMS", "LOST", "VERSION", "KERNEL", "PROBLEMS")
	columns.Columns[0].Tone, columns.Columns[0].Order = toned, urgent
	return table[*pb.Node]{grid: columns, key: show.NodeKind.Key, details: nodePage, sorted: -1, order: func(a, b *pb.Node) int {
		return cmp.Or(urgent(a, b), cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(show.NodeKind.Key(a), show.NodeKind.Key(b)))
	}}
}

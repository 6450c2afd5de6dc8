package top

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// picked returns the columns of a list. A cell has at most a few lines.
func picked[T any](columns []show.Column[T], picks ...column[T]) []column[T] {
	for i := range picks {
		p := &picks[i]
		c := columns[slices.IndexFunc(columns, func(c show.Column[T]) bool { return c.Header == p.header })]
		p.cell = func(item T, now time.Time) []string { return some(c.Lines(item, now)) }
		if p.tone == nil {
			p.tone = c.Tone
		}
		if p.compare == nil && !p.fixed {
			p.compare = c.Compare
		}
	}
	return picks
}

// most is the maximum number of lines of a cell.
const most = 3

// some returns the first texts, and the number of the others.
func some(texts []string) (lines []string) {
	for i, s := range texts {
		if i == most-1 && len(texts) > most {
			return append(lines, fmt.Sprintf("and %d more", len(texts)-i))
		}
		lines = append(lines, visible(s))
	}
	return lines
}

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
	order := func(a, b *pb.Conflict) int {
		return cmp.Or(show.CompareUrgency(a, b), show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetId(), b.GetId()))
	}
	return newTable((*pb.Conflict).GetId, order, conflictPage, picked(show.ConflictColumns(),
		column[*pb.Conflict]{header: "STATE", compare: show.CompareUrgency},
		column[*pb.Conflict]{header: "ADDRESS"},
		column[*pb.Conflict]{header: "OWNERS", least: 32},
		column[*pb.Conflict]{header: "SINCE", drop: 1},
		column[*pb.Conflict]{header: "CAUSE", drop: 2},
		column[*pb.Conflict]{header: "SCOPE", drop: 3},
		column[*pb.Conflict]{header: "ID", drop: 4, fixed: true},
	))
}

func findingTable() table[*pb.Finding] {
	bySeverity := func(a, b *pb.Finding) int { return cmp.Compare(b.GetSeverity(), a.GetSeverity()) }
	order := func(a, b *pb.Finding) int {
		return cmp.Or(bySeverity(a, b), cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(show.PoolName(a.GetPool()), show.PoolName(b.GetPool())),
			show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetId(), b.GetId()))
	}
	return newTable((*pb.Finding).GetId, order, findingPage, picked(show.FindingColumns(),
		column[*pb.Finding]{header: "SEVERITY", compare: bySeverity},
		column[*pb.Finding]{header: "KIND"},
		column[*pb.Finding]{header: "ADDRESS", least: 15},
		column[*pb.Finding]{header: "HOLDER", drop: 2, least: 20},
		column[*pb.Finding]{header: "NODE", drop: 3, least: 12},
		column[*pb.Finding]{header: "POOL", drop: 4},
		column[*pb.Finding]{header: "SINCE", drop: 1},
		column[*pb.Finding]{header: "SUMMARY", drop: 5, least: 60, fixed: true},
	))
}

// ownerTable returns the table of owners. conflicts has the states of the addresses in conflict.
func ownerTable(conflicts map[string]pb.Conflict_State) table[*pb.Owner] {
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
	state := func(o *pb.Owner) string {
		switch state, ok := conflicts[o.GetAddress()]; {
		case ok:
			return state.String()
		case o.GetExcluded() != "":
			return "not compared"
		}
		return ""
	}
	columns := append(show.OwnerColumns(), show.NewColumn("CONFLICT", state, toned))
	order := func(a, b *pb.Owner) int {
		return cmp.Or(show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(show.OwnerKey(a), show.OwnerKey(b)))
	}
	untoned := func(*pb.Owner) tone { return plain }
	details := func(s *Server, o *pb.Owner) *page { return explainPage(s, o.GetAddress()) }
	return newTable(show.OwnerKey, order, details, picked(columns,
		column[*pb.Owner]{header: "ADDRESS", tone: toned},
		column[*pb.Owner]{header: "WORKLOAD", least: 24, tone: toned},
		column[*pb.Owner]{header: "CONFLICT", drop: 1},
		column[*pb.Owner]{header: "NODE", drop: 2, least: 12},
		column[*pb.Owner]{header: "INTERFACE", drop: 5},
		column[*pb.Owner]{header: "STATE", drop: 3, tone: untoned},
		column[*pb.Owner]{header: "AGE", drop: 4},
		column[*pb.Owner]{header: "EVIDENCE", drop: 6, fixed: true},
		column[*pb.Owner]{header: "MAC", drop: 7, fixed: true},
		column[*pb.Owner]{header: "SCOPE", drop: 8, fixed: true},
	))
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
	most := func(number func(*pb.Node) uint32) func(a, b *pb.Node) int {
		return func(a, b *pb.Node) int { return cmp.Compare(number(b), number(a)) }
	}
	order := func(a, b *pb.Node) int {
		return cmp.Or(urgent(a, b), cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(show.NodeKey(a), show.NodeKey(b)))
	}
	return newTable(show.NodeKey, order, nodePage, picked(show.NodeColumns(),
		column[*pb.Node]{header: "STATE", tone: toned, compare: urgent},
		column[*pb.Node]{header: "NAME", least: 16},
		column[*pb.Node]{header: "LAST HEARD", compare: func(a, b *pb.Node) int { return show.CompareTimes(b.GetLastHeard(), a.GetLastHeard()) }},
		column[*pb.Node]{header: "WIRE", drop: 1, least: 6},
		column[*pb.Node]{header: "PORTS", drop: 4, compare: most((*pb.Node).GetPorts)},
		column[*pb.Node]{header: "CLAIMS", drop: 3, compare: most((*pb.Node).GetClaims)},
		column[*pb.Node]{header: "LOST", drop: 5, compare: most((*pb.Node).GetLostEvents)},
		column[*pb.Node]{header: "VERSION", drop: 6},
		column[*pb.Node]{header: "KERNEL", drop: 7},
		column[*pb.Node]{header: "PROBLEMS", drop: 2, least: 20, compare: most(func(n *pb.Node) uint32 { return uint32(len(n.GetProblems())) })},
	))
}

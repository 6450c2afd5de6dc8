package top

import (
	"cmp"
	"fmt"
	"time"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// pick selects a column of package show for a list.
type pick[T any] struct {
	header      string
	drop, least int
	fixed       bool             // items are not sorted by it
	tone        func(T) tone     // nil for that of the column
	compare     func(a, b T) int // nil for that of the column
}

// picked returns the columns of a list. A cell has at most a few lines.
func picked[T any](columns []show.Column[T], picks ...pick[T]) (out []column[T]) {
	for _, p := range picks {
		for _, c := range columns {
			if c.Header != p.header {
				continue
			}
			add := column[T]{header: p.header, drop: p.drop, least: p.least, tone: c.Tone, compare: c.Compare}
			add.cell = func(item T, now time.Time) []string { return some(c.Lines(item, now)) }
			if p.tone != nil {
				add.tone = p.tone
			}
			if p.compare != nil {
				add.compare = p.compare
			}
			if p.fixed {
				add.compare = nil
			}
			out = append(out, add)
		}
	}
	return out
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
	return newTable((*pb.Conflict).GetId, order, picked(show.ConflictColumns(),
		pick[*pb.Conflict]{header: "STATE", compare: show.CompareUrgency},
		pick[*pb.Conflict]{header: "ADDRESS"},
		pick[*pb.Conflict]{header: "OWNERS", least: 32},
		pick[*pb.Conflict]{header: "SINCE", drop: 1},
		pick[*pb.Conflict]{header: "CAUSE", drop: 2},
		pick[*pb.Conflict]{header: "SCOPE", drop: 3},
		pick[*pb.Conflict]{header: "ID", drop: 4, fixed: true},
	))
}

func findingTable() table[*pb.Finding] {
	bySeverity := func(a, b *pb.Finding) int { return cmp.Compare(b.GetSeverity(), a.GetSeverity()) }
	order := func(a, b *pb.Finding) int {
		return cmp.Or(bySeverity(a, b), cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(show.PoolName(a.GetPool()), show.PoolName(b.GetPool())),
			show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetId(), b.GetId()))
	}
	return newTable((*pb.Finding).GetId, order, picked(show.FindingColumns(),
		pick[*pb.Finding]{header: "SEVERITY", compare: bySeverity},
		pick[*pb.Finding]{header: "KIND"},
		pick[*pb.Finding]{header: "ADDRESS", least: 15},
		pick[*pb.Finding]{header: "HOLDER", drop: 2, least: 20},
		pick[*pb.Finding]{header: "NODE", drop: 3, least: 12},
		pick[*pb.Finding]{header: "POOL", drop: 4},
		pick[*pb.Finding]{header: "SINCE", drop: 1},
		pick[*pb.Finding]{header: "SUMMARY", drop: 5, least: 60, fixed: true},
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
	columns := append(show.OwnerColumns(), show.Column[*pb.Owner]{
		Header: "CONFLICT", Tone: toned, Lines: func(o *pb.Owner, _ time.Time) []string { return []string{state(o)} },
		Compare: func(a, b *pb.Owner) int { return cmp.Compare(state(a), state(b)) },
	})
	order := func(a, b *pb.Owner) int {
		return cmp.Or(show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(show.OwnerKey(a), show.OwnerKey(b)))
	}
	untoned := func(*pb.Owner) tone { return plain }
	return newTable(show.OwnerKey, order, picked(columns,
		pick[*pb.Owner]{header: "ADDRESS", tone: toned},
		pick[*pb.Owner]{header: "WORKLOAD", least: 24, tone: toned},
		pick[*pb.Owner]{header: "CONFLICT", drop: 1},
		pick[*pb.Owner]{header: "NODE", drop: 2, least: 12},
		pick[*pb.Owner]{header: "INTERFACE", drop: 5},
		pick[*pb.Owner]{header: "STATE", drop: 3, tone: untoned},
		pick[*pb.Owner]{header: "AGE", drop: 4},
		pick[*pb.Owner]{header: "EVIDENCE", drop: 6, fixed: true},
		pick[*pb.Owner]{header: "MAC", drop: 7, fixed: true},
		pick[*pb.Owner]{header: "SCOPE", drop: 8, fixed: true},
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
	return newTable(show.NodeKey, order, picked(show.NodeColumns(),
		pick[*pb.Node]{header: "STATE", tone: toned, compare: urgent},
		pick[*pb.Node]{header: "NAME", least: 16},
		pick[*pb.Node]{header: "LAST HEARD", compare: func(a, b *pb.Node) int { return show.CompareTimes(b.GetLastHeard(), a.GetLastHeard()) }},
		pick[*pb.Node]{header: "WIRE", drop: 1, least: 6},
		pick[*pb.Node]{header: "PORTS", drop: 4, compare: most((*pb.Node).GetPorts)},
		pick[*pb.Node]{header: "CLAIMS", drop: 3, compare: most((*pb.Node).GetClaims)},
		pick[*pb.Node]{header: "LOST", drop: 5, compare: most((*pb.Node).GetLostEvents)},
		pick[*pb.Node]{header: "VERSION", drop: 6},
		pick[*pb.Node]{header: "KERNEL", drop: 7},
		pick[*pb.Node]{header: "PROBLEMS", drop: 2, least: 20, compare: most(func(n *pb.Node) uint32 { return uint32(len(n.GetProblems())) })},
	))
}

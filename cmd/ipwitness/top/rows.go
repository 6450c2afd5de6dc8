package top

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

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

func conflictTable() table[*pb.Conflict] {
	order := func(a, b *pb.Conflict) int {
		return cmp.Or(show.CompareUrgency(a, b), show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetId(), b.GetId()))
	}
	details := func(s *Server, c *pb.Conflict) *page {
		return pageOf(s, "Conflict of "+c.GetAddress(), c.GetAddress(), "/v1/conflicts/"+url.PathEscape(c.GetId()), nil, show.Conflict)
	}
	t := newTable(show.ConflictKind, order, details, "STATE", "ADDRESS", "OWNERS", "SINCE", "CAUSE", "SCOPE", "ID")
	t.grid.Columns[0].Order = show.CompareUrgency
	return t
}

func findingTable() table[*pb.Finding] {
	order := func(a, b *pb.Finding) int {
		return cmp.Or(cmp.Compare(b.GetSeverity(), a.GetSeverity()), cmp.Compare(a.GetKind(), b.GetKind()),
			cmp.Compare(show.PoolName(a.GetPool()), show.PoolName(b.GetPool())),
			show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetId(), b.GetId()))
	}
	details := func(s *Server, f *pb.Finding) *page {
		return pageOf(s, "Finding "+f.GetKind(), f.GetAddress(), "/v1/findings/"+url.PathEscape(f.GetId()), nil, show.Finding)
	}
	return newTable(show.FindingKind, order, details, "SEVERITY", "KIND", "ADDRESS", "HOLDER", "NODE", "POOL", "SINCE", "SUMMARY")
}

func incidentTable() table[*pb.Incident] {
	details := func(s *Server, i *pb.Incident) *page {
		return &page{title: "Incident " + i.GetId(), render: func(ctx context.Context, layout show.Layout, now time.Time) (string, error) {
			i := &pb.Incident{Id: i.GetId()}
			conflicts, findings, err := s.Members(ctx, i)
			if err != nil {
				return "", err
			}
			var b strings.Builder
			err = show.Incident(&b, i, conflicts, findings, layout, now)
			return b.String(), err
		}}
	}
	return newTable(show.IncidentKind, show.CompareIncidents, details, "SEVERITY", "CAUSE", "ADDRESSES", "TWICE", "NODE", "SINCE", "ID", "SUMMARY")
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
	order := func(a, b *pb.Owner) int {
		return cmp.Or(show.CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(show.OwnerKind.Key(a), show.OwnerKind.Key(b)))
	}
	details := func(s *Server, o *pb.Owner) *page { return explainPage(s, o.GetAddress()) }
	t := newTable(show.OwnerKind.WithColumn("CONFLICT", state, toned), order, details,
		"ADDRESS", "WORKLOAD", "CONFLICT", "NODE", "INTERFACE", "STATE", "AGE", "EVIDENCE", "MAC", "SCOPE")
	t.grid.Columns[0].Tone, t.grid.Columns[1].Tone = toned, toned
	return t
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
	order := func(a, b *pb.Node) int {
		return cmp.Or(urgent(a, b), cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(show.NodeKind.Key(a), show.NodeKind.Key(b)))
	}
	details := func(s *Server, n *pb.Node) *page {
		write := func(w io.Writer, list *pb.ListNodesResponse, layout show.Layout, now time.Time) error {
			for _, listed := range list.GetNodes() {
				if show.NodeKind.Key(listed) == show.NodeKind.Key(n) {
					return show.Node(w, listed, layout, now)
				}
			}
			return fmt.Errorf("the server no longer lists node %s", n.GetName())
		}
		return pageOf(s, "Node "+visible(n.GetName()), "", "/v1/nodes", nil, write)
	}
	t := newTable(show.NodeKind, order, details, "STATE", "NAME", "LAST HEARD", "WIRE", "PORTS", "CLAIMS", "LOST", "VERSION", "KERNEL", "PROBLEMS")
	t.grid.Columns[0].Tone, t.grid.Columns[0].Order = toned, urgent
	return t
}

// owners is the list of owners. It has one page at a time, because there may be a million owners.
type owners struct {
	table table[*pb.Owner]
	// conflicts has the states of the addresses in conflict.
	conflicts map[string]pb.Conflict_State
	filter    string
	at        place
	before    []place // the pages before this one
	next      string  // token of the next page; empty on the last one
	loaded    time.Time
	reason    string // why the page could not be loaded; empty if it could
	serial    int    // of the last request; answers to earlier ones are dropped
	busy      bool
}

// A place is the beginning of a page.
type place struct {
	token string
	start int // number of owners before the page
}

// An ownersMsg is the answer to a request for a page of owners.
type ownersMsg struct {
	serial  int
	at      place
	before  []place
	list    *pb.ListOwnersResponse
	err     error
	fromEnd bool // the cursor goes to the last owner
}

// load requests a page.
func (o *owners) load(ctx context.Context, s *Server, at place, before []place, fromEnd bool) tea.Cmd {
	o.serial++
	o.busy = true
	serial, filter := o.serial, o.filter
	return func() tea.Msg {
		list, err := s.Owners(ctx, filter, at.token)
		return ownersMsg{serial, at, before, list, err, fromEnd}
	}
}

// move moves the cursor, and beyond the ends of the page requests the page that is there.
func (o *owners) move(ctx context.Context, s *Server, by int) tea.Cmd {
	at := o.table.cursor
	o.table.move(by)
	switch {
	case o.table.cursor != at || o.busy:
		return nil
	case by > 0 && o.next != "":
		here := append(slices.Clip(o.before), o.at)
		return o.load(ctx, s, place{o.next, o.at.start + len(o.table.all)}, here, false)
	case by < 0 && len(o.before) > 0:
		last := len(o.before) - 1
		return o.load(ctx, s, o.before[last], o.before[:last:last], true)
	}
	return nil
}

// answered shows a page.
func (o *owners) answered(m ownersMsg, now time.Time) {
	if m.serial != o.serial {
		return
	}
	o.busy, o.loaded, o.reason = false, now, ""
	if m.err != nil {
		o.reason = visible(m.err.Error())
		return
	}
	turned := m.at != o.at
	o.at, o.before, o.next = m.at, m.before, m.list.GetNextPageToken()
	if turned {
		o.table.cursor, o.table.offset = 0, 0
	}
	o.table.set(m.list.GetOwners())
	if turned && m.fromEnd {
		o.table.move(len(o.table.all))
	}
}

// whole reports whether the page has all owners that match.
func (o *owners) whole() bool { return o.next == "" && len(o.before) == 0 }

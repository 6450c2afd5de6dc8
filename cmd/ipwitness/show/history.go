package show

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A record is what the table says of an event.
type record struct {
	event *pb.Event
	// key identifies the item.
	key, address, state, owners, id string
	tone                            Tone
	nodes                           []string
	scope                           *pb.Scope
	details                         string // as far as the columns do not have them
}

// tell returns the record of an event. An item that is gone has no state, and what its summary says is over.
func tell(e *pb.Event) *record {
	gone := e.GetType() == pb.Watch_REMOVED
	s := &record{event: e}
	for _, o := range EventOwners(e) {
		if o.GetNode() != "" && !slices.Contains(s.nodes, o.GetNode()) {
			s.nodes = append(s.nodes, o.GetNode())
		}
	}
	switch o, c, f, n := e.GetOwner(), e.GetConflict(), e.GetFinding(), e.GetNode(); {
	case o != nil:
		s.key = join(" ", "owner "+e.GetCluster(), o.GetAddress(), o.GetNode(), o.GetNetns())
		if o.GetNetns() == "" { // a device outside of all nodes
			s.key = join(" ", "owner "+e.GetCluster(), o.GetAddress(), o.GetMac())
		}
		s.address, s.owners, s.scope = o.GetAddress(), pb.OwnerName(o), o.GetScope()
		s.state, s.tone = o.GetState().String(), ownerTone(o)
		s.details = prefixed("not compared: ", o.GetExcluded())
		if o.GetRouted() && !gone {
			s.details = join("; ", s.details, "the node sends packets for the address to this owner")
		}
	case c != nil:
		s.key, s.id = "conflict "+c.GetId(), c.GetId()
		s.address, s.owners, s.scope = c.GetAddress(), ConflictNames(c), c.GetScope()
		s.state, s.tone = ConflictState(c), conflictTone(c)
		s.details = c.GetSummary()
		if c.GetCause() != verdict.CauseUnknown {
			s.details = join(": ", c.GetCause(), s.details)
		}
	case f != nil:
		s.key, s.id = "finding "+f.GetId(), f.GetId()
		s.address, s.owners, s.nodes = few(findingAddresses(f)), few(OwnerNames(f.GetOwners())), FindingNodes(f)
		s.state, s.tone = f.GetSeverity().String(), findingTone(f)
		s.details = join(": ", f.GetKind(), f.GetSummary())
		if gone {
			s.details = f.GetKind()
		}
	case n != nil:
		s.key = "node " + e.GetCluster() + "/" + n.GetName()
		s.nodes, s.state, s.tone = []string{n.GetName()}, n.GetState().String(), nodeTone(n)
		s.details = strings.Join(n.GetProblems(), "; ")
	}
	if gone {
		s.state, s.tone = "", PlainTone
	}
	s.details = strings.Join(strings.Fields(s.details), " ")
	return s
}

// eventColumns returns the columns of a table of recorded events, without the time.
func eventColumns() []Column[*record] {
	owner := func(get func(*pb.Owner) string) func(*record, time.Time) string {
		return func(s *record, _ time.Time) string { return get(s.event.GetOwner()) }
	}
	return []Column[*record]{
		{Header: "EVENT", cell: func(s *record, _ time.Time) string { return s.event.GetType().String() }},
		{Header: "KIND", trait: trait{rank: 5}, cell: func(s *record, _ time.Time) string { return strings.ToLower(s.event.GetKind().String()) }},
		{Header: "ADDRESS", cell: func(s *record, _ time.Time) string { return s.address }},
		{Header: "STATE", Tone: func(s *record) Tone { return s.tone }, trait: trait{rank: 3}, cell: func(s *record, _ time.Time) string { return s.state }},
		{Header: "OWNER", trait: trait{rank: 1, folds: true}, cell: func(s *record, _ time.Time) string { return s.owners }},
		{Header: "NODE", trait: trait{rank: 6}, cell: func(s *record, _ time.Time) string { return few(s.nodes) }},
		{Header: "INTERFACE", trait: trait{rank: 7}, cell: owner((*pb.Owner).GetInterface)},
		{Header: "MAC", trait: trait{rank: 8}, cell: owner((*pb.Owner).GetMac)},
		{Header: "HOST-INTERFACE", wide: true, cell: owner((*pb.Owner).GetHostInterface)},
		{Header: "NETNS", wide: true, cell: owner((*pb.Owner).GetNetns)},
		{Header: "CONTAINER", wide: true, cell: owner(func(o *pb.Owner) string { return pb.ShortID(o.GetWorkload().GetContainerId()) })},
		{Header: "PROCESS", wide: true, cell: owner(func(o *pb.Owner) string { return o.GetWorkload().GetProcess() })},
		{Header: "SCOPE", wide: true, cell: func(s *record, _ time.Time) string { return scope(s.scope) }},
		{Header: "ID", wide: true, cell: func(s *record, _ time.Time) string { return s.id }},
	}
}

// EventOwners returns the owners that an event is about.
func EventOwners(e *pb.Event) []*pb.Owner {
	if e.GetOwner() != nil {
		return []*pb.Owner{e.GetOwner()}
	}
	return slices.Concat(e.GetConflict().GetOwners(), e.GetFinding().GetOwners())
}

// History writes recorded events and the gaps between them: as a growing table, or one event a line.
type History struct {
	w       io.Writer
	format  Format
	form    Layout
	now     time.Time
	columns []Column[*record]
	table   *Table
	gaps    []*pb.Gap // gaps that were not written yet, by their start
	// shown has the last row of each item, by the item.
	shown map[string][]string
	// layout is the layout of times: with dates if the first line of the table is not of today.
	layout string
}

// NewHistory returns a History.
func NewHistory(w io.Writer, f Format, layout Layout, now time.Time) *History {
	return &History{w: w, format: f, form: layout, now: now, columns: narrow(eventColumns(), f == FormatWide), shown: make(map[string][]string)}
}

// Gaps adds gaps, each of which is written before the first event after its start.
func (h *History) Gaps(gaps []*pb.Gap) {
	h.gaps = append(h.gaps, gaps...)
	slices.SortStableFunc(h.gaps, func(a, b *pb.Gap) int { return CompareTimes(a.GetFrom(), b.GetFrom()) })
}

// Events writes events, which must be in order.
func (h *History) Events(events []*pb.Event) error {
	if h.table == nil && h.columns[0].Header != clusterHeader { // a gap may begin the table
		if slices.ContainsFunc(events, func(e *pb.Event) bool { return clusterOf(e) != "" }) {
			h.columns = withClusters(h.columns)
		}
	}
	for _, e := range events {
		if err := h.gapsBefore(e); err != nil {
			return err
		}
		if err := h.event(e); err != nil {
			return err
		}
	}
	return h.flush()
}

// End writes the gaps after the last event.
func (h *History) End() error {
	if err := h.gapsBefore(nil); err != nil {
		return err
	}
	return h.flush()
}

func (h *History) flush() error {
	if h.table == nil {
		return nil
	}
	return h.table.Flush()
}

func (h *History) event(e *pb.Event) error {
	if h.format.ForPrograms() {
		raw, err := valueJSON(e)
		if err != nil {
			return err
		}
		return writeEvent(h.w, h.format, raw)
	}
	s := tell(e)
	fields := cells(h.columns, s, h.now)
	if e.GetType() == pb.Watch_REMOVED {
		delete(h.shown, s.key)
	} else {
		row := append(slices.Clone(fields[1:]), s.details)
		before := h.shown[s.key]
		if len(h.shown) >= maxShown {
			clear(h.shown)
		}
		h.shown[s.key] = row
		if e.GetType() == pb.Watch_UPDATED && slices.Equal(before, row) { // only the formats for programs have what changed
			return nil
		}
	}
	h.begin(e.GetTime())
	between := ""
	switch {
	case e.GetPresent():
		between = "already present when the journal began"
	case e.GetNotBefore() != nil:
		between = fmt.Sprintf("happened between %s and %s", h.clock(e.GetNotBefore()), h.clock(e.GetTime()))
	}
	h.table.add(append([]Tone{PlainTone}, tones(h.columns, s)...),
		append(append([]string{h.clock(e.GetTime())}, fields...), join("; ", between, s.details))...)
	return nil
}

// maxShown is the largest number of items whose last rows are kept.
const maxShown = 1 << 16

// gapsBefore writes the gaps that began before an event, or all for nil.
func (h *History) gapsBefore(e *pb.Event) error {
	for ; len(h.gaps) > 0 && (e == nil || CompareTimes(h.gaps[0].GetFrom(), e.GetTime()) < 0); h.gaps = h.gaps[1:] {
		g := h.gaps[0]
		if h.format.ForPrograms() {
			if err := Event(h.w, h.format, "GAP", Field{"gap", g}); err != nil {
				return err
			}
			continue
		}
		h.begin(g.GetFrom())
		until := "no records since then"
		if g.GetUntil() != nil {
			until = "no records until " + h.clock(g.GetUntil())
		}
		span := clean(join(": ", prefixed("cluster ", g.GetCluster()), until, gapReason(g)))
		h.table.rows = append(h.table.rows, row{cells: [][]string{{h.clock(g.GetFrom())}}, span: span})
	}
	return nil
}

// begin starts the table with its first time.
func (h *History) begin(at *timestamppb.Timestamp) {
	if h.table != nil {
		return
	}
	h.layout = "15:04:05.000"
	if at.AsTime().Format(time.DateOnly) != h.now.UTC().Format(time.DateOnly) {
		h.layout = time.DateOnly + " " + h.layout
	}
	columns := append([]Column[*record]{{Header: zone}}, h.columns...)
	h.table = tableOf(h.w, h.form, append(columns, Column[*record]{Header: "DETAILS", trait: trait{folds: true, below: true}}))
}

func (h *History) clock(ts *timestamppb.Timestamp) string { return ts.AsTime().Format(h.layout) }

// Bookmark writes the last line of a complete history, for programs: the time that the journal reaches
// back to, and the coverage.
func (h *History) Bookmark(from *timestamppb.Timestamp, coverage *pb.Coverage) error {
	return Event(h.w, h.format, pb.Watch_BOOKMARK.String(), Field{"reachesBackTo", from}, Field{"coverage", coverage})
}

// gapReason describes why a period has no records.
func gapReason(g *pb.Gap) string {
	reason := "the reason is not known"
	switch g.GetReason() {
	case pb.Gap_UNSPECIFIED:
	case pb.Gap_NOT_RUNNING:
		reason = "the aggregator did not run, or had not heard from all agents yet"
	case pb.Gap_NOT_WRITTEN:
		reason = "the journal could not be written"
	case pb.Gap_DAMAGED:
		reason = "the records were damaged"
	case pb.Gap_NOT_RECEIVED:
		reason = "messages in the stream of the cluster are missing"
	}
	if g.GetLost() > 0 {
		reason += ", and " + Count(int(g.GetLost()), "change was", "changes were") + " lost"
	}
	return reason
}

// GapPeriod describes a gap: its period, with the time zone, and its reason.
func GapPeriod(g *pb.Gap) string {
	const layout = time.DateTime + ".999 " + zone
	from := g.GetFrom().AsTime().Format(layout)
	if g.GetUntil() == nil {
		return fmt.Sprintf("since %s (%s)", from, gapReason(g))
	}
	return fmt.Sprintf("from %s to %s (%s)", from, g.GetUntil().AsTime().Format(layout), gapReason(g))
}

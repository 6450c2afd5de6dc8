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

// eventColumns returns the columns of a table of recorded events, without the time.
func eventColumns() []column[*pb.Event] {
	return []column[*pb.Event]{
		{header: "EVENT", cell: func(e *pb.Event, _ time.Time) string { return e.GetType().String() }},
		{header: "KIND", trait: trait{rank: 5}, cell: func(e *pb.Event, _ time.Time) string { return strings.ToLower(e.GetKind().String()) }},
		{header: "ADDRESS", cell: func(e *pb.Event, _ time.Time) string { return eventAddress(e) }},
		{header: "STATE", tone: eventTone, trait: trait{rank: 3}, cell: func(e *pb.Event, _ time.Time) string { return eventState(e) }},
		{header: "OWNER", trait: trait{rank: 1, folds: true}, cell: func(e *pb.Event, _ time.Time) string { return eventOwner(e) }},
		{header: "NODE", trait: trait{rank: 6}, cell: func(e *pb.Event, _ time.Time) string { return few(eventNodes(e)) }},
		{header: "INTERFACE", trait: trait{rank: 7}, cell: func(e *pb.Event, _ time.Time) string { return e.GetOwner().GetInterface() }},
		{header: "MAC", trait: trait{rank: 8}, cell: func(e *pb.Event, _ time.Time) string { return e.GetOwner().GetMac() }},
		{header: "HOST-INTERFACE", wide: true, cell: func(e *pb.Event, _ time.Time) string { return e.GetOwner().GetHostInterface() }},
		{header: "NETNS", wide: true, cell: func(e *pb.Event, _ time.Time) string { return e.GetOwner().GetNetns() }},
		{header: "CONTAINER", wide: true, cell: func(e *pb.Event, _ time.Time) string { return shortID(e.GetOwner().GetWorkload().GetContainerId()) }},
		{header: "PROCESS", wide: true, cell: func(e *pb.Event, _ time.Time) string { return e.GetOwner().GetWorkload().GetProcess() }},
		{header: "SCOPE", wide: true, cell: func(e *pb.Event, _ time.Time) string { return scope(eventScope(e)) }},
		{header: "ID", wide: true, cell: func(e *pb.Event, _ time.Time) string { return first(e.GetConflict().GetId(), e.GetFinding().GetId()) }},
	}
}

func eventAddress(e *pb.Event) string {
	return first(e.GetOwner().GetAddress(), e.GetConflict().GetAddress(), few(findingAddresses(e.GetFinding())))
}

func eventScope(e *pb.Event) *pb.Scope {
	if e.GetConflict() != nil {
		return e.GetConflict().GetScope()
	}
	return e.GetOwner().GetScope()
}

// eventState returns the state of the item of an event, or the severity of a finding. An item that is
// gone has none.
func eventState(e *pb.Event) string {
	switch {
	case e.GetType() == pb.Watch_REMOVED:
		return ""
	case e.GetOwner() != nil:
		return e.GetOwner().GetState().String()
	case e.GetConflict() != nil:
		return ConflictState(e.GetConflict())
	case e.GetFinding() != nil:
		return e.GetFinding().GetSeverity().String()
	case e.GetNode() != nil:
		return e.GetNode().GetState().String()
	}
	return ""
}

// EventOwners returns the owners that an event is about.
func EventOwners(e *pb.Event) []*pb.Owner {
	if e.GetOwner() != nil {
		return []*pb.Owner{e.GetOwner()}
	}
	return slices.Concat(e.GetConflict().GetOwners(), e.GetFinding().GetOwners())
}

func eventOwner(e *pb.Event) string {
	switch {
	case e.GetOwner() != nil:
		return Name(e.GetOwner())
	case e.GetConflict() != nil:
		return ConflictNames(e.GetConflict())
	default:
		return few(OwnerNames(e.GetFinding().GetOwners()))
	}
}

func eventNodes(e *pb.Event) []string {
	switch {
	case e.GetNode() != nil:
		return []string{e.GetNode().GetName()}
	case e.GetFinding() != nil:
		return FindingNodes(e.GetFinding())
	}
	var nodes []string
	for _, o := range EventOwners(e) {
		if o.GetNode() != "" && !slices.Contains(nodes, o.GetNode()) {
			nodes = append(nodes, o.GetNode())
		}
	}
	return nodes
}

// eventDetails describes the item of an event in one line, as far as the columns do not.
func eventDetails(e *pb.Event) string {
	text := ""
	switch {
	case e.GetOwner() != nil:
		text = prefixed("not compared: ", e.GetOwner().GetExcluded())
		if e.GetOwner().GetRouted() && e.GetType() != pb.Watch_REMOVED {
			text = join("; ", text, "the node sends packets for the address to this owner")
		}
	case e.GetFinding() != nil && e.GetType() == pb.Watch_REMOVED:
		text = e.GetFinding().GetKind() // what its summary says is over
	case e.GetConflict() != nil:
		text = e.GetConflict().GetSummary()
		if cause := e.GetConflict().GetCause(); cause != verdict.CauseUnknown {
			text = join(": ", cause, text)
		}
	case e.GetFinding() != nil:
		text = join(": ", e.GetFinding().GetKind(), e.GetFinding().GetSummary())
	case e.GetNode() != nil:
		text = strings.Join(e.GetNode().GetProblems(), "; ")
	}
	return strings.Join(strings.Fields(text), " ")
}

// History writes recorded events and the gaps between them: as a growing table, or one event a line.
type History struct {
	w       io.Writer
	format  Format
	form    Layout
	now     time.Time
	columns []column[*pb.Event]
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
	slices.SortStableFunc(h.gaps, func(a, b *pb.Gap) int { return a.GetFrom().AsTime().Compare(b.GetFrom().AsTime()) })
}

// Events writes events, which must be in order.
func (h *History) Events(events []*pb.Event) error {
	if h.table == nil && h.columns[0].header != clusterHeader { // a gap may begin the table
		h.columns = clustered(h.columns, events)
	}
	for _, e := range events {
		for len(h.gaps) > 0 && h.gaps[0].GetFrom().AsTime().Before(e.GetTime().AsTime()) {
			if err := h.gap(); err != nil {
				return err
			}
		}
		if err := h.event(e); err != nil {
			return err
		}
	}
	return h.flush()
}

// End writes the gaps after the last event.
func (h *History) End() error {
	for len(h.gaps) > 0 {
		if err := h.gap(); err != nil {
			return err
		}
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
		raw, err := messageJSON(e)
		if err != nil {
			return err
		}
		return writeEvent(h.w, h.format, string(raw))
	}
	fields, details := cells(h.columns, e, h.now), eventDetails(e)
	if !h.news(e, append(fields[1:], details)) {
		return nil
	}
	h.begin(e.GetTime())
	between := ""
	switch {
	case e.GetPresent():
		between = "already present when the journal began"
	case e.GetNotBefore() != nil:
		between = fmt.Sprintf("happened between %s and %s", h.clock(e.GetNotBefore()), h.clock(e.GetTime()))
	}
	h.table.add(row{
		cells: append(append([]string{h.clock(e.GetTime())}, fields...), join("; ", between, details)),
		tones: append([]Tone{PlainTone}, tones(h.columns, e)...),
	})
	return nil
}

// maxShown is the largest number of items whose last rows are kept.
const maxShown = 1 << 16

// news reports whether the row of an event differs from the last row of the same item. An update may
// change something that the table does not show; the formats for programs have it.
func (h *History) news(e *pb.Event, row []string) bool {
	key := eventItem(e)
	before := h.shown[key]
	if e.GetType() == pb.Watch_REMOVED {
		delete(h.shown, key)
		return true
	}
	if len(h.shown) >= maxShown {
		clear(h.shown)
	}
	h.shown[key] = slices.Clone(row)
	return e.GetType() != pb.Watch_UPDATED || !slices.Equal(before, row)
}

// eventItem identifies the item of an event.
func eventItem(e *pb.Event) string {
	o := e.GetOwner()
	switch {
	case e.GetConflict() != nil:
		return "conflict " + e.GetConflict().GetId()
	case e.GetFinding() != nil:
		return "finding " + e.GetFinding().GetId()
	case e.GetNode() != nil:
		return "node " + e.GetCluster() + "/" + e.GetNode().GetName()
	case o.GetNetns() == "": // a device outside of all nodes
		return "owner " + e.GetCluster() + " " + o.GetAddress() + " " + o.GetMac()
	}
	return "owner " + e.GetCluster() + " " + o.GetAddress() + " " + o.GetNode() + " " + o.GetNetns()
}

// gap writes the first gap.
func (h *History) gap() error {
	g := h.gaps[0]
	h.gaps = h.gaps[1:]
	if h.format.ForPrograms() {
		return Event(h.w, h.format, "GAP", "gap", g)
	}
	h.begin(g.GetFrom())
	until := "no records since then"
	if g.GetUntil() != nil {
		until = "no records until " + h.clock(g.GetUntil())
	}
	h.table.Span(h.clock(g.GetFrom()), join(": ", prefixed("cluster ", g.GetCluster()), until, gapReason(g)))
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
	columns := append([]column[*pb.Event]{{header: zone}}, h.columns...)
	h.table = tableOf(h.w, h.form, append(columns, column[*pb.Event]{header: "DETAILS", trait: trait{folds: true, below: true}}))
}

func (h *History) clock(ts *timestamppb.Timestamp) string { return ts.AsTime().Format(h.layout) }

// Bookmark writes the last line of a complete history, for programs: the time that the journal reaches
// back to, and the coverage.
func (h *History) Bookmark(from *timestamppb.Timestamp, coverage *pb.Coverage) error {
	fields, err := fieldsJSON(field{"reachesBackTo", from}, field{"coverage", coverage})
	if err != nil {
		return err
	}
	return writeEvent(h.w, h.format, fmt.Sprintf(`{"type":%q%s}`, pb.Watch_BOOKMARK, fields))
}

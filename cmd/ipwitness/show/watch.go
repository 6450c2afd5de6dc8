package show

import (
	"io"
	"slices"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Watch writes the events of a watch as a growing table: the current state, then a row for each
// change that is visible in the table.
type Watch[T any] struct {
	columns []Column[T]
	changes *Changes[T]
	// table is nil before the first row: it depends on that whether there is a column of clusters, unless
	// fleet is set.
	table   *Table
	w       io.Writer
	layout  Layout
	fleet   bool
	pending bool // the current state has not been written yet
	// over reports whether an item has already ended, so that its removal is not shown; nil if none has.
	over func(T) bool
}

// NewOwnerWatch returns a Watch of owners.
func NewOwnerWatch(w io.Writer, layout Layout) *Watch[*pb.Owner] {
	return newWatch(w, layout, OwnerColumns(), OwnerKey, nil)
}

// NewConflictWatch returns a Watch of conflicts.
func NewConflictWatch(w io.Writer, layout Layout) *Watch[*pb.Conflict] {
	resolved := func(c *pb.Conflict) bool { return c.GetState() == pb.Conflict_RESOLVED }
	return newWatch(w, layout, ConflictColumns(), (*pb.Conflict).GetId, resolved)
}

// NewFindingWatch returns a Watch of findings.
func NewFindingWatch(w io.Writer, layout Layout) *Watch[*pb.Finding] {
	return newWatch(w, layout, FindingColumns(), (*pb.Finding).GetId, nil)
}

// NewNodeWatch returns a Watch of nodes and their problems.
func NewNodeWatch(w io.Writer, layout Layout) *Watch[*pb.Node] {
	return newWatch(w, layout, NodeColumns(), NodeKey, nil)
}

// NodeKey returns the key of a node. The part of its name after @ can change, and the rest of the key
// already contains the same information.
func NodeKey(n *pb.Node) string {
	name, _, _ := strings.Cut(n.GetName(), "@")
	return n.GetCluster() + "/" + n.GetBootId() + "/" + n.GetNetns() + "/" + name
}

func newWatch[T any](w io.Writer, layout Layout, columns []Column[T], key func(T) string, over func(T) bool) *Watch[T] {
	steady := slices.DeleteFunc(narrow(columns, layout.Wide), func(c Column[T]) bool { return c.ages })
	return &Watch[T]{w: w, layout: layout, columns: steady, changes: NewChanges(key), pending: true, over: over}
}

// Of notes the coverage of the watch, which says whether it is that of a fleet.
func (t *Watch[T]) Of(c *pb.Coverage) { t.fleet = t.fleet || c.GetClusters() > 0 }

// begin begins the table.
func (t *Watch[T]) begin() {
	if t.table != nil {
		return
	}
	if t.fleet {
		t.columns = withClusters(t.columns)
	}
	all := append([]Column[T]{{Header: zone, room: len(time.TimeOnly)}, {Header: "EVENT", room: len("UPDATED")}}, t.columns...)
	t.table = tableOf(t.w, t.layout, all)
	for i, c := range all {
		t.table.widths[i] = max(t.table.widths[i], c.room)
	}
}

// Begin announces that the whole state follows, up to a BOOKMARK.
func (t *Watch[T]) Begin() { t.changes.Begin() }

// Event handles one event. The item is only used for ADDED, UPDATED and REMOVED.
func (t *Watch[T]) Event(kind pb.Watch_Type, item T, now time.Time) error {
	switch kind {
	case pb.Watch_ADDED, pb.Watch_UPDATED:
		before, had := t.changes.Put(item)
		if had && t.same(before, item) {
			return nil
		}
		kind = pb.Watch_ADDED
		if had {
			kind = pb.Watch_UPDATED
		}
		t.row(kind, item, now)
	case pb.Watch_REMOVED:
		if before, had := t.changes.Drop(item); had {
			t.removed(before, now) // the event of a node has only its key
		}
	case pb.Watch_LOST:
		t.Begin()
	case pb.Watch_BOOKMARK:
		for _, gone := range t.changes.Complete() {
			t.removed(gone, now)
		}
		t.pending = false
	default:
		return nil
	}
	if t.pending {
		return nil
	}
	t.begin()
	return t.table.Flush()
}

func (t *Watch[T]) removed(item T, now time.Time) {
	if t.over == nil || !t.over(item) {
		t.row(pb.Watch_REMOVED, item, now)
	}
}

func (t *Watch[T]) row(kind pb.Watch_Type, item T, now time.Time) {
	t.fleet = t.fleet || clusterOf(item) != ""
	t.begin()
	t.table.add(append([]Tone{PlainTone, PlainTone}, tones(t.columns, item)...),
		append([]string{now.UTC().Format(time.TimeOnly), kind.String()}, cells(t.columns, item, now)...)...)
}

// same reports whether two items look the same in the table.
func (t *Watch[T]) same(a, b T) bool {
	row := func(item T) string { return strings.Join(cells(t.columns, item, time.Time{}), "\x00") }
	return row(a) == row(b)
}

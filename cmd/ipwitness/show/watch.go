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
	open    func([]Column[T]) *Table
	fleet   bool
	pending bool // the current state has not been written yet
	// over reports whether an item has already ended, so that its removal is not shown.
	over func(T) bool
}

// NewOwnerWatch returns a Watch of owners.
func NewOwnerWatch(w io.Writer, layout Layout) *Watch[*pb.Owner] {
	return newWatch(w, layout, narrow(OwnerColumns(), layout.Wide), OwnerChanges(), func(*pb.Owner) bool { return false })
}

// NewConflictWatch returns a Watch of conflicts.
func NewConflictWatch(w io.Writer, layout Layout) *Watch[*pb.Conflict] {
	return newWatch(w, layout, narrow(ConflictColumns(), layout.Wide), ConflictChanges(), func(c *pb.Conflict) bool {
		return c.GetState() == pb.Conflict_RESOLVED
	})
}

// NewFindingWatch returns a Watch of findings.
func NewFindingWatch(w io.Writer, layout Layout) *Watch[*pb.Finding] {
	return newWatch(w, layout, narrow(FindingColumns(), layout.Wide), NewChanges((*pb.Finding).GetId), func(*pb.Finding) bool { return false })
}

// NewNodeWatch returns a Watch of nodes and their problems.
func NewNodeWatch(w io.Writer, layout Layout) *Watch[*pb.Node] {
	columns := append(narrow(nodeColumns(), layout.Wide), nodeProblems)
	return newWatch(w, layout, columns, NewChanges(NodeKey), func(*pb.Node) bool { return false })
}

// NodeKey returns the key of a node. The part of its name after @ can change, and the rest of the key
// already contains the same information.
func NodeKey(n *pb.Node) string {
	name, _, _ := strings.Cut(n.GetName(), "@")
	return n.GetCluster() + "/" + n.GetBootId() + "/" + n.GetNetns() + "/" + name
}

func newWatch[T any](w io.Writer, layout Layout, columns []Column[T], changes *Changes[T], over func(T) bool) *Watch[T] {
	steady := slices.DeleteFunc(columns, func(c Column[T]) bool { return c.ages })
	return &Watch[T]{
		columns: steady,
		changes: changes,
		open: func(columns []Column[T]) *Table {
			all := append([]Column[T]{{Header: zone, room: len(time.TimeOnly)}, {Header: "EVENT", room: len("UPDATED")}}, columns...)
			table := tableOf(w, layout, all)
			for i, c := range all {
				table.widen(i, c.room)
			}
			return table
		},
		pending: true,
		over:    over,
	}
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
	t.table = t.open(t.columns)
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
		if before, had := t.changes.Drop(item); had && !t.over(before) {
			t.row(kind, before, now) // the event of a node has only its key
		}
	case pb.Watch_LOST:
		t.Begin()
	case pb.Watch_BOOKMARK:
		for _, gone := range t.changes.Complete() {
			if !t.over(gone) {
				t.row(pb.Watch_REMOVED, gone, now)
			}
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

func (t *Watch[T]) row(kind pb.Watch_Type, item T, now time.Time) {
	t.fleet = t.fleet || clusterOf(item) != ""
	t.begin()
	t.table.add(row{
		cells: append([]string{now.UTC().Format(time.TimeOnly), kind.String()}, cells(t.columns, item, now)...),
		tones: append([]Tone{PlainTone, PlainTone}, tones(t.columns, item)...),
	})
}

// same reports whether two items look the same in the table.
func (t *Watch[T]) same(a, b T) bool {
	row := func(item T) string { return strings.Join(cells(t.columns, item, time.Time{}), "\x00") }
	return row(a) == row(b)
}

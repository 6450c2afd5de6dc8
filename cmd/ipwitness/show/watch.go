package show

import (
	"io"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Watch writes what a watch tells as a table that grows: the state there is,
// then a row for each change that the table can show.
type Watch[T any] struct {
	columns []column[T]
	changes *Changes[T]
	table   *Table
	pending bool // the state there is has not been written yet
	// over tells of an item that its end is no news.
	over func(T) bool
}

// NewOwnerWatch makes a Watch of owners.
func NewOwnerWatch(w io.Writer, wide bool) *Watch[*pb.Owner] {
	return newWatch(w, narrow(ownerColumns(), wide), OwnerChanges(), func(*pb.Owner) bool { return false })
}

// NewConflictWatch makes a Watch of conflicts.
func NewConflictWatch(w io.Writer, wide bool) *Watch[*pb.Conflict] {
	return newWatch(w, narrow(conflictColumns(), wide), ConflictChanges(), func(c *pb.Conflict) bool {
		return c.GetState() == pb.Conflict_RESOLVED
	})
}

// NewFindingWatch makes a Watch of findings.
func NewFindingWatch(w io.Writer, wide bool) *Watch[*pb.Finding] {
	return newWatch(w, narrow(findingColumns(), wide), NewChanges((*pb.Finding).GetId), func(*pb.Finding) bool { return false })
}

// NewNodeWatch makes a Watch of nodes, with what does not work there.
func NewNodeWatch(w io.Writer, wide bool) *Watch[*pb.Node] {
	columns := append(narrow(nodeColumns(), wide), column[*pb.Node]{
		header: "PROBLEMS", cell: func(n *pb.Node, _ time.Time) string { return strings.Join(n.GetProblems(), "; ") },
	})
	return newWatch(w, columns, NewChanges(NodeKey), func(*pb.Node) bool { return false })
}

// NodeKey is what a node is known by. What stands behind the @ of its name can change,
// and is no more than what else is in the key.
func NodeKey(n *pb.Node) string {
	name, _, _ := strings.Cut(n.GetName(), "@")
	return n.GetBootId() + "/" + n.GetNetns() + "/" + name
}

func newWatch[T any](w io.Writer, columns []column[T], changes *Changes[T], over func(T) bool) *Watch[T] {
	var steady []column[T]
	room := []int{len(time.TimeOnly), len("UPDATED")}
	for _, c := range columns {
		if !c.ages {
			steady = append(steady, c)
			room = append(room, c.room)
		}
	}
	table := &Table{w: w, widths: room}
	table.Row(append([]string{zone, "EVENT"}, headers(steady)...)...)
	return &Watch[T]{
		columns: steady,
		changes: changes,
		table:   table,
		pending: true,
		over:    over,
	}
}

// Begin says that the whole state comes now, up to a BOOKMARK.
func (t *Watch[T]) Begin() { t.changes.Begin() }

// Event takes one event. The item counts for ADDED, UPDATED and REMOVED.
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
			t.row(kind, item, now)
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
	return t.table.Flush()
}

func (t *Watch[T]) row(kind pb.Watch_Type, item T, now time.Time) {
	t.table.Row(append([]string{now.UTC().Format(time.TimeOnly), kind.String()}, cells(t.columns, item, now)...)...)
}

// same tells whether two items look the same in the table.
func (t *Watch[T]) same(a, b T) bool {
	row := func(item T) string { return strings.Join(cells(t.columns, item, time.Time{}), "\x00") }
	return row(a) == row(b)
}

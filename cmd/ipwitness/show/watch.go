package show

import (
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Changes keeps the state that a watch has sent. If the state is sent again, because the watch was
// disconnected or too slow, only the differences are changes.
type Changes[T any] struct {
	key   func(T) string
	known map[string]T
	// missing contains the items that the state being sent has not contained so far; nil if no state
	// is being sent.
	missing map[string]T
}

// A Change is what an event has changed.
type Change[T any] struct {
	Kind pb.Watch_Type // ADDED, UPDATED or REMOVED
	// Item is the item as it is now or, if it was removed, as it was. Before is the one that it replaces.
	Item, Before T
}

// NewChanges returns an empty Changes; key returns the identity of an item.
func NewChanges[T any](key func(T) string) *Changes[T] {
	return &Changes[T]{key: key, known: map[string]T{}}
}

// Begin announces that the whole state follows, up to a BOOKMARK. Items that it does not contain are gone.
func (c *Changes[T]) Begin() { c.missing = maps.Clone(c.known) }

// Apply applies an event, and returns what it has changed. The item is only used for ADDED, UPDATED and REMOVED.
func (c *Changes[T]) Apply(kind pb.Watch_Type, item T) (changes []Change[T]) {
	switch kind {
	case pb.Watch_ADDED, pb.Watch_UPDATED, pb.Watch_REMOVED:
		key := c.key(item)
		before, had := c.known[key]
		delete(c.missing, key)
		switch {
		case kind != pb.Watch_REMOVED && had:
			changes = []Change[T]{{pb.Watch_UPDATED, item, before}}
		case kind != pb.Watch_REMOVED:
			changes = []Change[T]{{pb.Watch_ADDED, item, before}}
		case had: // the event of a node has only its key
			changes = []Change[T]{{pb.Watch_REMOVED, before, before}}
		}
		if delete(c.known, key); kind != pb.Watch_REMOVED {
			c.known[key] = item
		}
	case pb.Watch_LOST:
		c.Begin()
	case pb.Watch_BOOKMARK:
		for _, key := range slices.Sorted(maps.Keys(c.missing)) {
			changes = append(changes, Change[T]{pb.Watch_REMOVED, c.missing[key], c.missing[key]})
			delete(c.known, key)
		}
		c.missing = nil
	default:
	}
	return changes
}

// All returns the items that are known, in no order.
func (c *Changes[T]) All() iter.Seq[T] { return maps.Values(c.known) }

// Len returns the number of items that are known.
func (c *Changes[T]) Len() int { return len(c.known) }

// Watch writes the events of a watch as a growing table: the current state, then a row for each
// change that is visible in the table.
type Watch[T any] struct {
	kind    Kind[T]
	columns []Column[T]
	changes *Changes[T]
	// table is nil before the first row: it depends on that whether there is a column of clusters, unless
	// fleet is set.
	table   *Table
	w       io.Writer
	layout  Layout
	fleet   bool
	pending bool // the current state has not been written yet
}

// NewWatch returns a Watch of items of a kind.
func NewWatch[T any](w io.Writer, kind Kind[T], layout Layout) *Watch[T] {
	steady := slices.DeleteFunc(narrow(kind.columns(), layout.Wide), func(c Column[T]) bool { return c.ages })
	return &Watch[T]{kind: kind, w: w, layout: layout, columns: steady, changes: NewChanges(kind.Key), pending: true}
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
	shown := func(item T) string { return strings.Join(cells(t.columns, item, time.Time{}), "\x00") }
	for _, c := range t.changes.Apply(kind, item) {
		switch {
		case c.Kind == pb.Watch_UPDATED && shown(c.Before) == shown(c.Item):
		case c.Kind == pb.Watch_REMOVED && t.kind.over != nil && t.kind.over(c.Item): // its end was shown
		default:
			t.fleet = t.fleet || clusterOf(c.Item) != ""
			t.begin()
			t.table.add(append([]Tone{PlainTone, PlainTone}, tones(t.columns, c.Item)...),
				append([]string{now.UTC().Format(time.TimeOnly), c.Kind.String()}, cells(t.columns, c.Item, now)...)...)
		}
	}
	if t.pending = t.pending && kind != pb.Watch_BOOKMARK; t.pending || kind == pb.Watch_NODE {
		return nil
	}
	t.begin()
	return t.table.Flush()
}

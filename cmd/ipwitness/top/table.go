package top

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// margin is the space left of a table, for the cursor.
const margin = 2

// A table shows items with a cursor. It keeps the item under the cursor when items change.
type table[T any] struct {
	grid show.Grid[T]
	key  func(T) string
	// order is the order of the items unless a column is selected.
	order func(a, b T) int
	// details returns the page of an item.
	details func(*Server, T) *page

	changes    *show.Changes[T] // of a watch; nil if the items are set
	stale      bool             // changes have not been settled
	all, shown []T
	keep       func(T) bool // of the filter; nil if there is none
	sorted     int          // index of a column, or -1
	reversed   bool
	cursor     int
	offset     int // first item on the screen
	fits       int // number of items on the screen
}

// A list is what the tables of all tabs can do.
type list interface {
	move(by int)
	filter(text string)
	match(keys map[string]bool)
	sortNext()
	reverse()
	len() int
	screenful() int
	address() string
	open(*Server) *page
	view(paint painter, columns, height int, now time.Time) []string
}

// newTable returns a table of items of a kind that a watch changes.
func newTable[T any](kind show.Kind[T], order func(a, b T) int, details func(*Server, T) *page, headers ...string) table[T] {
	return table[T]{grid: kind.Pick(headers...), key: kind.Key, order: order, details: details, changes: show.NewChanges(kind.Key), sorted: -1}
}

// apply applies an event of a watch, which settle shows.
func (t *table[T]) apply(kind pb.Watch_Type, item T) {
	t.stale = len(t.changes.Apply(kind, item)) > 0 || t.stale
}

// settle shows what has been applied, and reports whether there is anything.
func (t *table[T]) settle() bool {
	stale := t.stale
	if stale {
		t.stale = false
		t.set(slices.Collect(t.changes.All()))
	}
	return stale
}

// set replaces the items.
func (t *table[T]) set(items []T) {
	t.all = items
	t.arrange()
}

// filter shows only the items whose cells contain all words.
func (t *table[T]) filter(text string) {
	t.keep = nil
	if words := strings.Fields(strings.ToLower(text)); len(words) > 0 {
		t.keep = func(item T) bool {
			var text strings.Builder
			for _, cell := range t.grid.Cells(item, time.Time{}) {
				text.WriteString(strings.ToLower(strings.Join(cell, "\n")) + "\n")
			}
			return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text.String(), word) })
		}
	}
	t.grid.Reset()
	t.arrange()
}

// match shows only the items with some keys.
func (t *table[T]) match(keys map[string]bool) {
	t.keep = func(item T) bool { return keys[t.key(item)] }
	t.arrange()
}

// sortNext sorts by the next column, and after the last one in the usual order.
func (t *table[T]) sortNext() {
	t.reversed = false
	if t.sorted++; t.sorted == len(t.grid.Columns) {
		t.sorted = -1
	}
	t.arrange()
}

// reverse reverses the order.
func (t *table[T]) reverse() {
	t.reversed = !t.reversed
	t.arrange()
}

// arrange filters and sorts the items, and moves the cursor to the item under it.
func (t *table[T]) arrange() {
	under, had := t.selected()
	t.shown = slices.Clone(t.all)
	if t.keep != nil {
		t.shown = slices.DeleteFunc(t.shown, func(item T) bool { return !t.keep(item) })
	}
	slices.SortFunc(t.shown, func(a, b T) int {
		if t.reversed {
			a, b = b, a
		}
		if t.sorted < 0 {
			return t.order(a, b)
		}
		return cmp.Or(t.grid.Columns[t.sorted].Compare(a, b), t.order(a, b))
	})
	if had && t.cursor > 0 { // a cursor at the top stays there, so that what is new is seen
		key := t.key(under)
		if at := slices.IndexFunc(t.shown, func(item T) bool { return t.key(item) == key }); at >= 0 {
			t.offset += at - t.cursor
			t.cursor = at
		}
	}
	t.move(0)
}

// selected returns the item under the cursor.
func (t *table[T]) selected() (item T, ok bool) {
	if t.cursor >= len(t.shown) {
		return item, false
	}
	return t.shown[t.cursor], true
}

// open returns the page of the item under the cursor, or nil.
func (t *table[T]) open(s *Server) *page {
	if item, ok := t.selected(); ok {
		return t.details(s, item)
	}
	return nil
}

// address returns the address of the item under the cursor, or nothing.
func (t *table[T]) address() string {
	item, _ := t.selected()
	if of, ok := any(item).(interface{ GetAddress() string }); ok {
		return of.GetAddress()
	}
	return ""
}

// move moves the cursor.
func (t *table[T]) move(by int) {
	t.cursor = max(0, min(t.cursor+by, len(t.shown)-1))
	t.offset = max(0, min(t.offset, t.cursor))
}

// view returns the header and the items around the cursor, in at most height lines. It scrolls so that the whole
// item under the cursor is on the screen.
func (t *table[T]) view(paint painter, columns, height int, now time.Time) (lines []string) {
	if height < 2 {
		return nil
	}
	tall := func(i int) int { // number of lines of an item
		n := 1
		for _, cell := range t.grid.Cells(t.shown[i], now) {
			n = max(n, len(cell))
		}
		return n
	}
	first, room := t.cursor, height-1
	for i := t.cursor; i >= t.offset && i < len(t.shown); i-- {
		if room -= tall(i); room < 0 && i < t.cursor {
			break
		}
		first = i
	}
	t.offset = first
	end := t.offset
	for room = height - 1; end < len(t.shown) && room > 0; end++ {
		room -= tall(end)
	}
	t.fits = end - t.offset

	marks := make([]string, len(t.grid.Columns))
	if t.sorted >= 0 {
		marks[t.sorted] = " ↑"
		if t.reversed {
			marks[t.sorted] = " ↓"
		}
	}
	header, rows := t.grid.View(t.shown[t.offset:end], columns-margin, t.cursor-t.offset, marks, now, paint.paint)
	space := strings.Repeat(" ", margin)
	lines = append(lines, paint.paint(dim, space+header))
	for i, row := range rows {
		for l, line := range row {
			switch {
			case t.offset+i != t.cursor:
				line = space + line
			case l == 0:
				line = paint.paint(chosen, pad("> "+line, columns))
			default:
				line = paint.paint(chosen, pad(space+line, columns))
			}
			lines = append(lines, line)
		}
	}
	return lines[:min(len(lines), height)]
}

// len returns the number of items that match the filter.
func (t *table[T]) len() int { return len(t.shown) }

// screenful returns the number of items on the screen.
func (t *table[T]) screenful() int { return t.fits }

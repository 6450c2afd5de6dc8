package top

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// gap separates two columns. margin is left of the first one, for the cursor.
const (
	gap    = 2
	margin = 2
)

// A column of a table. A cell may have several lines.
type column[T any] struct {
	header string
	// drop is the order in which columns are left out if the screen is too narrow: the highest number
	// first. Columns with 0 are always shown.
	drop int
	// least is the width at which a column still makes sense; 0 if its cells must be shown in full.
	least   int
	cell    func(item T, now time.Time) []string
	tone    func(item T) tone // nil for plain text
	compare func(a, b T) int  // nil if items are not sorted by the column
	fixed   bool              // items are not sorted by it, although they could be
}

// A table shows items with a cursor. It keeps the item under the cursor when items change.
type table[T any] struct {
	columns []column[T]
	key     func(T) string
	// order is the order of the items unless a column is selected.
	order func(a, b T) int
	// details returns the page of an item.
	details func(*Server, T) *page

	all, shown []T
	words      []string // of the filter, in lower case
	sorted     int      // index of a column, or -1
	reversed   bool
	cursor     int
	offset     int // first item on the screen
	fits       int // number of items on the screen
	widths     []int
	columnsFor int // screen width that the widths are for
}

// A list is what the tables of all tabs can do.
type list interface {
	move(by int)
	filter(text string)
	sortNext()
	reverse()
	len() int
	screenful() int
	address() string
	open(*Server) *page
	view(paint painter, columns, height int, now time.Time) []string
}

func newTable[T any](key func(T) string, order func(a, b T) int, details func(*Server, T) *page, columns []column[T]) table[T] {
	return table[T]{columns: columns, key: key, order: order, details: details, sorted: -1}
}

// set replaces the items.
func (t *table[T]) set(items []T) {
	t.all = items
	t.arrange()
}

// filter shows only the items that contain all words.
func (t *table[T]) filter(text string) {
	t.words = strings.Fields(strings.ToLower(text))
	t.widths = nil
	t.arrange()
}

// sortNext sorts by the next column that items can be sorted by, and after the last one in the usual
// order.
func (t *table[T]) sortNext() {
	t.reversed = false
	next := slices.IndexFunc(t.columns[t.sorted+1:], func(c column[T]) bool { return c.compare != nil })
	if next >= 0 {
		next += t.sorted + 1
	}
	t.sorted = next
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
	if len(t.words) > 0 {
		t.shown = slices.DeleteFunc(t.shown, func(item T) bool { return !t.matches(item) })
	}
	compare := t.order
	if t.sorted >= 0 {
		by := t.columns[t.sorted].compare
		compare = func(a, b T) int { return cmp.Or(by(a, b), t.order(a, b)) }
	}
	slices.SortFunc(t.shown, func(a, b T) int {
		if t.reversed {
			a, b = b, a
		}
		return compare(a, b)
	})
	at := -1
	if had && t.cursor > 0 { // a cursor at the top stays there, so that what is new is seen
		key := t.key(under)
		at = slices.IndexFunc(t.shown, func(item T) bool { return t.key(item) == key })
	}
	if at >= 0 {
		t.offset += at - t.cursor
		t.cursor = at
	}
	t.move(0)
}

// matches reports whether an item contains all words of the filter.
func (t *table[T]) matches(item T) bool {
	var text strings.Builder
	for _, c := range t.columns {
		for _, line := range c.cell(item, time.Time{}) {
			text.WriteString(strings.ToLower(line))
			text.WriteByte('\n')
		}
	}
	all := text.String()
	return !slices.ContainsFunc(t.words, func(word string) bool { return !strings.Contains(all, word) })
}

// selected returns the item under the cursor.
func (t *table[T]) selected() (item T, ok bool) {
	if t.cursor < 0 || t.cursor >= len(t.shown) {
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

// view returns the header and the items around the cursor, in at most height lines.
func (t *table[T]) view(paint painter, columns, height int, now time.Time) (lines []string) {
	if height < 2 {
		return nil
	}
	rows := t.window(height-1, now)
	t.fits = len(rows)
	shown, widths := t.layout(rows, columns)
	header := make([][]string, len(t.columns))
	for i, c := range t.columns {
		header[i] = []string{c.header + t.arrow(i)}
	}
	unpainted := func(_ int, s string) string { return s }
	lines = append(lines, paint.paint(dim, line(header, 0, shown, widths, columns, unpainted)))
	for i, row := range rows {
		item := t.shown[t.offset+i]
		tall := tallest(row, shown)
		for l := 0; l < tall && len(lines) < height; l++ {
			if t.offset+i == t.cursor {
				line := line(row, l, shown, widths, columns, unpainted)
				if l == 0 {
					line = "> " + line[margin:]
				}
				lines = append(lines, paint.paint(chosen, pad(line, columns)))
				continue
			}
			lines = append(lines, line(row, l, shown, widths, columns, func(i int, s string) string {
				if t.columns[i].tone == nil {
					return s
				}
				return paint.paint(t.columns[i].tone(item), s)
			}))
		}
	}
	return lines
}

// arrow marks the column that items are sorted by.
func (t *table[T]) arrow(column int) string {
	switch {
	case column != t.sorted:
		return ""
	case t.reversed:
		return " ↓"
	default:
		return " ↑"
	}
}

// window returns the cells of the items that are on the screen, and scrolls so that the whole item
// under the cursor is.
func (t *table[T]) window(height int, now time.Time) (rows [][][]string) {
	cells := func(item T) [][]string {
		row := make([][]string, len(t.columns))
		for i, c := range t.columns {
			row[i] = c.cell(item, now)
		}
		return row
	}
	every := make([]int, len(t.columns))
	for i := range every {
		every[i] = i
	}
	// From the cursor upwards: the first item that is on the screen together with the one under the cursor.
	first, used := t.cursor, 0
	for i := t.cursor; i >= 0 && i < len(t.shown); i-- {
		used += tallest(cells(t.shown[i]), every)
		if used > height && i < t.cursor {
			break
		}
		first = i
		if i <= t.offset {
			break
		}
	}
	t.offset = max(t.offset, first)
	used = 0
	for i := t.offset; i < len(t.shown) && used < height; i++ {
		row := cells(t.shown[i])
		used += tallest(row, every)
		rows = append(rows, row)
	}
	return rows
}

// tallest returns the number of lines that the shown columns of a row take.
func tallest(row [][]string, shown []int) int {
	n := 1
	for _, c := range shown {
		n = max(n, len(row[c]))
	}
	return n
}

// layout decides which columns are shown, and how wide they are. Columns become wider as needed, and
// not narrower again, so that the table does not jump while it scrolls.
func (t *table[T]) layout(rows [][][]string, columns int) (shown, widths []int) {
	if t.columnsFor != columns || t.widths == nil {
		t.widths, t.columnsFor = make([]int, len(t.columns)), columns
	}
	for i, c := range t.columns {
		t.widths[i] = max(t.widths[i], width(c.header)+width(t.arrow(i)))
		for _, row := range rows {
			for _, line := range row[i] {
				t.widths[i] = max(t.widths[i], width(line))
			}
		}
	}
	least := func(i int) int {
		if t.columns[i].least > 0 {
			return min(t.columns[i].least, t.widths[i])
		}
		return t.widths[i]
	}
	for i := range t.columns {
		shown = append(shown, i)
	}
	// Columns that are always shown lose parts of their texts only if they fit in no other way.
	full := func(i int) int {
		if t.columns[i].drop == 0 {
			return t.widths[i]
		}
		return least(i)
	}
	sum := func(width func(int) int) int {
		n := margin - gap
		for _, i := range shown {
			n += width(i) + gap
		}
		return n
	}
	leave := func(width func(int) int, kept int) {
		for sum(width) > columns {
			last := slices.MaxFunc(shown, func(a, b int) int { return cmp.Compare(t.columns[a].drop, t.columns[b].drop) })
			if t.columns[last].drop <= kept {
				return
			}
			shown = slices.DeleteFunc(shown, func(i int) bool { return i == last })
		}
	}
	leave(full, 1)
	leave(least, 0)
	room := columns - sum(least)
	widths = make([]int, len(t.columns))
	for _, i := range shown {
		more := max(0, min(room, t.widths[i]-least(i)))
		widths[i] = least(i) + more
		room -= more
	}
	return shown, widths
}

// line returns one line of a row in a style.
func line(row [][]string, n int, shown, widths []int, columns int, style func(column int, s string) string) string {
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", margin))
	room := columns - margin
	for at, i := range shown {
		text := ""
		if n < len(row[i]) {
			text = row[i][n]
		}
		cell := min(widths[i], max(0, room))
		if at == len(shown)-1 {
			b.WriteString(style(i, fit(text, max(0, room))))
			break
		}
		b.WriteString(style(i, pad(text, cell)))
		b.WriteString(strings.Repeat(" ", min(gap, max(0, room-cell))))
		room -= cell + gap
	}
	return b.String()
}

// len returns the number of items that match the filter.
func (t *table[T]) len() int { return len(t.shown) }

// screenful returns the number of items on the screen.
func (t *table[T]) screenful() int { return t.fits }

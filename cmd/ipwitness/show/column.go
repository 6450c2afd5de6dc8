package show

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Kind describes how the items of one kind are listed: in tables and watches, and for programs.
type Kind[T any] struct {
	Name string // of an item in JSON; lists and paths have its plural
	// Key returns the identity of an item, which is the same in all events of a watch.
	Key func(T) string
	// Orders are the columns that items can be sorted by.
	Orders  []string
	columns func() []Column[T]
	ID      func(T) string // that commands accept as an argument
	over    func(T) bool   // reports whether an item has already ended; nil if none has
}

// Plural returns the name of a list of items.
func (k Kind[T]) Plural() string { return k.Name + "s" }

// Sort sorts items by a column, the oldest first if it is one of time. Equal items, and all if the name is
// empty, stay in the order that they have.
func (k Kind[T]) Sort(items []T, name string) {
	for _, c := range k.columns() {
		if strings.EqualFold(c.Header, name) {
			slices.SortStableFunc(items, c.Compare)
		}
	}
}

// WithColumn returns the kind with a column of texts in a tone after those of each table.
func (k Kind[T]) WithColumn(header string, text func(T) string, tone func(T) Tone) Kind[T] {
	columns := k.columns()
	at := slices.IndexFunc(columns, func(c Column[T]) bool { return c.wide })
	columns = slices.Insert(columns, at, Column[T]{Header: header, Tone: tone, cell: func(item T, _ time.Time) string { return text(item) }})
	k.columns = func() []Column[T] { return slices.Clone(columns) }
	return k
}

// A Column is one column of a table, and of the lists of top.
type Column[T any] struct {
	Header string
	cell   func(item T, now time.Time) string
	// lines returns the lines of the cell in top; nil for one line.
	lines func(item T) []string
	room  int  // initial width in a watch
	wide  bool // only with -o wide
	ages  bool // changes with time, so not shown in a watch
	// at returns the time from which the cell counts; set if ages is.
	at func(item T) *timestamppb.Timestamp
	// Tone returns the tone of the cell; nil for plain text.
	Tone func(item T) Tone
	// Order is the order of items by this column; nil for that of their texts or times.
	Order func(a, b T) int
	trait
}

// Lines returns the lines of a cell in top. Times have no age at the zero time.
func (c Column[T]) Lines(item T, now time.Time) []string {
	switch {
	case c.lines != nil:
		return c.lines(item)
	case c.at == nil:
		return []string{c.cell(item, now)}
	case now.IsZero():
		return nil
	}
	return []string{age(c.at(item), now)}
}

// Compare compares items by this column.
func (c Column[T]) Compare(a, b T) int {
	switch {
	case c.Order != nil:
		return c.Order(a, b)
	case c.at != nil:
		return CompareTimes(c.at(a), c.at(b))
	}
	return slices.Compare(c.Lines(a, time.Time{}), c.Lines(b, time.Time{}))
}

// cells returns the cells of one item.
func cells[T any](columns []Column[T], item T, now time.Time) []string {
	var out []string
	for _, c := range columns {
		out = append(out, c.cell(item, now))
	}
	return out
}

// tones returns the tones of the cells of one item.
func tones[T any](columns []Column[T], item T) []Tone {
	out := make([]Tone, len(columns))
	for i, c := range columns {
		if c.Tone != nil {
			out[i] = c.Tone(item)
		}
	}
	return out
}

// narrow removes the columns that are only for -o wide, unless wide is set.
func narrow[T any](columns []Column[T], wide bool) []Column[T] {
	return slices.DeleteFunc(columns, func(c Column[T]) bool { return c.wide && !wide })
}

// tableOf returns a table with columns that fits a layout.
func tableOf[T any](w io.Writer, layout Layout, columns []Column[T]) *Table {
	var traits []trait
	var header row
	for _, c := range columns {
		traits = append(traits, c.trait)
		header.cells = append(header.cells, []string{c.Header})
	}
	t := newTable(w, layout, traits)
	if !layout.NoHeaders {
		t.header = &header
		t.measure(header)
	}
	return t
}

// list writes a table of items.
func list[T any](w io.Writer, layout Layout, columns []Column[T], items []T, now time.Time) error {
	t := tableOf(w, layout, columns)
	for _, item := range items {
		t.add(tones(columns, item), cells(columns, item, now)...)
	}
	return t.Flush()
}

// A Grid lays out the lists of top. Its cells may have several lines, and are shortened to fit.
type Grid[T any] struct {
	Columns []Column[T]
	table   *Table
}

// Pick returns a grid of the columns with these headers.
func (k Kind[T]) Pick(headers ...string) Grid[T] {
	var g Grid[T]
	columns := k.columns()
	for _, header := range headers {
		g.Columns = append(g.Columns, columns[slices.IndexFunc(columns, func(c Column[T]) bool { return c.Header == header })])
	}
	return g
}

// Reset gives the columns new widths.
func (g *Grid[T]) Reset() { g.table = nil }

// mostLines is the maximum number of lines of a cell.
const mostLines = 3

// Cells returns the lines of each cell of an item.
func (g *Grid[T]) Cells(item T, now time.Time) (cells [][]string) {
	for _, c := range g.Columns {
		lines := c.Lines(item, now)
		if more := len(lines) - mostLines + 1; more > 1 {
			lines = append(slices.Clone(lines[:mostLines-1]), fmt.Sprintf("and %d more", more))
		}
		cell := make([]string, len(lines))
		for i, line := range lines {
			cell[i] = clean(line)
		}
		cells = append(cells, cell)
	}
	return cells
}

// View returns the lines of the header, whose cells have marks, and of each item. Columns become wider as needed
// and, in the same width, not narrower again, so that the grid does not jump while it scrolls. The item at plain
// has no tones.
func (g *Grid[T]) View(items []T, width, plain int, marks []string, now time.Time, paint func(Tone, string) string) (header string, rows [][]string) {
	if g.table == nil || g.table.width != width {
		g.table = tableOf[T](nil, Layout{Width: width, NoHeaders: true}, g.Columns)
		g.table.cuts = true
	}
	t := g.table
	t.paint = paint
	var first row
	for i, c := range g.Columns {
		first.cells = append(first.cells, []string{c.Header + marks[i]})
	}
	t.rows = []row{first}
	for i, item := range items {
		r := row{cells: g.Cells(item, now)}
		if i != plain {
			r.tones = tones(g.Columns, item)
		}
		t.rows = append(t.rows, r)
	}
	for _, r := range t.rows {
		t.measure(r)
	}
	shown, widths, _ := t.arrange()
	for _, r := range t.rows {
		var b strings.Builder
		t.write(&b, r, shown, widths)
		rows = append(rows, strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n"))
	}
	return rows[0][0], rows[1:]
}

// by returns the order of a field.
func by[T any, K cmp.Ordered](key func(T) K) func(a, b T) int {
	return func(a, b T) int { return cmp.Compare(key(a), key(b)) }
}

// most returns the order of a field, the highest value first.
func most[T any, K cmp.Ordered](key func(T) K) func(a, b T) int {
	return func(a, b T) int { return cmp.Compare(key(b), key(a)) }
}

// byAddress returns the order of an address.
func byAddress[T any](address func(T) string) func(a, b T) int {
	return func(a, b T) int { return CompareAddresses(address(a), address(b)) }
}

// CompareAddresses compares addresses as numbers, IPv4 first. Other texts are before all addresses.
func CompareAddresses(a, b string) int {
	x, _ := netip.ParseAddr(a)
	y, _ := netip.ParseAddr(b)
	return cmp.Or(x.Compare(y), strings.Compare(a, b))
}

// CompareTimes compares times. Unknown times are last.
func CompareTimes(a, b *timestamppb.Timestamp) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.AsTime().Compare(b.AsTime())
}

// byScope returns the order of a scope: by its kind, from narrow to wide, and by its name.
func byScope[T interface{ GetScope() *pb.Scope }](a, b T) int {
	x, y := a.GetScope(), b.GetScope()
	return cmp.Or(cmp.Compare(x.GetKind(), y.GetKind()), strings.Compare(x.GetName(), y.GetName()))
}

// CompareUrgency compares conflicts by how urgent they are, and by when they began, the newest first.
func CompareUrgency(a, b *pb.Conflict) int {
	return cmp.Or(cmp.Compare(urgency(a), urgency(b)), CompareTimes(b.GetDetectedAt(), a.GetDetectedAt()))
}

// urgency returns how urgent a conflict is; the most urgent has the lowest number.
func urgency(c *pb.Conflict) int {
	return slices.Index([]Tone{BadTone, WarnTone, DimTone, GoodTone}, conflictTone(c))
}

package show

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

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

// NewColumn returns a column of texts in a tone. rank is the order in which columns are left out.
func NewColumn[T any](header string, rank int, text func(T) string, tone func(T) Tone) Column[T] {
	return Column[T]{Header: header, Tone: tone, trait: trait{rank: rank}, cell: func(item T, _ time.Time) string { return text(item) }}
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
func Pick[T any](columns []Column[T], headers ...string) Grid[T] {
	var g Grid[T]
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

package show

import (
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// gap separates two columns.
const gap = "  "

// Table lays out rows in aligned columns. Rows after a Flush keep the column positions, and widen
// columns if necessary.
type Table struct {
	w      io.Writer
	rows   [][]string
	widths []int
}

// NewTable returns a table that writes to w. The header is optional.
func NewTable(w io.Writer, header ...string) *Table {
	t := &Table{w: w}
	if len(header) > 0 {
		t.Row(header...)
	}
	return t
}

// Row adds a row. An empty cell is shown as a dash.
func (t *Table) Row(cells ...string) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = first(clean(c), none)
		if i == len(t.widths) {
			t.widths = append(t.widths, 0)
		}
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i]))
	}
	t.rows = append(t.rows, row)
}

// Span adds a row whose last cell reaches over the remaining columns.
func (t *Table) Span(cells ...string) {
	last := len(cells) - 1
	t.Row(cells[:last]...)
	row := &t.rows[len(t.rows)-1]
	*row = append(*row, clean(cells[last]))
}

// Flush writes the rows that were added since the last Flush.
func (t *Table) Flush() error {
	var b strings.Builder
	for _, row := range t.rows {
		b.WriteString(t.line(row))
		b.WriteByte('\n')
	}
	t.rows = nil
	_, err := io.WriteString(t.w, b.String())
	return err
}

// line returns one row without trailing spaces.
func (t *Table) line(row []string) string {
	var b strings.Builder
	for i, c := range row {
		b.WriteString(c)
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(c)))
			b.WriteString(gap)
		}
	}
	return b.String()
}

// Layout is how tables are laid out.
type Layout struct {
	Wide      bool // all columns
	NoHeaders bool
}

// column is one column of a table.
type column[T any] struct {
	header string
	cell   func(item T, now time.Time) string
	room   int  // initial width in a watch
	wide   bool // only with -o wide
	ages   bool // changes with time, so not shown in a watch
	// at returns the time from which the cell counts; set if ages is.
	at func(item T) *timestamppb.Timestamp
}

// headers returns the headers of columns.
func headers[T any](columns []column[T]) []string {
	var out []string
	for _, c := range columns {
		out = append(out, c.header)
	}
	return out
}

// cells returns the cells of one item.
func cells[T any](columns []column[T], item T, now time.Time) []string {
	var out []string
	for _, c := range columns {
		out = append(out, c.cell(item, now))
	}
	return out
}

// narrow removes the columns that are only for -o wide, unless wide is set.
func narrow[T any](columns []column[T], wide bool) []column[T] {
	var out []column[T]
	for _, c := range columns {
		if wide || !c.wide {
			out = append(out, c)
		}
	}
	return out
}

// list writes a table of items.
func list[T any](w io.Writer, columns []column[T], items []T, now time.Time) error {
	return listOf(w, Layout{}, columns, items, now)
}

// listOf writes a table of items with or without a header.
func listOf[T any](w io.Writer, layout Layout, columns []column[T], items []T, now time.Time) error {
	t := NewTable(w)
	if !layout.NoHeaders {
		t.Row(headers(columns)...)
	}
	for _, item := range items {
		t.Row(cells(columns, item, now)...)
	}
	return t.Flush()
}

package show

import (
	"io"
	"slices"
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
	// compare is the order of items by this column; nil for that of their texts or times.
	compare func(a, b T) int
	trait
}

// NewColumn returns a column of texts in a tone.
func NewColumn[T any](header string, text func(T) string, tone func(T) Tone) Column[T] {
	return Column[T]{Header: header, Tone: tone, cell: func(item T, _ time.Time) string { return text(item) }}
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
	case c.compare != nil:
		return c.compare(a, b)
	case c.at != nil:
		return CompareTimes(c.at(a), c.at(b))
	}
	return slices.Compare(c.Lines(a, time.Time{}), c.Lines(b, time.Time{}))
}

// headers returns the headers of columns.
func headers[T any](columns []Column[T]) []string {
	var out []string
	for _, c := range columns {
		out = append(out, c.Header)
	}
	return out
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
	var out []Column[T]
	for _, c := range columns {
		if wide || !c.wide {
			out = append(out, c)
		}
	}
	return out
}

// list writes a table of items.
func list[T any](w io.Writer, layout Layout, columns []Column[T], items []T, now time.Time) error {
	t := tableOf(w, layout, columns)
	for _, item := range items {
		t.add(row{cells: cells(columns, item, now), tones: tones(columns, item)})
	}
	return t.Flush()
}

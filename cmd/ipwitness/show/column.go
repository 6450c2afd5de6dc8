package show

import (
	"io"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// column is one column of a table.
type column[T any] struct {
	header string
	cell   func(item T, now time.Time) string
	// lines returns the lines of the cell in top; nil for one line.
	lines func(item T) []string
	room  int  // initial width in a watch
	wide  bool // only with -o wide
	ages  bool // changes with time, so not shown in a watch
	// at returns the time from which the cell counts; set if ages is.
	at func(item T) *timestamppb.Timestamp
	// tone returns the tone of the cell; may be nil.
	tone func(item T) Tone
	trait
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

// tones returns the tones of the cells of one item.
func tones[T any](columns []column[T], item T) []Tone {
	out := make([]Tone, len(columns))
	for i, c := range columns {
		if c.tone != nil {
			out[i] = c.tone(item)
		}
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
func list[T any](w io.Writer, layout Layout, columns []column[T], items []T, now time.Time) error {
	t := tableOf(w, layout, columns)
	for _, item := range items {
		t.add(row{cells: cells(columns, item, now), tones: tones(columns, item)})
	}
	return t.Flush()
}

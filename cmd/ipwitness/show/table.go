package show

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// gap separates two columns.
const gap = "  "

// Layout is how output for people is laid out.
type Layout struct {
	Wide      bool // all columns, also if the terminal is too narrow for them
	NoHeaders bool
	Ungrouped bool // a row for each conflict
	Width     int  // columns of the terminal; 0 if the output is not shown in a terminal
	// Resized returns the current number of columns of the terminal, 0 if that is not known; nil if
	// the width does not change.
	Resized func() int
	Color   bool   // colours by state
	Program string // how the user invokes this program
}

// current returns the current width, if the width was w before.
func (l Layout) current(w int) int {
	if w == 0 || l.Resized == nil {
		return w
	}
	return cmp.Or(l.Resized(), w)
}

// tableWidth returns the width that tables are fitted to; 0 for any width.
func (l Layout) tableWidth() int {
	if l.Wide {
		return 0
	}
	return l.Width
}

// Table lays out rows in aligned columns. Rows after a Flush keep the column positions, and widen
// columns if necessary. A table with a width leaves out columns and folds cells to fit.
type Table struct {
	w      io.Writer
	layout Layout
	rows   []row
	widths []int // of the widest cell of each column
	least  []int // of the widest word of each column
	width  int   // of the terminal; 0 for any width
	traits []trait
	paint  painter
	header *row
	shown  []int // the columns under the header that was written last
}

// row is a row of a table.
type row struct {
	cells []string
	tones []Tone // of cells; may be shorter
	span  string // text over the remaining columns
	// loose is set for a row whose cells are written one after the other, and which does not determine
	// the widths of columns.
	loose bool
}

// trait is how a column behaves in a terminal that is too narrow for all columns.
type trait struct {
	// rank is the order in which columns are left out, the highest first; 0 is never. Columns of rank
	// spare or above are left out before cells are folded, the others after.
	rank  int
	folds bool // its cells are folded at spaces
	// below is set for a last column of texts: if the columns that are not spare leave no room for
	// it, its cells are below their rows.
	below bool
}

const (
	spare = 5
	// foldWidth is the least width of a column whose cells are folded, and leastTextWidth that of a
	// column of texts.
	foldWidth      = 16
	leastTextWidth = 32
)

// tableOf returns a table with columns that fits a layout.
func tableOf[T any](w io.Writer, layout Layout, columns []Column[T]) *Table {
	t := &Table{w: w, layout: layout, width: layout.tableWidth(), paint: painter(layout.Color)}
	for _, c := range columns {
		t.traits = append(t.traits, c.trait)
	}
	if !layout.NoHeaders {
		t.header = &row{cells: headers(columns)}
		t.measure(t.header.cells)
	}
	return t
}

// Row adds a row. An empty cell is shown as a dash.
func (t *Table) Row(cells ...string) { t.add(row{cells: cells}) }

// Span adds a row whose last cell reaches over the remaining columns.
func (t *Table) Span(cells ...string) {
	last := len(cells) - 1
	t.add(row{cells: cells[:last], span: clean(cells[last])})
}

func (t *Table) add(r row) {
	cells := make([]string, len(r.cells))
	for i, c := range r.cells {
		cells[i] = first(clean(c), none)
	}
	r.cells = cells
	t.rows = append(t.rows, r)
}

// loosen decides which of the new rows are loose, and measures the others. A row that is too long for
// the columns that are not spare is loose if most rows are not, because it would deprive them of these
// columns.
func (t *Table) loosen() {
	tooLong := func(r row, rank int) bool { // without the columns of a rank or above
		needed := -len(gap)
		for i, c := range r.cells {
			trait := t.trait(i)
			if trait.rank >= rank || trait.below {
				continue
			}
			width := utf8.RuneCountInString(c)
			if trait.folds {
				width = trait.least(longestWord(c), width)
			}
			needed += len(gap) + width
		}
		return t.width > 0 && r.span == "" && needed > t.width
	}
	long := 0
	for _, r := range t.rows {
		if tooLong(r, spare) {
			long++
		}
	}
	rank := spare
	if 2*long > len(t.rows) {
		rank = 1
	}
	for i, r := range t.rows {
		cells := r.cells
		if tooLong(r, rank) {
			t.rows[i].loose = true
			cells = make([]string, len(cells)) // it has columns, but of no width
		}
		t.measure(cells)
	}
}

// least returns the least width of a column whose cells are folded, with the widths of its longest word
// and cell.
func (t trait) least(word, cell int) int {
	if t.below {
		return max(word, min(cell, leastTextWidth))
	}
	return max(word, min(cell, foldWidth))
}

func longestWord(text string) (most int) {
	for _, word := range unbroken(text) {
		most = max(most, utf8.RuneCountInString(word))
	}
	return most
}

// measure widens the columns for a row.
func (t *Table) measure(cells []string) {
	for i, c := range cells {
		t.widen(i, utf8.RuneCountInString(c))
		if t.width > 0 {
			t.least[i] = max(t.least[i], longestWord(c))
		}
	}
}

// widen gives a column a least width. Columns are widened in their order.
func (t *Table) widen(i, width int) {
	if i == len(t.widths) {
		t.widths, t.least = append(t.widths, 0), append(t.least, 0)
	}
	t.widths[i] = max(t.widths[i], width)
}

// Flush writes the rows that were added since the last Flush, in the current width of the terminal.
func (t *Table) Flush() error {
	var b strings.Builder
	t.width = t.layout.current(t.width)
	t.loosen()
	shown, widths, below := t.arrange()
	if t.header != nil && !slices.Equal(shown, t.shown) {
		t.shown = shown
		t.write(&b, *t.header, shown, widths)
	}
	for _, r := range t.rows {
		t.write(&b, r, shown, widths)
		if below {
			t.writeBelow(&b, r, widths)
		}
	}
	t.rows = nil
	_, err := io.WriteString(t.w, b.String())
	return err
}

// trait returns the trait of a column.
func (t *Table) trait(i int) trait {
	if i < len(t.traits) {
		return t.traits[i]
	}
	return trait{}
}

// arrange returns the columns that are shown, the widths of all columns, and whether the cells of the
// last one are below their rows.
func (t *Table) arrange() (shown, widths []int, below bool) {
	widths = slices.Clone(t.widths)
	for i := range widths {
		shown = append(shown, i)
	}
	if t.width == 0 {
		return shown, widths, false
	}
	least := slices.Clone(widths)
	for i := range least {
		if t.trait(i).folds {
			least[i] = t.trait(i).least(t.least[i], widths[i])
		}
	}
	shown = t.fit(shown, widths, spare)
	if last := len(shown) - 1; last >= 0 && t.trait(shown[last]).below && total(shown, least) > t.width {
		shown, below = shown[:last], true
	}
	shown = t.fit(shown, least, 1)
	t.squeeze(shown, widths, least)
	return shown, widths, below
}

// squeeze narrows columns whose cells are folded until all columns fit: at each step the one in which
// the fewest cells are folded then and, of several, the widest.
func (t *Table) squeeze(shown, widths, least []int) {
	lengths := map[int][]int{} // of the cells of a column, sorted
	for _, i := range shown {
		if widths[i] == least[i] {
			continue
		}
		for _, r := range t.rows {
			if !r.loose && i < len(r.cells) {
				lengths[i] = append(lengths[i], utf8.RuneCountInString(r.cells[i]))
			}
		}
		slices.Sort(lengths[i])
	}
	for over := total(shown, widths) - t.width; over > 0; over-- {
		narrower, fewest := -1, 0
		for _, i := range shown {
			if widths[i] == least[i] {
				continue
			}
			within, _ := slices.BinarySearch(lengths[i], widths[i])
			folded := len(lengths[i]) - within
			if narrower < 0 || folded < fewest || folded == fewest && widths[i] > widths[narrower] {
				narrower, fewest = i, folded
			}
		}
		if narrower < 0 {
			return
		}
		widths[narrower]--
	}
}

// fit leaves out columns of a rank or above until the others fit.
func (t *Table) fit(shown, widths []int, rank int) []int {
	for total(shown, widths) > t.width {
		out := slices.MaxFunc(shown, func(a, b int) int { return t.trait(a).rank - t.trait(b).rank })
		if t.trait(out).rank < rank {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == out })
	}
	return shown
}

// total returns the width of a row.
func total(shown, widths []int) int {
	sum := -len(gap)
	for _, i := range shown {
		sum += len(gap) + widths[i]
	}
	return sum
}

// write writes a row, in several lines if cells are folded.
func (t *Table) write(b *strings.Builder, r row, shown, widths []int) {
	if r.loose || t.width > 0 && t.overflows(r, shown, widths) {
		t.writeWords(b, r, shown)
		return
	}
	var parts [][]string // the lines of each shown cell
	used := 0
	for n, i := range shown {
		if i >= len(r.cells) {
			break
		}
		part := []string{r.cells[i]}
		if t.width > 0 && t.trait(i).folds {
			lead := len(r.cells[i]) - len(strings.TrimLeft(r.cells[i], " "))
			part = folded(r.cells[i], widths[i], lead)
		}
		parts = append(parts, part)
		used = total(shown[:n+1], widths) + len(gap)
	}
	if r.span != "" {
		part := []string{r.span}
		if t.width > used {
			part = folded(r.span, t.width-used, 0)
		}
		parts = append(parts, part)
	}
	for l := 0; slices.ContainsFunc(parts, func(part []string) bool { return l < len(part) }) || l == 0; l++ {
		pending := 0 // spaces before the next text
		for n, part := range parts {
			text := ""
			if l < len(part) {
				text = part[l]
			}
			if text != "" {
				b.WriteString(strings.Repeat(" ", pending) + t.painted(r, shown, n, text))
				pending = 0
			}
			if n < len(shown) {
				pending += widths[shown[n]] - utf8.RuneCountInString(text) + len(gap)
			}
		}
		b.WriteByte('\n')
	}
}

// writeBelow writes the last cell of a row below the row, after its first column.
func (t *Table) writeBelow(b *strings.Builder, r row, widths []int) {
	last := len(widths) - 1
	if last >= len(r.cells) || r.cells[last] == none {
		return
	}
	margin := strings.Repeat(" ", min(widths[0], t.width/4)) + gap
	b.WriteString(hanging(margin, r.cells[last], t.width) + "\n")
}

// painted returns a text of the n-th shown cell in its colour.
func (t *Table) painted(r row, shown []int, n int, text string) string {
	if n < len(shown) && shown[n] < len(r.tones) {
		return t.paint.tone(r.tones[shown[n]], text)
	}
	return text
}

// overflows reports whether a row does not fit, although columns were left out.
func (t *Table) overflows(r row, shown, widths []int) bool {
	sum := -len(gap)
	for _, i := range shown {
		if i < len(r.cells) {
			sum += len(gap) + widths[i]
		}
	}
	last := shown[len(shown)-1]
	if last < len(r.cells) && r.span == "" { // nothing pads the last cell
		sum -= max(0, widths[last]-utf8.RuneCountInString(r.cells[last]))
	}
	return sum > t.width
}

// writeWords writes the cells of a row that does not fit one after the other, in as many lines as they
// need.
func (t *Table) writeWords(b *strings.Builder, r row, shown []int) {
	const margin = "    "
	used := 0
	for n, i := range shown {
		if i >= len(r.cells) {
			break
		}
		size := utf8.RuneCountInString(r.cells[i])
		switch {
		case n == 0:
		case used+len(gap)+size > t.width:
			b.WriteString("\n" + margin)
			used = len(margin)
		default:
			b.WriteString(gap)
			used += len(gap)
		}
		for k, part := range folded(r.cells[i], max(t.width-used, leastTextWidth), 0) {
			if k > 0 {
				b.WriteString("\n" + margin)
				used = len(margin)
			}
			b.WriteString(t.painted(r, shown, n, part))
			used += utf8.RuneCountInString(part)
		}
	}
	b.WriteByte('\n')
}

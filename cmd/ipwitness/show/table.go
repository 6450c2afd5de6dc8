package show

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
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

// Table lays out rows in aligned columns. Rows after a Flush keep the column positions, and widen
// columns if necessary. A table with a width leaves out columns, and folds or shortens cells to fit.
type Table struct {
	w      io.Writer
	layout Layout
	width  int // of the terminal; 0 for any width
	traits []trait
	paint  func(Tone, string) string
	cuts   bool // cells that do not fit are shortened instead of folded
	header *row
	rows   []row
	widths []int // of the widest cell of each column
	least  []int // of the widest word of each column
	shown  []int // the columns under the header that was written last
}

// row is a row of a table.
type row struct {
	cells [][]string // the lines of each cell; there may be fewer cells than columns
	tones []Tone     // of cells; may be shorter
	span  string     // text over the remaining columns
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
	// cut is the width to which cells may be shortened on a full screen; 0 if they must be whole.
	cut int
}

const (
	spare = 5
	// foldWidth is the least width of a column whose cells are folded, and leastTextWidth that of a
	// column of texts.
	foldWidth      = 16
	leastTextWidth = 32
)

func newTable(w io.Writer, layout Layout, traits []trait) *Table {
	n := len(traits)
	t := &Table{w: w, layout: layout, traits: traits, paint: painter(layout.Color).tone, widths: make([]int, n), least: make([]int, n)}
	if !layout.Wide {
		t.width = layout.Width
	}
	return t
}

// add adds a row. An empty cell is shown as a dash.
func (t *Table) add(tones []Tone, cells ...string) {
	r := row{tones: tones}
	for _, c := range cells {
		r.cells = append(r.cells, []string{cmp.Or(clean(c), none)})
	}
	t.rows = append(t.rows, r)
}

// floor returns the least width of a column, with the widths of its longest word and cell.
func (t *Table) floor(column, word, cell int) int {
	switch trait := t.traits[column]; {
	case t.cuts && trait.cut > 0:
		return min(cell, trait.cut)
	case t.cuts || !trait.folds:
		return cell
	case trait.below:
		return max(word, min(cell, leastTextWidth))
	default:
		return max(word, min(cell, foldWidth))
	}
}

// loosen decides which of the new rows are loose, and measures the others. A row that is too long for
// the columns that are not spare is loose if most rows are not, because it would deprive them of these
// columns.
func (t *Table) loosen() {
	tooLong := func(r row, rank int) bool { // without the columns of a rank or above
		needed := -len(gap)
		for i, c := range r.cells {
			if t.traits[i].rank < rank && !t.traits[i].below {
				needed += len(gap) + t.floor(i, longestWord(c[0]), width(c[0]))
			}
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
		if t.rows[i].loose = tooLong(r, rank); !t.rows[i].loose {
			t.measure(r)
		}
	}
}

func longestWord(text string) (most int) {
	for _, word := range unbroken(text) {
		most = max(most, width(word))
	}
	return most
}

// measure widens the columns for a row.
func (t *Table) measure(r row) {
	for i, lines := range r.cells {
		for _, line := range lines {
			t.widths[i] = max(t.widths[i], width(line))
			if t.width > 0 && !t.cuts {
				t.least[i] = max(t.least[i], longestWord(line))
			}
		}
	}
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
		if last := len(widths) - 1; below && last < len(r.cells) && r.cells[last][0] != none { // after the first column
			margin := strings.Repeat(" ", min(widths[0], t.width/4)) + gap
			b.WriteString(hanging(margin, r.cells[last][0], t.width) + "\n")
		}
	}
	t.rows = nil
	_, err := io.WriteString(t.w, b.String())
	return err
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
	least := make([]int, len(widths))
	for i := range least {
		least[i] = t.floor(i, t.least[i], widths[i])
	}
	leaveOut := func(widths []int, rank int) { // columns of the rank or above, until the others fit
		for total(shown, widths) > t.width {
			out := slices.MaxFunc(shown, func(a, b int) int { return t.traits[a].rank - t.traits[b].rank })
			if t.traits[out].rank < rank {
				break
			}
			shown = slices.DeleteFunc(shown, func(i int) bool { return i == out })
		}
	}
	leaveOut(widths, spare)
	if last := len(shown) - 1; t.traits[shown[last]].below && !t.cuts && total(shown, least) > t.width {
		shown, below = shown[:last], true
	}
	leaveOut(least, 1)
	t.squeeze(shown, widths, least)
	return shown, widths, below
}

// squeeze narrows columns whose cells are folded or shortened until all columns fit: at each step the one in
// which the fewest cells are affected then and, of several, the widest.
func (t *Table) squeeze(shown, widths, least []int) {
	lengths := map[int][]int{} // of the cells of a column, sorted
	for _, i := range shown {
		for _, r := range t.rows {
			if !r.loose && i < len(r.cells) && widths[i] > least[i] {
				for _, line := range r.cells[i] {
					lengths[i] = append(lengths[i], width(line))
				}
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
			affected := len(lengths[i]) - within
			if narrower < 0 || affected < fewest || affected == fewest && widths[i] > widths[narrower] {
				narrower, fewest = i, affected
			}
		}
		if narrower < 0 {
			return
		}
		widths[narrower]--
	}
}

// total returns the width of a row.
func total(shown, widths []int) int {
	sum := -len(gap)
	for _, i := range shown {
		sum += len(gap) + widths[i]
	}
	return sum
}

// write writes a row, in several lines if cells have several or are folded.
func (t *Table) write(b *strings.Builder, r row, shown, widths []int) {
	loose := r.loose
	if t.width > 0 && !t.cuts { // although columns were left out, the row may not fit
		present := slices.DeleteFunc(slices.Clone(shown), func(i int) bool { return i >= len(r.cells) })
		needed := total(present, widths)
		if last := shown[len(shown)-1]; last < len(r.cells) && r.span == "" { // nothing pads the last cell
			needed -= max(0, widths[last]-width(r.cells[last][0]))
		}
		loose = loose || needed > t.width
	}
	if loose {
		t.writeWords(b, r, shown)
		return
	}
	parts, lines, used := [][]string{}, 1, 0 // used is the width of the parts, each with its gap
	add := func(part []string) {
		parts, lines = append(parts, part), max(lines, len(part))
	}
	for _, i := range shown {
		if i >= len(r.cells) {
			break
		}
		switch part := r.cells[i]; {
		case t.cuts:
			room := max(0, min(widths[i], t.width-used))
			short := make([]string, len(part))
			for l := range part {
				short[l] = Fit(part[l], room)
			}
			add(short)
		case t.width > 0 && t.traits[i].folds:
			add(folded(part[0], widths[i], len(part[0])-len(strings.TrimLeft(part[0], " "))))
		default:
			add(part)
		}
		used += widths[i] + len(gap)
	}
	switch {
	case r.span != "" && t.width > used:
		add(folded(r.span, t.width-used, 0))
	case r.span != "":
		add([]string{r.span})
	}
	for l := range lines {
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
				pending += widths[shown[n]] - width(text) + len(gap)
			}
		}
		b.WriteByte('\n')
	}
}

// painted returns a text of the n-th shown cell in its colour.
func (t *Table) painted(r row, shown []int, n int, text string) string {
	if n < len(shown) && shown[n] < len(r.tones) {
		return t.paint(r.tones[shown[n]], text)
	}
	return text
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
		cell := r.cells[i][0]
		switch {
		case n == 0:
		case used+len(gap)+width(cell) > t.width:
			b.WriteString("\n" + margin)
			used = len(margin)
		default:
			b.WriteString(gap)
			used += len(gap)
		}
		for k, part := range folded(cell, max(t.width-used, leastTextWidth), 0) {
			if k > 0 {
				b.WriteString("\n" + margin)
				used = len(margin)
			}
			b.WriteString(t.painted(r, shown, n, part))
			used += width(part)
		}
	}
	b.WriteByte('\n')
}

// width returns the number of columns of a terminal that a text takes.
func width(text string) int { return ansi.StringWidthWc(text) }

// Fit shortens a text to a number of columns. It removes the middle, because names of pods differ at
// the end.
func Fit(text string, columns int) string {
	switch {
	case width(text) <= columns:
		return text
	case columns < 1:
		return ""
	}
	end := (columns - 1) / 2
	return ansi.TruncateWc(text, columns-1-end, "") + "…" + Tail(text, end)
}

// Tail returns the end of a text that fits into a number of columns.
func Tail(text string, columns int) string {
	over := max(0, width(text)-columns)
	end := ansi.TruncateLeftWc(text, over, "")
	if width(end) > columns { // the first character takes two columns
		end = ansi.TruncateLeftWc(text, over+1, "")
	}
	return end
}

// unbroken returns the parts of a text that are not broken: words, and a word with the | that separates
// it from the next one.
func unbroken(text string) (parts []string) {
	for word := range strings.FieldsSeq(text) {
		if word == "|" && len(parts) > 0 {
			parts[len(parts)-1] += " |"
		} else {
			parts = append(parts, word)
		}
	}
	return parts
}

// folded breaks a text at spaces into lines of at most a number of columns. Words that are longer are not
// broken. Lines after the first are indented.
func folded(text string, columns, indent int) (lines []string) {
	if width(text) <= columns {
		return []string{text}
	}
	margin := strings.Repeat(" ", indent)
	line := margin
	for n, word := range unbroken(text) {
		switch {
		case n == 0:
		case width(line)+1+width(word) > columns:
			lines = append(lines, line)
			line = margin
		default:
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// hanging folds a text after a lead to a number of columns; 0 is any. The lines after the first are aligned
// with the text, which is below a lead that leaves no room for it.
func hanging(lead, text string, columns int) string {
	if columns == 0 {
		return strings.TrimRight(lead+text, " ")
	}
	indent := width(lead)
	text = strings.Join(strings.Fields(text), " ")
	if indent+min(width(text), leastTextWidth) > columns && strings.TrimSpace(lead) != "" { // no room beside the lead
		return strings.TrimRight(lead, " ") + "\n" + hanging("    ", text, columns)
	}
	lines := folded(text, max(columns-indent, leastTextWidth), 0)
	return strings.TrimRight(lead+strings.Join(lines, "\n"+strings.Repeat(" ", indent)), " ")
}

// Hanging folds a text after a lead as pages do.
func Hanging(lead, text string, layout Layout) string {
	return hanging(lead, text, min(layout.Width, textWidth))
}

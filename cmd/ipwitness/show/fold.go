package show

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

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

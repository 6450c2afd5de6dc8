package show

import (
	"strings"
	"unicode/utf8"
)

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

// folded breaks a text at spaces into lines of at most width characters. Words that are longer are not
// broken. Lines after the first are indented.
func folded(text string, width, indent int) (lines []string) {
	if utf8.RuneCountInString(text) <= width {
		return []string{text}
	}
	margin := strings.Repeat(" ", indent)
	line, used := margin, indent
	empty := true
	for _, word := range unbroken(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case empty:
		case used+1+n > width:
			lines = append(lines, line)
			line, used = margin, indent
		default:
			line, used = line+" ", used+1
		}
		line, used, empty = line+word, used+n, false
	}
	return append(lines, line)
}

// hanging folds a text after a lead to a width; 0 is any width. The lines after the first are aligned
// with the text, which is below a lead that leaves no room for it.
func hanging(lead, text string, width int) string {
	if width == 0 {
		return strings.TrimRight(lead+text, " ")
	}
	column := utf8.RuneCountInString(lead)
	text = strings.Join(strings.Fields(text), " ")
	if column+min(utf8.RuneCountInString(text), leastTextWidth) > width && strings.TrimSpace(lead) != "" { // no room beside the lead
		return strings.TrimRight(lead, " ") + "\n" + hanging("    ", text, width)
	}
	lines := folded(text, max(width-column, leastTextWidth), 0)
	return strings.TrimRight(lead+strings.Join(lines, "\n"+strings.Repeat(" ", column)), " ")
}

// Hanging folds a text after a lead as pages do.
func Hanging(lead, text string, layout Layout) string {
	return hanging(lead, text, min(layout.Width, textWidth))
}

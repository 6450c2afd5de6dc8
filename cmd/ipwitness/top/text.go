package top

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/proto/form"
)

// ellipsis stands for the part of a word that does not fit.
const ellipsis = "…"

// width returns the number of terminal columns that a text takes.
func width(s string) int { return ansi.StringWidthWc(s) }

// visible replaces the characters that could control the terminal.
func visible(s string) string { return form.Visible(s) }

// fit shortens a text to a number of columns. It removes the middle, because names of pods differ at
// the end.
func fit(s string, columns int) string {
	all := width(s)
	if all <= columns {
		return s
	}
	if columns < 1 {
		return ""
	}
	end := (columns - 1) / 2
	begin := columns - 1 - end
	return ansi.TruncateWc(s, begin, "") + ellipsis + tail(s, end)
}

// tail returns the end of a text that fits into a number of columns.
func tail(s string, columns int) string {
	over := max(0, width(s)-columns)
	end := ansi.TruncateLeftWc(s, over, "")
	if width(end) > columns { // the first character takes two columns
		end = ansi.TruncateLeftWc(s, over+1, "")
	}
	return end
}

// pad fits a text into a number of columns, and fills the rest with spaces.
func pad(s string, columns int) string {
	s = fit(s, columns)
	return s + strings.Repeat(" ", max(0, columns-width(s)))
}

// wrap breaks a line at spaces. A line that is broken loses its colours. The lines that follow begin below the last column of the line, if it
// has columns. A word that is wider than the screen is broken.
func wrap(line string, columns int) (lines []string) {
	if width(line) <= columns {
		return []string{line}
	}
	line = ansi.Strip(line)
	hang := hanging(line, columns)
	for width(line) > columns {
		first := ansi.TruncateWc(line, columns, "")
		rest := line[len(first):]
		if !strings.HasPrefix(rest, " ") {
			at := strings.LastIndexByte(first, ' ')
			if body := strings.TrimLeft(first, " "); at > len(first)-len(body) {
				first, rest = first[:at], line[at:]
			}
		}
		if first == "" { // a character is wider than the screen
			return append(lines, fit(line, columns))
		}
		lines = append(lines, strings.TrimRight(first, " "))
		line = strings.Repeat(" ", hang) + strings.TrimLeft(rest, " ")
	}
	return append(lines, strings.TrimRight(line, " "))
}

// hanging returns the indentation of the lines that continue a line: the beginning of its last column
// in the left half of the screen or, without columns, of its text.
func hanging(line string, columns int) int {
	body := strings.TrimLeft(line, " ")
	indent := len(line) - len(body)
	hang := indent
	if mark, _, ok := strings.Cut(body, " "); ok && (mark == "-" || strings.HasSuffix(mark, ".") && strings.Trim(mark, "0123456789.") == "") {
		hang += len(mark) + 1
	}
	for at := indent; ; {
		gap := strings.Index(line[at:], "  ")
		if gap < 0 {
			break
		}
		at += gap
		at += len(line[at:]) - len(strings.TrimLeft(line[at:], " "))
		column := width(line[:at])
		if column > columns/2 {
			break
		}
		hang = column
	}
	if hang > columns/2 {
		return 0
	}
	return hang
}

// wrapAll wraps paragraphs.
func wrapAll(paragraphs []string, columns int) (lines []string) {
	for _, p := range paragraphs {
		lines = append(lines, wrap(p, columns)...)
	}
	return lines
}

// A tone is the meaning of a text, which decides its colour.
type tone = show.Tone

const (
	plain, bad, warn, good, dim, strong = show.PlainTone, show.BadTone, show.WarnTone, show.GoodTone, show.DimTone, show.StrongTone
	chosen                              = strong + 1 // the line under the cursor
)

// A painter makes text bold or coloured. Without colours, it uses only bold, faint and reverse video.
type painter bool

// paint styles a text that contains no escape sequences.
func (p painter) paint(t tone, s string) string {
	code := map[tone]string{bad: "1", dim: "2", strong: "1", chosen: "7"}[t]
	if p && t < chosen {
		code = show.Codes[t]
	}
	if s == "" || code == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[m"
}

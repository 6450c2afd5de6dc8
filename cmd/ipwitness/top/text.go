package top

import (
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/proto/form"
)

// width returns the number of terminal columns that a text takes.
func width(s string) int { return ansi.StringWidthWc(s) }

// visible replaces the characters that could control the terminal.
func visible(s string) string { return form.Visible(s) }

// pad fits a text into a number of columns, and fills the rest with spaces.
func pad(s string, columns int) string {
	s = show.Fit(s, columns)
	return s + strings.Repeat(" ", max(0, columns-width(s)))
}

// wrap breaks lines at spaces, and words that are wider than the screen. A line that is broken loses its colours,
// because the end of a colour may not be on the screen.
func wrap(columns int, lines ...string) (wrapped []string) {
	for _, line := range lines {
		if width(line) > columns {
			line = ansi.WrapWc(ansi.Strip(line), columns, "")
		}
		wrapped = append(wrapped, strings.Split(line, "\n")...)
	}
	return wrapped
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

// all styles lines.
func (p painter) all(t tone, lines []string) []string {
	for i, line := range lines {
		lines[i] = p.paint(t, line)
	}
	return lines
}

// An editor is a line of text that is being typed, with the cursor at its end. The text field of
// github.com/charmbracelet/bubbles would run programs for the clipboard when any command starts.
type editor struct{ text string }

// mostTyped is the maximum length of the text in columns.
const mostTyped = 200

// key handles a key that is no text.
func (e *editor) key(key string) {
	switch key {
	case "backspace", "ctrl+h":
		e.text = ansi.TruncateWc(e.text, width(e.text)-1, "")
	case "ctrl+u":
		e.text = ""
	case "ctrl+w":
		e.text = strings.TrimRight(e.text, " ")
		e.text = e.text[:strings.LastIndexByte(e.text, ' ')+1]
	}
}

// insert adds text that was typed or pasted.
func (e *editor) insert(text string) {
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, text)
	e.text = ansi.TruncateWc(e.text+visible(text), mostTyped, "")
}

package top

import (
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

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

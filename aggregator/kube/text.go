package kube

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMessage is how many bytes of a message are kept.
const maxMessage = 300

// plain is a text with nothing in it that a terminal would obey, in one line.
func plain(s string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
}

// cut is a text of at most size bytes; what is missing is an ellipsis.
func cut(s string, size int) string {
	const ellipsis = "…"
	if len(s) <= size {
		return s
	}
	size -= len(ellipsis)
	for size > 0 && !utf8.RuneStart(s[size]) {
		size--
	}
	return strings.TrimRight(s[:size], " ") + ellipsis
}

// shorten is what is kept of a message.
func shorten(s string) string {
	const enough = 4 * maxMessage // not all of it is plain
	if len(s) > enough {
		s = cut(s, enough)
	}
	// A copy: the rest of the text need not be kept for it.
	return strings.Clone(cut(plain(s), maxMessage))
}

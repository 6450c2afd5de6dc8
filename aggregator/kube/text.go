package kube

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMessage is the maximum number of bytes of a message.
const maxMessage = 300

// plain returns a text as a single line without control characters for terminals.
func plain(s string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
}

// cut returns at most size bytes of a text. An ellipsis marks that something is missing.
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

// shorten returns the part of a message that is stored.
func shorten(s string) string {
	const enough = 4 * maxMessage // plain may shorten the text
	if len(s) > enough {
		s = cut(s, enough)
	}
	// Clone, so that the rest of the text is not kept alive.
	return strings.Clone(cut(plain(s), maxMessage))
}

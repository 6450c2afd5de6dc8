package form

import (
	"strings"
	"unicode"
)

// plainest are the characters that a POSIX shell takes literally in any position of a word.
const plainest = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-"

// unsafe replaces a character that is invisible in a command, and precedes a word that a
// program would take for an option. Unicode reserves it as a noncharacter, so no string from
// outside contains it.
const unsafe = '\uFFFF'

// Quote returns a string as one word of a POSIX shell. If the string has a character that
// cannot be printed, or begins with a dash, Withheld reports true for a command that contains
// the word.
func Quote(s string) string {
	if strings.HasPrefix(s, "-") {
		s = string(unsafe) + s
	}
	return word(s)
}

func word(s string) string {
	if s == "" {
		return `""`
	}
	if s[0] != '=' && strings.Trim(s, plainest) == "" { // zsh expands =NAME to the path of a command
		return s
	}
	if !Printable(s) || strings.ContainsRune(s, Replaced) {
		s = replace(s, unicode.IsPrint)
		s = strings.ReplaceAll(s, string(Replaced), string(unsafe))
	}
	return literal(s)
}

// Literal returns a string that is only printed, not used, as one word of a POSIX shell. The
// word never makes a command withheld: characters that cannot be printed are replaced.
func Literal(s string) string { return literal(Visible(s)) }

// literal is the only function that quotes words for a shell.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Argument returns a string as the last argument of a command, which must not take it for an
// option.
func Argument(s string) string {
	if strings.HasPrefix(s, "-") {
		return "-- " + word(s)
	}
	return Quote(s)
}

// File returns a path as a word that no command takes for an option.
func File(path string) string {
	if !strings.HasPrefix(path, "/") {
		path = "./" + path
	}
	return Quote(path)
}

// Withheld reports whether a text contains a command that must not be shown. Such a command has
// characters that cannot be printed, or a name that looks like an option, so a reader could not
// tell what it does.
func Withheld(text string) bool {
	if strings.ContainsRune(text, unsafe) {
		return true
	}
	for line := range strings.SplitSeq(text, "\n") { // lines of a script: quoted words have no line breaks
		if !Printable(line) {
			return true
		}
	}
	return false
}

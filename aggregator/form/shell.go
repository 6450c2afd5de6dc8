package form

import (
	"strings"
	"unicode"
)

// plainest are the characters that a POSIX shell takes as they are, wherever they are
// in a word.
const plainest = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-"

// unsafe is what Quote puts in place of a character that nobody could see when reading
// a command, and before a word that a program would take for an option. It is no character (Unicode reserves it), so no text from outside has it.
const unsafe = '\uFFFF'

// Quote returns a text as one word of a POSIX shell. A text with a character that
// cannot be printed, or that begins with a dash, makes the command that it is put into
// one that Withheld knows.
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
	if s[0] != '=' && strings.Trim(s, plainest) == "" { // zsh looks for a command behind =
		return s
	}
	if !Printable(s) || strings.ContainsRune(s, Replaced) {
		s = replace(s, unicode.IsPrint)
		s = strings.ReplaceAll(s, string(Replaced), string(unsafe))
	}
	return literal(s)
}

// Literal returns a text that is only printed, not used, as one word of a POSIX shell.
// It is never withheld: characters that cannot be printed are replaced.
func Literal(s string) string { return literal(Visible(s)) }

// literal is the one place where words of a shell are made.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Argument returns a text as the last argument of a command, which must not take it for
// an option.
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

// Withheld reports whether a text has a command that must not be shown, because it has
// characters that cannot be printed, or a name that looks like an option: nobody could
// tell what it does before running it.
func Withheld(text string) bool {
	if strings.ContainsRune(text, unsafe) {
		return true
	}
	for line := range strings.SplitSeq(text, "\n") { // those of a script, which quoted words do not have
		if !Printable(line) {
			return true
		}
	}
	return false
}

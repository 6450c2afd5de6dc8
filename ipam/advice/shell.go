package advice

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Names come from agents and APIs, and anyone who creates a container or an interface can choose
// them. A printed command must not run anything that is part of a name.

// Replaced replaces each character that is not allowed in a string. It marks the string as changed,
// so that no command is printed with it.
const Replaced = unicode.ReplacementChar

// Printable reports whether a string can be displayed unchanged: it is valid UTF-8, and no
// character moves the cursor, changes the direction of writing, or is invisible.
func Printable(s string) bool {
	ascii := 0
	for ascii < len(s) && ' ' <= s[ascii] && s[ascii] <= '~' {
		ascii++
	}
	s = s[ascii:] // usually empty
	for i, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)) {
			return false
		}
	}
	return true
}

// plainCharacters are the characters that have no special meaning to a POSIX shell in any position
// of a word.
const plainCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-"

// unsafe replaces an invisible character in a command, and precedes a word that a program would
// parse as an option. Unicode reserves it as a noncharacter, so no string from outside contains it.
const unsafe = '\uFFFF'

// Quote returns a string as one word of a POSIX shell. If the string has an unprintable character
// or begins with a dash, Withheld returns true for a command with that word.
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
	if s[0] != '=' && strings.Trim(s, plainCharacters) == "" { // zsh expands =NAME to the path of a command
		return s
	}
	return Literal(strings.Map(func(r rune) rune {
		if r == Replaced || !unicode.IsPrint(r) {
			return unsafe
		}
		return r
	}, s))
}

// Literal returns a printable string as one word of a POSIX shell. No other function puts words in
// quotes.
func Literal(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Argument returns a string as the last argument of a command, in a form that the command does not
// parse as an option.
func Argument(s string) string {
	if strings.HasPrefix(s, "-") {
		return "-- " + word(s)
	}
	return Quote(s)
}

// File returns a path as a word that no command parses as an option.
func File(path string) string {
	if !strings.HasPrefix(path, "/") {
		path = "./" + path
	}
	return Quote(path)
}

// Withheld reports whether a text contains a command that must not be shown, because it has
// unprintable characters or a name that looks like an option. A reader could not tell what such a
// command does.
func Withheld(text string) bool {
	if strings.ContainsRune(text, unsafe) {
		return true
	}
	for line := range strings.SplitSeq(text, "\n") { // quoted words of a script contain no line breaks
		if !Printable(line) {
			return true
		}
	}
	return false
}

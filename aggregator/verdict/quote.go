package verdict

import "strings"

// Names come from agents and from APIs, and from whoever made a container or an
// interface. What is printed to be run must not run anything of theirs.

// harmless are what a shell takes as it is.
const harmless = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-"

// quote is a text as a word of a POSIX shell.
func quote(s string) string {
	if s != "" && strings.Trim(s, harmless) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// argument is a text as the last argument of a command, which must not take it for an
// option.
func argument(s string) string {
	if strings.HasPrefix(s, "-") {
		return "-- " + quote(s)
	}
	return quote(s)
}

package table

import "strings"

// Printable replaces bytes that are not UTF-8. Names of interfaces and files may have any
// bytes, but protobuf accepts only UTF-8.
func Printable(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// Short returns the text of an error, truncated and as valid UTF-8, because it may quote
// strings from other programs.
func Short(err error) string {
	text := err.Error()
	return Printable(text[:min(len(text), MaxLength)])
}

// MaxLength is longer than any name of Kubernetes or of a container runtime.
const MaxLength = 512

// Within reports whether path is dir or below it.
func Within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/')
}

// Poke wakes the receiver of a channel of capacity one. Several calls count as one until the
// receiver takes the token.
func Poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

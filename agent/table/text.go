package table

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// Printable replaces bytes that are not UTF-8. Names of interfaces and files may have any
// bytes, but protobuf accepts only UTF-8.
func Printable(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// Short returns the text of an error, truncated and as valid UTF-8, because it may quote
// strings from other programs.
func Short(err error) string {
	text := err.Error()
	return Printable(text[:min(len(text), MaxLength)])
}

// Lack returns what to do about an error that only says that a resource of this process or of the machine is exhausted,
// and nothing about the file that was asked for; empty for other errors.
func Lack(err error) (remedy string) {
	switch {
	case errors.Is(err, unix.EMFILE):
		return "raise the agent's limit of open files (LimitNOFILE) and, for inotify, fs.inotify.max_user_instances"
	case errors.Is(err, unix.ENFILE):
		return "raise fs.file-max"
	case errors.Is(err, unix.ENOSPC):
		return "raise fs.inotify.max_user_watches"
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
		return "raise the memory limit of the agent"
	case errors.Is(err, unix.EINTR):
		return "it is tried again"
	}
	return ""
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

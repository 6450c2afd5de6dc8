package table

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
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

// NewWatcher returns an inotify watcher that queues the given number of events, and a channel that receives an error after
// events were lost. It receives all errors of the watcher itself, because fsnotify reports them while it holds the lock that
// Add needs (readEvents of 1.10.1): if nobody received one, nothing would be watched again.
func NewWatcher(events uint) (w *fsnotify.Watcher, lost <-chan error, err error) {
	if w, err = fsnotify.NewBufferedWatcher(events); err != nil {
		return nil, nil, err
	}
	last := make(chan error, 1)
	go func() {
		for err := range w.Errors {
			if errors.Is(err, unix.EINVAL) {
				continue // the kernel has removed a watch already, as that of a directory that was removed
			}
			select {
			case last <- err:
			default: // one is enough
			}
		}
	}()
	return w, last, nil
}

// ReadRegular reads a regular file that has no more than the given number of bytes, and returns when it was last written.
// It opens the file with additional flags, and does not wait for a pipe: a process that can write there must not be able
// to block the agent.
func ReadRegular(path string, flags int, most int64) (data []byte, written time.Time, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, written, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, written, fmt.Errorf("%s is not a regular file of at most %d bytes", path, most)
	}
	data, err = io.ReadAll(io.LimitReader(f, most))
	return data, info.ModTime(), err
}

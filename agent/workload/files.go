package workload

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/table"
)

// lackEvery is how often what could not be opened is tried again.
const lackEvery = 15 * time.Second

// Lacks has what is not seen, or late, because files are damaged or a resource of this process or of the machine is exhausted.
type Lacks struct {
	Changed func() // called after the problems have changed; set before run

	mu      sync.Mutex
	reasons map[string]error
}

// Problems describes what is not seen, in order.
func (l *Lacks) Problems() (problems []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(l.reasons)) {
		err := l.reasons[what]
		text := fmt.Sprintf("%s (%s)", what, table.Short(err))
		if remedy := table.Lack(err); remedy != "" {
			text += ": " + remedy
		}
		problems = append(problems, text)
	}
	return problems
}

// note notes why something is not seen; nil when it is.
func (l *Lacks) note(what string, err error) {
	l.mu.Lock()
	had := l.reasons[what]
	switch {
	case err == nil:
		delete(l.reasons, what)
	case l.reasons == nil:
		l.reasons = map[string]error{what: err}
	default:
		l.reasons[what] = err
	}
	l.mu.Unlock()
	if l.Changed != nil && (had == nil) != (err == nil) {
		l.Changed()
	}
}

// Until calls try until no resource is exhausted any longer, and returns its error: an instance of inotify may be free later.
func (l *Lacks) Until(ctx context.Context, what string, try func() error) error {
	for {
		err := try()
		if err != nil && table.Lack(err) == "" {
			return err
		}
		if l.note(what, err); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lackEvery):
		}
	}
}

// watchPath watches a directory that may be missing, and all its parents. It starts at the root,
// so that the creation of a missing directory always has an event.
func watchPath(w *fsnotify.Watcher, dir string) {
	if parent := filepath.Dir(dir); parent != dir {
		watchPath(w, parent)
	}
	_ = w.Add(dir) // fails for a missing directory, which its parent reports when it is created
}

// fileVersion identifies the content of a file: any change of the file changes its ctime.
type fileVersion struct {
	inode        uint64
	size         int64
	mtime, ctime unix.Timespec
}

// versionOf returns the version of a file, or the zero value if there is no file.
func versionOf(path string) fileVersion {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return fileVersion{}
	}
	return fileVersion{st.Ino, st.Size, st.Mtim, st.Ctim}
}

// readDir returns the names in a directory, each with the inode of the directory entry.
// If something is mounted over the entry, stat(2) returns another inode.
func readDir(dir string) (map[string]uint64, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	out := map[string]uint64{}
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return nil, &os.PathError{Op: "getdents64", Path: dir, Err: err}
		}
		if n == 0 {
			return out, nil
		}
		// struct linux_dirent64: inode, offset, record length, type, name.
		for b := buf[:n]; len(b) > 0; b = b[binary.NativeEndian.Uint16(b[16:]):] {
			if name := unix.ByteSliceToString(b[19:]); name != "." && name != ".." {
				out[name] = binary.NativeEndian.Uint64(b)
			}
		}
	}
}

// inodeOf returns the inode of the file at a path, following links and mounts.
func inodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

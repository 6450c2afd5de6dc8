// Package files reads files that other programs write, such as container runtimes and CNI
// plugins. It limits their size, and their owners cannot block or mislead it. The package also
// finds out whether a path leads to the node's files or to those of the agent's own container.
package files

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// Within reports whether path is dir or below it.
func Within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/')
}

// WatchPath watches a directory that may be missing, and all its parents. It starts at the root,
// so that the creation of a missing directory always has an event.
func WatchPath(w *fsnotify.Watcher, dir string) {
	if parent := filepath.Dir(dir); parent != dir {
		WatchPath(w, parent)
	}
	_ = w.Add(dir) // fails for a missing directory, which its parent reports when it is created
}

// Version identifies the content of a file: any change of the file changes its ctime.
type Version struct {
	inode        uint64
	size         int64
	mtime, ctime unix.Timespec
}

// VersionOf returns the version of a file, or the zero value if there is no file.
func VersionOf(path string) Version {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return Version{}
	}
	return Version{st.Ino, st.Size, st.Mtim, st.Ctim}
}

// MaxSmall is larger than any file that is read as a whole.
const MaxSmall = 1 << 20

// ReadSmall reads a regular file of at most 1 MiB. It does not follow links and does not
// wait for a pipe: a process that can write there must not be able to block the agent.
func ReadSmall(path string) ([]byte, error) {
	data, _, err := ReadRegular(path, unix.O_NOFOLLOW, MaxSmall)
	return data, err
}

// ReadRegular reads a regular file that has no more than the given number of bytes. It opens
// the file with additional flags, and returns when it was last written.
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

// Clean returns path in the form in which paths are compared: cleaned, and with /run instead
// of /var/run, which is a link to it.
func Clean(path string) string {
	path = filepath.Clean(path)
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		path = "/run/" + rest
	}
	return path
}

// ReadDir returns the names in a directory, each with the inode of the directory entry.
// If something is mounted over the entry, stat(2) returns another inode.
func ReadDir(dir string) (map[string]uint64, error) {
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

// Inode returns the inode of the file at a path, following links and mounts.
func Inode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

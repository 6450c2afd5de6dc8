package workload

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

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

// maxSmall is larger than any file that is read as a whole.
const maxSmall = 1 << 20

// readSmall reads a regular file of at most 1 MiB. It does not follow links and does not
// wait for a pipe: a process that can write there must not be able to block the agent.
func readSmall(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSmall {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", path, maxSmall)
	}
	return io.ReadAll(io.LimitReader(f, maxSmall))
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

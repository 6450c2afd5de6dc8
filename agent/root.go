package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ownRoot says that this process has a root directory of its own, as in a
// container: what is there, and not in something mounted there, is not the node's.
type ownRoot bool

// initialPIDNamespace is the inode of the first PID namespace of every kernel
// (PROC_PID_INIT_INO, include/linux/proc_ns.h).
const initialPIDNamespace = "pid:[4026531836]"

// hasOwnRoot looks whether the first process has another root directory, or is
// ipwitness, as it is in a container. The first process of a node that is a
// container itself (kind, LXC) is neither.
func hasOwnRoot(procDir string) ownRoot {
	var ours, first unix.Stat_t
	if unix.Stat("/", &ours) == nil && unix.Stat(procDir+"/1/root/", &first) == nil && (ours.Dev != first.Dev || ours.Ino != first.Ino) {
		return true
	}
	if pidns, err := os.Readlink(procDir + "/self/ns/pid"); err != nil || pidns == initialPIDNamespace {
		return false
	}
	p, err := readProcess(procDir, os.Getpid())
	one, err1 := readProcess(procDir, 1)
	return ownRoot(err == nil && err1 == nil && p.name == one.name)
}

// reach gives an error where the node's directory of that path cannot be seen,
// whether there is one or not: it says what to mount.
func (own ownRoot) reach(dir string) error {
	root, ok := mountOf("/")
	if !bool(own) || !ok {
		return nil
	}
	// To the deepest directory on the way that is there, by links that may lead nowhere.
	const mostLinks = 40 // MAXSYMLINKS
	at, rest := dir, ""
	for links := 0; ; {
		if mount, ok := mountOf(at); ok {
			if mount != root {
				return nil
			}
			break
		}
		if target, err := os.Readlink(at); err == nil && links < mostLinks {
			if links++; !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(at), target)
			}
			at = filepath.Clean(target)
			continue
		}
		if at == "/" {
			return nil
		}
		at, rest = filepath.Dir(at), filepath.Join(filepath.Base(at), rest)
	}
	mount := filepath.Join(at, rest)
	if parent := filepath.Dir(mount); parent != "/" {
		mount = parent // it lasts when the directory is made anew
	}
	return fmt.Errorf("%w: mount %s of the node at the same path, read-only with HostToContainer propagation", errNotMounted, mount)
}

// reachAny gives an error where none of some directories can be seen: that of the
// first, which is the usual one.
func (own ownRoot) reachAny(dirs []string) (first error) {
	for _, dir := range dirs {
		err := own.reach(dir)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// errNotMounted says that a path leads into the container's own files.
var errNotMounted = errors.New("it is not mounted into the agent's container")

// errOrphaned says that what is seen is not what host-local sees.
var errOrphaned = errors.New("the directory that was mounted here was removed: mount its parent instead, and start the agent again")

// mountOf gives the id of the mount that a path leads to. There is none where the
// path leads nowhere, or before Linux 5.8.
func mountOf(path string) (id uint64, ok bool) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err == nil && st.Mask&unix.STATX_MNT_ID != 0
}

// orphaned tells whether a path leads through a directory that was removed while
// it was mounted: that stays, empty, whatever is made in its place.
func orphaned(path string) bool {
	for ; ; path = filepath.Dir(path) {
		if removed(path) {
			return true
		}
		if path == filepath.Dir(path) {
			return false
		}
	}
}

// removed tells whether what is at a path has no name any more. It is not by the
// count of its links, which overlayfs makes up.
func removed(path string) bool {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	const mark = " (deleted)" // d_path in fs/d_path.c
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return err == nil && strings.HasSuffix(name, mark) && !strings.HasSuffix(path, mark)
}

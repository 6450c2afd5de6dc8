package allocations

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is true if this process has a root directory of its own, as in a container. Files
// there are not the node's, unless they are on another mount.
type Root bool

// InitialPIDNamespace is the inode of the first PID namespace of every kernel
// (PROC_PID_INIT_INO, include/linux/proc_ns.h).
const InitialPIDNamespace = "pid:[4026531836]"

// FindRoot reports whether this process runs in a container: the first process has another
// root directory, or is ipwitness itself. If the node is a container (kind, LXC), its first
// process is neither.
func FindRoot(procDir string) Root {
	var ours, first unix.Stat_t
	if unix.Stat("/", &ours) == nil && unix.Stat(procDir+"/1/root/", &first) == nil && (ours.Dev != first.Dev || ours.Ino != first.Ino) {
		return true
	}
	return Root(ownPIDs(procDir))
}

// SeesProcesses reports whether procDir has all processes of the machine, and not only those of a
// container with a PID namespace of its own, or of one user.
func SeesProcesses(procDir string) bool {
	name, err := os.ReadFile(filepath.Join(procDir, "1/comm"))
	if pidns, _ := os.Readlink(filepath.Join(procDir, "self/ns/pid")); pidns == InitialPIDNamespace {
		return err == nil
	}
	return err == nil && !ownPIDs(procDir) && !slices.Contains(containerInits, strings.TrimSpace(string(name)))
}

// containerInits are the first processes of containers that are no machines: those of `docker run --init` and the like,
// and of a pod whose containers share their processes.
var containerInits = []string{"docker-init", "podman-init", "catatonit", "tini", "dumb-init", "pause"}

// ownPIDs reports whether this process has a PID namespace that is not its machine's: the first process
// in it is ipwitness itself.
func ownPIDs(procDir string) bool {
	if pidns, err := os.Readlink(filepath.Join(procDir, "self/ns/pid")); err != nil || pidns == InitialPIDNamespace {
		return false
	}
	own, err := os.ReadFile(filepath.Join(procDir, strconv.Itoa(os.Getpid()), "comm"))
	one, err1 := os.ReadFile(filepath.Join(procDir, "1/comm"))
	return err == nil && err1 == nil && string(own) == string(one)
}

// Reach returns an error if a directory of the node, whether it exists or not, is not visible
// to this process. The error says what to mount.
func (own Root) Reach(dir string) error {
	root, ok := mountOf("/")
	if !bool(own) || !ok {
		return nil
	}
	// Find the deepest directory on the path that exists. Links may be dangling.
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
		at, rest = filepath.Dir(at), filepath.Join(filepath.Base(at), rest)
	}
	mount := filepath.Join(at, rest)
	if parent := filepath.Dir(mount); parent != "/" {
		mount = parent // still valid after the directory is removed
	}
	return fmt.Errorf("%w: mount %s of the node at the same path, read-only with HostToContainer propagation", ErrNotMounted, mount)
}

// ReachAny returns an error if none of the directories is visible. It is the error for the
// first directory, which is the default.
func (own Root) ReachAny(dirs []string) (first error) {
	for _, dir := range dirs {
		err := own.Reach(dir)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// ErrNotMounted is returned for paths that lead to the container's own files.
var ErrNotMounted = errors.New("it is not mounted into the agent's container")

// mountOf returns the id of the mount that a path is on. ok is false if the path does not
// exist, and before Linux 5.8.
func mountOf(path string) (id uint64, ok bool) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err == nil && st.Mask&unix.STATX_MNT_ID != 0
}

// Orphaned reports whether a path leads through a directory that was removed while it was
// mounted. Such a directory stays empty, whatever is created in its place.
func Orphaned(path string) bool {
	for ; ; path = filepath.Dir(path) {
		if removed(path) {
			return true
		}
		if path == filepath.Dir(path) {
			return false
		}
	}
}

// removed reports whether the file at a path has no name any more. It does not rely on the
// link count, which overlayfs makes up.
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

package netlab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// machines counts the machines of this process, for the names of their cgroups.
var machines atomic.Int64

// holdMachine creates the namespaces of a machine and keeps them until its standard input ends. $1
// is the script of the machine's first process, and the other arguments are its cgroups. It
// outlives the process that started it, because cgroups can be removed only when all processes of
// the machine have ended. The kernel ends these when their first process ends.
const holdMachine = `
	trap '' INT TERM HUP
	init=$1
	shift
	mkdir "$@"
	unshare --net --mount --pid --uts --ipc --kill-child --propagation private sh -euc "$init" &
	read -r first || first=$!
	cat >/dev/null
	kill -KILL $first || true
	wait $! || true
	find "$@" -depth -type d -exec rmdir {} +`

// initMachine is the first process of a machine. It ignores SIGCHLD, so orphans are reaped when
// they end. It makes all mounts shared, as on a real machine: kubelet and container runtimes
// require it.
const initMachine = `
	read -r pid rest </proc/self/stat
	mount -t proc proc /proc
	mount -t tmpfs tmpfs /run
	mount -t tmpfs tmpfs /var/lib
	mount -t tmpfs tmpfs /var/log
	mkdir -p /run/netns /var/lib/cni /run/etc/upper /run/etc/work
	mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc
	mkdir -p /etc/cni
	mount -t tmpfs tmpfs /etc/cni
	mkdir /etc/cni/net.d
	mount --make-rshared /
	ip link set lo up
	trap '' CHLD
	echo "ready $pid"
	exec sleep infinity`

// NewMachine creates a host that can run a container runtime and kubelet. In addition to a host
// from New, it has its own PIDs, so that all processes of daemons end with it, a hostname, a
// writable /etc without CNI configurations, an empty /var/log, and a cgroup. Programs in it are ended by SIGKILL only.
func NewMachine(hostname string) (*Host, error) {
	// A PID would not be unique: another container of this machine may have the same one, and a
	// killed process may have left cgroups behind.
	cgroup := fmt.Sprintf("/ipwitness-%d-%d", rand.Uint32(), machines.Add(1))
	dirs, err := cgroupHierarchies()
	if err != nil {
		return nil, err
	}
	for i := range dirs {
		dirs[i] += cgroup
	}
	unix.Umask(umask)
	cmd := exec.Command("sh", slices.Concat([]string{"-euc", holdMachine, "sh", initMachine}, dirs)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // unaffected by Ctrl-C
	tie, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	var fault bytes.Buffer
	cmd.Stderr = &fault
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make machine: %w", err)
	}
	h := &Host{holder: cmd, tie: tie, cgroup: cgroup}
	if err := h.firstProcess(out, tie); err != nil {
		h.Close()
		return nil, fmt.Errorf("make machine (needs root, iproute2, util-linux and overlayfs): %w: %s", err, strings.TrimSpace(fault.String()))
	}
	if _, err := h.Run("hostname %s", hostname); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// firstProcess reads the PID of the machine's first process, confirms it to the holder, and opens
// its namespaces.
func (h *Host) firstProcess(out io.Reader, tie io.Writer) error {
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "ready ")))
	if err != nil {
		return fmt.Errorf("read the first process of the machine: %w", err)
	}
	if _, err := fmt.Fprintln(tie, pid); err != nil {
		return fmt.Errorf("tell the holder: %w", err)
	}
	if err := h.settle(pid, "--net", "--mount", "--pid", "--uts", "--ipc"); err != nil {
		return err
	}
	// A process that enters a PID namespace stays outside and waits for its child inside. If one of
	// them is killed, the other must end too.
	h.enter = append(h.enter, "setpriv", "--pdeathsig", "KILL", "--")
	return nil
}

// Cgroup returns the path of a machine's cgroup, the same in every hierarchy. It is the cgroup root
// of kubelet and container runtimes, and is removed with the machine.
func (h *Host) Cgroup() string { return h.cgroup }

// cgroupHierarchies returns the mount points of the cgroup hierarchies.
func cgroupHierarchies() (dirs []string, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		w := strings.Fields(line)
		if (w[2] == "cgroup" || w[2] == "cgroup2") && strings.HasPrefix(w[1], "/sys/fs/cgroup") {
			dirs = append(dirs, w[1])
		}
	}
	if dirs == nil {
		return nil, errors.New("no cgroup hierarchy is mounted under /sys/fs/cgroup")
	}
	return dirs, nil
}

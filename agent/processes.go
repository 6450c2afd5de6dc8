package agent

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

// process is one process, as /proc/PID/stat has it.
type process struct {
	pid, parent int
	name        string
	start       uint64 // clock ticks after boot: tells two processes with one PID apart
	ended       bool   // nobody took its place, but its namespace may still be there
}

// settledAfter is how long a process must have lived, in clock ticks, to be reported as
// the last process of a namespace after it has ended. A shell or `ip` that somebody ran
// there briefly does not identify the workload.
const settledAfter = 10 * ticksPerSecond

// ticksPerSecond is USER_HZ, the unit of starttime in /proc/PID/stat.
const ticksPerSecond = 100

// bootTicks returns the time since boot in clock ticks.
func bootTicks() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // then no process counts as settled
	}
	return uint64(t.Nano()) / (1e9 / ticksPerSecond)
}

// mostRead is how many processes of one namespace are read to find the oldest:
// those with the lowest PIDs.
const mostRead = 256

// processes looks for namespaces by the processes in them, and for who lives in
// those of ours. Processes that we may not read are left; one in our own
// namespace costs a readlink.
func (n *names) processes() {
	dir, err := os.Open(n.procDir)
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	entries, _ := dir.Readdirnames(-1)
	found := map[uint64][]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry)
		if err != nil {
			continue
		}
		inode, err := n.netnsOf(pid)
		if err != nil || inode == n.kernel.own.inode {
			continue
		}
		if found[inode] == nil {
			n.adopt(n.proc(pid, "ns/net"), inode)
		}
		found[inode] = append(found[inode], pid)
	}
	for inode, ns := range n.kernel.ourInodes() {
		t := n.tenantOf(inode, ns)
		if pids := found[inode]; pids != nil {
			n.moveIn(t, inode, pids)
		} else if t.process.pid != 0 && !t.process.ended && n.ended(t.process) {
			t.lastEnded()
		}
	}
}

// lastEnded records that the last process of the namespace has ended. A process that was
// there only briefly is forgotten, together with the container in its cgroup.
func (t *tenant) lastEnded() {
	if t.process.ended = t.settled; !t.settled {
		t.process, t.container, t.forgotten = process{}, container{}, true
	}
}

// ended says whether a process is not there any more: one that may not be read, or went
// to another namespace, is.
func (n *names) ended(p process) bool {
	now, err := n.readProcess(p.pid)
	return errors.Is(err, os.ErrNotExist) || err == nil && (now.ended || now.start != p.start)
}

// tenantOf gives the tenant of a namespace, a new one where the inode was
// another namespace's.
func (n *names) tenantOf(inode uint64, ns *namespace) *tenant {
	t := n.tenants[inode]
	if t == nil || t.namespace != ns {
		t = &tenant{namespace: ns}
		n.tenants[inode] = t
	}
	return t
}

// moveIn finds the oldest of the processes in a namespace, and its container.
func (n *names) moveIn(t *tenant, inode uint64, pids []int) {
	p, same := n.oldest(t.process, pids)
	if p.pid == 0 {
		return // none that we may read
	}
	c := t.container
	if !same || c == (container{}) { // it is moved to its cgroup once, at its start
		c = n.containerIn(p, inode)
	}
	// The PID may have been another process's all along.
	if now, err := n.netnsOf(p.pid); err != nil || now != inode {
		return
	}
	now := n.ticks()
	settled := now >= p.start && now-p.start >= settledAfter
	if !settled && !same && t.settled && (t.process.ended || n.ended(t.process)) {
		t.process.ended = true // still the best name known
		return
	}
	t.process, t.container, t.settled = p, c, settled
}

// oldest gives the oldest of some processes, and whether it is last, which was
// the oldest before and is read first: who comes later is younger.
func (n *names) oldest(last process, pids []int) (oldest process, same bool) {
	slices.Sort(pids)
	if _, in := slices.BinarySearch(pids, last.pid); in {
		if p, err := n.readProcess(last.pid); err == nil && p.start == last.start {
			return p, true // with the name that it has now: exec gives another one
		}
	}
	for _, pid := range pids[:min(len(pids), mostRead)] {
		if p, err := n.readProcess(pid); err == nil && (oldest.pid == 0 || p.start < oldest.start) {
			oldest = p
		}
	}
	return oldest, false
}

// containerIn gives the container that a namespace is of, by its oldest process.
// A process that a container put into one more namespace is in that container's
// cgroup as well: it has its parent, which is elsewhere, there.
func (n *names) containerIn(p process, inode uint64) container {
	c := n.readCgroup(p.pid)
	if c == (container{}) || p.parent == 0 {
		return c
	}
	if elsewhere, err := n.netnsOf(p.parent); err == nil && elsewhere != inode && n.readCgroup(p.parent) == c {
		return container{}
	}
	return c
}

func (n *names) proc(pid int, file string) string {
	return filepath.Join(n.procDir, strconv.Itoa(pid), file)
}

// netnsOf gives the inode of the network namespace that a process is in.
func (n *names) netnsOf(pid int) (uint64, error) { return netnsOf(n.procDir, pid) }

func netnsOf(procDir string, pid int) (uint64, error) {
	var link [64]byte
	size, err := unix.Readlink(procDir+"/"+strconv.Itoa(pid)+"/ns/net", link[:]) // net:[4026531840]
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(string(link[:size]), "net:["), "]"), 10, 64)
}

func (n *names) readProcess(pid int) (process, error) { return readProcess(n.procDir, pid) }

func readProcess(procDir string, pid int) (process, error) {
	data, err := os.ReadFile(filepath.Join(procDir, strconv.Itoa(pid), "stat"))
	if err != nil {
		return process{}, err
	}
	return parseStat(string(data))
}

// readCgroup gives the container that the cgroup of a process is of; none where
// it cannot be read.
func (n *names) readCgroup(pid int) container {
	data, err := os.ReadFile(n.proc(pid, "cgroup"))
	if err != nil {
		return container{}
	}
	return parseCgroup(string(data))
}

var errNoStat = errors.New("not the status of a process")

// parseStat reads /proc/PID/stat (proc_pid_stat(5)). The name of a process has
// whatever it likes in it, also blanks and parentheses.
func parseStat(data string) (process, error) {
	begin, end := strings.IndexByte(data, '('), strings.LastIndexByte(data, ')')
	if begin < 1 || end < begin {
		return process{}, errNoStat
	}
	fields := strings.Fields(data[end+1:]) // from the third one on
	if len(fields) < 20 {
		return process{}, errNoStat
	}
	pid, e1 := strconv.Atoi(strings.TrimSpace(data[:begin]))
	parent, e2 := strconv.Atoi(fields[1])
	start, e3 := strconv.ParseUint(fields[19], 10, 64)
	if err := errors.Join(e1, e2, e3); err != nil {
		return process{}, fmt.Errorf("%w: %w", errNoStat, err)
	}
	return process{pid: pid, parent: parent, name: printable(data[begin+1 : end]), start: start, ended: fields[0] == "Z" || fields[0] == "X"}, nil
}

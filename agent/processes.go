package agent

import (
	"errors"
	"os"
	"slices"
	"strconv"

	"github.com/ipwitness/ipwitness/agent/proc"
)

// settledAfter is how long a process must have lived, in clock ticks, to be reported as
// the last process of a namespace after it has ended. A shell or `ip` that somebody ran
// there briefly does not identify the workload.
const settledAfter = 10 * proc.TicksPerSecond

// mostRead is how many processes of one namespace are read to find the oldest:
// those with the lowest PIDs.
const mostRead = 256

// processes looks for namespaces by the processes in them, and for who lives in
// those of ours. Processes that we may not read are left; one in our own
// namespace costs a readlink.
func (n *names) processes() {
	dir, err := os.Open(string(n.procDir))
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
		inode, err := n.procDir.Netns(pid)
		if err != nil || inode == n.kernel.OwnInode() {
			continue
		}
		if found[inode] == nil {
			n.adopt(n.procDir.Path(pid, "ns/net"), inode)
		}
		found[inode] = append(found[inode], pid)
	}
	for inode, ns := range n.kernel.OurInodes() {
		t := n.tenantOf(inode, ns)
		if pids := found[inode]; pids != nil {
			n.moveIn(t, inode, pids)
		} else if t.process.PID != 0 && !t.process.Ended && n.ended(t.process) {
			t.lastEnded()
		}
	}
}

// lastEnded records that the last process of the namespace has ended. A process that was
// there only briefly is forgotten, together with the container in its cgroup.
func (t *tenant) lastEnded() {
	if t.process.Ended = t.settled; !t.settled {
		t.process, t.container, t.forgotten = proc.Process{}, proc.Container{}, true
	}
}

// ended says whether a process is not there any more: one that may not be read, or went
// to another namespace, is.
func (n *names) ended(p proc.Process) bool {
	now, err := n.procDir.Process(p.PID)
	return errors.Is(err, os.ErrNotExist) || err == nil && (now.Ended || now.Start != p.Start)
}

// tenantOf gives the tenant of a namespace, a new one where the inode was
// another namespace's.
func (n *names) tenantOf(inode uint64, ns uint64) *tenant {
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
	if p.PID == 0 {
		return // none that we may read
	}
	c := t.container
	if !same || c == (proc.Container{}) { // it is moved to its cgroup once, at its start
		c = n.containerIn(p, inode)
	}
	// The PID may have been another process's all along.
	if now, err := n.procDir.Netns(p.PID); err != nil || now != inode {
		return
	}
	now := n.ticks()
	settled := now >= p.Start && now-p.Start >= settledAfter
	if !settled && !same && t.settled && (t.process.Ended || n.ended(t.process)) {
		t.process.Ended = true // still the best name known
		return
	}
	t.process, t.container, t.settled = p, c, settled
}

// oldest gives the oldest of some processes, and whether it is last, which was
// the oldest before and is read first: who comes later is younger.
func (n *names) oldest(last proc.Process, pids []int) (oldest proc.Process, same bool) {
	slices.Sort(pids)
	if _, in := slices.BinarySearch(pids, last.PID); in {
		if p, err := n.procDir.Process(last.PID); err == nil && p.Start == last.Start {
			return p, true // with the name that it has now: exec gives another one
		}
	}
	for _, pid := range pids[:min(len(pids), mostRead)] {
		if p, err := n.procDir.Process(pid); err == nil && (oldest.PID == 0 || p.Start < oldest.Start) {
			oldest = p
		}
	}
	return oldest, false
}

// containerIn gives the container that a namespace is of, by its oldest process.
// A process that a container put into one more namespace is in that container's
// cgroup as well: it has its parent, which is elsewhere, there.
func (n *names) containerIn(p proc.Process, inode uint64) proc.Container {
	c := n.procDir.Container(p.PID)
	if c == (proc.Container{}) || p.Parent == 0 {
		return c
	}
	if elsewhere, err := n.procDir.Netns(p.Parent); err == nil && elsewhere != inode && n.procDir.Container(p.Parent) == c {
		return proc.Container{}
	}
	return c
}

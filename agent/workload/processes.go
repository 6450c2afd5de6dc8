package workload

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// settledAfter is the minimum lifetime of a process, in clock ticks, to be reported as the
// last process of a namespace after it has ended. A shell or `ip` that ran there briefly does
// not identify the workload.
const settledAfter = 10 * TicksPerSecond

// mostRead limits the processes that are read to find the oldest one of a namespace. Those
// with the lowest PIDs are read.
const mostRead = 256

// processes finds namespaces by their processes, and the processes that identify the workloads
// of this node. It skips processes that it may not read. A process costs one readlink and the
// reading of its name; those of other namespaces may be read further.
func (n *Names) processes() {
	dir, err := os.Open(string(n.procDir))
	if err != nil {
		n.lack = err
		return
	}
	defer func() { _ = dir.Close() }()
	entries, err := dir.Readdirnames(-1)
	if err != nil {
		n.lack = err
		return
	}
	found := map[uint64][]int{}
	vips := map[uint64]string{}
	all := n.SeesAll
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry)
		if err != nil {
			continue
		}
		inode, err := n.procDir.Netns(pid)
		if err != nil {
			all = all && !errors.Is(err, os.ErrPermission)
			continue
		}
		if i := slices.Index(vipPrograms, n.procDir.vipProgram(pid)); i >= 0 && (vips[inode] == "" || i < slices.Index(vipPrograms, vips[inode])) {
			vips[inode] = vipPrograms[i]
		}
		if inode == n.kernel.OwnInode() {
			continue
		}
		if found[inode] == nil {
			n.adopt(n.procDir.Path(pid, "ns/net"), inode)
		}
		found[inode] = append(found[inode], pid)
	}
	n.VIPs.found(vips[n.kernel.OwnInode()])
	for inode, ns := range n.kernel.OurInodes() {
		t := n.tenantOf(inode, ns)
		t.vips.runs(vips[inode])
		if pids := found[inode]; pids != nil {
			t.returned = t.returned || t.idle
			t.emptySince, t.idle, t.joins = time.Time{}, false, false
			n.moveIn(t, inode, pids)
			if n.kernel.WantsNeighbours(inode) {
				n.readNeighbours(inode, pids)
			}
			continue
		}
		if t.process.PID != 0 && !t.process.Ended && n.ended(t.process) {
			// A process that was there only briefly is forgotten, together with its cgroup's container.
			if t.process.Ended = t.settled; !t.settled {
				t.process, t.container, t.forgotten = Process{}, Container{}, true
			}
		}
		switch {
		case !all:
			t.emptySince, t.idle, t.joins = time.Time{}, false, false
		case t.emptySince.IsZero():
			t.emptySince = time.Now()
			n.wakeAfter(t.idleAfter())
		default:
			t.idle = time.Since(t.emptySince) >= t.idleAfter()
			t.joins = t.idle && n.kernel.Joins(inode)
		}
	}
}

// readNeighbours passes the neighbour table of a namespace to the kernel's mirror. A process may leave the namespace meanwhile.
func (n *Names) readNeighbours(inode uint64, pids []int) {
	for _, pid := range pids[:min(len(pids), 3)] {
		arp, err := os.ReadFile(n.procDir.Path(pid, "net/arp"))
		if at, err1 := n.procDir.Netns(pid); err == nil && err1 == nil && at == inode {
			n.kernel.ReadNeighbours(inode, string(arp))
			return
		}
	}
}

// idleAfter is how long a namespace must have no process before that is reported. A runtime makes the
// namespace of a pod before its first process.
const idleAfter = 5 * time.Second

// returnsWithin is the same for a namespace whose processes have come back before: what starts them again, as the kubelet
// does, waits up to five minutes.
const returnsWithin = 6 * time.Minute

func (t *tenant) idleAfter() time.Duration {
	if t.returned {
		return returnsWithin
	}
	return idleAfter
}

// ended reports whether a process has ended. A process that may not be read, or that moved to
// another namespace, has not.
func (n *Names) ended(p Process) bool {
	now, err := n.procDir.Process(p.PID)
	return errors.Is(err, os.ErrNotExist) || err == nil && (now.Ended || now.Start != p.Start)
}

// tenantOf returns the tenant of a namespace. It creates a new one if the inode belonged to
// another namespace before.
func (n *Names) tenantOf(inode uint64, ns uint64) *tenant {
	t := n.tenants[inode]
	if t == nil || t.namespace != ns {
		t = &tenant{namespace: ns}
		n.tenants[inode] = t
	}
	return t
}

// moveIn finds the oldest of the namespace's processes, and its container.
func (n *Names) moveIn(t *tenant, inode uint64, pids []int) {
	p, same := n.oldest(t.process, pids)
	c := t.container
	if !same || c == (Container{}) { // a process moves to its cgroup only once, when it starts
		// If a container created the namespace in addition to its own, the process is in the container's cgroup, too. In
		// that case its parent is in the same cgroup, but in another namespace.
		c = n.procDir.Container(p.PID)
		if elsewhere, err := n.procDir.Netns(p.Parent); err == nil && elsewhere != inode && n.procDir.Container(p.Parent) == c {
			c = Container{}
		}
	}
	// The PID may have belonged to another process in the meantime. It is 0 if none of the processes
	// is readable.
	if now, err := n.procDir.Netns(p.PID); err != nil || now != inode {
		return
	}
	now := n.ticks()
	settled := now >= p.Start+settledAfter
	if !settled && !same && t.settled && (t.process.Ended || n.ended(t.process)) {
		t.process.Ended = true // the ended process is still the best name
		return
	}
	t.process, t.container, t.settled = p, c, settled
}

// oldest returns the oldest of the given processes, and whether it is last, the previous
// result. If last still exists, it is the oldest, because new processes are younger.
func (n *Names) oldest(last Process, pids []int) (oldest Process, same bool) {
	slices.Sort(pids)
	if _, in := slices.BinarySearch(pids, last.PID); in {
		if p, err := n.procDir.Process(last.PID); err == nil && p.Start == last.Start {
			return p, true // with its current name, which exec changes
		}
	}
	for _, pid := range pids[:min(len(pids), mostRead)] {
		if p, err := n.procDir.Process(pid); err == nil && (oldest.PID == 0 || p.Start < oldest.Start) {
			oldest = p
		}
	}
	return oldest, false
}

// vipPrograms are the programs that move virtual addresses between nodes on their own, by the names
// of their processes. Programs that run on every node and obey a controller are not among them.
var vipPrograms = []string{"keepalived", "kube-vip", "vrrpd", "ucarp", "uvrrpd", "pacemakerd", "ctdbd", "vip-manager", "heartbeat", "pgpool", "had"}

// vipTitles begin the titles of processes of which the name alone does not tell that they move addresses: the Heartbeat of
// Linux-HA, and not Elastic's, and a Pgpool-II whose watchdog is on.
var vipTitles = map[string]string{"heartbeat": "heartbeat: ", "pgpool": "pgpool: watchdog"}

// A vipProgram is the program in a namespace that moves virtual addresses between nodes. It is empty if
// none was seen.
type vipProgram struct {
	name  string
	ended bool
}

// runs sets the program that runs now; empty if none does.
func (v *vipProgram) runs(name string) {
	if name != "" {
		*v = vipProgram{name: name}
	}
	v.ended = name == "" && v.name != ""
}

// VIPProgram is the program in the agent's namespace that moves virtual addresses between nodes.
type VIPProgram struct {
	mu sync.Mutex
	vipProgram
	// Changed is called after a program started or ended; set before run.
	Changed func()
}

// State returns the name of the program, and whether it has ended; empty if none was seen.
func (v *VIPProgram) State() (name string, ended bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.name, v.ended
}

// found sets the program that runs now; empty if none does.
func (v *VIPProgram) found(running string) {
	v.mu.Lock()
	before := v.vipProgram
	v.runs(running)
	changed := v.vipProgram != before
	v.mu.Unlock()
	if changed && v.Changed != nil {
		v.Changed()
	}
}

package tests

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// containerID is the container ID in the path of a test's cgroup.
const containerID = "5eed00000000000000000000000000000000000000000000000000000000c0de"

// containerCgroup creates a cgroup like that of a container runtime and returns its path, or an
// empty string if this machine does not allow it.
func containerCgroup(t *testing.T) string {
	t.Helper()
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mounts.Close() }()
	var root string
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		// … mount point, options, optional fields - type, source, options (proc_pid_mountinfo(5)).
		place, kind, _ := strings.Cut(lines.Text(), " - ")
		switch fields := strings.Fields(place); {
		case strings.HasPrefix(kind, "cgroup2 "):
			root = fields[4]
		case strings.HasPrefix(kind, "cgroup ") && strings.Contains(kind, "freezer") && root == "":
			root = fields[4] // any version 1 hierarchy in which a new cgroup needs no settings
		}
	}
	if root == "" {
		return ""
	}
	parent, err := os.MkdirTemp(root, "ipwitness-test-")
	if err != nil {
		return ""
	}
	t.Cleanup(func() {
		if err := os.Remove(parent); err != nil {
			t.Error("remove cgroup: ", err)
		}
	})
	dir := filepath.Join(parent, containerID)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return ""
	}
	t.Cleanup(func() { wait.Until(t, "the cgroup to be empty", func() bool { return os.Remove(dir) == nil }) })
	return dir
}

// sleeper starts a process in an unnamed network namespace of its own, in a cgroup unless that is
// empty, and returns its PID.
func (l *lab) sleeper(cgroup string) int {
	l.t.Helper()
	cmd := l.Command("unshare", "--net", "sleep", "infinity")
	if err := l.Start(cmd); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pid := cmd.Process.Pid
	wait.Until(l.t, "sleep in its network namespace", func() bool {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return string(name) == "sleep\n"
	})
	if cgroup != "" {
		if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			l.t.Fatal(err)
		}
	}
	return pid
}

// plug connects the namespace of a process to the host by a veth, with an address.
func (l *lab) plug(pid int, name, addr string) {
	l.t.Helper()
	l.sh(fmt.Sprintf("ip link add v%s type veth peer name eth0%s", name, name),
		fmt.Sprintf("ip link set eth0%s netns %d name eth0", name, pid),
		fmt.Sprintf("ip link set v%s up", name),
		fmt.Sprintf("nsenter --net=/proc/%d/ns/net ip link set eth0 up", pid),
		fmt.Sprintf("nsenter --net=/proc/%d/ns/net ip addr add %s/32 dev eth0", pid, addr))
}

func TestProcessesNameANamespaceWithoutAFile(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.7"
	l := newLab(t)
	cgroup := containerCgroup(t)
	before := l.sleeper(cgroup) // has no known owner when it joins this node's namespace
	after := l.sleeper("")
	began := time.Now()
	l.plug(before, "a", addr)
	l.plug(after, "b", addr)
	l.watch.await(addr+" to be confirmed", inState(addr, ipwitnessv1.Conflict_CONFIRMED))

	want := map[string]*ipwitnessv1.Workload{
		fmt.Sprintf("sleep (%d)", before): {Kind: ipwitnessv1.Workload_CONTAINER, ContainerId: containerID, Source: "cgroup"},
		fmt.Sprintf("sleep (%d)", after):  {Kind: ipwitnessv1.Workload_UNKNOWN, Source: "process"},
	}
	if cgroup == "" {
		t.Log("no cgroup can be made here: only processes are looked at")
		want[fmt.Sprintf("sleep (%d)", before)] = want[fmt.Sprintf("sleep (%d)", after)]
	}
	wait.Until(t, "both to be named", func() bool {
		named := 0
		for _, o := range l.owners("?address=" + addr) {
			w := o.GetWorkload()
			if x := want[w.GetProcess()]; x != nil && w.GetKind() == x.GetKind() && w.GetContainerId() == x.GetContainerId() && w.GetSource() == x.GetSource() {
				named++
			}
		}
		return named == len(want)
	})
	e := l.explain(addr)
	wantWords(t, fmt.Sprint(e.GetSummary(), e.GetConflicts()), fmt.Sprintf("process sleep (%d)", after), fmt.Sprintf("nsenter --net=/proc/%d/ns/net ip addr del %s/32 dev eth0", after, addr))
	if cgroup != "" {
		wantWords(t, fmt.Sprint(e.GetSummary(), e.GetConflicts()), "container "+containerID[:12])
	}
	wide, err := l.Output(l.Command(binary, "owners", addr, "-o", "wide"))
	if err != nil {
		t.Fatal(err)
	}
	wantWords(t, wide, "PROCESS", fmt.Sprintf("sleep (%d)", before), fmt.Sprintf("process/sleep (%d)", after))

	// A process that has ended is reported only if it lived for at least 10 s. When the agent
	// reports a later process, it has also looked at this one again.
	wait.Until(t, "the process to have lived for 10 s", func() bool { return time.Since(began) > 10*time.Second })
	const later = "10.244.0.8"
	marker := l.sleeper("")
	l.plug(marker, "c", later)
	wait.Until(t, "a process that came later to be named", func() bool {
		return slices.ContainsFunc(l.owners("?address="+later), func(o *ipwitnessv1.Owner) bool {
			return o.GetWorkload().GetProcess() == fmt.Sprintf("sleep (%d)", marker)
		})
	})

	// An open descriptor keeps the namespace after its process. Its name remains and says that the
	// process has ended.
	held, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", after))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	if err := unix.Kill(after, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended := fmt.Sprintf("sleep (%d, ended)", after)
	wait.Until(t, "the process to have ended", func() bool {
		return slices.ContainsFunc(l.owners("?address="+addr), func(o *ipwitnessv1.Owner) bool { return o.GetWorkload().GetProcess() == ended })
	})
	e = l.explain(addr)
	if said := fmt.Sprint(e.GetSummary(), e.GetConflicts()); strings.Contains(said, fmt.Sprintf("/proc/%d/", after)) {
		t.Errorf("after the end of a process: got %s, want no command with its PID", said)
	}
}

package workload

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/kernel"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/ipam"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
	"github.com/ipwitness/ipwitness/tests/alone"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// machine is a search on a real kernel.
type machine struct {
	*Names
	t       *testing.T
	table   *table.Table
	dir     string
	mounted atomic.Int32
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	req, err := rtnetlink.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(req.Close)
	own, err := req.OwnNSID()
	if err != nil {
		t.Fatal(err)
	}
	inode, err := inodeOf("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, table: table.New(), dir: t.TempDir()}
	log := slog.New(slog.DiscardHandler)
	k := kernel.New(log, m.table, req, own, inode, time.Now(), "node1")
	if err := k.List(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"netns", "docker/netns"} {
		if err := os.MkdirAll(filepath.Join(m.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.Names = New(log, k, []string{filepath.Join(m.dir, "missing"), filepath.Join(m.dir, "netns"), filepath.Join(m.dir, "docker/netns")},
		filepath.Join(m.dir, "results"), "/proc", NewRuntime(log, RuntimeOff, "/proc"), noContainers)
	m.Mounted = func() { m.mounted.Add(1) }
	return m
}

// namespace creates a network namespace with a veth to ours, and returns its inode. start is
// called in it.
func (m *machine) namespace(veth string, start func()) uint64 {
	m.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = home.Close() }()
	ns, err := netns.New()
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	inode, err := inodeOf("/proc/thread-self/ns/net")
	if err == nil {
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: veth, PeerNamespace: netlink.NsFd(home)})
	}
	start()
	if e := netns.Set(home); e != nil {
		m.t.Fatal(e)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return inode
}

// name mounts the namespace of the calling thread over a file.
func (m *machine) name(file string) {
	m.t.Helper()
	path := filepath.Join(m.dir, file)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

// workload returns the workload of a namespace: its kind, name, process and source.
func (m *machine) workload(inode uint64) string {
	w := agenttest.Workload(m.table, inode)
	process, _, _ := strings.Cut(w.GetProcess(), " ")
	return fmt.Sprintf("%s %s %s %s", w.GetKind(), w.GetName(), process, w.GetSource())
}

func (m *machine) await(inode uint64, want string) {
	m.t.Helper()
	wait.Until(m.t, "workload is "+want, func() bool {
		m.Wake() // in place of rtnetlink
		return m.workload(inode) == want
	})
}

// waits is set in the environment of a process that waits in a namespace.
const waits = "IPWITNESS_TEST_WAITS"

// TestWaitsForTheEndOfItsInput is the process of another test.
func TestWaitsForTheEndOfItsInput(*testing.T) {
	if os.Getenv(waits) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
}

func TestNamespacesOfTheMachineAreFoundAndNamed(t *testing.T) {
	alone.Run(t, func() {
		m := newMachine(t)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		blue := m.namespace("veth1", func() { m.name("netns/blue") })
		m.await(blue, "UNKNOWN blue  netns")
		before := m.mounted.Load()
		wait.Until(t, "mounts are noticed", func() bool {
			if err := unix.Mount("tmpfs", m.dir, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			return m.mounted.Load() > before
		})
		docker := m.namespace("veth2", func() { m.name("docker/netns/3f2a") })
		m.await(docker, "CONTAINER 3f2a  docker-netns")
		madeUp := m.namespace("veth3", func() { m.name("netns/cni-" + agenttest.PodUID) })
		m.await(madeUp, "CONTAINER cni-"+agenttest.PodUID+"  netns")
		if got := m.workload(blue); got != "UNKNOWN blue  netns" {
			t.Errorf("name of the first namespace: got %q", got)
		}

		cmd := exec.Command("/proc/self/exe", "-test.run=^TestWaitsForTheEndOfItsInput$")
		cmd.Env = append(os.Environ(), waits+"=1")
		input, err := cmd.StdinPipe() // which ends with the test, and the process with it
		if err != nil {
			t.Fatal(err)
		}
		process := m.namespace("veth4", func() {
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
		})
		defer func() { _, _ = input.Close(), cmd.Wait() }()
		if err := m.kernel.List(); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the process names its namespace", func() bool {
			m.Wake()
			return agenttest.Workload(m.table, process).GetProcessId() == uint32(cmd.Process.Pid)
		})
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: got error %v", err)
		}
	})
}

func TestFilesThatNameNamespacesAreReadAgainIfEverythingIs(t *testing.T) {
	alone.Run(t, func() {
		m := newMachine(t)
		path := filepath.Join(m.dir, "netns/blue")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		look := func(everything bool) (inode uint64, found int) {
			byPath, said := m.lookFiles(everything)
			if len(byPath) != len(said) {
				t.Errorf("files: got %d paths and facts about %d namespaces", len(byPath), len(said))
			}
			return byPath[path], len(byPath)
		}
		if inode, found := look(true); found != 0 {
			t.Errorf("file that is no namespace yet: got inode %d", inode)
		}
		first := m.namespace("veth1", func() { m.name("netns/blue") })
		if inode, _ := look(false); inode != first || !m.kernel.Known(first) {
			t.Errorf("named namespace: got inode %d, want %d, and the kernel's mirror to have it", inode, first)
		}
		second := m.namespace("veth2", func() { // mounted over the first
			if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
		})
		if inode, _ := look(false); inode != first {
			t.Errorf("file that is known: got inode %d, want %d as before", inode, first)
		}
		if inode, _ := look(true); inode != second || !m.kernel.Known(second) {
			t.Errorf("file that is read again: got inode %d, want %d", inode, second)
		}
		m.adopt(filepath.Join(m.dir, "gone"), 4711)
		m.adopt(path, 4711)
		if m.kernel.Known(4711) {
			t.Error("inode that the file does not have: got known")
		}
		plain := filepath.Join(m.dir, "plain")
		if err := os.WriteFile(plain, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		inode, err := inodeOf(plain)
		if err != nil {
			t.Fatal(err)
		}
		if m.adopt(plain, inode); m.kernel.Known(inode) || !m.kernel.Known(first) {
			t.Error("file that is no namespace: got known in place of a namespace")
		}
		if _, err := namespaceInode(filepath.Join(m.dir, "gone")); !os.IsNotExist(err) {
			t.Errorf("namespace of a missing file: got error %v", err)
		}

		// A namespace with two names has the first one.
		two := m.namespace("veth4", func() { m.name("netns/two"); m.name("netns/one") })
		byPath, byInode := m.lookFiles(false)
		if got := byInode[two].file.GetName(); got != "one" || byPath[filepath.Join(m.dir, "netns/two")] != two {
			t.Errorf("namespace with two names: got %q and paths %v, want one", got, byPath)
		}

		// A sandbox with a path below /run that is in none of the directories.
		if err := os.MkdirAll("/run/ipwitness-test", 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove("/run/ipwitness-test") })
		if err := unix.Mount("tmpfs", "/run/ipwitness-test", "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount("/run/ipwitness-test", unix.MNT_DETACH) })
		sandbox := &Sandbox{ID: "1", Path: "/run/ipwitness-test/a", Workload: &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_POD, Name: "web-0", Source: "cri"}}
		if got := m.sandboxInode(sandbox, nil); got != 0 {
			t.Errorf("sandbox whose path is missing: got inode %d, want none", got)
		}
		third := m.namespace("veth3", func() {
			if err := os.WriteFile(sandbox.Path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("/proc/thread-self/ns/net", sandbox.Path, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
		})
		if got := m.sandboxInode(sandbox, nil); got != third || !m.kernel.Known(third) {
			t.Errorf("sandbox whose path is a namespace: got inode %d, want %d", got, third)
		}
		for _, inode := range []uint64{first, second, third} {
			if fds := openFiles(t, fmt.Sprintf("net:[%d]", inode)); len(fds) != 0 {
				t.Errorf("open descriptors of namespace %d: got %v, want none, because they keep it alive", inode, fds)
			}
		}
		say(m.Names, sandbox)
		m.Look(false)
		if got := m.workload(third); got != "POD web-0  cri" {
			t.Errorf("workload of the sandbox: got %q", got)
		}
	})
}

// openFiles returns the descriptors of this process that refer to a file.
func openFiles(t *testing.T, file string) (fds []string) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); err == nil && target == file {
			fds = append(fds, fd.Name())
		}
	}
	return fds
}

func TestMissingListOfMountsIsNotAnError(t *testing.T) {
	alone.Run(t, func() {
		n, _ := newTestNames(t)
		if err := unix.Mount("tmpfs", "/proc", "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- n.watchMounts(t.Context()) }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("watch mounts: got error %v", err)
			}
		case <-time.After(wait.Patience()):
			t.Error("watch mounts: got no end")
		}
	})
}

func TestMountsFromBeforeTheWatchAreSearched(t *testing.T) {
	alone.Run(t, func() {
		n, _ := newTestNames(t)
		debug.SetGCPercent(-1) // files that are collected close themselves
		open := func() int {
			all, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		first := 0
		for i := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- n.watchMounts(ctx) }()
			select {
			case <-n.changed:
			case <-time.After(wait.Patience()):
				t.Error("the search is not woken")
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("watch mounts: got error %v", err)
			}
			if i == 0 {
				first = open() // with those that the runtime keeps
			}
		}
		wait.Until(t, "all descriptors are closed", func() bool { return open() <= first })
	})
}

func TestSearchReadsEverythingAgainRegularly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := newTestNames(t)
		if err := os.Mkdir(n.cni.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		// Nothing watches the directory of results.
		write := func(pod string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(n.cni.dir, "pods-x-eth0"), []byte(`{"cniArgs":[["K8S_POD_NAME","`+pod+`"]]}`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var name atomic.Value
		n.unnamed = func([]uint64) { name.Store(n.cni.results["pods-x-eth0"].workload.GetName()) } // the end of a search
		after := func(d time.Duration, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := name.Load(); got != want {
				t.Errorf("name in the result: got %v, want %s", got, want)
			}
		}
		write("first")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go n.search(ctx)
		after(time.Second, "first")
		write("the second")
		after(time.Second, "first")
		after(everythingEvery, "the second")
		write("another one")
		after(time.Second, "the second")
		after(everythingEvery, "another one")
	})
}

func TestSearchPausesInProportionToItsCost(t *testing.T) {
	for cost, want := range map[time.Duration]time.Duration{
		time.Millisecond: time.Millisecond + restShare*time.Millisecond,
		time.Minute:      time.Minute + longestRest,
	} {
		synctest.Test(t, func(t *testing.T) {
			n, _ := newTestNames(t)
			var ends []time.Time
			ctx, cancel := context.WithCancel(t.Context())
			n.unnamed = func([]uint64) { // the end of a search
				time.Sleep(cost)
				ends = append(ends, time.Now())
				if n.Wake(); len(ends) == 3 {
					cancel()
				}
			}
			n.search(ctx)
			if len(ends) != 3 || ends[1].Sub(ends[0]) != want || ends[2].Sub(ends[1]) != want {
				t.Errorf("searches that take %s: got them at %v, want one every %s", cost, ends, want)
			}
		})
	}
}

func TestProcessesAreReadAtMostOnceASecond(t *testing.T) {
	n, p := newTestNames(t, 100)
	p.Put(30, 1, "first", 700, 100, "/")
	walk := func(now bool) string {
		n.walk(now)
		names, _ := n.moveTenants(map[uint64]facts{}, nil)
		return names[100].GetProcess()
	}
	if got := walk(false); got != "first (30)" {
		t.Errorf("first walk: got %q", got)
	}
	walked := n.walked
	p.Put(30, 1, "second", 700, 100, "/")
	if got := walk(false); got != "first (30)" || !n.later || n.walked != walked {
		t.Errorf("second walk: got %q, later %v, want the processes read later", got, n.later)
	}
	select {
	case <-n.changed:
	case <-time.After(wait.Patience()):
		t.Fatal("the search is not woken to read the processes")
	}
	if got := walk(false); got != "second (30)" || n.later {
		t.Errorf("walk after a second: got %q, later %v", got, n.later)
	}
	p.Put(30, 1, "third", 700, 100, "/")
	if got := walk(true); got != "third (30)" {
		t.Errorf("walk that cannot wait: got %q", got)
	}
}

func TestOfProcessesWithOneStartTheFirstIsTheOldest(t *testing.T) {
	n, p := newTestNames(t, 100)
	for _, pid := range []int{31, 30, 32} {
		p.Put(pid, 1, "x", 700, 100, "/")
	}
	if got, _ := n.oldest(Process{}, []int{32, 30, 31}); got.PID != 30 {
		t.Errorf("oldest process: got %d, want 30", got.PID)
	}
}

// noContainers is the list of containers on a node without engines.
func noContainers() []*ipam.Container { return nil }

func TestContainersOfEnginesAreNamedByTheirNamespaces(t *testing.T) {
	alone.Run(t, func() {
		m := newMachine(t)
		var running []*ipam.Container
		m.engines = func() []*ipam.Container { return running }
		const key, later = "0123456789ab", "ba9876543210"
		container := func(name, key string) *ipam.Container {
			return &ipam.Container{Engine: "docker", ID: "id-" + name, Name: name, Netns: filepath.Join(m.dir, "docker/netns", key)}
		}
		inode := m.namespace("vengine", func() { m.name("docker/netns/" + key) })
		named := func(want string) {
			t.Helper()
			wait.Until(t, "workload is "+want, func() bool { m.Look(false); return m.workload(inode) == want })
		}
		named("CONTAINER 0123456789ab  docker-netns")
		running = []*ipam.Container{container("web", key), container("other", later)}
		named("CONTAINER web  docker")
		if w := agenttest.Workload(m.table, inode); w.GetContainerId() != "id-web" {
			t.Errorf("got %v, want the container's id", w)
		}
		running = []*ipam.Container{container("shop", key)} // a new name
		named("CONTAINER shop  docker")
		running = []*ipam.Container{container("shop", later)} // it was restarted, and this namespace was left behind
		named("CONTAINER 0123456789ab  docker-netns")
		running = []*ipam.Container{container("shop", key)}
		named("CONTAINER shop  docker")
		running = nil
		m.Look(false)
		named("CONTAINER shop  docker")

		// docker leaves the file of a namespace behind. The inode may be that of another one by now.
		if err := unix.Unmount(filepath.Join(m.dir, "docker/netns", key), unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		if byPath, _ := m.lookFiles(false); len(byPath) != 0 {
			t.Errorf("got namespaces %v for a file without one", byPath)
		}
	})
}

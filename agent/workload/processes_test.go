package workload

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/tests/agenttest"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// testNames is a search for names on a node with a fake rtnetlink.
type testNames struct {
	*Names
	table *table.Table
	fake  agenttest.Fake
}

// newTestNames returns the search of a node that has namespaces with the given inodes. The
// first one has nsid 1.
func newTestNames(t *testing.T, inodes ...uint64) (*testNames, agenttest.Tree) {
	t.Helper()
	f := agenttest.Fake{}
	f.Own()
	for i := range inodes {
		nsid := int32(i + 1)
		f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10+nsid, nsid))
		f.Put(nsid, agenttest.PodVeth(10+nsid))
	}
	tab := table.New()
	k := kernel.New(slog.New(slog.DiscardHandler), tab, f, agenttest.OwnNSID, 1, time.Unix(0, 0), "node1")
	if err := k.List(); err != nil {
		t.Fatal("list: ", err)
	}
	p := agenttest.NewTree(t)
	n := New(slog.New(slog.DiscardHandler), k, nil, filepath.Join(p.Dir, "results"), ProcDir(p.Dir), NewRuntime(slog.New(slog.DiscardHandler), RuntimeOff, ProcDir(p.Dir)), noContainers)
	for i, inode := range inodes {
		k.Adopt(int32(i+1), inode, false, false)
	}
	return &testNames{n, tab, f}, p
}

// reuse ends the namespace with nsid 1. Another namespace gets its nsid and inode at once.
func (n *testNames) reuse(inode uint64) {
	other := agenttest.PodVeth(11)
	other.MAC = "others"
	n.fake.Put(1, other)
	n.kernel.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 1})
	n.kernel.Adopt(1, inode, false, false)
}

// wantNetworks compares the networks of all claims.
func wantNetworks(t *testing.T, tab *table.Table, want string) {
	t.Helper()
	if got := agenttest.Networks(tab); got != want {
		t.Errorf("networks: got %q, want %q", got, want)
	}
}

// named searches once with additional facts from files or CNI results, and returns the
// resulting name of a namespace.
func (n *testNames) named(inode uint64, by map[uint64]facts) string {
	found := maps.Clone(by)
	if found == nil {
		found = map[uint64]facts{}
	}
	n.processes()
	names, _ := n.moveTenants(found, nil)
	n.kernel.SetNames(names, nil, nil, nil)
	w := agenttest.Workload(n.table, inode)
	return fmt.Sprintf("%s %s/%s uid=%s id=%s process=%s by %s", w.GetKind(), w.GetNamespace(), w.GetName(), w.GetUid(),
		w.GetContainerId()[:min(4, len(w.GetContainerId()))], w.GetProcess(), w.GetSource())
}

// factOf returns w as a fact from its source.
func factOf(w *ipwitnessv1.Workload) facts {
	if w.GetSource() == "cni-result" {
		return facts{result: w}
	}
	return facts{file: w}
}

func wantNamed(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("name: got  %q\n          want %q", got, want)
	}
}

func TestOldestProcessAndItsContainerNameANamespace(t *testing.T) {
	const pod = "/kubepods/burstable/pod" + agenttest.PodUID + "/"
	n, p := newTestNames(t, 100, 200)
	p.Put(30, 2, "nginx", 700, 100, pod+agenttest.OuterID)
	p.Put(40, 2, "pause", 600, 100, pod+agenttest.InnerID) // PIDs have wrapped around
	p.Put(41, 1, "sshd", 5, 1, "/system.slice/sshd.service")
	p.Put(50, 1, "my (odd) name", 800, 200, "/user.slice/session-3.scope")
	wantNamed(t, n.named(100, nil), "POD / uid="+agenttest.PodUID+" id=ee4b process=pause (40) by cgroup")
	wantNamed(t, n.named(200, nil), "UNKNOWN / uid= id= process=my (odd) name (50) by process")

	// If the oldest process ends, the next oldest replaces it. If there is none, the last one
	// known stays, as one that has ended.
	p.End(40)
	wantNamed(t, n.named(100, nil), "POD / uid="+agenttest.PodUID+" id=8195 process=nginx (30) by cgroup")
	p.End(30)
	wantNamed(t, n.named(100, nil), "POD / uid="+agenttest.PodUID+" id=8195 process=nginx (30, ended) by cgroup")

	// The PID is used again elsewhere. Changes by exec and a late cgroup are noticed.
	p.Put(30, 1, "other", 900, 1, "/")
	wantNamed(t, n.named(100, nil), "POD / uid="+agenttest.PodUID+" id=8195 process=nginx (30, ended) by cgroup")
	p.Put(50, 1, "sleep", 800, 200, "/docker/"+agenttest.InnerID)
	wantNamed(t, n.named(200, nil), "CONTAINER / uid= id=ee4b process=sleep (50) by cgroup")
	// A process that moves to another namespace has not ended.
	p.Put(50, 1, "sleep", 800, 1, "/docker/"+agenttest.InnerID)
	wantNamed(t, n.named(200, nil), "CONTAINER / uid= id=ee4b process=sleep (50) by cgroup")
	// Then its PID is used again in the same namespace.
	p.Put(50, 1, "late", 950, 200, "/lxc/web")
	wantNamed(t, n.named(200, nil), "CONTAINER /web uid= id= process=late (50) by cgroup")
}

func TestShortLivedProcessDoesNotNameANamespace(t *testing.T) {
	const pod = "/kubepods/burstable/pod" + agenttest.PodUID + "/"
	n, p := newTestNames(t, 100)
	var now uint64 = 100_000
	n.ticks = func() uint64 { return now }
	moment := func(pid int, name string) {
		p.Put(pid, 2, name, int(now)-TicksPerSecond, 100, pod+agenttest.InnerID)
	}
	moment(30, "sh")
	wantNamed(t, n.named(100, nil), "POD / uid="+agenttest.PodUID+" id=ee4b process=sh (30) by cgroup")
	p.End(30)
	wantNamed(t, n.named(100, nil), "UNKNOWN / uid= id= process= by ")

	// A process counts as settled when a later search finds it again.
	moment(31, "sleep")
	n.named(100, nil)
	now += settledAfter
	n.named(100, nil)
	p.End(31)
	wantNamed(t, n.named(100, nil), "POD / uid="+agenttest.PodUID+" id=ee4b process=sleep (31, ended) by cgroup")

	// A process that exists only briefly does not replace the ended one, but a process that
	// stays does.
	p.Put(32, 2, "ip", int(now)-1, 100, "/docker/"+agenttest.OuterID)
	for range 2 {
		wantNamed(t, n.named(100, nil), "POD / uid="+agenttest.PodUID+" id=ee4b process=sleep (31, ended) by cgroup")
	}
	p.End(32)
	wantNamed(t, n.named(100, nil), "POD / uid="+agenttest.PodUID+" id=ee4b process=sleep (31, ended) by cgroup")
	p.Put(33, 2, "nginx", int(now)-1, 100, "/docker/"+agenttest.OuterID)
	now += settledAfter
	wantNamed(t, n.named(100, nil), "CONTAINER / uid= id=8195 process=nginx (33) by cgroup")

	// The previous process may end between two searches, when another process already exists.
	p.End(33)
	moment(34, "sh")
	wantNamed(t, n.named(100, nil), "CONTAINER / uid= id=8195 process=nginx (33, ended) by cgroup")
}

func TestBetterNamesAreFilledInAndStay(t *testing.T) {
	pod := "/kubepods/pod" + agenttest.PodUID + "/" + agenttest.InnerID
	file := func(source, name string) *ipwitnessv1.Workload {
		kind := ipwitnessv1.Workload_CONTAINER
		if source == "netns" && name == "blue" {
			kind = ipwitnessv1.Workload_UNKNOWN
		}
		return &ipwitnessv1.Workload{Kind: kind, Name: name, Source: source}
	}
	result := &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_POD, Namespace: "shop", Name: "web-0", ContainerId: agenttest.OuterID, Source: "cni-result"}
	for name, c := range map[string]struct {
		cgroup string
		named  *ipwitnessv1.Workload
		want   string
	}{
		"CNI result":                          {pod, result, "POD shop/web-0 uid=" + agenttest.PodUID + " id=8195 process=pause (40) by cni-result"},
		"named by a person":                   {"/docker/" + agenttest.InnerID, file("netns", "blue"), "CONTAINER /blue uid= id=ee4b process=pause (40) by netns"},
		"named by a person, outside":          {"/", file("netns", "blue"), "UNKNOWN /blue uid= id= process=pause (40) by netns"},
		"named by docker":                     {"/docker/" + agenttest.InnerID, file("docker-netns", "3f2a91c04b5d"), "CONTAINER / uid= id=ee4b process=pause (40) by cgroup"},
		"named by docker, outside":            {"/", file("docker-netns", "3f2a91c04b5d"), "CONTAINER /3f2a91c04b5d uid= id= process=pause (40) by docker-netns"},
		"docker's own":                        {"/docker/" + agenttest.InnerID, file("docker-netns", "lb_3f2a91c04"), "CONTAINER /lb_3f2a91c04 uid= id=ee4b process=pause (40) by docker-netns"},
		"named by containerd":                 {pod, file("netns", "cni-"+agenttest.PodUID), "POD / uid=" + agenttest.PodUID + " id=ee4b process=pause (40) by cgroup"},
		"named by CRI-O":                      {pod, file("netns", agenttest.PodUID), "POD / uid=" + agenttest.PodUID + " id=ee4b process=pause (40) by cgroup"},
		"named by podman":                     {"/machine.slice/libpod-" + agenttest.InnerID + ".scope", file("netns", "netns-"+agenttest.PodUID), "CONTAINER / uid= id=ee4b process=pause (40) by cgroup"},
		"named by podman, known to the world": {"/", file("netns", "netns-"+agenttest.PodUID), "CONTAINER /netns-" + agenttest.PodUID + " uid= id= process=pause (40) by netns"},
	} {
		t.Run(name, func(t *testing.T) {
			n, p := newTestNames(t, 100)
			p.Put(40, 2, "pause", 600, 100, c.cgroup)
			before := c.named.String()
			wantNamed(t, n.named(100, map[uint64]facts{100: factOf(c.named)}), c.want)
			wantNamed(t, n.named(100, nil), c.want) // the file is gone, but its namespace is not
			p.End(40)
			gone := strings.Replace(c.want, "pause (40)", "pause (40, ended)", 1)
			wantNamed(t, n.named(100, map[uint64]facts{100: factOf(c.named)}), gone) // the process is gone
			if c.named.String() != before {
				t.Errorf("shared facts were changed: got %s, want %s", c.named, before)
			}
		})
	}
}

func TestNamespaceCreatedByAContainerIsNotThatContainers(t *testing.T) {
	n, p := newTestNames(t, 100, 200)
	p.Put(20, 2, "neutron-agent", 500, 1, "/docker/"+agenttest.InnerID) // in our own namespace
	p.Put(30, 20, "dnsmasq", 600, 100, "/docker/"+agenttest.InnerID)
	wantNamed(t, n.named(100, nil), "UNKNOWN / uid= id= process=dnsmasq (30) by process")
	// The process that started a container is in another cgroup.
	p.Put(40, 2, "containerd-shim", 500, 1, "/docker/"+agenttest.OuterID+"/system.slice/containerd.service")
	p.Put(50, 40, "pause", 700, 200, "/docker/"+agenttest.OuterID+"/kubelet/kubepods/pod"+agenttest.PodUID+"/"+agenttest.InnerID)
	wantNamed(t, n.named(200, nil), "POD / uid="+agenttest.PodUID+" id=ee4b process=pause (50) by cgroup")
}

func TestNamespaceWithAReusedInodeHasNoOldNames(t *testing.T) {
	n, p := newTestNames(t, 100)
	p.Put(40, 2, "pause", 600, 100, "/docker/"+agenttest.InnerID)
	n.named(100, nil)
	p.End(40)
	n.reuse(100)
	wantNamed(t, n.named(100, nil), "UNSPECIFIED / uid= id= process= by ")
	delete(n.fake, 1)
	n.kernel.Handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: 1})
	if n.named(100, nil); len(n.tenants) != 0 {
		t.Errorf("tenants of namespaces that have ended: got %d, want none", len(n.tenants))
	}
}

func TestNamespaceThatEndsDuringASearchDoesNotNameAnother(t *testing.T) {
	web := sandboxNamed("web-0", Process{})
	for _, when := range []string{"before tenants move", "before names are set"} {
		t.Run(when, func(t *testing.T) {
			n, _ := newTestNames(t, 100)
			k := n.kernel
			published := func() string { return agenttest.Workload(n.table, 100).GetName() }

			k.BeginNames()
			found := map[uint64]facts{100: {sandbox: web}}
			if when == "before tenants move" {
				n.reuse(100)
			}
			names, _ := n.moveTenants(found, nil)
			if when == "before names are set" {
				n.reuse(100)
			}
			k.SetNames(names, map[uint64]kernel.Networks{100: {}}, map[uint64]kernel.Intended{100: {}}, nil)
			if got := published(); got != "" {
				t.Errorf("the next namespace: got name %q, want none", got)
			}
			wantNamed(t, n.named(100, nil), "UNSPECIFIED / uid= id= process= by ")

			// The end of a namespace wakes the search.
			if len(n.changed) != 1 {
				t.Error("end of a namespace: got no search")
			}
			k.BeginNames()
			n.named(100, map[uint64]facts{100: {sandbox: sandboxNamed("web-1", Process{})}})
			if got := published(); got != "web-1" {
				t.Errorf("the next namespace, with a new name: got %q, want web-1", got)
			}
		})
	}
}

func TestContainerOfAParentInAnUnknownNamespaceIsKept(t *testing.T) {
	n, p := newTestNames(t, 100)
	p.Put(30, 2, "pause", 600, 100, "/docker/"+agenttest.InnerID)
	p.Put(40, 30, "nginx", 500, 100, "/docker/"+agenttest.InnerID)
	if err := os.Remove(filepath.Join(p.Dir, "30/ns/net")); err != nil { // may not be read
		t.Fatal(err)
	}
	wantNamed(t, n.named(100, nil), "CONTAINER / uid= id=ee4b process=nginx (40) by cgroup")
	if fds := openFiles(t, p.Dir); len(fds) != 0 {
		t.Errorf("open descriptors of the list of processes: got %v, want none", fds)
	}
}

func TestEndOfAProcessIsKnownOnlyIfItCanBeRead(t *testing.T) {
	n, p := newTestNames(t)
	p.Put(30, 2, "same", 600, 100, "/")
	p.Put(31, 2, "other", 700, 100, "/")
	p.Put(32, 2, "unreadable", 600, 100, "/")
	p.Put(33, 2, "zombie", 600, 100, "/")
	for _, err := range []error{
		os.Remove(filepath.Join(p.Dir, "32/stat")), os.Mkdir(filepath.Join(p.Dir, "32/stat"), 0o700),
		os.WriteFile(filepath.Join(p.Dir, "33/stat"), []byte("33 (zombie) Z 2"+strings.Repeat(" 0", 17)+" 600 0"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for pid, want := range map[int]bool{30: false, 31: true, 32: false, 33: true, 34: true} {
		if got := n.ended(Process{PID: pid, Start: 600}); got != want {
			t.Errorf("process %d has ended: got %v, want %v", pid, got, want)
		}
	}
}

func TestProcessThatIsElsewhereMeanwhileDoesNotNameANamespace(t *testing.T) {
	n, p := newTestNames(t)
	p.Put(30, 2, "first", 600, 100, "/")
	p.Put(31, 2, "elsewhere", 500, 200, "/")
	var got tenant
	n.moveIn(&got, 100, []int{30})
	for _, pids := range [][]int{{31}, {99}} {
		if n.moveIn(&got, 100, pids); got.process.PID != 30 {
			t.Errorf("process of the namespace: got %v, want 30", got.process)
		}
	}
	n.ticks = func() uint64 { return 600 + settledAfter - 1 }
	if n.moveIn(&got, 100, []int{30}); got.settled {
		t.Error("process that has lived for less than 10 s: got that it is settled")
	}
	n.ticks = func() uint64 { return 600 + settledAfter }
	if n.moveIn(&got, 100, []int{30}); !got.settled {
		t.Error("process that has lived for 10 s: got that it is not settled")
	}
	// A process that moves to another namespace has not ended, so the next one replaces it.
	p.Put(30, 2, "first", 600, 200, "/")
	p.Put(32, 2, "next", 600+settledAfter-1, 100, "/")
	if n.moveIn(&got, 100, []int{32}); got.process.PID != 32 {
		t.Errorf("process of the namespace after the first has moved: got %v, want 32", got.process)
	}
	if last, same := n.oldest(got.process, []int{32, 33}); last.PID != 32 || !same {
		t.Errorf("oldest process: got %v and the same %v, want the same", last, same)
	}
}

func TestNamespaceWithAReusedInodeIsNamedByTheNextSearch(t *testing.T) {
	n, p := newTestNames(t, 100)
	p.Put(40, 2, "pause", 600, 100, "/")
	n.reuse(100)
	n.Look(true)
	if got := n.name(100); got != " by process" {
		t.Errorf("name: got %q, want that of the process", got)
	}
}

func TestNamespaceThatNeverHadAProcessHasNoName(t *testing.T) {
	n, _ := newTestNames(t, 100)
	for range 2 {
		wantNamed(t, n.named(100, nil), "UNSPECIFIED / uid= id= process= by ")
	}
}

func TestKnownNamespaceIsNotOpened(t *testing.T) {
	n, p := newTestNames(t, 100)
	path := filepath.Join(p.Dir, "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	n.adopt(path, 100) // would wait for a writer
}

func TestProcessesAreReadOnlyInNamespacesOfOurs(t *testing.T) {
	n, p := newTestNames(t, 100)
	p.Put(20, 1, "sshd", 5, 1, "/")           // only in our own namespace
	p.Put(30, 1, "stranger", 5, 300, "/")     // of another node on this machine
	p.Put(40, 1, "first", 600, 100, "/")      // the oldest
	p.Put(41, 40, "second", 700, 100, "/")    // a younger process
	p.Put(42, 40, "unreadable", 50, 100, "/") // may not be read
	if err := os.Remove(filepath.Join(p.Dir, "42/ns/net")); err != nil {
		t.Fatal(err)
	}
	// Reading one of these files blocks forever.
	trap := func(files ...string) {
		t.Helper()
		for _, file := range files {
			path := filepath.Join(p.Dir, file)
			for _, err := range []error{os.Remove(path), unix.Mkfifo(path, 0o600)} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	trap("20/stat", "20/cgroup", "30/stat", "30/cgroup", "41/cgroup", "42/stat", "42/cgroup")
	wantNamed(t, n.named(100, nil), "UNKNOWN / uid= id= process=first (40) by process")
	trap("41/stat") // no other process is read once the oldest is known
	wantNamed(t, n.named(100, nil), "UNKNOWN / uid= id= process=first (40) by process")
	n.procDir = ProcDir(filepath.Join(p.Dir, "missing"))
	wantNamed(t, n.named(100, nil), "UNKNOWN / uid= id= process=first (40) by process")
}

func TestNamespaceWithoutAFileThatBecomesOursIsNamedAtOnce(t *testing.T) {
	n, p := newTestNames(t)
	k, unknown := n.kernel, func(uint64) bool { return false }
	n.fake.Put(1, rtnetlink.Link{Index: 1, Name: "lo", Flags: agenttest.Up | unix.IFF_LOOPBACK})
	k.Adopt(1, 100, false, false)
	p.Put(40, 1, "sleep", 600, 100, "/")
	n.Look(true)
	if k.Anonymous(unknown) || len(k.OurInodes()) != 0 {
		t.Errorf("our namespaces: got %v, want none", k.OurInodes())
	}
	for len(n.changed) > 0 {
		<-n.changed
	}
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: agenttest.HostVeth(11, 1)})
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 1, Link: agenttest.PodVeth(11)})
	if len(n.changed) == 0 {
		t.Error("one of our namespaces without a name: got no search")
	}
	if k.Anonymous(func(inode uint64) bool { return inode == 100 }) {
		t.Error("one of our namespaces whose file is found in the same search: got a search of processes")
	}
	n.Look(false) // too soon after the last walk, which is postponed
	n.walked = time.Time{}
	n.Look(false)
	if got := agenttest.Workload(n.table, 100).GetProcess(); got != "sleep (40)" {
		t.Errorf("process: got %q, want sleep (40)", got)
	}
	if k.Anonymous(unknown) {
		t.Error("one of our namespaces with a name: got a search of processes")
	}
}

func TestProgramsAreReadAgainWhenAddressesAreInDispute(t *testing.T) {
	n, p := newTestNames(t, 100)
	n.Look(true)
	p.Put(40, 1, "keepalived", 600, 100, "/")
	n.Reread(nil)
	if got := agenttest.Workload(n.table, 100).GetVipProgram(); got != "" {
		t.Errorf("too soon after the last walk: got program %q, want none", got)
	}
	n.walked = n.walked.Add(-walkAfter)
	n.Reread(nil)
	if got := agenttest.Workload(n.table, 100).GetVipProgram(); got != "keepalived" {
		t.Errorf("program: got %q, want keepalived", got)
	}
}

func TestSearchForTheOldestProcessIsBounded(t *testing.T) {
	n, p := newTestNames(t, 100)
	var pids []int
	for i := range 2 * mostRead {
		p.Put(1000+i, 1, "worker", 5000-i, 100, "/")
		pids = append(pids, 1000+i)
	}
	slices.Reverse(pids)
	got, same := n.oldest(Process{}, pids)
	if want := 1000 + mostRead - 1; got.PID != want || same {
		t.Errorf("oldest of the first %d: got %d and %v, want %d", mostRead, got.PID, same, want)
	}
}

func TestProgramThatMovesVirtualAddresses(t *testing.T) {
	n, p := newTestNames(t, 100)
	changes := 0
	n.VIPs.Changed = func() { changes++ }
	for _, step := range []struct {
		what     string
		change   func()
		want     string
		ended    bool
		reported int
	}{
		{"none", func() { p.Put(5, 1, "sshd", 5, 1, "/"); p.Put(6, 1, "keepalived", 5, 100, "/") }, "", false, 0},
		{"one starts", func() { p.Put(7, 1, "keepalived", 50, 1, "/"); p.Put(8, 7, "keepalived", 51, 1, "/") }, "keepalived", false, 1},
		{"its child ends", func() { p.End(8) }, "keepalived", false, 1},
		{"it ends", func() { p.End(7) }, "keepalived", true, 2},
		{"nothing changes", func() {}, "keepalived", true, 2},
		{"another one starts", func() { p.Put(9, 1, "kube-vip", 60, 1, "/") }, "kube-vip", false, 3},
		{"the first one starts again", func() { p.Put(10, 1, "keepalived", 70, 1, "/") }, "keepalived", false, 4},
		{"both end", func() { p.End(9); p.End(10) }, "keepalived", true, 5},
		{"Pacemaker starts", func() { p.Put(11, 1, "pacemakerd", 80, 1, "/") }, "pacemakerd", false, 6},
		{"it ends", func() { p.End(11) }, "pacemakerd", true, 7},
		{"a Pgpool-II without a watchdog starts", func() { p.Put(12, 1, "pgpool", 80, 1, "/"); p.Title(12, "pgpool: PgpoolLogger") }, "pacemakerd", true, 7},
		{"its watchdog starts", func() { p.Put(13, 12, "pgpool", 90, 1, "/"); p.Title(13, "pgpool: watchdog") }, "pgpool", false, 8},
		{"it ends", func() { p.End(13) }, "pgpool", true, 9},
		{"Elastic's Heartbeat starts", func() { p.Put(14, 1, "heartbeat", 90, 1, "/"); p.Title(14, "heartbeat\x00-e") }, "pgpool", true, 9},
		{"Linux-HA's Heartbeat starts", func() {
			p.Put(15, 1, "heartbeat", 95, 1, "/")
			p.Title(15, "heartbeat: master control process")
		}, "heartbeat", false, 10},
	} {
		step.change()
		n.processes()
		if name, ended := n.VIPs.State(); name != step.want || ended != step.ended || changes != step.reported {
			t.Errorf("%s: got %q, ended %t, %d changes, want %q, %t, %d", step.what, name, ended, changes, step.want, step.ended, step.reported)
		}
	}
}

func TestNamespaceWithoutAProcessIsIdleAfterAWhile(t *testing.T) {
	n, p := newTestNames(t, 100, 200)
	p.Put(1, 0, "systemd", 1, 1, "/")
	p.Put(30, 1, "nginx", 700, 100, "/")
	idle := func(when string, inode uint64, want bool) {
		t.Helper()
		n.named(inode, nil)
		if got := agenttest.Workload(n.table, inode).GetIdle(); got != want {
			t.Errorf("%s: got idle %v, want %v", when, got, want)
		}
	}
	longer := func(inode uint64) { // than the namespace may be without a process
		if t := n.tenants[inode]; !t.emptySince.IsZero() {
			t.emptySince = t.emptySince.Add(-idleAfter)
		}
	}
	idle("processes may be hidden", 200, false)
	longer(200)
	idle("processes may be hidden for longer", 200, false)
	n.SeesAll = true
	idle("at once", 200, false)
	if n.anyEmpty() {
		t.Error("at once: all processes are read again")
	}
	longer(200)
	if !n.anyEmpty() {
		t.Error("after a while: processes are not read again")
	}
	idle("after a while", 200, true)
	idle("with a process", 100, false)
	if n.anyEmpty() {
		t.Error("idle: all processes are read again")
	}
	p.Put(40, 1, "sh", 800, 200, "/")
	idle("with a new process", 200, false)
	p.End(40)
	idle("just ended", 200, false)
	longer(200)
	idle("ended, and may come back again", 200, false)
	n.tenants[200].emptySince = n.tenants[200].emptySince.Add(-returnsWithin)
	if !n.anyEmpty() {
		t.Error("after minutes: processes are not read again")
	}
	idle("ended for good", 200, true)
}

func TestRouterNeedsNoProcess(t *testing.T) {
	file := func(name string) facts {
		return facts{file: &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_UNKNOWN, Name: name, Source: "netns"}}
	}
	second := agenttest.PodVeth(11)
	second.Index, second.Name, second.Lower, second.LowerNSID = 3, "qg-1", 7, rtnetlink.Elsewhere
	down := second
	down.Flags = 0
	local := second
	local.Kind = "dummy"
	port := second
	port.Master = 2
	for name, test := range map[string]struct {
		named  facts
		second rtnetlink.Link
		addr   string
		want   bool
	}{
		"router":                                {file("qrouter"), second, "192.0.2.1/24", true},
		"router with a link-local transfer net": {file("fip"), second, "169.254.1.0/31", true},
		"router without a name":                 {facts{}, second, "fd00::1/64", true},
		"firewall on a bridge":                  {file("firewall"), port, "", true},
		"one network":                           {file("blue"), second, "fe80::1/64", false},
		"another interface is down":             {file("blue"), down, "192.0.2.1/24", false},
		"another address on a dummy device":     {file("blue"), local, "192.0.2.1/24", false},
		"pod with two networks, of which a runtime named the file": {file("cni-7a0f2c11-5e1b-4c3e-9d2a-0123456789ab"), second, "192.0.2.1/24", false},
		"pod with two networks, of which there is a CNI result": {
			facts{result: &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_POD, Name: "old", Source: "cni-result"}}, second, "192.0.2.1/24", false,
		},
	} {
		n, _ := newTestNames(t, 100)
		n.SeesAll = true
		n.fake.Put(1, test.second)
		n.kernel.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 1, Address: agenttest.Address(2, "10.0.0.1/24")})
		n.kernel.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 1, Link: test.second})
		if test.addr != "" {
			n.kernel.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 1, Address: agenttest.Address(3, test.addr)})
		}
		by := map[uint64]facts{100: test.named}
		n.named(100, by)
		if agenttest.Workload(n.table, 100).GetMayForward() {
			t.Errorf("%s, before it is known that it has no process: got a router", name)
		}
		n.tenants[100].emptySince = n.tenants[100].emptySince.Add(-idleAfter)
		n.named(100, by)
		if w := agenttest.Workload(n.table, 100); !w.GetIdle() || w.GetMayForward() != test.want {
			t.Errorf("%s: got %v, want idle, and may forward %t", name, w, test.want)
		}
	}
}

func TestProgramThatMovesAddressesInANamespace(t *testing.T) {
	n, p := newTestNames(t, 100)
	program := func(want string) {
		t.Helper()
		n.named(100, nil)
		if w := agenttest.Workload(n.table, 100); fmt.Sprint(w.GetVipProgram(), " ", w.GetVipProgramEnded()) != want {
			t.Errorf("program: got %s %v, want %s", w.GetVipProgram(), w.GetVipProgramEnded(), want)
		}
	}
	p.Put(30, 1, "radvd", 700, 100, "/")
	program(" false")
	p.Put(40, 1, "keepalived", 900, 100, "/")
	program("keepalived false")
	p.End(40)
	program("keepalived true")
	if name, _ := n.VIPs.State(); name != "" {
		t.Errorf("program of the node: got %s, want none", name)
	}
}

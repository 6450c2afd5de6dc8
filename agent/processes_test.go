package agent

import (
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestStatusOfAProcessIsReadWhateverItsName(t *testing.T) {
	const rest = " S 7 1 1 0 -1 4194304 84 0 0 0 0 0 0 0 20 0 1 0 12345 2314240 128 18446744073709551615\n"
	for _, name := range []string{"nginx", "a b", "a) S 99 (b", "(sd-pam)", ")", "", "a\nb", "runc:[2:INIT]"} {
		got, err := parseStat("42 (" + name + ")" + rest)
		if want := (process{pid: 42, parent: 7, name: name, start: 12345}); err != nil || got != want {
			t.Errorf("status of %q: got %+v and error %v, want %+v", name, got, err, want)
		}
	}
	if got, err := parseStat("42 (nginx)" + strings.Replace(rest, "S", "Z", 1)); err != nil || !got.ended {
		t.Errorf("one that nobody has waited for: got %+v and error %v, want that it has ended", got, err)
	}
	for _, junk := range []string{"", "42", "42 (", "42 )(" + rest, "42 (a) S 7", "(a)" + rest, "x (a)" + rest, "42 (a) S x" + rest} {
		if got, err := parseStat(junk); err == nil {
			t.Errorf("status %q: got %+v, want an error", junk, got)
		}
	}
	if got, err := parseStat("42 (\xff)" + rest); err != nil || got.name != "\uFFFD" {
		t.Errorf("name that is not UTF-8: got %q and error %v", got.name, err)
	}
}

// procTree is a /proc that a test makes.
type procTree struct {
	t   *testing.T
	dir string
}

func (p procTree) put(pid, parent int, name string, start int, inode uint64, cgroup string) {
	p.t.Helper()
	dir := filepath.Join(p.dir, strconv.Itoa(pid))
	p.end(pid)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "ns"), 0o755),
		os.Symlink(fmt.Sprintf("net:[%d]", inode), filepath.Join(dir, "ns/net")),
		os.WriteFile(filepath.Join(dir, "stat"), fmt.Appendf(nil, "%d (%s) S %d%s %d 0", pid, name, parent, strings.Repeat(" 0", 17), start), 0o644),
		os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::"+cgroup+"\n"), 0o644),
	} {
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p procTree) end(pid int) {
	p.t.Helper()
	if err := os.RemoveAll(filepath.Join(p.dir, strconv.Itoa(pid))); err != nil {
		p.t.Fatal(err)
	}
}

// newTestNames has a node with namespaces of these inodes; the first one has nsid 1.
func newTestNames(t *testing.T, inodes ...uint64) (*names, procTree) {
	t.Helper()
	f := fakeKernel{}
	for i := range inodes {
		nsid := int32(i + 1)
		f.put(noNSID, hostVeth(10+nsid, nsid))
		f.put(nsid, podVeth(10+nsid))
	}
	k := newTestKernel(t, f)
	p := procTree{t, t.TempDir()}
	n := newNames(slog.New(slog.DiscardHandler), k, nil, filepath.Join(p.dir, "results"), p.dir, newCRI(slog.New(slog.DiscardHandler), CRIOff, p.dir))
	for i, inode := range inodes {
		k.adopt(int32(i+1), inode, false)
	}
	return n, p
}

// named has a look with names that files or CNI results gave, and says what comes of one.
func (n *names) named(inode uint64, by map[uint64]facts) string {
	said := maps.Clone(by)
	if said == nil {
		said = map[uint64]facts{}
	}
	n.processes()
	names, _ := n.moveTenants(said)
	n.kernel.setNames(names, nil, nil)
	w := n.kernel.names[inode]
	return fmt.Sprintf("%s %s/%s uid=%s id=%s process=%s by %s", w.GetKind(), w.GetNamespace(), w.GetName(), w.GetUid(),
		w.GetContainerId()[:min(4, len(w.GetContainerId()))], w.GetProcess(), w.GetSource())
}

// saidBy has the source of a name say it.
func saidBy(w *ipwitnessv1.Workload) facts {
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
	const pod = "/kubepods/burstable/pod" + podUID + "/"
	n, p := newTestNames(t, 100, 200)
	p.put(30, 2, "nginx", 700, 100, pod+outerID)
	p.put(40, 2, "pause", 600, 100, pod+innerID) // PIDs went round
	p.put(41, 1, "sshd", 5, 1, "/system.slice/sshd.service")
	p.put(50, 1, "my (odd) name", 800, 200, "/user.slice/session-3.scope")
	wantNamed(t, n.named(100, nil), "POD / uid="+podUID+" id=ee4b process=pause (40) by cgroup")
	wantNamed(t, n.named(200, nil), "UNKNOWN / uid= id= process=my (odd) name (50) by process")

	// The oldest ends, and the next one in age takes its place; once there is
	// none, the last one known stays, as one that has ended.
	p.end(40)
	wantNamed(t, n.named(100, nil), "POD / uid="+podUID+" id=8195 process=nginx (30) by cgroup")
	p.end(30)
	wantNamed(t, n.named(100, nil), "POD / uid="+podUID+" id=8195 process=nginx (30, ended) by cgroup")

	// The PID is used again elsewhere; exec and a cgroup that is given late are followed.
	p.put(30, 1, "other", 900, 1, "/")
	wantNamed(t, n.named(100, nil), "POD / uid="+podUID+" id=8195 process=nginx (30, ended) by cgroup")
	p.put(50, 1, "sleep", 800, 200, "/docker/"+innerID)
	wantNamed(t, n.named(200, nil), "CONTAINER / uid= id=ee4b process=sleep (50) by cgroup")
	// One that goes elsewhere has not ended.
	p.put(50, 1, "sleep", 800, 1, "/docker/"+innerID)
	wantNamed(t, n.named(200, nil), "CONTAINER / uid= id=ee4b process=sleep (50) by cgroup")
	// And it is used again in the same place.
	p.put(50, 1, "late", 950, 200, "/lxc/web")
	wantNamed(t, n.named(200, nil), "CONTAINER /web uid= id= process=late (50) by cgroup")
}

func TestProcessThatWasThereForAMomentNamesNobodyOnceItHasEnded(t *testing.T) {
	const pod = "/kubepods/burstable/pod" + podUID + "/"
	n, p := newTestNames(t, 100)
	var now uint64 = 100_000
	n.ticks = func() uint64 { return now }
	moment := func(pid int, name string) {
		p.put(pid, 2, name, int(now)-ticksPerSecond, 100, pod+innerID)
	}
	moment(30, "sh")
	wantNamed(t, n.named(100, nil), "POD / uid="+podUID+" id=ee4b process=sh (30) by cgroup")
	p.end(30)
	wantNamed(t, n.named(100, nil), "UNKNOWN / uid= id= process= by ")

	// A process that lives on counts as settled when it is seen again.
	moment(31, "sleep")
	n.named(100, nil)
	now += settledAfter
	n.named(100, nil)
	p.end(31)
	wantNamed(t, n.named(100, nil), "POD / uid="+podUID+" id=ee4b process=sleep (31, ended) by cgroup")

	// A process that is there briefly does not replace the ended one; a process that stays
	// does.
	p.put(32, 2, "ip", int(now)-1, 100, "/docker/"+outerID)
	for range 2 {
		wantNamed(t, n.named(100, nil), "POD / uid="+podUID+" id=ee4b process=sleep (31, ended) by cgroup")
	}
	p.end(32)
	wantNamed(t, n.named(100, nil), "POD / uid="+podUID+" id=ee4b process=sleep (31, ended) by cgroup")
	p.put(33, 2, "nginx", int(now)-1, 100, "/docker/"+outerID)
	now += settledAfter
	wantNamed(t, n.named(100, nil), "CONTAINER / uid= id=8195 process=nginx (33) by cgroup")

	// The previous process may end between two looks, when another process is already there.
	p.end(33)
	moment(34, "sh")
	wantNamed(t, n.named(100, nil), "CONTAINER / uid= id=8195 process=nginx (33, ended) by cgroup")
}

func TestBetterNamesAreFilledInAndStay(t *testing.T) {
	pod := "/kubepods/pod" + podUID + "/" + innerID
	file := func(source, name string) *ipwitnessv1.Workload {
		kind := ipwitnessv1.Workload_CONTAINER
		if source == "netns" && name == "blue" {
			kind = ipwitnessv1.Workload_UNKNOWN
		}
		return &ipwitnessv1.Workload{Kind: kind, Name: name, Source: source}
	}
	result := &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_POD, Namespace: "shop", Name: "web-0", ContainerId: outerID, Source: "cni-result"}
	for name, c := range map[string]struct {
		cgroup string
		named  *ipwitnessv1.Workload
		want   string
	}{
		"CNI result":                          {pod, result, "POD shop/web-0 uid=" + podUID + " id=8195 process=pause (40) by cni-result"},
		"named by a person":                   {"/docker/" + innerID, file("netns", "blue"), "CONTAINER /blue uid= id=ee4b process=pause (40) by netns"},
		"named by a person, outside":          {"/", file("netns", "blue"), "UNKNOWN /blue uid= id= process=pause (40) by netns"},
		"named by docker":                     {"/docker/" + innerID, file("docker-netns", "3f2a91c04b5d"), "CONTAINER / uid= id=ee4b process=pause (40) by cgroup"},
		"named by docker, outside":            {"/", file("docker-netns", "3f2a91c04b5d"), "CONTAINER /3f2a91c04b5d uid= id= process=pause (40) by docker-netns"},
		"docker's own":                        {"/docker/" + innerID, file("docker-netns", "lb_3f2a91c04"), "CONTAINER /lb_3f2a91c04 uid= id=ee4b process=pause (40) by docker-netns"},
		"named by containerd":                 {pod, file("netns", "cni-"+podUID), "POD / uid=" + podUID + " id=ee4b process=pause (40) by cgroup"},
		"named by CRI-O":                      {pod, file("netns", podUID), "POD / uid=" + podUID + " id=ee4b process=pause (40) by cgroup"},
		"named by podman":                     {"/machine.slice/libpod-" + innerID + ".scope", file("netns", "netns-"+podUID), "CONTAINER / uid= id=ee4b process=pause (40) by cgroup"},
		"named by podman, known to the world": {"/", file("netns", "netns-"+podUID), "CONTAINER /netns-" + podUID + " uid= id= process=pause (40) by netns"},
	} {
		t.Run(name, func(t *testing.T) {
			n, p := newTestNames(t, 100)
			p.put(40, 2, "pause", 600, 100, c.cgroup)
			before := c.named.String()
			wantNamed(t, n.named(100, map[uint64]facts{100: saidBy(c.named)}), c.want)
			wantNamed(t, n.named(100, nil), c.want) // the file is gone, and its namespace is not
			p.end(40)
			gone := strings.Replace(c.want, "pause (40)", "pause (40, ended)", 1)
			wantNamed(t, n.named(100, map[uint64]facts{100: saidBy(c.named)}), gone) // the process is gone
			if c.named.String() != before {
				t.Errorf("what others hold as well was changed: got %s, want %s", c.named, before)
			}
		})
	}
}

func TestNamespaceThatAContainerMadeIsNotThatContainers(t *testing.T) {
	n, p := newTestNames(t, 100, 200)
	p.put(20, 2, "neutron-agent", 500, 1, "/docker/"+innerID) // in our own namespace
	p.put(30, 20, "dnsmasq", 600, 100, "/docker/"+innerID)
	wantNamed(t, n.named(100, nil), "UNKNOWN / uid= id= process=dnsmasq (30) by process")
	// Whoever started a container is in another cgroup.
	p.put(40, 2, "containerd-shim", 500, 1, "/docker/"+outerID+"/system.slice/containerd.service")
	p.put(50, 40, "pause", 700, 200, "/docker/"+outerID+"/kubelet/kubepods/pod"+podUID+"/"+innerID)
	wantNamed(t, n.named(200, nil), "POD / uid="+podUID+" id=ee4b process=pause (50) by cgroup")
}

func TestNamespaceWithTheInodeOfADeadOneHasNoneOfItsNames(t *testing.T) {
	n, p := newTestNames(t, 100)
	p.put(40, 2, "pause", 600, 100, "/docker/"+innerID)
	n.named(100, nil)
	p.end(40)
	k := n.kernel
	func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.table.update(func() {
			k.end(k.inodes[100], time.Now())
			k.discover(1, time.Now())
		})
	}()
	k.adopt(1, 100, false)
	wantNamed(t, n.named(100, nil), "UNSPECIFIED / uid= id= process= by ")
}

func TestNamespaceThatEndsDuringALookGivesItsNameToNoOther(t *testing.T) {
	web := sandboxNamed("web-0", process{})
	for _, when := range []string{"before tenants move", "before names are set"} {
		t.Run(when, func(t *testing.T) {
			n, _ := newTestNames(t, 100)
			k := n.kernel
			next := func() { // another namespace gets the inode at once
				func() {
					k.mu.Lock()
					defer k.mu.Unlock()
					k.table.update(func() {
						k.end(k.inodes[100], time.Now())
						k.discover(1, time.Now())
					})
				}()
				k.adopt(1, 100, false)
			}
			published := func() string { return k.table.namespaces.live[k.inodes[100].id].GetWorkload().GetName() }

			k.beginNames()
			said := map[uint64]facts{100: {sandbox: web}}
			if when == "before tenants move" {
				next()
			}
			names, _ := n.moveTenants(said)
			if when == "before names are set" {
				next()
			}
			k.setNames(names, map[uint64]networks{100: {}}, map[uint64]meant{100: {}})
			if got := published(); got != "" || len(k.networks)+len(k.meant) != 0 {
				t.Errorf("the next namespace: got name %q, networks %v, meant %v, want none", got, k.networks, k.meant)
			}
			wantNamed(t, n.named(100, nil), "UNSPECIFIED / uid= id= process= by ")

			// It is named as soon as it is looked for.
			if len(n.changed) != 1 {
				t.Error("end of a namespace: got no look")
			}
			k.beginNames()
			n.named(100, map[uint64]facts{100: {sandbox: sandboxNamed("web-1", process{})}})
			if got := published(); got != "web-1" {
				t.Errorf("the next namespace, said what it is: got %q, want web-1", got)
			}
		})
	}
}

func TestProcessesAreReadOnlyInNamespacesOfOurs(t *testing.T) {
	n, p := newTestNames(t, 100)
	p.put(20, 1, "sshd", 5, 1, "/")           // ours alone
	p.put(30, 1, "stranger", 5, 300, "/")     // of another node on this machine
	p.put(40, 1, "first", 600, 100, "/")      // the oldest
	p.put(41, 40, "second", 700, 100, "/")    // and one more
	p.put(42, 40, "unreadable", 50, 100, "/") // hidden from us
	if err := os.Remove(filepath.Join(p.dir, "42/ns/net")); err != nil {
		t.Fatal(err)
	}
	// Whoever reads one of these waits for ever.
	trap := func(files ...string) {
		t.Helper()
		for _, file := range files {
			path := filepath.Join(p.dir, file)
			for _, err := range []error{os.Remove(path), unix.Mkfifo(path, 0o600)} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	trap("20/stat", "20/cgroup", "30/stat", "30/cgroup", "41/cgroup", "42/stat", "42/cgroup")
	wantNamed(t, n.named(100, nil), "UNKNOWN / uid= id= process=first (40) by process")
	trap("41/stat") // no other one is read once the oldest is known
	wantNamed(t, n.named(100, nil), "UNKNOWN / uid= id= process=first (40) by process")
	n.procDir = filepath.Join(p.dir, "missing")
	wantNamed(t, n.named(100, nil), "UNKNOWN / uid= id= process=first (40) by process")
}

func TestNamespaceWithoutAFileThatBecomesOursIsNamedAtOnce(t *testing.T) {
	n, p := newTestNames(t)
	k := n.kernel
	k.req.(fakeKernel).put(1, linkMsg{index: 1, name: "lo", flags: up | unix.IFF_LOOPBACK})
	k.adopt(1, 100, false)
	p.put(40, 1, "sleep", 600, 100, "/")
	n.look(true)
	if k.anonymous(nil) || len(k.ourInodes()) != 0 {
		t.Errorf("namespaces of ours: got %v, want none", k.ourInodes())
	}
	for len(n.changed) > 0 {
		<-n.changed
	}
	k.handle(&message{typ: unix.RTM_NEWLINK, nsid: noNSID, link: hostVeth(11, 1)})
	k.handle(&message{typ: unix.RTM_NEWLINK, nsid: 1, link: podVeth(11)})
	if len(n.changed) == 0 {
		t.Error("a namespace of ours without a name: got no look")
	}
	if k.anonymous(map[uint64]facts{100: {file: &ipwitnessv1.Workload{Name: "a"}}}) {
		t.Error("a namespace of ours whose file is found in the same look: got that it needs a look at processes")
	}
	n.look(false) // too soon after the last walk: later
	n.walked = time.Time{}
	n.look(false)
	if got := k.names[100].GetProcess(); got != "sleep (40)" {
		t.Errorf("process: got %q, want sleep (40)", got)
	}
	if k.anonymous(nil) {
		t.Error("a namespace of ours that has a name: got that it needs a look at processes")
	}
}

func TestDoctorSaysWhichProcessesCanBeRead(t *testing.T) {
	p := procTree{t, t.TempDir()}
	p.put(1, 0, "init", 1, 10, "/")
	p.put(os.Getpid(), 1, "doctor", 2, 10, "/")
	p.put(1<<22+1, 1, "pause", 3, 20, "/")
	self := filepath.Join(p.dir, "self/ns")
	pidNamespace := func(name string) {
		t.Helper()
		_ = os.Remove(filepath.Join(self, "pid"))
		for _, err := range []error{os.MkdirAll(self, 0o755), os.Symlink(name, filepath.Join(self, "pid"))} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(what, status, detail string) {
		t.Helper()
		if c := readProcesses(p.dir); c.Status != status || !strings.Contains(c.Detail, detail) || (c.Status == StatusOK) != (c.Fix == "") {
			t.Errorf("%s: got %+v, want %s and %q", what, c, status, detail)
		}
	}
	pidNamespace(initialPIDNamespace)
	check("host", StatusOK, "3 processes, 1 of them in other network namespaces")
	pidNamespace("pid:[7]")
	check("node in a container", StatusOK, "3 processes, 1 of them in other network namespaces")
	p.end(1<<22 + 1)
	check("container without hostPID", StatusDegraded, "only processes of this PID namespace are seen (2)")
	pidNamespace(initialPIDNamespace)
	check("host without namespaces", StatusOK, "2 processes, 0 of them in other")
	p.end(1)
	check("hidepid", StatusDegraded, "hidepid")
	p.dir = filepath.Join(p.dir, "missing")
	check("no /proc", StatusDegraded, fs.ErrNotExist.Error()[:4])
}

func TestOldestOfManyProcessesIsLookedForWithinBounds(t *testing.T) {
	n, p := newTestNames(t, 100)
	var pids []int
	for i := range 2 * mostRead {
		p.put(1000+i, 1, "worker", 5000-i, 100, "/")
		pids = append(pids, 1000+i)
	}
	slices.Reverse(pids)
	got, same := n.oldest(process{}, pids)
	if want := 1000 + mostRead - 1; got.pid != want || same {
		t.Errorf("oldest of the first %d: got %d and %v, want %d", mostRead, got.pid, same, want)
	}
}

package allocations

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/alone"
)

func TestAllocationsOfHostLocalAreReported(t *testing.T) {
	l := startIPAM(t)
	before := time.Now().Add(-time.Second)
	l.give("pods", "10.1.0.2", "c2")
	l.give("pods", "fd00::2", "c2")
	l.must(os.WriteFile(filepath.Join(l.path("pods"), "10.1.0.9"), []byte("old"), 0o600)) // like host-local before it recorded the interface
	p := l.awaitGiven("pods", 3, known)
	if p.GetNetwork() != "pods" || p.GetProblem() != "" || p.GetLostAt() != nil || len(p.GetRanges()) != 0 {
		t.Errorf("pool without configuration: got %v", p)
	}
	a := l.allocations[l.path("pods")]
	l.await("whole files", func() bool {
		return a["10.1.0.2"].GetContainerId() == "c2" && a["fd00::2"].GetContainerId() == "c2" && a["10.1.0.9"].GetContainerId() == "old"
	})
	if a["10.1.0.2"].GetInterface() != "eth0" || a["10.1.0.9"].GetInterface() != "" || a["10.1.0.2"].GetAllocatedAt().AsTime().Before(before) {
		t.Errorf("allocations: got %v", a)
	}
	l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.2")), os.WriteFile(filepath.Join(l.path("pods"), "10.1.0.9"), []byte("new\neth1"), 0o600))
	l.await("the changed allocations", func() bool { return len(a) == 2 && a["10.1.0.9"].GetContainerId() == "new" })
	l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.9")), os.Remove(filepath.Join(l.path("pods"), "fd00::2")))
	if p := l.awaitGiven("pods", 0, known); p.GetLostAt() != nil || p.GetLost() != 0 {
		t.Errorf("pool after the last address was released: got %v, want no loss", p)
	}
}

func TestLossOfAllAllocationsIsReported(t *testing.T) {
	const many = 20 // few enough to be deleted at once on a busy machine
	away := func(l *ipamLab) { l.must(os.Rename(l.path("pods"), filepath.Join(l.root, "away"))) }
	for name, c := range map[string]struct {
		lose  func(l *ipamLab)
		state ipwitnessv1.Pool_State
	}{
		"removed":                      {func(l *ipamLab) { l.must(os.RemoveAll(l.path("pods"))) }, missing},
		"removed with its parents":     {func(l *ipamLab) { l.must(os.RemoveAll(filepath.Join(l.root, "var"))) }, missing},
		"renamed":                      {away, missing},
		"renamed with its parent":      {func(l *ipamLab) { l.must(os.Rename(l.dir, l.dir+".bak")) }, missing},
		"renamed with its grandparent": {func(l *ipamLab) { l.must(os.Rename(filepath.Dir(l.dir), filepath.Dir(l.dir)+".bak")) }, missing},
		"emptied": {func(l *ipamLab) {
			entries, err := os.ReadDir(l.path("pods"))
			l.must(err)
			for _, e := range entries {
				l.must(os.Remove(filepath.Join(l.path("pods"), e.Name())))
			}
		}, known},
		"made anew": {func(l *ipamLab) { l.must(os.RemoveAll(l.path("pods")), os.Mkdir(l.path("pods"), 0o755)) }, known},
		"replaced":  {func(l *ipamLab) { away(l); l.must(os.Mkdir(l.path("pods"), 0o755)) }, known},
	} {
		t.Run(name, func(t *testing.T) {
			l := startIPAM(t)
			before := time.Now() // the read that finds the loss may have begun before it
			l.giveMany("pods", many)
			l.awaitGiven("pods", many, known)
			c.lose(l)
			l.await("the loss", func() bool { return l.pools[l.path("pods")].GetLost() != 0 })
			p := l.awaitGiven("pods", 0, c.state)
			if p.GetLost() != many || p.GetLostAt().AsTime().Before(before) || (p.GetProblem() == "") != (c.state == known) {
				t.Errorf("pool: got %v, want %d lost", p, many)
			}
			// The next pod takes an address that other pods still use: the loss remains.
			l.give("pods", "10.1.0.1", "next")
			if p := l.awaitGiven("pods", 1, known); p.GetLost() != many {
				t.Errorf("pool after the next pod: got %v, want %d lost", p, many)
			}
			// Once all lost files are restored, there is no loss.
			l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.1")))
			l.giveMany("pods", many)
			l.awaitGiven("pods", many, known)
			l.await("no loss, with the content of the last file", func() bool {
				p := l.pools[l.path("pods")]
				return p.GetLost() == 0 && p.GetLostAt() == nil
			})
		})
	}
}

func TestLostEventsCauseAFullRead(t *testing.T) {
	l := startIPAM(t)
	l.giveMany("pods", 5)
	l.awaitGiven("pods", 5, known)
	deaf := func(change func()) {
		t.Helper()
		l.must(l.ipam.watcher.Remove(l.path("pods")))
		change()
		l.ipam.watcher.Errors <- fsnotify.ErrEventOverflow
	}
	deaf(func() {
		l.give("pods", "10.1.9.9", "new")
		l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.1")))
	})
	l.await("both changes", func() bool {
		a := l.allocations[l.path("pods")]
		return len(a) == 5 && a["10.1.9.9"] != nil && a["10.1.0.1"] == nil
	})
	deaf(func() {
		entries, err := os.ReadDir(l.path("pods"))
		l.must(err)
		for _, e := range entries {
			l.must(os.Remove(filepath.Join(l.path("pods"), e.Name())))
		}
	})
	if p := l.awaitGiven("pods", 0, known); p.GetLost() < 5 { // possibly including the address that was released just before
		t.Errorf("directory that was emptied unnoticed: got %v, want 5 lost", p)
	}
	l.give("pods", "10.1.0.1", "heard") // the directory is watched again
	l.awaitGiven("pods", 1, known)
}

// lookAgain looks at all sources, also at those that rest because this machine was slow.
func (l *ipamLab) lookAgain() {
	l.ipam.all = true
	clear(l.ipam.rests)
	l.ipam.look(time.Now())
}

func TestDirectoryThatIsMadeBetweenWatchingAndReadingIsReadAgain(t *testing.T) {
	l := newIPAMLab(t)
	w, err := fsnotify.NewBufferedWatcher(waitingEvents)
	l.must(err)
	defer func() { _ = w.Close() }()
	l.ipam.watcher = w
	l.configure("10-pods.conf", fmt.Sprintf(`{"name":"pods","type":"ptp","ipam":{"type":"host-local","dataDir":%q,"subnet":"10.1.0.0/24"}}`, l.dir))
	for _, made := range []string{"first", "anew"} { // including all parent directories
		l.lookAgain()
		l.must(os.RemoveAll(filepath.Join(l.root, "var")), os.MkdirAll(l.path("pods"), 0o755))
		l.ipam.sources[0].Read(ipam.FileRead{Now: time.Now(), All: true, Watches: l.ipam.watches})
		l.give("pods", "10.1.0.2", "unheard")
		l.lookAgain() // the creation of a parent directory has an event
		l.take()
		if a := l.allocations[l.path("pods")]; len(a) != 1 {
			t.Errorf("made %s: got %v, want one", made, a)
		}
	}
}

// unprivileged runs fn on a thread without root's rights to files.
func unprivileged(t *testing.T, fn func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		fn()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		const nobody = 65534
		if _, err := unix.SetfsuidRetUid(nobody); err != nil {
			t.Error("be nobody: ", err)
			return
		}
		fn()
	}()
	<-done
}

func TestMissingReadPermissionIsAProblem(t *testing.T) {
	umask := unix.Umask(0o022)
	defer unix.Umask(umask)
	l := newIPAMLab(t)
	for dir := l.root; dir != filepath.Dir(os.TempDir()); dir = filepath.Dir(dir) {
		if dir != os.TempDir() {
			l.must(os.Chmod(dir, 0o755))
		}
	}
	l.configure("10-pods.conf", fmt.Sprintf(`{"name":"pods","type":"ptp","ipam":{"type":"host-local","dataDir":%q,"subnet":"10.1.0.0/24"}}`, l.dir))
	l.giveMany("pods", 3)
	l.give("secret", "10.2.0.2", "c")
	l.must(os.Chmod(l.path("secret"), 0))
	w, err := fsnotify.NewBufferedWatcher(waitingEvents)
	l.must(err)
	defer func() { _ = w.Close() }()
	l.ipam.watcher = w
	look := func() (problems string) {
		unprivileged(t, l.lookAgain)
		l.take()
		all := l.ipam.Health().Problems
		return strings.Join(all, "\n")
	}
	problems := look()
	if p := l.pools[l.path("secret")]; p.GetState() != unreadable || !strings.Contains(p.GetProblem(), "permission denied: give the agent's user read access to it") {
		t.Errorf("directory without read permission: got %v", p)
	}
	if os.Geteuid() == 0 { // the files belong to root
		for addr, a := range l.allocations[l.path("pods")] {
			if a.GetContainerId() != "" || a.GetAllocatedAt() == nil {
				t.Errorf("%s, whose file has no read permission: got %v", addr, a)
			}
		}
		if !strings.Contains(problems, "the owners of 3 allocations of host-local, such as that of "+l.path("pods")) {
			t.Errorf("problems: got %q", problems)
		}
	}
	if len(l.allocations[l.path("pods")]) != 3 || !strings.Contains(problems, l.path("secret")+": open ") {
		t.Errorf("allocations: got %v, problems %q", l.allocations, problems)
	}
	l.must(os.Chmod(l.path("secret"), 0o755), os.Chmod(l.dir, 0), os.Chmod(l.conf, 0))
	problems = look()
	for _, want := range []string{"cannot read the allocations of host-local (", "cannot read the CNI configurations ("} {
		if !strings.Contains(problems, want) {
			t.Errorf("problems: got %q, want one with %q", problems, want)
		}
	}
	if p := l.pools[l.path("pods")]; p.GetState() != unreadable || p.GetLostAt() != nil || len(p.GetRanges()) != 1 {
		t.Errorf("directory in one without read permission: got %v", p)
	}
	l.must(os.Chmod(l.dir, 0o755), os.Chmod(l.conf, 0o755))
	look()
	if a, b := l.pools[l.path("pods")], l.pools[l.path("secret")]; a.GetState() != known || b.GetState() != known || a.GetLostAt() != nil || len(l.allocations[l.path("pods")]) != 3 {
		t.Errorf("directories that may be read again: got %v, %v", a, b)
	}
}

func TestWithoutInotifyAllocationsMayBeOld(t *testing.T) {
	l := newIPAMLab(t)
	l.giveMany("pods", 3)
	l.ipam.noWatcher = unix.EMFILE
	l.lookAgain()
	l.take()
	problems := l.ipam.Health().Problems
	if p := l.pools[l.path("pods")]; p.GetState() != ipwitnessv1.Pool_STALE || len(l.allocations[l.path("pods")]) != 3 ||
		len(problems) != 1 || !strings.Contains(problems[0], "fs.inotify.max_user_instances") {
		t.Errorf("pool: got %v, problems %q", p, problems)
	}
	l.give("pods", "10.1.9.9", "c")
	l.lookAgain()
	if l.take(); len(l.allocations[l.path("pods")]) != 4 {
		t.Errorf("next look: got %v, want 4", l.allocations)
	}
}

func TestDirectoryOfANetworkThatIsGoneIsForgotten(t *testing.T) {
	l := startIPAM(t)
	l.give("other", "10.9.0.1", "c")
	l.must(os.MkdirAll(l.path("pods"), 0o755), os.WriteFile(filepath.Join(l.path("pods"), "lock"), nil, 0o600))
	l.awaitGiven("pods", 0, known)
	l.must(os.RemoveAll(l.path("pods")))
	l.await("the end of the pool", func() bool { return l.pools[l.path("pods")] == nil && len(l.pools) == 1 })
}

func TestConfigurationIsFollowed(t *testing.T) {
	ptp := func(subnet string) string {
		return `{"name":"pods","type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"` + subnet + `"}]]}}`
	}
	l := startIPAM(t, func(l *ipamLab) {
		l.configure("10-other.conf", strings.Replace(ptp("10.9.0.0/24"), "pods", "other", 1)) // in defaultDataDir
	})
	other := hostlocal.DefaultDir + "/other"
	if l.take(); l.pools[other].GetState() != missing || l.pools[other].GetConfig() != l.conf+"/10-other.conf" || l.pools[other].GetLostAt() != nil {
		t.Errorf("network without allocations: got %v", l.pools)
	}
	local := func(subnet string) string {
		return strings.Replace(ptp(subnet), `"type":"host-local"`, fmt.Sprintf(`"type":"host-local","dataDir":%q`, l.dir), 1)
	}
	first := func() string {
		r := l.pools[l.path("pods")].GetRanges()
		if len(r) == 0 {
			return ""
		}
		a, _ := netip.AddrFromSlice(r[0].GetFirst())
		return a.String()
	}
	l.give("pods", "10.1.0.2", "c")
	l.configure("20-pods.conf", local("10.1.0.0/24"))
	l.await("the ranges", func() bool { return first() == "10.1.0.2" })
	if p := l.pools[l.path("pods")]; p.GetPlugin() != "ptp" || !p.GetRouted() || p.GetConfig() != l.conf+"/20-pods.conf" || len(p.GetGateways()) != 1 {
		t.Errorf("pool with a configuration: got %v", p)
	}
	l.configure("20-pods.conf", local("10.2.0.0/24"))
	l.await("other ranges", func() bool { return first() == "10.2.0.2" })
	l.configure("15-pods.conflist", local("10.3.0.0/24"))
	l.await("the first file", func() bool { return first() == "10.3.0.2" })
	l.must(os.Remove(filepath.Join(l.conf, "15-pods.conflist")))
	l.await("the second file", func() bool { return first() == "10.2.0.2" })

	// A file that cannot be parsed does not affect what is known.
	l.configure("20-pods.conf", `{"name":`)
	old := time.Now().Add(-time.Hour)
	l.must(os.Chtimes(filepath.Join(l.conf, "20-pods.conf"), old, old))
	l.await("the problem", func() bool {
		problems := l.ipam.Health().Problems
		return len(problems) == 1 && strings.Contains(problems[0], "20-pods.conf") && strings.Contains(problems[0], "parse JSON: ")
	})
	if l.take(); first() != "10.2.0.2" || len(l.pools) != 2 {
		t.Errorf("pools with a broken configuration: got %v", l.pools)
	}
	l.must(os.RemoveAll(filepath.Join(l.root, "etc")))
	l.await("the end of the configurations", func() bool {
		problems := l.ipam.Health().Problems
		return len(problems) == 0 && len(l.pools) == 1 && l.pools[l.path("pods")].GetConfig() == ""
	})
	if p := l.awaitGiven("pods", 1, known); len(p.GetRanges()) != 0 || p.GetRouted() {
		t.Errorf("pool without a configuration: got %v", p)
	}
	l.configure("10-pods.conflist", local("10.4.0.0/24"))
	l.await("the configuration that came back", func() bool { return first() == "10.4.0.2" })
}

func TestRangesOfFlannelAreThoseOfTheNode(t *testing.T) {
	l := startIPAM(t)
	env := filepath.Join(l.root, "run/flannel/subnet.env")
	l.configure("10-flannel.conflist", fmt.Sprintf(
		`{"name":"cbr0","plugins":[{"type":"flannel","subnetFile":%q,"ipam":{"dataDir":%q},"delegate":{"isDefaultGateway":true}}]}`, env, l.dir))
	if p := l.awaitGiven("cbr0", 0, missing); p.GetPlugin() != "bridge" || p.GetDevice() != "cni0" || !p.GetRouted() || len(p.GetRanges()) != 0 {
		t.Errorf("pool before flannel runs: got %v", p)
	}
	ranges := func() (text string) {
		for _, r := range l.pools[l.path("cbr0")].GetRanges() {
			first, _ := netip.AddrFromSlice(r.GetFirst())
			last, _ := netip.AddrFromSlice(r.GetLast())
			text += fmt.Sprintf("%s-%s ", first, last)
		}
		return text
	}
	write := func(env, content string) {
		t.Helper()
		l.must(os.MkdirAll(filepath.Dir(env), 0o755), os.WriteFile(env+".new", []byte(content), 0o644), os.Rename(env+".new", env))
	}
	write(env, "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n")
	l.await("the range of the node", func() bool { return ranges() == "10.244.3.2-10.244.3.254 " })
	write(env, "FLANNEL_SUBNET=10.244.4.1/24\nFLANNEL_IPV6_SUBNET=fd00:4::1/120\n")
	l.await("both ranges", func() bool { return ranges() == "10.244.4.2-10.244.4.254 fd00:4::2-fd00:4::ff " })
	write(env, "FLANNEL_SUBNET=mine\n")
	l.await("a problem", func() bool {
		problems := l.ipam.Health().Problems
		return ranges() == "" && len(problems) == 1 && strings.Contains(problems[0], "subnet.env: FLANNEL_SUBNET is not a subnet")
	})
}

// A process that may open no more files learns nothing about them: what it has read before still counts, nothing is missing
// or unreadable, and all of it ends with the lack.
func TestExhaustedDescriptorsSayNothingAboutFiles(t *testing.T) {
	alone.Run(t, func() {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		allow := func(descriptors uint64) {
			t.Helper()
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: descriptors, Max: limit.Max}); err != nil {
				t.Fatal(err)
			}
		}
		l := newIPAMLab(t)
		l.giveMany("pods", 3)
		look := func() Health { // twice, because a source waits for a file that may be about to be replaced
			for _, later := range []time.Duration{0, 2 * ipam.Settled} {
				l.ipam.all = true
				clear(l.ipam.rests) // on a busy machine, each source takes long
				l.ipam.look(time.Now().Add(later))
				l.take()
			}
			return l.ipam.Health()
		}
		lacks := func(h Health) {
			t.Helper()
			if len(h.Unreadable) != 0 || len(h.Problems) != 1 || !strings.Contains(h.Problems[0], "too many open files): raise the agent's limit of open files") {
				t.Errorf("got %+v without descriptors, want one problem with the limit, and nothing unreadable", h)
			}
		}
		allow(0)
		h := look()
		if lacks(h); len(l.pools) != 0 || !slices.Contains(h.Unread, hostlocal.Name) {
			t.Errorf("got pools %v, unread %q before anything could be read, want no pool, and host-local among the unread", l.pools, h.Unread)
		}
		allow(limit.Cur)
		if h = look(); len(h.Unread)+len(h.Problems) != 0 || l.pools[l.path("pods")].GetState() != known || len(l.allocations[l.path("pods")]) != 3 {
			t.Errorf("got %+v, pools %v, allocations %v, want everything read", h, l.pools, l.allocations)
		}
		l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.1")))
		allow(0)
		for range 2 {
			if lacks(look()); l.pools[l.path("pods")].GetState() != known || len(l.allocations[l.path("pods")]) != 3 {
				t.Errorf("got pools %v, allocations %v without descriptors, want the earlier ones", l.pools, l.allocations)
			}
		}
		if !l.ipam.soon {
			t.Error("nothing is read again soon")
		}
		allow(limit.Cur)
		if h = look(); len(h.Problems) != 0 || l.pools[l.path("pods")].GetState() != known || len(l.allocations[l.path("pods")]) != 2 {
			t.Errorf("got %+v, pools %v, allocations %v, want no problem and what there is now", h, l.pools, l.allocations)
		}
	})
}

// Inotify may have no instance left when the reader starts. The problem ends when there is one.
func TestInotifyIsOpenedLater(t *testing.T) {
	l := newIPAMLab(t)
	l.giveMany("pods", 3)
	l.ipam.noWatcher, l.ipam.soon = unix.EMFILE, true // everything is read again after a second
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { l.ipam.follow(ctx, nil, nil); close(over) }()
	t.Cleanup(func() { cancel(); <-over })
	for _, problems := range []int{1, 0} {
		l.await(fmt.Sprint(problems, " problems"), func() bool { return len(l.ipam.Health().Problems) == problems })
	}
	l.awaitGiven("pods", 3, known)
}

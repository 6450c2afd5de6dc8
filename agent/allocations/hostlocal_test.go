package allocations

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/form"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/agent/wake"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ipamLab is a node with its own directories for IPAM, the reader of these directories, and
// the state that the reader reports to an aggregator.
type ipamLab struct {
	t    *testing.T
	root string
	conf string // the directory of CNI configurations
	dir  string // the parent of host-local's directories
	ipam *Reader

	reader      *table.Reader
	pools       map[string]*ipwitnessv1.PoolRecord
	allocations map[string]map[string]*ipwitnessv1.AllocationRecord // by pool and address
	snapshots   int
	status      chan struct{} // holds one token while the status may have changed
}

// patience is the maximum time to wait for a condition.
const patience = 2 * time.Minute

// newIPAMLab returns a lab whose reader does not run yet.
func newIPAMLab(t *testing.T) *ipamLab {
	t.Helper()
	root := t.TempDir()
	l := &ipamLab{
		t: t, root: root, status: make(chan struct{}, 1), conf: filepath.Join(root, "etc/cni/net.d"), dir: filepath.Join(root, "var/lib/cni/networks"),
		pools: map[string]*ipwitnessv1.PoolRecord{}, allocations: map[string]map[string]*ipwitnessv1.AllocationRecord{},
	}
	tab := table.New()
	l.ipam = New(slog.New(slog.DiscardHandler), tab, Config{
		CNIConfig: []string{l.conf}, Dirs: []string{l.dir}, CalicoNodename: filepath.Join(root, "var/lib/calico/nodename"),
	}, false)
	l.reader = tab.Attach()
	t.Cleanup(l.reader.Detach)
	l.ipam.StatusChanged = func() { wake.Poke(l.status) }
	return l
}

// startIPAM returns a lab whose reader runs until the test ends.
func startIPAM(t *testing.T, prepare ...func(l *ipamLab)) *ipamLab {
	t.Helper()
	l := newIPAMLab(t)
	for _, p := range prepare {
		p(l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.ipam.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("reader of IPAM: got %v after cancel, want nil", err)
		}
	})
	<-l.ipam.ready
	return l
}

// take applies the reported changes.
func (l *ipamLab) take() {
	for m := l.reader.Take(time.Now()); m != nil; m = l.reader.Take(time.Now()) {
		if m.GetSnapshotBegin() {
			clear(l.pools)
			clear(l.allocations)
			l.snapshots++
		}
		for _, p := range m.GetPools() {
			if p.GetIpam() != "host-local" {
				l.t.Errorf("pool %q: got IPAM %q", p.GetName(), p.GetIpam())
			}
			if p.GetGone() {
				delete(l.pools, p.GetName())
				delete(l.allocations, p.GetName())
				continue
			}
			l.pools[p.GetName()] = p
			if l.allocations[p.GetName()] == nil {
				l.allocations[p.GetName()] = map[string]*ipwitnessv1.AllocationRecord{}
			}
		}
		for _, a := range m.GetAllocations() {
			addr, _ := netip.AddrFromSlice(a.GetAddress())
			in := l.allocations[a.GetPool()]
			switch {
			case in == nil:
				l.t.Errorf("allocation %s was told without its pool %q", addr, a.GetPool())
			case a.GetGone():
				delete(in, addr.String())
			default:
				in[addr.String()] = a
			}
		}
	}
}

// await waits until a condition holds for the reported state.
func (l *ipamLab) await(what string, cond func() bool) {
	l.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for l.take(); !cond(); l.take() {
		select {
		case <-l.reader.Wake():
		case <-l.status:
		case <-timeout.C:
			problems, _ := l.ipam.Health()
			l.t.Fatalf("waited in vain for %s: pools %v, allocations %v, problems %q", what, l.pools, l.allocations, problems)
		}
	}
}

// path returns the path of a network's directory.
func (l *ipamLab) path(network string) string { return filepath.Join(l.dir, network) }

// must fails the test on an error.
func (l *ipamLab) must(errs ...error) {
	l.t.Helper()
	for _, err := range errs {
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// configure writes a configuration.
func (l *ipamLab) configure(file, conf string) {
	l.t.Helper()
	l.must(os.MkdirAll(l.conf, 0o755), os.WriteFile(filepath.Join(l.conf, file), []byte(conf), 0o644))
}

// give allocates an address in the same way as host-local.
func (l *ipamLab) give(network, addr, container string) {
	l.t.Helper()
	l.must(giveTo(l.path(network), addr, container))
}

func giveTo(dir, addr, container string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{"lock": "", addr: container + "\r\neth0", "last_reserved_ip.0": addr} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// giveMany allocates n addresses, starting with 10.1.0.1.
func (l *ipamLab) giveMany(network string, n int) {
	l.t.Helper()
	for i := range n {
		l.give(network, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), fmt.Sprint("c", i))
	}
}

// awaitGiven waits until a pool has n allocations and the given state.
func (l *ipamLab) awaitGiven(network string, n int, state ipwitnessv1.Pool_State) *ipwitnessv1.PoolRecord {
	l.t.Helper()
	path := l.path(network)
	l.await(fmt.Sprintf("%s to be %s with %d allocations", network, state, n), func() bool {
		return l.pools[path].GetState() == state && len(l.allocations[path]) == n
	})
	return l.pools[path]
}

const (
	known      = ipwitnessv1.Pool_KNOWN
	missing    = ipwitnessv1.Pool_MISSING
	unreadable = ipwitnessv1.Pool_UNREADABLE
)

func TestAllocationsOfHostLocalAreTold(t *testing.T) {
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
	l.await("changes", func() bool { return len(a) == 2 && a["10.1.0.9"].GetContainerId() == "new" })
	l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.9")), os.Remove(filepath.Join(l.path("pods"), "fd00::2")))
	if p := l.awaitGiven("pods", 0, known); p.GetLostAt() != nil || p.GetLost() != 0 {
		t.Errorf("pool after the last pod has given back its address: got %v, want no loss", p)
	}
}

func TestLossOfAllAllocationsIsTold(t *testing.T) {
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
			l.giveMany("pods", 250)
			l.awaitGiven("pods", 250, known)
			before := time.Now()
			c.lose(l)
			l.await("the loss", func() bool { return l.pools[l.path("pods")].GetLost() != 0 })
			p := l.awaitGiven("pods", 0, c.state)
			if p.GetLost() != 250 || p.GetLostAt().AsTime().Before(before) || (p.GetProblem() == "") != (c.state == known) {
				t.Errorf("pool: got %v, want 250 lost", p)
			}
			// The next pod takes an address that other pods still use: the loss remains.
			l.give("pods", "10.1.0.1", "next")
			if p := l.awaitGiven("pods", 1, known); p.GetLost() != 250 {
				t.Errorf("pool after the next pod: got %v, want 250 lost", p)
			}
			// Once all lost files are restored, there is no loss.
			l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.1")))
			l.giveMany("pods", 250)
			l.awaitGiven("pods", 250, known)
			l.await("no loss, with the content of the last file", func() bool {
				p := l.pools[l.path("pods")]
				return p.GetLost() == 0 && p.GetLostAt() == nil
			})
		})
	}
}

func TestAddressesThatWereGivenBackAreNoLoss(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	pool := func(n int) *hostLocal {
		path := filepath.Join(dir, "pods")
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := giveTo(path, fmt.Sprint("10.1.0.", i+1), fmt.Sprint("c", i)); err != nil {
				t.Fatal(err)
			}
		}
		h := newHostLocal(path, false)
		h.read(maxGivenAll, now)
		h.judgeLoss(now)
		now = now.Add(time.Millisecond)
		if len(h.given) != n || h.state != known {
			t.Fatalf("directory of %d addresses: got %d, %s", n, len(h.given), h.state)
		}
		return h
	}
	giveBack := func(h *hostLocal, addr string) {
		if err := os.Remove(filepath.Join(h.path, addr)); err != nil {
			t.Fatal(err)
		}
		h.event(addr, true)
		h.readTouched(maxGivenAll, now)
		h.judgeLoss(now)
		now = now.Add(time.Millisecond)
	}
	wantLost := func(h *hostLocal, n int) {
		t.Helper()
		if h.lost != n || h.lostAt.IsZero() != (n == 0) || len(h.given) != 0 {
			t.Errorf("got %d lost, %d left, want %d lost and none left", h.lost, len(h.given), n)
		}
	}
	end := func(h *hostLocal) {
		if err := os.RemoveAll(h.path); err != nil {
			t.Fatal(err)
		}
		h.read(maxGivenAll, now)
		h.judgeLoss(now)
	}

	h := pool(3)
	for i := range 3 { // all pods of a drained node end at once
		giveBack(h, fmt.Sprint("10.1.0.", i+1))
	}
	wantLost(h, 0)
	now = now.Add(time.Minute)
	end(h) // then the node is reset
	wantLost(h, 0)
	if h.state != missing {
		t.Errorf("directory that was removed: got %s", h.state)
	}

	h = pool(3)
	giveBack(h, "10.1.0.1")
	now = now.Add(time.Minute)
	end(h)
	wantLost(h, 2)

	// The lock is removed first, in the order of the directory, and one address is allocated
	// in between.
	h = pool(3)
	now = now.Add(time.Minute)
	h.event("lock", true)
	giveBack(h, "10.1.0.1")
	giveBack(h, "10.1.0.2")
	if err := giveTo(h.path, "10.1.0.9", "new"); err != nil {
		t.Fatal(err)
	}
	h.event("10.1.0.9", false)
	giveBack(h, "10.1.0.3")
	if h.lost != 3 || len(h.given) != 1 {
		t.Errorf("removal with a pod that starts meanwhile: got %d lost, %d left, want 3 and 1", h.lost, len(h.given))
	}

	// Everything is lost twice. An address that was released in between is not lost.
	h = pool(3)
	now = now.Add(time.Minute)
	end(h)
	wantLost(h, 3)
	for range 2 {
		if err := giveTo(h.path, "10.1.0.7", "new"); err != nil {
			t.Fatal(err)
		}
		h.read(maxGivenAll, now)
		h.judgeLoss(now)
		now = now.Add(time.Millisecond)
		end(h)
		wantLost(h, 1)
	}
	for range 2 { // but an address that comes and goes after that is not lost
		if err := giveTo(h.path, "10.1.0.7", "newer"); err != nil {
			t.Fatal(err)
		}
		h.read(maxGivenAll, now)
		h.judgeLoss(now)
		now = now.Add(time.Millisecond)
		was := h.lostAt
		giveBack(h, "10.1.0.7")
		if h.lostAt != was {
			t.Errorf("a pod that came and went after a loss: got another loss of %d", h.lost)
		}
	}

	// The lock is removed, and the pods end a while later.
	h = pool(2)
	now = now.Add(time.Minute)
	h.event("lock", true)
	h.judgeLoss(now)
	now = now.Add(time.Minute)
	giveBack(h, "10.1.0.1")
	giveBack(h, "10.1.0.2")
	wantLost(h, 0)
}

func TestLostEventsAreMadeUpFor(t *testing.T) {
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
	if p := l.awaitGiven("pods", 0, known); p.GetLost() < 5 { // maybe including the one that was released just before
		t.Errorf("directory that was emptied unheard: got %v, want 5 lost", p)
	}
	l.give("pods", "10.1.0.1", "heard") // the directory is watched again
	l.awaitGiven("pods", 1, known)
}

func TestDirectoryThatIsMadeBetweenWatchingAndReadingIsReadAgain(t *testing.T) {
	l := newIPAMLab(t)
	w, err := fsnotify.NewBufferedWatcher(waitingEvents)
	l.must(err)
	defer func() { _ = w.Close() }()
	l.ipam.watcher = w
	l.configure("10-pods.conf", fmt.Sprintf(`{"name":"pods","type":"ptp","ipam":{"type":"host-local","dataDir":%q,"subnet":"10.1.0.0/24"}}`, l.dir))
	for _, made := range []string{"first", "anew"} { // including all parent directories
		l.ipam.all = true
		l.ipam.look(time.Now())
		l.must(os.RemoveAll(filepath.Join(l.root, "var")), os.MkdirAll(l.path("pods"), 0o755))
		l.ipam.hostLocal[l.path("pods")].read(maxGivenAll, time.Now())
		l.give("pods", "10.1.0.2", "unheard")
		l.ipam.all = true // the creation of a parent directory has an event
		l.ipam.look(time.Now())
		l.take()
		if a := l.allocations[l.path("pods")]; len(a) != 1 {
			t.Errorf("made %s: got %v, want one", made, a)
		}
	}
}

func TestFileThatGrowsTooLongWithinOneTickIsNotRead(t *testing.T) {
	h, a, now := newHostLocal(t.TempDir(), false), netip.MustParseAddr("10.1.0.7"), time.Now()
	at := timestamppb.New(now)
	empty := &givenAddr{record: &ipwitnessv1.AllocationRecord{AllocatedAt: at}}
	long := &givenAddr{record: &ipwitnessv1.AllocationRecord{AllocatedAt: at}, unread: true}
	h.put(a, empty, now)
	if h.put(a, long, now); h.unread != 1 {
		t.Errorf("files that cannot be read: got %d, want 1", h.unread)
	}
	if h.remove(a, now); h.unread != 0 {
		t.Errorf("after it is gone: got %d, want none", h.unread)
	}
}

func TestFileThatWasLostBeforeItWasReadMayBeBack(t *testing.T) {
	h, a, now := newHostLocal(t.TempDir(), false), netip.MustParseAddr("10.1.0.7"), time.Now()
	h.put(a, &givenAddr{record: &ipwitnessv1.AllocationRecord{}}, now)
	h.id.inode = 1
	h.vanish(now.Add(time.Millisecond))
	if h.lost != 1 {
		t.Fatalf("lost: got %d, want 1", h.lost)
	}
	h.put(a, &givenAddr{record: &ipwitnessv1.AllocationRecord{ContainerId: "c"}}, now.Add(time.Second))
	if h.lost != 0 || !h.lostAt.IsZero() {
		t.Errorf("lost, when it is back: got %d, want none", h.lost)
	}
}

func TestWhatIsNoFileIsReservedForNobodyKnown(t *testing.T) {
	l := startIPAM(t)
	l.give("pods", "10.1.0.2", "c")
	dir := l.path("pods")
	secret := filepath.Join(l.root, "secret")
	l.must(os.WriteFile(secret, []byte("secret"), 0o600),
		os.Symlink(secret, filepath.Join(dir, "10.1.0.3")),
		unix.Mkfifo(filepath.Join(dir, "10.1.0.4"), 0o600),
		os.Mkdir(filepath.Join(dir, "10.1.0.5"), 0o700),
		os.WriteFile(filepath.Join(dir, "10.1.0.6"), nil, 0o600), // left by a plugin that was killed
		os.WriteFile(filepath.Join(dir, "10.1.0.7"), []byte(strings.Repeat("x", maxGivenFile+1)), 0o600),
		os.WriteFile(filepath.Join(dir, "10.1.0.008"), []byte("no address"), 0o600),
		os.WriteFile(filepath.Join(dir, "::ffff:10.1.0.9"), []byte("not its name"), 0o600),
		os.WriteFile(filepath.Join(dir, "fe80::1%eth0"), []byte("not its name"), 0o600))
	l.awaitGiven("pods", 6, known)
	l.await("the problem", func() bool {
		problems, _ := l.ipam.Health()
		return len(problems) == 1 && strings.Contains(problems[0], "4 addresses in "+dir)
	})
	for addr, a := range l.allocations[dir] {
		if (a.GetContainerId() == "c") != (addr == "10.1.0.2") || a.GetAllocatedAt() == nil {
			t.Errorf("allocation: got %v", a)
		}
	}
	l.must(os.Remove(filepath.Join(dir, "10.1.0.3")), os.Remove(filepath.Join(dir, "10.1.0.4")), os.Remove(filepath.Join(dir, "10.1.0.5")), os.Remove(filepath.Join(dir, "10.1.0.7")))
	l.await("no problem", func() bool { problems, _ := l.ipam.Health(); return len(problems) == 0 })
	l.awaitGiven("pods", 2, known)
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

func TestWhatMayNotBeReadIsAProblem(t *testing.T) {
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
		unprivileged(t, func() { l.ipam.all = true; l.ipam.look(time.Now()) })
		l.take()
		all, _ := l.ipam.Health()
		return strings.Join(all, "\n")
	}
	problems := look()
	if p := l.pools[l.path("secret")]; p.GetState() != unreadable || !strings.Contains(p.GetProblem(), "permission denied: let the agent's user read it") {
		t.Errorf("directory that may not be read: got %v", p)
	}
	if os.Geteuid() == 0 { // the files belong to root
		for addr, a := range l.allocations[l.path("pods")] {
			if a.GetContainerId() != "" || a.GetAllocatedAt() == nil {
				t.Errorf("%s, whose file may not be read: got %v", addr, a)
			}
		}
		if !strings.Contains(problems, "whom host-local has given 3 addresses in "+l.path("pods")) {
			t.Errorf("problems: got %q", problems)
		}
	}
	if len(l.allocations[l.path("pods")]) != 3 || !strings.Contains(problems, l.path("secret")+" is not known") {
		t.Errorf("allocations: got %v, problems %q", l.allocations, problems)
	}
	l.must(os.Chmod(l.path("secret"), 0o755), os.Chmod(l.dir, 0), os.Chmod(l.conf, 0))
	problems = look()
	for _, want := range []string{"what host-local has given is not known (", "CNI's configurations are not known ("} {
		if !strings.Contains(problems, want) {
			t.Errorf("problems: got %q, want one with %q", problems, want)
		}
	}
	if p := l.pools[l.path("pods")]; p.GetState() != unreadable || p.GetLostAt() != nil || len(p.GetRanges()) != 1 {
		t.Errorf("directory in one that may not be read: got %v", p)
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
	l.ipam.all = true
	l.ipam.look(time.Now())
	l.take()
	problems, _ := l.ipam.Health()
	if p := l.pools[l.path("pods")]; p.GetState() != ipwitnessv1.Pool_STALE || len(l.allocations[l.path("pods")]) != 3 ||
		len(problems) != 1 || !strings.Contains(problems[0], "fs.inotify.max_user_instances") {
		t.Errorf("pool: got %v, problems %q", p, problems)
	}
	l.give("pods", "10.1.9.9", "c")
	l.ipam.all = true
	l.ipam.look(time.Now())
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
	l.await("its end", func() bool { return l.pools[l.path("pods")] == nil && len(l.pools) == 1 })
}

func TestDirectoriesHaveBounds(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		if err := giveTo(dir, fmt.Sprint("10.1.0.", i+1), "c"); err != nil {
			t.Fatal(err)
		}
	}
	h := newHostLocal(dir, false)
	h.read(4, time.Now())
	if len(h.given) != 4 || h.state != unreadable || !strings.Contains(h.problem, "more than") {
		t.Errorf("directory with too many addresses: got %d, %s, %q", len(h.given), h.state, h.problem)
	}
	h.read(100, time.Now())
	if len(h.given) != 10 || h.state != known || h.problem != "" {
		t.Errorf("directory that may be larger: got %d, %s, %q", len(h.given), h.state, h.problem)
	}
	for _, name := range []string{"10.1.1.1", "10.1.1.2"} {
		if err := giveTo(dir, name, "c"); err != nil {
			t.Fatal(err)
		}
		h.event(name, false)
	}
	h.readTouched(1, time.Now())
	if len(h.given) != 11 || !h.stale {
		t.Errorf("two more where there is room for one: got %d, to be read anew %v", len(h.given), h.stale)
	}

	l := newIPAMLab(t)
	for i := range maxHostLocal + 5 {
		l.must(os.MkdirAll(l.path(fmt.Sprint("net", i)), 0o755))
	}
	l.ipam.noWatcher = unix.EMFILE
	l.ipam.all = true
	l.ipam.look(time.Now())
	l.take()
	problems, _ := l.ipam.Health()
	if len(l.pools) != maxHostLocal || !strings.Contains(strings.Join(problems, "\n"), "more than the 256 directories") {
		t.Errorf("too many directories: got %d, problems %q", len(l.pools), problems)
	}
}

func TestDirectoriesThatWereLostMakeRoomForOthers(t *testing.T) {
	l := newIPAMLab(t)
	l.ipam.noWatcher = unix.EMFILE
	look := func() {
		l.ipam.all = true
		l.ipam.look(time.Now())
		l.take()
	}
	for i := range maxHostLocal {
		l.give(fmt.Sprint("net", i), "10.1.0.1", "c")
	}
	look()
	l.must(os.RemoveAll(l.dir))
	look()
	if p := l.pools[l.path("net0")]; len(l.pools) != maxHostLocal || p.GetState() != missing || p.GetLost() != 1 {
		t.Fatalf("directories that were removed: got %d, one is %v, want all, and what they lost", len(l.pools), p)
	}
	l.give("other", "10.1.0.1", "c")
	look()
	problems, _ := l.ipam.Health()
	if len(l.allocations[l.path("other")]) != 1 || strings.Contains(strings.Join(problems, "\n"), "more than the 256 directories") {
		t.Errorf("one more: got %v, problems %q, want it read", l.pools[l.path("other")], problems)
	}
	if len(l.pools) != maxHostLocal {
		t.Errorf("one more: got %d directories, want %d still", len(l.pools), maxHostLocal)
	}
}

func TestParseGiven(t *testing.T) {
	for content, want := range map[string][2]string{
		"":                                     {"", ""},
		"\r\n":                                 {"", ""},
		"abc":                                  {"abc", ""},
		"abc\n":                                {"abc", ""},
		"abc\r\neth0":                          {"abc", "eth0"},
		" abc \n eth0 \n":                      {"abc", "eth0"},
		"abc\neth0\nmore":                      {"abc", "eth0"},
		"abc\r\nan-interface-with-a-long-name": {"abc", ""},
		"\xff\xfe":                             {"\uFFFD", ""},
		strings.Repeat("x", form.MaxLength+1):  {"", ""},
		strings.Repeat("x", form.MaxLength) + "\r\neth0": {strings.Repeat("x", form.MaxLength), "eth0"},
	} {
		if id, iface := parseGiven([]byte(content)); id != want[0] || iface != want[1] {
			t.Errorf("content %q: got %q and %q, want %q", content, id, iface, want)
		}
	}
}

func FuzzGiven(f *testing.F) {
	f.Add("10.1.0.2", []byte("abc\r\neth0"))
	f.Add("fd00::1", []byte("abc"))
	f.Add("last_reserved_ip.0", []byte("10.1.0.2"))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		if a, ok := addressOf(name); ok && (a.String() != name || isMark(name) || len(a.AsSlice()) != 4 && len(a.AsSlice()) != 16) {
			t.Errorf("%q was taken for an address", name)
		}
		id, iface := parseGiven(content)
		if !utf8.ValidString(id+iface) || len(id) > form.MaxLength || len(iface) >= unix.IFNAMSIZ || strings.ContainsAny(id, "\n") {
			t.Errorf("content %q: got %q and %q", content, id, iface)
		}
	})
}

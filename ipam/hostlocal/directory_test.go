package hostlocal

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestAllocationsFollowTheFiles(t *testing.T) {
	l := newLab(t)
	l.allocate("pods", "10.1.0.2", "c2")
	l.allocate("pods", "fd00::2", "c2")
	written := l.now.Add(-time.Hour)
	path := filepath.Join(l.path("pods"), "10.1.0.2")
	l.must(os.Chtimes(path, written, written))
	l.look()
	want := ipam.FileAllocation{
		Allocation:  ipam.Allocation{Address: netip.MustParseAddr("10.1.0.2"), ContainerID: "c2", Interface: "eth0", Location: path},
		AllocatedAt: written,
	}
	got := l.allocations[l.path("pods")]
	if a := got["10.1.0.2"]; !a.AllocatedAt.Equal(written) || a.Allocation != want.Allocation || got["fd00::2"].ContainerID != "c2" || len(got) != 2 {
		t.Errorf("allocations: got %+v, want two, one of them %+v", got, want)
	}
	if p := l.pool("pods"); p.State != ipam.Known || p.Problem != "" || p.Config != "" || len(p.Ranges) != 0 || p.Lost != 0 {
		t.Errorf("pool without a configuration: got %+v", p)
	}

	for range 2 { // with an event, but without a change
		if l.event("pods", "10.1.0.2", false); l.changes != 0 {
			t.Errorf("unchanged file: got %d changes", l.changes)
		}
	}
	l.must(os.WriteFile(path, []byte("other\neth1"), 0o600))
	if l.event("pods", "10.1.0.2", false); l.changes != 1 {
		t.Errorf("changed file: got %d changes", l.changes)
	}
	if a := l.allocations[l.path("pods")]["10.1.0.2"]; a.ContainerID != "other" || a.Interface != "eth1" {
		t.Errorf("file that was written again: got %+v", a)
	}
	l.release("pods", "10.1.0.2")
	if got := l.addresses("pods"); !slices.Equal(got, []string{"fd00::2"}) {
		t.Errorf("after a release: got %q", got)
	}
	l.must(os.WriteFile(path, []byte("again\neth0"), 0o600)) // its event is still to come
	l.read(ipam.FileRead{})
	if got := l.addresses("pods"); len(got) != 1 {
		t.Errorf("before the event: got %q", got)
	}
	l.release("pods", "10.1.0.2")
	// Without an event, only lost events and another directory lead to a new reading.
	l.must(os.Remove(filepath.Join(l.path("pods"), "fd00::2")))
	l.read(ipam.FileRead{})
	l.look()
	if got := l.addresses("pods"); len(got) != 1 {
		t.Errorf("before any event of a change: got %q, want the previous one", got)
	}
	l.read(ipam.FileRead{Lost: true})
	if got := l.addresses("pods"); len(got) != 0 {
		t.Errorf("after events were lost: got %q, want none", got)
	}
}

func TestEventsOfDirectoriesNeedEverythingToBeRead(t *testing.T) {
	l := newLab(t)
	l.allocate("pods", "10.1.0.2", "c")
	l.look()
	for _, path := range []string{l.path("pods"), l.dir, filepath.Join(l.conf, "10-pods.conf"), "/elsewhere"} {
		if l.source.Event(path, false) {
			t.Errorf("event of %s: got handled, want that it is looked for", path)
		}
	}
	l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.2")))
	l.look()
	if got := l.addresses("pods"); len(got) != 0 {
		t.Errorf("after an event of the directory: got %q, want it read again", got)
	}
	want := []string{l.conf, l.dir, l.path("pods")}
	if got := l.source.Places(); !slices.Equal(got, want) {
		t.Errorf("places: got %q, want %q", got, want)
	}
}

func TestDirectoryThatWasNotWatchedIsReadAgain(t *testing.T) {
	l := newLab(t)
	l.allocate("pods", "10.1.0.2", "c")
	l.watches[l.path("pods")] = ipam.Watch{} // created after it was looked for
	l.look()
	l.allocate("pods", "10.1.0.3", "c")
	delete(l.watches, l.path("pods"))
	l.read(ipam.FileRead{})
	if got := l.addresses("pods"); len(got) != 2 {
		t.Errorf("directory that is watched now: got %q, want both", got)
	}

	l.watches[l.path("pods")] = ipam.Watch{ID: ipamtest.Identify(l.path("pods")), Err: errors.New("no more watches")}
	l.look() // everything is known, and the watch failed only now
	l.look()
	if p := l.pool("pods"); p.State != ipam.Stale || p.Problem != "" {
		t.Errorf("directory without events: got %v, %q", p.State, p.Problem)
	}
	l.allocate("pods", "10.1.0.4", "c")
	l.look()
	if got := l.addresses("pods"); len(got) != 3 {
		t.Errorf("directory without events: got %q, want it read at each look", got)
	}
}

func TestDirectoriesAreClosedAfterReading(t *testing.T) {
	l := newLab(t)
	l.configure("10-pods.conf", l.ptp("pods", "10.1.0.0/24"))
	l.allocate("pods", "10.1.0.2", "c")
	l.look()
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		l.must(err)
		return len(entries)
	}
	before := open()
	for range 10 {
		l.look()
		l.read(ipam.FileRead{Lost: true})
	}
	if got := open(); got != before {
		t.Errorf("open files: got %d after reading, want %d as before", got, before)
	}
}

func TestFileThatCanBeReadAgainIsNoProblem(t *testing.T) {
	l := newLab(t)
	l.must(os.MkdirAll(l.path("pods"), 0o755), os.WriteFile(filepath.Join(l.path("pods"), "10.1.0.2"), []byte(strings.Repeat("x", maxFileSize+1)), 0o600))
	l.look()
	if problems := l.source.Problems(); len(problems) != 1 {
		t.Errorf("file that is too long: got problems %q, want one", problems)
	}
	l.allocate("pods", "10.1.0.2", "c")
	l.event("pods", "10.1.0.2", false)
	if problems := l.source.Problems(); len(problems) != 0 || l.allocations[l.path("pods")]["10.1.0.2"].ContainerID != "c" {
		t.Errorf("file that is written again: got problems %q and %v", problems, l.allocations)
	}
}

func TestFileThatGrowsTooLongWithinOneTickIsNotRead(t *testing.T) {
	d, a, now := newDirectory(t.TempDir(), ipamtest.Host{}), netip.MustParseAddr("10.1.0.7"), start
	empty := &allocation{FileAllocation: ipam.FileAllocation{AllocatedAt: now}}
	long := &allocation{FileAllocation: ipam.FileAllocation{AllocatedAt: now}, unread: true}
	d.put(a, empty, now)
	if d.put(a, long, now); d.unread != 1 {
		t.Errorf("files that cannot be read: got %d, want 1", d.unread)
	}
	if d.remove(a, now); d.unread != 0 {
		t.Errorf("after its deletion: got %d, want none", d.unread)
	}
}

func TestFileThatCannotBeReadStillReservesItsAddress(t *testing.T) {
	l := newLab(t)
	l.allocate("pods", "10.1.0.2", "c")
	dir := l.path("pods")
	secret := filepath.Join(l.root, "secret")
	l.must(os.WriteFile(secret, []byte("secret"), 0o600),
		os.Symlink(secret, filepath.Join(dir, "10.1.0.3")),
		unix.Mkfifo(filepath.Join(dir, "10.1.0.4"), 0o600),
		os.Mkdir(filepath.Join(dir, "10.1.0.5"), 0o700),
		os.WriteFile(filepath.Join(dir, "10.1.0.6"), nil, 0o600), // left by a plugin that was killed
		os.WriteFile(filepath.Join(dir, "10.1.0.7"), []byte(strings.Repeat("x", maxFileSize+1)), 0o600),
		os.WriteFile(filepath.Join(dir, "10.1.0.11"), make([]byte, 70), 0o600), // after a loss of power
		os.WriteFile(filepath.Join(dir, "10.1.0.10"), []byte(strings.Repeat("x", maxFileSize)), 0o600),
		os.WriteFile(filepath.Join(dir, "10.1.0.008"), []byte("no address"), 0o600),
		os.WriteFile(filepath.Join(dir, "::ffff:10.1.0.9"), []byte("not its name"), 0o600),
		os.WriteFile(filepath.Join(dir, "fe80::1%eth0"), []byte("not its name"), 0o600))
	l.look()
	if got := l.addresses("pods"); len(got) != 8 {
		t.Errorf("allocations: got %q, want eight", got)
	}
	if problems := l.source.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "5 allocations of host-local, such as that of "+filepath.Join(dir, "10.1.0.3")) {
		t.Errorf("problems: got %q, want one about 5 allocations", problems)
	}
	for addr, a := range l.allocations[dir] {
		if want := addr == "10.1.0.2" || addr == "10.1.0.10"; (a.ContainerID != "") != want || a.AllocatedAt.IsZero() {
			t.Errorf("allocation: got %+v", a)
		}
	}
	for _, addr := range []string{"10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.7", "10.1.0.11"} {
		l.release("pods", addr)
	}
	if problems := l.source.Problems(); len(problems) != 0 || len(l.addresses("pods")) != 3 {
		t.Errorf("without these files: got %q, problems %q", l.addresses("pods"), problems)
	}
}

func TestDirectoryThatCannotBeReadLosesNothing(t *testing.T) {
	for name, hide := range map[string]func(l *lab){
		"no permission": func(l *lab) {
			l.host.Broken[l.path("pods")] = &os.PathError{Op: "open", Path: "p", Err: os.ErrPermission}
		},
		"not mounted":     func(l *lab) { l.host.Hidden[l.dir] = errors.New("not mounted") },
		"not a directory": func(l *lab) { l.host.Broken[l.path("pods")] = unix.ENOTDIR },
	} {
		l := newLab(t)
		l.allocateMany("pods", 3)
		l.look()
		hide(l)
		l.now = l.now.Add(time.Minute)
		l.source.Event(l.path("pods"), false)
		l.look()
		p := l.pool("pods")
		if p.State != ipam.Unreadable || p.Lost != 0 || len(l.addresses("pods")) != 0 {
			t.Errorf("%s: got %v, lost %d, %q", name, p.State, p.Lost, l.addresses("pods"))
		}
		if want := map[string]string{"not mounted": "not mounted", "not a directory": "not a directory"}[name]; want != "" && p.Problem != want {
			t.Errorf("%s: got problem %q", name, p.Problem)
		}
		if got := strings.Contains(p.Problem, "give the agent's user read access to it"); got != (name == "no permission") {
			t.Errorf("%s: got problem %q", name, p.Problem)
		}
		if problems := strings.Join(l.source.Problems(), "\n"); !strings.Contains(problems, "cannot read the allocations of host-local in "+l.path("pods")+": ") {
			t.Errorf("%s: got problems %q", name, problems)
		}
		clear(l.host.Broken)
		clear(l.host.Hidden)
		l.look()
		if p := l.pool("pods"); p.State != ipam.Known || p.Lost != 0 || len(l.addresses("pods")) != 3 {
			t.Errorf("%s, no more: got %v, lost %d, %q", name, p.State, p.Lost, l.addresses("pods"))
		}
	}
}

func TestParseFileOfAnAddress(t *testing.T) {
	for content, want := range map[string][2]string{
		"":                 {"", ""},
		"\r\n":             {"", ""},
		"abc":              {"abc", ""},
		"abc\n":            {"abc", ""},
		"abc\r\neth0":      {"abc", "eth0"},
		" abc \n eth0 \n":  {"abc", "eth0"},
		"abc\neth0\nmore":  {"abc", "eth0"},
		"abc\n\neth0\nend": {"abc", ""},
	} {
		if id, iface := parse([]byte(content)); id != want[0] || iface != want[1] {
			t.Errorf("content %q: got %q and %q, want %q", content, id, iface, want)
		}
	}
}

func FuzzFileOfAnAddress(f *testing.F) {
	f.Add("10.1.0.2", []byte("abc\r\neth0"))
	f.Add("fd00::1", []byte("abc"))
	f.Add("last_reserved_ip.0", []byte("10.1.0.2"))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		if a, ok := addressOf(name); ok && (a.String() != name || isMark(name) || len(a.AsSlice()) != 4 && len(a.AsSlice()) != 16) {
			t.Errorf("%q was accepted as an address", name)
		}
		if id, iface := parse(content); strings.ContainsAny(id+iface, "\n") {
			t.Errorf("content %q: got %q and %q", content, id, iface)
		}
	})
}

func TestAllocationsThatCannotBeLookedAtAreNotReleased(t *testing.T) {
	l := newLab(t)
	l.allocate("pods", "10.1.0.2", "c")
	l.allocate("pods", "10.1.0.3", "c")
	l.look()
	want := l.allocations[l.path("pods")]["10.1.0.2"].AllocatedAt
	l.release("pods", "10.1.0.3")
	l.must(os.Rename(l.path("pods"), l.path("away")), os.Symlink(l.path("pods"), l.path("pods"))) // a file system that fails
	l.event("pods", "10.1.0.2", false)
	if removed := l.source.dirs[l.path("pods")].loss.removed; len(removed) != 1 {
		t.Errorf("got %v as released, want 10.1.0.3 only", removed)
	}
	if got := l.addresses("pods"); !slices.Equal(got, []string{"10.1.0.2"}) || !l.allocations[l.path("pods")][got[0]].AllocatedAt.Equal(want) {
		t.Errorf("got %v, want the address with its time and without the one that was released", l.allocations)
	}
	if problems := l.source.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "10.1.0.2") {
		t.Errorf("got problems %q, want that the owner is not known", problems)
	}
}

package hostlocal

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestLossOfAllAllocationsIsNoticed(t *testing.T) {
	away := func(l *lab) { l.must(os.Rename(l.path("pods"), filepath.Join(l.root, "away"))) }
	for name, c := range map[string]struct {
		lose  func(l *lab)
		state ipam.State
	}{
		"removed":    {func(l *lab) { l.must(os.RemoveAll(l.path("pods"))) }, ipam.Missing},
		"renamed":    {away, ipam.Missing},
		"made anew":  {func(l *lab) { l.must(os.RemoveAll(l.path("pods")), os.Mkdir(l.path("pods"), 0o755)) }, ipam.Known},
		"replaced":   {func(l *lab) { away(l); l.must(os.Mkdir(l.path("pods"), 0o755)) }, ipam.Known},
		"all reused": {func(l *lab) { away(l); l.allocate("pods", "10.1.0.77", "new") }, ipam.Known},
		"emptied": {func(l *lab) {
			entries, err := os.ReadDir(l.path("pods"))
			l.must(err)
			for _, e := range entries {
				l.must(os.Remove(filepath.Join(l.path("pods"), e.Name())))
				l.event("pods", e.Name(), true)
			}
		}, ipam.Known},
		"mount removed": {func(l *lab) {
			l.must(os.RemoveAll(l.path("pods")))
			l.host.Broken[l.path("pods")] = fmt.Errorf("open: %w", ipam.ErrOrphaned)
		}, ipam.Unreadable},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.allocateMany("pods", 7)
			l.look()
			l.now = l.now.Add(time.Minute)
			before := l.now
			c.lose(l)
			l.look()
			p := l.pool("pods")
			if p.State != c.state || p.Lost != 7 || p.LostAt.Before(before) || (p.Problem == "") != (c.state == ipam.Known) {
				t.Errorf("pool: got %v (%s), lost %d at %v, want %v and 7", p.State, p.Problem, p.Lost, p.LostAt, c.state)
			}
			if name == "mount removed" && p.Problem != ipam.ErrOrphaned.Error() {
				t.Errorf("problem: got %q", p.Problem)
			}
			if l.again != (c.state == ipam.Missing) {
				t.Errorf("to look again soon: got %v", l.again)
			}
			delete(l.host.Broken, l.path("pods"))
			// The next pod takes an address that other pods still use: the loss remains.
			l.allocate("pods", "10.1.0.1", "next")
			l.look()
			l.event("pods", "10.1.0.1", false)
			if p := l.pool("pods"); p.State != ipam.Known || p.Lost != 7 {
				t.Errorf("pool after the next pod: got %v, lost %d, want 7", p.State, p.Lost)
			}
			// Once all lost files are restored, there is no loss.
			l.now = l.now.Add(time.Minute)
			l.allocateMany("pods", 6)
			for i := range 6 {
				l.event("pods", fmt.Sprint("10.1.0.", i+1), false)
			}
			if p := l.pool("pods"); p.Lost != 7 {
				t.Errorf("pool with all but one file: got %d lost, want 7", p.Lost)
			}
			l.allocateMany("pods", 7)
			l.event("pods", "10.1.0.7", false)
			if p := l.pool("pods"); p.Lost != 0 || !p.LostAt.IsZero() {
				t.Errorf("pool with all files: got %d lost at %v, want none", p.Lost, p.LostAt)
			}
		})
	}
}

func TestReleasedAddressesAreNotLost(t *testing.T) {
	begin := func(n int) *lab {
		l := newLab(t)
		l.allocateMany("pods", n)
		l.look()
		if p := l.pool("pods"); len(l.addresses("pods")) != n || p.State != ipam.Known {
			t.Fatalf("directory of %d addresses: got %q, %v", n, l.addresses("pods"), p.State)
		}
		return l
	}
	wantLost := func(l *lab, n int) {
		t.Helper()
		if p := l.pool("pods"); p.Lost != n || p.LostAt.IsZero() != (n == 0) || len(l.addresses("pods")) != 0 {
			t.Errorf("got %d lost, %q left, want %d lost and none left", p.Lost, l.addresses("pods"), n)
		}
	}
	end := func(l *lab) {
		l.must(os.RemoveAll(l.path("pods")))
		l.look()
	}

	l := begin(3)
	for i := range 3 { // all pods of a drained node end at once
		l.release("pods", fmt.Sprint("10.1.0.", i+1))
	}
	wantLost(l, 0)
	l.now = l.now.Add(time.Minute)
	end(l) // then the node is reset
	wantLost(l, 0)
	if p := l.pool("pods"); p.State != 0 {
		t.Errorf("directory that was removed without a loss: got %v, want it forgotten", p.State)
	}

	l = begin(3)
	l.release("pods", "10.1.0.1")
	l.now = l.now.Add(time.Minute)
	end(l)
	wantLost(l, 2)

	// The lock is removed first, in the order of the directory, and one address is allocated
	// in between.
	l = begin(3)
	l.now = l.now.Add(time.Minute)
	l.source.Event(filepath.Join(l.path("pods"), "lock"), true)
	l.release("pods", "10.1.0.1")
	l.release("pods", "10.1.0.2")
	l.allocate("pods", "10.1.0.9", "new")
	l.source.Event(filepath.Join(l.path("pods"), "10.1.0.9"), false)
	l.release("pods", "10.1.0.3")
	if p := l.pool("pods"); p.Lost != 3 || len(l.addresses("pods")) != 1 {
		t.Errorf("removal with a pod that starts meanwhile: got %d lost, %q left, want 3 and one", p.Lost, l.addresses("pods"))
	}

	// Everything is lost twice. An address that was released in between is not lost.
	l = begin(3)
	l.now = l.now.Add(time.Minute)
	end(l)
	wantLost(l, 3)
	for range 2 {
		l.allocate("pods", "10.1.0.7", "new")
		l.look()
		end(l)
		wantLost(l, 1)
	}
	for range 2 { // but an address that comes and goes after that is not lost
		l.allocate("pods", "10.1.0.7", "newer")
		l.look()
		was := l.pool("pods").LostAt
		l.release("pods", "10.1.0.7")
		if p := l.pool("pods"); p.LostAt != was {
			t.Errorf("a pod that came and went after a loss: got another loss of %d", p.Lost)
		}
	}

	// The lock is removed, and the pods end a while later.
	l = begin(2)
	l.now = l.now.Add(time.Minute)
	l.event("pods", "lock", true)
	l.now = l.now.Add(time.Minute)
	l.release("pods", "10.1.0.1")
	l.release("pods", "10.1.0.2")
	wantLost(l, 0)

	// The lock is opened, and the pods end.
	l = begin(2)
	l.now = l.now.Add(time.Minute)
	l.event("pods", "lock", false)
	l.release("pods", "10.1.0.1")
	l.release("pods", "10.1.0.2")
	wantLost(l, 0)

	// The pods end, and the lock is removed a while later.
	l = begin(2)
	l.release("pods", "10.1.0.1")
	l.release("pods", "10.1.0.2")
	l.now = l.now.Add(sameRun + time.Millisecond)
	l.event("pods", "last_reserved_ip.0", true)
	wantLost(l, 0)
}

func TestMissingMarkIsNoticedWithoutAnEvent(t *testing.T) {
	for _, marks := range [][]string{{"lock"}, {"last_reserved_ip.0"}, {"lock", "last_reserved_ip.0"}} {
		l := newLab(t)
		l.allocateMany("pods", 2)
		for _, mark := range []string{"lock", "last_reserved_ip.0"} {
			if !slices.Contains(marks, mark) {
				l.must(os.Remove(filepath.Join(l.path("pods"), mark)))
			}
		}
		l.look()
		l.now = l.now.Add(time.Minute)
		l.read(ipam.FileRead{Lost: true})
		if p := l.pool("pods"); p.Lost != 0 {
			t.Errorf("%q, nothing removed: got %d lost", marks, p.Lost)
		}
		for _, file := range append(marks, "10.1.0.1", "10.1.0.2") {
			l.must(os.Remove(filepath.Join(l.path("pods"), file)))
		}
		l.now = l.now.Add(time.Minute)
		l.read(ipam.FileRead{Lost: true})
		if p := l.pool("pods"); p.Lost != 2 {
			t.Errorf("%q removed with all addresses: got %d lost, want 2", marks, p.Lost)
		}
	}

	// A directory that host-local has not used yet has no marks to lose.
	l := newLab(t)
	l.must(os.MkdirAll(l.path("pods"), 0o755), os.WriteFile(filepath.Join(l.path("pods"), "10.1.0.2"), []byte("c"), 0o600))
	l.look()
	l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.2")))
	l.now = l.now.Add(time.Minute)
	l.read(ipam.FileRead{Lost: true})
	if p := l.pool("pods"); p.Lost != 0 || p.State != ipam.Known {
		t.Errorf("directory without marks: got %v, %d lost, want none", p.State, p.Lost)
	}
}

func TestAddressesThatAreReusedDuringALossAreLost(t *testing.T) {
	l := newLab(t)
	l.allocateMany("pods", 2)
	l.look()
	l.now = l.now.Add(time.Minute)
	for _, file := range []string{"lock", "10.1.0.1", "10.1.0.2"} {
		l.must(os.Remove(filepath.Join(l.path("pods"), file)))
		l.source.Event(filepath.Join(l.path("pods"), file), true)
	}
	l.allocate("pods", "10.1.0.1", "next") // before anything is read
	l.source.Event(filepath.Join(l.path("pods"), "10.1.0.1"), false)
	l.read(ipam.FileRead{})
	if p := l.pool("pods"); p.Lost != 2 || len(l.addresses("pods")) != 1 {
		t.Errorf("got %d lost and %q, want both lost and the next pod", p.Lost, l.addresses("pods"))
	}
}

func TestPodThatStartsDuringALossIsNotLost(t *testing.T) {
	l := newLab(t)
	l.allocateMany("pods", 2)
	l.look()
	l.now = l.now.Add(time.Minute)
	l.event("pods", "lock", true)
	l.release("pods", "10.1.0.1")
	l.allocate("pods", "10.1.0.9", "next")
	l.event("pods", "10.1.0.9", false)
	l.event("pods", "last_reserved_ip.0", true) // what the next pod left
	l.release("pods", "10.1.0.2")
	if p := l.pool("pods"); p.Lost != 2 || len(l.addresses("pods")) != 1 {
		t.Errorf("got %d lost and %q, want two lost and the next pod", p.Lost, l.addresses("pods"))
	}
}

func TestRemovalsBelongTogetherWithinATime(t *testing.T) {
	for pause, want := range map[time.Duration]int{sameRun - 1: 2, sameRun: 2, sameRun + 1: 1} {
		l := newLab(t)
		l.allocateMany("pods", 2)
		l.look()
		l.now = l.now.Add(time.Minute)
		l.release("pods", "10.1.0.1")
		l.now = l.now.Add(pause - time.Millisecond) // the clock of the lab has moved on
		l.source.Event(filepath.Join(l.path("pods"), "lock"), true)
		l.release("pods", "10.1.0.2")
		if got := l.pool("pods").Lost; got != want {
			t.Errorf("pause of %s: got %d lost, want %d", pause, got, want)
		}
	}
}

func TestReusedAddressIsLostWithItsLastContainer(t *testing.T) {
	l := newLab(t)
	l.allocate("pods", "10.1.0.2", "first")
	l.look()
	l.now = l.now.Add(time.Minute)
	l.allocate("pods", "10.1.0.2", "second")
	l.event("pods", "10.1.0.2", false)
	l.now = l.now.Add(time.Minute)
	l.must(os.RemoveAll(l.path("pods")))
	l.look()
	l.allocate("pods", "10.1.0.2", "first")
	l.look()
	if p := l.pool("pods"); p.Lost != 1 {
		t.Errorf("with an earlier container: got %d lost, want 1", p.Lost)
	}
	l.allocate("pods", "10.1.0.2", "second")
	l.event("pods", "10.1.0.2", false)
	if p := l.pool("pods"); p.Lost != 0 {
		t.Errorf("with the last container: got %d lost, want none", p.Lost)
	}
}

func TestFilesThatAreCompletedDuringALossAreLost(t *testing.T) {
	l := newLab(t)
	l.allocateMany("pods", 2)
	l.must(os.WriteFile(filepath.Join(l.path("pods"), "10.1.0.3"), nil, 0o600))
	l.look()
	l.now = l.now.Add(time.Minute)
	l.event("pods", "lock", true)
	for file, content := range map[string]string{"10.1.0.1": "c0\neth1", "10.1.0.3": "c2\neth0"} {
		l.must(os.WriteFile(filepath.Join(l.path("pods"), file), []byte(content), 0o600))
		l.event("pods", file, false)
	}
	for i := range 3 {
		l.release("pods", fmt.Sprint("10.1.0.", i+1))
	}
	if got := l.pool("pods").Lost; got != 3 {
		t.Errorf("got %d lost, want 3: the allocations are older than the loss of the lock", got)
	}
}

func TestFileThatWasLostBeforeItWasReadMayBeBack(t *testing.T) {
	d, a, now := newDirectory(t.TempDir(), ipamtest.Host{}), netip.MustParseAddr("10.1.0.7"), start
	d.put(a, &allocation{}, now)
	d.id.Inode = 1
	d.vanish(now.Add(time.Millisecond))
	if d.Lost != 1 {
		t.Fatalf("lost: got %d, want 1", d.Lost)
	}
	d.put(a, &allocation{FileAllocation: ipam.FileAllocation{Allocation: ipam.Allocation{ContainerID: "c"}}}, now.Add(time.Second))
	if d.Lost != 0 || !d.LostAt.IsZero() {
		t.Errorf("lost after it is back: got %d, want none", d.Lost)
	}
}

package allocations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
)

// oneFile is a source whose whole state is one file with lines "ADDRESS CONTAINER". Its IPAM
// replaces the file, and it may be read while it is being written.
type oneFile struct {
	host    ipam.Host
	path    string
	stale   bool
	pool    *ipam.FilePool
	current map[netip.Addr]ipam.FileAllocation
}

func (s *oneFile) Places() []string { return []string{filepath.Dir(s.path)} }

func (s *oneFile) Find(time.Time) (again bool) { return false }

func (s *oneFile) Event(path string, _ bool) (handled bool) {
	s.stale = s.stale || path == s.path
	return path == s.path
}

func (s *oneFile) Read(r ipam.FileRead) (again bool) {
	if !s.stale && !r.All {
		return false
	}
	s.stale = false
	data, written, err := s.host.ReadFile(s.path, false, 1<<20)
	switch {
	case errors.Is(err, os.ErrNotExist):
		s.pool = nil
		s.current = nil
		return false
	case err == nil && !strings.HasSuffix(string(data), "end\n"):
		if ipam.BeingWritten(written, r.Now) {
			return true
		}
		err = errors.New("the file is incomplete")
	}
	if s.pool == nil {
		s.pool = &ipam.FilePool{Pool: ipam.Pool{IPAM: hostlocal.Name, Name: s.path}, Changes: map[netip.Addr]*ipam.FileAllocation{}}
	}
	if err != nil {
		s.pool.State, s.pool.Problem = ipam.Unreadable, ipam.OneLine(err)
		return false
	}
	s.pool.State, s.pool.Problem = ipam.Known, ""
	next := map[netip.Addr]ipam.FileAllocation{}
	for line := range strings.Lines(string(data)) {
		addr, container, _ := strings.Cut(strings.TrimSpace(line), " ")
		if a, err := netip.ParseAddr(addr); err == nil {
			next[a] = ipam.FileAllocation{Allocation: ipam.Allocation{Address: a, ContainerID: container}, AllocatedAt: written}
		}
	}
	for a := range s.current {
		s.pool.Changes[a] = nil
	}
	for a, al := range next {
		s.pool.Changes[a] = &al
	}
	s.current = next
	return false
}

func (s *oneFile) Pools() []*ipam.FilePool {
	if s.pool == nil {
		return nil
	}
	return []*ipam.FilePool{s.pool}
}

func (s *oneFile) Problems() []string {
	if s.pool != nil && s.pool.State == ipam.Unreadable {
		return []string{s.path + ": " + s.pool.Problem}
	}
	return nil
}

func TestSourceWithOneFileIsFollowed(t *testing.T) {
	var path string
	l := startIPAM(t, func(l *ipamLab) {
		path = filepath.Join(l.root, "run/one/state")
		l.ipam.sources = append(l.ipam.sources, &oneFile{host: &host{}, path: path})
		l.dir = filepath.Dir(path) // so that pools are named after their files
	})
	write := func(content string, age time.Duration) {
		t.Helper()
		at := time.Now().Add(-age)
		l.must(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".new", []byte(content), 0o600), os.Chtimes(path+".new", at, at), os.Rename(path+".new", path))
	}
	write("10.1.0.2 a\nfd00::2 a\nend\n", 0)
	l.awaitGiven("state", 2, known)
	write("10.1.0.3 b\nend\n", 0)
	l.await("the other content", func() bool {
		a := l.allocations[path]
		return len(a) == 1 && a["10.1.0.3"].GetContainerId() == "b"
	})
	write("10.1.0.4 c\n", time.Hour)
	if p := l.awaitGiven("state", 1, unreadable); p.GetProblem() != "the file is incomplete" {
		t.Errorf("incomplete file: got %v", p)
	}
	l.await("the problem", func() bool {
		problems := l.ipam.Health().Problems
		return len(problems) == 1 && problems[0] == path+": the file is incomplete"
	})
	write("10.1.0.4 c\nend\n", 0)
	l.awaitGiven("state", 1, known)
	l.must(os.RemoveAll(filepath.Join(l.root, "run")))
	l.await("the end of the pool", func() bool { return l.pools[path] == nil })
	write("10.1.0.5 d\nend\n", 0)
	l.awaitGiven("state", 1, known)
}

func TestFileThatIsBeingWrittenIsReadAgainSoon(t *testing.T) {
	l := newIPAMLab(t)
	path := filepath.Join(l.root, "state")
	l.ipam.sources = []ipam.FileSource{&oneFile{host: &host{}, path: path}}
	l.must(os.WriteFile(path, []byte("10.1.0.2 a\n"), 0o600))
	l.ipam.noWatcher = errors.New("no inotify")
	look := func() {
		l.ipam.soon = false
		l.lookAgain()
		l.take()
	}
	if look(); !l.ipam.soon || len(l.pools) != 0 {
		t.Errorf("half of a file: got %v, to be read again soon %v", l.pools, l.ipam.soon)
	}
	l.must(os.WriteFile(path, []byte("10.1.0.2 a\nend\n"), 0o600))
	if look(); l.ipam.soon || len(l.allocations[path]) != 1 {
		t.Errorf("whole file: got %v, to be read again soon %v", l.allocations, l.ipam.soon)
	}
}

func TestPoolThatEndsTakesOnlyItsOwnAllocations(t *testing.T) {
	l := newIPAMLab(t)
	paths := []string{filepath.Join(l.root, "first"), filepath.Join(l.root, "second")}
	l.ipam.sources = nil
	for _, path := range paths {
		l.ipam.sources = append(l.ipam.sources, &oneFile{host: &host{}, path: path})
		l.must(os.WriteFile(path, []byte("10.1.0.2 a\n10.1.0.3 b\nend\n"), 0o600))
	}
	look := func() {
		l.lookAgain()
		l.take()
	}
	look()
	l.must(os.Remove(paths[0]))
	look()
	if l.pools[paths[0]] != nil || len(l.allocations[paths[1]]) != 2 {
		t.Errorf("one of two pools ended: got %v", l.allocations)
	}
	rest := 0
	l.ipam.table.Update(func() {
		for range l.ipam.table.Allocations.All() {
			rest++
		}
	})
	if rest != 2 {
		t.Errorf("records in the table: got %d, want 2", rest)
	}
}

func TestProblemsOfSourcesAreLimited(t *testing.T) {
	l := newIPAMLab(t)
	l.ipam.sources = nil
	for i := range maxProblems + 3 {
		path := filepath.Join(l.root, fmt.Sprint("state", i))
		l.ipam.sources = append(l.ipam.sources, &oneFile{host: &host{}, path: path})
		l.must(os.Mkdir(path, 0o700))
	}
	l.ipam.all = true
	l.ipam.look(time.Now())
	if problems := l.ipam.Health().Problems; len(problems) != maxProblems+1 || problems[maxProblems] != "and 3 more problems with IPAM" {
		t.Errorf("got problems %q", problems)
	}
}

func TestRecordsHaveTheFormThatAnAggregatorAccepts(t *testing.T) {
	key := table.PoolKey{IPAM: "i", Name: "p"}
	long := strings.Repeat("x", table.MaxLength)
	for text, want := range map[string]string{"abc": "abc", "\xff": "\uFFFD", long: long, long + "x": "", long[1:] + "\xff": ""} {
		a := &ipam.FileAllocation{Allocation: ipam.Allocation{ContainerID: text, Namespace: text, Pod: text}}
		got := allocationRecord(key, netip.MustParseAddr("10.1.0.2"), a)
		if got.GetContainerId() != want || got.GetNamespace() != want || got.GetPod() != want {
			t.Errorf("text %q: got %v, want %q", text, got, want)
		}
		if got.GetPool() != "p" || got.GetIpam() != "i" || len(got.GetAddress()) != 4 {
			t.Errorf("text %q: got %v", text, got)
		}
	}
	for iface, want := range map[string]string{"eth0": "eth0", "fifteen-letters": "fifteen-letters", "sixteen--letters": "", "\xff": "\uFFFD"} {
		a := &ipam.FileAllocation{Allocation: ipam.Allocation{Interface: iface}}
		if got := allocationRecord(key, netip.MustParseAddr("fd00::2"), a).GetInterface(); got != want {
			t.Errorf("interface %q: got %q, want %q", iface, got, want)
		}
	}
	if got := poolRecord(&ipam.FilePool{Pool: ipam.Pool{Config: "a\xff", Problem: "b\xff"}}); got.GetConfig() != "a\uFFFD" || got.GetProblem() != "b\uFFFD" || got.GetLostAt() != nil {
		t.Errorf("pool: got %v", got)
	}
}

func TestDirectoriesHaveAnIdentity(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	open := func() (ipam.DirID, error) {
		f, id, err := (&host{}).OpenDir(path)
		if err == nil {
			err = f.Close()
		}
		return id, err
	}
	if _, err := open(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: got error %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("file: got error %v, want that it is not a directory", err)
	}
	seen := map[ipam.DirID]bool{}
	for i := range 3 {
		if err := errors.Join(os.Rename(path, fmt.Sprint(path, i)), os.Mkdir(path, 0o700)); err != nil {
			t.Fatal(err)
		}
		id, err := open()
		if again, err2 := open(); err != nil || err2 != nil || id != again || seen[id] || id == (ipam.DirID{}) {
			t.Errorf("directory: got %+v, then %+v, errors %v and %v, seen before %v", id, again, err, err2, seen[id])
		}
		seen[id] = true
	}
	if err := (&host{root: Root(false)}).Visible("/missing"); err != nil {
		t.Errorf("visible on a host: got error %v", err)
	}
}

// slow is a source that takes long to read.
type slow struct {
	scripted
	takes time.Duration
	reads []ipam.FileRead
}

func (s *slow) Read(r ipam.FileRead) bool {
	s.reads = append(s.reads, r)
	time.Sleep(s.takes)
	return false
}

func TestASourceThatTakesLongRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large, small := &slow{takes: 2 * quick}, &slow{takes: quick / 2}
		r := New(slog.New(slog.DiscardHandler), table.New(), Config{}, Root(false))
		r.noWatcher, r.sources, r.names = errors.New("none"), []ipam.FileSource{large, small}, nil
		events := make(chan fsnotify.Event)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.follow(ctx, events, nil); close(done) }()
		synctest.Wait()
		for range 600 { // a minute
			time.Sleep(quick)
			select {
			case events <- fsnotify.Event{Name: "/elsewhere"}:
			default:
			}
		}
		cancel()
		<-done
		if n := len(large.reads); n < 20 || n > 30 {
			t.Errorf("got %d reads of a source that takes %s in a minute, want one each %s", n, large.takes, (1+restFor)*large.takes)
		}
		if n := len(small.reads); n < 250 {
			t.Errorf("got %d reads of the other one, want one for each event", n)
		}
		all := func(s *slow) (n int) {
			for _, r := range s.reads {
				if r.All {
					n++
				}
			}
			return n
		}
		if all(large) < all(small) {
			t.Errorf("got %d complete reads of the slow source and %d of the other one, want none left out", all(large), all(small))
		}
	})
}

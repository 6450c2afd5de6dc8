package allocations

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/tests/alone"
)

// scripted is a source without files. It records how it is called.
type scripted struct {
	place    string
	handles  string // the only path whose events it handles
	again    bool   // what the next call of Find returns
	onRead   func()
	problems []string

	mu    sync.Mutex
	calls []string // Find and Read, the latter with what is to be read
}

func (s *scripted) called(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
}

func (s *scripted) Places() []string { return []string{s.place} }

func (s *scripted) Find(time.Time) (again bool) {
	s.called("find")
	again, s.again = s.again, false
	return again
}

func (s *scripted) Event(path string, _ bool) (handled bool) { return path == s.handles }

func (s *scripted) Read(r ipam.FileRead) (again bool) {
	call := "read"
	if r.All {
		call += " all"
	}
	if r.Lost {
		call += " lost"
	}
	s.called(call)
	if s.onRead != nil {
		s.onRead()
	}
	return false
}

func (s *scripted) Pools() []*ipam.FilePool { return nil }

func (s *scripted) Problems() []string { return s.problems }

// want compares the calls since the last comparison.
func (s *scripted) want(t *testing.T, what string, calls ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.calls, calls) {
		t.Errorf("%s: got calls %q, want %q", what, s.calls, calls)
	}
	s.calls = nil
}

// driven is a reader with one scripted source, whose events the test sends.
type driven struct {
	*ipamLab
	*scripted
	events chan fsnotify.Event
	errs   chan error
}

// drive runs a reader until the test ends.
func drive(t *testing.T, prepare ...func(*driven)) *driven {
	t.Helper()
	l := newIPAMLab(t)
	d := &driven{ipamLab: l, scripted: &scripted{place: filepath.Join(l.root, "place")}, events: make(chan fsnotify.Event, waitingEvents), errs: make(chan error)}
	d.handles = filepath.Join(d.place, "known")
	l.must(os.Mkdir(d.place, 0o700))
	l.ipam.sources, l.ipam.names = []ipam.FileSource{d.scripted}, nil
	for _, p := range prepare {
		p(d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { l.ipam.follow(ctx, d.events, d.errs); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return d
}

// send sends the event of a created file.
func (d *driven) send(path string) { d.events <- fsnotify.Event{Name: path, Op: fsnotify.Create} }

func TestSourceReadsOnlyWhatAnEventRequires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t)
		d.want(t, "at the start", "find", "read all")
		for _, c := range []struct {
			name, path string
			all        bool
		}{
			{"file that the source knows", d.handles, false},
			{"other file in a place", filepath.Join(d.place, "new"), true},
			{"another file that the source knows", d.handles, false},
			{"place", d.place, true},
			{"parent of a place", d.root, true},
			{"file elsewhere", filepath.Join(d.root, "elsewhere/x"), false},
			{"file beside a place", filepath.Join(d.root, "other"), false},
		} {
			want := []string{"read"}
			if c.all {
				want = []string{"find", "read all"}
			}
			d.send(c.path)
			d.want(t, c.name, want...)
		}
		d.errs <- fsnotify.ErrEventOverflow
		d.want(t, "lost events", "find", "read all lost")
		if got := d.ipam.LostEvents(); got != 1 {
			t.Errorf("lost events: got %d, want 1", got)
		}
		d.send(d.handles)
		d.want(t, "after lost events", "read")
	})
}

func TestEverythingIsReadAgainRegularly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t, func(d *driven) { d.again = true })
		d.want(t, "at the start", "find", "read all")
		const moment = time.Millisecond
		time.Sleep(ipam.Settled - moment)
		d.want(t, "before files have settled")
		time.Sleep(2 * moment)
		d.want(t, "after files have settled, as the source asked for", "find", "read all")
		time.Sleep(ipam.CheckEvery - 2*moment)
		d.want(t, "before the regular check")
		time.Sleep(2 * moment)
		d.want(t, "regular check", "find", "read all")
	})
}

func TestEventsThatWaitAreHandledTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t, func(d *driven) {
			d.onRead = func() {
				d.onRead = nil
				for range waitingEvents {
					d.send(d.handles)
				}
			}
		})
		d.want(t, "at the start, and for all events", "find", "read all", "read")
	})
}

// While a file system does not answer, what was read before is not called complete.
func TestAFileSystemThatDoesNotAnswerIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, told := make(chan struct{}), 0
		d := drive(t, func(d *driven) {
			d.ipam.ipams = map[ipam.FileSource]string{d.scripted: "scripted", &scripted{}: "another"}
			d.ipam.status.health.Unread = nil
			d.ipam.StatusChanged = func() { told++ }
		})
		d.want(t, "at the start", "find", "read all")
		d.onRead = func() { <-answer }
		d.send(d.handles)
		time.Sleep(ipam.CheckEvery - time.Millisecond)
		if got := d.ipam.Health(); len(got.Unread)+len(got.Problems) > 0 {
			t.Errorf("at first: got %v, want nothing", got)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		want := []string{"reading the records of scripted takes longer than 15s, and no other records of IPAM are read meanwhile: check whether their file system answers"}
		if got := d.ipam.Health(); !slices.Equal(got.Unread, []string{"another", "scripted"}) || !slices.Equal(got.Problems, want) || told != 1 {
			t.Errorf("later: got %q, told %d times, want %q, told once", got, told, want)
		}
		d.onRead = nil
		close(answer)
		synctest.Wait()
		if got := d.ipam.Health(); len(got.Unread)+len(got.Problems) > 0 || told != 2 {
			t.Errorf("when it answers: got %v, told %d times, want nothing, told twice", got, told)
		}
	})
}

func TestMountIsLookedForAtThePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t)
		d.want(t, "at the start", "find", "read all")
		d.ipam.CheckMounts()
		d.want(t, "mount elsewhere", "read")
		d.must(os.Rename(d.place, d.place+".old"), os.Mkdir(d.place, 0o700))
		d.ipam.CheckMounts()
		d.want(t, "another directory at a place", "find", "read all")
		d.ipam.CheckMounts()
		d.want(t, "the same directory", "read")
	})
}

func TestNameOfTheNodeFollowsItsFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file string
		d := drive(t, func(d *driven) {
			file = filepath.Join(d.root, "names/nodename")
			d.ipam.names = []ipam.NameReader{calico.IPAM.NodeName(&host{}, ipam.FilesConfig{Dirs: []string{filepath.Dir(file)}})}
		})
		want := func(what, name string, problems int) {
			t.Helper()
			synctest.Wait()
			if got := d.ipam.Health(); got.NodeName.Name != name || len(got.Problems) != problems {
				t.Errorf("%s: got name %q and problems %q, want %q and %d", what, got.NodeName.Name, got.Problems, name, problems)
			}
		}
		want("no file", "", 0)
		d.must(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("worker-1\n"), 0o600))
		d.send(file)
		want("file", "worker-1", 0)
		d.must(os.WriteFile(file, []byte("\xff"), 0o600))
		for range 2 {
			d.send(file)
			want("file without a name", "", 1)
		}
		d.must(os.Remove(file))
		d.send(file)
		want("no file again", "", 0)
	})
}

func TestMostProblemsAreReportedWithoutAnother(t *testing.T) {
	l := newIPAMLab(t)
	s := &scripted{}
	l.ipam.sources = []ipam.FileSource{s}
	for i := range maxProblems {
		s.problems = append(s.problems, fmt.Sprint(i))
	}
	l.ipam.publishStatus()
	if got := l.ipam.Health().Problems; !slices.Equal(got, s.problems) {
		t.Errorf("problems: got %q, want %q", got, s.problems)
	}
}

func TestHealthNamesTheIPAMsThatWereNotRead(t *testing.T) {
	l := newIPAMLab(t)
	if got := l.ipam.Health().Unread; !slices.Contains(got, "host-local") {
		t.Errorf("got unread IPAMs %q before they were read, want host-local among them", got)
	}
	told := 0
	l.ipam.StatusChanged = func() { told++ }
	l.ipam.sources[0] = &scripted{problems: []string{"no permission"}}
	l.ipam.ipams[l.ipam.sources[0]] = "broken"
	l.ipam.all = true
	for range 2 {
		l.ipam.look(time.Now())
	}
	if got := l.ipam.Health(); len(got.Unread) > 0 || !slices.Equal(got.Unreadable, []string{"broken"}) || told != 1 {
		t.Errorf("got %+v and %d calls after all was read, want nothing unread, one unreadable, told once", got, told)
	}
}

func TestUnchangedPoolIsPublishedOnce(t *testing.T) {
	l := newIPAMLab(t)
	path := filepath.Join(l.root, "state")
	l.ipam.sources = []ipam.FileSource{&oneFile{host: &host{}, path: path}}
	l.must(os.WriteFile(path, []byte("10.1.0.2 a\nend\n"), 0o600))
	l.ipam.all = true
	for _, want := range []bool{true, false} {
		l.ipam.look(time.Now())
		woken := len(l.reader.Wake()) == 1
		if woken {
			<-l.reader.Wake()
		}
		if got := l.reader.Take(time.Now()) != nil; got != want || woken != want {
			t.Errorf("got changes %v and the reader woken %v, want %v", got, woken, want)
		}
	}
}

func TestFormerPlaceIsNoLongerWatched(t *testing.T) {
	l := newIPAMLab(t)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watcher.Close() }()
	first, second := filepath.Join(l.root, "first"), filepath.Join(l.root, "second")
	l.must(os.Mkdir(first, 0o700), os.Mkdir(second, 0o700))
	s := &scripted{place: first}
	l.ipam.watcher, l.ipam.sources, l.ipam.names = watcher, []ipam.FileSource{s}, nil
	for _, s.place = range []string{first, second} {
		l.ipam.watch()
		for _, dir := range []string{first, second} {
			if got, want := slices.Contains(watcher.WatchList(), dir), dir == s.place; got != want {
				t.Errorf("place %s: got %s watched %v, want %v", s.place, dir, got, want)
			}
		}
	}
	if !slices.Contains(watcher.WatchList(), l.root) {
		t.Errorf("watched directories: got %q, want the parent of the place in them", watcher.WatchList())
	}
}

func TestMissingDirectoryHasNoIdentity(t *testing.T) {
	if id, err := identify(unix.AT_FDCWD, filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) || id != (ipam.DirID{}) {
		t.Errorf("got %+v and error %v, want %v", id, err, os.ErrNotExist)
	}
}

func TestIdentityHasTheTimeOfBirth(t *testing.T) {
	dir := t.TempDir()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_BTIME, &st); err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	if st.Mask&unix.STATX_BTIME != 0 {
		want = time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)).UnixNano()
	}
	if id, err := identify(unix.AT_FDCWD, dir); err != nil || id.Born != want {
		t.Errorf("time of birth: got %d and error %v, want %d", id.Born, err, want)
	}
}

func TestDirectoryThatWasRemovedUnderItsMountIsClosed(t *testing.T) {
	alone.Run(t, func() {
		dir := t.TempDir()
		original, mounted := filepath.Join(dir, "original"), filepath.Join(dir, "mounted")
		if err := errors.Join(os.Mkdir(original, 0o700), os.Mkdir(mounted, 0o700), unix.Mount(original, mounted, "", unix.MS_BIND, ""), os.Remove(original)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
		if _, _, err := (&host{}).OpenDir(mounted); !errors.Is(err, ipam.ErrOrphaned) {
			t.Fatalf("open: got error %v, want %v", err, ipam.ErrOrphaned)
		}
		var want unix.Stat_t
		if err := unix.Stat(mounted, &want); err != nil {
			t.Fatal(err)
		}
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range all {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join("/proc/self/fd", fd.Name()), &st); err == nil && st.Dev == want.Dev && st.Ino == want.Ino {
				t.Errorf("descriptor %s of the directory is open", fd.Name())
			}
		}
	})
}

package workload

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/tests/alone"
	"github.com/ipwitness/ipwitness/tests/wait"
)

func TestPathIsWithinADirectory(t *testing.T) {
	for _, c := range []struct {
		path string
		want bool
	}{
		{"/run/netns", true},
		{"/run/netns/a", true},
		{"/run/netns/a/b", true},
		{"/run/netnsx", false},
		{"/run", false},
		{"", false},
		{"/x/run/netns", false},
		{"/var/lib", false},
	} {
		if got := table.Within(c.path, "/run/netns"); got != c.want {
			t.Errorf("%q within /run/netns: got %v, want %v", c.path, got, c.want)
		}
	}
}

func TestDirectoryThatAppearsAtAnyMomentIsWatched(t *testing.T) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	top := t.TempDir()
	for i := range 100 {
		dir := filepath.Join(top, strconv.Itoa(i), "missing/too")
		created := make(chan error)
		go func() { created <- os.MkdirAll(dir, 0o755) }()
		watchPath(w, dir)
		if err := <-created; err != nil {
			t.Fatal(err)
		}
		for !slices.Contains(w.WatchList(), dir) {
			select {
			case <-w.Events:
				watchPath(w, dir)
			case <-time.After(wait.Patience()):
				t.Fatalf("no event about %s: got watches of %v", dir, w.WatchList())
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	watchPath(w, top) // nothing can be watched any more: it must return
}

func TestVersionChangesWithTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if got := versionOf(path); got != (fileVersion{}) {
		t.Errorf("version of a missing file: got %+v, want none", got)
	}
	if err := os.WriteFile(path, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := versionOf(path)
	if before == (fileVersion{}) || before != versionOf(path) {
		t.Errorf("version of an unchanged file: got %+v and %+v, want the same", before, versionOf(path))
	}
	if err := os.WriteFile(path, []byte("ab"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := versionOf(path); got == before {
		t.Errorf("version of a changed file: got %+v as before", got)
	}
}

// mount binds source to target until the test ends. An empty source is a new file system.
func mount(t *testing.T, source, target string) {
	t.Helper()
	fstype, flags := "tmpfs", uintptr(0)
	if source != "" {
		fstype, flags = "", unix.MS_BIND
	}
	if err := unix.Mount(source, target, fstype, flags, ""); err != nil {
		t.Fatal("mount: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
}

func TestDirectoryIsReadWithTheInodesOfItsEntries(t *testing.T) {
	alone.Run(t, func() {
		dir := t.TempDir()
		want := map[string]uint64{}
		for _, name := range []string{"a", "..b", ".c", "netns"} {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			inode, err := inodeOf(path)
			if err != nil {
				t.Fatal(err)
			}
			want[name] = inode
		}
		// A file is mounted over one of them, as "ip netns add" does.
		mount(t, "/proc/self/ns/net", filepath.Join(dir, "netns"))
		got, err := readDir(dir)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("directory: got %v and error %v, want %v", got, err, want)
		}
		if inode, err := inodeOf(filepath.Join(dir, "netns")); err != nil || inode == want["netns"] {
			t.Errorf("inode of what is mounted: got %d and error %v, want another one than that of the entry", inode, err)
		}
		if _, err := readDir(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("missing directory: got error %v, want that it does not exist", err)
		}
		if _, err := inodeOf(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("inode of a missing file: got error %v, want that it does not exist", err)
		}

		open := func() int {
			names, err := readDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			return len(names)
		}
		before := open()
		for range 10 {
			_, _ = readDir(dir)
			_, _, _ = table.ReadRegular(filepath.Join(dir, "a"), 0, maxResult)
		}
		if got := open(); got != before {
			t.Errorf("open files: got %d after reading, want %d as before", got, before)
		}
	})
}

// Without descriptors, nothing that was known is forgotten, and a problem says what is not seen as long as it is not seen.
func TestExhaustedDescriptorsForgetNoName(t *testing.T) {
	alone.Run(t, func() {
		n, _ := newTestNames(t)
		dir := filepath.Join(n.cni.dir, "..", "netns")
		n.netnsDirs = []string{dir}
		for _, err := range []error{
			os.MkdirAll(n.cni.dir, 0o700), os.MkdirAll(dir, 0o700),
			os.WriteFile(filepath.Join(n.cni.dir, "pods-x-eth0"), []byte(`{"netns":"/run/netns/a","cniArgs":[["K8S_POD_NAME","web"]]}`), 0o600),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := n.cni.read(); err != nil {
			t.Fatal(err)
		}
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
		allow(0)
		for range 2 {
			n.files = map[netnsFile]namedNetns{{filepath.Join(dir, "a"), 7}: {inode: 8}}
			if n.lookFiles(false); len(n.files) != 1 {
				t.Errorf("got files %v without descriptors, want the earlier ones", n.files)
			}
			if n.Look(true); len(n.cni.results) != 1 {
				t.Errorf("got results %v without descriptors, want the earlier ones", n.cni.results)
			}
			if p := n.lacks.Problems(); len(p) != 1 || !strings.Contains(p[0], "too many open files): raise the agent's limit of open files") {
				t.Errorf("got problems %q without descriptors, want one with the limit", p)
			}
		}
		allow(limit.Cur)
		if n.Look(false); len(n.lacks.Problems()) != 0 || len(n.cni.results) != 1 || len(n.files) != 0 {
			t.Errorf("got problems %q, results %v, files %v, want no problem and what there is", n.lacks.Problems(), n.cni.results, n.files)
		}
	})
}

func TestWhatCannotBeOpenedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		l := &Lacks{}
		l.Changed = func() { told = append(told, strings.Join(l.Problems(), ";")) }
		tries := 0
		err := l.Until(t.Context(), "names are late", func() error {
			if tries++; tries < 3 {
				return unix.EMFILE
			}
			return nil
		})
		if err != nil || !errors.Is(l.Until(t.Context(), "names are late", func() error { return fs.ErrNotExist }), fs.ErrNotExist) {
			t.Errorf("got %v, want nil, and another error at once", err)
		}
		want := []string{"names are late (too many open files): " + table.Lack(unix.EMFILE), ""}
		if tries != 3 || !slices.Equal(told, want) {
			t.Errorf("got %q after %d attempts, want %q after 3", told, tries, want)
		}
	})
}

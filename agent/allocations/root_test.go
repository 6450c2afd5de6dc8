package allocations

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/tests/agenttest"
	"github.com/ipwitness/ipwitness/tests/alone"
)

func TestOwnRootIsKnownByTheFirstProcess(t *testing.T) {
	const initPIDs, otherPIDs = InitialPIDNamespace, "pid:[7]"
	for name, c := range map[string]struct {
		pidns, first, root string
		want               Root
		blind              bool
	}{
		"host":                          {initPIDs, "systemd", "/", false, false},
		"host, not allowed to look":     {initPIDs, "systemd", "", false, false},
		"machine with a small init":     {initPIDs, "tini", "/", false, false},
		"container with hostPID":        {initPIDs, "systemd", "/proc", true, false},
		"container":                     {otherPIDs, "ipwitness", "/", true, true},
		"container, not allowed":        {otherPIDs, "ipwitness", "", true, true},
		"container with an init":        {otherPIDs, "docker-init", "/", false, true},
		"pod that shares its processes": {otherPIDs, "pause", "/proc", true, true},
		"node in a namespace":           {otherPIDs, "sh", "/", false, false},
		"node that is a container":      {otherPIDs, "systemd", "/", false, false},
		"chroot in one":                 {otherPIDs, "systemd", "/proc", true, false},
		"node that is one, not allowed": {otherPIDs, "systemd", "", false, false},
	} {
		p := agenttest.NewTree(t)
		p.Put(os.Getpid(), 1, "ipwitness", 2, 10, "/")
		p.Put(1, 0, c.first, 1, 10, "/")
		for link, to := range map[string]string{"self/ns/pid": c.pidns, "1/root": c.root} {
			path := filepath.Join(p.Dir, link)
			if to == "" {
				continue
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, path); err != nil {
				t.Fatal(err)
			}
		}
		if got := FindRoot(p.Dir); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		if got, want := SeesProcesses(p.Dir), !c.blind; got != want {
			t.Errorf("%s: sees all processes of the machine: got %v, want %v", name, got, want)
		}
	}
	p := agenttest.NewTree(t)
	if got := FindRoot(p.Dir); got {
		t.Errorf("no processes and no PID namespace: got %v, want false", got)
	}
	p.Put(os.Getpid(), 1, "ipwitness", 2, 10, "/")
	p.Put(1, 0, "ipwitness", 1, 10, "/")
	if got := FindRoot(p.Dir); got {
		t.Errorf("unknown PID namespace: got %v, want false", got)
	}
	if err := os.MkdirAll(filepath.Join(p.Dir, "self/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := func(to string) {
		t.Helper()
		_ = os.Remove(filepath.Join(p.Dir, "self/ns/pid"))
		if err := os.Symlink(to, filepath.Join(p.Dir, "self/ns/pid")); err != nil {
			t.Fatal(err)
		}
	}
	link(initPIDs)
	if got := FindRoot(p.Dir); got {
		t.Errorf("ipwitness as the first process of a machine: got %v, want false", got)
	}
	link(otherPIDs)
	for _, pid := range []int{1, os.Getpid()} {
		p.End(pid)
	}
	if got := FindRoot(p.Dir); got {
		t.Errorf("processes that cannot be read: got %v, want false", got)
	}
	// The root directory of the first process is on the same file system as ours.
	p.Put(1, 0, "systemd", 1, 10, "/")
	if err := os.Symlink("/usr", filepath.Join(p.Dir, "1/root")); err != nil {
		t.Fatal(err)
	}
	if got := FindRoot(p.Dir); !got {
		t.Errorf("chroot: got %v, want true", got)
	}
}

func TestMountedDirectoryCanBeReached(t *testing.T) {
	alone.NeedsDisk(t)
	alone.Run(t, func() {
		base := t.TempDir()
		at := func(name string) string { return filepath.Join(base, name) }
		for _, err := range []error{
			os.Mkdir(at("here"), 0o755),
			os.Mkdir(at("mounted"), 0o755),
			os.Symlink("mounted", at("relative")),
			os.Symlink(at("mounted/later"), at("dangling")),
			os.Symlink("here/nothing", at("lost")),
			os.Mkdir(at("marked (deleted)"), 0o755),
			os.Mkdir(at("removed"), 0o755),
			os.Mkdir(at("seen"), 0o755),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		mount(t, "", at("mounted"))
		mount(t, at("removed"), at("seen"))
		own := Root(true)
		for path, want := range map[string]string{
			at("mounted"): "", at("mounted/missing/too"): "", at("relative"): "", at("relative/missing"): "", at("dangling"): "", at("dangling/x"): "",
			at("here"): base, at("here/x"): at("here"), at("lost"): at("here"), at("lost/x"): at("here/nothing"), "/": "/",
		} {
			err := own.Reach(path)
			if want == "" {
				if err != nil {
					t.Errorf("%s: got error %v, want none", path, err)
				}
			} else if !errors.Is(err, ErrNotMounted) || !strings.Contains(err.Error(), "mount "+want+" of") {
				t.Errorf("%s: got error %v, want that %s is not mounted", path, err, want)
			}
		}
		if err := own.ReachAny([]string{at("here/x"), at("mounted")}); err != nil {
			t.Errorf("one of two is mounted: got error %v", err)
		}
		if err := own.ReachAny([]string{at("here/x"), "/no-such/dir"}); err == nil || !strings.Contains(err.Error(), at("here")) {
			t.Errorf("none is mounted: got error %v, want that of the first", err)
		}
		if err := own.ReachAny(nil); err != nil {
			t.Errorf("no directory: got error %v", err)
		}

		if Orphaned(at("seen")) || Orphaned(at("seen/x")) {
			t.Error("mounted directory: got orphaned")
		}
		if err := os.Remove(at("removed")); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]bool{
			at("seen"): true, at("seen/x/y"): true, at("mounted"): false, at("missing"): false, at("marked (deleted)"): false, "/": false,
		} {
			if got := Orphaned(path); got != want {
				t.Errorf("%s: got orphaned %v, want %v", path, got, want)
			}
		}
	})
}

func TestFilesOnTheContainersRootAreNotTheNodes(t *testing.T) {
	loop := filepath.Join(t.TempDir(), "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"/no-such/ipam/state": "mount /no-such/ipam of the node",
		"/no-such":            "mount /no-such of the node", // not its parent, which is the root
		"/proc/no-such/dir":   "",
	} {
		err := Root(true).Reach(dir)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", dir, err, want)
		}
		if err := Root(false).Reach(dir); err != nil {
			t.Errorf("%s on a host: got %v, want none", dir, err)
		}
	}
	_ = Root(true).Reach(loop) // must return in spite of the loop
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

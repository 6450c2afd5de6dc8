package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/agent/proc"
	"github.com/ipwitness/ipwitness/agent/proc/proctest"
)

func TestOwnRootIsKnownByTheFirstProcess(t *testing.T) {
	const initPIDs, otherPIDs = InitialPIDNamespace, "pid:[7]"
	for name, c := range map[string]struct {
		pidns, first, root string
		want               Root
	}{
		"host":                          {initPIDs, "systemd", "/", false},
		"host, not allowed to look":     {initPIDs, "systemd", "", false},
		"container with hostPID":        {initPIDs, "systemd", "/proc", true},
		"container":                     {otherPIDs, "ipwitness", "/", true},
		"container, not allowed":        {otherPIDs, "ipwitness", "", true},
		"node that is a container":      {otherPIDs, "systemd", "/", false},
		"chroot in one":                 {otherPIDs, "systemd", "/proc", true},
		"node that is one, not allowed": {otherPIDs, "systemd", "", false},
	} {
		p := proctest.New(t)
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
		if got := FindRoot(proc.Dir(p.Dir)); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
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

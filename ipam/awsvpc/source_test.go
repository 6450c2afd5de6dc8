package awsvpc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

var (
	web = entry(`"ipv4":"10.0.0.5"`)
	db  = entry(`"ipv4":"10.0.0.6","containerID":"c2"`)
)

const (
	webShown = "10.0.0.5 default/web c1 eth0"
	dbShown  = "10.0.0.6 default/web c2 eth0"
)

func TestCheckpointIsFollowed(t *testing.T) {
	l := newLab(t)
	l.write(checkpointName, string(real(t, "secondary")))
	l.look()
	l.want(checkpointName, "10.0.96.5 default/web-0 c0ffee01 eth0", "10.0.97.6 kube-system/coredns-1 c0ffee02 eth0")
	if p := l.pool(checkpointName); p.State != ipam.Known || p.Problem != "" || p.Network != "aws-cni" || p.Name != l.path(checkpointName) || p.Config != "" {
		t.Errorf("got %+v", p)
	}
	if l.look(); l.changes != 0 {
		t.Errorf("nothing changed: got %d changes", l.changes)
	}
	l.write(checkpointName, checkpointOf(web))
	if l.read(); l.changes != 0 {
		t.Errorf("without an event: got %d changes", l.changes)
	}
	l.event(checkpointName, false)
	l.want(checkpointName, webShown)
	l.write(checkpointName, checkpointOf(web, db))
	if l.event(checkpointName, false); l.changes != 1 {
		t.Errorf("one more: got %d changes, want 1", l.changes)
	}
	l.write(checkpointName, checkpointOf(strings.Replace(web, "c1", "c9", 1), db))
	if l.event(checkpointName, false); l.changes != 1 {
		t.Errorf("one for another container: got %d changes, want 1", l.changes)
	}
	l.want(checkpointName, "10.0.0.5 default/web c9 eth0", dbShown)
	// Without events, it is read again as well.
	l.write(checkpointName, checkpointOf(web))
	l.look()
	l.want(checkpointName, webShown)
	l.write(checkpointName, checkpointOf(db))
	l.take(ipam.FileRead{Lost: true})
	l.want(checkpointName, dbShown)
	l.write(checkpointName, checkpointOf())
	l.event(checkpointName, false)
	l.want(checkpointName)
	if p := l.pool(checkpointName); p.State != ipam.Known || p.Lost != 0 || len(l.source.Problems()) != 0 {
		t.Errorf("all were released: got %+v, want no loss", p)
	}
}

func TestNodeWithoutTheAWSVPCCNIHasNoPool(t *testing.T) {
	l := newLab(t)
	nothing := func(what string) {
		t.Helper()
		if l.look(); len(l.source.Pools()) != 0 || len(l.source.Problems()) != 0 || l.again || !slices.Equal(l.source.Places(), []string{l.source.dir}) {
			t.Errorf("%s: got %d pools, problems %q, again %v, places %q", what, len(l.source.Pools()), l.source.Problems(), l.again, l.source.Places())
		}
	}
	nothing("no directory")
	l.host.Hidden[l.source.dir] = errors.New("mount it")
	nothing("directory that is not mounted, and no configuration")
	clear(l.host.Hidden)
	l.must(os.MkdirAll(l.source.dir, 0o755))
	nothing("empty directory")
	for _, name := range []string{"ipamd.sock", "ipam.json.tmp123", "ipam.json.old", "ipam-nic-.json", "ipam-nic-x.json", "ipam-nic-1", "ipam-nic-1.json.tmp"} {
		l.must(os.WriteFile(l.path(name), []byte(checkpointOf(web)), 0o600))
	}
	nothing("other files")
	l.write(checkpointName, checkpointOf())
	if l.look(); len(l.source.Pools()) != 1 || !slices.Equal(l.source.Places(), []string{l.source.dir, l.source.branches.dir}) {
		t.Errorf("checkpoint: got %d pools, places %q", len(l.source.Pools()), l.source.Places())
	}
	if s := newSource(l.host, ipam.FilesConfig{}).(*source); s.dir != "/run/aws-node" || s.branches.dir != "/var/lib/cni/results" {
		t.Errorf("usual directories: got %s and %s", s.dir, s.branches.dir)
	}
}

func TestEventsOfOtherFilesAreNotHandled(t *testing.T) {
	l := newLab(t)
	l.write(checkpointName, checkpointOf())
	l.look()
	for name, want := range map[string]bool{
		"ipam.json": true, "ipam.json.tmp123": true, "ipam-nic-1.json.tmp5": true, "ipam-nic-1.json": false, "ipamd.sock": false, "x.tmp1": false, "ipam.json.old": false,
	} {
		if got := l.source.Event(l.path(name), false); got != want {
			t.Errorf("%s: got handled %v, want %v", name, got, want)
		}
	}
	for path, want := range map[string]bool{l.source.dir: false, filepath.Join(l.source.branches.dir, "x"): true, l.source.branches.dir: false, "/ipam.json": false} {
		if got := l.source.Event(path, true); got != want {
			t.Errorf("%s: got handled %v, want %v", path, got, want)
		}
	}
}

func TestEachNetworkCardHasACheckpoint(t *testing.T) {
	l := newLab(t)
	l.write(checkpointName, checkpointOf(web))
	l.write("ipam-nic-1.json", checkpointOf(db))
	l.result("aws-cni-c7-eth0", branchResult)
	l.look()
	l.want(checkpointName, webShown, "198.18.81.5 /  ")
	l.want("ipam-nic-1.json", dbShown)
	l.write("ipam-nic-1.json", "broken")
	l.event("ipam-nic-1.json", false)
	if p := l.pool("ipam-nic-1.json"); p.State != ipam.Unreadable || l.pool(checkpointName).State != ipam.Known {
		t.Errorf("got %+v, want one of two unreadable", p)
	}
	l.want(checkpointName, webShown, "198.18.81.5 /  ")
	l.must(os.Remove(l.path(checkpointName)))
	l.write("ipam-nic-1.json", checkpointOf(db))
	l.look()
	if p := l.pool(checkpointName); p.State != ipam.Missing || l.pool("ipam-nic-1.json").State != ipam.Known {
		t.Errorf("got %+v, want one of two missing", p)
	}
}

func TestCheckpointThatDisappearsIsALoss(t *testing.T) {
	for name, remove := range map[string]func(l *lab) error{
		"file":      func(l *lab) error { return os.Remove(l.path(checkpointName)) },
		"directory": func(l *lab) error { return os.RemoveAll(l.source.dir) },
	} {
		l := newLab(t)
		l.write(checkpointName, checkpointOf(web, db))
		l.look()
		l.must(remove(l))
		l.look()
		p := l.pool(checkpointName)
		if l.want(checkpointName); p.State != ipam.Missing || p.Lost != 2 || !p.LostAt.Equal(l.now) || p.Problem != "the file does not exist: it was removed, or its directory was" || len(l.source.Problems()) != 0 {
			t.Errorf("%s: got %+v, problems %q, want a loss", name, p, l.source.Problems())
		}
		l.now = l.now.Add(time.Minute)
		if l.look(); !l.pool(checkpointName).LostAt.Equal(p.LostAt) {
			t.Errorf("%s: got %+v a minute later", name, l.pool(checkpointName))
		}
		// Another ipamd starts without the allocations.
		l.write(checkpointName, checkpointOf(strings.Replace(web, "c1", "c9", 1)))
		l.look()
		if p := l.pool(checkpointName); p.State != ipam.Known || p.Lost != 2 || p.LostAt.IsZero() {
			t.Errorf("%s: got %+v with another container, want the loss still", name, p)
		}
		// The same ipamd writes what it has in memory.
		l.write(checkpointName, checkpointOf(db))
		l.look()
		if p := l.pool(checkpointName); p.State != ipam.Known || p.Lost != 0 || !p.LostAt.IsZero() {
			t.Errorf("%s: got %+v with one of them, want no loss", name, p)
		}
	}
}

func TestEmptyCheckpointThatDisappearsIsNoLoss(t *testing.T) {
	l := newLab(t)
	l.write(checkpointName, checkpointOf())
	l.look()
	l.must(os.Remove(l.path(checkpointName)))
	l.look()
	if p := l.pool(checkpointName); p.State != ipam.Missing || p.Lost != 0 || !p.LostAt.IsZero() {
		t.Errorf("got %+v, want no loss", p)
	}
}

func TestCheckpointThatIsBeingWrittenIsReadAgainSoon(t *testing.T) {
	l := newLab(t)
	half := checkpointOf(web, db)[:100]
	l.writeAt(checkpointName, half, 0)
	l.look()
	if p := l.pool(checkpointName); !l.again || p.State != ipam.Reading || len(l.source.Problems()) != 0 {
		t.Errorf("first: got again %v, %+v", l.again, p)
	}
	l.write(checkpointName, checkpointOf(web))
	if l.read(); l.again { // it is due without an event
		t.Error("whole file: got again")
	}
	l.want(checkpointName, webShown)
	l.writeAt(checkpointName, half, 0)
	l.event(checkpointName, false)
	if p := l.pool(checkpointName); !l.again || p.State != ipam.Known {
		t.Errorf("later: got again %v, %+v, want the previous content", l.again, p)
	}
	l.want(checkpointName, webShown)
	l.now = l.now.Add(2 * ipam.Settled)
	l.read()
	if p := l.pool(checkpointName); l.again || p.State != ipam.Unreadable || !strings.HasPrefix(p.Problem, "parse JSON: ") {
		t.Errorf("after that: got again %v, %+v", l.again, p)
	}
	l.want(checkpointName)
	if problems := l.source.Problems(); len(problems) != 1 || !strings.HasPrefix(problems[0], "cannot read the allocations of the AWS VPC CNI in "+l.path(checkpointName)+": parse JSON: ") {
		t.Errorf("got problems %q", problems)
	}
	l.write(checkpointName, checkpointOf(db))
	l.event(checkpointName, false)
	if p := l.pool(checkpointName); p.State != ipam.Known || p.Problem != "" || p.Lost != 0 || len(l.source.Problems()) != 0 {
		t.Errorf("whole file again: got %+v, problems %q", p, l.source.Problems())
	}
	l.want(checkpointName, dbShown)
}

func TestCheckpointThatCannotBeReadIsUnreadable(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *lab)
		want   string
	}{
		"newer version": {func(l *lab) { l.write(checkpointName, `{"version":"vpc-cni-ipam/2","allocations":[]}`) }, `its version is "vpc-cni-ipam/2"`},
		"huge file":     {func(l *lab) { l.write(checkpointName, strings.Repeat(" ", maxFileSize+1)) }, "not a regular file of at most 8388608 bytes"},
		"link": {func(l *lab) {
			l.write("other", checkpointOf(web))
			l.must(os.Remove(l.path(checkpointName)), os.Symlink(l.path("other"), l.path(checkpointName)))
		}, "not a regular file"},
		"directory": {func(l *lab) {
			l.must(os.Remove(l.path(checkpointName)), os.Mkdir(l.path(checkpointName), 0o755))
		}, "not a regular file"},
		"permission of the file":      {func(l *lab) { l.host.Broken[l.path(checkpointName)] = os.ErrPermission }, "permission denied: give the agent's user read access to it"},
		"permission of the directory": {func(l *lab) { l.host.Broken[l.source.dir] = os.ErrPermission }, "permission denied: give the agent's user read access to it"},
		"not visible":                 {func(l *lab) { l.host.Hidden[l.source.dir] = errors.New("mount /run") }, "mount /run"},
	} {
		l := newLab(t)
		l.write(checkpointName, checkpointOf(web, db))
		l.look()
		c.change(l)
		l.look()
		p := l.pool(checkpointName)
		if problems := l.source.Problems(); p.State != ipam.Unreadable || !strings.HasPrefix(p.Problem, c.want) || p.Lost != 0 || len(problems) != 1 || !strings.HasSuffix(problems[0], p.Problem) {
			t.Errorf("%s: got %+v, problems %q", name, p, problems)
		}
		l.want(checkpointName)
		clear(l.host.Broken)
		clear(l.host.Hidden)
		l.must(os.RemoveAll(l.path(checkpointName)))
		l.write(checkpointName, checkpointOf(web))
		l.look()
		l.want(checkpointName, webShown)
		if p := l.pool(checkpointName); p.State != ipam.Known || p.Problem != "" {
			t.Errorf("%s: got %+v afterwards", name, p)
		}
	}
}

func TestMountedDirectoryThatWasRemovedIsALoss(t *testing.T) {
	l := newLab(t)
	l.write(checkpointName, checkpointOf(web))
	l.look()
	l.host.Broken[l.source.dir] = fmt.Errorf("read: %w", ipam.ErrOrphaned)
	l.look()
	if p := l.pool(checkpointName); p.State != ipam.Unreadable || p.Lost != 1 || !strings.Contains(p.Problem, "mount its parent") {
		t.Errorf("got %+v", p)
	}
}

func TestMissingMountIsAProblemWhereTheAWSVPCCNIIsConfigured(t *testing.T) {
	l := newLab(t)
	l.host.Hidden[l.source.dir] = errors.New("mount /run")
	path := filepath.Join(l.conf, "10-aws.conflist")
	l.must(os.MkdirAll(l.conf, 0o755), os.WriteFile(path, []byte("{}"), 0o600))
	l.look()
	if p := l.pool(checkpointName); p.State != ipam.Unreadable || p.Problem != "mount /run" || p.Config != path || len(l.source.Problems()) != 1 {
		t.Errorf("got %+v, problems %q", p, l.source.Problems())
	}
	clear(l.host.Hidden)
	if l.look(); len(l.source.Pools()) != 0 || len(l.source.Problems()) != 0 {
		t.Errorf("mounted, and no checkpoint yet: got %+v, problems %q", l.pool(checkpointName), l.source.Problems())
	}
	l.write(checkpointName, checkpointOf())
	l.look()
	if p := l.pool(checkpointName); p.State != ipam.Known || p.Config != path {
		t.Errorf("checkpoint: got %+v", p)
	}
	l.must(os.Remove(path))
	if l.look(); l.pool(checkpointName).Config != "" {
		t.Errorf("configuration that was removed: got %+v", l.pool(checkpointName))
	}
	// A directory that exists and cannot be read shows that the node uses the AWS VPC CNI.
	l = newLab(t)
	l.host.Broken[l.source.dir] = os.ErrPermission
	if l.look(); l.pool(checkpointName).State != ipam.Unreadable {
		t.Errorf("directory without permission: got %+v", l.pool(checkpointName))
	}
}

func TestInvalidEntriesAreAProblemOfAKnownPool(t *testing.T) {
	l := newLab(t)
	l.write(checkpointName, checkpointOf(web, entry(`"ipv4":"mine"`)))
	l.look()
	if p := l.pool(checkpointName); p.State != ipam.Known || p.Problem != "1 of its 2 entries have no valid address" || len(l.source.Problems()) != 0 {
		t.Errorf("got %+v, problems %q", p, l.source.Problems())
	}
	l.want(checkpointName, webShown)
}

func TestCheckpointThatCannotBeWatchedIsStale(t *testing.T) {
	l := newLab(t)
	l.write(checkpointName, checkpointOf(web))
	l.watch.Err = errors.New("no space left on device")
	l.look()
	if p := l.pool(checkpointName); p.State != ipam.Stale || p.Problem != "" {
		t.Errorf("got %+v, want it stale, and no problem of the pool", p)
	}
	l.want(checkpointName, webShown)
}

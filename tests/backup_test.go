package tests

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// An aggregator that is started with a backup knows the history, conflicts and acknowledgements of its
// moment, and continues.
func TestABackupIsRestored(t *testing.T) {
	t.Parallel()
	const addr, later = "10.244.0.7", "10.244.0.8"
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "data", "journal"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := newAggregator(t, "--data-dir", filepath.Join(dir, "data"))
	n := c.addNode("node1")
	n.pod("a", addr+"/32")
	n.pod("b", addr+"/32")
	c.watch.await("the duplicate to be confirmed", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
	c.says("acknowledge", addr, "--reason", "NET-42", "--for", "1d")
	before := c.only(addr)
	var told history
	wait.Until(t, "the conflict in the history", func() bool {
		told = c.history(addr)
		return told.conflict(before.GetId(), "CONFIRMED") && told.open == 0
	})

	to := filepath.Join(dir, "backup")
	if err := os.Mkdir(to, 0o700); err != nil { // an empty directory may exist
		t.Fatal(err)
	}
	wantWords(t, c.says("backup", to), to, "files", "bytes")
	wantWords(t, refused(t, c.Host, 1, "backup", to), "not empty")
	n.pod("c", later+"/32")
	wait.Until(t, "a change after the backup", func() bool { return len(c.history(later).events) > 0 })

	if readable, err := c.Run("find %s/data %s -mindepth 1 -perm /077", dir, to); err != nil || readable != "" {
		t.Errorf("got %v and files that other users can read, want none:\n%s", err, readable)
	}

	c.sh("mkdir -p /run/small", "mount -t tmpfs -o size=8k none /run/small")
	wantWords(t, refused(t, c.Host, 1, "backup", "/run/small/backup"), "no space")
	wantWords(t, refused(t, c.Host, 1, "backup", "/run/small"), "mount point")
	for _, in := range []string{c.Path("/run/small"), dir, filepath.Join(dir, "data")} {
		entries, err := os.ReadDir(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.Contains(e.Name(), "partial") || strings.Contains(e.Name(), "backup.tmp") {
				t.Errorf("got %s in %s, want nothing left behind", e.Name(), in)
			}
		}
	}

	c.program.Kill()
	c.flags = []string{"--data-dir", to}
	c.serve()
	c.watch.await("the conflict from the backup", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
	restored := c.only(addr)
	if restored.GetId() != before.GetId() || restored.GetEpisode() != before.GetEpisode() || !proto.Equal(restored.GetDetectedAt(), before.GetDetectedAt()) {
		t.Errorf("got %v from the backup, want %v", restored, before)
	}
	wait.Until(t, "the acknowledged conflict", func() bool { return c.only(addr).GetAcknowledgement().GetReason() == "NET-42" })
	var after history
	wait.Until(t, "the change after the backup, found again", func() bool {
		after = c.history(later)
		return len(after.events) == 1 && after.open == 0
	})
	if after.events[0]["notBefore"] == nil {
		t.Errorf("got %v, want a change in the gap since the backup", after.events)
	}
	after = c.history(addr)
	if len(after.events) < len(told.events) || !reflect.DeepEqual(after.events[:len(told.events)], told.events) {
		t.Errorf("got %+v from the backup, want %+v first", after.events, told.events)
	}

	c.program.Kill()
	c.flags = []string{"--data-dir", "off"}
	c.serve()
	wantWords(t, refused(t, c.Host, 1, "backup", filepath.Join(dir, "none")), "in memory", "--data-dir")
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("got a directory for a backup that was not made")
	}
}

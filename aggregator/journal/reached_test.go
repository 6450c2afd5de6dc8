package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestMissingMarkerIsDamage(t *testing.T) {
	dir := t.TempDir()
	put := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(when string, damaged bool) {
		t.Helper()
		if err := marked(dir); (err != nil) != damaged || err != nil && !unusable(err) {
			t.Errorf("%s: got %v, want damaged %t", when, err, damaged)
		}
	}
	want("an empty directory", false)
	put("LOCK", "000002.log")
	want("a store that was about to begin", false)
	put("MANIFEST-000001", "marker.manifest.000001.MANIFEST-000001")
	want("a store", false)
	if err := os.Remove(filepath.Join(dir, "marker.manifest.000001.MANIFEST-000001")); err != nil {
		t.Fatal(err)
	}
	want("a store without its marker", true)
	dir = filepath.Join(dir, "none")
	want("no directory", false)
}

func TestFilesOfTheJournalAreNotReadableByOthers(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{os.Mkdir(storeDir(dir), 0o755), os.Chmod(storeDir(dir), 0o755), syscall.Mkfifo(filepath.Join(dir, reachedFile+".tmp"), 0o666)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b := newBench(t, dir)
	b.state(nil)
	b.add(2 * reachedEvery)
	b.restart()
	for name, want := range map[string]os.FileMode{"journal": os.ModeDir | 0o700, reachedFile: 0o600} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", name, info, err, want)
		}
	}
}

// Records that had been written and are missing are a problem for as long as the journal would have had them.
func TestMissingRecordsAreAProblemForTheRetention(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(nil)
	b.stop()
	if err := os.WriteFile(filepath.Join(b.dir, reachedFile), fmt.Appendf(nil, "%d none 0\n", b.Now().Add(time.Hour).UnixMicro()), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	for _, want := range []int{1, 0} {
		if got := b.Problems(); len(got) != want {
			t.Errorf("at %s: got %v, want %d", b.Now(), got, want)
		}
		b.add(DefaultRetention + time.Hour)
	}
}

// A change whose turn comes after the journal has noted a later time is no loss.
func TestALateChangeIsNoLoss(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(nil)
	happened := b.Now()
	b.add(2 * reachedEvery)
	late := func(name, address string) {
		t.Helper()
		b.must(b.Feed(pb.Event_OWNER).Changed(&Change{At: happened, Type: pb.Watch_ADDED, ID: name, Owner: pod(address, name, "n1")}))
	}
	late("a", "10.0.0.1")
	b.must(b.Feed(pb.Event_OWNER).Idle())
	b.flush()
	late("b", "10.0.0.2")
	b.restart()
	if got := b.Problems(); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
}

package journal

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// backUp makes a backup in a new directory, and returns the directory and the names of the files.
func (b *bench) backUp(meanwhile func()) (dir string, names []string) {
	b.Helper()
	dir = b.TempDir()
	seen := map[string]bool{}
	files, err := b.Backup(b.Context(), func(name string, part []byte) error {
		if len(seen) == 0 {
			meanwhile()
		}
		seen[name] = true
		path := filepath.Join(dir, filepath.FromSlash(name))
		b.must(os.MkdirAll(filepath.Dir(path), 0o700))
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		b.must(err)
		_, err = f.Write(part)
		return errors.Join(err, f.Close())
	})
	b.must(err)
	if files != len(seen) {
		b.Errorf("got %d files, want %d", files, len(seen))
	}
	return dir, slices.Sorted(maps.Keys(seen))
}

// A journal that is opened from a backup has the state and the events of the moment of the backup,
// whatever is written meanwhile.
func TestABackupHasOneMoment(t *testing.T) {
	b := newBench(t, t.TempDir())
	for name, text := range map[string]string{"acknowledgements.json": "kept", "journal.damaged-1/000001.sst": "set aside", "lock": "", "acknowledgements.json.tmp": "half", "empty": ""} {
		path := filepath.Join(b.dir, name)
		b.must(os.MkdirAll(filepath.Dir(path), 0o700))
		b.must(os.WriteFile(path, []byte(text), 0o600))
	}
	b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")})
	b.changed(pb.Watch_ADDED, "b", pod("10.0.0.2", "b", "n1"))
	b.flush()
	b.add(time.Second)
	before, events := b.at(b.Now()), len(b.events(Query{}))
	dir, names := b.backUp(func() {
		for range 3000 {
			b.changed(pb.Watch_ADDED, "c", pod("10.0.0.3", "c", "n1"))
		}
		b.flush()
		if _, err := b.Backup(b.Context(), nil); !errors.Is(err, ErrBackupRuns) {
			t.Errorf("got %v of a second backup, want %v", err, ErrBackupRuns)
		}
	})
	for _, want := range []string{"acknowledgements.json", "journal.damaged-1/000001.sst", "empty"} {
		if !slices.Contains(names, want) {
			t.Errorf("got %v, want %s in it", names, want)
		}
	}
	if slices.Contains(names, "lock") || slices.Contains(names, "acknowledgements.json.tmp") {
		t.Errorf("got %v, want no lock and no temporary file", names)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "acknowledgements.json")); err != nil || string(text) != "kept" {
		t.Errorf("got %q and %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(b.dir, backupDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want nothing left behind", err)
	}
	b.add(time.Second)
	if got := b.at(b.Now()); len(got) != 3 {
		t.Errorf("got %v in the original, want the changes after the backup", got)
	}
	restored := newBench(t, dir)
	restored.add(b.Now().Sub(restored.Now()))
	if got := restored.at(b.Now()); !maps.Equal(got, before) {
		t.Errorf("got %v in the backup, want %v", got, before)
	}
	if got := len(restored.events(Query{})); got != events {
		t.Errorf("got %d events in the backup, want %d", got, events)
	}
	if problems := restored.Problems(); len(problems) > 0 {
		t.Errorf("got problems %v", problems)
	}
}

// tightFS is full for some files.
type tightFS struct {
	vfs.FS
	full *atomic.Bool
}

func (f tightFS) err(name string) error {
	if f.full.Load() && filepath.Base(filepath.Dir(filepath.Dir(name))) == backupDir {
		return &os.PathError{Op: "link", Path: name, Err: syscall.ENOSPC}
	}
	return nil
}

func (f tightFS) Link(oldname, newname string) error {
	if err := f.err(newname); err != nil {
		return err
	}
	return f.FS.Link(oldname, newname)
}

func (f tightFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.err(name); err != nil {
		return nil, err
	}
	return f.FS.Create(name, category)
}

// A backup that fails says why, leaves nothing behind, and disturbs neither the journal nor the next
// backup. What a process that was killed left behind is removed.
func TestABackupThatFails(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.stop()
	b.must(os.MkdirAll(filepath.Join(b.dir, backupDir, "journal"), 0o700))
	var full atomic.Bool
	b.startOn(tightFS{vfs.Default, &full})
	nothingLeft := func(when string) {
		t.Helper()
		if _, err := os.Stat(filepath.Join(b.dir, backupDir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v %s, want nothing left behind", err, when)
		}
	}
	nothingLeft("after a start")
	b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")})

	full.Store(true)
	if _, err := b.Backup(b.Context(), func(string, []byte) error { return nil }); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v on a full disk, want %v", err, syscall.ENOSPC)
	}
	nothingLeft("on a full disk")
	full.Store(false)
	gone := errors.New("the client is gone")
	if _, err := b.Backup(b.Context(), func(string, []byte) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("got %v, want %v", err, gone)
	}
	nothingLeft("when the client is gone")
	ctx, cancel := context.WithCancel(b.Context())
	if _, err := b.Backup(ctx, func(string, []byte) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	nothingLeft("when it was cancelled")
	b.changed(pb.Watch_ADDED, "b", pod("10.0.0.2", "b", "n1"))
	b.flush()
	dir, _ := b.backUp(func() {})
	b.add(time.Second)
	if got := newBench(t, dir).at(b.Now()); len(got) != 2 {
		t.Errorf("got %v, want two owners", got)
	}

	memory := newBench(t, "")
	if _, err := memory.Backup(b.Context(), nil); !errors.Is(err, ErrInMemory) {
		t.Errorf("got %v, want %v", err, ErrInMemory)
	}
}

package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// brokenFS is a file system whose disk returns errors while it is set.
type brokenFS struct {
	vfs.FS
	// logs and tables make Sync of tables, and of other files, fail and lose what was written since the
	// last one, as a kernel does: the next Sync succeeds. reads makes reads fail.
	logs, tables, reads atomic.Bool
	// lost is the number of bytes that were lost.
	lost atomic.Int64
}

func (f *brokenFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, category)
	return &brokenFile{File: file, fs: f, syncs: f.syncs(name)}, err
}

func (f *brokenFS) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(from, to, category)
	return &brokenFile{File: file, fs: f, syncs: f.syncs(to)}, err
}

// syncs returns what makes Sync of a file fail.
func (f *brokenFS) syncs(name string) *atomic.Bool {
	if filepath.Ext(name) == ".sst" {
		return &f.tables
	}
	return &f.logs
}

func (f *brokenFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.Open(name, opts...)
	return &brokenFile{File: file, fs: f}, err
}

type brokenFile struct {
	vfs.File
	fs           *brokenFS
	syncs        *atomic.Bool
	synced, size int64
}

func (f *brokenFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.size += int64(n)
	return n, err
}

func (f *brokenFile) ReadAt(p []byte, at int64) (int, error) {
	if f.fs.reads.Load() {
		return 0, syscall.EIO
	}
	return f.File.ReadAt(p, at)
}

func (f *brokenFile) SyncData() error { return f.Sync() }

func (f *brokenFile) Sync() error {
	dropped := f.size - f.synced
	f.synced = f.size
	if f.syncs == nil || !f.syncs.Load() {
		return f.File.Sync()
	}
	if dropped > 0 {
		f.fs.lost.Add(dropped)
		if _, err := f.WriteAt(make([]byte, dropped), f.size-dropped); err != nil {
			return err
		}
	}
	return syscall.EIO
}

// SyncTo fails and loses like Sync.
func (f *brokenFile) SyncTo(length int64) (bool, error) {
	if f.syncs != nil && f.syncs.Load() {
		return false, f.Sync()
	}
	return f.File.SyncTo(length)
}

// fewFS is a file system that has renamed a log when there is no descriptor to open it, once.
type fewFS struct {
	vfs.FS
	failed bool
}

func (f *fewFS) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if f.failed {
		return f.FS.ReuseForWrite(from, to, category)
	}
	f.failed = true
	if err := f.Rename(from, to); err != nil {
		return nil, err
	}
	return nil, syscall.EMFILE
}

func TestALogThatIsRenamedWithoutADescriptorIsCreated(t *testing.T) {
	dir := t.TempDir()
	fs := patientFS{&fewFS{FS: vfs.Default}, &patience{stopped: make(chan struct{})}}
	fs.patient.Store(true)
	from, to := filepath.Join(dir, "1.log"), filepath.Join(dir, "2.log")
	old, err := fs.Create(from, "")
	if err == nil {
		err = old.Close()
	}
	var file vfs.File
	if err == nil {
		file, err = fs.ReuseForWrite(from, to, "")
	}
	if err == nil {
		_, err = file.Write([]byte("x"))
	}
	if err == nil {
		err = file.Close()
	}
	if info, statErr := vfs.Default.Stat(to); err != nil || statErr != nil || info.Size() != 1 || fs.failure.Load() != nil {
		t.Errorf("got %v, %v and the failure %v, want the new log, and no failure any more", err, statErr, fs.failure.Load())
	}
}

// What the kernel loses when a Sync fails is written to another file.
func TestADiskThatLosesWhatItCannotSync(t *testing.T) {
	for name, test := range map[string]func(*bench, *brokenFS){
		"log": func(b *bench, fs *brokenFS) {
			fs.logs.Store(true)
			b.changed(pb.Watch_ADDED, "late", pod("10.0.9.9", "late", "n1"))
			wait.Until(t, "a problem", func() bool { return len(b.Problems()) == 1 && b.Problems()[0].Kind == NotWritten })
			fs.logs.Store(false)
		},
		"table": func(b *bench, fs *brokenFS) {
			b.changed(pb.Watch_ADDED, "late", pod("10.0.9.9", "late", "n1"))
			b.flush()
			fs.tables.Store(true)
			flushed := make(chan error, 1)
			go func() { flushed <- b.store.db.Flush() }()
			wait.Until(t, "a problem", func() bool { return len(b.Problems()) == 1 && b.Problems()[0].Kind == NotWritten })
			fs.tables.Store(false)
			b.must(<-flushed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, t.TempDir())
			b.stop()
			fs := &brokenFS{FS: vfs.Default}
			b.startOn(fs)
			b.state(nil)
			for i := range 20 {
				b.changed(pb.Watch_ADDED, fmt.Sprint(i), pod(fmt.Sprintf("10.0.0.%d", i), fmt.Sprint(i), "n1"))
			}
			b.flush()
			test(b, fs)
			b.flush()
			wait.Until(t, "no problem", func() bool { return len(b.Problems()) == 0 })
			if fs.lost.Load() == 0 {
				t.Error("the disk has lost nothing")
			}
			wait.Until(t, "another log", func() bool { return !b.store.fs.logLost.Load() && b.store.db.Metrics().Flush.NumInProgress == 0 })
			b.flush()
			b.stop()
			b.startOn(vfs.Default)
			if got := b.at(b.Now().Add(time.Second)); len(got) != 21 || len(b.Problems()) > 0 {
				t.Errorf("got %d owners and %v after a restart, want 21", len(got), b.Problems())
			}
		})
	}
}

// An error of sync_file_range is not returned by fsync again.
func TestATableWhoseBeginningIsLostIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	broken := &brokenFS{FS: vfs.Default}
	broken.tables.Store(true)
	fs := patientFS{broken, &patience{stopped: make(chan struct{})}}
	fs.patient.Store(true)
	file, err := fs.Create(filepath.Join(dir, "1.sst"), "")
	if err == nil {
		_, err = file.Write([]byte("x"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.SyncTo(1); !errors.Is(err, syscall.EIO) || fs.tableFailure.Load() == nil {
		t.Errorf("got %v and no failure, want both", err)
	}
	broken.tables.Store(false)
	if _, err := file.SyncTo(1); err != nil || fs.tableFailure.Load() == nil {
		t.Errorf("got %v and no failure, want one until a table is synced as a whole", err)
	}
	if err := file.Sync(); err != nil || fs.tableFailure.Load() != nil {
		t.Errorf("got %v and a failure, want none", err)
	}
}

// A disk that cannot be read is not a damaged journal: the journal is in memory until the disk works
// again, and then continues where it was.
func TestADiskThatCannotBeReadForAWhile(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.stop()
	fs := &brokenFS{FS: vfs.Default}
	b.startOn(fs)
	b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")})
	b.must(b.store.db.Flush()) // so that the state is read from the disk
	replaced := b.Replaced()
	fs.reads.Store(true)
	b.must(b.Feed(pb.Event_OWNER).Begin())
	<-replaced
	if problems := b.Problems(); len(problems) != 1 || problems[0].Kind != InMemory || !b.Stats().Memory {
		t.Errorf("got problems %+v and %+v, want a journal in memory", problems, b.Stats())
	}
	b.state(map[string]*pb.Owner{"b": pod("10.0.0.2", "b", "n1")})
	if got := b.at(b.Now().Add(time.Second)); len(got) != 1 {
		t.Errorf("got owners %v in memory", got)
	}

	replaced = b.Replaced()
	fs.reads.Store(false)
	b.add(time.Minute)
	<-replaced
	b.state(map[string]*pb.Owner{"b": pod("10.0.0.2", "b", "n1")})
	if len(b.Problems()) > 0 || b.Stats().Memory {
		t.Errorf("got problems %+v and %+v after the disk works again", b.Problems(), b.Stats())
	}
	if aside, err := filepath.Glob(storeDir(b.dir) + ".*"); err != nil || len(aside) > 0 {
		t.Errorf("got %v and %v, want no journal set aside", aside, err)
	}
	all := b.events(Query{Span: only("10.0.0.1")})
	if len(all) != 2 || all[1].GetType() != pb.Watch_REMOVED || all[1].GetNotBefore() == nil {
		t.Errorf("got %v, want an owner that left in the gap", all)
	}
	gaps, err := b.Gaps(time.Time{}, b.Now().Add(time.Second))
	if err != nil || len(gaps) != 1 || gaps[0].GetReason() != pb.Gap_NOT_WRITTEN {
		t.Errorf("got gaps %v and %v", gaps, err)
	}
}

// A store that cannot continue is opened again when its directory can be used, without a request.
func TestAJournalThatHasFailedIsOpenedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		fail   func(b *bench)
		reason pb.Gap_Reason
		kept   int // recorded events from before
	}{
		"Pebble gives up": {func(b *bench) { go b.store.fail(errors.New("no reason")) }, pb.Gap_NOT_WRITTEN, 1},
		"its directory is deleted": {func(b *bench) {
			b.must(os.RemoveAll(b.dir))
			b.changed(pb.Watch_ADDED, "late", pod("10.0.9.9", "late", "n1"))
		}, pb.Gap_DAMAGED, 0},
		"its directory is deleted, and cannot be made again for a while": {func(b *bench) {
			b.must(os.RemoveAll(b.dir))
			b.must(os.Symlink(b.dir+"-unmounted", b.dir))
			b.changed(pb.Watch_ADDED, "late", pod("10.0.9.9", "late", "n1"))
			wait.Until(t, "the problem", func() bool { return len(b.Problems()) == 1 && b.Problems()[0].Kind == Failed })
			b.must(os.Remove(b.dir))
		}, pb.Gap_DAMAGED, 0},
		"its directory is deleted before the present state is compared": {func(b *bench) {
			b.must(os.RemoveAll(b.dir))
			b.must(b.Feed(pb.Event_OWNER).Begin())
		}, pb.Gap_DAMAGED, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, filepath.Join(t.TempDir(), "data"))
			b.state(map[string]*pb.Owner{"old": pod("10.0.0.1", "old", "n1")})
			b.changed(pb.Watch_ADDED, "a", pod("10.0.0.2", "a", "n1"))
			b.flush()
			b.add(time.Minute)
			replaced := b.Replaced()
			test.fail(b)
			<-replaced
			b.add(time.Second)
			b.state(map[string]*pb.Owner{"b": pod("10.0.0.3", "b", "n1")})
			if got := b.at(b.Now().Add(time.Second)); len(got) != 1 || len(b.Problems()) > 0 || b.Stats().Memory {
				t.Errorf("got owners %v, problems %+v and %+v, want that everything is recorded again", got, b.Problems(), b.Stats())
			}
			if got := b.events(Query{Span: only("10.0.0.2"), Until: b.Now().Add(-30 * time.Second)}); len(got) != test.kept {
				t.Errorf("got %v of the time before, want %d events", got, test.kept)
			}
			if gaps := b.gaps(); len(gaps) != 1 || gaps[0].GetReason() != test.reason || gaps[0].GetUntil() == nil {
				t.Errorf("got gaps %v, want one that has ended", gaps)
			}
			aside, err := filepath.Glob(storeDir(b.dir) + ".*")
			if err != nil || len(aside) > 0 {
				t.Errorf("got %v and %v, want no journal set aside", aside, err)
			}
			b.stop()
			b.start()
			if got := b.at(b.Now().Add(time.Second)); len(got) != 1 || len(b.Problems()) > 0 {
				t.Errorf("got owners %v and problems %+v after a restart", got, b.Problems())
			}
		})
	}
}

// The store fails while its writer waits until the content of a log that could not be synced is in tables. That writer
// must not take the store that is opened next for its own, and set it aside because the one before was damaged.
func TestAStoreThatFailsWhileItsLogIsReplaced(t *testing.T) {
	b := newBench(t, filepath.Join(t.TempDir(), "data"))
	b.stop()
	fs := &brokenFS{FS: vfs.Default}
	b.startOn(fs)
	b.state(map[string]*pb.Owner{"old": pod("10.0.0.1", "old", "n1")})
	b.add(time.Minute)
	replaced, s := b.Replaced(), b.store
	fs.tables.Store(true)
	fs.logs.Store(true)
	b.changed(pb.Watch_ADDED, "late", pod("10.0.9.9", "late", "n1"))
	wait.Until(t, "a log that has lost something", func() bool { return fs.lost.Load() > 0 })
	fs.logs.Store(false)
	wait.Until(t, "a table that cannot be written", func() bool { return s.fs.tableFailure.Load() != nil })
	s.damage(nil)
	b.must(os.RemoveAll(b.dir)) // the next table cannot be created
	fs.tables.Store(false)
	<-replaced
	b.add(time.Second)
	b.state(map[string]*pb.Owner{"b": pod("10.0.0.3", "b", "n1")})
	if got := b.at(b.Now().Add(time.Second)); len(got) != 1 || len(b.Problems()) > 0 {
		t.Errorf("got owners %v and problems %+v, want that everything is recorded again", got, b.Problems())
	}
	if gaps := b.gaps(); len(gaps) != 1 || gaps[0].GetUntil() == nil {
		t.Errorf("got gaps %v, want one that has ended", gaps)
	}
	if aside, err := filepath.Glob(storeDir(b.dir) + ".*"); err != nil || len(aside) > 0 {
		t.Errorf("got %v and %v, want no journal set aside", aside, err)
	}
}

// Package journal records the changes of owners, conflicts, findings and nodes, and answers questions
// about the past. It never decides what holds an address. Losing the journal loses the past, but not
// the present: a full, slow or damaged disk delays no verdict, and what was not recorded is a gap, which
// is reported.
//
// A change goes through a queue to one goroutine, which writes all that it finds there with one
// synchronous write. Pebble keeps the records.
package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Defaults of a Config.
const (
	DefaultRetention = 30 * 24 * time.Hour
	DefaultSize      = 10 << 30
	memorySize       = 16 << 20
)

// Config is the configuration of a Journal.
type Config struct {
	// Dir is the data directory; empty for a journal in memory, which ends with the process.
	Dir string
	// Retention is how long records are kept. Size is the number of bytes that they may take. Records
	// are dropped by whole segments, so at least the current one is kept.
	Retention time.Duration
	Size      int64
	// Instance identifies this process in the records.
	Instance int64
	Clock    func() time.Time
	Log      *slog.Logger
	// Reached is set if the feeds are those of a stream, which has everything that happened while this
	// process did not run (see Resume). It returns the time up to which the feeds have sent everything.
	Reached func() time.Time
	// Cache is the number of bytes of the cache; 0 for the default.
	Cache int64
	// AtOnce is set if no change may wait for others before it is written.
	AtOnce bool
}

// A Journal records changes. Use New.
type Journal struct {
	Config
	queue chan op
	// opened is closed when the store is open, done when nothing is recorded any more.
	opened, done chan struct{}

	// mu is locked for reading while the store is in use, and for writing while it is replaced. store
	// is nil before the start and after the end.
	mu    sync.RWMutex
	store *store
	// replaced is closed when the store is replaced.
	replaced chan struct{}
	memory   bool
	// problems are the problems since the start, except those that the store knows.
	problems []Problem
	// unreadable is set while the store is replaced by one in memory because its disk cannot be read.
	// stuck is set if the store could not be closed, so that its directory is never opened again.
	unreadable, stuck error
	// before is what the journal had reached when its store was last opened.
	before reached

	// gap is the gap that has not ended; nil if there is none.
	gap atomic.Pointer[pb.Gap]
	// fresh is set until the state with which the journal begins is recorded.
	fresh atomic.Bool
	// What Stats returns.
	records, gaps, lost atomic.Uint64
	writer              *writer // replaced by Run only
	// abandoned is closed when Run has replaced a writer, which may wait forever.
	abandoned atomic.Pointer[chan struct{}]
	progress  progress
	// backup is locked during a backup.
	backup sync.Mutex
	// fs is the file system of the data directory.
	fs vfs.FS
}

// New returns a journal that does nothing before Run.
func New(cfg Config) *Journal {
	j := &Journal{
		Config: cfg, progress: progress{marks: make(map[pb.Event_Kind]*marks)}, queue: make(chan op, queueSize), opened: make(chan struct{}), done: make(chan struct{}), replaced: make(chan struct{}),
		fs: vfs.Default, writer: new(writer),
	}
	j.abandoned.Store(new(make(chan struct{})))
	return j
}

// Opened returns a channel that is closed when questions can be answered.
func (j *Journal) Opened() <-chan struct{} { return j.opened }

// open opens the store and prepares the writer. Changes since the last record are a gap for the given
// reason. A store that cannot be used is set aside; if the directory cannot be used, the store is in
// memory. Both are reported by Problems. The caller holds the lock.
func (j *Journal) open(reason pb.Gap_Reason) {
	s, aside, err := j.openDir()
	if err != nil {
		j.say(Problem{InMemory, j.Dir, j.Clock(), err})
		j.Log.Error("cannot open the journal: it is in memory only", "directory", j.Dir, "error", err)
	}
	if aside {
		reason, j.before = pb.Gap_DAMAGED, reached{}
	}
	j.memory = s == nil
	if s == nil {
		if s, err = openStore("journal", vfs.NewMem(), j.Cache, j.Log); err != nil {
			panic(fmt.Sprintf("open a journal in memory: %v", err)) // it needs no resources but memory
		}
	}
	j.store = s
	if err := j.writer.begin(j, reason); err != nil {
		j.store.damage(err)
	}
}

// openDir opens the store in the data directory, and reports whether it set an unusable one aside.
func (j *Journal) openDir() (s *store, aside bool, err error) {
	if j.Dir == "" {
		return nil, false, nil
	}
	if err := cmp.Or(j.stuck, j.unreadable); err != nil {
		return nil, false, err
	}
	if err := Writable(j.Dir); err != nil {
		return nil, false, err
	}
	if err := os.RemoveAll(filepath.Join(j.Dir, backupDir)); err != nil { // of a process that was killed
		return nil, false, err
	}
	dir := storeDir(j.Dir)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil { // Pebble lets everyone read it
		return nil, false, err
	}
	j.before = reached{}
	if raw, err := os.ReadFile(filepath.Join(j.Dir, reachedFile)); err == nil {
		var r reached
		var name string
		var size int64
		if _, err := fmt.Sscan(string(raw), &r.at, &name, &size); err == nil {
			now, left := manifest(dir)
			r.cut = now == name && left < size
			j.before = r
		}
	}
	if err = marked(dir); err == nil {
		s, err = openStore(dir, j.fs, j.Cache, j.Log)
	}
	if err == nil {
		return s, false, nil
	}
	if !unusable(err) {
		return nil, false, err
	}
	problem := Problem{Unreadable, dir, j.Clock(), err}
	to, renamed := setAside(dir, problem.At)
	if renamed != nil {
		return nil, false, errors.Join(err, renamed)
	}
	problem.Path = to
	j.say(problem)
	j.Log.Error("the journal cannot be read: starting a new one", "set_aside", to, "error", err)
	s, err = openStore(dir, j.fs, j.Cache, j.Log)
	return s, true, err
}

// unusable reports whether a store that cannot be opened has to be replaced, such as one with a file missing: not if the
// disk is full, if access is denied, or if another process uses the store.
func unusable(err error) bool {
	_, refused := errors.AsType[*os.PathError](err)
	_, locked := errors.AsType[syscall.Errno](err)
	return errors.Is(err, pebble.ErrCorruption) || errors.Is(err, errDamagedRecord) || errors.Is(err, os.ErrNotExist) || !refused && !locked
}

// Stats are counters and sizes of the journal.
type Stats struct {
	// Records and Gaps were written since the start. Lost is the number of changes that are known to
	// be missing in gaps.
	Records, Gaps, Lost uint64
	// Bytes is the size of the store.
	Bytes uint64
	// Oldest is the time that the journal reaches back to; zero if it is empty.
	Oldest time.Time
	Memory bool
}

// Stats returns the counters and sizes.
func (j *Journal) Stats() Stats {
	out := Stats{Records: j.records.Load(), Gaps: j.gaps.Load(), Lost: j.lost.Load(), Oldest: j.Oldest()}
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.store == nil {
		return out
	}
	out.Memory = j.memory
	if j.store.failure.Load() == nil {
		out.Bytes = j.store.db.Metrics().DiskSpaceUsage()
	}
	return out
}

// Run opens the journal and writes what is recorded, until ctx ends. It then closes the journal.
func (j *Journal) Run(ctx context.Context) {
	defer close(j.done)
	j.mu.Lock()
	j.open(pb.Gap_NOT_RUNNING)
	j.mu.Unlock()
	close(j.opened)
	var written chan struct{}
	begin := func() {
		done, w := make(chan struct{}), j.writer
		written = done
		go func() {
			defer close(done)
			j.write(ctx, w)
		}()
	}
	begin()
	ended := ctx.Done()
	for {
		j.mu.RLock()
		s, replaced := j.store, j.replaced
		j.mu.RUnlock()
		select {
		case <-ended: // the writer may wait for the disk
			ended = nil
			defer time.AfterFunc(closeAfter, s.fs.stop).Stop()
		case <-replaced:
		case <-written:
			if s.failure.Load() == nil {
				j.mu.Lock()
				defer j.mu.Unlock()
				j.writer.close()
				if err := j.store.close(); err != nil {
					j.Log.Warn("close the journal", "error", err)
				}
				j.store = nil
				return
			}
			<-s.failed
			written = nil
		case <-s.failed: // the writer has ended, or waits forever
			j.Log.Error("the journal has failed: it is opened again", "error", *s.failure.Load())
			switch replaced, err := j.reopen(ctx, s); {
			case err != nil:
				return
			case replaced:
				begin()
			}
		}
	}
}

// reopenEvery is how often it is tried to open a store again that has failed.
const reopenEvery = 2 * time.Second

// reopen replaces a store that has failed, and its writer, once the data directory can be used and nothing uses the store
// any longer. It reports whether it did: the writer may have replaced the store itself. It returns an error if ctx ends before.
func (j *Journal) reopen(ctx context.Context, failed *store) (replaced bool, err error) {
	for {
		if err := Sleep(ctx, reopenEvery); err != nil {
			return false, err
		}
		if !j.memory {
			usable := make(chan error, 1)
			go func() { usable <- Writable(j.Dir) }() // which returns late, or never, if the disk does not answer
			select {
			case err := <-usable:
				if err != nil {
					continue
				}
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}
		// A goroutine of Pebble may have ended with a lock, so that readers of the store wait forever.
		if !j.mu.TryLock() {
			continue
		}
		if j.store != failed {
			j.mu.Unlock()
			return false, nil
		}
		if !failed.fs.shut() {
			j.mu.Unlock()
			continue
		}
		reason := pb.Gap_NOT_WRITTEN
		if _, err := os.Stat(storeDir(j.Dir)); errors.Is(err, os.ErrNotExist) && !j.memory {
			reason = pb.Gap_DAMAGED // what was recorded is gone
		}
		j.writer = new(writer)
		j.open(reason)
		close(*j.abandoned.Swap(new(make(chan struct{})))) // first: who waits for replaced begins again at once
		close(j.replaced)
		j.replaced = make(chan struct{})
		j.mu.Unlock()
		return true, nil
	}
}

// Replaced returns a channel that is closed when the journal has started again, so that it has to be
// sent the present state.
func (j *Journal) Replaced() <-chan struct{} {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.replaced
}

// errStopped is the error of questions after the end.
var errStopped = errors.New("the aggregator is stopping")

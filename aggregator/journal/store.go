package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// formatVersion is the version of the keys and values in a store.
const formatVersion = 3

const (
	cacheSize    = 8 << 20
	memtableSize = 2 << 20
	blockSize    = 8 << 10
)

// compression is quick to read, other than zstd: without cgo, Pebble makes a new zstd decoder for each
// block. Records have little that can be compressed.
var compression = func() *sstable.CompressionProfile {
	p := *sstable.MinLZCompression
	p.Name = "ipwitness"
	p.DataBlocks.Level, p.MinReductionPercent = 2, 3
	return &p
}()

// A store is an open Pebble store. A store in memory has no directory.
type store struct {
	db       *pebble.DB
	fs       *patience
	segments []segment          // in order; changed by the writer only, with mu locked
	few      map[string][]place // see fewPlaces
	mu       sync.RWMutex
	// compacting is the number of goroutines that compact. They are those of background, and end with
	// ending.
	compacting atomic.Int32
	background sync.WaitGroup
	ending     context.Context
	end        context.CancelFunc
	// damaged is set when Pebble has found damaged records.
	damaged atomic.Pointer[error]
	// failure is set, and failed is closed, when Pebble cannot continue.
	failure atomic.Pointer[error]
	failed  chan struct{}
}

// openStore opens the store in a directory of a file system, and creates it if it does not exist. cached is the
// size of its cache in bytes; 0 for the default.
func openStore(dir string, base vfs.FS, cached int64, log *slog.Logger) (*store, error) {
	s := &store{
		failed: make(chan struct{}), few: make(map[string][]place),
	}
	s.fs = &patience{stopped: make(chan struct{}), fail: s.fail}
	s.ending, s.end = context.WithCancel(context.Background())
	cache := pebble.NewCache(cmp.Or(cached, cacheSize))
	defer cache.Unref() // the store holds it
	opts := &pebble.Options{
		FS: patientFS{base, s.fs}, Cache: cache, MemTableSize: memtableSize, MemTableStopWritesThreshold: 4,
		FormatMajorVersion: pebble.FormatNewest, MaxOpenFiles: 512, Logger: storeLogger{s, log},
		L0CompactionThreshold: 16, L0StopWritesThreshold: 64, LBaseMaxBytes: 16 << 20,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { log.Warn("journal: background error", "error", err) },
			DataCorruption:  func(i pebble.DataCorruptionInfo) { s.damage(i.Details) },
		},
	}
	for i := range opts.Levels {
		opts.Levels[i].BlockSize = blockSize
		opts.Levels[i].Compression = func() *sstable.CompressionProfile { return compression }
	}
	for i := range opts.TargetFileSizes { // of level 0, and of the used levels from the first one on
		opts.TargetFileSizes[i] = 32 << 20 // so that a month has fewer files than may be open
	}
	opts.TargetFileSizes[0], opts.TargetFileSizes[1] = 8<<20, 8<<20 // they are written often
	opened := make(chan error, 1)
	go func() {
		var err error
		s.db, err = pebble.Open(dir, opts)
		opened <- err
	}()
	select {
	case err := <-opened:
		if err != nil {
			return nil, err
		}
	case <-s.failed:
		s.fs.shut()
		return nil, *s.failure.Load()
	}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	s.fs.patient.Store(true)
	return s, nil
}

// load checks the version of the store and reads the list of segments.
func (s *store) load() error {
	version, known, err := s.number(metaKey(metaVersion, 0))
	switch {
	case err != nil:
		return err
	case known && version != formatVersion:
		return errors.Join(errDamagedRecord, fmt.Errorf("its format has version %d, but only version %d is supported", version, formatVersion))
	case !known:
		if err := s.db.Set(metaKey(metaVersion, 0), binary.BigEndian.AppendUint64(nil, formatVersion), pebble.Sync); err != nil {
			return err
		}
	}
	prefix := tablePrefix(0, metaSegment)
	return s.scan(prefix, after(prefix), func(key, v []byte) error {
		if len(v) != 9 {
			return errDamagedRecord
		}
		s.segments = append(s.segments, segment{binary.BigEndian.Uint32(key[len(key)-4:]), stamp(binary.BigEndian.Uint64(v)), v[8] != 0})
		return nil
	})
}

// scan calls do with the keys between two keys, and with their values, until it returns an error.
func (s *store) scan(first, end []byte, do func(key, value []byte) error) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: first, UpperBound: end})
	if err != nil {
		return err
	}
	for it.First(); it.Valid() && err == nil; it.Next() {
		var v []byte
		if v, err = it.ValueAndErr(); err == nil {
			err = do(it.Key(), v)
		}
	}
	return errors.Join(err, it.Error(), it.Close())
}

func (s *store) number(key []byte) (n uint64, known bool, err error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	if len(v) != 8 {
		return 0, false, errors.Join(errDamagedRecord, closer.Close())
	}
	return binary.BigEndian.Uint64(v), true, closer.Close()
}

func (s *store) setSegment(b *pebble.Batch, seg segment) error {
	v := binary.BigEndian.AppendUint64(nil, uint64(seg.start))
	if seg.complete {
		v = append(v, 1)
	} else {
		v = append(v, 0)
	}
	return b.Set(metaKey(metaSegment, uint64(seg.number)), v, nil)
}

// list returns the segments, the oldest first.
func (s *store) list() []segment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.segments
}

func (s *store) setList(list []segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.segments) == 0 || list[0].number != s.segments[0].number {
		clear(s.few)
	}
	s.segments = list
}

// maxFew is the largest number of places that fewPlaces returns.
const maxFew = 128

// fewPlaces returns the places that follow a prefix in the keys of a segment that has ended, in order; nil
// if there are many. It remembers them.
func (s *store) fewPlaces(prefix []byte) ([]place, error) {
	s.mu.RLock()
	few, known := s.few[string(prefix)]
	s.mu.RUnlock()
	if known {
		return few, nil
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return nil, err
	}
	few = []place{}
	for it.First(); it.Valid() && err == nil; it.SeekGE(after(append(bytes.Clone(prefix), few[len(few)-1]...))) {
		rest := it.Key()[len(prefix):]
		if len(rest) == 0 || len(rest) < 1+addressSizes[rest[0]&0xf] {
			err = errDamagedRecord
			break
		}
		if len(few) == maxFew {
			few = nil
			break
		}
		few = append(few, place(rest[:1+addressSizes[rest[0]&0xf]]))
	}
	if err := errors.Join(err, it.Error(), it.Close()); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.few[string(prefix)] = few
	return few, nil
}

// last returns the stamp of the last record, and the stamp at which the journal was last complete; 0
// if there is none.
func (s *store) last() (last, alive stamp, err error) {
	n, _, err := s.number(metaKey(metaLast, 0))
	complete, _, failed := s.number(metaKey(metaAlive, 0))
	return stamp(max(n, complete)), stamp(complete), errors.Join(err, failed)
}

// damage records that Pebble found damaged records.
func (s *store) damage(err error) {
	if err == nil {
		err = errDamagedRecord
	}
	s.damaged.CompareAndSwap(nil, &err)
}

// compact moves the keys between two keys, to which nothing is added any more, to the last level, and frees
// the space of those that were removed. It does not wait for that.
func (s *store) compact(first, end []byte) {
	s.compacting.Add(1)
	s.background.Go(func() {
		defer s.compacting.Add(-1)
		// Pebble reports errors, and does the same with later compactions.
		_ = s.db.Compact(s.ending, first, end, false)
	})
}

// closeAfter is how long closing may take if the disk does not answer.
const closeAfter = 5 * time.Second

// close closes the store. It gives up after a while if the disk does not answer.
func (s *store) close() error {
	if s.failure.Load() != nil {
		return nil // Pebble does not return any more
	}
	closed := make(chan error, 1)
	stop := time.AfterFunc(closeAfter/2, s.fs.stop)
	defer stop.Stop()
	s.end()
	go func() {
		s.background.Wait()
		closed <- s.db.Close()
	}()
	select {
	case err := <-closed:
		return err
	case <-time.After(closeAfter):
		return errNoAnswer
	}
}

// errNoAnswer is the error of a store that cannot be closed.
var errNoAnswer = errors.New("the disk does not answer")

// storeLogger passes warnings of Pebble on.
type storeLogger struct {
	store *store
	log   *slog.Logger
}

// Infof implements pebble.Logger. It is called for each flush and compaction.
func (l storeLogger) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (l storeLogger) Errorf(format string, args ...any) {
	l.log.Warn("journal: store reports an error", "error", fmt.Sprintf(format, args...))
}

func (l storeLogger) Fatalf(format string, args ...any) { l.store.fail(fmt.Errorf(format, args...)) }

// fail records that Pebble cannot continue. Pebble expects that the process ends. The journal must not end the
// aggregator, so only the goroutine of Pebble ends here; the journal opens another store.
func (s *store) fail(err error) {
	if s.failure.CompareAndSwap(nil, &err) {
		close(s.failed)
	}
	runtime.Goexit()
}

// setAside renames an unusable store and returns its new name.
func setAside(dir string, now time.Time) (string, error) {
	to := dir + ".damaged-" + now.UTC().Format("20060102T150405.000Z")
	if err := os.Rename(dir, to); err != nil {
		return to, err
	}
	if err := os.Remove(filepath.Join(filepath.Dir(dir), reachedFile)); !errors.Is(err, os.ErrNotExist) {
		return to, err
	}
	return to, nil
}

// probe is the beginning of the names of files that Writable creates.
const probe = ".probe"

// Writable checks that a directory exists, or can be created, and can be written to.
func Writable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, probe)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, "ipwitness\n")
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// storeDir returns the directory of the store in a data directory.
func storeDir(dataDir string) string { return filepath.Join(dataDir, "journal") }

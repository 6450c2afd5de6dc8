package journal

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// tryAgainAfter is the time after which a failed write is tried again.
const tryAgainAfter = time.Second

// patientFS tries writes again until they succeed. Pebble ends the process if it cannot write, but a
// full disk only has to delay the journal. Until patience is set, errors are returned at once.
type patientFS struct {
	vfs.FS
	*patience
}

type patience struct {
	patient atomic.Bool
	// failure is the error of the write that is being tried again; nil if there is none.
	failure atomic.Pointer[error]
	// tableFailure is the error of the last table that could not be synced; nil if the last one could.
	tableFailure atomic.Pointer[error]
	// manifestLost is set when the list of tables, and logLost when another file, may lack on the disk what
	// was written to it. unsafe is set if that ever was so: no log is used again.
	manifestLost, logLost, unsafe atomic.Bool
	// stopped is closed when writes are not tried again any longer.
	stopped chan struct{}
	once    sync.Once
	// fail ends the goroutine, because Pebble cannot continue after an error.
	fail func(error)
	// using is locked for reading during each write. over is set when the store has failed, and another one may use its directory:
	// goroutines that Pebble has left must not write there.
	using sync.RWMutex
	over  bool
	// lock is the lock on the directory; nil if there is none.
	lock io.Closer
}

// do calls write, unless the directory is not that of the store any longer: then it ends the goroutine.
func (p *patience) do(write func() error) error {
	p.using.RLock()
	defer p.using.RUnlock()
	if p.over {
		runtime.Goexit()
	}
	return write()
}

// shut ends all writes of a store that has failed, and gives its directory up. It reports false while a write has not
// returned.
func (p *patience) shut() bool {
	p.stop()
	if !p.using.TryLock() {
		return false
	}
	defer p.using.Unlock()
	p.over = true
	if p.lock != nil {
		_ = p.lock.Close() // the file is not needed
		p.lock = nil
	}
	return true
}

// stop makes writes that fail return their errors.
func (p *patience) stop() { p.once.Do(func() { close(p.stopped) }) }

// try calls write until it succeeds.
func (p *patience) try(write func() error) error {
	for failed := false; ; failed = true {
		err := p.do(write)
		if err == nil || !p.patient.Load() || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist) {
			if failed {
				p.failure.Store(nil)
			}
			return err
		}
		p.failure.Store(&err)
		select {
		case <-time.After(tryAgainAfter):
		case <-p.stopped:
			return err
		}
	}
}

func inBackup(name string) bool { return strings.Contains(name, string(filepath.Separator)+backupDir) }

// try calls write until it succeeds. A file of a backup fails at once.
func (f patientFS) try(name string, write func() error) error {
	if inBackup(name) {
		return f.do(write)
	}
	return f.patience.try(write)
}

// file returns a file that is opened, read and written patiently.
func (f patientFS) file(name string, open func() (vfs.File, error)) (file vfs.File, err error) {
	err = f.try(name, func() (err error) { file, err = open(); return err })
	if errors.Is(err, os.ErrNotExist) && f.patient.Load() && !inBackup(name) {
		f.fail(err) // the directory is gone: Pebble would end the process
	}
	if err != nil || inBackup(name) {
		return file, err
	}
	return &patientFile{file, f.patience, cmp.Or(filepath.Ext(name), filepath.Base(name))}, nil
}

// Create implements vfs.FS.
func (f patientFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file(name, func() (vfs.File, error) { return f.FS.Create(name, category) })
}

func (f patientFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.file(name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, category, opts...) })
}

func (f patientFS) OpenDir(name string) (vfs.File, error) {
	return f.file(name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

// ReuseForWrite implements vfs.FS. A file that could not be synced must not be used again.
func (f patientFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if f.unsafe.Load() {
		if err := f.Remove(oldname); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		return f.Create(newname, category)
	}
	return f.file(newname, func() (vfs.File, error) {
		file, err := f.FS.ReuseForWrite(oldname, newname, category)
		if errors.Is(err, os.ErrNotExist) { // the attempt before has renamed it, and could not open it: without it, Pebble would end the process
			return f.FS.Create(newname, category)
		}
		return file, err
	})
}

func (f patientFS) Rename(oldname, newname string) error {
	return f.try(newname, func() error { return f.FS.Rename(oldname, newname) })
}

func (f patientFS) Link(oldname, newname string) error {
	return f.try(newname, func() error { return f.FS.Link(oldname, newname) })
}

func (f patientFS) Remove(name string) error {
	return f.do(func() error { return f.FS.Remove(name) })
}

func (f patientFS) RemoveAll(name string) error {
	return f.do(func() error { return f.FS.RemoveAll(name) })
}

func (f patientFS) Lock(name string) (io.Closer, error) {
	lock, err := f.FS.Lock(name)
	f.lock = lock
	return directoryLock{f.patience}, err
}

// directoryLock is the lock on the directory of a store. Pebble does not release it after a failure.
type directoryLock struct{ p *patience }

// Close implements io.Closer.
func (l directoryLock) Close() error {
	l.p.using.Lock()
	defer l.p.using.Unlock()
	if l.p.lock == nil {
		return nil
	}
	err := l.p.lock.Close()
	l.p.lock = nil
	return err
}

func (f patientFS) MkdirAll(dir string, perm os.FileMode) error {
	return f.try(dir, func() error { return f.FS.MkdirAll(dir, perm) })
}

func (f patientFS) Unwrap() vfs.FS { return f.FS }

type patientFile struct {
	vfs.File
	*patience
	// ext is the extension of the file, or its name if it has none.
	ext string
}

// Write implements io.Writer.
func (f *patientFile) Write(p []byte) (n int, err error) {
	err = f.try(func() error {
		written, err := f.File.Write(p[n:])
		n += written
		return err
	})
	return n, err
}

// sync syncs the file, or its beginning, by one of its methods. When that fails, the kernel drops what it
// could not write, or considers it written: the next attempt succeeds without it, even if it is written
// again (ext4 leaves its blocks marked as unwritten), and an fsync does not return an error that
// sync_file_range has returned. So the content belongs into another file: Pebble writes another table,
// and the writer replaces the others.
func (f *patientFile) sync(method func() error) error {
	if f.patient.Load() && f.ext == ".sst" {
		err := f.do(method)
		if err != nil {
			f.tableFailure.Store(&err)
			<-time.After(tryAgainAfter) // so that Pebble does not try again at once
		}
		return err
	}
	failed := false
	err := f.try(func() error {
		err := method()
		failed = failed || err != nil
		return err
	})
	if failed && strings.HasPrefix(f.ext, "MANIFEST") {
		f.manifestLost.Store(true)
	} else if failed {
		f.unsafe.Store(true)
		f.logLost.Store(true)
	}
	return err
}

// WriteAt implements io.WriterAt.
func (f *patientFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.try(func() error {
		written, err := f.File.WriteAt(p[n:], at+int64(n))
		n += written
		return err
	})
	return n, err
}

// Preallocate implements vfs.File. It only saves time, so that a failure does not matter.
func (f *patientFile) Preallocate(offset, length int64) error {
	if err := f.do(func() error { return f.File.Preallocate(offset, length) }); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}

// Sync implements vfs.File.
func (f *patientFile) Sync() error { return f.syncAll(f.File.Sync) }

func (f *patientFile) SyncData() error { return f.syncAll(f.File.SyncData) }

func (f *patientFile) syncAll(method func() error) error {
	err := f.sync(method)
	if err == nil && f.ext == ".sst" {
		f.tableFailure.Store(nil)
	}
	return err
}

func (f *patientFile) SyncTo(length int64) (full bool, err error) {
	err = f.sync(func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full, err
}

package journal

import (
	"errors"
	"os"
	"path/filepath"
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
	// stopped is closed when writes are not tried again any longer.
	stopped chan struct{}
	once    sync.Once
}

// stop makes writes that fail return their errors.
func (p *patience) stop() { p.once.Do(func() { close(p.stopped) }) }

// try calls write until it succeeds.
func (p *patience) try(write func() error) error {
	for failed := false; ; failed = true {
		err := write()
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

// backup reports whether a file belongs to a backup, which fails at once.
func (f patientFS) backup(name string) bool {
	return strings.Contains(name, string(filepath.Separator)+backupDir)
}

// file returns a file that is opened, read and written patiently.
func (f patientFS) file(name string, open func() (vfs.File, error)) (vfs.File, error) {
	if f.backup(name) {
		return open()
	}
	file, err := f.open(open)
	if err != nil {
		return nil, err
	}
	return file, nil
}

func (f patientFS) open(open func() (vfs.File, error)) (*patientFile, error) {
	var file vfs.File
	err := f.try(func() (err error) { file, err = open(); return err })
	if err != nil {
		return nil, err
	}
	return &patientFile{File: file, patience: f.patience}, nil
}

// written returns a file that is written from its beginning.
func (f patientFS) written(name string, open func() (vfs.File, error)) (vfs.File, error) {
	if f.backup(name) {
		return open()
	}
	file, err := f.open(open)
	if err != nil {
		return nil, err
	}
	if file.table = filepath.Ext(name) == ".sst"; !file.table {
		file.unsynced = &unsynced{}
	}
	return file, nil
}

// Create implements vfs.FS.
func (f patientFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.written(name, func() (vfs.File, error) { return f.FS.Create(name, category) })
}

// OpenReadWrite implements vfs.FS.
func (f patientFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.file(name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, category, opts...) })
}

// OpenDir implements vfs.FS.
func (f patientFS) OpenDir(name string) (vfs.File, error) {
	return f.file(name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

// ReuseForWrite implements vfs.FS.
func (f patientFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.written(newname, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, category) })
}

// Rename implements vfs.FS.
func (f patientFS) Rename(oldname, newname string) error {
	if f.backup(newname) {
		return f.FS.Rename(oldname, newname)
	}
	return f.try(func() error { return f.FS.Rename(oldname, newname) })
}

// Link implements vfs.FS.
func (f patientFS) Link(oldname, newname string) error {
	if f.backup(newname) {
		return f.FS.Link(oldname, newname)
	}
	return f.try(func() error { return f.FS.Link(oldname, newname) })
}

// MkdirAll implements vfs.FS.
func (f patientFS) MkdirAll(dir string, perm os.FileMode) error {
	if f.backup(dir) {
		return f.FS.MkdirAll(dir, perm)
	}
	return f.try(func() error { return f.FS.MkdirAll(dir, perm) })
}

// Unwrap implements vfs.FS.
func (f patientFS) Unwrap() vfs.FS { return f.FS }

type patientFile struct {
	vfs.File
	*patience
	// table is set for a file of sorted records: Pebble writes another one if it cannot be synced.
	table bool
	// unsynced is what was written since the last Sync; nil if it is not kept.
	unsynced *unsynced
}

// Unsynced is the end of a file that is perhaps not on the disk. When a Sync fails, the kernel drops the
// pages or considers them written, so that the next Sync succeeds without them: they have to be written
// again.
type unsynced struct {
	offset int64
	data   []byte
}

// maxUnsynced is the capacity that is kept for the data after a Sync.
const maxUnsynced = 1 << 20

// Write implements io.Writer.
func (f *patientFile) Write(p []byte) (n int, err error) {
	err = f.try(func() error {
		written, err := f.File.Write(p[n:])
		n += written
		return err
	})
	if f.unsynced != nil {
		f.unsynced.data = append(f.unsynced.data, p[:n]...)
	}
	return n, err
}

// sync syncs the file by one of its methods.
func (f *patientFile) sync(method func() error) error {
	switch {
	case !f.patient.Load():
		return method()
	case f.table:
		return f.syncTable(method)
	}
	u, failed := f.unsynced, false
	err := f.try(func() error {
		if failed && u != nil {
			if _, err := f.File.WriteAt(u.data, u.offset); err != nil {
				return err
			}
		}
		err := method()
		failed = err != nil
		return err
	})
	if err == nil && u != nil {
		u.offset += int64(len(u.data))
		if u.data = u.data[:0]; cap(u.data) > maxUnsynced {
			u.data = nil
		}
	}
	return err
}

// syncTable syncs a table. If it fails, Pebble tries again with another file, but not sooner than after
// a while.
func (f *patientFile) syncTable(method func() error) error {
	err := method()
	if err == nil {
		f.tableFailure.Store(nil)
		return nil
	}
	f.tableFailure.Store(&err)
	select {
	case <-time.After(tryAgainAfter):
	case <-f.stopped:
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
	if err := f.File.Preallocate(offset, length); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}

// Sync implements vfs.File.
func (f *patientFile) Sync() error { return f.sync(f.File.Sync) }

// SyncData implements vfs.File.
func (f *patientFile) SyncData() error { return f.sync(f.File.SyncData) }

// SyncTo implements vfs.File.
func (f *patientFile) SyncTo(length int64) (full bool, err error) {
	err = f.try(func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full, err
}

package bolt

import (
	"bytes"
	"errors"
	"os"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

const (
	// maxSize limits the size of a database. One with 250 containers has about 1 MiB.
	maxSize = 64 << 20
	// attempts is how often a database that is being written is read at once.
	attempts = 3
)

// A File is a database that a program writes meanwhile. It is read without a lock: dockerd holds its own as
// long as it runs, and podman would wait for ours.
type File struct {
	Host ipam.Host
	Path string

	stale bool
	info  os.FileInfo // of the version that was read; nil if none was
}

// Changed records that the file may have changed.
func (d *File) Changed() { d.stale = true }

// Read parses the database if it may have changed, and returns whether it did. It returns true for
// again if the database was being written. parse must not keep parts of the database.
func (d *File) Read(r ipam.FileRead, parse func(db *DB, written time.Time) error) (changed, again bool, err error) {
	if !d.stale && !r.All && !r.Lost {
		return false, false, nil
	}
	info, err := os.Lstat(d.Path)
	if err == nil && !d.stale && !r.Lost && d.info != nil && os.SameFile(info, d.info) && info.Size() == d.info.Size() && info.ModTime().Equal(d.info.ModTime()) {
		return false, false, nil
	}
	d.stale, d.info = false, nil
	data, written, err := d.snapshot()
	if err == nil {
		var db *DB
		if db, err = Open(data); err == nil {
			err = parse(db, written)
		}
	}
	switch {
	case err == nil:
		d.info = info
	case errors.Is(err, errChanging), !errors.Is(err, os.ErrNotExist) && ipam.BeingWritten(written, r.Now):
		d.stale = true
		return false, true, nil
	}
	return true, false, err
}

// snapshot returns the content of the file at one time. bbolt never overwrites the pages of its
// newest transaction, so the content at any time is a database: two equal reads show that the file did
// not change between them.
func (d *File) snapshot() (data []byte, written time.Time, err error) {
	for range attempts {
		again, at, err := d.Host.ReadFile(d.Path, false, maxSize)
		if err != nil {
			return nil, at, err
		}
		if written = at; data != nil && bytes.Equal(data, again) {
			return data, written, nil
		}
		data = again
	}
	return nil, written, errChanging
}

// errChanging is returned for a database that is being written.
var errChanging = errors.New("the database changes while it is read")

// Package bolt reads databases of bbolt (go.etcd.io/bbolt, version 2 of its format) from memory.
//
// bbolt itself opens files only: it takes the lock that dockerd holds as long as it runs, and it
// panics or faults on a damaged file. This package takes no lock, and any content leads to an error at
// worst. The format is that of internal/common of bbolt v1.4: page.go, meta.go and bucket.go.
package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

const (
	// magic and version identify a database.
	magic, version = 0xED0CDAED, 2
	// headerSize is the size of the header of a page; metaSize is that of a meta without its checksum.
	headerSize, metaSize = 16, 56
	// branchSize and leafSize are the sizes of the elements of pages, and bucketSize that of a bucket.
	branchSize, leafSize, bucketSize = 16, 16, 16
	// branchPage, leafPage and metaPage are kinds of pages.
	branchPage, leafPage, metaPage = 0x01, 0x02, 0x04
	// bucketFlag marks an element of a leaf that is a bucket.
	bucketFlag = 0x01
	// maxDepth limits the depth of a tree.
	maxDepth = 32
	// readings limits the bytes that may be read of a database, as a multiple of its size: reading all of it takes two
	// of them. In a damaged one, many keys may lead to the same bytes.
	readings = 4
)

var native = binary.NativeEndian

// errDamaged is returned for content that bbolt does not write.
var errDamaged = errors.New("the database is damaged")

// A DB is a database in memory.
type DB struct {
	data     []byte
	pageSize uint64
	root     uint64
	left     int // the number of bytes that may still be read
}

// Open returns the database with the given content. It only checks the metas.
func Open(data []byte) (*DB, error) {
	var newest uint64
	db := &DB{data: data, left: readings * len(data)}
	// The second meta follows the first page, whose size only the first meta says if it is intact.
	for size := uint64(1 << 10); size <= 1<<16; size <<= 1 {
		for _, at := range []uint64{0, size} {
			if pageSize, root, txid, ok := parseMeta(data, at); ok && pageSize == size && (db.pageSize == 0 || txid > newest) {
				db.pageSize, db.root, newest = pageSize, root, txid
			}
		}
	}
	if db.pageSize == 0 {
		return nil, errors.New("not a bbolt database of a known version")
	}
	return db, nil
}

func parseMeta(data []byte, at uint64) (pageSize, root, txid uint64, ok bool) {
	if at+headerSize+metaSize+8 > uint64(len(data)) || native.Uint16(data[at+8:])&metaPage == 0 {
		return 0, 0, 0, false
	}
	m := data[at+headerSize:]
	sum := fnv.New64a()
	_, _ = sum.Write(m[:metaSize])
	ok = native.Uint32(m) == magic && native.Uint32(m[4:]) == version && native.Uint64(m[metaSize:]) == sum.Sum64()
	return uint64(native.Uint32(m[8:])), native.Uint64(m[16:]), native.Uint64(m[48:]), ok
}

// A Bucket is a set of keys with values, which may be buckets.
type Bucket struct {
	db     *DB
	root   uint64
	inline []byte // the only page of a small bucket, in its parent
}

// Root returns the bucket with the buckets of the database.
func (db *DB) Root() *Bucket { return &Bucket{db: db, root: db.root} }

// Each calls yield for each key, in order. sub is nil for a value. Neither may be changed.
func (b *Bucket) Each(yield func(key, value []byte, sub *Bucket) error) error {
	if b.inline != nil {
		return b.db.leaf(b.inline, yield)
	}
	return b.db.each(b.root, maxDepth, map[uint64]bool{}, yield)
}

// each calls yield for the keys below a page, unless it has been visited.
func (db *DB) each(id uint64, depth int, visited map[uint64]bool, yield func(key, value []byte, sub *Bucket) error) error {
	pages := uint64(len(db.data)) / db.pageSize
	if depth == 0 || visited[id] || id >= pages {
		return errDamaged
	}
	visited[id] = true
	page := db.data[id*db.pageSize:]
	if more := uint64(native.Uint32(page[12:])); id+more >= pages {
		return errDamaged
	} else if page = page[:(1+more)*db.pageSize]; native.Uint16(page[8:]) == leafPage {
		return db.leaf(page, yield)
	}
	count := int(native.Uint16(page[10:]))
	if native.Uint16(page[8:]) != branchPage || headerSize+count*branchSize > len(page) || !db.spend(len(page)) {
		return errDamaged
	}
	for i := range count {
		if err := db.each(native.Uint64(page[headerSize+i*branchSize+8:]), depth-1, visited, yield); err != nil {
			return err
		}
	}
	return nil
}

// spend reports whether some more bytes may be read.
func (db *DB) spend(bytes int) bool {
	db.left -= bytes
	return db.left >= 0
}

func (db *DB) leaf(page []byte, yield func(key, value []byte, sub *Bucket) error) error {
	if len(page) < headerSize || native.Uint16(page[8:]) != leafPage {
		return errDamaged
	}
	count := int(native.Uint16(page[10:]))
	if headerSize+count*leafSize > len(page) || !db.spend(len(page)) {
		return errDamaged
	}
	for i := range count {
		at := headerSize + i*leafSize
		e := page[at:]
		key := uint64(at) + uint64(native.Uint32(e[4:]))
		value := key + uint64(native.Uint32(e[8:]))
		end := value + uint64(native.Uint32(e[12:]))
		if end > uint64(len(page)) || !db.spend(int(end-key)) {
			return errDamaged
		}
		var sub *Bucket
		if native.Uint32(e)&bucketFlag != 0 {
			if end-value < bucketSize {
				return errDamaged
			}
			if sub = (&Bucket{db: db, root: native.Uint64(page[value:])}); sub.root == 0 {
				sub.inline = page[value+bucketSize : end]
			}
		}
		if err := yield(page[key:value], page[value:end], sub); err != nil {
			return err
		}
	}
	return nil
}

// Sub returns the bucket at a path of keys; nil if there is none.
func (b *Bucket) Sub(path ...string) (*Bucket, error) {
	for _, name := range path {
		var found *Bucket
		if err := b.Each(func(key, _ []byte, sub *Bucket) error {
			if sub != nil && string(key) == name {
				found = sub
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read bucket: %w", err)
		}
		if b = found; b == nil {
			return nil, nil
		}
	}
	return b, nil
}

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
	info  os.FileInfo // of the version that was read, even if it could not be parsed; nil if none was
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
	if err == nil && !d.stale && !r.Lost && ipam.SameVersion(info, d.info) {
		return false, false, nil
	}
	d.stale, d.info = false, nil
	data, written, err := d.snapshot()
	if err == nil {
		d.info = info
		var db *DB
		if db, err = Open(data); err == nil {
			err = parse(db, written)
		}
	}
	switch {
	case err == nil:
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

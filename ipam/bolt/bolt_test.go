package bolt_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/bolt"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// written returns the file of a database with the given keys in a bucket of a bucket.
func written(t testing.TB, pageSize int, keys map[string]string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: pageSize})
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range keys { // several transactions, so that pages are freed
		if err := db.Update(func(tx *bbolt.Tx) error {
			outer, err := tx.CreateBucketIfNotExists([]byte("outer"))
			if err != nil {
				return err
			}
			inner, err := outer.CreateBucketIfNotExists([]byte("inner"))
			if err != nil {
				return err
			}
			return inner.Put([]byte(key), []byte(value))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// read returns the keys in a bucket of a bucket.
func read(data []byte) (map[string]string, error) {
	db, err := bolt.Open(data)
	if err != nil {
		return nil, err
	}
	b, err := db.Root().Sub("outer", "inner")
	if err != nil || b == nil {
		return nil, err
	}
	keys := map[string]string{}
	return keys, b.Each(func(key, value []byte, sub *bolt.Bucket) error {
		if sub == nil {
			keys[string(key)] = string(value)
		}
		return nil
	})
}

func many(n, size int) map[string]string {
	keys := map[string]string{}
	for i := range n {
		keys[fmt.Sprintf("key-%04d", i)] = string(bytes.Repeat([]byte{byte('a' + i%26)}, size))
	}
	return keys
}

func TestKeysOfADatabaseAreRead(t *testing.T) {
	for name, test := range map[string]struct {
		pageSize int
		keys     map[string]string
	}{
		"one key, in an inline bucket": {4096, map[string]string{"k": "v"}},
		"an empty value":               {4096, map[string]string{"k": ""}},
		"values larger than a page":    {4096, many(3, 10_000)},
		"branches":                     {1024, many(300, 100)},
		"large pages":                  {65536, many(50, 2000)},
	} {
		got, err := read(written(t, test.pageSize, test.keys))
		if err != nil || !maps.Equal(got, test.keys) {
			t.Errorf("%s: got %d keys, %v, want %d", name, len(got), err, len(test.keys))
		}
	}
}

func TestTheNewerMetaCounts(t *testing.T) {
	keys := many(5, 10)
	data := written(t, 4096, keys)
	for _, at := range []int{0, 4096} {
		broken := bytes.Clone(data)
		broken[at+20]++
		got, err := read(broken)
		if err != nil || len(got) < len(keys)-1 {
			t.Errorf("a damaged meta at %d: got %d keys, %v, want those of the other one", at, len(got), err)
		}
	}
}

func TestAMissingBucketIsNil(t *testing.T) {
	db, err := bolt.Open(written(t, 4096, map[string]string{"k": "v"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range [][]string{{"none"}, {"outer", "none"}, {"outer", "inner", "k"}} {
		if b, err := db.Root().Sub(path...); b != nil || err != nil {
			t.Errorf("%q: got %v, %v, want none", path, b, err)
		}
	}
}

func TestDamagedDatabasesAreErrors(t *testing.T) {
	data := written(t, 1024, many(300, 100))
	for _, size := range []int{0, 100, 1024, 2048, 8192} {
		if got, err := read(data[:size]); err == nil {
			t.Errorf("the first %d bytes: got %d keys, want an error", size, len(got))
		}
	}
}

// hostile returns a database of a size whose root is the page 2, which fill writes with all pages after it.
func hostile(t testing.TB, pageSize, size int, fill func(page func(id, kind, count int) []byte)) []byte {
	t.Helper()
	data := make([]byte, size)
	copy(data, written(t, pageSize, map[string]string{"k": "v"})[:2*pageSize])
	for _, at := range []int{0, pageSize} {
		meta := data[at+16:]
		binary.NativeEndian.PutUint64(meta[16:], 2)
		sum := fnv.New64a()
		_, _ = sum.Write(meta[:56])
		binary.NativeEndian.PutUint64(meta[56:], sum.Sum64())
	}
	fill(func(id, kind, count int) []byte {
		page := data[id*pageSize:]
		binary.NativeEndian.PutUint16(page[8:], uint16(kind))
		binary.NativeEndian.PutUint16(page[10:], uint16(count))
		return page
	})
	return data
}

// The content of a damaged database decides neither how often a page is visited, nor how much is read.
func TestDamagedDatabasesTakeBoundedWork(t *testing.T) {
	const pageSize, size = 4096, 40 << 20
	const each = (pageSize - 16) / 16
	native := binary.NativeEndian
	leaf := func(page []byte, n, length int) { // each element has the same bytes
		for i := range n {
			native.PutUint32(page[16+i*16+4:], uint32((n-i)*16))
			native.PutUint32(page[16+i*16+12:], uint32(length))
		}
	}
	for name, data := range map[string][]byte{
		"branches that lead to one page": hostile(t, pageSize, size, func(page func(id, kind, count int) []byte) {
			for level := range 5 {
				branch := page(2+level, 1, each)
				for i := range each {
					native.PutUint64(branch[16+i*16+8:], uint64(3+level))
				}
			}
			leaf(page(7, 2, 1), 1, 8)
		}),
		"a loop": hostile(t, pageSize, size, func(page func(id, kind, count int) []byte) {
			native.PutUint64(page(2, 1, 1)[24:], 2)
		}),
		"values that are the same bytes": hostile(t, pageSize, size, func(page func(id, kind, count int) []byte) {
			root := page(2, 2, 60000)
			native.PutUint32(root[12:], size/pageSize-3)
			leaf(root, 60000, size/2)
		}),
	} {
		db, err := bolt.Open(data)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		read := 0
		err = db.Root().Each(func(key, value []byte, _ *bolt.Bucket) error {
			read += len(key) + len(value)
			return nil
		})
		if err == nil || read > 4*size {
			t.Errorf("%s: got %v after %d bytes of keys and values, want an error before %d", name, err, read, 4*size)
		}
	}
}

func TestAFileThatCannotBeParsedIsReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	write := func(data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := bolt.File{Host: ipamtest.Host{}, Path: path}
	look := func() (parsed bool, err error) {
		_, _, err = f.Read(ipam.FileRead{Now: time.Unix(1<<40, 0), All: true}, func(*bolt.DB, time.Time) error {
			parsed = true
			return errors.New("of another version")
		})
		return parsed, err
	}
	write(written(t, 4096, map[string]string{"k": "v"}))
	for i, want := range []bool{true, false, false, true} {
		if i == 3 {
			write(written(t, 4096, many(30, 1000)))
		}
		if parsed, err := look(); parsed != want || (err != nil) != want {
			t.Errorf("look %d: got parsed %t and %v, want %t", i, parsed, err, want)
		}
	}
}

func FuzzNoContentIsFatal(f *testing.F) {
	f.Add(written(f, 1024, many(30, 100)), 5000, byte(7))
	f.Add(written(f, 4096, many(2, 10_000)), 9000, byte(255))
	f.Fuzz(func(_ *testing.T, data []byte, at int, b byte) {
		if at >= 0 && at < len(data) {
			data = bytes.Clone(data)
			data[at] = b
		}
		_, _ = read(data)
	})
}

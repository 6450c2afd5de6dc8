package bolt_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/ipwitness/ipwitness/ipam/bolt"
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

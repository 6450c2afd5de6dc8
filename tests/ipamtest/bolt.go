package ipamtest

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
)

// A Bucket has values by key, which are strings, byte slices or further buckets.
type Bucket map[string]any

// WriteBolt replaces the bbolt database at path by one with the given buckets, which was written at the given time.
func WriteBolt(path string, root Bucket, written time.Time) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	next := path + ".new"
	db, err := bbolt.Open(next, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for name, b := range root {
			created, err := tx.CreateBucketIfNotExists([]byte(name))
			if err == nil {
				err = fillBucket(created, b.(Bucket))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if e := db.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if err := os.Chtimes(next, written, written); err != nil {
		return err
	}
	return os.Rename(next, path)
}

func fillBucket(b *bbolt.Bucket, values Bucket) (err error) {
	for key, value := range values {
		switch v := value.(type) {
		case string:
			err = b.Put([]byte(key), []byte(v))
		case []byte:
			err = b.Put([]byte(key), v)
		case Bucket:
			var sub *bbolt.Bucket
			if sub, err = b.CreateBucket([]byte(key)); err == nil {
				err = fillBucket(sub, v)
			}
		default:
			err = fmt.Errorf("value of key %q: got a %T", key, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

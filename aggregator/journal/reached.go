package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A damaged store may open without an error and lack its last records, or all of them: its list of files
// may be cut, or its marker may be gone, which names that list. So what the journal has reached is kept
// beside the store, and compared when it is opened.

// reachedFile has, in one line, the stamp of the last record that was on the disk, and the name and
// the size in bytes of the list of files (MANIFEST) at that time. Pebble only appends to that list, and takes a
// shorter one for one that a crash has cut.
const reachedFile = "reached"

// reachedEvery is the shortest time between two writes of reachedFile.
const reachedEvery = time.Second

// manifest returns the name and the size of the latest list of files of a store; zero values if it has no list.
func manifest(dir string) (name string, size int64) {
	files, _ := filepath.Glob(filepath.Join(dir, "MANIFEST-*")) // in order
	if len(files) == 0 {
		return "none", 0
	}
	if info, err := os.Stat(files[len(files)-1]); err == nil {
		size = info.Size()
	}
	return filepath.Base(files[len(files)-1]), size
}

// reach keeps the stamp of the last record, after it was committed. Without room for it,
// an earlier one stays, which is still reached.
func (w *writer) reach() {
	j := w.j
	if j.memory || j.Reached != nil || w.noted <= w.kept || j.Clock().Sub(w.keptAt) < reachedEvery {
		return
	}
	w.kept, w.keptAt = w.noted, j.Clock()
	if _, err := os.Stat(storeDir(j.Dir)); errors.Is(err, os.ErrNotExist) {
		w.s.fail(err) // what is written to files without a directory is lost
	}
	name, size := manifest(storeDir(j.Dir))
	file := filepath.Join(j.Dir, reachedFile)
	_ = os.Remove(file + ".tmp") // opening a FIFO would block
	if err := os.WriteFile(file+".tmp", fmt.Appendf(nil, "%d %s %d\n", w.noted, name, size), 0o600); err == nil {
		_ = os.Rename(file+".tmp", file)
	}
}

// reached is the content of reachedFile; zero if the file does not exist.
type reached struct {
	at stamp
	// cut is set if the list of files is shorter now.
	cut bool
}

// marked returns an error if a directory has the files of a store, but not the marker that says which of
// them belong to it. Pebble would begin a new store, and delete them.
func marked(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil //nolint:nilerr // a new directory; if it cannot be read, opening the store says why
	}
	store, marker := false, false
	for _, f := range files {
		store = store || strings.HasPrefix(f.Name(), "MANIFEST-") || filepath.Ext(f.Name()) == ".sst"
		marker = marker || strings.HasPrefix(f.Name(), "marker.manifest.")
	}
	if store && !marker {
		return errors.Join(pebble.ErrCorruption, errors.New("the file marker.manifest is missing"))
	}
	return nil
}

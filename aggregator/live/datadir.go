package live

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/kube"
)

// Files of a data directory.
const (
	acknowledgementsFile = "acknowledgements.json"
	temporaryFile        = acknowledgementsFile + ".tmp"
	lockFile             = "lock"
)

const (
	fileVersion = 1
	// maxFile is the largest size of acknowledgementsFile in bytes.
	maxFile = 32 << 20
)

// A dataDir is the directory where an aggregator keeps data that agents cannot report again.
// Without a path it keeps nothing. An unusable directory does not prevent the start, because
// duplicates are found without it; it is reported as a problem.
type dataDir struct {
	path string
	// lock is held for as long as this process may write to the directory; nil until then.
	lock *os.File
	// mu is held while something is written. It is locked before the mutex of the acknowledgements.
	mu     sync.Mutex
	closed bool
	// loaded is set when the file was read, or does not exist. Nothing is written before that.
	loaded bool
	// unusable is why the content of the file cannot be used, which is set aside before another one is
	// written; nil if it can. partly is set if some of its acknowledgements are used all the same.
	unusable error
	partly   bool
	// lost and unsaved are the problems about acknowledgements from before the start, and about current
	// ones; nil if there is none. lost ends when the file that was set aside is deleted. They are read
	// without mu, which may be locked during slow disk I/O.
	lost, aside, unsaved atomic.Pointer[string]
}

// errInUse is the error if another process uses the data directory.
var errInUse = errors.New("another ipwitness process uses it: stop that process, or use a different --data-dir")

// take creates and locks the directory, unless this process already holds the lock.
func (d *dataDir) take() error {
	if d.lock != nil {
		return nil
	}
	if err := journal.Writable(d.path); err != nil {
		return fmt.Errorf("write to data directory: %w", err)
	}
	lock, err := LockDir(d.path)
	if err != nil {
		return err
	}
	d.lock = lock
	return nil
}

// LockDir locks a data directory for this process. The caller closes the file.
func LockDir(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("lock data directory %s: %w", dir, errInUse), lock.Close())
	} else if err != nil {
		return nil, errors.Join(fmt.Errorf("lock data directory %s: %w: use a directory on a file system that supports locks", dir, err), lock.Close())
	}
	return lock, nil
}

// setUnsaved records why acknowledgements cannot be saved now; nil means that saving works.
func (d *dataDir) setUnsaved(err error) {
	if err == nil {
		d.unsaved.Store(nil)
		return
	}
	d.unsaved.Store(new(fmt.Sprintf("acknowledgements cannot be saved, so conflicts cannot be acknowledged: %s: %s",
		err, journal.Remedy(d.path, err))))
}

// problems returns descriptions of the current problems.
func (d *dataDir) problems() (all []string) {
	for _, p := range []*string{d.lost.Load(), d.unsaved.Load()} {
		if p != nil {
			all = append(all, *p)
		}
	}
	return all
}

// lookAside ends the problem about acknowledgements that were set aside, if their file was deleted.
func (d *dataDir) lookAside() {
	if aside := d.aside.Load(); aside != nil {
		if _, err := os.Lstat(*aside); errors.Is(err, os.ErrNotExist) {
			d.lost.Store(nil)
		}
	}
}

// close releases the directory; nothing is written afterwards.
func (d *dataDir) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

type keptFile struct {
	Version          int               `json:"version"`
	Acknowledgements []json.RawMessage `json:"acknowledgements"` // of kube.Acknowledgement: a wrong one does not hide the others
}

// load locks the directory and, when the file can be read for the first time, returns its acknowledgements. It sets a
// file aside whose content is unusable. It returns an error if nothing can be saved now.
func (d *dataDir) load() (found []kube.Acknowledgement, err error) {
	switch {
	case d.path == "":
		return nil, nil
	case d.closed:
		return nil, errors.New("the aggregator is stopping")
	}
	defer func() { d.setUnsaved(err) }()
	taken := d.take()
	if !d.loaded && !errors.Is(taken, errInUse) {
		found, d.unusable, err = d.read()
		if err != nil && (taken != nil || !errors.Is(err, os.ErrNotExist)) {
			return nil, cmp.Or(taken, err)
		}
		d.loaded, d.partly = true, len(found) > 0
	}
	return found, cmp.Or(taken, d.setAside())
}

// setAside renames the unusable file, if there is one and this process holds the lock, and records
// why acknowledgements from before the start are not known, and where the file is.
func (d *dataDir) setAside() (err error) {
	if d.unusable == nil {
		return nil
	}
	file := filepath.Join(d.path, acknowledgementsFile)
	aside, where, unusable := file, "the file is left unchanged", d.unusable
	if d.lock != nil {
		to := file + ".unusable-" + time.Now().UTC().Format("20060102T150405.000Z")
		repair := "repair it and move it back"
		if d.partly { // the others are saved in a new file
			repair = "copy the missing entries into " + file
		}
		where = fmt.Sprintf("the file is now %s: %s while the aggregator is stopped, or acknowledge the conflicts again", to, repair)
		if err = os.Rename(file, to); err == nil || errors.Is(err, os.ErrNotExist) {
			aside, d.unusable, err = to, nil, nil
		} else {
			where, err = "the file cannot be renamed: "+err.Error(), fmt.Errorf("rename an unusable file: %w", err)
		}
	}
	which := "the"
	if d.partly {
		which = "some"
	}
	d.aside.Store(&aside)
	d.lost.Store(new(fmt.Sprintf("%s acknowledgements from before the start are not known: %s is unusable: %s: %s", which, file, unusable, where)))
	return err
}

// read returns the acknowledgements in the file that can be used, and what is wrong with its content; or an error if the
// file cannot be read. It never blocks: opening a FIFO without a writer would block forever.
func (d *dataDir) read() (found []kube.Acknowledgement, wrong, err error) {
	f, err := os.OpenFile(filepath.Join(d.path, acknowledgementsFile), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading only, so an error loses nothing
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file"), nil
	case info.Size() > maxFile:
		return nil, fmt.Errorf("it has %d bytes, but the limit is %d", info.Size(), maxFile), nil
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, nil, err
	}
	var file keptFile
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, err, nil
	}
	if file.Version != fileVersion {
		return nil, fmt.Errorf("it has version %d, but the supported version is %d", file.Version, fileVersion), nil
	}
	for i, raw := range file.Acknowledgements {
		var k kube.Acknowledgement
		switch err := json.Unmarshal(raw, &k); {
		case err != nil:
			wrong = cmp.Or(wrong, fmt.Errorf("entry %d: %w", i, err))
		case k.Conflict == "" || k.Reason == "" || k.Expires.IsZero() || !k.Address.IsValid():
			wrong = cmp.Or(wrong, fmt.Errorf("entry %d is incomplete", i))
		default:
			found = append(found, k)
		}
	}
	return found, wrong, nil
}

// save replaces the stored acknowledgements, after load has returned nil. It is called with mu held. Once it returns nil,
// they survive a power failure.
func (d *dataDir) save(acknowledged map[string]*acknowledgement) (err error) {
	if d.path == "" {
		return nil
	}
	defer func() { d.setUnsaved(err) }()
	all := make([]json.RawMessage, 0, len(acknowledged))
	for _, id := range slices.Sorted(maps.Keys(acknowledged)) {
		one, err := json.Marshal(acknowledged[id].Acknowledgement)
		if err != nil {
			return err
		}
		all = append(all, one)
	}
	raw, err := json.MarshalIndent(keptFile{fileVersion, all}, "", "  ")
	if err != nil {
		return err
	}
	if len(raw) >= maxFile {
		return fmt.Errorf("there are too many: the limit is %d bytes", maxFile)
	}
	temporary := filepath.Join(d.path, temporaryFile)
	if err := writeFile(temporary, append(raw, '\n')); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(d.path, acknowledgementsFile)); err != nil {
		return err
	}
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// writeFile writes a file and returns nil once it is on disk. It removes an existing file of
// that name first, because opening a FIFO would block forever.
func writeFile(name string, raw []byte) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

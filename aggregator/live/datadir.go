package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/ipam"
)

// Files of a data directory.
const (
	acknowledgementsFile = "acknowledgements.json"
	temporaryFile        = acknowledgementsFile + ".tmp"
	lockFile             = "lock"
)

const (
	// fileVersion is the version of the format of acknowledgementsFile.
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
	// unusable is the file to set aside before another one is written; nil if there is none.
	unusable *unusableFile
	// lost and unsaved are the problems about acknowledgements from before the start, and about current
	// ones; nil if there is none. They are read without mu, which may be locked during slow disk I/O.
	lost, unsaved atomic.Pointer[string]
}

// unusableFile is why a file cannot be used: reason is one word that becomes part of the name
// of the file that is set aside, and the error has the details.
type unusableFile struct {
	reason string
	err    error
	kept   int // number of its records that could be read
}

// errInUse is the error if another process uses the data directory.
var errInUse = errors.New("another ipwitness process uses it: stop that process, or use a different --data-dir")

// openDataDir locks a directory for this process and creates it if necessary. It returns an
// error only if another process uses the directory.
func openDataDir(path string) (*dataDir, error) {
	d := &dataDir{path: path}
	if path == "" {
		return d, nil
	}
	err := d.take()
	if errors.Is(err, errInUse) {
		return nil, err
	}
	d.setUnsaved(err)
	return d, nil
}

// take creates and locks the directory, unless this process already holds the lock.
func (d *dataDir) take() error {
	if d.lock != nil {
		return nil
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	lock, err := LockDir(d.path)
	if err != nil {
		return err
	}
	probe := filepath.Join(d.path, lockFile+".tmp")
	err = writeFile(probe, []byte("ipwitness\n"))
	if err == nil {
		err = os.Remove(probe)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write to data directory: %w", err), lock.Close())
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

// keptFile is the content of acknowledgementsFile.
type keptFile[T any] struct {
	Version          int `json:"version"`
	Acknowledgements []T `json:"acknowledgements"`
}

// load returns the kept acknowledgements. It sets an unusable file aside, and keeps what could be read of it.
func (d *dataDir) load() []kube.Acknowledgement {
	if d.path == "" {
		return nil
	}
	found, unusable := d.read()
	if d.unusable = unusable; unusable == nil {
		return found
	}
	unusable.kept = len(found)
	switch err := d.setAside(); {
	case d.lock == nil: // the problem of the directory is already recorded
		d.setLost("the file is left unchanged")
	case err != nil:
		d.setLost("the file cannot be renamed: " + err.Error())
	case len(found) > 0:
		d.setUnsaved(d.write(found))
	}
	return found
}

// setLost records why acknowledgements from before the start are not known, and where the file is.
func (d *dataDir) setLost(where string) {
	which := "the acknowledgements from before the start are not known"
	if d.unusable.kept > 0 {
		which = fmt.Sprintf("some acknowledgements from before the start are not known, and %d are", d.unusable.kept)
	}
	d.lost.Store(new(fmt.Sprintf("%s: %s is %s: %s: %s", which,
		filepath.Join(d.path, acknowledgementsFile), strings.ReplaceAll(d.unusable.reason, "-", " "), d.unusable.err, where)))
}

// setAside renames the unusable file, if there is one and this process holds the lock.
func (d *dataDir) setAside() error {
	if d.unusable == nil || d.lock == nil {
		return nil
	}
	from := filepath.Join(d.path, acknowledgementsFile)
	to := fmt.Sprintf("%s.%s-%s", from, d.unusable.reason, time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(from, to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	d.setLost(fmt.Sprintf("the file is now %s: repair it and move it back while the aggregator is stopped, or acknowledge the conflicts again", to))
	d.unusable = nil
	return nil
}

// read returns the acknowledgements in the file, or why it cannot be used. It never blocks:
// opening a FIFO without a writer would block forever.
func (d *dataDir) read() ([]kube.Acknowledgement, *unusableFile) {
	f, err := os.OpenFile(filepath.Join(d.path, acknowledgementsFile), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, &unusableFile{reason: "unreadable", err: err}
	}
	defer func() { _ = f.Close() }() // opened for reading only, so an error loses nothing
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, &unusableFile{reason: "unreadable", err: err}
	case !info.Mode().IsRegular():
		return nil, &unusableFile{reason: "not-a-file", err: fmt.Errorf("its type is %s", info.Mode().Type())}
	case info.Size() > maxFile:
		return nil, &unusableFile{reason: "too-large", err: fmt.Errorf("it has %d bytes, but the limit is %d", info.Size(), maxFile)}
	case info.Size() == 0:
		return nil, &unusableFile{reason: "empty", err: errors.New("it has no version")}
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, &unusableFile{reason: "unreadable", err: err}
	}
	var file keptFile[ipam.Item[kube.Acknowledgement]]
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, &unusableFile{reason: "damaged", err: err}
	}
	switch {
	case file.Version < 1:
		return nil, &unusableFile{reason: "damaged", err: errors.New("it has no version")}
	case file.Version > fileVersion:
		return nil, &unusableFile{reason: "of-a-newer-version", err: fmt.Errorf("it has version %d, but the newest supported version is %d", file.Version, fileVersion)}
	}
	var found []kube.Acknowledgement
	var unusable *unusableFile
	for i, item := range file.Acknowledgements {
		k := item.Value
		if item.Err == nil && (k.Conflict == "" || k.Reason == "" || k.Expires.IsZero() || !k.Address.IsValid()) {
			item.Err = errors.New("it is incomplete")
		}
		if item.Err == nil {
			found = append(found, k)
		} else if unusable == nil {
			unusable = &unusableFile{reason: "damaged", err: fmt.Errorf("entry %d (conflict %q): %w", i, ipam.Cut(ipam.Plain(k.Conflict), 64), item.Err)}
		}
	}
	return found, unusable
}

// save replaces the stored acknowledgements. It is called with mu held. Once it returns nil, they
// survive a power failure.
func (d *dataDir) save(acknowledged map[string]*acknowledgement) (err error) {
	if d.path == "" {
		return nil
	}
	if d.closed {
		return errors.New("the aggregator is stopping")
	}
	defer func() { d.setUnsaved(err) }()
	if err := d.take(); err != nil {
		return err
	}
	if err := d.setAside(); err != nil {
		return fmt.Errorf("rename an unusable file: %w", err)
	}
	all := make([]kube.Acknowledgement, 0, len(acknowledged))
	for _, id := range slices.Sorted(maps.Keys(acknowledged)) {
		all = append(all, acknowledged[id].Acknowledgement)
	}
	return d.write(all)
}

// write replaces the stored acknowledgements.
func (d *dataDir) write(all []kube.Acknowledgement) error {
	raw, err := json.MarshalIndent(keptFile[kube.Acknowledgement]{fileVersion, all}, "", "  ")
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

package journal

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// backupDir is the directory in the data directory in which a backup is made.
const backupDir = "backup.tmp"

// backedUpAtOnce is the size of the parts of files.
const backedUpAtOnce = 64 << 10

// ErrInMemory is the error of a backup of a journal in memory, and ErrBackupRuns that of a backup during
// another one.
var (
	ErrInMemory   = errors.New("the journal is in memory")
	ErrBackupRuns = errors.New("another backup is being made")
)

// Backup calls send with the parts of each file of the data directory, as they are at one moment. The
// files of the journal are linked into a temporary directory meanwhile, which takes space only for what
// the journal rewrites.
func (j *Journal) Backup(ctx context.Context, send func(name string, part []byte) error) (files int, err error) {
	if !j.backup.TryLock() {
		return 0, ErrBackupRuns
	}
	defer j.backup.Unlock()
	dir := filepath.Join(j.Dir, backupDir)
	err = j.view(func(s *store) error {
		if j.memory {
			return ErrInMemory
		}
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
			return err
		}
		return s.db.Checkpoint(storeDir(dir))
	})
	if errors.Is(err, ErrInMemory) || errors.Is(err, errStopped) {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err != nil {
		return 0, err
	}
	// Other files are replaced, not changed. They are first, so that they are of the same moment. Temporary files, the
	// lock, and the store, of which there is a copy, do not belong into a backup.
	if files, err = sendFiles(ctx, j.Dir, func(name string) bool {
		return name == "journal" || name == reachedFile || name == "lock" || strings.HasSuffix(name, ".tmp") || strings.HasPrefix(name, probe)
	}, send); err != nil {
		return files, err
	}
	more, err := sendFiles(ctx, dir, func(string) bool { return false }, send)
	return files + more, err
}

// sendFiles sends the regular files of a directory, except those directly in it that are left out.
func sendFiles(ctx context.Context, dir string, leftOut func(name string) bool, send func(name string, part []byte) error) (files int, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case path == dir || err != nil:
			return err
		case filepath.Dir(path) == dir && leftOut(e.Name()):
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !e.Type().IsRegular():
			return nil
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files++
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // opened for reading only
		part := make([]byte, backedUpAtOnce)
		for first := true; ; first = false {
			n, err := io.ReadFull(f, part)
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return err
			}
			if n > 0 || first {
				if err := errors.Join(ctx.Err(), send(filepath.ToSlash(name), part[:n])); err != nil {
					return err
				}
			}
			if n < len(part) {
				return nil
			}
		}
	})
	return files, err
}

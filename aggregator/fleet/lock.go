package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockFile is the file that whatever uses a data directory locks.
const lockFile = "lock"

// lock locks the data directory. The caller closes the file.
func lock(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.Join(fmt.Errorf("lock data directory %s: another ipwitness process uses it: stop that process, or use a different --data-dir", dir), file.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock data directory %s: %w: use a directory on a file system that supports locks", dir, err), file.Close())
	}
	return file, nil
}

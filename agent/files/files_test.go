package files

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOnlySmallRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	fifo, link, large, fine := filepath.Join(dir, "fifo"), filepath.Join(dir, "link"), filepath.Join(dir, "large"), filepath.Join(dir, "fine")
	for _, err := range []error{
		unix.Mkfifo(fifo, 0o600),
		os.Symlink("/dev/zero", link),
		os.WriteFile(large, nil, 0o600),
		os.Truncate(large, 2<<20),
		os.WriteFile(fine, []byte("{}"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, readable := range map[string]bool{fifo: false, link: false, large: false, fine: true} {
		if _, err := ReadSmall(path); (err == nil) != readable {
			t.Errorf("read %s: got %v", filepath.Base(path), err)
		}
	}
}

package live

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/aggregator/kube"
)

// asUnprivileged calls do with the rights of a user who owns no files here.
func asUnprivileged(t *testing.T, do func()) {
	t.Helper()
	if os.Geteuid() == 0 {
		runtime.LockOSThread() // Setfsuid applies to this thread only
		defer runtime.UnlockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Setfsuid(0) }() // restoring the id of a privileged thread cannot fail
	}
	do()
}

// A file that may not be read is left alone, a damaged one is set aside, and a read-only file is read.
func TestFilesWithoutPermission(t *testing.T) {
	for name, test := range map[string]struct {
		file, dir os.FileMode
		size      int64 // of the file
		want      int
		words     []string
		left      bool // the file stays where it is
	}{
		"a file that may not be read":         {0, 0o777, -1, 0, []string{"cannot be saved", "permission denied"}, true},
		"a directory that may not be written": {0o444, 0o555, -1, 1, []string{"cannot be saved", "permission denied"}, true},
		"neither":                             {0, 0o555, -1, 0, []string{"cannot be saved", "permission denied"}, true},
		"a damaged file":                      {0o444, 0o777, 9, 0, []string{"is unusable", "unexpected end", "the file is now"}, false},
		"a damaged file that has to stay":     {0o444, 0o555, 9, 0, []string{"is unusable", "the file is left unchanged", "cannot be saved"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := filepath.Join(dir, acknowledgementsFile)
			kept := &dataDir{path: dir}
			if _, err := kept.load(); err != nil {
				t.Fatal(err)
			}
			one := newAcknowledgement(&kube.Acknowledgement{Conflict: "c1", Reason: "NET-1", Expires: time.Now(), Address: netip.MustParseAddr("10.0.0.5")}, 0)
			if err := errors.Join(kept.save(map[string]*acknowledgement{"c1": one}), kept.close(), os.Remove(filepath.Join(dir, lockFile)), os.Chmod(filepath.Dir(dir), 0o755),
				os.Chmod(at, test.file), os.Chmod(dir, test.dir)); err != nil {
				t.Fatal(err)
			}
			if test.size >= 0 && os.Truncate(at, test.size) != nil {
				t.Fatal("cannot damage the file")
			}
			defer func() { _ = os.Chmod(dir, 0o700) }() // so that TempDir can be removed
			asUnprivileged(t, func() {
				d := &dataDir{path: dir}
				defer func() { _ = d.close() }()           // nothing was written, so an error loses nothing
				for _, want := range []int{test.want, 0} { // those that have ended since do not come back
					if got, _ := d.load(); len(got) != want { // the problem has the error
						t.Errorf("got %d acknowledgements, want %d", len(got), want)
					}
				}
				if _, err := os.Lstat(at); (err == nil) != test.left {
					t.Errorf("got %v for the file, want it there: %t", err, test.left)
				}
				got := strings.Join(d.problems(), "\n")
				for _, want := range test.words {
					if !strings.Contains(got, want) {
						t.Errorf("got problems %q, want %q in them", got, want)
					}
				}
			})
		})
	}
}

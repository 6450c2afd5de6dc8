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

// An unreadable file is set aside like a damaged one, and a read-only file is read.
func TestFilesWithoutPermission(t *testing.T) {
	for name, test := range map[string]struct {
		file, dir os.FileMode
		want      int
		words     []string
	}{
		"a file that may not be read":         {0, 0o777, 0, []string{"is unusable", "permission denied", "the file is now"}},
		"a directory that may not be written": {0o444, 0o555, 1, []string{"cannot be saved", "permission denied"}},
		"neither":                             {0, 0o555, 0, []string{"is unusable", "the file is left unchanged", "cannot be saved"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			kept, err := openDataDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			one := newAcknowledgement(&kube.Acknowledgement{Conflict: "c1", Reason: "NET-1", Expires: time.Now(), Address: netip.MustParseAddr("10.0.0.5")}, 0)
			if err := errors.Join(kept.save(map[string]*acknowledgement{"c1": one}), kept.close(), os.Remove(filepath.Join(dir, lockFile)), os.Chmod(filepath.Dir(dir), 0o755),
				os.Chmod(filepath.Join(dir, acknowledgementsFile), test.file), os.Chmod(dir, test.dir)); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.Chmod(dir, 0o700) }() // so that TempDir can be removed
			asUnprivileged(t, func() {
				d, err := openDataDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = d.close() }() // nothing was written, so an error loses nothing
				if got := d.load(); len(got) != test.want {
					t.Errorf("got %d acknowledgements, want %d", len(got), test.want)
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

// Package alone runs tests in processes and network namespaces of their own.
package alone

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/tests/wait"
)

// marker is set in the environment of the process that runs one test.
const marker = "IPWITNESS_TEST_ALONE"

// Run runs fn in another process of the test program, with a network namespace and a mount
// namespace of its own. Both end with the process, and so does whatever fn does to the process,
// such as dropping its capabilities. Temporary files are removed when both have ended, even if fn
// left something mounted there. The caller must be a top-level test that does nothing else. Such
// tests run in parallel. Run needs root: without it the test is skipped, or fails if
// IPWITNESS_ROOT_TESTS is set.
func Run(t *testing.T, fn func()) {
	t.Helper()
	switch {
	case os.Getenv(marker) == t.Name():
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal("make mounts private: ", err)
		}
		fn()
		return
	case os.Geteuid() == 0:
	case os.Getenv("IPWITNESS_ROOT_TESTS") != "":
		t.Fatal("needs root, and IPWITNESS_ROOT_TESTS is set")
	default:
		t.Skip("needs root: run make test")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*wait.Patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), marker+"="+t.Name(), "TMPDIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("test in a process of its own: %v\n%s", err, out)
	}
}

// NeedsDisk skips a test if the root directory is in memory, as in the guests of make test-kernels:
// there, mounted directories cannot be told from those of the root.
func NeedsDisk(t *testing.T) {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		t.Skip("the root directory is in memory")
	}
}

package journal

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestTheRemedyIsThatOfTheError(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		syscall.EMFILE: "ulimit -n", syscall.ENFILE: "ulimit -n", syscall.ENOSPC: "free space in /d", syscall.EDQUOT: "free space in /d",
		syscall.EIO: "check the disk of /d", syscall.EACCES: "make /d writable", syscall.EROFS: "make /d writable",
	} {
		if got := Remedy("/d", fmt.Errorf("open: %w", &os.PathError{Op: "open", Path: "/d/f", Err: errno})); !strings.Contains(got, want) {
			t.Errorf("%v: got %q, want %q in it", errno, got, want)
		}
	}
}

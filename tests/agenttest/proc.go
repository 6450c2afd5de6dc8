package agenttest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// IDs of containers and of a pod.
const (
	OuterID = "81950eac55062e5d8e7b5567d1036e4b146dfe212bdc9263c97347e6ce86b904"
	InnerID = "ee4b20e90ac7f42a10bd004d05646b13d8ab5e2c5e7cbc01abf8006bac016459"
	PodUID  = "0125ec2f-b64a-4868-8f5b-94b56cbab864"
)

// A Tree is a /proc in a temporary directory.
type Tree struct {
	t   testing.TB
	Dir string
}

// NewTree returns an empty Tree, which lives as long as the test.
func NewTree(t testing.TB) Tree {
	t.Helper()
	return Tree{t, t.TempDir()}
}

// Put adds or replaces a process.
func (p Tree) Put(pid, parent int, name string, start int, inode uint64, cgroup string) {
	p.t.Helper()
	dir := filepath.Join(p.Dir, strconv.Itoa(pid))
	p.End(pid)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "ns"), 0o755),
		os.Symlink(fmt.Sprintf("net:[%d]", inode), filepath.Join(dir, "ns/net")),
		os.WriteFile(filepath.Join(dir, "stat"), fmt.Appendf(nil, "%d (%s) S %d%s %d 0", pid, name, parent, strings.Repeat(" 0", 17), start), 0o644),
		os.WriteFile(filepath.Join(dir, "comm"), []byte(name+"\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::"+cgroup+"\n"), 0o644),
	} {
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// Title sets the title of a process, which replaces its arguments.
func (p Tree) Title(pid int, title string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.Dir, strconv.Itoa(pid), "cmdline"), []byte(title+"\x00"), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// End removes a process.
func (p Tree) End(pid int) {
	p.t.Helper()
	if err := os.RemoveAll(filepath.Join(p.Dir, strconv.Itoa(pid))); err != nil {
		p.t.Fatal(err)
	}
}

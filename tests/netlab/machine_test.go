package netlab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestMachineLeavesNothingBehind(t *testing.T) {
	if err := Possible(); err != nil {
		t.Skip(err, ": run make test")
	}
	h, err := NewMachine("box")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if out, err := h.Run("hostname"); err != nil || out != "box\n" {
		t.Errorf("hostname: got %q, %v, want box", out, err)
	}
	// A daemon, as a container runtime leaves one for each pod, in a cgroup.
	daemon := `mkdir -p /etc/test
		for d in $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts); do mkdir -p $d` + h.Cgroup() + `/pod; done
		setsid -f sleep 1234567 >/dev/null 2>&1`
	if _, err := h.Output(h.Command("sh", "-euc", daemon)); err != nil {
		t.Fatal(err)
	}
	if got := sleepers(t); got != 1 {
		t.Fatalf("daemons: got %d, want 1", got)
	}
	h.Close()
	if got := sleepers(t); got != 0 {
		t.Errorf("daemons after the end: got %d, want none", got)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*" + h.Cgroup()); left != nil {
		t.Errorf("cgroups after the end: got %v, want none", left)
	}
	if _, err := os.Stat("/etc/test"); err == nil {
		t.Error("what a machine wrote into /etc is on this one")
	}
}

func sleepers(t *testing.T) int {
	t.Helper()
	out, err := exec.Command("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '").Output()
	if err != nil && len(out) == 0 {
		t.Fatal(err)
	}
	return strings.Count(string(out), "sleep 1234567")
}

package agent

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/agent/allocations"
	"github.com/ipwitness/ipwitness/agent/workload"

	"github.com/ipwitness/ipwitness/tests/agenttest"
)

func TestDoctorChecksTheRuntime(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "missing.sock")
	check := func(flag, wantStatus, want string) {
		t.Helper()
		if c := readRuntime(flag); c.Status != wantStatus || !strings.Contains(c.Detail, want) || (c.Status == StatusOK) != (c.Lost == "") {
			t.Errorf("%s: got %+v, want %s and %q", flag, c, wantStatus, want)
		}
	}
	check(workload.RuntimeOff, StatusOK, "disabled")
	check(socket, StatusDegraded, "no such file")
}

func TestDoctorReportsReadableProcesses(t *testing.T) {
	p := agenttest.NewTree(t)
	p.Put(1, 0, "init", 1, 10, "/")
	p.Put(os.Getpid(), 1, "doctor", 2, 10, "/")
	p.Put(1<<22+1, 1, "pause", 3, 20, "/")
	self := filepath.Join(p.Dir, "self/ns")
	pidNamespace := func(name string) {
		t.Helper()
		_ = os.Remove(filepath.Join(self, "pid"))
		for _, err := range []error{os.MkdirAll(self, 0o755), os.Symlink(name, filepath.Join(self, "pid"))} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(what, status, detail string) {
		t.Helper()
		if c := readProcesses(workload.ProcDir(p.Dir)); c.Status != status || !strings.Contains(c.Detail, detail) || (c.Status == StatusOK) != (c.Fix == "") {
			t.Errorf("%s: got %+v, want %s and %q", what, c, status, detail)
		}
	}
	pidNamespace(allocations.InitialPIDNamespace)
	check("host", StatusOK, "3 processes, 1 of them in other network namespaces")
	if c := readProcesses(workload.ProcDir(p.Dir)); strings.Contains(c.Detail, "cannot be read") {
		t.Errorf("host whose processes can all be read: got %+v", c)
	}
	pidNamespace("pid:[7]")
	check("node in a container", StatusOK, "3 processes, 1 of them in other network namespaces")
	p.End(1<<22 + 1)
	check("container without hostPID", StatusDegraded, "only processes of this PID namespace are seen (2)")
	pidNamespace(allocations.InitialPIDNamespace)
	check("host without namespaces", StatusOK, "2 processes, 0 of them in other")
	p.End(1)
	check("hidepid", StatusDegraded, "hidepid")
	if c := readProcesses(workload.ProcDir(p.Dir)); !strings.Contains(c.Fix, "without hidepid") {
		t.Errorf("hidepid: got advice %q, want to mount /proc without it", c.Fix)
	}
	p.Dir = filepath.Join(p.Dir, "missing")
	check("no /proc", StatusDegraded, fs.ErrNotExist.Error()[:4])
}

func TestDoctorChecksIPAMDirectories(t *testing.T) {
	root := t.TempDir()
	a, b := filepath.Join(root, "a"), filepath.Join(root, "b")
	if c := sourcesCheck(allocations.Root(false), "x", []string{a, b}, "y"); c.Status != StatusOK || !strings.Contains(c.Detail, "none of") {
		t.Errorf("no directory: got %+v", c)
	}
	if err := os.Mkdir(b, 0o755); err != nil {
		t.Fatal(err)
	}
	if c := sourcesCheck(allocations.Root(false), "x", []string{a, b}, "y"); c.Status != StatusOK || c.Detail != b {
		t.Errorf("one directory: got %+v", c)
	}
	if err := os.WriteFile(a, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if c := sourcesCheck(allocations.Root(false), "x", []string{a, b}, "y"); c.Status != StatusDegraded || c.Lost != "y" || c.Fix == "" {
		t.Errorf("one that cannot be read: got %+v", c)
	}
}

func TestAgentIsUsableWithNetlinkOrTheWire(t *testing.T) {
	check := func(observer, namespaces string) []Check {
		return []Check{{Feature: checkObserver, Status: observer}, {Feature: checkNamespaces, Status: namespaces}}
	}
	for _, c := range []struct {
		checks []Check
		usable bool
	}{
		{check(StatusOK, StatusOK), true},
		{check(StatusMissing, StatusOK), true},
		{check(StatusOK, StatusMissing), true},
		{check(StatusMissing, StatusMissing), false},
	} {
		if err := Usable(c.checks); (err == nil) != c.usable {
			t.Errorf("usable with %v: got %v", c.checks, err)
		}
	}
}

func TestDoctorChecksTenantsOfOpenVSwitch(t *testing.T) {
	for _, test := range []struct {
		ports          []string
		status, detail string
	}{
		{nil, StatusOK, "no ports"},
		{[]string{"veth1", "eth1"}, StatusOK, "2 ports"},
		{[]string{"4f3a0d5b1c2d_h", "eth1"}, StatusDegraded, "2 ports, 1 of them Kube-OVN's"},
	} {
		if c := ovsCheck(test.ports); c.Status != test.status || !strings.Contains(c.Detail, test.detail) || (c.Status == StatusOK) != (c.Fix == "") {
			t.Errorf("%q: got %+v, want %s and %q", test.ports, c, test.status, test.detail)
		}
	}
}

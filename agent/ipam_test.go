package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/agent/files"
)

func TestDoctorLooksAtIPAM(t *testing.T) {
	root := t.TempDir()
	a, b := filepath.Join(root, "a"), filepath.Join(root, "b")
	if c := sourcesCheck(files.Root(false), "x", []string{a, b}, "y"); c.Status != StatusOK || !strings.Contains(c.Detail, "none of") {
		t.Errorf("no directory: got %+v", c)
	}
	if err := os.Mkdir(b, 0o755); err != nil {
		t.Fatal(err)
	}
	if c := sourcesCheck(files.Root(false), "x", []string{a, b}, "y"); c.Status != StatusOK || c.Detail != b {
		t.Errorf("one directory: got %+v", c)
	}
	if err := os.WriteFile(a, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if c := sourcesCheck(files.Root(false), "x", []string{a, b}, "y"); c.Status != StatusDegraded || c.Lost != "y" || c.Fix == "" {
		t.Errorf("one that cannot be read: got %+v", c)
	}
}

func TestNodenameOfCalico(t *testing.T) {
	l := newIPAMLab(t)
	l.must(os.MkdirAll(filepath.Dir(l.ipam.nodenameFile), 0o755))
	for content, want := range map[string]struct{ name, problem string }{
		"":                              {"", ""},
		"worker-1":                      {"worker-1", ""},
		"\n worker.example \r\n":        {"worker.example", ""},
		strings.Repeat("x", 253) + "\n": {strings.Repeat("x", 253), ""},
		strings.Repeat("x", 254):        {"", "has no name of a node"},
		"\xff":                          {"", "has no name of a node"},
	} {
		l.must(os.WriteFile(l.ipam.nodenameFile, []byte(content), 0o600))
		if name, problem := l.ipam.readNodename(); name != want.name || !strings.Contains(problem, want.problem) || (problem == "") != (want.problem == "") {
			t.Errorf("nodename %q: got %q, problem %q", content, name, problem)
		}
	}
	l.must(os.Remove(l.ipam.nodenameFile))
	if name, problem := l.ipam.readNodename(); name != "" || problem != "" {
		t.Errorf("no file: got %q, problem %q", name, problem)
	}
	l.must(os.Mkdir(l.ipam.nodenameFile, 0o755))
	if name, problem := l.ipam.readNodename(); name != "" || !strings.Contains(problem, "is not known") {
		t.Errorf("a directory: got %q, problem %q", name, problem)
	}
}

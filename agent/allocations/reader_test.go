package allocations

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNodenameOfCalico(t *testing.T) {
	l := newIPAMLab(t)
	l.must(os.MkdirAll(filepath.Dir(l.ipam.cfg.CalicoNodename), 0o755))
	for content, want := range map[string]struct{ name, problem string }{
		"":                              {"", ""},
		"worker-1":                      {"worker-1", ""},
		"\n worker.example \r\n":        {"worker.example", ""},
		strings.Repeat("x", 253) + "\n": {strings.Repeat("x", 253), ""},
		strings.Repeat("x", 254):        {"", "has no node name"},
		"\xff":                          {"", "has no node name"},
	} {
		l.must(os.WriteFile(l.ipam.cfg.CalicoNodename, []byte(content), 0o600))
		if name, problem := l.ipam.readNodename(); name != want.name || !strings.Contains(problem, want.problem) || (problem == "") != (want.problem == "") {
			t.Errorf("nodename %q: got %q, problem %q", content, name, problem)
		}
	}
	l.must(os.Remove(l.ipam.cfg.CalicoNodename))
	if name, problem := l.ipam.readNodename(); name != "" || problem != "" {
		t.Errorf("no file: got %q, problem %q", name, problem)
	}
	l.must(os.Mkdir(l.ipam.cfg.CalicoNodename, 0o755))
	if name, problem := l.ipam.readNodename(); name != "" || !strings.Contains(problem, "is not known") {
		t.Errorf("a directory: got %q, problem %q", name, problem)
	}
}

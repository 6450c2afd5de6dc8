package allocations

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNodenameOfCalico(t *testing.T) {
	l := newIPAMLab(t)
	file := l.ipam.nameFiles["Calico"]
	l.must(os.MkdirAll(filepath.Dir(file), 0o755))
	for content, want := range map[string]struct{ name, problem string }{
		"":                              {"", ""},
		"worker-1":                      {"worker-1", ""},
		"\n worker.example \r\n":        {"worker.example", ""},
		strings.Repeat("x", 253) + "\n": {strings.Repeat("x", 253), ""},
		strings.Repeat("x", 254):        {"", "contains no valid node name"},
		"\xff":                          {"", "contains no valid node name"},
	} {
		l.must(os.WriteFile(file, []byte(content), 0o600))
		if name, err := readName("Calico", file); name != want.name || (err == nil) != (want.problem == "") || err != nil && !strings.Contains(err.Error(), want.problem) {
			t.Errorf("nodename %q: got %q, error %v", content, name, err)
		}
	}
	l.must(os.Remove(file))
	if name, err := readName("Calico", file); name != "" || err != nil {
		t.Errorf("no file: got %q, error %v", name, err)
	}
	l.must(os.Mkdir(file, 0o755))
	if name, err := readName("Calico", file); name != "" || err == nil || !strings.Contains(err.Error(), "cannot read Calico's name of this node") {
		t.Errorf("a directory: got %q, error %v", name, err)
	}
}

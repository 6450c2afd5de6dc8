package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam/registry"
)

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestEachIPAMIsDocumented(t *testing.T) {
	reference, metrics, glossary := read(t, "docs/reference.md"), read(t, "docs/metrics.md"), read(t, "docs/glossary.md")
	for _, m := range registry.All {
		if !strings.Contains(metrics, "`"+m.Name+"`") {
			t.Errorf("docs/metrics.md lacks the value %s of the label ipam", m.Name)
		}
		if m.Status {
			continue // no IPAM
		}
		if !strings.Contains(reference, "`"+m.Name+"`") {
			t.Errorf("docs/reference.md lacks the name %s", m.Name)
		}
		if !strings.Contains(glossary, m.Title) {
			t.Errorf("docs/glossary.md lacks %s", m.Title)
		}
		for _, k := range m.Kinds() {
			if !strings.Contains(reference, "`"+k.String()+"`") {
				t.Errorf("docs/reference.md lacks the permission for %s", k)
			}
		}
	}
}

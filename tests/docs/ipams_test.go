package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam/registry"
)

// outside returns the text of a page without the generated texts about IPAMs.
func outside(page string) string {
	return regexp.MustCompile(`(?s)<!-- ipam: .*?<!-- end of ipam -->`).ReplaceAllString(page, "")
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestEachIPAMIsInTheReference(t *testing.T) {
	supported, reference, metrics, glossary := read(t, "docs/supported.md"), read(t, "docs/reference.md"), read(t, "docs/metrics.md"), read(t, "docs/glossary.md")
	for _, m := range registry.All {
		if len(m.Docs.Supported) == 0 {
			t.Errorf("%s: docs/supported.md has no row", m.Name)
		}
		for _, row := range m.Docs.Supported {
			if !strings.Contains(supported, "\n| "+row.What+" | "+row.State+" | "+row.Evidence+" |\n") {
				t.Errorf("%s: docs/supported.md lacks %q", m.Name, row.What)
			}
		}
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

func TestTheEvidenceForIPAMsExists(t *testing.T) {
	known := tests(t)
	for _, m := range registry.All {
		for _, row := range m.Docs.Supported {
			names, files := testName.FindAllStringSubmatch(row.Evidence, -1), file.FindAllStringSubmatch(row.Evidence, -1)
			if len(names)+len(files) == 0 {
				t.Errorf("%s: %q names no test", m.Name, row.What)
			}
			for _, name := range names {
				if !known[name[1]] {
					t.Errorf("%s: there is no test %s", m.Name, name[1])
				}
			}
			for _, f := range files {
				if _, err := os.Stat(filepath.Join(root, f[1])); err != nil {
					t.Errorf("%s: %v", m.Name, err)
				}
			}
		}
	}
}

// general are mentions in the runbooks that are about networks, not about the records of an IPAM.
var general = regexp.MustCompile("\\(KubeVirt's bridge binding|`vxlan\\.calico`|\\(Calico, Cilium, `ptp`\\)|`calicoctl`")

// Runbooks name single IPAMs only in texts that come from the folder of the IPAM.
func TestRunbooksHaveTheTextsOfIPAMsFromTheirFolders(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root, "docs/runbooks/*.md"))
	if err != nil || len(paths) < 20 {
		t.Fatalf("got %d runbooks (%v), want them", len(paths), err)
	}
	inside := 0
	for _, path := range paths {
		page := read(t, "docs/runbooks/"+filepath.Base(path))
		text := strings.ToLower(general.ReplaceAllString(outside(page), ""))
		for _, m := range registry.All {
			if m.Status {
				continue
			}
			inside += strings.Count(page, "- "+m.Title+": ")
			if strings.Contains(text, m.Name) || strings.Contains(text, strings.ToLower(m.Title)) {
				t.Errorf("%s names %s outside of the texts of the IPAMs: move what it says to ipam/*/runbooks.md", filepath.Base(path), m.Title)
			}
		}
	}
	if inside < 50 {
		t.Errorf("got %d paragraphs about IPAMs, want those of the runbooks", inside)
	}
}

package explain_test

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const runbooks = "../../docs/runbooks"

// named returns the values of the constants of package verdict whose names have a prefix.
func named(t *testing.T, prefix string) []string {
	t.Helper()
	return valuesOf(t, func(_ *ast.ValueSpec, name string) bool { return strings.HasPrefix(name, prefix) })
}

// alerted lists the pages that alerts refer to, except the pages that are chosen by the cause.
func alerted(t *testing.T) (pages []string) {
	t.Helper()
	rules, err := os.ReadFile("../../deploy/helm/ipwitness/files/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range regexp.MustCompile(`runbook_url: (\S+)\.md\n`).FindAllStringSubmatch(string(rules), -1) {
		name := path.Base(url[1])
		if explain.Runbook(name) != url[1]+".md" {
			t.Errorf("%s.md is not where runbooks are: %s", url[1], explain.Runbook(name))
		}
		pages = append(pages, name)
	}
	if len(pages) < 20 {
		t.Fatalf("got pages %q of alerts, want more", pages)
	}
	return pages
}

func TestEachCauseFindingAndAlertHasAPage(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(runbooks, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, name := range slices.Concat(named(t, "Cause"), named(t, "Finding"), alerted(t)) {
		url := explain.Runbook(name)
		if slices.Contains(pages, url[strings.LastIndexByte(url, '/')+1:]) {
			continue // an alert refers to a cause or a kind of finding
		}
		page := url[strings.LastIndexByte(url, '/')+1:]
		pages = append(pages, page)
		raw, err := os.ReadFile(filepath.Join(runbooks, page))
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.HasPrefix(string(raw), "# "+name+"\n") {
			t.Errorf("%s: got another title, want %s", page, name)
		}
		if !strings.Contains(string(index), "]("+page+")") {
			t.Errorf("README.md: want a link to %s", page)
		}
	}
	for _, kind := range named(t, "Finding") {
		if slices.Contains(verdict.FindingKinds(), kind) == (kind == verdict.FindingNATToFormerOwner) { // on demand only
			t.Errorf("got no kind %s in the list of all", kind)
		}
	}

	files, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if base := filepath.Base(file); base != "README.md" && !slices.Contains(pages, base) {
			t.Errorf("%s is about nothing", base)
		}
	}
}

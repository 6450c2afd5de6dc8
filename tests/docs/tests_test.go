package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9_]+)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
)

// tests returns the names of all tests in the repository.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, path := range files(t, "_test.go") {
		for _, m := range testFunc.FindAllStringSubmatch(read(t, path), -1) {
			all[m[1]] = true
		}
	}
	return all
}

func TestTestsThatPagesNameExist(t *testing.T) {
	known, named := tests(t), 0
	for _, path := range files(t, ".md") {
		if path == "CHANGELOG.md" {
			continue // it may name tests of the past
		}
		for _, m := range testName.FindAllStringSubmatch(read(t, path), -1) {
			named++
			if !known[m[1]] {
				t.Errorf("%s: there is no test %s", path, m[1])
			}
		}
	}
	if named < 100 {
		t.Errorf("got %d names of tests, want those of docs/security.md and docs/supported.md", named)
	}
}

// file matches the path of a file of the repository.
var file = regexp.MustCompile("`((?:[a-z][\\w.-]*/)+[a-z][\\w.-]*\\.[a-z]+)`")

func TestFilesThatCONTRIBUTINGNamesExist(t *testing.T) {
	for _, m := range file.FindAllStringSubmatch(read(t, "CONTRIBUTING.md"), -1) {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("CONTRIBUTING.md names %s, which does not exist", m[1])
		}
	}
}

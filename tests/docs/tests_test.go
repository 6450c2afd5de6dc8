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

// file matches the path of a file of the repository, and the name of code in it if one follows. ofCode are the pages
// that name code.
var (
	file    = regexp.MustCompile("`((?:[a-z][\\w.-]*/)+[a-z][\\w.-]*\\.[a-z]+)`(?:: `([\\w.]+)`)?")
	ofCode  = []string{"CONTRIBUTING.md", "docs/architecture.md"}
	lastOne = regexp.MustCompile(`\w+$`)
)

func TestFilesAndNamesThatPagesNameExist(t *testing.T) {
	for _, page := range ofCode {
		found := file.FindAllStringSubmatch(read(t, page), -1)
		if len(found) < 10 {
			t.Errorf("%s names %d files: does the test find them?", page, len(found))
		}
		for _, m := range found {
			text, err := os.ReadFile(filepath.Join(root, m[1]))
			if err != nil {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			} else if name := lastOne.FindString(m[2]); name != "" && !regexp.MustCompile(`\b`+name+`\b`).Match(text) {
				t.Errorf("%s names %s in %s, which does not have it", page, m[2], m[1])
			}
		}
	}
}

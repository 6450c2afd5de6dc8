package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// promised are the chapters of docs/security.md whose tables make promises.
var promised = []string{"Authentication", "On the wire", "Limits", "Who can do what", "Attacks, and how they are reported", "Texts from outside"}

var testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")

// promise is one row of a table: the first cell, and the tests in the last cell. A row
// that promises nothing has a dash in its second-to-last cell.
type promise struct {
	what    string
	tests   []string
	nothing bool
}

// promises returns the rows of the tables in a chapter of a page.
func promises(text, chapter string) (all []promise) {
	_, text, _ = strings.Cut(text, "\n## "+chapter+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	heading := true
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			heading = true
			continue
		case heading:
			heading = false
			continue
		case strings.HasPrefix(line, "|---"):
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		p := promise{what: strings.TrimSpace(cells[0]), nothing: len(cells) > 1 && strings.TrimSpace(cells[len(cells)-2]) == "–"}
		for _, m := range testName.FindAllStringSubmatch(cells[len(cells)-1], -1) {
			p.tests = append(p.tests, m[1])
		}
		all = append(all, p)
	}
	return all
}

// tests returns the names of all tests in the repository.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (d.Name() == "bin" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			if fn, is := d.(*ast.FuncDecl); is && fn.Recv == nil {
				all[fn.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestEachPromiseNamesTheTestThatKeepsIt(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := tests(t)
	for _, chapter := range promised {
		rows := promises(string(page), chapter)
		if len(rows) < 3 {
			t.Errorf("%s: got %d rows, want the rows of its tables", chapter, len(rows))
		}
		for _, p := range rows {
			if len(p.tests) == 0 && !p.nothing {
				t.Errorf("%s: %q names no test", chapter, p.what)
			}
			for _, name := range p.tests {
				if !known[name] {
					t.Errorf("%s: %q: there is no test %s", chapter, p.what, name)
				}
			}
		}
	}
}

func TestPromisesAreRead(t *testing.T) {
	got := promises("# Page\n## Other\n| a | b |\n|---|---|\n| no | `TestNo` |\n## Limits\nwords\n\n| What | Limit | Test |\n|---|---|---|\n"+
		"| a `--x=a\\|b` | 1 | `TestA`, `FuzzB` |\n| b | `TestA` | none |\n| c | – | |\n## More\n| d | e |\n", "Limits")
	want := []promise{{"a `--x=a\\|b`", []string{"TestA", "FuzzB"}, false}, {"b", nil, false}, {"c", nil, true}}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i, w := range want {
		if g := got[i]; g.what != w.what || strings.Join(g.tests, " ") != strings.Join(w.tests, " ") || g.nothing != w.nothing {
			t.Errorf("row %d: got %v, want %v", i, g, w)
		}
	}
}

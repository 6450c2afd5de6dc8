package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// inFile matches a source file and the identifiers that a page says are in it: `file.go`: `Name`, `Type.Method`.
var inFile = regexp.MustCompile("`([a-z][\\w/]*/[\\w.]+\\.(?:go|c))`: ((?:`[\\w.]+`(?:, )?)+)")

// identifiers returns the functions, methods as Type.Method, types and constants of a Go file.
func identifiers(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return nil
	}
	all := map[string]bool{}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			all[receiver(d)+d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					all[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, name := range s.Names {
						all[name.Name] = true
					}
				}
			}
		}
	}
	return all
}

// receiver returns the type of a method with a dot; empty for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	if star, is := of.(*ast.StarExpr); is {
		of = star.X
	}
	switch generic := of.(type) {
	case *ast.IndexExpr:
		of = generic.X
	case *ast.IndexListExpr:
		of = generic.X
	}
	name, _ := of.(*ast.Ident)
	return name.Name + "."
}

// missingNames returns the identifiers that a page says are in source files and are not.
func missingNames(t *testing.T, text string) (checked int, missing []string) {
	t.Helper()
	for _, m := range inFile.FindAllStringSubmatch(text, -1) {
		path := filepath.Join(root, m[1])
		raw, err := os.ReadFile(path)
		if err != nil {
			missing = append(missing, m[1])
			continue
		}
		has := func(name string) bool { return regexp.MustCompile(`\b` + name + `\(`).Match(raw) }
		if strings.HasSuffix(path, ".go") {
			all := identifiers(t, path)
			has = func(name string) bool { return all[name] }
		}
		for _, name := range regexp.MustCompile(`[\w.]+`).FindAllString(m[2], -1) {
			checked++
			if !has(name) {
				missing = append(missing, m[1]+": "+name)
			}
		}
	}
	return checked, missing
}

func TestTheArchitectureNamesWhatIsInTheSources(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	checked, missing := missingNames(t, string(page))
	for _, name := range missing {
		t.Errorf("docs/architecture.md names %s, which does not exist", name)
	}
	if checked < 25 {
		t.Errorf("got %d names, want all of the page: does the parser find them?", checked)
	}
}

// file matches a file of the repository, and not one with a placeholder such as NAME.go.
var file = regexp.MustCompile("`((?:[a-z][\\w.-]*/)+[a-z][\\w.-]*\\.[a-z]+)`")

func TestContributingNamesWhatIsInTheSources(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	files := file.FindAllStringSubmatch(string(page), -1)
	for _, m := range files {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("CONTRIBUTING.md names %s, which does not exist", m[1])
		}
	}
	_, missing := missingNames(t, string(page))
	for _, name := range missing {
		t.Errorf("CONTRIBUTING.md names %s, which does not exist", name)
	}
	if len(files) < 20 {
		t.Errorf("got %d files, want all of the recipes: does the parser find them?", len(files))
	}
}

func TestNamesAreRead(t *testing.T) {
	checked, missing := missingNames(t, "| `tests/docs/names_test.go`: `missingNames`, `none`; `tests/docs/gone.go`: `a` | `bpf/observe.c`: `report`, `none` and `names_test.go` |")
	if want := "tests/docs/names_test.go: none|tests/docs/gone.go|bpf/observe.c: none"; checked != 4 || strings.Join(missing, "|") != want {
		t.Errorf("got %d, %q; want 4, %q", checked, missing, want)
	}
}

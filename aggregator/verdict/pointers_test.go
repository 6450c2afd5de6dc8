package verdict_test

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Records are identified by their keys, because a case from a file or another aggregator has other
// pointers. Only owners of the current judgement may be compared by pointer.
func TestNoPointerOfARecordIsItsIdentity(t *testing.T) {
	fset := token.NewFileSet()
	var files []*ast.File
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	for _, use := range pointerUses(t, fset, files) {
		t.Errorf("%s: compare keys (Key, is), and not pointers", use)
	}
}

func TestPointersThatAreIdentitiesAreFound(t *testing.T) {
	const source = `package p

import "slices"

type Node struct{}

type Owner struct{}

type both struct {
	n *Node
	o *Owner
}

func (n *Node) is(other *Node) bool { return n == other }

func good(o, p *Owner, n *Node) bool { return o == p || n == nil || n.is(nil) }

func bad(a, b *Node, x, y both, all []*Node) bool {
	_ = map[*Node]bool{}
	switch a {
	case b:
	}
	return a == b || x != y || slices.Contains(all, a) || slices.Index(all, b) > 0
}
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	got := pointerUses(t, fset, []*ast.File{f})
	for i := range got {
		got[i], _, _ = strings.Cut(got[i], ": ")
	}
	slices.Sort(got)
	if want := []string{"p.go:19:10", "p.go:21:7", "p.go:23:19", "p.go:23:29", "p.go:23:56", "p.go:23:9"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// checkedPackage is the import path of the package that is checked.
const checkedPackage = "checked"

// pointerUses returns the places where pointers other than pointers to owners are compared.
func pointerUses(t *testing.T, fset *token.FileSet, files []*ast.File) (uses []string) {
	t.Helper()
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	if build.Default.GOROOT == "" { // a test that was built with -trimpath does not know it
		out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
		if err != nil {
			t.Fatal(err)
		}
		build.Default.GOROOT = strings.TrimSpace(string(out))
	}
	config := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	if _, err := config.Check(checkedPackage, fset, files, info); err != nil {
		t.Fatal(err)
	}
	check := func(what string, at ast.Node, of types.Type) {
		if hasPointer(of) {
			uses = append(uses, fmt.Sprintf("%s: %s of %s", fset.Position(at.Pos()), what, of))
		}
	}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch e := n.(type) {
			case *ast.FuncDecl:
				// These functions compare keys or values and only use pointers as a shortcut.
				return !slices.Contains([]string{"is", "same", "equal"}, strings.ToLower(e.Name.Name))
			case *ast.BinaryExpr:
				x, y := info.Types[e.X], info.Types[e.Y]
				if (e.Op == token.EQL || e.Op == token.NEQ) && !x.IsNil() && !y.IsNil() {
					check("comparison", e, x.Type)
				}
			case *ast.SwitchStmt:
				for _, clause := range e.Body.List {
					for _, value := range clause.(*ast.CaseClause).List {
						if e.Tag != nil && !info.Types[value].IsNil() {
							check("case", value, info.Types[e.Tag].Type)
						}
					}
				}
			case *ast.MapType:
				check("map key", e.Key, info.Types[e.Key].Type)
			case *ast.CallExpr:
				f, ok := e.Fun.(*ast.SelectorExpr)
				if !ok || info.Uses[f.Sel] == nil || info.Uses[f.Sel].Pkg() == nil || info.Uses[f.Sel].Pkg().Path() != "slices" {
					break
				}
				if slices.Contains([]string{"Contains", "Index", "Equal", "Compact"}, f.Sel.Name) {
					check(f.Sel.Name, e, info.Types[e.Args[0]].Type.Underlying().(*types.Slice).Elem())
				}
			}
			return true
		})
	}
	return uses
}

// hasPointer reports whether comparing values of a type compares pointers. Pointers to owners do
// not count.
func hasPointer(t types.Type) bool {
	if named, ok := t.(*types.Named); ok && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() != checkedPackage {
		return false // types of other packages, such as netip.Addr, compare values
	}
	switch u := t.Underlying().(type) {
	case *types.Pointer:
		named, ok := u.Elem().(*types.Named)
		return !ok || named.Obj().Name() != "Owner"
	case *types.Struct:
		for f := range u.Fields() {
			if hasPointer(f.Type()) {
				return true
			}
		}
	case *types.Array:
		return hasPointer(u.Elem())
	}
	return false
}

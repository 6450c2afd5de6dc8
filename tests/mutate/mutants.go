package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
)

// A mutant is one change of one source file: text replaces the bytes from..to.
type mutant struct {
	file     string
	line     int
	from, to int
	text     string
	change   string // what was changed, for people
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d: %s", m.file, m.line, m.change)
}

// apply returns the source of the file with the change.
func (m mutant) apply() ([]byte, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return nil, err
	}
	return []byte(string(source[:m.from]) + m.text + string(source[m.to:])), nil
}

// operators maps each operator to its replacements. Comparisons have two: the opposite, and
// the one that differs only where both sides are equal.
var operators = map[token.Token][]token.Token{
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD},
	token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.AND: {token.OR}, token.OR: {token.AND}, token.XOR: {token.AND}, token.AND_NOT: {token.AND},
	token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.INC: {token.DEC}, token.DEC: {token.INC},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN},
	token.OR_ASSIGN: {token.AND_ASSIGN}, token.AND_ASSIGN: {token.OR_ASSIGN},
}

// mutantsOf returns all mutants of a source file; none if it is generated.
func mutantsOf(path string) ([]mutant, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := finder{files: token.NewFileSet(), path: path, source: string(source)}
	file, err := parser.ParseFile(f.files, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return nil, err
	}
	ast.Inspect(file, func(n ast.Node) bool { f.visit(n); return true })
	return f.found, nil
}

// finder collects the mutants of one file.
type finder struct {
	files  *token.FileSet
	path   string
	source string
	found  []mutant
}

func (f *finder) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		f.operator(n.OpPos, n.Op)
		if n.Op == token.LAND || n.Op == token.LOR {
			f.condition(n.X)
			f.condition(n.Y)
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			f.replace(n.OpPos, n.OpPos+1, "", "removed !")
		}
	case *ast.Ident:
		switch n.Name {
		case "true":
			f.replace(n.Pos(), n.End(), "false", "true became false")
		case "false":
			f.replace(n.Pos(), n.End(), "true", "false became true")
		}
	case *ast.IfStmt:
		f.condition(n.Cond)
	case *ast.ForStmt:
		f.condition(n.Cond)
	case *ast.SwitchStmt:
		if n.Tag == nil {
			for _, c := range n.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					f.condition(e)
				}
			}
		}
	case *ast.FuncDecl:
		f.answers(n.Type, n.Body)
	case *ast.FuncLit:
		f.answers(n.Type, n.Body)
	case *ast.IncDecStmt:
		f.operator(n.TokPos, n.Tok)
	case *ast.AssignStmt:
		f.operator(n.TokPos, n.Tok)
	case *ast.BlockStmt:
		f.statements(n.List)
	case *ast.CaseClause:
		f.statements(n.Body)
	case *ast.CommClause:
		f.statements(n.Body)
	}
}

// operator swaps an operator.
func (f *finder) operator(at token.Pos, op token.Token) {
	for _, other := range operators[op] {
		f.replace(at, at+token.Pos(len(op.String())), other.String(), fmt.Sprintf("%s became %s", op, other))
	}
}

// condition negates a condition that has no operator of its own to swap.
func (f *finder) condition(e ast.Expr) {
	switch e.(type) {
	case *ast.CallExpr, *ast.SelectorExpr, *ast.IndexExpr, *ast.Ident:
		f.replace(e.Pos(), e.End(), "!("+f.text(e)+")", "negated "+f.text(e))
	}
}

// answers negates what a function returns whose only result is a bool.
func (f *finder) answers(signature *ast.FuncType, body *ast.BlockStmt) {
	if body == nil || signature.Results.NumFields() != 1 {
		return
	}
	if result, ok := signature.Results.List[0].Type.(*ast.Ident); !ok || result.Name != "bool" {
		return
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false // it has results of its own
		case *ast.ReturnStmt:
			for _, e := range n.Results {
				f.condition(e)
			}
		}
		return true
	})
}

// statements removes statements one by one. Nothing becomes unused, as the compiler still sees
// them.
func (f *finder) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.ReturnStmt, *ast.BranchStmt, *ast.SendStmt:
		default:
			continue
		}
		f.replace(s.Pos(), s.End(), "if false { "+f.text(s)+" }", "removed "+f.text(s))
	}
}

func (f *finder) replace(from, to token.Pos, text, change string) {
	at := f.files.Position(from)
	line := strings.TrimSpace(strings.Split(f.source, "\n")[at.Line-1])
	if first, _, more := strings.Cut(change, "\n"); more {
		change = first + " …"
	}
	if !strings.HasSuffix(change, line) {
		change += " in: " + line
	}
	f.found = append(f.found, mutant{
		file: f.path, line: at.Line, from: at.Offset, to: f.files.Position(to).Offset, text: text,
		change: change,
	})
}

func (f *finder) text(n ast.Node) string {
	return f.source[f.files.Position(n.Pos()).Offset:f.files.Position(n.End()).Offset]
}

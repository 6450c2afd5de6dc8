package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// A mutant is one change of a source file.
type mutant struct {
	number int // 0 if it does not compile
	file   string
	line   int
	change string // description for people
	edits  []edit
	// first and last are the lines of the edits. doubtful means that the types of operands decide
	// whether it compiles.
	first, last int
	doubtful    bool
}

func (m mutant) String() string { return fmt.Sprintf("%s:%d: %s", m.file, m.line, m.change) }

// An edit replaces the bytes from..to of a source file. All edits of a file are applied together,
// so that one program contains all mutants, and the environment enables one of them. $ in text
// stands for the number of the mutant.
type edit struct {
	from, to int
	text     string
	// begin is the start of an expression or statement that ends at from. end is the end of one
	// that starts there.
	begin, end int
}

// helper is a file that is added to the package.
const helper = `package %s

import "os"

var mutantOn = func() (n int) {
	for _, digit := range os.Getenv("MUTANT") {
		n = 10*n + int(digit-'0')
	}
	return n
}()

type mutantNumber interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

func mutantAdd[T mutantNumber](on bool, a, b T) T { if on { return a - b }; return a + b }
func mutantSub[T mutantNumber](on bool, a, b T) T { if on { return a + b }; return a - b }
func mutantMul[T mutantNumber](on bool, a, b T) T { if on { return a / b }; return a * b }
func mutantQuo[T mutantNumber](on bool, a, b T) T { if on { return a * b }; return a / b }
`

// arithmetic maps operators to the functions of helper that swap them.
var arithmetic = map[token.Token]string{token.ADD: "mutantAdd", token.SUB: "mutantSub", token.MUL: "mutantMul", token.QUO: "mutantQuo"}

// The replacements of operators: the opposite, and for comparisons also the one that differs only
// if both sides are equal.
var opposites = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.GEQ, token.GEQ: token.LSS, token.GTR: token.LEQ, token.LEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	token.INC: token.DEC, token.DEC: token.INC,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
	token.OR_ASSIGN: token.AND_ASSIGN, token.AND_ASSIGN: token.OR_ASSIGN,
}

// mutantsOf returns all mutants of a source file; none if it is generated.
func mutantsOf(path string, source []byte) ([]mutant, error) {
	f := finder{files: token.NewFileSet(), path: path, source: string(source)}
	file, err := parser.ParseFile(f.files, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return nil, err
	}
	skip := map[ast.Node]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if d, ok := n.(*ast.GenDecl); ok && d.Tok != token.VAR {
			return false // constants stay unchanged
		}
		if n == nil || skip[n] || f.equivalent(n) {
			return false
		}
		if call, ok := n.(*ast.CallExpr); ok {
			if hint := capacity(call); hint != nil {
				skip[hint] = true
			}
		}
		f.visit(n)
		return true
	})
	return f.found, nil
}

// instrument returns a source file with some of its mutants.
func instrument(source []byte, mutants []mutant) []byte {
	var edits []edit
	for _, m := range mutants {
		for _, e := range m.edits {
			e.text = strings.ReplaceAll(e.text, "$", fmt.Sprintf("(mutantOn == %d)", m.number))
			edits = append(edits, e)
		}
	}
	// At the same position, insert the ends first, from the inside out, and then the beginnings,
	// from the outside in.
	slices.SortStableFunc(edits, func(a, b edit) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.begin, a.begin), cmp.Compare(b.end, a.end))
	})
	var out bytes.Buffer
	at := 0
	for _, e := range edits {
		out.Write(source[at:e.from])
		out.WriteString(e.text)
		at = e.to
	}
	out.Write(source[at:])
	return out.Bytes()
}

// finder collects the mutants of one file.
type finder struct {
	files  *token.FileSet
	path   string
	source string
	found  []mutant
}

// equivalent reports whether no change of a node can be detected, because it concerns only memory
// usage or logs:
//   - the capacity argument of make, and calls of slices.Grow and slices.Clip;
//   - the assignment of a string's own copy to it (strings.Clone);
//   - a log statement.
func (f *finder) equivalent(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ExprStmt:
		call, ok := n.X.(*ast.CallExpr)
		if !ok {
			return false
		}
		logs, _ := call.Fun.(*ast.SelectorExpr)
		return logs != nil && slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, logs.Sel.Name) && strings.HasSuffix(strings.ToLower(f.text(logs.X)), "log")
	case *ast.AssignStmt:
		if n.Tok != token.ASSIGN {
			return false
		}
		for i, right := range n.Rhs {
			call, ok := right.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 || len(n.Lhs) != len(n.Rhs) {
				return false
			}
			name := f.text(call.Fun)
			if !slices.Contains([]string{"strings.Clone", "slices.Grow", "slices.Clip"}, name) || f.text(call.Args[0]) != f.text(n.Lhs[i]) {
				return false
			}
		}
		return true
	}
	return false
}

// capacity returns the argument of a call that only determines the allocated memory, or nil.
func capacity(call *ast.CallExpr) ast.Expr {
	name, _ := call.Fun.(*ast.Ident)
	if name == nil || name.Name != "make" {
		return nil
	}
	_, isMap := call.Args[0].(*ast.MapType)
	switch {
	case len(call.Args) == 3:
		return call.Args[2]
	case len(call.Args) == 2 && isMap:
		return call.Args[1]
	}
	return nil
}

func (f *finder) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			f.negate(n, "removed !")
		}
	case *ast.Ident:
		if n.Name == "true" || n.Name == "false" {
			f.negate(n, "negated "+n.Name)
		}
	case *ast.IfStmt:
		f.condition(n.Cond)
		if n.Else == nil {
			f.statements(n.Body.List, true)
		}
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
	case *ast.BlockStmt:
		f.statements(n.List, false)
	case *ast.CaseClause:
		f.statements(n.Body, false)
	case *ast.CommClause:
		f.statements(n.Body, false)
	}
}

// binary replaces an operator.
func (f *finder) binary(n *ast.BinaryExpr) {
	swap := func(other token.Token, edits ...edit) {
		f.add(n.OpPos, fmt.Sprintf("%s became %s", n.Op, other), edits...)
	}
	equal := "(" + f.text(n.X) + ") == (" + f.text(n.Y) + ")"
	switch n.Op {
	case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
		swap(opposites[n.Op], f.around(n, "((", ") != $)")...)
	case token.LAND, token.LOR: // a || b is !(!a && !b)
		swap(opposites[n.Op], slices.Concat(f.around(n, "((", ") != $)"), f.around(n.X, "((", ") != $)"), f.around(n.Y, "((", ") != $)"))...)
		f.condition(n.X)
		f.condition(n.Y)
	case token.ADD, token.SUB, token.MUL, token.QUO:
		at := f.files.Position(n.OpPos).Offset
		swap(opposites[n.Op], append(f.around(n, arithmetic[n.Op]+"($, ", ")"), edit{from: at, to: at + 1, text: ","})...)
		f.found[len(f.found)-1].doubtful = true
	}
	switch n.Op {
	case token.LSS:
		swap(token.LEQ, f.around(n, "((", ") || $ && "+equal+")")...)
	case token.GTR:
		swap(token.GEQ, f.around(n, "((", ") || $ && "+equal+")")...)
	case token.LEQ:
		swap(token.LSS, f.around(n, "((", ") && !($ && "+equal+"))")...)
	case token.GEQ:
		swap(token.GTR, f.around(n, "((", ") && !($ && "+equal+"))")...)
	}
}

// condition negates a condition without a replaceable operator.
func (f *finder) condition(e ast.Expr) {
	switch e.(type) {
	case *ast.CallExpr, *ast.SelectorExpr, *ast.IndexExpr, *ast.Ident:
		if text := f.text(e); text != "true" && text != "false" {
			f.negate(e, "negated "+text)
		}
	}
}

func (f *finder) negate(e ast.Expr, change string) {
	f.add(e.Pos(), change, f.around(e, "((", ") != $)")...)
}

// answers negates the results of a function whose only result is a bool.
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
			return false // it has its own results
		case *ast.ReturnStmt:
			for _, e := range n.Results {
				f.condition(e)
			}
		}
		return true
	})
}

// statements removes statements, and replaces their operators. A return can be removed only from
// the body of an if without else: elsewhere the function might end without one.
func (f *finder) statements(list []ast.Stmt, returns bool) {
	for _, s := range list {
		_, isReturn := s.(*ast.ReturnStmt)
		if isReturn != returns || f.equivalent(s) {
			continue
		}
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
			if other, ok := opposites[s.Tok]; ok {
				f.swapStatement(s, s.Tok, other, f.text(s.Lhs[0])+" "+other.String()+" "+f.text(s.Rhs[0]))
			}
		case *ast.IncDecStmt:
			f.swapStatement(s, s.Tok, opposites[s.Tok], f.text(s.X)+opposites[s.Tok].String())
		case *ast.ExprStmt, *ast.ReturnStmt, *ast.BranchStmt, *ast.SendStmt:
		default:
			continue
		}
		f.add(s.Pos(), "removed "+f.text(s), f.around(s, "if !$ { ", " }")...)
	}
}

func (f *finder) swapStatement(s ast.Stmt, op, other token.Token, text string) {
	f.add(s.Pos(), fmt.Sprintf("%s became %s", op, other), f.around(s, "if $ { "+text+" } else { ", " }")...)
}

func (f *finder) around(n ast.Node, before, after string) []edit {
	from, to := f.files.Position(n.Pos()).Offset, f.files.Position(n.End()).Offset
	return []edit{{from: from, to: from, text: before, end: to}, {from: to, to: to, text: after, begin: from + 1}}
}

func (f *finder) add(at token.Pos, change string, edits ...edit) {
	position := f.files.Position(at)
	m := mutant{file: f.path, line: position.Line, edits: edits, first: position.Line, last: position.Line}
	for i := range edits {
		edits[i].text = strings.ReplaceAll(edits[i].text, "\n", " ") // keep the line numbers
		on := 1 + strings.Count(f.source[:edits[i].from], "\n")
		m.first, m.last = min(m.first, on), max(m.last, on)
	}
	line := strings.TrimSpace(strings.Split(f.source, "\n")[position.Line-1])
	if first, _, more := strings.Cut(change, "\n"); more {
		change = first + " …"
	}
	if !strings.HasSuffix(change, line) {
		change += " in: " + line
	}
	m.change = change
	f.found = append(f.found, m)
}

func (f *finder) text(n ast.Node) string {
	return f.source[f.files.Position(n.Pos()).Offset:f.files.Position(n.End()).Offset]
}

// Command catalogue writes docs/situations.md, and a page for each situation in docs/situations:
// what ipwitness says about it, and the test that proves it. It also writes docs/attacks.md,
// docs/incidents.md, and the table of rooms in CONTRIBUTING.md. The texts come from the
// tests themselves (tests/testdata). It fails if a text or a test is missing, or
// belongs to no situation or incident.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/tests/situations/record"
)

const (
	index    = "docs/situations.md"
	pagesDir = "docs/situations"
	texts    = "tests/testdata/situations"
)

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "catalogue:", err)
		os.Exit(1)
	}
}

// write writes the pages in the repository, which is the working directory, and removes the pages of
// situations that no longer exist.
func write() error {
	pages, err := generate()
	if err != nil {
		return err
	}
	stale, err := filepath.Glob(filepath.Join(pagesDir, "*.md"))
	if err != nil {
		return err
	}
	for _, path := range stale {
		if _, ok := pages[path]; !ok {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	for path, text := range pages {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the text of each page, by its path in the repository, which is the working directory.
func generate() (map[string]string, error) {
	c := catalogue{
		texts: map[string]record.Record{}, verdicts: map[string]bool{}, tests: map[string]string{}, plays: map[played]bool{},
		pages: map[string]string{},
	}
	dirs, err := filepath.Glob("ipam/*")
	if err != nil {
		return nil, err
	}
	for _, dir := range append(dirs, "tests", "tests/kubernetes", "aggregator/verdict") {
		if err := c.readTests(dir); err != nil {
			return nil, err
		}
	}
	if err := c.readTexts(); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	c.situations()
	return c.pages, errors.Join(c.attackTable(), c.incidentTable(), c.roomTable())
}

// catalogue contains the inputs of the pages.
type catalogue struct {
	texts    map[string]record.Record // by name
	verdicts map[string]bool          // names of verdicts that tests compare with
	tests    map[string]string        // the file of each test
	plays    map[played]bool
	pages    map[string]string // the text of each page
}

// played is an incident that a test in a file plays.
type played struct {
	number int
	file   string
}

// readTests reads the names of the tests in a directory, and the numbers of the incidents that they
// play: the arguments of methods called incident.
func (c *catalogue) readTests(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse tests: %w", err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				c.tests[fn.Name.Name] = file
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 1 {
				method, _ := call.Fun.(*ast.SelectorExpr)
				number, _ := call.Args[0].(*ast.BasicLit)
				if method != nil && method.Sel.Name == "incident" && number != nil {
					if i, err := strconv.Atoi(number.Value); err == nil {
						c.plays[played{i, file}] = true
					}
				}
			}
			return true
		})
	}
	return nil
}

// readTexts reads the files that the tests wrote.
func (c *catalogue) readTexts() error {
	files, err := filepath.Glob(texts + "/*.txt")
	if err != nil {
		return err
	}
	for _, file := range files {
		if c.texts[strings.TrimSuffix(filepath.Base(file), ".txt")], err = record.Read(file); err != nil {
			return err
		}
	}
	files, err = filepath.Glob(texts + "/*.json")
	for _, file := range files {
		c.verdicts[strings.TrimSuffix(filepath.Base(file), ".json")] = true
	}
	return err
}

// rowTest matches the beginning of the name of a row's test. rowID matches one ID in it.
var (
	rowTest = regexp.MustCompile(`^Test([TL]\d+)+`)
	rowID   = regexp.MustCompile(`[TL]\d+`)
)

// check returns an error if rows, texts and tests do not match.
func (c *catalogue) check() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	ids, used := map[string]bool{}, map[string]bool{}
	for _, r := range rows {
		ids[r.id] = true
		if len(r.shown) == 0 {
			fault("row %s has no text", r.id)
		}
		for _, s := range r.shown {
			used[s.text] = true
			t, ok := c.texts[s.text]
			if !ok {
				fault("row %s: no %s/%s.txt: run make update-situations", r.id, texts, s.text)
				continue
			}
			c.checkTest(r, t.Values["test"], fault)
			// A row whose test has another verdict is in the wrong table, or the verdict is wrong.
			if confirmed := strings.HasPrefix(t.Values["verdict"], "CONFIRMED"); r.id[0] == 'T' && t.Values["verdict"] == noConflict || r.id[0] == 'L' && confirmed {
				fault("row %s: the verdict of %s is %s", r.id, s.text, t.Values["verdict"])
			}
		}
		for _, p := range r.pure {
			c.checkTest(r, p.test, fault)
		}
		for _, test := range r.devices {
			if c.tests[test] == "" {
				fault("row %s: there is no test %s", r.id, test)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.texts)) {
		if !used[name] {
			fault("%s/%s.txt belongs to no row", texts, name)
		}
		if !c.verdicts[name] {
			fault("%s/%s.txt has no %s.json: run make update-situations", texts, name, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.verdicts)) {
		if _, ok := c.texts[name]; !ok {
			fault("%s/%s.json has no %s.txt: run make update-situations", texts, name, name)
		}
	}
	for _, test := range slices.Sorted(maps.Keys(c.tests)) {
		for _, id := range idsOf(test) {
			if !ids[id] {
				fault("%s in %s belongs to no row", test, c.tests[test])
			}
		}
	}
	return errors.Join(faults...)
}

const noConflict = "no conflict"

// checkTest reports a fault if a row has no such test.
func (c *catalogue) checkTest(r row, test string, fault func(string, ...any)) {
	switch {
	case c.tests[test] == "":
		fault("row %s: there is no test %s", r.id, test)
	case !slices.Contains(idsOf(test), r.id):
		fault("row %s: the name of test %s does not begin with the row", r.id, test)
	}
}

// idsOf returns the rows in the name of a test: TestL8L9Dummy… belongs to L8 and L9.
func idsOf(test string) []string {
	return rowID.FindAllString(rowTest.FindString(test), -1)
}

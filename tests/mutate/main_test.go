package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const sample = "./testdata/sample"

func TestUndetectedMutationsArePrinted(t *testing.T) {
	before, err := os.ReadFile(sample + "/sample.go")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	s := sampling{pkg: sample, files: ".", grace: time.Second, out: &out}
	share, err := s.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The mutant that replaces > by >= survives, because the result for n == limit is the same.
	want := []string{":6: > became >=", ":14: && became ||", ":14: negated a", ":14: negated b"}
	var got []string
	for _, line := range regexp.MustCompile(`sample\.go(:\d+: .*) in: `).FindAllStringSubmatch(out.String(), -1) {
		got = append(got, line[1])
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got undetected mutations %q, want %q", got, want)
	}
	if share != 60 || !strings.Contains(out.String(), "6 of 10 mutations (60 %), selected from 10") {
		t.Errorf("got %d %%, want 60 %% and the numbers\n%s", share, &out)
	}
	if after, err := os.ReadFile(sample + "/sample.go"); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the source file was modified (%v)", err)
	}
}

func TestTestsAreRunByAnotherProgram(t *testing.T) {
	s := sampling{pkg: sample, n: 1, seed: 1, files: ".", exec: `env "PATH=$PATH"`, grace: time.Second, out: &bytes.Buffer{}}
	if _, err := s.run(t.Context()); err != nil {
		t.Error(err)
	}
	s.exec = "false"
	if _, err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), "fail without a mutation") {
		t.Errorf("got %v, want an error of the program that runs the tests", err)
	}
}

func TestASeedGivesTheSameSample(t *testing.T) {
	sampled := func(seed uint64) string {
		var out bytes.Buffer
		s := sampling{pkg: sample, n: 3, seed: seed, files: ".", grace: time.Second, out: &out}
		if _, err := s.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	first := sampled(1)
	if second := sampled(1); first != second {
		t.Errorf("got %q and %q for one seed", first, second)
	}
	for seed := uint64(2); ; seed++ {
		if sampled(seed) != strings.Replace(first, "seed 1", fmt.Sprint("seed ", seed), 1) {
			break
		}
		if seed == 20 {
			t.Fatal("19 other seeds gave the same sample")
		}
	}
}

func TestAPackageWithFailingTestsIsRefused(t *testing.T) {
	for pkg, want := range map[string]string{
		"./testdata/failing": "fail without a mutation",
		"./testdata/none":    "list package",
	} {
		s := sampling{pkg: pkg, files: ".", grace: time.Second, out: &bytes.Buffer{}}
		if _, err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one with %q", pkg, err, want)
		}
	}
}

// TestEachKindOfChange checks the mutants of each kind of statement and expression.
func TestEachKindOfChange(t *testing.T) {
	for body, want := range map[string][]string{
		"if a == b { c() }":                  {"== became !=", "removed c()"},
		"x = -x + y":                         {"+ became -", "removed x = -x + y"},
		"for i < n { i++ }":                  {"++ became --", "< became <=", "< became >=", "removed i++"},
		"x := n >= m":                        {">= became <", ">= became >"},
		"x += y * z":                         {"* became /", "+= became -=", "removed x += y * z"},
		"switch { case a[0]: x |= 1 }":       {"negated a[0]", "removed x |= 1", "|= became &="},
		"switch x { case a: }":               nil,
		"if !a() { return }":                 {"removed !", "removed return"},
		"if !a() { return } else { return }": {"removed !"},
		"x := true":                          {"negated true"},
		"const x = 2 + 3":                    nil,
		"f := func() bool { return g() }":    {"negated g()"},
		"f := func() int { return g() }":     nil,
		"for { if a || b.c { continue } }":   {"negated a", "negated b.c", "removed continue", "|| became &&"},
		// Changes of capacities and of log lines cannot be detected.
		"x := make([]int, n+1, n+2)":                {"+ became -"},
		"x := make(map[int]bool, n+2)":              nil,
		"x = slices.Grow(x, n+1)":                   nil,
		"x, y = strings.Clone(x), strings.Clone(y)": nil,
		"x = strings.Clone(y)":                      {"removed x = strings.Clone(y)"},
		"s.Log.Warn(a, n+1)":                        nil,
		"s.Warn(a)":                                 {"removed s.Warn(a)"},
	} {
		found, err := mutantsOf("p.go", []byte("package p\n\nfunc f() {\n\t"+body+"\n}\n"))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range found {
			if m.line != 4 {
				t.Errorf("%s: got line %d, want 4", m, m.line)
			}
			change, _, _ := strings.Cut(m.change, " in: ")
			got = append(got, change)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}

// TestAllChangesOfAFileAreOneProgram runs one program with each of its changes in turn, and without
// a change.
func TestAllChangesOfAFileAreOneProgram(t *testing.T) {
	const source = `package main

func main() {
	x, no := 0, false
	if x < 1 && !no || no {
		x += 2 * 3
	}
	if x > 5 && (x >= 6 || no) {
		x = x/2 - 1
	}
	println(x, even(x))
}

func even(x int) bool {
	for {
		if x <= 1 {
			return is(x)
		}
		x -= 2
	}
}

func is(x int) bool { return x == 0 }
`
	dir := t.TempDir()
	mutants, err := mutantsOf("main.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	for i := range mutants {
		mutants[i].number = i + 1
	}
	for name, text := range map[string][]byte{
		"go.mod": []byte("module p\n\ngo 1.26\n"), "main.go": instrument([]byte(source), mutants), "on.go": fmt.Appendf(nil, helper, "main"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", "p", ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, instrument([]byte(source), mutants))
	}
	run := func(number int) string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // a mutant may loop forever
		defer cancel()
		p := exec.CommandContext(ctx, filepath.Join(dir, "p"))
		p.Env = []string{fmt.Sprint("MUTANT=", number)}
		out, _ := p.CombinedOutput()
		return strings.TrimSpace(string(out))
	}
	if got := run(0); got != "2 true" {
		t.Fatalf("got %q without a mutation, want 2 true", got)
	}
	want := map[string]string{
		"4: negated false": "2 true",
		"5: < became <=":   "2 true", "5: < became >=": "0 true", "5: && became ||": "2 true", "5: || became &&": "0 true",
		"5: removed !": "0 true", "5: negated no": "2 true",
		"6: += became -=": "-6 false", "6: removed x += 2 * 3": "0 true", "6: * became /": "0 true",
		"8: > became >=": "2 true", "8: > became <=": "6 true", "8: >= became >": "6 true", "8: >= became <": "6 true",
		"8: && became ||": "2 true", "8: || became &&": "6 true", "8: negated no": "2 true",
		"9: removed x = x/2 - 1": "6 true", "9: - became +": "4 true", "9: / became *": "11 false",
		"11: removed println(x, even(x))": "",
		"16: <= became <":                 "2 true", "16: <= became >": "2 false",
		"17: negated is(x)": "2 false", "17: removed return is(x)": "",
		"19: -= became +=": "", "19: removed x -= 2": "",
		"23: == became !=": "2 false",
	}
	if len(mutants) != len(want) {
		t.Errorf("got %d changes, want %d", len(mutants), len(want))
	}
	for _, m := range mutants {
		change, _, _ := strings.Cut(m.change, " in: ")
		change = fmt.Sprint(m.line, ": ", change)
		if out, ok := want[change]; !ok {
			t.Errorf("got unexpected mutation %q", change)
		} else if got := run(m.number); got != out {
			t.Errorf("%s: got %q, want %q", change, got, out)
		}
	}
}

func TestGeneratedFilesAreLeftAlone(t *testing.T) {
	for source, want := range map[string]int{
		"package p\n\nvar x = true\n":                                            1,
		"// Code generated by hand. DO NOT EDIT.\n\npackage p\n\nvar x = true\n": 0,
	} {
		if found, err := mutantsOf("p.go", []byte(source)); err != nil || len(found) != want {
			t.Errorf("%q: got %v and error %v, want %d mutations", source, found, err, want)
		}
	}
}

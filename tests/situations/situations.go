// Package situations compares the output of ipwitness about a situation with docs/situations.md.
// For each row, tests/testdata/situations has two files. ROW.json contains the verdict as values,
// which a test must reach (row.Row). ROW.txt contains the output of `ipwitness explain` for the
// page, and tests/catalogue reads the names and values at its beginning. Differences in wording,
// times and processes do not fail a test.
package situations

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/situations/row"
)

// Updating reports whether the texts should be written.
func Updating() bool { return golden.Updating() }

// Output is the output of ipwitness about an address.
type Output struct {
	Explanation *ipwitnessv1.ExplainResponse
	Printed     string // output of `ipwitness explain`
}

// Check fails the test if the verdict on a row of docs/situations.md differs from the one
// with that name in a directory, or if another rule decided. The caller has waited for
// the evidence that the row describes. Check itself waits for data that arrives
// separately, such as names. With -update it writes the files of the row.
func Check(t testing.TB, dir, id, addr, rule string, ask func() Output) {
	t.Helper()
	if golden.Updating() {
		write(t, dir, id, addr, rule, ask)
	} else {
		compare(t, dir, id, ask)
	}
	WantApplied(t, ask().Explanation, rule)
	WantCause(t, id, ask)
}

// asks is how often a row is requested before its verdict counts as final.
const asks = 100

// compare fails the test if the verdict on a row does not become the one in its file.
func compare(t testing.TB, dir, id string, ask func() Output) {
	t.Helper()
	file := filepath.Join(dir, id+".json")
	want, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no verdict for row %s: run make update-situations and review it", id)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var printed Output
	var got string
	for range asks {
		printed = ask()
		if got = rowOf(printed.Explanation).Text(); got == string(want) {
			return
		}
	}
	t.Errorf("row %s: the verdict differs from %s (- want, + got); if the change is intended, run make update-situations:\n%s\nThe output was:\n%s",
		id, file, diff(file, got), printed.Printed)
}

// write writes the files of a row, once the verdict on it is stable.
func write(t testing.TB, dir, id, addr, rule string, ask func() Output) {
	t.Helper()
	texts := stable(t, func() (printed string, texts [2]string) {
		out := ask()
		verdict := "no conflict"
		for _, c := range out.Explanation.GetConflicts() {
			if c.GetState() != ipwitnessv1.Conflict_RESOLVED {
				verdict = fmt.Sprintf("%s, %s", c.GetState(), scopeText(c.GetScope()))
			}
		}
		texts[0] = fmt.Sprintf("verdict: %s\nrule: %s\ntest: %s\ncommand: ipwitness explain %s\n\n%s", verdict, rule, testName(t), addr, row.Stable(out.Printed))
		texts[1] = rowOf(out.Explanation).Text()
		return out.Printed, texts
	})
	text, values := texts[0], texts[1]
	for name, data := range map[string]string{id + ".txt": text, id + ".json": values} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// stable returns what is made of the output of ipwitness, once it is the same for a while.
func stable[T comparable](t testing.TB, read func() (printed string, value T)) T {
	t.Helper()
	printed, value := read()
	for same, changes := 1, 0; same < asks; same++ {
		var next T
		if printed, next = read(); next != value {
			if changes++; changes == asks {
				t.Fatalf("the output keeps changing, from\n%v\nto\n%v", value, next)
			}
			value, same = next, 0
		}
	}
	if beforeMidnight(printed, time.Now().UTC().Format(time.DateOnly)) {
		t.Fatal("the text has a date because midnight passed during the test: run it again")
	}
	return value
}

// testName returns the name of the test without those of its subtests.
func testName(t testing.TB) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}

// WantApplied fails if the explanation of an address does not say that a rule applied.
func WantApplied(t testing.TB, e *ipwitnessv1.ExplainResponse, rule string) {
	t.Helper()
	if !slices.ContainsFunc(e.GetSteps(), func(s *ipwitnessv1.ExplainResponse_Step) bool {
		return s.GetRule() == rule && s.GetApplied() && s.GetReason() != ""
	}) {
		t.Errorf("explanation of %s: rule %s did not apply in %v", e.GetAddress(), rule, e.GetSteps())
	}
}

// dated matches a time with its date.
var dated = regexp.MustCompile(`\b(\d{4}-\d\d-\d\d) \d\d:\d\d:\d\d\.\d{3}\b`)

// beforeMidnight reports whether a text contains a time before today. Such a time is
// shown with its date, which shifts the text beside it. Text from the aggregator always
// includes the date.
func beforeMidnight(text, today string) bool {
	return slices.ContainsFunc(dated.FindAllStringSubmatch(text, -1), func(m []string) bool { return m[1] != row.Day && m[1] != today })
}

// diff returns the lines in which a text differs from a file.
func diff(file, text string) string {
	cmd := exec.Command("diff", "--unified=3", file, "-")
	cmd.Stdin = strings.NewReader(text)
	out, _ := cmd.CombinedOutput() // it fails if they differ
	return string(out)
}

// Package situations compares what ipwitness says about a situation with
// docs/situations.md. For each row, tests/testdata/situations has two files. ROW.json is
// the verdict as values, which a test must reach (Row). ROW.txt is the text that
// `ipwitness explain` printed, for the page. tests/catalogue reads the names and values
// at its head. Differences in wording, times and processes do not fail a test.
package situations

import (
	"errors"
	"flag"
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
)

var update = flag.Bool("update", false, "write the texts of docs/situations.md anew: make update-situations")

// Updating says that texts are to be written anew.
func Updating() bool { return *update }

// Said is what ipwitness says of an address.
type Said struct {
	Explanation *ipwitnessv1.ExplainResponse
	Printed     string // by `ipwitness explain`
}

// Check fails the test if the verdict on a row of docs/situations.md differs from the one
// with that name in a directory, or if another rule decided. The caller has waited for
// the evidence that the row describes. Check itself waits for data that arrives
// separately, such as names. With -update it writes both files of the row.
func Check(t testing.TB, dir, id, addr, rule string, ask func() Said) {
	t.Helper()
	if *update {
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
func compare(t testing.TB, dir, id string, ask func() Said) {
	t.Helper()
	file := filepath.Join(dir, id+".json")
	want, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no verdict for row %s: run make update-situations, and look at it", id)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var said Said
	var got string
	for range asks {
		said = ask()
		if got = rowOf(said.Explanation).text(); got == string(want) {
			return
		}
	}
	t.Errorf("row %s: the verdict differs from %s (- want, + got); if it is better, run make update-situations:\n%s\nIt was printed as:\n%s",
		id, file, diff(file, got), said.Printed)
}

// write writes the files of a row, once the verdict on it is stable.
func write(t testing.TB, dir, id, addr, rule string, ask func() Said) {
	t.Helper()
	midnight := false
	row := func() (text, values string) {
		said := ask()
		midnight = beforeMidnight(said.Printed, time.Now().UTC().Format(time.DateOnly))
		verdict := "no conflict"
		for _, c := range said.Explanation.GetConflicts() {
			if c.GetState() != ipwitnessv1.Conflict_RESOLVED {
				verdict = fmt.Sprintf("%s, %s", c.GetState(), scopeText(c.GetScope()))
			}
		}
		test, _, _ := strings.Cut(t.Name(), "/")
		return fmt.Sprintf("verdict: %s\nrule: %s\ntest: %s\ncommand: ipwitness explain %s\n\n%s", verdict, rule, test, addr, Stable(said.Printed)),
			rowOf(said.Explanation).text()
	}
	text, values := row()
	for same := 1; same < asks; same++ {
		if nextText, nextValues := row(); nextText != text || nextValues != values {
			text, values, same = nextText, nextValues, 0
		}
	}
	if midnight {
		t.Fatal("midnight went by, and the text has the day before: run it again")
	}
	for name, data := range map[string]string{id + ".txt": text, id + ".json": values} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// WantApplied fails where the explanation of an address does not say that a rule
// applied.
func WantApplied(t testing.TB, e *ipwitnessv1.ExplainResponse, rule string) {
	t.Helper()
	if !slices.ContainsFunc(e.GetSteps(), func(s *ipwitnessv1.ExplainResponse_Step) bool {
		return s.GetRule() == rule && s.GetApplied() && s.GetReason() != ""
	}) {
		t.Errorf("explanation of %s: rule %s did not apply in %v", e.GetAddress(), rule, e.GetSteps())
	}
}

// Day is the one of times that a test chose. It stays in the texts: a time of another
// day than today's is shown with its day, and tables become wider by it.
const Day = "2026-01-02"

// beforeMidnight reports whether a text contains a time before today. Such a time is
// shown with its date, which shifts the text beside it. Text from the aggregator always
// includes the date.
func beforeMidnight(text, today string) bool {
	return slices.ContainsFunc(dated.FindAllStringSubmatch(text, -1), func(m []string) bool { return m[1] != Day && m[1] != today })
}

// What differs from run to run. A MAC that a test chose begins with 02:00:00 or
// 0a:58:0a, or is a well-known one.
var (
	clocks     = regexp.MustCompile(`(\d{4}-\d\d-\d\d )?\b\d\d:\d\d:\d\d\.\d{3}\b`)
	dated      = regexp.MustCompile(`\b(\d{4}-\d\d-\d\d) \d\d:\d\d:\d\d\.\d{3}\b`)
	ages       = regexp.MustCompile(`\((\d+(\.\d+)?(ms|[smhd]))+ ago\)`)
	lasted     = regexp.MustCompile(`(, (for|lasted)) (\d+(\.\d+)?(ms|[smhd]))+ +`)
	counts     = regexp.MustCompile(`\b(ASSIGNED|ANNOUNCED|ANSWERED|USED|DAD_FAILED) \d+ times\b`)
	inodes     = regexp.MustCompile(`netns \d+`)
	cniVeths   = regexp.MustCompile(`\bveth[0-9a-f]{8}\b`)
	uids       = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	containers = regexp.MustCompile(`\bcontainer     [0-9a-f]{12}\b`)
	booked     = regexp.MustCompile(`\bcontainer [0-9a-f]{12}\b`)
	processes  = regexp.MustCompile(`(\bprocess +\S+) \(\d+\)`)
	passing    = regexp.MustCompile(`(?m)^ +process +ip \(\d+\)\n`) // of a test: ip -n NAMESPACE, where the agent looked just then
	passed     = regexp.MustCompile(`,\s+process ip \(\d+\)\n`)     // the same, followed by more text on the line
	macs       = regexp.MustCompile(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`)
	chosenMACs = regexp.MustCompile(`^(02:00:00|0a:58:0a|02:42:ac|00:00:5e|aa:bb:cc:dd:ee:ff|ee:ee:ee)`)
)

// Stable replaces what differs from run to run: times, ages, counts of frames,
// inodes and process ids, and the MACs, ids and names that the kernel, a plugin or
// Kubernetes made up.
func Stable(text string) string {
	text = clocks.ReplaceAllStringFunc(text, func(s string) string {
		if strings.HasPrefix(s, Day) {
			return s
		}
		return "12:00:00.000"
	})
	text = ages.ReplaceAllString(text, "(2s ago)")
	text = lasted.ReplaceAllString(text, "$1 2s  ")
	text = counts.ReplaceAllString(text, "$1")
	text = numbered(text, inodes, "netns 4026532%03d")
	text = numbered(text, cniVeths, "veth%08x")
	text = numbered(text, uids, "0ddba110-0000-4000-8000-%012d")
	text = numbered(text, containers, "container     c0ffee%06x")
	text = numbered(text, booked, "container c0ffee%06x")
	text = passing.ReplaceAllString(text, "")
	text = passed.ReplaceAllString(text, "\n")
	text = processes.ReplaceAllString(text, "$1 (42)")
	return numbered(text, macs, "5e:00:00:00:00:%02x")
}

// numbered replaces each different match by its number, in order of appearance.
func numbered(text string, what *regexp.Regexp, format string) string {
	var seen []string
	return what.ReplaceAllStringFunc(text, func(s string) string {
		if chosenMACs.MatchString(s) {
			return s
		}
		i := slices.Index(seen, s)
		if i < 0 {
			i = len(seen)
			seen = append(seen, s)
		}
		return fmt.Sprintf(format, i+1)
	})
}

// diff gives the lines in which a text differs from a file.
func diff(file, text string) string {
	cmd := exec.Command("diff", "--unified=3", file, "-")
	cmd.Stdin = strings.NewReader(text)
	out, _ := cmd.CombinedOutput() // it fails where they differ
	return string(out)
}

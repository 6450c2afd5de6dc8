// Package situations compares what ipwitness says of a situation with the text that
// docs/situations.md has of it. The texts are in tests/testdata/situations; each has
// a head of names and values, which tests/catalogue reads.
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

// Check fails where what is said of a row of docs/situations.md is not the text of
// that name in a directory, or where the rule did not decide. The caller has waited
// for the evidence that the text tells; what comes by other ways, as names do, is
// waited for here.
func Check(t testing.TB, dir, id, addr, rule string, ask func() Said) {
	t.Helper()
	midnight := false
	text := func() string {
		said := ask()
		midnight = beforeMidnight(said.Printed, time.Now().UTC().Format(time.DateOnly))
		verdict := "no conflict"
		for _, c := range said.Explanation.GetConflicts() {
			if c.GetState() != ipwitnessv1.Conflict_RESOLVED {
				verdict = fmt.Sprintf("%s, %s %s", c.GetState(), c.GetScope().GetKind(), c.GetScope().GetName())
			}
		}
		test, _, _ := strings.Cut(t.Name(), "/")
		return fmt.Sprintf("verdict: %s\nrule: %s\ntest: %s\ncommand: ipwitness explain %s\n\n%s", verdict, rule, test, addr, Stable(said.Printed))
	}

	file := filepath.Join(dir, id+".txt")
	want, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	// The text is as it should be, or it stays as it is.
	const stays = 100
	got := text()
	right := func() bool { return got == string(want) || midnight && words(got) == words(string(want)) }
	for same := 1; same < stays && (*update || !right()); same++ {
		if next := text(); next != got {
			got, same = next, 0
		}
	}
	WantApplied(t, ask().Explanation, rule)
	WantCause(t, id, ask)
	switch {
	case *update && midnight:
		t.Fatal("midnight went by, and the text has the day before: run it again")
	case *update:
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	case want == nil:
		t.Errorf("no text for row %s: run make update-situations, and look at it", id)
	case !right():
		t.Errorf("row %s: the text differs from %s (- want, + got); if it is better, run make update-situations:\n%s",
			id, file, diff(file, got))
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

// beforeMidnight reports whether a text has a time of the day before today: it is shown
// with its day then, and what is beside it is elsewhere. What the aggregator puts in
// words always has its day.
func beforeMidnight(text, today string) bool {
	return slices.ContainsFunc(dated.FindAllStringSubmatch(text, -1), func(m []string) bool { return m[1] != Day && m[1] != today })
}

// words are those of a text, wherever they are.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

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
	passed     = regexp.MustCompile(`,\s+process ip \(\d+\)\n`)     // the same, where a line has more
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

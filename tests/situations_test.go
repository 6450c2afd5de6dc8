package tests

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

// newRow is newLab for a test whose explanations stand in docs/situations.md:
// owners are listed in the order in which their namespaces were made.
func newRow(t *testing.T, args ...string) *lab {
	t.Helper()
	h := newHost(t)
	h.InOrder = true
	return startLab(t, h, args...)
}

// row proves what ipwitness says of a row of docs/situations.md: that the rule
// decided on the address, and that `ipwitness explain` prints the text of
// testdata/situations. The caller has waited for the evidence that the text
// tells; what comes by other ways, as names do, is waited for here.
func (l *lab) row(id, addr, rule string) {
	l.t.Helper()
	if l.t.Failed() {
		return // what is wrong must not become the text
	}
	text := func() string {
		e := l.explain(addr)
		verdict := "no conflict"
		for _, c := range e.GetConflicts() {
			if c.GetState() != ipwitnessv1.Conflict_RESOLVED {
				verdict = fmt.Sprintf("%s, %s %s", c.GetState(), c.GetScope().GetKind(), c.GetScope().GetName())
			}
		}
		out, err := l.at.Output(l.at.Command(binary, "explain", addr))
		if err != nil {
			l.t.Fatal(err)
		}
		test, _, _ := strings.Cut(l.t.Name(), "/")
		return fmt.Sprintf("verdict: %s\nrule: %s\ntest: %s\ncommand: ipwitness explain %s\n\n%s", verdict, rule, test, addr, stable(out))
	}

	file := filepath.Join("testdata/situations", id+".txt")
	want, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.t.Fatal(err)
	}
	// The text is as it should be, or it stays as it is.
	const stays = 100
	got := text()
	for same := 1; same < stays && (*update || got != string(want)); same++ {
		if next := text(); next != got {
			got, same = next, 0
		}
	}
	wantApplied(l.t, l.explain(addr), rule)
	switch {
	case *update:
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			l.t.Fatal(err)
		}
	case want == nil:
		l.t.Errorf("no text for row %s: run make update-situations, and look at it", id)
	case got != string(want):
		l.t.Errorf("row %s: the text differs from %s (- want, + got); if it is better, run make update-situations:\n%s",
			id, file, diff(file, got))
	}
}

// What differs from run to run. A MAC that a test chose begins with 02:00:00 or
// 0a:58:0a, or is a well-known one.
var (
	clocks     = regexp.MustCompile(`(\d{4}-\d\d-\d\d )?\b\d\d:\d\d:\d\d\.\d{3}\b`)
	ages       = regexp.MustCompile(`\((\d+(\.\d+)?(ms|[smhd]))+ ago\)`)
	lasted     = regexp.MustCompile(`(, (for|lasted)) (\d+(\.\d+)?(ms|[smhd]))+ +`)
	counts     = regexp.MustCompile(`\b(ASSIGNED|ANNOUNCED|ANSWERED|USED|DAD_FAILED) \d+ times\b`)
	inodes     = regexp.MustCompile(`netns \d+`)
	cniVeths   = regexp.MustCompile(`\bveth[0-9a-f]{8}\b`)
	macs       = regexp.MustCompile(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`)
	chosenMACs = regexp.MustCompile(`^(02:00:00|0a:58:0a|02:42:ac|00:00:5e|aa:bb:cc:dd:ee:ff|ee:ee:ee)`)
)

// stable replaces what differs from run to run: times, ages, counts of frames,
// inodes, and the MACs and names that the kernel or a plugin made up.
func stable(text string) string {
	text = clocks.ReplaceAllString(text, "12:00:00.000")
	text = ages.ReplaceAllString(text, "(2s ago)")
	text = lasted.ReplaceAllString(text, "$1 2s  ")
	text = counts.ReplaceAllString(text, "$1")
	text = numbered(text, inodes, "netns 4026532%03d")
	text = numbered(text, cniVeths, "veth%08x")
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

// evidence waits until an owner of an address has been witnessed in these ways,
// each written KIND, KIND PORT or KIND NODE/PORT.
func (l *lab) evidence(addr, name string, ways ...string) {
	l.t.Helper()
	until(l.t, fmt.Sprintf("%s of %s to be witnessed by %v", addr, name, ways), func() bool {
		seen := map[string]bool{}
		for _, o := range l.owners("?address=" + addr) {
			if o.GetWorkload().GetName() != name {
				continue
			}
			for _, e := range o.GetEvidence() {
				_, port, _ := strings.Cut(e.GetWitness(), "/")
				seen[e.GetKind().String()] = true
				seen[e.GetKind().String()+" "+port] = true
				seen[e.GetKind().String()+" "+e.GetWitness()] = true
			}
		}
		return !slices.ContainsFunc(ways, func(w string) bool { return !seen[w] })
	})
}

func TestStableTextHasNothingThatDiffersFromRunToRun(t *testing.T) {
	now := time.Date(2026, 2, 3, 4, 5, 6, 7e6, time.UTC)
	one := fmt.Sprintf("netns 4026532001 a6:9f:e1:00:00:01 and 02:00:00:00:00:01, last %s (0.4s ago), for 3m5s  x, ANNOUNCED 3 times: seen on node1/veth0a1b2c3d",
		now.Format("15:04:05.000"))
	two := fmt.Sprintf("netns 4026532007 12:34:56:10:00:77 and 02:00:00:00:00:01, last %s (12s ago), for 2s  x, ANNOUNCED: seen on node1/vethffffffff",
		now.Format("2006-01-02 15:04:05.000"))
	if stable(one) != stable(two) || !strings.Contains(stable(one), "02:00:00:00:00:01") {
		t.Errorf("got %q and %q, want one text", stable(one), stable(two))
	}
}

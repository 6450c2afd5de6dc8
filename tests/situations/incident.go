package situations

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/situations/row"
)

// Incident is an incident of docs/incidents.md that a test plays. Its methods record what ipwitness
// reported, as values; tests/catalogue derives the ratings of the page from them. Check compares
// them with the file of the incident and the test.
type Incident struct {
	t      testing.TB
	dir    string
	number int
	// The values of the file; empty if the test does not show them.
	detected, cause, remedy, foretold string
	printed                           string
	// with is the option without which ipwitness does not detect the incident; empty if it needs none.
	with string
}

// Play begins an incident. The texts and values are in a directory. args are the arguments of
// ipwitness: an incident counts as detected only if no network is declared.
func Play(t testing.TB, dir string, number int, args []string) *Incident {
	t.Helper()
	if i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--network") }); i >= 0 {
		t.Errorf("incident %d: ipwitness runs with %s, so this test does not show that it needs no configuration", number, args[i])
	}
	played := &Incident{t: t, dir: dir, number: number}
	if i := slices.Index(args, "--reused-within"); i >= 0 {
		played.with = ", with " + strings.Join(args[i:i+2], " ")
	}
	return played
}

// Foretold records a finding about addresses of which none of these conflicts is.
func (i *Incident) Foretold(f *ipwitnessv1.Finding, conflicts []*ipwitnessv1.Conflict) {
	i.t.Helper()
	first, last, isRange := strings.Cut(f.GetAddress(), "-")
	prefix, _ := netip.ParsePrefix(first)
	about := func(a netip.Addr) bool {
		return prefix.Contains(a) || isRange && a.Compare(netip.MustParseAddr(first)) >= 0 && a.Compare(netip.MustParseAddr(last)) <= 0
	}
	for _, c := range conflicts {
		if a := c.GetAddress(); a == first || slices.Contains(f.GetAddresses(), a) || about(netip.MustParseAddr(a)) {
			i.t.Errorf("incident %d: finding %s of %s is not before conflict %v", i.number, f.GetKind(), f.GetAddress(), c)
		}
	}
	if f.GetSeverity() < ipwitnessv1.Finding_WARNING {
		i.t.Errorf("incident %d: finding %s is %s, want a warning or critical", i.number, f.GetKind(), f.GetSeverity())
	}
	i.foretold = fmt.Sprintf("%s %s", f.GetSeverity(), f.GetKind())
}

// Found records a finding by which the incident is detected. cause is the kind of the finding if it
// is the cause of the incident, and empty if it is only a symptom. run runs `ipwitness`.
func (i *Incident) Found(f *ipwitnessv1.Finding, cause string, run func(args ...string) string) {
	i.t.Helper()
	if cause != "" && cause != f.GetKind() {
		i.t.Errorf("incident %d: got finding %s, want %s", i.number, f.GetKind(), cause)
	}
	i.detected, i.cause = fmt.Sprintf("%s %s%s", f.GetSeverity(), f.GetKind(), i.with), cause
	about := f.GetAddress()
	if _, err := netip.ParseAddr(about); err != nil { // none, or a range
		about = f.GetId()
	}
	i.print(run, "audit", about)
}

// Conflict records a conflict by which the incident is detected, and its cause. run runs `ipwitness`.
func (i *Incident) Conflict(c *ipwitnessv1.Conflict, cause string, run func(args ...string) string) {
	i.t.Helper()
	if c.GetState() != ipwitnessv1.Conflict_CONFIRMED || c.GetCause() != cause {
		i.t.Errorf("incident %d: got conflict %v, want it confirmed, of cause %s", i.number, c, cause)
	}
	i.detected, i.cause = fmt.Sprintf("%s %s, %s", c.GetState(), c.GetRule(), scopeText(c.GetScope())), cause
	if cause == "unknown" {
		i.cause = ""
	}
	i.print(run, "explain", c.GetAddress())
}

// Remedied records that the remedy of the conflict or the finding ended it. The test has carried out
// these commands of it, in their order, and by hand what the remedy says without commands.
func (i *Incident) Remedied(remedy []*ipwitnessv1.Action, commands ...string) {
	i.t.Helper()
	if len(remedy) == 0 {
		i.t.Errorf("incident %d has no remedy", i.number)
	}
	left := Commands(remedy)
	var names []string
	for _, c := range commands {
		at := slices.Index(left, c)
		if at < 0 {
			i.t.Fatalf("incident %d: %q is not, or not in this order, in the commands of the remedy: %q", i.number, c, Commands(remedy))
		}
		left = left[at+1:]
		names = append(names, strings.Join(strings.Fields(assigned.ReplaceAllString(c, ""))[:2], " "))
	}
	i.remedy = cmp.Or(strings.Join(slices.Compact(names), ", "), "by hand")
}

// assigned matches the beginning of a command whose output is assigned to a variable.
var assigned = regexp.MustCompile(`^\w+=\$\(`)

// Commands returns the commands of a remedy with those of all alternatives, in order.
func Commands(remedy []*ipwitnessv1.Action) (all []string) {
	for _, a := range remedy {
		if a.GetCommand() != "" {
			all = append(all, a.GetCommand())
		}
		for _, c := range a.GetChoice() {
			all = append(all, Commands(c.GetActions())...)
		}
	}
	return all
}

// Some tests use addresses that differ between runs, and so do the IDs of their conflicts and findings.
var (
	blocks = regexp.MustCompile(`\b198\.19\.\d+\.`)
	ids    = regexp.MustCompile(`(?m)^(Finding: +|  )[a-z2-7]{16}\b`)
)

// print keeps the output of a command for the page.
func (i *Incident) print(run func(args ...string) string, args ...string) {
	i.t.Helper()
	if !golden.Updating() {
		return
	}
	text := stable(i.t, func() (printed, text string) {
		printed = run(args...)
		return printed, row.Stable(printed)
	})
	i.printed = fmt.Sprintf("\n$ ipwitness %s\n%s", strings.Join(args, " "), text)
	if blocks.MatchString(i.printed) {
		i.printed = ids.ReplaceAllString(blocks.ReplaceAllString(i.printed, "198.19.0."), "${1}i64log4dpputlq23")
	}
}

// Check fails the test if its values differ from those in its file. With -update it writes the file.
func (i *Incident) Check() {
	i.t.Helper()
	if i.detected == "" {
		i.t.Errorf("incident %d: the test records nothing that detects it", i.number)
	}
	if i.t.Failed() {
		return // a wrong result must not update the file
	}
	name := testName(i.t)
	head := "test: " + name + "\n"
	for _, v := range [][2]string{{"detected", i.detected}, {"cause", i.cause}, {"remedy", i.remedy}, {"foretold", i.foretold}} {
		if v[1] != "" {
			head = fmt.Sprintf("%s%s: %s\n", head, v[0], v[1])
		}
	}
	file := filepath.Join(i.dir, fmt.Sprintf("%02d-%s.txt", i.number, name))
	if golden.Updating() {
		if err := os.WriteFile(file, []byte(head+i.printed), 0o644); err != nil {
			i.t.Fatal(err)
		}
		return
	}
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		i.t.Fatal(err)
	}
	if was, _, _ := strings.Cut(string(data), "\n\n"); was+"\n" != head {
		i.t.Errorf("incident %d: the values differ from %s (- want, + got); if the change is intended, run the test with -args -update:\n%s", i.number, file, diff(file, head))
	}
}

// Package row contains the verdicts on the rows of docs/situations.md as values.
package row

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Row is a verdict as values: the subject of a row of docs/situations.md. It leaves out
// everything that differs between runs, arrives at a varying time, or is only wording.
type Row struct {
	Scope     string     `json:"scope,omitempty"`
	Owners    []Owner    `json:"owners"`
	Conflicts []Conflict `json:"conflicts"`
	// Applied and NotApplied are the rules that were evaluated, each with its scope.
	Applied    []string `json:"applied"`
	NotApplied []string `json:"notApplied"`
}

// Owner is a workload or device that holds the address or is seen with it.
type Owner struct {
	Name  string `json:"name"`
	Node  string `json:"node"`
	State string `json:"state"`
	// Excluded means that the owner does not conflict with the others.
	Excluded bool `json:"excluded,omitempty"`
	// Evidence lists the kinds of evidence for the owner, each once.
	Evidence []string `json:"evidence"`
}

// Conflict is one conflict of the address.
type Conflict struct {
	State     string   `json:"state"`
	Scope     string   `json:"scope"`
	Rule      string   `json:"rule"`
	Cause     string   `json:"cause"`
	LinkProof string   `json:"linkProof,omitempty"`
	Owners    []string `json:"owners"`
}

// Text returns the row in the format of its file. It sorts the lists of the row, so that their
// order does not depend on inodes.
func (r Row) Text() string {
	for i := range r.Owners {
		// What a node would answer is asked some seconds later.
		r.Owners[i].Evidence = Set(slices.DeleteFunc(r.Owners[i].Evidence, func(kind string) bool { return kind == "WOULD_ANSWER" }))
	}
	slices.SortFunc(r.Owners, func(a, b Owner) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	for i := range r.Conflicts {
		slices.Sort(r.Conflicts[i].Owners)
	}
	slices.SortFunc(r.Conflicts, func(a, b Conflict) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	r.Applied, r.NotApplied = Set(r.Applied), Set(r.NotApplied)
	data, err := json.MarshalIndent(Row{r.Scope, notNil(r.Owners), notNil(r.Conflicts), notNil(r.Applied), notNil(r.NotApplied)}, "", "  ")
	if err != nil {
		panic(err) // cannot fail: all fields are text
	}
	return Stable(string(data)) + "\n"
}

// Set returns a sorted list without duplicates.
func Set(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// notNil returns a list that JSON encodes as an array even if it is empty.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Day is the date in times that a test chose. It stays in the texts: a time of another day is shown
// with its date, which makes tables wider.
const Day = "2026-01-02"

// Values that vary between runs. A MAC that a test chose begins with 02:00:00 or 0a:58:0a, or is a
// well-known one.
var (
	clocks           = regexp.MustCompile(`(\d{4}-\d\d-\d\d )?\b\d\d:\d\d:\d\d\.\d{3}\b`)
	ages             = regexp.MustCompile(`\((\d+(\.\d+)?(ms|[smhd]))+ ago\)`)
	lasted           = regexp.MustCompile(`(, (for|lasted)) (\d+(\.\d+)?(ms|[smhd]))+ +`)
	since            = regexp.MustCompile(`(?m)(, for) (\d+(\.\d+)?(ms|[smhd]))+$`)
	forecast         = regexp.MustCompile(`, full in (\d+(\.\d+)?(ms|[smhd]))+`) // of a pool, in a test that takes longer than a minute
	counts           = regexp.MustCompile(`\b(ASSIGNED|ANNOUNCED|ANSWERED|USED|DAD_FAILED) \d+ times\b`)
	dates            = regexp.MustCompile(`\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\b`)
	inodes           = regexp.MustCompile(`\b40265\d{5}\b`)
	cniVeths         = regexp.MustCompile(`\bveth[0-9a-f]{7,8}\b`)
	uids             = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	containers       = regexp.MustCompile(`\bcontainer     [0-9a-f]{12}\b`)
	longIDs          = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
	allocatedPattern = regexp.MustCompile(`\bcontainer [0-9a-f]{12}\b`)
	processes        = regexp.MustCompile(`(\bprocess +\S+) \(\d+\)`)
	passing          = regexp.MustCompile(`(?m)^ +process +ip \(\d+\)\n`) // a process of the test, ip -n NAMESPACE, that the agent happened to see
	passed           = regexp.MustCompile(`,\s+process ip \(\d+\)\n`)     // the same, followed by more text on the line
	macs             = regexp.MustCompile(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`)
	chosenMACs       = regexp.MustCompile(`^(02:00:00|0a:58:0a|02:42:ac|00:00:5e|aa:bb:cc:dd:ee:ff|ee:ee:ee)`)
)

// senders are who sends to an address, which depends on what was just sent, and tests of their own show.
var senders = regexp.MustCompile(`(?m)^Who sends to it.*\n(  .*\n)*\n?(Not looked at:\n(  .*\n)*\n?)?`)

// Stable replaces values that vary between runs: times, ages, counts of frames, inodes and PIDs,
// and the MACs, IDs and names that the kernel, a plugin or Kubernetes generated.
func Stable(text string) string {
	text = clocks.ReplaceAllStringFunc(text, func(s string) string {
		if strings.HasPrefix(s, Day) {
			return s
		}
		return "12:00:00.000"
	})
	text = ages.ReplaceAllString(text, "(2s ago)")
	text = lasted.ReplaceAllString(text, "$1 2s  ")
	text = since.ReplaceAllString(text, "$1 2s")
	text = forecast.ReplaceAllString(text, "")
	text = counts.ReplaceAllString(text, "$1")
	text = dates.ReplaceAllString(text, Day+" 12:00:00 UTC")
	text = numbered(text, inodes, "4026532%03d")
	text = numbered(text, cniVeths, "veth%08x")
	text = numbered(text, uids, "0ddba110-0000-4000-8000-%012d")
	text = numbered(text, containers, "container     c0ffee%06x")
	text = numbered(text, longIDs, "c0ffee%058x")
	text = numbered(text, allocatedPattern, "container c0ffee%06x")
	text = senders.ReplaceAllString(text, "")
	text = passing.ReplaceAllString(text, "")
	text = passed.ReplaceAllString(text, "\n")
	text = processes.ReplaceAllString(text, "$1 (42)")
	return numbered(text, macs, "5e:00:00:00:00:%02x")
}

// numbered replaces each distinct match by its number, in order of appearance.
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

package situations

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/situations/row"
)

func TestRowComparesTheVerdictAndNotItsWording(t *testing.T) {
	owner := func(name string) *ipwitnessv1.Owner {
		return &ipwitnessv1.Owner{
			Node: "node1", Netns: "4026532001", State: ipwitnessv1.Owner_LIVE,
			Workload: &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_POD, Namespace: "default", Name: name},
			Evidence: []*ipwitnessv1.Evidence{{Kind: ipwitnessv1.Evidence_ASSIGNED, Count: 1}},
		}
	}
	scope := &ipwitnessv1.Scope{Kind: ipwitnessv1.Scope_NODE, Name: "node1"}
	printed := &ipwitnessv1.ExplainResponse{
		Scope: scope, Owners: []*ipwitnessv1.Owner{owner("a"), owner("b")}, Summary: "It is held twice.",
		Steps: []*ipwitnessv1.ExplainResponse_Step{{Rule: "assigned-twice", Scope: scope, Applied: true, Reason: "It is."}},
		Conflicts: []*ipwitnessv1.Conflict{{
			State: ipwitnessv1.Conflict_CONFIRMED, Rule: "assigned-twice", Cause: "unknown", Scope: scope, Owners: []*ipwitnessv1.Owner{owner("a"), owner("b")},
		}},
	}
	want := rowOf(printed).Text()
	for name, c := range map[string]struct {
		change func(e *ipwitnessv1.ExplainResponse)
		same   bool
	}{
		"other words":          {func(e *ipwitnessv1.ExplainResponse) { e.Summary, e.Steps[0].Reason = "Two have it.", "They do." }, true},
		"a process":            {func(e *ipwitnessv1.ExplainResponse) { e.Owners[0].Workload.Process = "sh (2197)" }, true},
		"another order":        {func(e *ipwitnessv1.ExplainResponse) { e.Owners[0], e.Owners[1] = e.Owners[1], e.Owners[0] }, true},
		"more of one evidence": {func(e *ipwitnessv1.ExplainResponse) { e.Owners[0].Evidence[0].Count = 7 }, true},
		"another state":        {func(e *ipwitnessv1.ExplainResponse) { e.Conflicts[0].State = ipwitnessv1.Conflict_SUSPECTED }, false},
		"another rule":         {func(e *ipwitnessv1.ExplainResponse) { e.Conflicts[0].Rule = "same-pod" }, false},
		"another cause":        {func(e *ipwitnessv1.ExplainResponse) { e.Conflicts[0].Cause = "static-address" }, false},
		"another proof":        {func(e *ipwitnessv1.ExplainResponse) { e.Conflicts[0].LinkProof = ipwitnessv1.LinkProof_ONE_WAY }, false},
		"another scope":        {func(e *ipwitnessv1.ExplainResponse) { e.Conflicts[0].Scope = nil }, false},
		"one owner less":       {func(e *ipwitnessv1.ExplainResponse) { e.Owners = e.Owners[:1] }, false},
		"another owner":        {func(e *ipwitnessv1.ExplainResponse) { e.Owners[1].Workload.Name = "c" }, false},
		"other evidence":       {func(e *ipwitnessv1.ExplainResponse) { e.Owners[0].Evidence[0].Kind = ipwitnessv1.Evidence_USED }, false},
		"a rule that did not":  {func(e *ipwitnessv1.ExplainResponse) { e.Steps[0].Applied = false }, false},
	} {
		other := proto.CloneOf(printed)
		c.change(other)
		if got := rowOf(other).Text(); (got == want) != c.same {
			t.Errorf("%s: got\n%s\nof\n%s\nwant them to be the same: %v", name, got, want, c.same)
		}
	}
}

func TestStableTextIsTheSameInEachRun(t *testing.T) {
	now := time.Date(2026, 2, 3, 4, 5, 6, 7e6, time.UTC)
	one := fmt.Sprintf("netns 4026532001 a6:9f:e1:00:00:01 and 02:00:00:00:00:01, last %s (0.4s ago), for 3m5s  x, ANNOUNCED 3 times: seen on node1/veth0a1b2c3d",
		now.Format("15:04:05.000"))
	two := fmt.Sprintf("netns 4026532007 12:34:56:10:00:77 and 02:00:00:00:00:01, last %s (12s ago), for 2s  x, ANNOUNCED: seen on node1/vethffffffff",
		now.Format("2006-01-02 15:04:05.000"))
	one, two = one+" since "+row.Day+" 12:00:00.000", two+" since "+row.Day+" 12:00:00.000"
	if row.Stable(one) != row.Stable(two) || !strings.HasSuffix(row.Stable(one), row.Day+" 12:00:00.000") || !strings.Contains(row.Stable(one), "02:00:00:00:00:01") {
		t.Errorf("got %q and %q, want one text", row.Stable(one), row.Stable(two))
	}
}

func TestTextWithADateIsDetected(t *testing.T) {
	const (
		today     = "default/p1  since 00:00:01.000  host-local\ndefault/p2  -                   host-local\n"
		yesterday = "default/p1  since 2026-02-02 23:59:59.000  host-local\ndefault/p2  -                              host-local\n"
	)
	for text, want := range map[string]bool{
		today: false, yesterday: true, "all of " + row.Day + " 12:00:00.000": false, "lost at 2026-02-03 23:59:59.000\n  (there were 3)": false,
	} {
		if got := beforeMidnight(text, "2026-02-03"); got != want {
			t.Errorf("%q: got %t, want %t", text, got, want)
		}
	}
}

func TestCommandOfTheTestIsNotAProcessOfTheWorkload(t *testing.T) {
	const text = "    container     c0ffee000001\n%s    evidence      ASSIGNED\n"
	if got, want := row.Stable(fmt.Sprintf(text, "    process       ip (4711)\n")), fmt.Sprintf(text, ""); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := row.Stable(fmt.Sprintf(text, "    process       pause (4711)\n")), fmt.Sprintf(text, "    process       pause (42)\n"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

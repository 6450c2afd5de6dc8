package tests

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// restarts is the number of restarts. Before an issue about restarts is closed, it is 200:
// `go test ./tests -run RestartsUnderChurn -timeout 2h -args -restarts 200`.
var restarts = flag.Int("restarts", 3, "number of restarts of TestNothingChangesByRestartsUnderChurn")

// lastRead is the part of evidence that changes with each reading.
var lastRead = regexp.MustCompile(`,? last read at [^.;,]*`)

// testimony returns what is told of the duplicate and of the lost records, without what each start may change, and
// whether the answers claim to be complete.
func (l *lab) testimony(duplicate string) (told []string, complete bool) {
	l.t.Helper()
	var conflicts ipwitnessv1.ListConflictsResponse
	var findings ipwitnessv1.ListFindingsResponse
	if err := l.program.Get(l.t.Context(), "/v1/conflicts?address="+duplicate, &conflicts); err != nil {
		l.t.Fatal(err)
	}
	if err := l.program.Get(l.t.Context(), "/v1/findings", &findings); err != nil {
		l.t.Fatal(err)
	}
	for _, c := range conflicts.GetConflicts() {
		told = append(told, fmt.Sprint("conflict ", c.GetId(), " ", c.GetEpisode(), c.GetState(), c.GetCause(), c.GetDetectedAt().AsTime(), c.GetConfirmedAt().AsTime()))
		told = append(told, c.GetBecause()...)
		for _, o := range c.GetOwners() {
			told = append(told, fmt.Sprint("owner ", o.GetNetns(), " ", o.GetAssignedAt().AsTime(), o.GetFirstSeen().AsTime()))
		}
	}
	for _, f := range findings.GetFindings() {
		told = append(told, fmt.Sprint("finding ", f.GetKind(), " ", f.GetAddress(), f.GetId(), f.GetSeverity(), f.GetDetectedAt().AsTime()))
		told = append(told, f.GetEvidence()...)
	}
	for i, text := range told {
		told[i] = lastRead.ReplaceAllString(text, "")
	}
	return told, !conflicts.GetCoverage().GetIncomplete() && !findings.GetCoverage().GetIncomplete()
}

// kinds returns how many of the lines are conflicts and findings.
func kinds(told []string) (n int) {
	for _, line := range told {
		if strings.HasPrefix(line, "conflict ") || strings.HasPrefix(line, "finding ") {
			n++
		}
	}
	return n
}

func TestNothingChangesByRestartsUnderChurn(t *testing.T) {
	t.Parallel()
	const duplicate, pods = "192.0.2.8", 3
	data := filepath.Join(t.TempDir(), "data")
	l := startLab(t, newHost(t), "--data-dir", data)
	cni := l.cni(netlab.PTP)
	for i := range pods {
		if err := cni.Add(fmt.Sprintf("old%d", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	l.awaitAllocations(pods)
	if err := os.RemoveAll(l.Path("/run/cni-ipam-state/kindnet")); err != nil {
		t.Fatal(err)
	}
	l.pod("dupa", duplicate+"/24")
	l.pod("dupb", duplicate+"/24")
	l.watch.await(duplicate+" to be confirmed", inState(duplicate, ipwitnessv1.Conflict_CONFIRMED))
	var before []string
	wait.Until(t, "the duplicate, the loss and its addresses", func() bool {
		told, complete := l.testimony(duplicate)
		settled := complete && slices.Equal(told, before)
		before = told
		return settled && kinds(told) == 2+pods && len(l.findings("?kind=ipam-state-lost")[0].GetAddresses()) == pods
	})

	for round := range *restarts {
		l.churn(10*round, 10*round+2)
		if round%2 == 0 {
			l.agent.Kill()
		} else if _, err := l.agent.Stop(); err != nil {
			t.Fatal(err)
		}
		l.churn(10*round+2, 10*round+4)
		l.start("--node", "node1", "--data-dir", data)
		for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
			if told, complete := l.testimony(duplicate); complete && kinds(told) < kinds(before) {
				t.Fatalf("restart %d: got only %q, and that this is complete, want %q", round, told, before)
			}
		}
		if code := l.exits("audit", "--exit-code"); code != 2 {
			t.Errorf("restart %d: got exit code %d, want 2", round, code)
		}
		l.churn(10*round+4, 10*round+6)
		var after []string
		same := func() bool {
			var complete bool
			after, complete = l.testimony(duplicate)
			return complete && slices.Equal(after, before)
		}
		for until := time.Now().Add(patience); !same() && time.Now().Before(until); {
			time.Sleep(100 * time.Millisecond)
		}
		if !same() {
			t.Fatalf("restart %d: got\n%s\nwant\n%s", round, strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
	}
	var history ipwitnessv1.ListEventsResponse
	if err := l.program.Get(t.Context(), "/v1/events?kind=FINDING", &history); err != nil {
		t.Fatal(err)
	}
	for _, e := range history.GetEvents() {
		if e.GetType() == ipwitnessv1.Watch_REMOVED && !strings.HasPrefix(e.GetFinding().GetAddress(), "10.244.9.") {
			t.Errorf("got %v in the history, want nothing to end by a restart", e)
		}
	}
	if err := l.program.Get(t.Context(), "/v1/events?kind=CONFLICT&address="+duplicate, &history); err != nil {
		t.Fatal(err)
	}
	for _, e := range history.GetEvents() {
		if e.GetConflict().GetState() == ipwitnessv1.Conflict_RESOLVED {
			t.Errorf("got %v in the history, want the conflict to last", e)
		}
	}
}

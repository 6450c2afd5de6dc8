package verdict_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

const (
	lost      = verdict.CauseIPAMStateLost
	elsewhere = verdict.CauseIPAMBookedElsewhere
	overlap   = verdict.CausePodCIDROverlap
	networks  = verdict.CauseOverlappingNetworks
	static    = verdict.CauseStaticAddress
	tunnel    = verdict.CauseTunnelAddress
	outside   = verdict.CauseExternalDevice
	orphan    = verdict.CauseOrphanedSandbox
	replaced  = verdict.CauseReplacedNamespace
	split     = verdict.CauseSplitBrain
	unknown   = verdict.CauseUnknown
)

func TestCauses(t *testing.T) {
	reached := map[string]bool{}
	for _, s := range verdicttest.Situations {
		t.Run(s.Name, func(t *testing.T) {
			_, c := s.Judge()
			if c == nil {
				t.Fatal("got no conflict, or several, want one")
			}
			reached[c.Cause] = true
			if c.Cause != s.Cause {
				t.Fatalf("got cause %s, want %s", c.Cause, s.Cause)
			}
			if got := verdicttest.Words(c, c.Facts...); !slices.Equal(got, s.Facts) {
				t.Errorf("got facts\n%q\nwant\n%q", got, s.Facts)
			}
			if got := verdicttest.RuledOut(c); !slices.Equal(got, s.RuledOut) {
				t.Errorf("got ruled out\n%q\nwant\n%q", got, s.RuledOut)
			}
			for i, r := range c.RuledOut {
				if r.Cause == c.Cause || slices.ContainsFunc(c.RuledOut[:i], func(other verdict.RuledOut) bool { return other.Cause == r.Cause }) {
					t.Errorf("got %+v ruled out, want each once, and not the cause", c.RuledOut)
				}
			}
		})
	}
	for _, cause := range []string{lost, elsewhere, overlap, networks, static, tunnel, outside, orphan, replaced, split, verdict.CauseLeftoverNamespace, verdict.CauseDHCPClientIdentity, verdict.CauseTwoDHCPServers, verdict.CauseClonedMachine, verdict.CauseTakenAlong} {
		if !reached[cause] {
			t.Errorf("no situation has cause %s", cause)
		}
	}
}

func TestOwnersAreOrderedByTheirFirstClaim(t *testing.T) {
	w := newWorld("10.244.0.5")
	a := w.Within("n1", "", "", verdicttest.Who("a"))
	b := w.Within("n1", "", "", verdicttest.Who("b"))
	a.AssignedAt, b.AssignedAt = verdicttest.Start.Add(time.Minute), verdicttest.Start
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); !slices.Equal(c.Order, []uint32{1, 0}) {
		t.Errorf("got order %v, want b before a", c.Order)
	}

	w = newWorld("10.244.0.5")
	w.Policy.Networks = []verdict.Network{{Name: "pods", Prefixes: verdicttest.Prefixes("10.244.0.0/16")}}
	a, b = w.Within("n1", "", "", verdicttest.Who("a")), w.Within("n2", "", "", verdicttest.Who("b"))
	a.AssignedAt, b.AssignedAt = verdicttest.Start, verdicttest.Start.Add(-time.Second)
	w.Node("n2").Skew, w.Node("n2").SkewKnown = -2*time.Second, true // its clock is behind
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods"); !slices.Equal(c.Order, []uint32{0, 1}) {
		t.Errorf("got order %v, want a before b, whose clock is behind", c.Order)
	}
	b.AssignedAt, b.First = 0, verdicttest.Start.Add(-time.Minute)
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods"); !slices.Equal(c.Order, []uint32{1, 0}) {
		t.Errorf("got order %v, want b, which was seen first, before a", c.Order)
	}
}

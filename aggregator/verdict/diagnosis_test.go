package verdict_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// The cause is determined again whenever new facts become known.
func TestTheCauseFollowsTheKnownFacts(t *testing.T) {
	w := newWorld("10.244.1.5")
	a, b := verdicttest.Twins(w.World)
	c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if c.Cause != unknown {
		t.Errorf("got cause %s without records, want none", c.Cause)
	}
	p := w.Pool(hostlocal.Name, "n1", "kindnet")
	w.Books(p, "new")
	w.Says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running", Node: "n1", IPs: []netip.Addr{w.Addr}})
	w.after(time.Second).Read(a, b)
	c = w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if c.Cause != lost || len(c.Allocations) != 1 {
		t.Errorf("got cause %s, allocations %v, want the record that is lost", c.Cause, c.Allocations)
	}
	if got := checked(&c, verdict.StepPods); !slices.Equal(got, []string{"pod owners=old"}) {
		t.Errorf("got pods %q", got)
	}
	if got := checked(&c, verdict.StepIPAM); !slices.Equal(got, []string{"record pool=host-local|n1|kindnet state=1 record=container-new->new"}) {
		t.Errorf("got ipam %q", got)
	}
	w.Drop(a)
	if c = w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); c.Cause != lost || len(c.Facts) == 0 {
		t.Errorf("got cause %s, %+v of a resolved conflict, want the previous one", c.Cause, c.Facts)
	}
}

// The node's own route tells which of two pods on one node gets the packets, whichever has the address
// rightfully (projectcalico/calico issue 13858).
func TestIncident16TheRouteLeadsToOneOfTwoPods(t *testing.T) {
	for what, test := range map[string]struct {
		routed []bool
		nodes  [2]string
		want   []string
	}{
		"to the first":         {[]bool{true, false}, [2]string{"n1", "n1"}, []string{"route owners=a,b"}},
		"to the second":        {[]bool{false, true}, [2]string{"n1", "n1"}, []string{"route owners=b,a"}},
		"to both":              {[]bool{true, true}, [2]string{"n1", "n1"}, nil},
		"to neither":           {[]bool{false, false}, [2]string{"n1", "n1"}, nil},
		"each node to its pod": {[]bool{true, true}, [2]string{"n1", "n2"}, nil},
		"one node to its pod":  {[]bool{true, false}, [2]string{"n1", "n2"}, nil},
	} {
		w := newWorld("10.244.1.5")
		for i, pod := range []string{"a", "b"} {
			w.Within(test.nodes[i], "", "pods", verdicttest.Who(pod)).Routed = test.routed[i]
		}
		kind, scope := verdict.NodeScope, "n1"
		if test.nodes[1] == "n2" {
			kind, scope = verdict.NetworkScope, "pods"
		}
		c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, kind, scope)
		if got := checked(&c, verdict.StepRoutes); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", what, got, test.want)
		}
	}
}

func TestRangesOfPodsInTheDiagnosis(t *testing.T) {
	for of, want := range map[string]string{"": "pod-cidrs nodes=n1,n2", "n1": "pod-cidrs nodes=n1 others=n2", "n3": "pod-cidrs others=n1,n2"} {
		w := newWorld("10.244.1.5")
		w.PodCIDR, w.PodCIDROf = netip.MustParsePrefix("10.244.1.0/24"), of
		w.Within("n1", "", "pods", verdicttest.Who("a"))
		w.Within("n2", "", "pods", verdicttest.Who("b"))
		c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
		if got := checked(&c, verdict.StepPodCIDRs); !slices.Equal(got, []string{want}) {
			t.Errorf("got %q, want the ranges: %q", got, want)
		}
	}
}

// Pools and allocations come in any order, and the outcome must not depend on it.
func TestTheOperandsOfACauseHaveAFixedOrder(t *testing.T) {
	conflictOf := func(turned bool) verdict.Conflict {
		w := newWorld("10.244.1.5")
		for _, n := range []string{"n1", "n2"} {
			w.Within(n, "", "pods", verdicttest.Who("web"+n))
			w.Books(w.Pool(hostlocal.Name, n, "pods"), "web"+n)
		}
		if turned {
			slices.Reverse(w.Pools)
			slices.Reverse(w.Allocations)
		}
		return w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
	}
	one, other := conflictOf(false), conflictOf(true)
	if !one.Same(&other) || one.Pools[0].Node.Name != other.Pools[0].Node.Name || len(one.Facts) == 0 {
		t.Errorf("got\n%+v\nand\n%+v", one, other)
	}
}

func TestChecksOfADiagnosis(t *testing.T) {
	pods := netip.MustParsePrefix("10.244.1.0/24")
	for _, test := range []struct {
		name  string
		build func(w *world)
		want  []string
	}{
		{"two pods, and no records", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			w.Within("n2", "", "kindnet", verdicttest.Who("b"))
		}, []string{"ipam no-records nodes=n1,n2"}},
		{"two pods of one node that the API has, in a range of pods", func(w *world) {
			w.PodCIDR = pods
			verdicttest.Twins(w.World)
			w.running("old", "new")
		}, []string{"pods pod owners=new", "pods pod owners=old", "ipam no-records nodes=n1", "pod-cidrs pod-cidrs nodes=n1"}},
		{"two sandboxes of one pod", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			second := verdicttest.Who("a")
			second.ContainerID = "container-b"
			w.Within("n1", "", "kindnet", second)
		}, nil},
		{"two unidentified namespaces", func(w *world) {
			w.Within("n1", "", "", blue("red"))
			w.Within("n1", "", "", blue("blue"))
		}, nil},
		{"two unidentified namespaces, in a range of pods", func(w *world) {
			w.PodCIDR = pods
			w.Within("n1", "", "", blue("red"))
			w.Within("n1", "", "", blue("blue"))
		}, []string{"ipam no-records nodes=n1", "pod-cidrs pod-cidrs nodes=n1"}},
		{"two devices outside, in a range of pods", func(w *world) {
			w.PodCIDR = pods
			port := w.Uplink("n1")
			a := w.Wire(port, externalMAC)
			w.after(time.Millisecond).Wire(port, other)
			w.after(time.Millisecond).Seen(a)
		}, []string{"pod-cidrs pod-cidrs"}},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		c := w.judge().Conflicts[0]
		var got []string
		for _, check := range c.Checks {
			for _, words := range verdicttest.Words(&c, check.Facts...) {
				got = append(got, check.Step+" "+words)
			}
		}
		slices.Sort(got[:min(2, len(got))])
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// checked returns the facts of one step of the diagnosis.
func checked(c *verdict.Conflict, step string) []string {
	for _, check := range c.Checks {
		if check.Step == step {
			return verdicttest.Words(c, check.Facts...)
		}
	}
	return nil
}

package verdict_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func TestSettleNeedsTimeAndBothReadAgain(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, b := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	out := w.judge()
	if due := start.Add(time.Second); out.Again != due || len(out.Check) != 0 || !out.Contested {
		t.Fatalf("got again %d, check %v, contested %v, want %d, none, true", out.Again, out.Check, out.Contested, due)
	}

	w.after(time.Second - 1)
	w.read(a, b)
	if out = w.judge(); out.Conflicts[0].Phase != verdict.Suspected || len(out.Check) != 0 {
		t.Fatal("got confirmed or asked before the settle time was over")
	}

	w.after(1)
	if out = w.judge(); len(out.Check) != 1 || out.Check[0] != w.node("n1") || out.Again != w.now.Add(time.Second) {
		t.Fatalf("got check %v again %d, want n1 asked, and again after a second", out.Check, out.Again)
	}
	w.after(time.Millisecond)
	if out = w.judge(); len(out.Check) != 0 {
		t.Fatal("got asked twice within a second")
	}
	w.read(a)
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	w.after(time.Second)
	if out = w.judge(); len(out.Check) != 1 {
		t.Fatal("got no second question, want one a second later")
	}
	w.read(b)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
}

func TestSettleBeginsWhenTheTwoOfNowMet(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, b := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	w.judge()
	w.after(900 * time.Millisecond)
	three, _ := w.veth(w.namespace("n1", 4, "104", pod("c")), "dccccc", w.link("n1", "v3", verdict.PointToPoint, false))
	c := w.assigned(three)
	w.judge()
	w.after(50 * time.Millisecond)
	w.drop(a)
	w.judge()
	w.after(100 * time.Millisecond)
	w.read(b, c)
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	w.after(850 * time.Millisecond)
	w.read(b, c)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
}

func TestEpisodesHaveOneID(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, _ := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	first := w.judge().Conflicts[0]
	if want := verdict.ID("test", verdict.NodeScope, "n1", w.addr); first.ID != want || len(want) != 16 || strings.Trim(want, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		t.Fatalf("got id %q, want %q of 16 base32 characters", first.ID, want)
	}
	w.after(time.Second).drop(a)
	w.judge()
	w.after(time.Second)
	w.claims = append(w.claims, a)
	second := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if second.ID != first.ID || second.Episode != 2 || second.DetectedAt != w.now || second.ResolvedAt != 0 {
		t.Errorf("got %s episode %d, want %s episode 2, begun now", second.ID, second.Episode, first.ID)
	}
	if other := verdict.ID("other", verdict.NodeScope, "n1", w.addr); other == first.ID {
		t.Error("got one id in two clusters")
	}
}

func TestOwnersComeAndGoInsideAConflict(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, b := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	w.judge()
	w.after(time.Second).read(a, b)
	w.judge()
	three, _ := w.veth(w.namespace("n1", 4, "104", pod("c")), "dccccc", w.link("n1", "v3", verdict.PointToPoint, false))
	c := w.assigned(three)
	if got := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); len(got.Owners) != 3 {
		t.Fatalf("got %d owners, want 3", len(got.Owners))
	}
	w.drop(a)
	if got := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); len(got.Owners) != 2 || got.Episode != 1 {
		t.Fatalf("got %d owners in episode %d, want 2 in 1", len(got.Owners), got.Episode)
	}
	w.drop(b, c)
	w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
}

func uplink(w *world, node string) *verdict.Interface {
	return w.iface(w.host(node), verdict.Interface{
		Name: "eth0", MAC: verdict.MAC("vplk" + node), Attachment: verdict.Own,
		Link: w.link(node, "eth0", verdict.Uplink, false), Uplink: true,
	})
}

func TestAssignedAndAnExternalDevice(t *testing.T) {
	w := newWorld("192.168.1.10")
	eth0 := uplink(w, "n1")
	own := w.assigned(eth0)
	stranger := w.wire(eth0, "\x02\x00\x00\x00\x00\x99")
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	w.after(time.Second).read(own)
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	w.after(time.Second)
	w.seen(stranger)
	c := w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	if k := c.Owners[0].Workload().Kind; k != verdict.External {
		t.Errorf("got kind %d first, want the external device", k)
	}
	t.Log(c.Summary, c.Remedy)

	out := w.after(w.policy.StaleAfter).judge()
	if got := out.Conflicts[0]; got.Phase != verdict.Resolved || out.Owners[0].State != verdict.Stale || out.Again == 0 {
		t.Fatalf("got phase %d, state %d, want resolved and stale, to be ended later", got.Phase, out.Owners[0].State)
	}
	if out = w.after(w.policy.StaleAfter).judge(); len(out.Expired) != 1 || out.Expired[0] != stranger {
		t.Fatalf("got expired %v, want the stranger's claim", out.Expired)
	}
}

func TestExternalsAlternate(t *testing.T) {
	w := newWorld("192.168.1.20")
	eth0 := uplink(w, "n1")
	a := w.wire(eth0, "baaaaa")
	w.after(time.Second)
	b := w.wire(eth0, "bbbbbb")
	if out := w.wantNone(t); !out.Contested {
		t.Error("got no closer look, want one")
	}
	w.wantRule(t, verdict.RuleMACChanged)
	w.after(time.Second)
	w.seen(a)
	w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
	w.after(30 * time.Second)
	w.seen(a)
	w.seen(b)
	w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")

	slow := newWorld("192.168.1.20")
	eth0 = uplink(slow, "n1")
	a = slow.wire(eth0, "baaaaa")
	slow.after(time.Second).wire(eth0, "bbbbbb")
	slow.after(9*time.Second + 1)
	slow.seen(a)
	slow.wantNone(t)
}

func TestDADFailed(t *testing.T) {
	w := newWorld("fd00::5")
	l := w.link("n1", "br0", verdict.Bridge, false)
	one, _ := w.veth(w.namespace("n1", 2, "102", pod("a")), "baaaaa", l)
	failed := w.claim(verdict.Claim{Kind: verdict.DADFailed, Interface: one, PrefixLength: 64})
	c := w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0")
	if len(c.Owners) != 1 || !strings.Contains(c.Summary, "not known") {
		t.Errorf("got %d owners and %q, want one, and that the other is not known", len(c.Owners), c.Summary)
	}
	two, _ := w.veth(w.namespace("n1", 3, "103", pod("b")), "bbbbbb", l)
	w.assigned(two)
	if c = w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0"); len(c.Owners) != 2 || c.Episode != 1 {
		t.Errorf("got %d owners, want both in the same episode", len(c.Owners))
	}
	w.drop(failed)
	w.want(t, verdict.Resolved, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0")
}

func TestUnheardIsNeverConfirmedNorResolvedBySilence(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, b := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	w.judge()
	w.node("n1").Unheard = true
	w.after(time.Minute).read(a, b)
	c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if !strings.Contains(c.Summary, "last seen on a node not heard from") {
		t.Errorf("got summary %q, want it to name the silent node", c.Summary)
	}
	w.wantRule(t, verdict.RuleNodeUnheard)
	w.node("n1").TimedOut = true
	c = w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if !strings.Contains(c.Summary, "was not heard from for 5m0s") {
		t.Errorf("got summary %q, want the reason", c.Summary)
	}
}

func TestWeakClaimsAreNotedAndNeverRivals(t *testing.T) {
	w := newWorld("192.168.1.10")
	eth0 := uplink(w, "n1")
	w.assigned(eth0)
	w.wire(eth0, "bbbbbb").Source = "dccccc"
	out := w.wantNone(t)
	if len(out.Owners) != 2 || out.Owners[0].Rule != verdict.RuleWeakSource {
		t.Fatalf("got owners %+v, want the weak one listed as excluded", out.Owners)
	}
	w.wantRule(t, verdict.RuleWeakSource)
}

func TestBelievedIsNeverAnOwner(t *testing.T) {
	w := newWorld("192.168.1.10")
	eth0 := uplink(w, "n1")
	w.assigned(eth0)
	w.claim(verdict.Claim{Kind: verdict.Believed, Interface: eth0, Link: eth0.Link, MAC: "bbbbbb"})
	w.wantNone(t)
	w.wantRule(t, verdict.RuleBelieved)
}

func TestDeclaredShared(t *testing.T) {
	w := newWorld("10.244.0.5")
	twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	w.judge()
	w.policy.Shared = []verdict.Shared{
		{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Reason: "all"},
		{Prefix: netip.MustParsePrefix("10.244.0.0/24"), Reason: "anycast DNS"},
	}
	c := w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if !strings.Contains(c.Summary, "anycast DNS") {
		t.Errorf("got %q, want the reason of the longest prefix", c.Summary)
	}
	w.wantNone(t)
	w.wantRule(t, verdict.RuleDeclaredShared)
}

func TestANodesMACWitnessesItsOwner(t *testing.T) {
	w := newWorld("10.244.0.5")
	eth0 := uplink(w, "n1")
	inside, _ := w.veth(w.namespace("n1", 2, "102", pod("a")), "baaaaa", w.link("n1", "v1", verdict.PointToPoint, false))
	w.assigned(inside)
	w.wire(eth0, "vplkn1") // the node answers for its pod
	if out := w.wantNone(t); len(out.Owners) != 1 {
		t.Fatalf("got %d owners, want one", len(out.Owners))
	}
	w.wantRule(t, verdict.RuleNodeMAC)
}

func TestGuestsCountAsTheirNamespace(t *testing.T) {
	w := newWorld("10.244.0.5")
	l := w.link("n1", "cni0", verdict.Bridge, true)
	_, port := w.veth(w.namespace("n1", 2, "102", pod("vm")), "baaaaa", l)
	other, _ := w.veth(w.namespace("n1", 3, "103", pod("b")), "bbbbbb", l)
	guest := w.wire(port, "huestg")
	out := w.wantNone(t)
	if o := out.Owners[0]; o.ID != "boot-n1/102" || o.MAC != "huestg" {
		t.Fatalf("got owner %s with MAC %s, want the pod with the guest's", o.ID, o.MAC)
	}
	w.wantRule(t, verdict.RuleGuest)
	assigned := w.assigned(other)
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.NodeScope, "n1")
	w.after(time.Second).read(assigned)
	w.seen(guest)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.NodeScope, "n1")
}

func TestTwoAgentsOnOneKernelSeeOneOwner(t *testing.T) {
	w := newWorld("10.244.0.5")
	w.node("n2").Boot = "boot-n1"
	w.node("n2").Netns = "2"
	for _, node := range []string{"n1", "n2"} {
		inside, _ := w.veth(w.namespace(node, 2, "102", pod("a")), "baaaaa", w.link(node, "v1", verdict.PointToPoint, false))
		w.assigned(inside)
	}
	if out := w.wantNone(t); len(out.Owners) != 1 {
		t.Fatalf("got %d owners, want one", len(out.Owners))
	}
	// Without an inode, nothing tells that they are one.
	if a, b := verdict.OwnerID(w.node("n1"), 2, ""), verdict.OwnerID(w.node("n2"), 2, ""); a == b {
		t.Errorf("got %s for both", a)
	}
}

func TestAConflictKeepsItsIDWhenItsScopeIsWidened(t *testing.T) {
	w := newWorld("10.0.0.5")
	twoPods(w, verdict.Bridge, false, [2]string{"baaaaa", "bbbbbb"})
	first := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
	w.link("n1", "cni0", verdict.Bridge, false).Routed = true
	second := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
	if first.ID != second.ID || second.Episode != 1 {
		t.Errorf("got %s then %s", first.ID, second.ID)
	}
}

func TestANarrowerGroupThatIsNotCoveredIsItsOwn(t *testing.T) {
	w := newWorld("10.0.0.5")
	l := w.link("n1", "cni0", verdict.Bridge, true)
	twoPods(w, verdict.Bridge, true, [2]string{"baaaaa", "bbbbbb"})
	w.wire(w.iface(w.host("n1"), verdict.Interface{Name: "eth0", MAC: "hosthh", Attachment: verdict.Own, Link: l, Uplink: true}), "ttrang")
	out := w.judge()
	if len(out.Conflicts) != 2 || out.Conflicts[0].Kind != verdict.NodeScope || out.Conflicts[1].Kind != verdict.LinkScope ||
		len(out.Conflicts[0].Owners) != 2 || len(out.Conflicts[1].Owners) != 3 {
		t.Fatalf("got %+v, want one of two on the node and one of three on the link", out.Conflicts)
	}
}

// threeOnALink are two pods on a bridge and an external device.
func threeOnALink(w *world) (a, b, stranger *verdict.Claim) {
	l := w.link("n1", "cni0", verdict.Bridge, false)
	a, b = twoPods(w, verdict.Bridge, false, [2]string{"baaaaa", "bbbbbb"})
	eth0 := w.iface(w.host("n1"), verdict.Interface{Name: "eth0", MAC: "hosthh", Attachment: verdict.Own, Link: l, Uplink: true})
	return a, b, w.wire(eth0, "ttrang")
}

func wantTwoIDs(t *testing.T, w *world, kept string) {
	t.Helper()
	out := w.judge()
	if len(out.Conflicts) != 2 || out.Conflicts[0].ID == kept || len(out.Conflicts[0].Owners) != 2 ||
		out.Conflicts[1].ID != kept || len(out.Conflicts[1].Owners) != 3 || out.Conflicts[1].Kind != verdict.LinkScope {
		t.Fatalf("got %+v, want a new one of two owners and %s with three", out.Conflicts, kept)
	}
}

func TestTwoScopesNeverShareAConflict(t *testing.T) {
	w := newWorld("10.0.0.5")
	threeOnALink(w)
	first := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
	w.link("n1", "cni0", verdict.Bridge, false).Routed = true
	wantTwoIDs(t, w, first.ID)
	wantTwoIDs(t, w, first.ID)

	// The third one comes when the scope was widened already.
	w = newWorld("10.0.0.5")
	_, _, stranger := threeOnALink(w)
	w.drop(stranger)
	first = w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
	w.link("n1", "cni0", verdict.Bridge, false).Routed = true
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
	w.claims = append(w.claims, stranger)
	wantTwoIDs(t, w, first.ID)
}

func TestConflictsOfAnAddressHaveDifferentIDs(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 11))
		w := randomWorld(r)
		all := slices.Clone(w.claims)
		for range 20 {
			w.claims = slices.DeleteFunc(slices.Clone(all), func(*verdict.Claim) bool { return r.IntN(4) == 0 })
			for _, l := range w.links {
				l.Routed = r.IntN(2) == 0
			}
			ids := map[string]bool{}
			for _, c := range w.after(time.Second).judge().Conflicts {
				if ids[c.ID] {
					t.Fatalf("seed %d: got two conflicts %s", seed, c.ID)
				}
				ids[c.ID] = true
			}
		}
	}
}

func TestDADFailedAndItsRivalAreOneConflict(t *testing.T) {
	w := newWorld("fd00::5")
	l := w.link("n1", "cni0", verdict.Bridge, true)
	one, _ := w.veth(w.namespace("n1", 2, "102", pod("a")), "baaaaa", l)
	w.claim(verdict.Claim{Kind: verdict.DADFailed, Interface: one, PrefixLength: 64})
	alone := w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.NodeScope, "n1")
	eth0 := w.iface(w.host("n1"), verdict.Interface{Name: "eth0", MAC: "hosthh", Attachment: verdict.Own, Link: l, Uplink: true})
	w.wire(eth0, "ttrang")
	out := w.judge()
	if len(out.Conflicts) != 2 || out.Conflicts[0].Phase != verdict.Confirmed || len(out.Conflicts[0].Owners) != 2 ||
		out.Conflicts[1].ID != alone.ID || out.Conflicts[1].Phase != verdict.Resolved || !strings.Contains(out.Conflicts[1].Summary, "goes on") {
		t.Fatalf("got %+v, want one of both, and that of one over", out.Conflicts)
	}
	w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/cni0")
}

func TestAConfirmedConflictEndsWithItsEvidence(t *testing.T) {
	confirmed := func() (w *world, own, a, b *verdict.Claim) {
		w = newWorld("192.168.1.10")
		eth0 := uplink(w, "n1")
		own, a, b = w.assigned(eth0), w.wire(eth0, "baaaaa"), w.wire(eth0, "bbbbbb")
		w.judge()
		w.after(time.Second).read(own)
		w.seen(a)
		w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
		return w, own, a, b
	}
	w, own, _, _ := confirmed()
	w.after(time.Minute).drop(own)
	w.want(t, verdict.Resolved, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	w.wantNone(t)

	w, own, a, b := confirmed()
	w.after(time.Second).seen(a)
	w.after(time.Second).seen(b)
	w.after(time.Second).seen(a)
	w.drop(own)
	c := w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
	if c.ConfirmedAt != 0 || c.Episode != 1 {
		t.Errorf("got confirmed at %d in episode %d, want not confirmed, in the same one", c.ConfirmedAt, c.Episode)
	}
}

func TestRemedyFitsTheWorkload(t *testing.T) {
	for _, test := range []struct {
		who  verdict.Workload
		want string
	}{
		{pod("b"), "kubectl delete pod -n default b"},
		{verdict.Workload{Kind: verdict.Unknown, Name: "blue", Source: "netns"}, "ip -n blue addr del 10.244.0.5/24 dev eth0"},
		{verdict.Workload{Kind: verdict.Container, Name: "blue", Source: "netns"}, "ip -n blue addr del 10.244.0.5/24 dev eth0"},
		{verdict.Workload{Kind: verdict.Unknown}, "lsns -t net"},
		{verdict.Workload{Kind: verdict.Container, ContainerID: "0123456789abcdef"}, "Stop container 0123456789ab on node n1"},
		{verdict.Workload{Kind: verdict.Container, Name: "web", Source: "cgroup"}, "Stop container web on node n1"},
		{verdict.Workload{Kind: verdict.Pod, UID: "u-1", ContainerID: "0123456789abcdef", Source: "cgroup"}, "pod with uid u-1 on node n1 is called. kubectl get pods -A"},
		{verdict.Workload{Kind: verdict.Unknown, Process: "ns (x) (12)", PID: 12, Source: "process"}, "process ns (x) (12) on node n1"},
		{verdict.Workload{Kind: verdict.Unknown, Process: "ns (x) (12)", PID: 12, Source: "process"}, "nsenter --net=/proc/12/ns/net ip addr del 10.244.0.5/24 dev eth0"},
		{verdict.Workload{Kind: verdict.Unknown, Process: "ns (x) (12, ended)", PID: 12, Ended: true, Source: "process"}, "in the network namespace of process ns (x) (12, ended) on node n1: find what keeps it"},
		{verdict.Workload{Kind: verdict.Unknown, Process: "(7, ended) (12)", PID: 12, Source: "process"}, "nsenter --net=/proc/12/ns/net ip addr del 10.244.0.5/24 dev eth0"},
		{verdict.Workload{Kind: verdict.Unknown, Process: "ns (x) (12, ended)", Source: "process"}, "lsns -t net"},
		{verdict.Workload{Kind: verdict.Container, Name: "blue", ContainerID: "0123456789abcdef", Process: "sleep (12)", Source: "netns"}, "ip -n blue addr del"},
	} {
		w := newWorld("10.244.0.5")
		one, _ := w.veth(w.namespace("n1", 2, "102", pod("a")), "baaaaa", w.link("n1", "v1", verdict.PointToPoint, false))
		two, _ := w.veth(w.namespace("n1", 3, "103", test.who), "bbbbbb", w.link("n1", "v2", verdict.PointToPoint, false))
		w.assigned(one)
		w.assigned(two).AssignedAt += 5e9
		remedy := strings.Join(flat(w.judge().Conflicts[0].Remedy), "\n")
		if !strings.Contains(remedy, test.want) || strings.Contains(remedy, "delete pod -n default a") {
			t.Errorf("got remedy\n%s\nwant %q, and nothing to be done to a", remedy, test.want)
		}
	}
}

// A process of one container may be the oldest in namespaces that people named.
func TestContainerOfAProcessMakesNamedNamespacesNoPod(t *testing.T) {
	w := newWorld("10.244.0.5")
	for i, name := range []string{"blue", "red"} {
		who := verdict.Workload{Kind: verdict.Container, Name: name, UID: "u-1", ContainerID: "0123456789abcdef", Process: "sleep (12)", Source: "netns"}
		inside, _ := w.veth(w.namespace("n1", uint32(2+i), name, who), name, w.link("n1", name, verdict.PointToPoint, false))
		w.assigned(inside)
	}
	c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if !strings.Contains(c.Summary, "network namespace blue") || !strings.Contains(c.Summary, "network namespace red") {
		t.Errorf("got summary %q, want the names of the namespaces", c.Summary)
	}
}

// The order of claims is that of a network: it must never change the outcome.
func TestTheOrderOfClaimsNeverMatters(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := randomWorld(r)
		want := describeJudgement(w.policy.Judge(w.input()))
		for range 5 {
			r.Shuffle(len(w.claims), func(i, k int) { w.claims[i], w.claims[k] = w.claims[k], w.claims[i] })
			r.Shuffle(len(w.interfaces), func(i, k int) { w.interfaces[i], w.interfaces[k] = w.interfaces[k], w.interfaces[i] })
			if got := describeJudgement(w.policy.Judge(w.input())); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: got\n%v\nwant\n%v", seed, got, want)
			}
		}
		w.policy.Explain(w.input())
	}
}

func randomWorld(r *rand.Rand) *world {
	w := newWorld([]string{"10.0.0.5", "169.254.1.1", "fd00::5"}[r.IntN(3)])
	macs := []string{"mac-aa", "mac-bb", "mac-cc", "mac-dd"}
	kinds := []verdict.LinkKind{verdict.Bridge, verdict.PointToPoint, verdict.Uplink, verdict.OVSPort}
	w.node("n2").Boot = "boot-n1"
	w.node("n2").Netns = "2"
	for _, node := range []string{"n1", "n2"} {
		links := []*verdict.Link{
			w.link(node, "l1", kinds[r.IntN(4)], r.IntN(2) == 0), w.link(node, "l2", kinds[r.IntN(4)], true),
		}
		for i := range 3 {
			inside, port := w.veth(w.namespace(node, uint32(i+2), fmt.Sprint(100+i), pod(fmt.Sprint(r.IntN(3)))), macs[r.IntN(4)], links[r.IntN(2)])
			inside.Attachment = verdict.Attachment(1 + r.IntN(5))
			port.Uplink = r.IntN(4) == 0
			w.after(time.Duration(r.IntN(int(2 * time.Second))))
			if r.IntN(2) == 0 {
				w.claim(verdict.Claim{Kind: []verdict.Evidence{verdict.Assigned, verdict.Assigned, verdict.DADFailed}[r.IntN(3)], Interface: inside})
			}
			for range r.IntN(4) {
				c := w.wire(port, macs[r.IntN(4)])
				c.Kind = []verdict.Evidence{verdict.Announced, verdict.Answered, verdict.Used, verdict.Believed}[r.IntN(4)]
				c.Before = c.Seen.Add(-time.Duration(r.IntN(int(12 * time.Second))))
				c.VLAN = uint16(len(w.claims)) // a key is there once
				if r.IntN(5) == 0 {
					c.Source = "source"
				}
				c.NoOverride = r.IntN(5) == 0
			}
		}
	}
	w.answers = map[verdict.MAC][2]int{"mac-aa": {verdict.ManyAnswers, 0}, "mac-bb": {2, 2}}
	w.node("n2").Unheard = r.IntN(3) == 0
	w.node("n2").TimedOut = r.IntN(6) == 0
	w.after(time.Duration(r.IntN(int(6 * time.Minute))))
	return w
}

// describeJudgement is what a judgement means, without the order of what has none.
func describeJudgement(out verdict.Judgement) []string {
	text := []string{fmt.Sprint(out.Again, out.Contested, len(out.Check), len(out.Expired))}
	owner := func(o verdict.Owner) string {
		s := fmt.Sprint(o.ID, o.Node.Name, o.MAC, o.Scope.Text(), o.State, o.Assigned, o.Rule, o.Excluded, o.Interface.Name, o.Interface.Index)
		for _, c := range o.Claims {
			s += fmt.Sprint(" ", c.Kind, c.Interface.Name, c.MAC, c.VLAN)
		}
		return s
	}
	for _, o := range out.Owners {
		text = append(text, owner(o))
	}
	for _, c := range out.Conflicts {
		text = append(text, fmt.Sprint(c.ID, c.Phase, c.Rule, c.Summary, c.Remedy))
		for _, o := range c.Owners {
			text = append(text, owner(o))
		}
	}
	return text
}

package verdict_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

func TestConfirmationNeedsTimeAndNewReadings(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, b := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	out := w.judge()
	if due := verdicttest.Start.Add(time.Second); out.Again != due || len(out.Check) != 0 || !out.Contested {
		t.Fatalf("got again %d, check %v, contested %v, want %d, none, true", out.Again, out.Check, out.Contested, due)
	}

	w.after(time.Second - 1)
	w.Read(a, b)
	if out = w.judge(); out.Conflicts[0].Phase != verdict.Suspected || len(out.Check) != 0 {
		t.Fatal("got a confirmation or a check before the end of the settle time")
	}

	w.after(1)
	if out = w.judge(); len(out.Check) != 1 || out.Check[0] != w.Node("n1") || out.Again != w.Now.Add(time.Second) {
		t.Fatalf("got check %v again %d, want n1 asked, and again after a second", out.Check, out.Again)
	}
	w.after(time.Millisecond)
	if out = w.judge(); len(out.Check) != 0 {
		t.Fatal("got two checks within a second")
	}
	w.Read(a)
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	w.after(time.Second)
	if out = w.judge(); len(out.Check) != 1 {
		t.Fatal("got no second check, want one a second later")
	}
	w.Read(b)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
}

func TestSettleTimeBeginsWithTheCurrentOwners(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, b := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	w.judge()
	w.after(900 * time.Millisecond)
	three, _ := w.Veth(w.Namespace("n1", 4, "104", verdicttest.Pod("c")), "dccccc", w.Link("n1", "v3", verdict.PointToPoint, false))
	c := w.Assigned(three)
	w.judge()
	w.after(50 * time.Millisecond)
	w.Drop(a)
	w.judge()
	w.after(100 * time.Millisecond)
	w.Read(b, c)
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	w.after(850 * time.Millisecond)
	w.Read(b, c)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
}

func TestEpisodesHaveOneID(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, _ := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	first := w.judge().Conflicts[0]
	if want := verdict.ID("test", verdict.NodeScope, "n1", w.Addr); first.ID != want || len(want) != 16 || strings.Trim(want, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		t.Fatalf("got id %q, want %q of 16 base32 characters", first.ID, want)
	}
	w.after(time.Second).Drop(a)
	w.judge()
	w.after(time.Second)
	w.Claims = append(w.Claims, a)
	second := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if second.ID != first.ID || second.Episode != 2 || second.DetectedAt != w.Now || second.ResolvedAt != 0 {
		t.Errorf("got %s episode %d, want %s episode 2, begun now", second.ID, second.Episode, first.ID)
	}
	if other := verdict.ID("other", verdict.NodeScope, "n1", w.Addr); other == first.ID {
		t.Error("got equal ids in two clusters")
	}
	if verdict.ID("a", verdict.NodeScope, "NODEb", w.Addr) == verdict.ID("aNODE", verdict.NodeScope, "b", w.Addr) {
		t.Error("got one id for two scopes whose concatenated names are equal")
	}
}

func TestOwnersComeAndGoInsideAConflict(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, b := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	w.judge()
	w.after(time.Second).Read(a, b)
	w.judge()
	three, _ := w.Veth(w.Namespace("n1", 4, "104", verdicttest.Pod("c")), "dccccc", w.Link("n1", "v3", verdict.PointToPoint, false))
	c := w.Assigned(three)
	if got := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); len(got.Owners) != 3 {
		t.Fatalf("got %d owners, want 3", len(got.Owners))
	}
	w.Drop(a)
	if got := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); len(got.Owners) != 2 || got.Episode != 1 {
		t.Fatalf("got %d owners in episode %d, want 2 in 1", len(got.Owners), got.Episode)
	}
	w.Drop(b, c)
	w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
}

func TestAssignedAndAnExternalDevice(t *testing.T) {
	w := newWorld("192.168.1.10")
	eth0 := w.Uplink("n1")
	own := w.Assigned(eth0)
	externalMAC := w.Wire(eth0, "\x02\x00\x00\x00\x00\x99")
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	w.after(time.Second).Read(own)
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	w.after(time.Second)
	w.Seen(externalMAC)
	c := w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	if k := c.Owners[0].Workload().Kind; k != verdict.External {
		t.Errorf("got kind %d first, want the external device", k)
	}

	out := w.after(w.Policy.StaleAfter).judge()
	if got := out.Conflicts[0]; got.Phase != verdict.Resolved || out.Owners[0].State != verdict.Stale || out.Again == 0 {
		t.Fatalf("got phase %d, state %d, want resolved and stale, to be ended later", got.Phase, out.Owners[0].State)
	}
	if out = w.after(w.Policy.StaleAfter).judge(); len(out.Expired) != 1 || out.Expired[0] != externalMAC {
		t.Fatalf("got expired %v, want the external device's claim", out.Expired)
	}
}

// A machine answers each asker with another MAC to balance its load, and the master of a group of GLBP answers by turns.
func TestAnswersThatBalanceTheLoadAlternate(t *testing.T) {
	for _, test := range []struct {
		name   string
		kind   verdict.Evidence
		a, b   string
		one    bool // whether one node sees all of them
		rivals bool
	}{
		{"each node gets one answer", verdict.Answered, "baaaaa", "bbbbbb", false, false},
		{"a node gets both", verdict.Answered, "baaaaa", "bbbbbb", true, true},
		{"all announce it", verdict.Announced, "baaaaa", "bbbbbb", false, true},
		{"all use it", verdict.Used, "baaaaa", "bbbbbb", false, true},
		{"GLBP", verdict.Answered, "\x00\x07\xb4\x00\x01\x01", "\x00\x07\xb4\x00\x01\x02", true, false},
		{"two groups of GLBP", verdict.Answered, "\x00\x07\xb4\x00\x01\x01", "\x00\x07\xb4\x00\x02\x01", true, true},
	} {
		w := newWorld("192.168.1.20")
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		if test.one {
			lan[1] = lan[0]
		}
		a := w.Wire(lan[0], test.a)
		w.after(time.Second)
		b := w.Wire(lan[1], test.b)
		a.Kind, b.Kind = test.kind, test.kind
		for range 3 {
			w.after(time.Second)
			w.Seen(a)
			w.after(time.Second)
			w.Seen(b)
		}
		if out := w.checked(t); len(out.Conflicts) > 0 != test.rivals {
			t.Errorf("%s: got %+v", test.name, out.Conflicts)
		}
	}
}

// An agent knows where virtual machines are, behind taps or macvtap devices of its node, but not which of the machine's cards
// a frame is from.
func TestVirtualMachinesAlternate(t *testing.T) {
	const a, b = "\x52\x54\x00\x00\x00\x0a", "\x52\x54\x00\x00\x00\x0b"
	tap := func(w *world, node, name string) *verdict.Interface {
		return w.Interface(w.Host(node), verdict.Interface{Name: name, Attachment: verdict.Own, Link: w.Uplink(node).Link, Tap: true})
	}
	type kinds []verdict.Evidence
	for _, test := range []struct {
		name         string
		ports        func(w *world) (a, b *verdict.Interface)
		first, again kinds // of a, and of b
		want         verdict.Phase
	}{
		{"both announce", nil, kinds{verdict.Announced, verdict.Announced}, kinds{verdict.Announced, verdict.Announced}, verdict.Confirmed},
		{"both send requests", nil, kinds{verdict.Used, verdict.Used}, kinds{verdict.Used, verdict.Used}, verdict.Confirmed},
		{"both announced, and answer", nil, kinds{verdict.Announced, verdict.Announced}, kinds{verdict.Answered, verdict.Answered}, verdict.Suspected},
		{"both only answer", nil, kinds{verdict.Answered, verdict.Answered}, kinds{verdict.Answered, verdict.Answered}, verdict.Suspected},
		{"one machine announces with one card, and sends requests with the other", nil, kinds{verdict.Used, verdict.Announced}, kinds{verdict.Used, verdict.Announced}, verdict.Suspected},
		{"one machine answers with both cards, and sends requests with one", nil, kinds{verdict.Used, verdict.Answered}, kinds{verdict.Used, verdict.Answered}, verdict.Suspected},
		{"one of them is outside", func(w *world) (a, b *verdict.Interface) { return tap(w, "n1", "tap0"), w.Uplink("n1") }, kinds{verdict.Used, verdict.Used}, kinds{verdict.Used, verdict.Used}, verdict.Confirmed},
		{"both are behind one tap", func(w *world) (a, b *verdict.Interface) { i := tap(w, "n1", "tap0"); return i, i }, kinds{verdict.Used, verdict.Used}, kinds{verdict.Used, verdict.Used}, verdict.Suspected},
		{"both are outside", func(w *world) (a, b *verdict.Interface) { i := w.Uplink("n1"); return i, i }, kinds{verdict.Used, verdict.Used}, kinds{verdict.Used, verdict.Used}, verdict.Suspected},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld("192.168.1.20")
			if test.ports == nil {
				test.ports = func(w *world) (a, b *verdict.Interface) { return tap(w, "n1", "tap0"), tap(w, "n1", "tap1") }
			}
			portA, portB := test.ports(w)
			send := func(k verdict.Evidence, port *verdict.Interface, mac string) {
				c := slices.IndexFunc(w.Claims, func(c *verdict.Claim) bool { return c.Kind == k && c.MAC == verdict.MAC(mac) })
				if c < 0 {
					c = len(w.Claims)
					w.Wire(port, mac).Kind = k
				}
				w.Seen(w.Claims[c])
			}
			send(test.first[0], portA, a)
			w.after(time.Second)
			send(test.first[1], portB, b)
			w.after(time.Second)
			send(test.first[0], portA, a)
			w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
			w.after(w.Policy.HandoverGrace)
			send(test.again[0], portA, a)
			send(test.again[1], portB, b)
			w.want(t, test.want, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
			// What was confirmed stays confirmed while they only answer.
			w.after(time.Minute)
			send(verdict.Answered, portA, a)
			send(verdict.Answered, portB, b)
			w.Claims = slices.DeleteFunc(w.Claims, func(c *verdict.Claim) bool { return c.Kind != verdict.Answered })
			if out := w.checked(t); len(out.Conflicts) == 1 && out.Conflicts[0].Phase != test.want {
				t.Errorf("%s: later got %v, want %v", test.name, out.Conflicts[0].Phase, test.want)
			}
		})
	}
}

func TestExternalsAlternate(t *testing.T) {
	w := newWorld("192.168.1.20")
	eth0 := w.Uplink("n1")
	a := w.Wire(eth0, "baaaaa")
	w.after(time.Second)
	b := w.Wire(eth0, "bbbbbb")
	if out := w.wantNone(t); !out.Contested {
		t.Error("got no contest, want one")
	}
	w.wantRule(t, verdict.RuleMACChanged)
	w.after(time.Second)
	w.Seen(a)
	w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
	w.after(30 * time.Second)
	w.Seen(a)
	w.Seen(b)
	w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")

	// One of them is a node whose kernel does not have the address.
	for _, again := range []bool{true, false} {
		w := newWorld("192.168.1.20")
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		a, b := w.Wire(lan[1], string(lan[0].MAC)), w.Wire(lan[1], "bbbbbb")
		b.Begun, b.Seen = w.Now.Add(time.Second), w.Now.Add(time.Second)
		w.after(2 * time.Second)
		w.Seen(a)
		w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
		w.after(w.Policy.HandoverGrace)
		w.Seen(a)
		want := verdict.Suspected
		if again {
			w.Seen(b)
			want = verdict.Confirmed
		}
		w.want(t, want, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
	}

	slow := newWorld("192.168.1.20")
	eth0 = slow.Uplink("n1")
	a = slow.Wire(eth0, "baaaaa")
	slow.after(time.Second).Wire(eth0, "bbbbbb")
	slow.after(9*time.Second + 1)
	slow.Seen(a)
	slow.wantNone(t)
}

func TestDADFailed(t *testing.T) {
	w := newWorld("fd00::5")
	l := w.Link("n1", "br0", verdict.Bridge, false)
	one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", l)
	failed := w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed, Interface: one, PrefixLength: 64})
	c := w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0")
	if len(c.Owners) != 1 {
		t.Errorf("got %d owners, want one: the other is not known", len(c.Owners))
	}
	two, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("b")), "bbbbbb", l)
	w.Assigned(two)
	if c = w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0"); len(c.Owners) != 2 || c.Episode != 1 {
		t.Errorf("got %d owners, want both in the same episode", len(c.Owners))
	}
	w.Drop(failed)
	w.want(t, verdict.Resolved, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0")
}

func TestDisconnectedOwnersNeitherConfirmNorResolve(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, b := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	w.judge()
	w.Node("n1").Unheard = true
	w.after(time.Minute).Read(a, b)
	c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if c.Owners[0].State != verdict.Unheard {
		t.Errorf("got state %d, want unheard", c.Owners[0].State)
	}
	w.wantRule(t, verdict.RuleNodeDisconnected)
	w.Node("n1").TimedOut = true
	c = w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if want := (verdict.Ending{Kind: verdict.EndTimedOut, Owner: c.Owners[0].ID}); c.Ending != want {
		t.Errorf("got ending %+v, want %+v", c.Ending, want)
	}
}

func TestWeakClaimsAreExcluded(t *testing.T) {
	w := newWorld("192.168.1.10")
	eth0 := w.Uplink("n1")
	w.Assigned(eth0)
	w.Wire(eth0, "bbbbbb").Source = "dccccc"
	out := w.wantNone(t)
	if len(out.Owners) != 2 || !out.Owners[0].ExcludedBy(verdict.RuleWeakSource) {
		t.Fatalf("got owners %+v, want the weak one listed as excluded", out.Owners)
	}
	w.wantRule(t, verdict.RuleWeakSource)
}

func TestNeighbourEntriesMakeNoOwner(t *testing.T) {
	w := newWorld("192.168.1.10")
	eth0 := w.Uplink("n1")
	w.Assigned(eth0)
	w.Claim(verdict.Claim{Kind: verdict.Believed, Interface: eth0, Frame: verdict.Frame{Link: eth0.Link, MAC: "bbbbbb"}})
	w.wantNone(t)
	w.wantRule(t, verdict.RuleBelieved)
}

func TestDeclaredShared(t *testing.T) {
	w := newWorld("10.244.0.5")
	twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	w.judge()
	w.Policy.Shared = []verdict.Shared{
		{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Reason: "all"},
		{Prefix: netip.MustParsePrefix("10.244.0.0/24"), Reason: "anycast DNS"},
	}
	c := w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if c.Ending.Kind != verdict.EndExcluded || c.Ending.Excluded.Reason != "anycast DNS" {
		t.Errorf("got ending %+v, want the reason of the longest prefix", c.Ending)
	}
	w.Policy.Shared = append(w.Policy.Shared, verdict.Shared{Prefix: netip.MustParsePrefix("10.99.0.0/28"), Reason: "another one"})
	if o := w.judge().Owners[0]; o.Excluded.Reason != "anycast DNS" {
		t.Errorf("got reason %q, want that of a prefix with the address", o.Excluded.Reason)
	}
	w.wantNone(t)
	w.wantRule(t, verdict.RuleDeclaredShared)
}

func TestFrameWithANodesMACIsEvidenceForItsOwner(t *testing.T) {
	w := newWorld("10.244.0.5")
	eth0 := w.Uplink("n1")
	inside, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n1", "v1", verdict.PointToPoint, false))
	w.Assigned(inside)
	w.Wire(eth0, "vplkn1") // the node answers for its pod
	if out := w.wantNone(t); len(out.Owners) != 1 {
		t.Fatalf("got %d owners, want one", len(out.Owners))
	}
	w.wantRule(t, verdict.RuleNodeMAC)
}

func TestGuestsCountAsTheirNamespace(t *testing.T) {
	w := newWorld("10.244.0.5")
	l := w.Link("n1", "cni0", verdict.Bridge, true)
	_, port := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("vm")), "baaaaa", l)
	other, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("b")), "bbbbbb", l)
	guest := w.Wire(port, "huestg")
	out := w.wantNone(t)
	if o := out.Owners[0]; o.ID != "boot-n1/102" || o.MAC != "huestg" {
		t.Fatalf("got owner %s with MAC %s, want the pod with the guest's", o.ID, o.MAC)
	}
	w.wantRule(t, verdict.RuleGuest)
	assigned := w.Assigned(other)
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.NodeScope, "n1")
	w.after(time.Second).Read(assigned)
	w.Seen(guest)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.NodeScope, "n1")
}

func TestTwoAgentsOnOneKernelSeeOneOwner(t *testing.T) {
	w := newWorld("10.244.0.5")
	w.Node("n2").Boot = "boot-n1"
	w.Node("n2").Netns = "2"
	for _, node := range []string{"n1", "n2"} {
		inside, _ := w.Veth(w.Namespace(node, 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link(node, "v1", verdict.PointToPoint, false))
		w.Assigned(inside)
	}
	if out := w.wantNone(t); len(out.Owners) != 1 {
		t.Fatalf("got %d owners, want one", len(out.Owners))
	}
}

func TestAConflictKeepsItsIDWhenItsScopeIsWidened(t *testing.T) {
	w := newWorld("10.0.0.5")
	twoPods(w, verdict.Bridge, false, [2]string{"baaaaa", "bbbbbb"})
	first := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
	w.Link("n1", "cni0", verdict.Bridge, false).Routed = true
	second := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
	if first.ID != second.ID || second.Episode != 1 {
		t.Errorf("got %s then %s", first.ID, second.ID)
	}
}

func TestANarrowerGroupThatIsNotCoveredIsItsOwn(t *testing.T) {
	w := newWorld("10.0.0.5")
	l := w.Link("n1", "cni0", verdict.Bridge, true)
	twoPods(w, verdict.Bridge, true, [2]string{"baaaaa", "bbbbbb"})
	w.Wire(w.Interface(w.Host("n1"), verdict.Interface{Name: "eth0", MAC: "hosthh", Attachment: verdict.Own, Link: l, Uplink: true}), "ttrang")
	out := w.judge()
	if len(out.Conflicts) != 2 || out.Conflicts[0].Kind != verdict.NodeScope || out.Conflicts[1].Kind != verdict.LinkScope ||
		len(out.Conflicts[0].Owners) != 2 || len(out.Conflicts[1].Owners) != 3 {
		t.Fatalf("got %+v, want one of two on the node and one of three on the link", out.Conflicts)
	}
}

// threeOnALink adds two pods on a bridge and an external device.
func threeOnALink(w *world) (a, b, externalMAC *verdict.Claim) {
	l := w.Link("n1", "cni0", verdict.Bridge, false)
	a, b = twoPods(w, verdict.Bridge, false, [2]string{"baaaaa", "bbbbbb"})
	eth0 := w.Interface(w.Host("n1"), verdict.Interface{Name: "eth0", MAC: "hosthh", Attachment: verdict.Own, Link: l, Uplink: true})
	return a, b, w.Wire(eth0, "ttrang")
}

func wantTwoIDs(t *testing.T, w *world, kept string) {
	t.Helper()
	out := w.judge()
	if len(out.Conflicts) != 2 || out.Conflicts[0].ID == kept || len(out.Conflicts[0].Owners) != 2 ||
		out.Conflicts[1].ID != kept || len(out.Conflicts[1].Owners) != 3 || out.Conflicts[1].Kind != verdict.LinkScope {
		t.Fatalf("got conflicts %+v, want a new one with two owners, and conflict %s with three", out.Conflicts, kept)
	}
}

func TestTwoScopesNeverShareAConflict(t *testing.T) {
	w := newWorld("10.0.0.5")
	threeOnALink(w)
	first := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
	w.Link("n1", "cni0", verdict.Bridge, false).Routed = true
	wantTwoIDs(t, w, first.ID)
	wantTwoIDs(t, w, first.ID)

	// The third owner appears after the scope was widened.
	w = newWorld("10.0.0.5")
	_, _, externalMAC := threeOnALink(w)
	w.Drop(externalMAC)
	first = w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
	w.Link("n1", "cni0", verdict.Bridge, false).Routed = true
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
	w.Claims = append(w.Claims, externalMAC)
	wantTwoIDs(t, w, first.ID)
}

func TestConflictsOfAnAddressHaveDifferentIDs(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 11))
		w := randomWorld(r)
		all := slices.Clone(w.Claims)
		for range 20 {
			w.Claims = slices.DeleteFunc(slices.Clone(all), func(*verdict.Claim) bool { return r.IntN(4) == 0 })
			for _, name := range slices.Sorted(maps.Keys(w.Links)) {
				w.Links[name].Routed = r.IntN(2) == 0
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
	l := w.Link("n1", "cni0", verdict.Bridge, true)
	one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", l)
	w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed, Interface: one, PrefixLength: 64})
	alone := w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.NodeScope, "n1")
	eth0 := w.Interface(w.Host("n1"), verdict.Interface{Name: "eth0", MAC: "hosthh", Attachment: verdict.Own, Link: l, Uplink: true})
	w.Wire(eth0, "ttrang")
	out := w.judge()
	if len(out.Conflicts) != 2 || out.Conflicts[0].Phase != verdict.Confirmed || len(out.Conflicts[0].Owners) != 2 ||
		out.Conflicts[1].ID != alone.ID || out.Conflicts[1].Phase != verdict.Resolved || out.Conflicts[1].Ending.Kind != verdict.EndRivalKnown {
		t.Fatalf("got %+v, want one with both owners, and the other one resolved", out.Conflicts)
	}
	w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/cni0")
}

func TestAConfirmedConflictEndsWithItsEvidence(t *testing.T) {
	confirmed := func() (w *world, own, a, b *verdict.Claim) {
		w = newWorld("192.168.1.10")
		eth0 := w.Uplink("n1")
		own, a, b = w.Assigned(eth0), w.Wire(eth0, "baaaaa"), w.Wire(eth0, "bbbbbb")
		w.judge()
		w.after(time.Second).Read(own)
		w.Seen(a)
		w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
		return w, own, a, b
	}
	w, own, _, _ := confirmed()
	w.after(time.Minute).Drop(own)
	w.want(t, verdict.Resolved, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	w.wantNone(t)

	w, own, a, b := confirmed()
	w.after(time.Second).Seen(a)
	w.after(time.Second).Seen(b)
	w.after(time.Second).Seen(a)
	w.Drop(own)
	c := w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
	if c.ConfirmedAt != 0 || c.Episode != 1 {
		t.Errorf("got confirmed at %d in episode %d, want not confirmed, in the same one", c.ConfirmedAt, c.Episode)
	}
}

// A container's process may be the oldest one in a namespace that was named by hand.
func TestContainerOfAProcessDoesNotMakeANamedNamespaceAPod(t *testing.T) {
	w := newWorld("10.244.0.5")
	for i, name := range []string{"blue", "red"} {
		who := verdict.Workload{Kind: verdict.Container, Name: name, UID: "u-1", ContainerID: "0123456789abcdef", Process: "sleep (12)", Source: "netns"}
		inside, _ := w.Veth(w.Namespace("n1", uint32(2+i), name, who), name, w.Link("n1", name, verdict.PointToPoint, false))
		w.Assigned(inside)
	}
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
}

// Claims arrive in any order, which must never change the outcome.
func TestTheOrderOfClaimsNeverMatters(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := randomWorld(r)
		want := describeJudgement(w.Policy.Judge(w.Case()))
		for range 5 {
			r.Shuffle(len(w.Claims), func(i, k int) { w.Claims[i], w.Claims[k] = w.Claims[k], w.Claims[i] })
			r.Shuffle(len(w.Interfaces), func(i, k int) { w.Interfaces[i], w.Interfaces[k] = w.Interfaces[k], w.Interfaces[i] })
			if got := describeJudgement(w.Policy.Judge(w.Case())); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: got\n%v\nwant\n%v", seed, got, want)
			}
		}
		w.Policy.Explain(w.Case())
	}
}

func randomWorld(r *rand.Rand) *world {
	w := newWorld([]string{"10.0.0.5", "169.254.1.1", "fd00::5"}[r.IntN(3)])
	macs := []string{"mac-aa", "mac-bb", "mac-cc", "mac-dd"}
	kinds := []verdict.LinkKind{verdict.Bridge, verdict.PointToPoint, verdict.Uplink, verdict.OVSPort}
	w.Node("n2").Boot = "boot-n1"
	w.Node("n2").Netns = "2"
	for _, node := range []string{"n1", "n2"} {
		links := []*verdict.Link{
			w.Link(node, "l1", kinds[r.IntN(4)], r.IntN(2) == 0), w.Link(node, "l2", kinds[r.IntN(4)], true),
		}
		for i := range 3 {
			inside, port := w.Veth(w.Namespace(node, uint32(i+2), fmt.Sprint(100+i), verdicttest.Pod(fmt.Sprint(r.IntN(3)))), macs[r.IntN(4)], links[r.IntN(2)])
			inside.Attachment = verdict.Attachment(1 + r.IntN(5))
			port.Uplink = r.IntN(4) == 0
			w.after(time.Duration(r.IntN(int(2 * time.Second))))
			if r.IntN(2) == 0 {
				w.Claim(verdict.Claim{Kind: []verdict.Evidence{verdict.Assigned, verdict.Assigned, verdict.DADFailed}[r.IntN(3)], Interface: inside})
			}
			for range r.IntN(4) {
				c := w.Wire(port, macs[r.IntN(4)])
				c.Kind = []verdict.Evidence{verdict.Announced, verdict.Answered, verdict.Used, verdict.Believed}[r.IntN(4)]
				c.Before = c.Seen.Add(-time.Duration(r.IntN(int(12 * time.Second))))
				c.VLAN = uint16(len(w.Claims)) // makes each key unique
				if r.IntN(5) == 0 {
					c.Source = "source"
				}
				c.NoOverride = r.IntN(5) == 0
			}
		}
	}
	w.Answers = map[verdict.MAC][2]int{"mac-aa": {verdict.ManyAnswers, 0}, "mac-bb": {2, 2}}
	w.Node("n2").Unheard = r.IntN(3) == 0
	w.Node("n2").TimedOut = r.IntN(6) == 0
	w.after(time.Duration(r.IntN(int(6 * time.Minute))))
	return w
}

// describeJudgement returns the contents of a judgement in a canonical order.
func describeJudgement(out verdict.Judgement) []string {
	text := []string{fmt.Sprint(out.Again, out.Contested, len(out.Check), len(out.Expired))}
	owner := func(o verdict.Owner) string {
		var excluded verdict.Exclusion
		if o.Excluded != nil {
			excluded = *o.Excluded
		}
		s := fmt.Sprint(o.ID, o.Node.Name, o.MAC, o.Scope.Text(), o.State, o.Assigned, excluded, o.Interface.Name, o.Interface.Index)
		for _, c := range o.Claims {
			s += fmt.Sprint(" ", c.Kind, c.Interface.Name, c.MAC, c.VLAN)
		}
		return s
	}
	for _, o := range out.Owners {
		text = append(text, owner(o))
	}
	for _, c := range out.Conflicts {
		text = append(text, fmt.Sprint(c.ID, c.Phase, c.Rule, c.Cause, c.Facts, c.RuledOut, c.Keeper, c.Right))
		for _, o := range c.Owners {
			text = append(text, owner(o))
		}
	}
	return text
}

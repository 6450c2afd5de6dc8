package verdict_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

func TestT8TwoNodesKeepAVirtualAddress(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := verdicttest.OnLAN(w.World, "n1", "n2")
	a, b := w.Assigned(lan[0]), w.Assigned(lan[1])
	program(w.World, "n2", "keepalived", false)
	c := w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	if !c.Expected() || c.Cause != verdict.CauseSplitBrain {
		t.Errorf("got %+v, want a possible hand-over", c.Course)
	}
	w.after(9*time.Second).Read(a, b)
	w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	w.after(time.Second)
	if out := w.judge(); len(out.Check) != 2 {
		t.Fatalf("got check %v, want both nodes asked", out.Check)
	}
	w.Read(a, b)
	c = w.want(t, verdict.Confirmed, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	if got := verdicttest.Words(&c, c.Facts...); c.Cause != verdict.CauseSplitBrain || !slices.Equal(got, []string{"program-runs owners=n2 text=keepalived", "one-link", "beyond-handover-grace"}) || w.Policy.Waited(&c) != 10*time.Second {
		t.Errorf("got cause %s, %q, waited %s, want a split brain after 10 s", c.Cause, got, w.Policy.Waited(&c))
	}
}

func TestProgramInOneNamespaceMakesAnAddressVirtual(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world)
		rule  string
		cause string
	}{
		{"it was never seen in the other", func(w *world) { w.Within("n1", "br0", "", blue("old")) }, verdict.RuleSplitBrain, verdict.CauseSplitBrain},
		{"it has ended in the other", func(w *world) { w.Within("n1", "br0", "", moving("old", true)) }, verdict.RuleSplitBrain, verdict.CauseSplitBrain},
		{"the other is on a link of its own", func(w *world) { w.Within("n1", "br1", "", moving("old", true)) }, verdict.RuleSplitBrain, verdict.CauseUnknown},
		{"a network gave the other the address", func(w *world) { w.Within("n1", "br0", "kindnet", verdicttest.Who("old")) }, verdict.RuleAssignedTwice, verdict.CauseUnknown},
		{"IPAM has it", func(w *world) {
			w.Within("n1", "br0", "", verdicttest.Who("old"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "old")
		}, verdict.RuleAssignedTwice, verdict.CauseStaticAddress},
	} {
		w := newWorld("10.244.1.5")
		test.build(w)
		w.after(time.Minute).Within("n1", "br0", "", moving("new", false))
		out := w.judge()
		if len(out.Conflicts) != 1 || out.Conflicts[0].Rule != test.rule || out.Conflicts[0].Cause != test.cause {
			t.Errorf("%s: got %+v, want rule %s and cause %s", test.name, out.Conflicts, test.rule, test.cause)
		}
	}
}

// A node that reboots leaves the address for a moment. It has not handed it over to a node that had it before.
func TestAnAddressMovesToANodeThatGetsItThen(t *testing.T) {
	for _, test := range []struct {
		name  string
		until time.Duration // after the other node got it
		cause string
	}{
		{"the other node got it while the first one rebooted", -time.Minute, verdict.CauseSplitBrain},
		{"the other node got it within the grace", 10 * time.Second, verdict.CauseSplitBrain},
		{"the other node had it long before", time.Hour, verdict.CauseUnknown},
	} {
		w := newWorld("192.168.1.200")
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		w.Assigned(lan[1])
		got := w.Now
		w.after(2 * time.Hour).Assigned(lan[0])
		c := w.Case()
		before := *lan[0].Namespace
		before.Node = &verdict.Node{Name: "n1", Boot: "before"}
		c.Former = []verdict.Former{{Owner: verdict.Owner{ID: "before", Node: before.Node, Namespace: &before}, Until: got.Add(test.until)}}
		out := w.Policy.Judge(c)
		if len(out.Conflicts) != 1 || out.Conflicts[0].Cause != test.cause {
			t.Errorf("%s: got %+v, want cause %s", test.name, out.Conflicts, test.cause)
		}
	}
}

func TestAddressOfAPeerWithoutAnAgent(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world, eth0 *verdict.Interface)
		rule  string
		cause string
	}{
		{"a program moves it", func(w *world, eth0 *verdict.Interface) { w.Virtual(eth0) }, verdict.RuleSplitBrain, verdict.CauseSplitBrain},
		{"a program moves it within the subnet of the node", func(w *world, eth0 *verdict.Interface) {
			w.Assigned(eth0).Flags |= verdict.FlagSecondary
		}, verdict.RuleSplitBrain, verdict.CauseSplitBrain},
		{"a program moves it, with a preferred lifetime of 0", func(w *world, eth0 *verdict.Interface) {
			w.Assigned(eth0).Flags |= 0x20
		}, verdict.RuleSplitBrain, verdict.CauseSplitBrain},
		{"a program moves another one", func(w *world, eth0 *verdict.Interface) { w.Assigned(eth0) }, verdict.RuleAssignedAndWire, verdict.CauseExternalDevice},
		{"no program", func(w *world, eth0 *verdict.Interface) {
			w.Virtual(eth0)
			program(w.World, "n1", "", false)
		}, verdict.RuleAssignedAndWire, verdict.CauseExternalDevice},
		{"it was given to a pod", func(w *world, eth0 *verdict.Interface) {
			w.Assigned(w.Child("a", "baaaaa", eth0.Link)).Network = "lan"
		}, verdict.RuleAssignedAndWire, verdict.CauseExternalDevice},
	} {
		w := newWorld("192.168.1.200")
		eth0 := w.Uplink("n1")
		program(w.World, "n1", "keepalived", false)
		test.build(w, eth0)
		peer := w.Wire(eth0, externalMAC)
		w.want(t, verdict.Suspected, test.rule, verdict.LinkScope, "n1/eth0")
		w.after(2 * time.Second).Read(w.Claims[0])
		w.Seen(peer)
		phase := verdict.Confirmed
		if test.rule == verdict.RuleSplitBrain {
			phase = verdict.Suspected
		}
		w.want(t, phase, test.rule, verdict.LinkScope, "n1/eth0")
		w.after(10 * time.Second).Read(w.Claims[0])
		w.Seen(peer)
		if c := w.want(t, verdict.Confirmed, test.rule, verdict.LinkScope, "n1/eth0"); c.Cause != test.cause || c.Keeper != "" && test.cause == verdict.CauseSplitBrain {
			t.Errorf("%s: got cause %s and keeper %q, want %s", test.name, c.Cause, c.Keeper, test.cause)
		}
	}
}

// A kernel tests an IPv6 address before it uses it, and finds that the former owner of a virtual one still has it.
func TestHandOverThatDuplicateDetectionCatches(t *testing.T) {
	const vip, own = 128, 64
	for _, test := range []struct {
		name   string
		build  func(w *world, old, next *verdict.Claim)
		prefix uint8
		moves  bool
		cause  string
		keep   string
		right  verdict.Right
	}{
		{"a controller assigns it", func(w *world, _, _ *verdict.Claim) { assign(w.World, "n2", ipam.Known) }, own, true, verdict.CauseSplitBrain, "n2", verdict.RightAssignment},
		{"a program runs on both nodes", func(w *world, _, _ *verdict.Claim) {
			program(w.World, "n1", "keepalived", false)
			program(w.World, "n2", "keepalived", false)
		}, vip, true, verdict.CauseSplitBrain, "", verdict.RightUndecided},
		{"its program has ended on one node", func(w *world, _, _ *verdict.Claim) {
			program(w.World, "n1", "keepalived", true)
			program(w.World, "n2", "keepalived", false)
		}, vip, true, verdict.CauseSplitBrain, "n2", verdict.RightProgram},
		{"nothing is known but its prefix", func(*world, *verdict.Claim, *verdict.Claim) {}, vip, true, verdict.CauseUnknown, "n1", verdict.RightOlderAssignment},
		{"two nodes with one own address", func(*world, *verdict.Claim, *verdict.Claim) {}, own, false, verdict.CauseUnknown, "n1", verdict.RightOlderAssignment},
		{"an address from DHCPv6", func(_ *world, old, next *verdict.Claim) { old.Flags, next.Flags = 0, verdict.FlagDADFailed }, vip, false, verdict.CauseUnknown, "n1", verdict.RightOlderAssignment},
		{"the first node has it as its own", func(w *world, old, _ *verdict.Claim) {
			old.PrefixLength = own
			assign(w.World, "n2", ipam.Known)
		}, vip, false, verdict.CauseUnknown, "", verdict.RightUndecided},
	} {
		w := newWorld("fd00::50")
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		for _, n := range []string{"n1", "n2"} {
			w.Node(n).SkewKnown = true
		}
		old := w.Virtual(lan[0])
		w.after(30 * time.Second)
		next := w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed | verdict.FlagPermanent, Interface: lan[1], PrefixLength: test.prefix})
		test.build(w, old, next)
		phase := verdict.Confirmed
		if test.moves {
			phase = verdict.Suspected
		}
		if c := w.want(t, phase, verdict.RuleDADFailed, verdict.LinkScope, "n1/eth0"); c.Expected() != test.moves {
			t.Errorf("%s: got expected %v, want %v", test.name, c.Expected(), test.moves)
		}
		w.after(10 * time.Second).Read(old)
		c := w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/eth0")
		if keeper := verdicttest.Name(&c, c.Keeper); c.Moves != test.moves || c.Cause != test.cause || keeper != test.keep || c.Right != test.right {
			t.Errorf("%s: got moves %v, cause %s, keeper %q by %d, want %v, %s, %q by %d", test.name, c.Moves, c.Cause, keeper, c.Right, test.moves, test.cause, test.keep, test.right)
		}
		w.Drop(old)
		w.want(t, verdict.Resolved, verdict.RuleDADFailed, verdict.LinkScope, "n1/eth0")
	}
}

// The old sandbox of a pod still has the address that the kernel tests for the new one.
func TestSandboxIsRecreatedWhileDuplicateDetectionRuns(t *testing.T) {
	w := newWorld("fd00::5")
	old := w.Within("n1", "br0", "", verdicttest.Who("a"))
	second := verdicttest.Who("a")
	second.ContainerID = "container-second"
	next := w.after(time.Minute).Within("n1", "br0", "", second)
	next.Kind, next.Flags = verdict.DADFailed, verdict.FlagDADFailed|verdict.FlagPermanent
	for range 2 {
		w.want(t, verdict.Suspected, verdict.RuleDADFailed, verdict.NodeScope, "n1")
		w.after(5 * time.Second)
	}
	w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.NodeScope, "n1")
	w.Drop(old)
	w.want(t, verdict.Resolved, verdict.RuleDADFailed, verdict.NodeScope, "n1")
}

// No agent has seen the program that moves the address. The nodes have the grace all the same.
func TestL6VirtualAddressMovesInTime(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := verdicttest.OnLAN(w.World, "n1", "n2")
	a := w.Assigned(lan[0])
	w.judge()
	b := w.Assigned(lan[1])
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0"); !c.Moves || !c.Expected() {
		t.Errorf("got moves %v, expected %v, want a possible hand-over", c.Moves, c.Expected())
	}
	w.after(5 * time.Second).Drop(a)
	w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	w.after(time.Minute).Read(b)
	w.wantNone(t)
}

func TestL6BackupHasTheMACOfTheVirtualRouterToo(t *testing.T) {
	const mac = "\x00\x00\x5e\x00\x01\x33"
	w := newWorld("192.168.1.200")
	lan := verdicttest.OnLAN(w.World, "n1", "n2")
	var vrrp []*verdict.Interface
	for i, n := range []string{"n1", "n2"} {
		vrrp = append(vrrp, w.Interface(w.Host(n), verdict.Interface{
			Name: "vrrp.51", MAC: mac, Attachment: verdict.Own, Link: lan[i].Link,
		}))
	}
	master := w.Assigned(vrrp[0])
	seen := w.Wire(lan[1], mac) // as seen by the backup
	out := w.wantNone(t)
	if len(out.Owners) != 1 || len(out.Owners[0].Claims) != 2 || out.Owners[0].Node != w.Node("n1") {
		t.Errorf("got owners %+v, want the master with a witness", out.Owners)
	}

	// The backup takes over. Until its kernel reports the address, the sender is not known.
	w.Drop(master)
	w.wantNone(t)
	w.after(time.Second)
	w.Assigned(vrrp[1])
	w.Seen(seen)
	if out := w.wantNone(t); len(out.Owners) != 1 || out.Owners[0].Node != w.Node("n2") {
		t.Errorf("got owners %+v, want the new master", out.Owners)
	}
}

func TestVirtualRouterOutsideHasTheGraceOfAHandOver(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := verdicttest.OnLAN(w.World, "n1", "n2")
	pod := w.Assigned(w.Child("a", "baaaaa", lan[0].Link))
	router := w.Wire(lan[1], "\x00\x00\x5e\x00\x01\x33")
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	w.after(2 * time.Second).Read(pod)
	w.Seen(router)
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	w.after(8 * time.Second).Read(pod)
	w.Seen(router)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
}

// The old speaker stops, or answers only by unicast, which no agent sees: the conflict stays open until the speaker's
// claim is outdated.
func TestL7AnnouncersHandOver(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
	assign(w.World, "n2", ipam.Known)
	old := w.Wire(lan[2], string(lan[0].MAC))
	w.wantNone(t)
	w.after(time.Second)
	next := w.Wire(lan[2], string(lan[1].MAC))
	w.wantNone(t) // a single change proves nothing
	w.after(time.Second)
	w.Seen(old)
	w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	for range 20 { // the old master is silent
		w.after(time.Second)
		w.Seen(next)
		if c := w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0"); has(&c, verdict.FactSilent, "n1") {
			t.Fatalf("got facts %v after %s, want the silence of n1 after three graces", c.Facts, w.Now.Sub(old.Seen))
		}
	}
	out := w.judge()
	if want := old.Seen.Add(30 * time.Second); out.Again != want {
		t.Errorf("got again %v, want %v, when the old one has been silent for three graces", out.Again.Time(), want.Time())
	}
	w.after(10 * time.Second)
	w.Seen(next)
	if c := w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0"); !has(&c, verdict.FactSilent, "n1") {
		t.Errorf("got facts %v, want the silence of n1", c.Facts)
	}
	w.Now = old.Seen.Add(w.Policy.StaleAfter)
	w.Seen(next)
	c := w.want(t, verdict.Resolved, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	if c.Ending.Kind != verdict.EndOneOwner || c.Owner(c.Ending.Owner).Node != w.Node("n2") || c.Owners[0].State != verdict.Stale {
		t.Errorf("got ending %+v and owners %+v, want n2 left, and n1 only silent", c.Ending, c.Owners)
	}
	w.wantNone(t)
}

// The address moves to another speaker, which announces it late, and back: each of them was silent meanwhile.
func TestL7AnnouncersHandOverAndBack(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
	old := w.Wire(lan[2], string(lan[0].MAC))
	w.after(time.Second)
	next := w.Wire(lan[2], string(lan[1].MAC))
	w.after(time.Second)
	w.Seen(old)
	w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
	w.after(13 * time.Second)
	w.Seen(next)
	w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
	w.after(105 * time.Second)
	w.Seen(old)
	w.want(t, verdict.Suspected, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
	w.after(time.Second)
	w.Seen(next) // both at once
	w.want(t, verdict.Confirmed, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
}

func TestT8AnnouncersKeepAVirtualAddress(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
	one, two := w.Wire(lan[2], string(lan[0].MAC)), w.Wire(lan[2], string(lan[1].MAC))
	for range 12 {
		w.after(500 * time.Millisecond).Seen(one)
		w.after(500 * time.Millisecond).Seen(two)
		w.judge()
	}
	c := w.want(t, verdict.Confirmed, verdict.RuleExternalsAlternate, verdict.LinkScope, "n1/eth0")
	if c.Owners[0].Assigned || c.Owners[1].Assigned {
		t.Errorf("got %+v, want owners whose kernels do not have it", c.Owners)
	}
}

func TestLinkLocalAddressesMeetOnOtherNodesByTheWireOnly(t *testing.T) {
	for _, addr := range []string{"169.254.169.2", "fe80::1"} {
		w := newWorld(addr)
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		a, b := w.Assigned(lan[0]), w.Assigned(lan[1])
		w.wantNone(t)
		seen := w.Wire(lan[0], string(lan[1].MAC))
		w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
		w.Drop(a, b, seen)
	}
}

// Two routers have made one link-local address from the MAC of a virtual router. Frames with that MAC may be of either.
func TestLinkLocalAddressesOfOneVirtualMACAreUnseen(t *testing.T) {
	const virtual = "\x00\x00\x5e\x00\x02\x05"
	w := newWorld("fe80::200:5eff:fe00:205")
	for _, port := range verdicttest.OnLAN(w.World, "n1", "n2") {
		w.Assigned(w.Interface(port.Namespace, verdict.Interface{Name: "vrrp6-5", Kind: "macvlan", MAC: virtual, Attachment: verdict.Own, Link: port.Link}))
		w.Wire(port, virtual)
	}
	w.wantNone(t)
}

func TestAConflictIsNamedByTheFirstLinkOfItsOwners(t *testing.T) {
	w := newWorld("192.168.1.100")
	lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
	w.Assigned(w.Child("a", "baaaaa", lan[0].Link)).Interface.Namespace = w.Namespace("n3", 7, "107", verdicttest.Pod("a"))
	w.Claims[0].Interface.Link = lan[2].Link
	three := w.Namespace("n2", 8, "108", verdicttest.Pod("b"))
	w.Assigned(w.Interface(three, verdict.Interface{MAC: "bbbbbb", Attachment: verdict.Lower, Link: lan[1].Link, HostInterface: "eth0"}))
	w.Wire(lan[0], "baaaaa") // as seen by an agent on n1
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n2/eth0")
}

func TestFrameWithANodesMACIsEvidenceForItsPods(t *testing.T) {
	w := newWorld("10.244.2.5")
	lan := verdicttest.OnLAN(w.World, "n1", "n2")
	inside, _ := w.Veth(w.Namespace("n2", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n2", "v1", verdict.PointToPoint, false))
	own := w.Assigned(inside)
	// n2 answers for its pod (proxy ARP), and n1 sees the answer.
	answer := w.Wire(lan[0], string(lan[1].MAC))
	answer.Kind = verdict.Answered
	out := w.wantNone(t)
	if len(out.Owners) != 1 || len(out.Owners[0].Claims) != 2 {
		t.Errorf("got owners %+v, want the pod with a witness", out.Owners)
	}
	w.wantRule(t, verdict.RuleNodeMAC)

	// Another node that answers for the address is excluded as a proxy.
	w.Drop(own)
	if out := w.wantNone(t); len(out.Owners) != 1 || !out.Owners[0].ExcludedBy(verdict.RuleReachableVia) {
		t.Errorf("got owners %+v, want a proxy", out.Owners)
	}
}

func TestOlderAssignmentComparesClocksByTheirSkew(t *testing.T) {
	for skew, older := range map[time.Duration]string{0: "a", 10 * time.Second: "b", 2 * time.Second: ""} {
		w := newWorld("10.244.0.5")
		w.Policy.Networks = []verdict.Network{{Name: "pods", Prefixes: verdicttest.Prefixes("10.244.0.0/16")}}
		for i, n := range []string{"n1", "n2"} {
			name := string(rune('a' + i))
			inside, _ := w.Veth(w.Namespace(n, 2, "102", verdicttest.Pod(name)), "aaaaa"+name, w.Link(n, "v1", verdict.PointToPoint, false))
			at := w.Now.Add(time.Duration(i) * 2 * time.Second)
			c := w.Assigned(inside)
			c.First, c.AssignedAt = at, at
		}
		w.Node("n1").SkewKnown, w.Node("n2").SkewKnown = true, true
		w.Node("n2").Skew = skew
		c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
		if got := keeper(&c); got != older {
			t.Errorf("skew %s: got %q to keep the address, want %q", skew, got, older)
		}
	}
}

// keeper returns the name of the owner that should keep the address; empty if that is undecided.
func keeper(c *verdict.Conflict) string {
	if c.Keeper == "" {
		return ""
	}
	return verdicttest.Name(c, c.Keeper)
}

// That a controller assigns the address to another node, and that a node is silent, does not prove that it has handed the
// address over: answers go only to those who ask.
func TestSilenceOfANodeIsNoHandOver(t *testing.T) {
	for _, test := range []struct {
		name           string
		build          func(w *world, lan []*verdict.Interface)
		active, silent bool
	}{
		{"a controller assigns it to the other one", func(*world, []*verdict.Interface) {}, true, true},
		{"no controller assigns it", func(w *world, _ []*verdict.Interface) { w.Allocations = nil }, true, true},
		{"it is silent, but not for long enough", func(w *world, _ []*verdict.Interface) { w.Now-- }, true, false},
		{"it spoke for another one meanwhile", func(w *world, lan []*verdict.Interface) {
			w.Wire(lan[1], string(lan[1].MAC)).NoOverride = true
		}, true, true},
		{"it spoke meanwhile", func(w *world, lan []*verdict.Interface) { w.Wire(lan[1], string(lan[1].MAC)).VLAN = 1 }, true, false},
		{"its kernel has it", func(w *world, lan []*verdict.Interface) { w.Assigned(lan[1]) }, true, false},
		{"its kernel gave it up", func(w *world, _ []*verdict.Interface) { w.Drop(w.Claims[0]) }, false, false},
		{"its claim is outdated", func(w *world, _ []*verdict.Interface) { w.after(w.Policy.StaleAfter) }, false, true},
	} {
		w := newWorld("10.0.0.5")
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		w.Wire(lan[1], string(lan[1].MAC))
		w.Assigned(lan[0])
		assign(w.World, "n1", ipam.Known)
		w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
		w.after(3 * w.Policy.HandoverGrace)
		test.build(w, lan)
		c := w.judge().Conflicts[0]
		silent := has(&c, verdict.FactSilent, "n2")
		if !c.Active() {
			silent = c.Owners[1].State == verdict.Stale
		}
		if c.Active() != test.active || silent != test.silent {
			t.Errorf("%s: got active %t and silent %t, want %t and %t", test.name, c.Active(), silent, test.active, test.silent)
		}
	}
}

func TestTwoControllersAssignOneAddress(t *testing.T) {
	for name, test := range map[string]struct {
		of    [2]string
		nodes [2]string
		want  bool
	}{
		"each to another node":        {[2]string{vip.MetalLB.Name, vip.KubeVIP.Name}, [2]string{"n1", "n2"}, true},
		"both to one node":            {[2]string{vip.MetalLB.Name, vip.KubeVIP.Name}, [2]string{"n1", "n1"}, false},
		"two speakers of one program": {[2]string{vip.MetalLB.Name, vip.MetalLB.Name}, [2]string{"n1", "n2"}, false},
	} {
		w := newWorld("192.168.1.200")
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		w.Virtual(lan[0])
		w.after(time.Hour)
		w.Virtual(lan[1])
		for k, of := range test.of {
			w.Allocations = append(w.Allocations, &verdict.Allocation{
				Pool:       &verdict.Pool{Pool: ipam.Pool{IPAM: of, Traits: registry.Traits(of), Name: "addresses", State: ipam.Known}},
				Allocation: ipam.Allocation{Address: w.Addr, Node: test.nodes[k], Purpose: "Service shop/web", Location: of + test.nodes[k]},
			})
		}
		c := w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
		if got := len(c.Controllers()) == 2; got != test.want || test.want && (c.Keeper != "" || c.Cause != verdict.CauseSplitBrain) {
			t.Errorf("%s: got controllers %v, keeper %q, cause %s", name, c.Controllers(), keeper(&c), c.Cause)
		}
	}
}

func TestAVirtualRouterHasTheGraceOfAHandOver(t *testing.T) {
	for mac, want := range map[string]verdict.Phase{vrrpMAC: verdict.Suspected, "bother": verdict.Confirmed} {
		w := newWorld("10.0.0.5")
		port := w.Uplink("n1")
		w.Assigned(w.Child("a", "baaaaa", port.Link))
		// The node has the address on a device with one hardware address and announces it with
		// another one.
		w.Assigned(port)
		w.Interface(w.Host("n1"), verdict.Interface{Name: "vrrp", MAC: verdict.MAC(mac), Attachment: verdict.Own, Link: port.Link})
		w.Assigned(w.Interfaces[len(w.Interfaces)-1])
		w.Wire(port, mac)
		w.judge()
		w.after(w.Policy.Settle).Read(w.Claims...)
		if c := w.judge().Conflicts[0]; c.Phase != want {
			t.Errorf("%x: got phase %d, want %d", mac, c.Phase, want)
		}
	}
}

// n1 has the address as a virtual one. n3 has it as its own and is no peer.
func TestAVirtualAddressIsTheOwnOneOfAnotherHost(t *testing.T) {
	lease := func(w *world, i *verdict.Interface) {
		p := w.Pool(dhcp.DnsmasqName, "n3", "", "192.0.2.10-192.0.2.90")
		p.Routed, p.Device = false, "eth0"
		w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: i.MAC.String()}})
	}
	for _, test := range []struct {
		name  string
		build func(w *world, one, three *verdict.Interface)
		own   bool
	}{
		{"its main one, and a controller assigns it", func(w *world, one, three *verdict.Interface) {
			assign(w.World, "n1", ipam.Known)
			w.Virtual(one)
			w.Assigned(three)
		}, true},
		{"its main one, and a speaker announces it", func(w *world, one, three *verdict.Interface) {
			assign(w.World, "n1", ipam.Known)
			w.Wire(three, string(one.MAC))
			w.Assigned(three)
		}, true},
		{"its main one, and a program sets it", func(w *world, one, three *verdict.Interface) {
			program(w.World, "n1", "keepalived", false)
			w.Virtual(one)
			w.Assigned(three)
		}, true},
		{"a lease", func(w *world, one, three *verdict.Interface) {
			program(w.World, "n1", "keepalived", false)
			program(w.World, "n3", "keepalived", false)
			w.Virtual(one)
			w.Assigned(three).Flags = 0
			lease(w, three)
		}, true},
		{"a virtual one, too", func(w *world, one, three *verdict.Interface) {
			program(w.World, "n1", "keepalived", false)
			w.Virtual(one)
			w.Assigned(three).Flags |= verdict.FlagSecondary
		}, false},
		{"its main one, and nothing but a prefix is known", func(w *world, one, three *verdict.Interface) {
			w.Virtual(one)
			w.Assigned(three)
		}, true},
		{"its main one, and a program sets it within the subnet", func(w *world, one, three *verdict.Interface) {
			program(w.World, "n1", "keepalived", false)
			w.Assigned(one).Flags |= verdict.FlagSecondary
			w.Assigned(three)
		}, true},
		{"a lease, and a further address of the subnet", func(w *world, one, three *verdict.Interface) {
			w.Assigned(one).Flags |= verdict.FlagSecondary
			w.Assigned(three).Flags = 0
			lease(w, three)
		}, true},
		{"the first one of the subnet on one node, and a further one on the other", func(w *world, one, three *verdict.Interface) {
			w.Assigned(one).Flags |= verdict.FlagSecondary
			w.Assigned(three)
		}, false},
		{"a program on both, and the prefix of a subnet on one only", func(w *world, one, three *verdict.Interface) {
			program(w.World, "n1", "keepalived", false)
			program(w.World, "n3", "keepalived", false)
			w.Virtual(one)
			w.Assigned(three)
		}, true},
		{"a program on both, and the prefix of a subnet on both", func(w *world, one, three *verdict.Interface) {
			program(w.World, "n1", "keepalived", false)
			program(w.World, "n3", "keepalived", false)
			w.Assigned(one).Flags |= verdict.FlagSecondary
			w.Assigned(three)
		}, false},
		{"both as the main one", func(w *world, one, three *verdict.Interface) {
			program(w.World, "n1", "keepalived", false)
			w.Assigned(one)
			w.Assigned(three)
		}, false},
		{"reserved for a peer", func(w *world, one, three *verdict.Interface) {
			program(w.World, "n1", "keepalived", false)
			program(w.World, "n3", "keepalived", false)
			w.Virtual(one)
			w.Virtual(three)
			lease(w, three)
		}, false},
		{"the address of the node by the Kubernetes API", func(w *world, one, three *verdict.Interface) {
			w.Internal = "n3"
			assign(w.World, "n1", ipam.Known)
			w.Virtual(one)
			w.Assigned(three)
		}, false},
	} {
		w := newWorld("192.0.2.50")
		lan := verdicttest.OnLAN(w.World, "n1", "n3")
		test.build(w, lan[0], lan[1])
		out := w.checked(t)
		if len(out.Conflicts) != 1 {
			t.Errorf("%s: got %+v, want one conflict", test.name, out.Conflicts)
			continue
		}
		c := out.Conflicts[0]
		if c.Moves == test.own || c.HeldAsOwn() != test.own || test.own && (c.Keeper != "" || c.Cause == verdict.CauseSplitBrain) {
			t.Errorf("%s: got rule %s, cause %s, keeper %q, own %t", test.name, c.Rule, c.Cause, keeper(&c), c.HeldAsOwn())
		}
	}
}

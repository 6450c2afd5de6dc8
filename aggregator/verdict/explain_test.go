package verdict_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// stepText returns a step with the operands that are set.
func stepText(e *verdict.Explanation, s verdict.Step) string {
	var owners []string
	for _, c := range s.Owners {
		i := slices.IndexFunc(e.Owners, func(o verdict.Owner) bool { return o.ID == c.Owner })
		name := verdicttest.Name(&verdict.Conflict{Owners: e.Owners}, e.Owners[i].ID)
		for _, scope := range c.Scopes {
			name += "@" + scopeText(scope.Kind, scope.Text())
		}
		owners = append(owners, name)
	}
	text := s.Rule
	add := func(set bool, format string, args ...any) {
		if set {
			text += " " + fmt.Sprintf(format, args...)
		}
	}
	add(!s.Applied, "no")
	add(s.Scope.Kind != 0, "%s", scopeText(s.Scope.Kind, s.Scope.Text()))
	add(len(owners) > 0, "owners=%s", strings.Join(owners, ","))
	for _, p := range s.Seen {
		add(true, "seen=%s/%s", p.Node, p.Interface)
	}
	add(s.MAC != "", "mac=%q", string(s.MAC))
	add(s.Source != "", "source=%q", string(s.Source))
	add(s.Node != "", "node=%s", s.Node)
	add(s.Network != "", "network=%s", s.Network)
	add(s.Prefix.IsValid(), "prefix=%s", s.Prefix)
	add(s.Joints != nil, "joints=%d", len(s.Joints))
	add(s.Conflict != "", "conflict=%t", s.Conflict == firstConflict(e))
	add(s.Excludes, "excludes")
	return text
}

func firstConflict(e *verdict.Explanation) string {
	if len(e.Conflicts) == 0 {
		return "none"
	}
	return e.Conflicts[0].ID
}

func TestStepsOfExplanations(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world)
		scope string
		want  []string
	}{
		{"no owner", func(*world) {}, "", nil},
		{"one pod", func(w *world) {
			inside, _ := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(inside)
		}, "NODE n1", []string{"on-node NODE n1", "on-link LINK n1/v2", "in-network no", "one-owner NODE n1 owners=a"}},
		{"a pod on two interfaces, and its frame", func(w *world) {
			inside, port := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(inside)
			w.Wire(port, "baaaaa")
			w.Assigned(w.Interface(inside.Namespace, verdict.Interface{Name: "net1", MAC: "baaaab", Attachment: verdict.Peer, Link: w.Link("n1", "v3", verdict.PointToPoint, false)}))
		}, "NODE n1", []string{
			"one-namespace NODE n1 owners=a seen=/eth0 seen=/net1 seen=n1/vethn12",
			"on-node NODE n1",
			"on-link LINK n1/v2",
			"on-link LINK n1/v3",
			"in-network no",
			"one-owner NODE n1 owners=a",
		}},
		{"two pods of two bridges", func(w *world) {
			a, _ := w.on("n1", "br0", false, "a")
			b, _ := w.on("n1", "br1", false, "b")
			w.Assigned(a)
			w.Assigned(b)
		}, "LINK n1/br0", []string{
			"on-link LINK n1/br0",
			"on-link LINK n1/br1",
			"in-network no",
			"different-links owners=a@LINK n1/br0,b@LINK n1/br1",
		}},
		{"two pods of one bridge that is routed", func(w *world) { twoPods(w, verdict.Bridge, true, [2]string{"baaaaa", "bbbbbb"}) }, "NODE n1", []string{
			"assigned-twice NODE n1 conflict=true",
			"wider-scope no LINK n1/cni0",
			"on-node NODE n1",
			"on-link LINK n1/cni0",
			"in-network no",
		}},
		{"pods of two nodes with addresses of one CNI network", func(w *world) {
			w.Within("n1", "", "kindnet", verdicttest.Pod("a"))
			w.Within("n2", "", "kindnet", verdicttest.Pod("b"))
		}, "NETWORK pods", []string{
			"assigned-twice NETWORK pods conflict=true",
			"in-network NETWORK pods owners=a network=kindnet",
			"on-node NODE n1",
			"on-link LINK n1/veth100",
			"on-node NODE n2",
			"on-link LINK n2/veth102",
		}},
		{"pods in a declared network", func(w *world) {
			w.declare("lab 10.0.0.0/8")
			w.Within("n1", "", "kindnet", verdicttest.Pod("a"))
			w.Within("n2", "", "", verdicttest.Pod("b"))
		}, "NETWORK lab", []string{
			"assigned-twice NETWORK lab conflict=true",
			"in-network NETWORK lab network=lab prefix=10.0.0.0/8",
			"on-node NODE n1",
			"on-link LINK n1/veth100",
			"on-node NODE n2",
			"on-link LINK n2/veth102",
		}},
		{"a node has an address of its range of pods", func(w *world) {
			w.PodCIDR = netip.MustParsePrefix("10.0.0.0/8")
			w.Device("n1", "cni0", "bridge")
		}, "NETWORK pods", []string{
			"in-network NETWORK pods",
			"on-node NODE n1",
			"on-link LINK n1/cni0",
			"one-owner NETWORK pods owners=n1",
		}},
		{"pods on one LAN", func(w *world) { lanOfPods(w, true, "n1", "n2") }, "LINK n1/eth0", []string{
			"assigned-twice LINK n1/eth0 conflict=true",
			"on-link LINK n1/eth0 joints=0",
			"in-network no",
		}},
		{"a link-local address", func(w *world) {
			w.Addr = netip.MustParseAddr("169.254.0.5")
			inside, _ := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(inside)
		}, "LINK n1/v2", []string{
			"link-local",
			"on-link LINK n1/v2",
			"one-owner LINK n1/v2 owners=a",
		}},
		{"a loopback", func(w *world) {
			w.Assigned(w.Interface(w.Namespace("n1", 2, "2", verdicttest.Pod("a")), verdict.Interface{Name: "lo", Attachment: verdict.Local}))
		}, "", []string{
			"loopback-or-dummy owners=a excludes",
		}},
		{"a node answers for its pod", func(w *world) {
			inside, _ := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(inside)
			w.Wire(w.Uplink("n1"), "vplkn1")
		}, "NODE n1", []string{
			`node-mac LINK n1/eth0 owners=a seen=n1/eth0 mac="vplkn1" node=n1`,
			"one-namespace NODE n1 owners=a seen=/eth0 seen=n1/eth0",
			"on-node NODE n1",
			"on-link LINK n1/v2",
			"on-link LINK n1/eth0",
			"in-network no",
			"one-owner NODE n1 owners=a",
		}},
		{"a guest of a pod", func(w *world) {
			_, port := w.ptp("n1", 2, "vm", "baaaaa")
			w.Wire(port, "huestg")
		}, "NODE n1", []string{
			`guest LINK n1/v2 owners=vm seen=n1/vethn12 mac="huestg"`,
			"on-node NODE n1",
			"on-link LINK n1/v2",
			"in-network no",
			"one-owner NODE n1 owners=vm",
		}},
		{"weak sightings", func(w *world) {
			eth0 := w.Uplink("n1")
			w.Assigned(eth0)
			w.Wire(eth0, "bbbbbb").Source = "dccccc"
			w.Wire(eth0, group)
		}, "NODE n1", []string{
			`weak-source LINK n1/eth0 seen=n1/eth0 mac="bbbbbb" source="dccccc"`,
			`weak-source LINK n1/eth0 seen=n1/eth0 mac="\x01\x00^\x00\x00\x01"`,
			"weak-source owners=01:00:5e:00:00:01 excludes",
			"weak-source owners=62:62:62:62:62:62 excludes",
			"on-node NODE n1",
			"on-link LINK n1/eth0",
			"in-network no",
			"one-owner NODE n1 owners=n1",
		}},
		{"a neighbour table", func(w *world) {
			eth0 := w.Uplink("n1")
			w.Assigned(eth0)
			w.Claim(verdict.Claim{Kind: verdict.Believed, Interface: eth0, Frame: verdict.Frame{Link: eth0.Link, MAC: "bbbbbb"}})
		}, "NODE n1", []string{
			"believed owners=62:62:62:62:62:62 excludes",
			"on-node NODE n1",
			"on-link LINK n1/eth0",
			"in-network no",
			"one-owner NODE n1 owners=n1",
		}},
		{"the MAC of another pod", func(w *world) {
			a, _ := w.on("n1", "br0", false, "a")
			_, port := w.on("n1", "br0", false, "b")
			w.Wire(port, string(a.MAC))
			w.after(time.Minute)
		}, "", []string{
			`mac-cloned LINK n1/br0 owners=b seen=n1/veth104 mac="bmac02"`,
			"mac-cloned owners=b excludes",
		}},
		{"a node that is silent", func(w *world) {
			inside, _ := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(inside)
			w.Node("n1").Unheard = true
		}, "NODE n1", []string{
			"node-disconnected NODE n1 owners=a",
			"on-node NODE n1",
			"on-link LINK n1/v2",
			"in-network no",
			"one-owner NODE n1 owners=a",
		}},
		{"a device outside that was not seen for long", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC)
			w.after(w.Policy.StaleAfter)
		}, "", []string{
			"stale owners=02:00:00:00:00:99 excludes",
		}},
		{"a device outside that has another MAC now", func(w *world) {
			eth0 := w.Uplink("n1")
			w.Wire(eth0, externalMAC)
			w.after(time.Second).Wire(eth0, other)
		}, "LINK n1/eth0", []string{
			"mac-changed no LINK n1/eth0 owners=02:00:00:00:00:98,02:00:00:00:00:99",
			"on-link LINK n1/eth0",
			"in-network no",
		}},
	} {
		w := newWorld("10.0.0.5")
		test.build(w)
		w.wantSteps(t, test.name, test.scope, test.want...)
	}
}

// wantSteps checks the steps and the scope of the explanation.
func (w *world) wantSteps(t *testing.T, why, scope string, want ...string) {
	t.Helper()
	e := w.Policy.Explain(w.Case())
	var got []string
	for _, s := range e.Steps {
		got = append(got, stepText(&e, s))
	}
	if is := scopeText(e.Kind, e.Scope); is != scope || !slices.Equal(got, want) {
		t.Errorf("%s: got %s and\n\t%q, want %s and\n\t%q", why, is, got, scope, want)
	}
}

// If very many owners do not meet, only the first ones are explained.
func TestOwnersWithoutACommonScopeAreExplained(t *testing.T) {
	for owners, want := range map[int]int{1: 0, 2: 1, 5: 10, 9: 36, 30: 9*8/2 + 8*21 + 1} {
		w := newWorld("10.0.0.5")
		for i := range owners {
			inside, _ := w.on("n1", fmt.Sprint("br", i), false, fmt.Sprint("p", i))
			w.Assigned(inside)
		}
		got := 0
		for _, s := range w.Policy.Explain(w.Case()).Steps {
			if s.Rule == verdict.RuleDifferentLinks {
				got++
			}
		}
		if got != want {
			t.Errorf("%d owners: got %d steps, want %d", owners, got, want)
		}
	}
}

func TestHowConflictsEnd(t *testing.T) {
	for _, test := range []struct {
		name        string
		build       func(w *world) (end func())
		want        verdict.EndKind
		owner, rule string
	}{
		{"no owner is left", func(w *world) func() {
			a, b := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
			return func() { w.Drop(a, b) }
		}, verdict.EndNoOwner, "", ""},
		{"one is left", func(w *world) func() {
			a, _ := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
			return func() { w.Drop(a) }
		}, verdict.EndOneOwner, "b", ""},
		{"one is left, whose kernel does not use the address", func(w *world) func() {
			device := w.Wire(w.Uplink("n1"), "\x02\x00\x00\x00\x00\x99")
			c, i := refused(w, "a", 2)
			i.Link, c.Interface = device.Link, i
			return func() { w.after(w.Policy.StaleAfter) }
		}, verdict.EndRefused, "a", ""},
		{"one is left, whose client gave the address up", func(w *world) func() {
			device := w.Wire(w.Uplink("n1"), "\x02\x00\x00\x00\x00\x99")
			c, i := refused(w, "a", 2)
			i.Link, c.Flags = device.Link, 0
			return func() { w.Drop(device) }
		}, verdict.EndYielded, "a", ""},
		{"the one whose kernel does not use the address leaves", func(w *world) func() {
			device := w.Wire(w.Uplink("n1"), "\x02\x00\x00\x00\x00\x99")
			c, i := refused(w, "a", 2)
			i.Link = device.Link
			w.Assigned(w.Child("b", "bbbbbb", device.Link))
			return func() { w.Drop(c, device) }
		}, verdict.EndOneOwner, "b", ""},
		{"one is left, and another one went with its node", func(w *world) func() {
			w.declare("pods 10.0.0.0/8")
			a, _ := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
			w.Within("n2", "", "", verdicttest.Pod("c"))
			return func() { w.Drop(a); w.Node("n2").Unheard, w.Node("n2").TimedOut = true, true }
		}, verdict.EndTimedOut, "c", ""},
		{"a node was rebooted", func(w *world) func() {
			w.declare("pods 10.0.0.0/8")
			w.Within("n1", "", "", verdicttest.Pod("a"))
			w.Within("n2", "", "", verdicttest.Pod("b"))
			return func() {
				n := w.Node("n2")
				n.Unheard, n.TimedOut, n.Rebooted = true, true, true
			}
		}, verdict.EndRebooted, "b", ""},
		{"the address is declared shared", func(w *world) func() {
			twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
			return func() { w.Policy.Shared = []verdict.Shared{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}} }
		}, verdict.EndExcluded, "", verdict.RuleDeclaredShared},
		{"the node does not route for their bridge any more", func(w *world) func() {
			w.declare("pods 10.0.0.0/8")
			twoPods(w, verdict.Bridge, false, [2]string{"baaaaa", "bbbbbb"})
			return func() {
				w.Policy.Networks = nil
				w.Interfaces[0].Link = w.Link("n1", "br1", verdict.Bridge, false)
				w.Claims[0].Interface = w.Interfaces[0]
			}
		}, verdict.EndScopesApart, "", ""},
		{"a third one on their link is gone", func(w *world) func() {
			_, _, c := threeOnALink(w)
			w.Link("n1", "cni0", verdict.Bridge, false).Routed = true
			return func() { w.Drop(c) }
		}, verdict.EndWiderScope, "", ""},
		{"no frame shows any more that their links are one", func(w *world) func() {
			uplinks, _ := lanOfPods(w, true, "n1", "n2")
			return func() {
				for _, i := range uplinks {
					i.Link.Domain, i.Link.Proven, i.Link.BothWays = nil, nil, nil
				}
			}
		}, verdict.EndLinksApart, "", ""},
	} {
		w := newWorld("10.0.0.5")
		end := test.build(w)
		before := w.judge()
		w.after(time.Second)
		end()
		out := w.Judge()
		if len(before.Conflicts) == 0 || len(out.Ended) != 1 {
			t.Errorf("%s: got %d conflicts of which %d ended, want some and one", test.name, len(before.Conflicts), len(out.Ended))
			continue
		}
		e, owner, rule := out.Ended[0], "", ""
		if e.Owner != "" {
			owner = verdicttest.Name(&before.Conflicts[0], e.Owner)
		}
		if e.Excluded != nil {
			rule = e.Excluded.Rule
		}
		if e.Kind != test.want || owner != test.owner || rule != test.rule || e.At != w.Now {
			t.Errorf("%s: got %s of %q by %q at %d, want %s of %q by %q, now", test.name, e.Kind, owner, rule, e.At, test.want, test.owner, test.rule)
		}
	}
}

func scopeText(kind verdict.ScopeKind, name string) string {
	if kind == 0 {
		return ""
	}
	return strings.TrimSpace(kind.String() + " " + name)
}

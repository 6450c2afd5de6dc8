package verdict_test

import (
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// These tests cover rows of situations.md.

// twoPods adds two pods on one node, each on its own link.
func twoPods(w *world, kind verdict.LinkKind, routed bool, macs [2]string) (a, b *verdict.Claim) {
	links := [2]string{"v1", "v2"}
	if kind == verdict.Bridge {
		links = [2]string{"cni0", "cni0"}
	}
	one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), macs[0], w.Link("n1", links[0], kind, routed))
	two, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("b")), macs[1], w.Link("n1", links[1], kind, routed))
	a = w.Assigned(one)
	b = w.Assigned(two)
	b.AssignedAt++
	return a, b
}

func TestT1PtpPodsWithOneAddress(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, b := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if len(c.Owners) != 2 || c.Owners[0].Workload().Name != "a" {
		t.Fatalf("got owners %+v, want a and b", c.Owners)
	}
	w.after(w.Policy.Settle)
	w.Read(a, b)
	c = w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if c.ConfirmedAt != w.Now || c.DetectedAt != verdicttest.Start {
		t.Errorf("got detected %d confirmed %d, want %d and %d", c.DetectedAt, c.ConfirmedAt, verdicttest.Start, w.Now)
	}
	w.Drop(a)
	c = w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if c.Owners[0].State != verdict.Gone || c.Owners[1].State != verdict.Live {
		t.Errorf("got states %d and %d, want gone and live", c.Owners[0].State, c.Owners[1].State)
	}
}

func TestT2BridgePodsAreReportedOnceInTheWiderScope(t *testing.T) {
	w := newWorld("10.85.0.5")
	twoPods(w, verdict.Bridge, true, [2]string{"baaaaa", "bbbbbb"})
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	w.wantRule(t, verdict.RuleWiderScope)
}

func TestT9OneMACForBothDuplicates(t *testing.T) {
	w := newWorld("10.244.0.5")
	one, portOne := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "tamesa", w.Link("n1", "v1", verdict.PointToPoint, false))
	two, portTwo := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("b")), "tamesa", w.Link("n1", "v2", verdict.PointToPoint, false))
	w.Assigned(one)
	w.Wire(portOne, "tamesa")
	w.wantNone(t)
	w.Assigned(two)
	w.Wire(portTwo, "tamesa")
	c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	for _, o := range c.Owners {
		if len(o.Claims) != 2 {
			t.Errorf("got %d claims of %s, want its own assignment and its own frame", len(o.Claims), o.Workload().Name)
		}
	}
}

func TestT13IPv6WithoutDAD(t *testing.T) {
	w := newWorld("fd00:10::5")
	twoPods(w, verdict.Bridge, true, [2]string{"baaaaa", "bbbbbb"})
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
}

func TestL1ReuseOverlapsForAMoment(t *testing.T) {
	w := newWorld("10.244.0.5")
	a, _ := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	w.after(14e6).Drop(a)
	c := w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if c.ConfirmedAt != 0 {
		t.Error("got a confirmed conflict, want it never confirmed")
	}
	w.wantNone(t)
}

func TestL3SandboxRecreated(t *testing.T) {
	w := newWorld("10.244.0.5")
	l := w.Link("n1", "cni0", verdict.Bridge, true)
	one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", l)
	two, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("a")), "bbbbbb", l)
	a, b := w.Assigned(one), w.Assigned(two)
	w.want(t, verdict.Suspected, verdict.RuleSamePod, verdict.NodeScope, "n1")
	w.after(5*w.Policy.Settle).Read(a, b)
	w.want(t, verdict.Suspected, verdict.RuleSamePod, verdict.NodeScope, "n1")
	w.after(w.Policy.HandoverGrace).Read(a, b)
	w.want(t, verdict.Confirmed, verdict.RuleSamePod, verdict.NodeScope, "n1")
}

// With a slow plugin, the pod of the second sandbox is not known yet when the conflict is
// confirmed.
func TestSandboxWhosePodIsKnownAfterItsConflictWasConfirmed(t *testing.T) {
	w := newWorld("10.244.0.5")
	l := w.Link("n1", "cni0", verdict.Bridge, true)
	one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", l)
	two, _ := w.Veth(w.Namespace("n1", 3, "103", verdict.Workload{Kind: verdict.Unknown}), "bbbbbb", l)
	a, b := w.Assigned(one), w.Assigned(two)
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	w.after(w.Policy.Settle).Read(a, b)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	two.Namespace.Who = verdicttest.Pod("a").Who()
	c := w.want(t, verdict.Confirmed, verdict.RuleSamePod, verdict.NodeScope, "n1")
	if got := w.Policy.Waited(&c); got != w.Policy.Settle {
		t.Errorf("got waited %s, want %s", got, w.Policy.Settle)
	}
}

func TestL5HostNetworkPodsAreTheNode(t *testing.T) {
	w := newWorld("192.168.1.10")
	eth0 := w.Interface(w.Host("n1"), verdict.Interface{MAC: "hosthh", Attachment: verdict.Own, Link: w.Link("n1", "eth0", verdict.Uplink, false), Uplink: true})
	w.Assigned(eth0)
	w.Wire(eth0, "hosthh")
	if out := w.wantNone(t); len(out.Owners) != 1 {
		t.Errorf("got %d owners, want the node", len(out.Owners))
	}
}

func TestL9LinkLocalOnEveryNode(t *testing.T) {
	for _, addr := range []string{"169.254.169.2", "fe80::1"} {
		w := newWorld(addr)
		for _, node := range []string{"n1", "n2"} {
			for _, name := range []string{"br-ex", "br-two"} {
				w.Assigned(w.Interface(w.Host(node), verdict.Interface{
					Name: name, MAC: verdict.MAC(node + name), Attachment: verdict.Own, Link: w.Link(node, name, verdict.Bridge, true),
				}))
			}
		}
		w.wantNone(t)
		w.wantRule(t, verdict.RuleLinkLocal)
	}
	w := newWorld("169.254.169.2")
	twoPods(w, verdict.Bridge, true, [2]string{"baaaaa", "bbbbbb"})
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
}

func TestL8L9DummyAndLoopback(t *testing.T) {
	w := newWorld("10.96.0.1")
	port := w.Interface(w.Host("n1"), verdict.Interface{Name: "eth0", MAC: "hosthh", Attachment: verdict.Own, Link: w.Link("n1", "eth0", verdict.Uplink, false), Uplink: true})
	dummy := w.Interface(w.Host("n1"), verdict.Interface{Name: "kube-ipvs0", Attachment: verdict.Local})
	w.Assigned(dummy)
	one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n1", "v1", verdict.PointToPoint, false))
	w.Assigned(one)
	w.Wire(port, "hosthh") // the node uses the address on the wire
	w.wantNone(t)
	w.wantRule(t, verdict.RuleLoopbackOrDummy)
}

func TestL11PtpGatewayOnEveryHostVeth(t *testing.T) {
	w := newWorld("10.244.0.1")
	for i := range 30 {
		name := string(rune('a' + i))
		w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{
			Name: "veth" + name, MAC: verdict.MAC("host-" + name), Attachment: verdict.Own,
			Link: w.Link("n1", "veth"+name, verdict.PointToPoint, false),
		}))
	}
	if out := w.wantNone(t); len(out.Owners) != 1 || len(out.Owners[0].Claims) != 30 {
		t.Errorf("got %d owners, want one with 30 claims", len(out.Owners))
	}
	w.wantRule(t, verdict.RuleOneNamespace)
}

func TestL11CalicoHardwareAddressOnEveryPort(t *testing.T) {
	w := newWorld("169.254.1.1")
	for i, name := range []string{"a", "b"} {
		_, port := w.Veth(w.Namespace("n1", uint32(i+2), "10"+name, verdicttest.Pod(name)), "pod-"+name, w.Link("n1", "cali"+name, verdict.PointToPoint, false))
		port.MAC = "\xee\xee\xee\xee\xee\xee"
		w.Wire(port, "\xee\xee\xee\xee\xee\xee")
	}
	if out := w.wantNone(t); len(out.Owners) != 1 || len(out.Owners[0].Claims) != 2 {
		t.Errorf("got owners %+v, want one with both claims", out.Owners)
	}
}

func TestL17EqualRangesThatDoNotMeet(t *testing.T) {
	separate := map[string]func(w *world){
		"isolated bridges": func(w *world) {
			for i, name := range []string{"br1", "br2"} {
				inside, _ := w.Veth(w.Namespace("n1", uint32(i+2), "10"+name, verdicttest.Pod(name)), "pod-"+name, w.Link("n1", name, verdict.Bridge, false))
				w.Assigned(inside)
			}
		},
		"VRFs": func(w *world) {
			for i, name := range []string{"red", "blue"} {
				inside, _ := w.Veth(w.Namespace("n1", uint32(i+2), "10"+name, verdicttest.Pod(name)), "pod-"+name, w.Link("n1", name, verdict.PointToPoint, false))
				inside.VRF = name
				w.Assigned(inside)
			}
		},
		"Open vSwitch ports": func(w *world) {
			for i, name := range []string{"tap1", "tap2"} {
				inside, _ := w.Veth(w.Namespace("n1", uint32(i+2), "10"+name, verdicttest.Pod(name)), "pod-"+name, w.Link("n1", name, verdict.OVSPort, false))
				w.Assigned(inside)
			}
		},
		"macvlan on two parents": func(w *world) {
			for i, name := range []string{"eth1", "eth2"} {
				w.Assigned(w.Interface(w.Namespace("n1", uint32(i+2), "10"+name, verdicttest.Pod(name)), verdict.Interface{
					MAC: verdict.MAC("nv" + name), Attachment: verdict.Lower, Link: w.Link("n1", name, verdict.Uplink, false),
				}))
			}
		},
		"two nodes": func(w *world) {
			for _, name := range []string{"n1", "n2"} {
				inside, _ := w.Veth(w.Namespace(name, 2, "10"+name, verdicttest.Pod(name)), "pod-"+name, w.Link(name, "cni0", verdict.Bridge, true))
				w.Assigned(inside)
			}
		},
	}
	for name, build := range separate {
		t.Run(name, func(t *testing.T) {
			w := newWorld("10.0.0.5")
			build(w)
			if out := w.wantNone(t); len(out.Owners) != 2 {
				t.Errorf("got %d owners, want 2", len(out.Owners))
			}
			w.wantRule(t, verdict.RuleDifferentLinks)
		})
	}
}

func TestT14RoutedBridgesMeetOnTheNode(t *testing.T) {
	w := newWorld("10.0.0.5")
	for i, name := range []string{"br1", "br2"} {
		inside, _ := w.Veth(w.Namespace("n1", uint32(i+2), "10"+name, verdicttest.Pod(name)), "pod-"+name, w.Link("n1", name, verdict.Bridge, true))
		w.Assigned(inside)
	}
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
}

func TestT4MacvlanPodsOfOneParent(t *testing.T) {
	w := newWorld("10.0.0.5")
	for i, name := range []string{"a", "b"} {
		w.Assigned(w.Interface(w.Namespace("n1", uint32(i+2), "10"+name, verdicttest.Pod(name)), verdict.Interface{
			MAC: verdict.MAC("nv" + name), Attachment: verdict.Lower, Link: w.Link("n1", "eth1", verdict.Uplink, false),
		}))
	}
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth1")
}

func TestL16PrivateLinkInEveryLauncher(t *testing.T) {
	w := newWorld("10.0.2.1")
	for i, name := range []string{"a", "b", "c"} {
		w.Assigned(w.Interface(w.Namespace("n1", uint32(i+2), "10"+name, verdicttest.Pod(name)), verdict.Interface{
			Name: "k6t-eth0", MAC: verdict.MAC("br" + name), Attachment: verdict.Private,
		}))
	}
	w.wantNone(t)
	w.wantRule(t, verdict.RulePrivateLink)
}

func TestL20OneFrameSeenOnSeveralPorts(t *testing.T) {
	w := newWorld("10.85.0.5")
	l := w.Link("n1", "cni0", verdict.Bridge, true)
	one, port := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", l)
	other := w.Interface(w.Host("n1"), verdict.Interface{Name: "patch0", MAC: "patchp", Attachment: verdict.Own, Link: l})
	uplink := w.Interface(w.Host("n1"), verdict.Interface{Name: "eth0", MAC: "hosthh", Attachment: verdict.Own, Link: l, Uplink: true})
	w.Assigned(one)
	for _, p := range []*verdict.Interface{port, other, uplink} {
		w.Wire(p, "baaaaa")
	}
	if out := w.wantNone(t); len(out.Owners) != 1 || len(out.Owners[0].Claims) != 4 {
		t.Errorf("got %d owners, want one with 4 claims", len(out.Owners))
	}
}

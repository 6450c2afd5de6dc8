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

// wantConflicts judges the claims in their order and in reverse, and checks the conflicts. Each is
// SCOPE RULE OWNER…, with RESOLVED if it has ended.
func (w *world) wantConflicts(t *testing.T, why string, want ...string) {
	t.Helper()
	for range 2 {
		slices.Reverse(w.Claims)
		var got []string
		out := w.Policy.Judge(w.Case())
		all := out.Conflicts
		for i := range out.Ended {
			all = append(all, w.Conflict(out.Ended[i].ID).End(&out.Ended[i], out.Owners))
		}
		for _, c := range all {
			text := fmt.Sprintf("%s=%s %s", c.Kind, c.Scope, c.Rule)
			for i := range c.Owners {
				o := &c.Owners[i]
				who := o.Workload().Name
				if o.Namespace == nil {
					who = string(o.MAC)
				}
				text += " " + who
			}
			if !c.Active() {
				text += " RESOLVED"
			}
			got = append(got, text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got conflicts\n%q, want\n%q", why, got, want)
		}
	}
}

// declare declares networks, each given as NAME PREFIX….
func (w *world) declare(networks ...string) {
	for _, n := range networks {
		words := strings.Fields(n)
		w.Policy.Networks = append(w.Policy.Networks, verdict.Network{Name: words[0], Prefixes: verdicttest.Prefixes(words[1:]...)})
	}
}

// quiet adds a device of a node on an uplink that has no ARP.
func (w *world) quiet(uplink *verdict.Interface) *verdict.Interface {
	return w.Interface(uplink.Namespace, verdict.Interface{Name: "vip0", MAC: "q" + uplink.MAC[1:], Kind: "macvlan", Attachment: verdict.Own, Link: uplink.Link, NoARP: true})
}

// on adds a pod on a bridge of a node.
func (w *world) on(node, bridge string, routed bool, name string) (inside, port *verdict.Interface) {
	record := uint32(len(w.Namespaces) + 2)
	return w.Veth(w.Namespace(node, record, fmt.Sprint(100+record), verdicttest.Pod(name)), "bmac"+fmt.Sprintf("%02d", record), w.Link(node, bridge, verdict.Bridge, routed))
}

func TestScopes(t *testing.T) {
	const pods = "10.0.0.0/8"
	for _, test := range []struct {
		name  string
		build func(w *world)
		want  []string
	}{
		// Declared networks.
		{"pods of two nodes in a declared network", func(w *world) {
			w.declare("pods " + pods)
			for _, n := range []string{"n1", "n2"} {
				inside, _ := w.on(n, "br0", false, n)
				w.Assigned(inside)
			}
		}, []string{"NETWORK=pods assigned-twice n1 n2"}},
		{"the longest prefix determines the network", func(w *world) {
			w.declare("all 10.0.0.0/8", "exact 192.168.0.0/16 10.0.0.0/24", "wide 10.0.0.0/16", "elsewhere 10.9.0.0/30")
			for _, n := range []string{"n1", "n2"} {
				inside, _ := w.on(n, "br0", false, n)
				w.Assigned(inside)
			}
		}, []string{"NETWORK=exact assigned-twice n1 n2"}},
		{"an address that is in no declared network", func(w *world) {
			w.declare("pods 10.9.0.0/16")
			for _, n := range []string{"n1", "n2"} {
				inside, _ := w.on(n, "br0", false, n)
				w.Assigned(inside)
			}
		}, nil},
		{"one of the pods is in a VRF", func(w *world) {
			w.declare("pods " + pods)
			inside, _ := w.on("n1", "br0", false, "a")
			w.Assigned(inside)
			inside, _ = w.on("n2", "br0", false, "b")
			inside.VRF = "red"
			w.Assigned(inside)
		}, nil},
		{"nodes themselves, and children of uplinks", func(w *world) {
			w.declare("pods " + pods)
			w.Assigned(w.Uplink("n1"))
			w.Assigned(w.Interface(w.Namespace("n2", 2, "2", verdicttest.Pod("b")), verdict.Interface{MAC: "bbbbbb", Attachment: verdict.Lower, Link: w.Link("n2", "eth0", verdict.Uplink, false)}))
		}, []string{"NETWORK=pods assigned-twice n1 b"}},
		{"an interface with an unknown attachment", func(w *world) {
			w.declare("pods " + pods)
			inside, _ := w.on("n1", "br0", false, "a")
			w.Assigned(inside)
			inside, _ = w.on("n2", "br0", false, "b")
			inside.Attachment = 0
			w.Assigned(inside)
		}, nil},
		{"a guest behind a port of another node", func(w *world) {
			w.declare("pods " + pods)
			inside, _ := w.on("n1", "br0", false, "a")
			w.Assigned(inside)
			_, port := w.on("n2", "br0", false, "b")
			w.Wire(port, externalMAC)
		}, []string{"NETWORK=pods assigned-and-wire a b"}},
		{"a virtual machine of another node", func(w *world) {
			w.declare("pods " + pods)
			inside, _ := w.on("n2", "br0", false, "a")
			w.Assigned(inside)
			w.Wire(w.tap(), externalMAC)
		}, []string{"NETWORK=pods assigned-and-wire " + externalMAC + " a"}},
		{"a device outside, which another node sees", func(w *world) {
			w.declare("pods " + pods)
			inside, _ := w.on("n1", "br0", false, "a")
			w.Assigned(inside)
			w.Wire(w.Uplink("n2"), externalMAC)
		}, nil},
		{"a pod of this node, which another node sees outside", func(w *world) {
			w.declare("pods " + pods)
			inside, _ := w.on("n1", "br0", false, "a")
			w.Assigned(inside)
			_, port := w.on("n2", "br0", false, "b")
			port.Uplink = true
			w.Wire(port, externalMAC)
		}, nil},
		{"a device behind a port that leads nowhere", func(w *world) {
			w.declare("pods " + pods)
			inside, _ := w.on("n1", "br0", false, "a")
			w.Assigned(inside)
			w.Wire(w.Interface(w.Host("n2"), verdict.Interface{Name: "eth1", Attachment: verdict.Own, Link: w.Link("n2", "br0", verdict.Bridge, false)}), externalMAC)
		}, nil},

		// The pod network.
		{"pods of two nodes with the address from a CNI network", func(w *world) {
			w.Within("n1", "", "cni", verdicttest.Pod("a"))
			w.Within("n2", "", "cni", verdicttest.Pod("b"))
		}, []string{"NETWORK=pods assigned-twice a b"}},
		{"pods of one node with the address from a CNI network", func(w *world) {
			w.Within("n1", "", "cni", verdicttest.Pod("a"))
			w.Within("n1", "", "cni", verdicttest.Pod("b"))
		}, []string{"NODE=n1 assigned-twice a b"}},
		{"the same, while a conflict of the network is active", func(w *world) {
			w.Within("n1", "", "cni", verdicttest.Pod("a"))
			w.Within("n1", "", "cni", verdicttest.Pod("b"))
			w.met(w.Within("n2", "", "cni", verdicttest.Pod("c")))
		}, []string{"NETWORK=pods assigned-twice a b"}},
		{"the same, while a conflict of a declared network is active", func(w *world) {
			w.declare("all " + pods)
			w.Within("n1", "", "cni", verdicttest.Pod("a"))
			w.Within("n1", "", "cni", verdicttest.Pod("b"))
			w.met(w.Within("n2", "", "cni", verdicttest.Pod("c")))
			w.Policy.Networks = nil
		}, []string{"NODE=n1 assigned-twice a b", "NETWORK=all assigned-twice a b c RESOLVED"}},
		{"the same, when a conflict of the network is over", func(w *world) {
			w.Within("n1", "", "cni", verdicttest.Pod("a"))
			w.met(w.Within("n2", "", "cni", verdicttest.Pod("c")))
			w.judge()
			w.Within("n1", "", "cni", verdicttest.Pod("b"))
		}, []string{"NODE=n1 assigned-twice a b"}},
		{"the same in a declared network", func(w *world) {
			w.declare("pods " + pods)
			w.Within("n1", "", "cni", verdicttest.Pod("a"))
			w.Within("n1", "", "cni", verdicttest.Pod("b"))
		}, []string{"NETWORK=pods assigned-twice a b"}},
		{"pods of one bridge, which is not routed, and one of another node", func(w *world) {
			for _, name := range []string{"a", "b"} {
				inside, _ := w.on("n1", "br0", false, name)
				w.Assigned(inside).Network = "cni"
			}
			w.Within("n2", "", "cni", verdicttest.Pod("c"))
		}, []string{"NETWORK=pods assigned-twice a b c"}},
		{"pods of one node on bridges that are not routed", func(w *world) { given(w, "br0", false, "br1", false) }, []string{"NODE=n1 assigned-twice a b"}},
		{"pods of one node, one of them on a bridge that is not routed", func(w *world) { given(w, "br0", true, "br1", false) }, []string{"NODE=n1 assigned-twice a b"}},
		{"pods of one node on one bridge, which is not routed", func(w *world) { given(w, "br0", false, "br0", false) }, []string{"LINK=n1/br0 assigned-twice a b"}},
		{"the same as on two bridges, while a conflict of the network is active", func(w *world) {
			given(w, "br0", false, "br1", false)
			w.met(w.Within("n2", "", "cni", verdicttest.Pod("c")))
		}, []string{"NETWORK=pods assigned-twice a b"}},
		{"pods of one node on bridges that are not routed, and two pods of the node that are not in the network", func(w *world) {
			given(w, "br0", false, "br1", false)
			for _, name := range []string{"x", "y"} {
				inside, _ := w.on("n1", "br"+name, true, name)
				w.Assigned(inside)
			}
		}, []string{"NETWORK=pods assigned-twice a b", "NODE=n1 assigned-twice x y"}},
		{"pods of one node, and a pair on another node that is not in the network", func(w *world) {
			given(w, "br0", false, "br1", false)
			for _, node := range []string{"n0", "n2"} {
				w.Within(node, "", "", verdicttest.Pod("x"+node))
				w.Within(node, "", "", verdicttest.Pod("y"+node))
			}
		}, []string{"NODE=n0 assigned-twice xn0 yn0", "NODE=n1 assigned-twice a b", "NODE=n2 assigned-twice xn2 yn2"}},

		// Scopes of nodes and links.
		{"a guest on a routed bridge", func(w *world) {
			inside, _ := w.on("n1", "br0", true, "a")
			w.Assigned(inside)
			_, port := w.on("n1", "br1", true, "b")
			w.Wire(port, externalMAC)
		}, []string{"NODE=n1 assigned-and-wire a b"}},
		{"a device by an uplink of a routed bridge", func(w *world) {
			inside, _ := w.on("n1", "br0", true, "a")
			w.Assigned(inside)
			_, port := w.on("n1", "br1", true, "b")
			port.Uplink = true
			w.Wire(port, externalMAC)
		}, nil},
		{"a device by a port of a routed bridge that leads nowhere", func(w *world) {
			inside, _ := w.on("n1", "br0", true, "a")
			w.Assigned(inside)
			w.Wire(w.Interface(w.Host("n1"), verdict.Interface{Name: "eth1", Attachment: verdict.Own, Link: w.Link("n1", "br1", verdict.Bridge, true)}), externalMAC)
		}, nil},
		{"a guest on a bridge that is not routed", func(w *world) {
			inside, _ := w.on("n1", "br0", true, "a")
			w.Assigned(inside)
			_, port := w.on("n1", "br1", false, "b")
			w.Wire(port, externalMAC)
		}, nil},
		{"a frame of a namespace that has the address on a private link", func(w *world) {
			inside, _ := w.on("n1", "br0", false, "a")
			w.Assigned(inside)
			second, port := w.on("n1", "br0", false, "b")
			w.Assigned(w.Interface(second.Namespace, verdict.Interface{Name: "k6t", Attachment: verdict.Private}))
			w.Wire(port, string(second.MAC))
		}, []string{"LINK=n1/br0 assigned-and-wire a b"}},
		{"two conflicts are in the order of nodes", func(w *world) {
			for _, n := range []string{"n2", "n1"} {
				for _, name := range []string{"a", "b"} {
					inside, _ := w.on(n, "br0", true, name+n)
					w.Assigned(inside)
				}
			}
		}, []string{"NODE=n1 assigned-twice an1 bn1", "NODE=n2 assigned-twice an2 bn2"}},
		{"two conflicts are in the order of links", func(w *world) {
			for _, br := range []string{"br1", "br0"} {
				for _, name := range []string{"a", "b"} {
					inside, _ := w.on("n1", br, false, name+br)
					w.Assigned(inside)
				}
			}
		}, []string{"LINK=n1/br0 assigned-twice abr0 bbr0", "LINK=n1/br1 assigned-twice abr1 bbr1"}},
		{"a conflict has neither a proxy nor a stale owner", func(w *world) {
			port := w.Uplink("n1")
			w.Wire(port, other)
			w.after(w.Policy.StaleAfter).Wire(port, externalMAC).NoOverride = true
			w.Assigned(w.Child("a", "baaaaa", port.Link))
			w.Assigned(w.Child("b", "bbbbbb", port.Link))
		}, []string{"LINK=n1/eth0 assigned-twice a b"}},
		{"a domain has the name of the first link on which a kernel has the address", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
			for i, n := range []string{"n3", "n2"} {
				w.Assigned(w.Interface(w.Namespace(n, 2, "2", verdicttest.Pod(n)), verdict.Interface{MAC: verdict.MAC("bbbbb" + n[1:]), Attachment: verdict.Lower, Link: lan[2-i].Link}))
			}
			w.Wire(lan[0], externalMAC)
		}, []string{"LINK=n2/eth0 assigned-twice " + externalMAC + " n2 n3"}},
		{"a domain has the name of its first link if no kernel has the address", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			a := w.Wire(lan[1], externalMAC)
			w.after(time.Second).Wire(lan[1], other)
			w.after(time.Second).Seen(a)
		}, []string{"LINK=n1/eth0 externals-alternate " + other + " " + externalMAC}},
		{"a director, real servers that have its address on a device without ARP, and a pod of one of them", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
			w.Assigned(lan[0])
			for _, at := range lan[1:] {
				w.Assigned(w.quiet(at))
			}
			w.Assigned(w.Child("a", "baaaaa", lan[2].Link))
			inside, _ := w.on("n2", "cni0", true, "b")
			w.Assigned(inside)
		}, []string{"NODE=n2 assigned-twice n2 b", "LINK=n1/eth0 assigned-twice n1 a"}},
		{"a real server whose device without ARP has an IPv6 address", func(w *world) {
			w.Addr = netip.MustParseAddr("2001:db8::50")
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			w.Assigned(lan[0])
			w.Assigned(w.quiet(lan[1]))
		}, []string{"LINK=n1/eth0 assigned-twice n1 n2"}},
		{"a real server that sends frames with the address", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			w.Assigned(lan[0])
			w.Assigned(w.quiet(lan[1]))
			w.Wire(lan[0], string(lan[1].MAC))
		}, []string{"LINK=n1/eth0 assigned-twice n1 n2"}},
		{"a link-local address on a LAN", func(w *world) {
			w.Addr = netip.MustParseAddr("169.254.7.7")
			for i, link := range verdicttest.OnLAN(w.World, "n1", "n2") {
				w.Assigned(w.Interface(w.Namespace(link.Link.Node.Name, 2, "2", verdicttest.Pod("a")), verdict.Interface{MAC: verdict.MAC(fmt.Sprint("bbbbb", i)), Attachment: verdict.Lower, Link: link.Link}))
			}
		}, nil},
	} {
		w := newWorld("10.0.0.5")
		test.build(w)
		w.wantConflicts(t, test.name, test.want...)
	}
}

// given gives pods a and b of a node the address from a CNI network, each on a bridge.
func given(w *world, ofA string, routedA bool, ofB string, routedB bool) {
	a, _ := w.on("n1", ofA, routedA, "a")
	w.Assigned(a).Network = "cni"
	b, _ := w.on("n1", ofB, routedB, "b")
	w.Assigned(b).Network = "cni"
}

// That the node routes to the bridge of a pod becomes known before or after the name of the pod's
// network. The conflict has the same scope, and so the same ID.
func TestRouteThatBecomesKnownAfterTheNetwork(t *testing.T) {
	w := newWorld("10.244.0.2")
	given(w, "cni0", true, "cni1", false)
	first := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	w.Link("n1", "cni1", verdict.Bridge, false).Routed = true
	w.after(w.Policy.Settle).Read(w.Claims...)
	if c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); c.ID != first.ID {
		t.Errorf("got conflict %s once the bridge is routed, want %s", c.ID, first.ID)
	}
	w.Conflicts = nil // another aggregator
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); c.ID != first.ID {
		t.Errorf("got conflict %s in another aggregator, want %s", c.ID, first.ID)
	}
}

// met adds an earlier conflict in the pod network with another pod that is gone.
func (w *world) met(c *verdict.Claim) {
	w.judge()
	w.Drop(c)
}

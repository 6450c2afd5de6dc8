package verdict_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// described returns an owner as WHO NODE/INTERFACE STATE [assigned] [RULE] [SCOPE] CLAIMS.
func described(o *verdict.Owner) string {
	who := o.Workload().Name
	if o.Namespace == nil {
		who = string(o.MAC)
	}
	state := map[verdict.State]string{verdict.Live: "live", verdict.Stale: "stale", verdict.Unheard: "unheard", verdict.Gone: "gone"}[o.State]
	text := fmt.Sprintf("%s %s/%s %s", who, o.Node.Name, o.Interface.Name, state)
	if o.Assigned {
		text += " assigned"
	}
	if o.Excluded != nil {
		text += " " + o.Excluded.Rule
	}
	if o.Scope.Kind != 0 {
		text += fmt.Sprintf(" %s=%s", o.Scope.Kind, o.Scope.Text())
	}
	return fmt.Sprintf("%s %d", text, len(o.Claims))
}

// wantOwners judges the claims and interfaces in their order and in reverse, and checks the owners.
func (w *world) wantOwners(t *testing.T, why string, want ...string) {
	t.Helper()
	for range 2 {
		slices.Reverse(w.Claims)
		slices.Reverse(w.Interfaces)
		out := w.Policy.Judge(w.Case())
		var got []string
		for i := range out.Owners {
			got = append(got, described(&out.Owners[i]))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got owners\n%q, want\n%q", why, got, want)
		}
	}
}

// ptp adds a pod with a point-to-point veth.
func (w *world) ptp(node string, record uint32, name, mac string) (inside, port *verdict.Interface) {
	return w.Veth(w.Namespace(node, record, fmt.Sprint(node, record), verdicttest.Pod(name)), mac, w.Link(node, fmt.Sprint("v", record), verdict.PointToPoint, false))
}

// tap adds the port of a virtual machine on a bridge of n1.
func (w *world) tap() *verdict.Interface {
	return w.Interface(w.Host("n1"), verdict.Interface{Name: "vnet0", MAC: "btapta", Attachment: verdict.Own, Link: w.Link("n1", "br0", verdict.Bridge, true), Tap: true})
}

// machine adds a virtual machine that is a node with the address.
func (w *world) machine(node, mac string, attachment verdict.Attachment) {
	i := w.Uplink(node)
	i.MAC, i.Attachment = verdict.MAC(mac), attachment
	w.Assigned(i)
}

const (
	vrrpMAC     = "\x00\x00\x5e\x00\x01\x33"
	dockerMAC   = "\x02\x42\x0a\x00\x00\x05"
	externalMAC = "\x02\x00\x00\x00\x00\x99"
	other       = "\x02\x00\x00\x00\x00\x98"
)

func TestOwners(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world)
		want  []string
	}{
		// Claims of kernels.
		{"a pod and its frame", func(w *world) {
			inside, port := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(inside)
			w.Wire(port, "baaaaa")
		}, []string{"a n1/eth0 live assigned NODE=n1 2"}},
		{"the widest scope of several interfaces is the owner's", func(w *world) {
			inside, _ := w.Veth(w.Namespace("n1", 2, "2", verdicttest.Pod("a")), "baaaaa", w.Link("n1", "br0", verdict.Bridge, false))
			w.Assigned(inside)
			second, _ := w.Veth(inside.Namespace, "baaaab", w.Link("n1", "v2", verdict.PointToPoint, false))
			second.Name = "net1"
			w.Assigned(second)
		}, []string{"a n1/eth0 live assigned NODE=n1 2"}},
		{"an address on a loopback, and a frame that claims it", func(w *world) {
			inside, port := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(w.Interface(inside.Namespace, verdict.Interface{Name: "lo", Attachment: verdict.Local}))
			w.Wire(port, "baaaaa")
		}, []string{"a n1/lo live loopback-or-dummy 2"}},
		{"an address on a private link", func(w *world) {
			w.Assigned(w.Interface(w.Namespace("n1", 2, "2", verdicttest.Pod("a")), verdict.Interface{Name: "k6t", Attachment: verdict.Private}))
		}, []string{"a n1/k6t live private-link 1"}},
		{"a private link, and a frame that the node sees", func(w *world) {
			inside, port := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(w.Interface(inside.Namespace, verdict.Interface{Name: "k6t", Attachment: verdict.Private}))
			w.Wire(port, "baaaaa")
		}, []string{"a n1/k6t live NODE=n1 2"}},
		{"a private link, and an answer without the Override flag", func(w *world) {
			inside, port := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(w.Interface(inside.Namespace, verdict.Interface{Name: "k6t", Attachment: verdict.Private}))
			w.Wire(port, "baaaaa").NoOverride = true
		}, []string{"a n1/k6t live private-link 2"}},
		{"a loopback address", func(w *world) {
			w.Addr = netip.MustParseAddr("127.0.0.5")
			inside, _ := w.ptp("n1", 2, "a", "baaaaa")
			w.Wire(inside, "baaaaa")
		}, []string{"a n1/eth0 live loopback-or-dummy 1"}},
		{"pods that share an address as it is declared", func(w *world) {
			inside, _ := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(inside)
			w.Policy.Shared = []verdict.Shared{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}}
		}, []string{"a n1/eth0 live assigned declared-shared 1"}},
		{"a kernel that found it a duplicate", func(w *world) {
			inside, _ := w.ptp("n1", 2, "a", "baaaaa")
			w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed, Interface: inside})
		}, []string{"a n1/eth0 live NODE=n1 1"}},

		// States of owners.
		{"a disconnected node", func(w *world) {
			inside, _ := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(inside)
			w.Node("n1").Unheard = true
			w.after(time.Hour)
		}, []string{"a n1/eth0 unheard assigned NODE=n1 1"}},
		{"a sighting by a node that is now disconnected", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC)
			w.Node("n1").Unheard = true
			w.after(time.Hour)
		}, []string{externalMAC + " n1/eth0 unheard LINK=n1/eth0 1"}},
		{"a sighting by a node that timed out", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC)
			w.Node("n1").Unheard, w.Node("n1").TimedOut = true, true
		}, []string{externalMAC + " n1/eth0 gone stale 1"}},
		{"an external device, just before it is stale", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC)
			w.after(w.Policy.StaleAfter - 1)
		}, []string{externalMAC + " n1/eth0 live LINK=n1/eth0 1"}},
		{"an external device, when it is stale", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC)
			w.after(w.Policy.StaleAfter)
		}, []string{externalMAC + " n1/eth0 stale stale 1"}},
		{"an external device that another node saw later", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			w.Wire(lan[0], externalMAC)
			w.after(w.Policy.StaleAfter-1).Wire(lan[1], externalMAC)
			w.after(1)
		}, []string{externalMAC + " n1/eth0 live LINK=n1/eth0 2"}},
		{"a pod of a node that has timed out, which another one saw long ago", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			w.Assigned(w.Child("a", "baaaaa", lan[0].Link))
			w.Wire(lan[1], "baaaaa")
			w.Node("n1").TimedOut = true
			w.after(w.Policy.StaleAfter)
		}, []string{"a n1/eth0 gone assigned LINK=n1/eth0 2"}},
		{"the same of a pod whose kernel found a duplicate", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed, Interface: w.Child("a", "baaaaa", lan[0].Link)})
			w.Wire(lan[1], "baaaaa")
			w.Node("n1").TimedOut = true
			w.after(w.Policy.StaleAfter)
		}, []string{"a n1/eth0 gone LINK=n1/eth0 2"}},
		{"a pod of a node that has timed out, which another one saw just now", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			w.Assigned(w.Child("a", "baaaaa", lan[0].Link))
			w.Wire(lan[1], "baaaaa")
			w.Node("n1").TimedOut = true
		}, []string{"a n1/eth0 live assigned LINK=n1/eth0 2"}},

		// Senders of frames.
		{"a neighbour table entry alone", func(w *world) {
			w.Claim(verdict.Claim{Kind: verdict.Believed, Interface: w.Uplink("n1"), Frame: verdict.Frame{Link: w.Link("n1", "eth0", verdict.Uplink, false), MAC: externalMAC}})
		}, []string{externalMAC + " n1/eth0 live believed 1"}},
		{"an external device on a LAN is one, whoever saw it", func(w *world) {
			for _, i := range verdicttest.OnLAN(w.World, "n1", "n2") {
				w.Wire(i, externalMAC)
			}
		}, []string{externalMAC + " n1/eth0 live LINK=n1/eth0 2"}},
		{"an external device on two links that are not known to be one is two", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC)
			w.Wire(w.Uplink("n2"), externalMAC)
		}, []string{externalMAC + " n1/eth0 live LINK=n1/eth0 1", externalMAC + " n2/eth0 live LINK=n2/eth0 1"}},
		{"two external devices, one of them seen in two VLANs", func(w *world) {
			eth0 := w.Uplink("n1")
			w.Wire(eth0, externalMAC)
			w.Wire(eth0, externalMAC).VLAN = 7
			w.Wire(eth0, other)
		}, []string{other + " n1/eth0 live LINK=n1/eth0 1", externalMAC + " n1/eth0 live LINK=n1/eth0 2"}},
		{"two agents on one kernel see one guest", func(w *world) {
			w.Node("n2").Boot, w.Node("n2").Netns = "boot-n1", "2"
			for _, node := range []string{"n2", "n1"} {
				_, port := w.Veth(w.Namespace(node, 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link(node, "v1", verdict.PointToPoint, false))
				w.Wire(port, externalMAC)
			}
		}, []string{"a n1/veth102 live NODE=n1 2"}},
		{"a pod that another node saw is where it is", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			w.Interface(w.Namespace("n2", 2, "2", verdicttest.Pod("a")), verdict.Interface{Name: "net1", MAC: "baaaaa", Attachment: verdict.Lower, Link: lan[1].Link})
			w.Wire(lan[0], "baaaaa")
		}, []string{"a n2/net1 live LINK=n1/eth0 1"}},
		{"a pod by two of its interfaces is shown by the first", func(w *world) {
			l := w.Link("n1", "br0", verdict.Bridge, false)
			ns := w.Namespace("n1", 2, "2", verdicttest.Pod("a"))
			first, _ := w.Veth(ns, "baaaaa", l)
			second, _ := w.Veth(ns, "baaaab", l)
			first.Index, second.Index, second.Name = 2, 3, "net1"
			port := w.Uplink("n1")
			port.Link = l
			for _, mac := range []string{"baaaab", "baaaaa"} {
				w.Wire(port, mac)
			}
		}, []string{"a n1/eth0 live LINK=n1/br0 2"}},
		{"a port of which two interfaces behind it have the MAC", func(w *world) {
			ns := w.Namespace("n1", 2, "2", verdicttest.Pod("a"))
			first, port := w.Veth(ns, "baaaaa", w.Link("n1", "v2", verdict.PointToPoint, false))
			second := w.Interface(ns, verdict.Interface{Name: "net1", MAC: "baaaaa", Attachment: verdict.Lower, Link: first.Link})
			first.Index, second.Index = 9, 3
			w.Wire(port, "baaaaa")
		}, []string{"a n1/net1 live NODE=n1 1"}},
		{"the namespace behind the port counts, though another one has the MAC", func(w *world) {
			_, port := w.ptp("n1", 2, "a", "baaaaa")
			w.ptp("n1", 3, "b", "baaaaa")
			w.Wire(port, "baaaaa")
		}, []string{"a n1/eth0 live NODE=n1 1"}},
		{"an unknown MAC enters through a pod's port", func(w *world) {
			_, port := w.ptp("n1", 2, "a", "baaaaa")
			w.Wire(port, externalMAC)
		}, []string{"a n1/vethn12 live NODE=n1 1"}},
		{"an unknown MAC enters through a cable to another namespace", func(w *world) {
			_, port := w.ptp("n1", 2, "a", "baaaaa")
			port.Uplink = true
			w.Wire(port, externalMAC)
		}, []string{externalMAC + " n1/vethn12 live LINK=n1/v2 1"}},
		{"a MAC of another node enters by a pod's port", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			w.Interface(w.Namespace("n2", 2, "2", verdicttest.Pod("x")), verdict.Interface{MAC: "bxxxxx", Attachment: verdict.Lower, Link: lan[1].Link})
			_, port := w.Veth(w.Namespace("n1", 2, "2", verdicttest.Pod("a")), "baaaaa", lan[0].Link)
			w.Wire(port, "bxxxxx")
		}, []string{"a n1/veth2 live LINK=n1/eth0 1"}},
		{"a container's MAC that docker made enters from outside", func(w *world) {
			inside, _ := w.Veth(w.Namespace("n1", 2, "2", verdicttest.Pod("a")), dockerMAC, w.Link("n1", "docker0", verdict.Bridge, true))
			w.Assigned(inside)
			w.Wire(w.Uplink("n1"), dockerMAC)
		}, []string{dockerMAC + " n1/eth0 live LINK=n1/eth0 1", "a n1/eth0 live assigned NODE=n1 1"}},
		{"a MAC made by docker enters through a port of another link", func(w *world) {
			w.Veth(w.Namespace("n1", 2, "2", verdicttest.Pod("a")), dockerMAC, w.Link("n1", "docker0", verdict.Bridge, true))
			w.Wire(w.Interface(w.Host("n1"), verdict.Interface{Name: "eth1", Attachment: verdict.Own, Link: w.Link("n1", "br1", verdict.Bridge, true)}), dockerMAC)
		}, []string{"a n1/eth0 live LINK=n1/br1 1"}},
		{"a MAC made by docker enters through an uplink of the container's own bridge", func(w *world) {
			w.Veth(w.Namespace("n1", 2, "2", verdicttest.Pod("a")), dockerMAC, w.Link("n1", "docker0", verdict.Bridge, true))
			port := w.Uplink("n1")
			port.Link = w.Link("n1", "docker0", verdict.Bridge, true)
			w.Wire(port, dockerMAC)
		}, []string{"a n1/eth0 live LINK=n1/docker0 1"}},
		{"an ordinary MAC of another link enters from outside", func(w *world) {
			w.ptp("n1", 2, "a", "baaaaa")
			w.Wire(w.Uplink("n1"), "baaaaa")
		}, []string{"a n1/eth0 live LINK=n1/eth0 1"}},

		{"two pods have the MAC, and the second one the address", func(w *world) {
			port := w.Uplink("n1")
			w.Child("a", "baaaaa", port.Link)
			w.Assigned(w.Child("b", "baaaaa", port.Link))
			w.Wire(port, "baaaaa")
		}, []string{"b n1/eth0 live assigned LINK=n1/eth0 2"}},
		{"two nodes have a virtual router's MAC and address", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
			for _, i := range lan[:2] {
				i.MAC = vrrpMAC
				w.Assigned(i)
			}
			w.Wire(lan[1], vrrpMAC) // the second node sees its own frame
			w.Wire(lan[2], vrrpMAC) // the third node sees a frame of the first one
			w.Wire(lan[2], vrrpMAC).VLAN = 7
		}, []string{"n1 n1/eth0 live assigned NODE=n1 3", "n2 n2/eth0 live assigned NODE=n2 2"}},
		{"a virtual router's MAC that a node has without the address", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			lan[0].MAC = vrrpMAC
			w.Wire(lan[1], vrrpMAC)
			w.Wire(lan[0], vrrpMAC)
		}, []string{vrrpMAC + " n1/eth0 live LINK=n1/eth0 2"}},
		{"two nodes have a MAC, and the second one hosts the owner", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
			lan[0].MAC, lan[1].MAC = "bxxxxx", "bxxxxx"
			inside, _ := w.ptp("n2", 2, "a", "baaaaa")
			w.Assigned(inside)
			w.Wire(lan[2], "bxxxxx")
		}, []string{"a n2/eth0 live assigned NODE=n2 2"}},
		{"two nodes have a MAC, and neither hosts an owner", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
			lan[0].MAC, lan[1].MAC = "bxxxxx", "bxxxxx"
			w.Wire(lan[2], "bxxxxx")
		}, []string{"n1 n1/eth0 live LINK=n3/eth0 1"}},
		{"a node hosts two owners, the second one on the link", func(w *world) {
			inside, _ := w.ptp("n1", 2, "a", "baaaaa")
			w.Assigned(inside)
			port := w.Uplink("n1")
			w.Assigned(w.Child("b", "bbbbbb", port.Link))
			w.Wire(port, string(port.MAC))
		}, []string{"b n1/eth0 live assigned LINK=n1/eth0 2", "a n1/eth0 live assigned NODE=n1 1"}},
		{"a node hosts a service address and an owner", func(w *world) {
			for record, attachment := range map[uint32]verdict.Attachment{2: verdict.Local, 3: verdict.Private} {
				w.Assigned(w.Interface(w.Namespace("n1", record, fmt.Sprint(record), verdicttest.Pod("svc")), verdict.Interface{Name: "lo", Attachment: attachment}))
			}
			inside, _ := w.ptp("n1", 4, "a", "baaaaa")
			w.Assigned(inside)
			port := w.Uplink("n1")
			w.Wire(port, string(port.MAC))
		}, []string{"svc n1/lo live loopback-or-dummy 1", "svc n1/lo live private-link 1", "a n1/eth0 live assigned NODE=n1 2"}},
		{"a node hosts two owners on the link", func(w *world) {
			port := w.Uplink("n1")
			w.Assigned(w.Child("a", "baaaaa", port.Link))
			w.Assigned(w.Child("b", "bbbbbb", port.Link))
			w.Wire(port, string(port.MAC))
		}, []string{"a n1/eth0 live assigned LINK=n1/eth0 2", "b n1/eth0 live assigned LINK=n1/eth0 1"}},
		{"a node that has the address itself, and hosts another owner", func(w *world) {
			port := w.Uplink("n1")
			port.Index = 9
			w.Assigned(port)
			w.Assigned(w.Child("a", "baaaaa", port.Link))
			w.Wire(port, string(port.MAC))
		}, []string{"n1 n1/eth0 live assigned NODE=n1 2", "a n1/eth0 live assigned LINK=n1/eth0 1"}},
		{"a frame with the MAC of a dummy device", func(w *world) {
			w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{Name: "dummy0", MAC: "bdummy", Attachment: verdict.Local}))
			w.Wire(w.Uplink("n1"), "bdummy")
		}, []string{"n1 n1/dummy0 live loopback-or-dummy 2"}},

		// A virtual machine that runs an agent.
		{"its frame by a tap", func(w *world) {
			w.machine("vm", "bvmvmv", verdict.Own)
			w.Wire(w.tap(), "bvmvmv")
		}, []string{"vm vm/eth0 live assigned NODE=vm 2"}},
		{"its frame by a port that is no tap", func(w *world) {
			w.machine("vm", "bvmvmv", verdict.Own)
			tap := w.tap()
			tap.Tap = false
			w.Wire(tap, "bvmvmv")
		}, []string{"bvmvmv n1/vnet0 live LINK=n1/br0 1", "vm vm/eth0 live assigned NODE=vm 1"}},
		{"another MAC by the tap", func(w *world) {
			w.machine("vm", "bvmvmv", verdict.Own)
			w.Wire(w.tap(), externalMAC)
		}, []string{externalMAC + " n1/vnet0 live NODE=n1 1", "vm vm/eth0 live assigned NODE=vm 1"}},
		{"a MAC by the tap that machines share by design", func(w *world) {
			w.machine("vm", dockerMAC, verdict.Own)
			w.Wire(w.tap(), dockerMAC)
		}, []string{dockerMAC + " n1/vnet0 live NODE=n1 1", "vm vm/eth0 live assigned NODE=vm 1"}},
		{"it has the address on a dummy device", func(w *world) {
			w.machine("vm", "bvmvmv", verdict.Local)
			w.Wire(w.tap(), "bvmvmv")
		}, []string{"bvmvmv n1/vnet0 live NODE=n1 1", "vm vm/eth0 live loopback-or-dummy 1"}},
		{"two machines have the MAC", func(w *world) {
			w.machine("vm1", "bvmvmv", verdict.Own)
			w.machine("vm2", "bvmvmv", verdict.Own)
			w.Wire(w.tap(), "bvmvmv")
		}, []string{"vm1 vm1/eth0 live assigned NODE=vm1 2", "vm2 vm2/eth0 live assigned NODE=vm2 1"}},
		{"the node itself has the MAC and the address on another link", func(w *world) {
			w.Assigned(w.Child("a", "bvmvmv", w.Link("n1", "eth1", verdict.Uplink, false)))
			w.Wire(w.tap(), "bvmvmv")
		}, []string{"a n1/eth0 live assigned LINK=n1/br0 2"}},

		// Proxies.
		{"an advertisement without the Override flag", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC).NoOverride = true
		}, []string{externalMAC + " n1/eth0 live reachable-via 1"}},
		{"the node answers with its own MAC", func(w *world) {
			eth0 := w.Uplink("n1")
			w.Wire(eth0, string(eth0.MAC)).Kind = verdict.Answered
		}, []string{"n1 n1/eth0 live reachable-via 1"}},
		{"a pod answers with its own MAC for an address that it was meant to have", func(w *world) {
			inside, port := w.ptp("n1", 2, "a", "baaaaa")
			inside.Namespace.Intended = "10.0.0.5 cni-result eth0\n"
			w.Wire(port, "baaaaa").Kind = verdict.Answered
		}, []string{"a n1/eth0 live NODE=n1 1"}},
		{"a pod answers with a MAC of something behind it", func(w *world) {
			_, port := w.ptp("n1", 2, "a", "baaaaa")
			w.Wire(port, externalMAC).Kind = verdict.Answered
		}, []string{"a n1/vethn12 live NODE=n1 1"}},
		{"Calico answers", func(w *world) {
			w.Wire(w.Uplink("n1"), calicoMAC).Kind = verdict.Answered
		}, []string{calicoMAC + " n1/eth0 live reachable-via 1"}},
		{"an external device answers for this address", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC).Kind = verdict.Answered
		}, []string{externalMAC + " n1/eth0 live LINK=n1/eth0 1"}},
		{"a router answers for many", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC).Kind = verdict.Answered
			w.Answers = map[verdict.MAC][2]int{externalMAC: {verdict.ManyAnswers, 0}}
		}, []string{externalMAC + " n1/eth0 live reachable-via 1"}},
		{"a router answers for nearly as many", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC).Kind = verdict.Answered
			w.Answers = map[verdict.MAC][2]int{externalMAC: {verdict.ManyAnswers - 1, verdict.SeveralOwned - 1}}
		}, []string{externalMAC + " n1/eth0 live LINK=n1/eth0 1"}},
		{"a router answers for several owners", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC).Kind = verdict.Answered
			w.Answers = map[verdict.MAC][2]int{externalMAC: {2, verdict.SeveralOwned}}
		}, []string{externalMAC + " n1/eth0 live reachable-via 1"}},
		{"another MAC than the router's answers", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC).Kind = verdict.Answered
			w.Answers = map[verdict.MAC][2]int{other: {verdict.ManyAnswers, verdict.SeveralOwned}}
		}, []string{externalMAC + " n1/eth0 live LINK=n1/eth0 1"}},
		{"a sender that answers for many uses this address", func(w *world) {
			eth0 := w.Uplink("n1")
			w.Wire(eth0, externalMAC).Kind = verdict.Answered
			w.Wire(eth0, externalMAC).Kind = verdict.Used
			w.Answers = map[verdict.MAC][2]int{externalMAC: {verdict.ManyAnswers, verdict.SeveralOwned}}
		}, []string{externalMAC + " n1/eth0 live LINK=n1/eth0 2"}},
		{"a sender that answers for many announces this address to another node", func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2")
			w.Wire(lan[0], externalMAC).Kind = verdict.Answered
			w.Wire(lan[1], externalMAC).VLAN = 1
			w.Answers = map[verdict.MAC][2]int{externalMAC: {verdict.ManyAnswers, verdict.SeveralOwned}}
		}, []string{externalMAC + " n2/eth0 live LINK=n1/eth0 2"}},
		{"a sender that answers for many used this address long ago", func(w *world) {
			eth0 := w.Uplink("n1")
			w.Wire(eth0, externalMAC).Kind = verdict.Used
			w.after(w.Policy.StaleAfter).Wire(eth0, externalMAC).Kind = verdict.Answered
			w.Answers = map[verdict.MAC][2]int{externalMAC: {verdict.ManyAnswers, verdict.SeveralOwned}}
		}, []string{externalMAC + " n1/eth0 live LINK=n1/eth0 2"}},
		{"a sender that answers for many announced this address long ago", func(w *world) {
			eth0 := w.Uplink("n1")
			w.Wire(eth0, externalMAC)
			w.after(w.Policy.StaleAfter).Wire(eth0, externalMAC).Kind = verdict.Answered
			w.Answers = map[verdict.MAC][2]int{externalMAC: {verdict.ManyAnswers, verdict.SeveralOwned}}
		}, []string{externalMAC + " n1/eth0 live LINK=n1/eth0 2"}},
		{"a sender that answers for many announced this address long ago on another link", func(w *world) {
			w.Wire(w.Uplink("n2"), externalMAC)
			w.after(w.Policy.StaleAfter).Wire(w.Uplink("n1"), externalMAC).Kind = verdict.Answered
			w.Answers = map[verdict.MAC][2]int{externalMAC: {verdict.ManyAnswers, verdict.SeveralOwned}}
		}, []string{externalMAC + " n1/eth0 live reachable-via 1", externalMAC + " n2/eth0 stale stale 1"}},
		{"another sender announces the answered address", func(w *world) {
			eth0 := w.Uplink("n1")
			w.Wire(eth0, externalMAC).Kind = verdict.Answered
			w.Wire(eth0, other)
			w.Answers = map[verdict.MAC][2]int{externalMAC: {verdict.ManyAnswers, verdict.SeveralOwned}}
		}, []string{other + " n1/eth0 live LINK=n1/eth0 1", externalMAC + " n1/eth0 live reachable-via 1"}},
		{"a sender that answers for many announces this address in a frame of another MAC", func(w *world) {
			eth0 := w.Uplink("n1")
			w.Wire(eth0, externalMAC).Kind = verdict.Answered
			w.Wire(eth0, externalMAC).Source = other
			w.Answers = map[verdict.MAC][2]int{externalMAC: {verdict.ManyAnswers, verdict.SeveralOwned}}
		}, []string{externalMAC + " n1/eth0 live reachable-via 2"}},

		// Frames that prove nothing.
		{"a frame from another MAC than it claims", func(w *world) {
			w.Wire(w.Uplink("n1"), externalMAC).Source = other
		}, []string{externalMAC + " n1/eth0 live weak-source 1"}},
		{"a MAC that no host can have", func(w *world) {
			w.Wire(w.Uplink("n1"), group)
		}, []string{group + " n1/eth0 live weak-source 1"}},
		{"frames with the MAC of a neighbour", func(w *world) {
			l := w.Link("n1", "br0", verdict.Bridge, false)
			w.Veth(w.Namespace("n1", 2, "2", verdicttest.Pod("a")), "baaaaa", l)
			_, port := w.Veth(w.Namespace("n1", 3, "3", verdicttest.Pod("evil")), "bbbbbb", l)
			w.Wire(port, "baaaaa")
		}, []string{"evil n1/veth3 live mac-cloned 1"}},
	} {
		w := newWorld("10.0.0.5")
		test.build(w)
		w.wantOwners(t, test.name, test.want...)
	}
}

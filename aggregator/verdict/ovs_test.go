package verdict_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// onOVS gives a pod of a node the address on a port of Open vSwitch. The node's end of its veth is
// port.
func onOVS(w *world, node, name, port string) *verdict.Claim {
	record := uint32(len(w.Namespaces) + 2)
	ns := w.Namespace(node, record, fmt.Sprint(100+record), verdicttest.Pod(name))
	inside, _ := w.Veth(ns, "\x0a\x58\x0a\xf4\x01\x05", w.Link(node, port, verdict.OVSPort, false))
	inside.HostInterface = port
	return w.Assigned(inside)
}

// says adds the object of a pod that has the address according to the annotations of a plugin.
func (w *world) says(name string, at ...verdict.Membership) {
	p := verdict.PodObject{Namespace: "default", Name: name, Phase: "Running", Memberships: at}
	for i := range p.Memberships {
		p.Memberships[i].Address = w.Addr
	}
	w.Says("uid-"+name, p)
}

// Two pods on ports of Open vSwitch have one address, and one MAC that is derived from it.
func TestPodsOnOpenVSwitchPorts(t *testing.T) {
	const addr, kubeOVN = "10.244.1.5", "4f3a0d5b1c2d_h"
	ovs := func(network string) verdict.Membership { return verdict.Membership{Network: network, OVS: true} }
	given := func(w *world) {
		for i, name := range []string{"a", "b"} {
			onOVS(w, fmt.Sprintf("n%d", i+1), name, "veth"+name).Network = "ovn-kubernetes"
		}
	}
	kube := func(w *world) {
		for i, name := range []string{"a", "b"} {
			onOVS(w, fmt.Sprintf("n%d", i+1), name, fmt.Sprint(i)+kubeOVN).Network = "kube-ovn"
		}
	}
	pods := []string{"NETWORK=pods assigned-twice a b"}
	for _, test := range []struct {
		name  string
		build func(w *world)
		want  []string
	}{
		{"CNI results", given, pods},
		{"the runtime", func(w *world) {
			given(w)
			w.Claims[0].Network, w.Claims[1].Network = verdict.NetworkOfRuntime, verdict.NetworkOfRuntime
		}, pods},
		{"the API's status.podIPs", func(w *world) {
			given(w)
			w.Claims[0].Network, w.Claims[1].Network = "", ""
			for _, name := range []string{"a", "b"} {
				w.Says("uid-"+name, verdict.PodObject{Phase: "Running", IPs: []netip.Addr{w.Addr}})
			}
		}, pods},
		{"nothing that makes it a pod's address", func(w *world) {
			given(w)
			w.Claims[1].Network = ""
			w.says("b")
		}, nil},
		{"a range of pod addresses, which tenants may use as well", func(w *world) {
			given(w)
			w.Claims[0].Network, w.Claims[1].Network = "", ""
			w.PodCIDR = netip.MustParsePrefix("10.244.0.0/16")
		}, nil},
		{"on one node", func(w *world) {
			onOVS(w, "n1", "a", "vetha").Network = "antrea"
			onOVS(w, "n1", "b", "vethb").Network = "antrea"
		}, pods},
		{"a pod and the node's cilium_host", func(w *world) { // incident 14
			onOVS(w, "n1", "a", kubeOVN)
			w.says("a", ovs("pods"))
			w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{Name: "cilium_host", Kind: "veth", MAC: "cilium", Attachment: verdict.Own, Link: w.Link("n1", "cilium_host", verdict.PointToPoint, false)}))
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
		}, []string{"NETWORK=pods assigned-twice n1 a"}},
		{"a pod and the node's cilium_host, in no range of a node", func(w *world) {
			onOVS(w, "n2", "a", kubeOVN)
			w.says("a", ovs("pods"))
			w.Device("n1", "cilium_host", "veth")
		}, []string{"NETWORK=pods assigned-twice n1 a"}},
		{"a pod and the management port of its node", func(w *world) { // ovn-kubernetes#698
			onOVS(w, "n1", "a", "vetha").Network = "ovn-kubernetes"
			w.Device("n1", "ovn-k8s-mp0", "openvswitch").Link.Kind = verdict.OVSPort
		}, []string{"NETWORK=pods assigned-twice n1 a"}},
		{"a pod and the management port of a user-defined network", func(w *world) {
			onOVS(w, "n1", "a", "vetha").Network = "ovn-kubernetes"
			w.Device("n1", "ovn-k8s-mp1", "openvswitch").Link.Kind = verdict.OVSPort
		}, nil},
		{"one user-defined network", func(w *world) {
			given(w)
			w.says("a", ovs("udn/blue"))
			w.says("b", ovs("udn/blue"))
		}, []string{"NETWORK=udn/blue assigned-twice a b"}},
		{"two user-defined networks", func(w *world) {
			given(w)
			w.says("a", ovs("udn/blue"))
			w.says("b", ovs("udn/red"))
		}, nil},
		{"a user-defined network and the default network", func(w *world) {
			given(w)
			w.says("a", ovs("udn/blue"))
			w.says("b", ovs("pods"))
		}, nil},
		{"an unknown user-defined network", func(w *world) {
			given(w)
			w.says("a", ovs(""))
			w.says("b", ovs(""))
		}, nil},
		{"a pod with the address in two networks", func(w *world) {
			given(w)
			w.says("a", ovs("udn/blue"), ovs("udn/red"))
			w.says("b", ovs("udn/blue"))
		}, nil},
		{"Kube-OVN, default VPC", func(w *world) {
			kube(w)
			w.says("a", ovs("pods"))
			w.says("b", ovs("pods"))
		}, pods},
		{"Kube-OVN, two VPCs", func(w *world) {
			kube(w)
			w.says("a", ovs("vpc/blue"))
			w.says("b", ovs("vpc/red"))
		}, nil},
		{"Kube-OVN, a pod and a machine on its underlay, which docs/verdicts.md names as not seen", func(w *world) {
			onOVS(w, "n1", "a", kubeOVN)
			w.says("a", ovs("subnet/vlan"))
			card := w.Uplink("n1")
			card.Link.Kind = verdict.OVSPort
			w.Wire(card, "\x02\x00\x00\x00\x00\x09")
		}, nil},
		{"Kube-OVN, one of the VPCs is not known", func(w *world) {
			kube(w)
			w.says("a", ovs("pods"))
			w.says("b")
		}, nil},
		{"Kube-OVN without the Kubernetes API", kube, nil},
		{"Kube-OVN, a sandbox whose pod is gone", func(w *world) {
			kube(w)
			w.says("a", ovs("pods"))
			w.Says("uid-b", verdict.PodObject{Absent: true})
		}, nil},
		{"Kube-OVN, a sandbox whose pod is gone, and no tenants", func(w *world) {
			kube(w)
			w.OneTenant = true
			w.says("a", ovs("pods"))
			w.Says("uid-b", verdict.PodObject{Absent: true})
		}, pods},
		{"the annotation counts on ports of Open vSwitch only", func(w *world) {
			given(w)
			w.says("a", ovs("udn/blue"))
			w.says("b", ovs("udn/red"))
			for _, l := range w.Links {
				l.Kind = verdict.PointToPoint
			}
		}, pods},
		{"a declared network counts more", func(w *world) {
			kube(w)
			w.declare("all 10.0.0.0/8")
		}, []string{"NETWORK=all assigned-twice a b"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(addr)
			test.build(w)
			w.wantConflicts(t, test.name, test.want...)
		})
	}
}

// attached gives a pod of a node the address on a further interface, over the node's uplink.
func attached(w *world, node, name string, kind verdict.LinkKind) *verdict.Claim {
	record := uint32(len(w.Namespaces) + 2)
	ns := w.Namespace(node, record, fmt.Sprint(100+record), verdicttest.Pod(name))
	c := w.Assigned(w.Interface(ns, verdict.Interface{
		Name: "net1", MAC: "\x0a\x58\xc0\xa8\x01\xca", Attachment: verdict.Peer, Link: w.Link(node, "veth"+name, kind, false), HostInterface: "veth" + name,
	}))
	c.Network = "lan"
	return c
}

func TestSecondaryNetworks(t *testing.T) {
	nad := func(network string) verdict.Membership {
		return verdict.Membership{Network: network, Interface: "net1"}
	}
	perNode := func(network string) verdict.Membership {
		return verdict.Membership{Network: network, Interface: "net1", PerNode: true}
	}
	pair := func(w *world, kind verdict.LinkKind, a, b verdict.Membership) {
		attached(w, "n1", "a", kind)
		attached(w, "n2", "b", kind)
		w.says("a", a)
		w.says("b", b)
	}
	// frame makes a frame of the pod enter a node through an uplink that is a port of Open vSwitch.
	frame := func(w *world, node string) *verdict.Claim {
		uplink := w.Uplink(node)
		uplink.Link.Kind = verdict.OVSPort
		return w.Wire(uplink, "\x0a\x58\xc0\xa8\x01\xca")
	}
	lan := []string{"NETWORK=nad/default/lan assigned-twice a b"}
	for _, test := range []struct {
		name  string
		build func(w *world)
		want  []string
	}{
		{"an IPAM of the cluster", func(w *world) { pair(w, verdict.Uplink, nad("nad/default/lan"), nad("nad/default/lan")) }, lan},
		{"ports of Open vSwitch", func(w *world) { pair(w, verdict.OVSPort, nad("nad/default/lan"), nad("nad/default/lan")) }, lan},
		{"two definitions", func(w *world) { pair(w, verdict.Uplink, nad("nad/default/lan"), nad("nad/other/lan")) }, nil},
		{"one of the pods has another interface", func(w *world) {
			other := nad("nad/default/lan")
			other.Interface = "net2"
			pair(w, verdict.Uplink, nad("nad/default/lan"), other)
		}, nil},
		{"no annotation", func(w *world) {
			attached(w, "n1", "a", verdict.Uplink)
			attached(w, "n2", "b", verdict.Uplink)
		}, nil},
		{"an IPAM of each node", func(w *world) { pair(w, verdict.OVSPort, perNode("nad/default/lan"), perNode("nad/default/lan")) }, nil},
		{"an IPAM of each node, and frames in one direction", func(w *world) {
			pair(w, verdict.OVSPort, perNode("nad/default/lan"), perNode("nad/default/lan"))
			frame(w, "n2")
		}, nil},
		{"an IPAM of each node, and frames in both directions", func(w *world) { // incident 35
			pair(w, verdict.OVSPort, perNode("nad/default/lan"), perNode("nad/default/lan"))
			frame(w, "n1")
			frame(w, "n2")
		}, lan},
		{"the same with two definitions", func(w *world) {
			pair(w, verdict.OVSPort, perNode("nad/default/lan"), perNode("nad/other/lan"))
			frame(w, "n1")
			frame(w, "n2")
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld("192.168.1.202")
			test.build(w)
			w.wantConflicts(t, test.name, test.want...)
		})
	}
}

// A conflict keeps its ID when the owners turn out to be on one link as well.
func TestSecondaryNetworkOnOneLink(t *testing.T) {
	w := newWorld("192.168.1.202")
	uplinks := verdicttest.OnLAN(w.World, "n1", "n2")
	for i, name := range []string{"a", "b"} {
		attached(w, fmt.Sprintf("n%d", i+1), name, verdict.Uplink).Interface.Link = uplinks[i].Link
		w.says(name, verdict.Membership{Network: "nad/default/lan", Interface: "net1"})
	}
	w.wantConflicts(t, "the link is known", "LINK=n1/eth0 assigned-twice a b")
	for _, u := range uplinks {
		u.Link.Domain, u.Link.Proven, u.Link.BothWays = nil, nil, nil
	}
	first := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "nad/default/lan")
	verdicttest.OnLAN(w.World, "n1", "n2")
	w.after(time.Second)
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "nad/default/lan"); c.ID != first.ID {
		t.Errorf("got conflict %s, want it to keep its ID %s", c.ID, first.ID)
	}
}

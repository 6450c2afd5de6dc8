package verdicttest

import (
	"net/netip"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// OnLANOf gives a node the address on its card, and one minute later a pod of node n1 on the same LAN, from a range
// of its node. later is how much later the node got the address than that.
func OnLANOf(w *World, node string, later time.Duration) {
	nodes := []string{"n1"}
	if node != "n1" {
		nodes = append(nodes, node)
	}
	lan := OnLAN(w, nodes...)
	for _, i := range lan {
		i.Namespace.Node.SkewKnown = true
	}
	c := w.Assigned(lan[len(lan)-1])
	c.AssignedAt = w.Now.Add(later)
	c.First = c.AssignedAt
	w.After(time.Minute)
	w.Assigned(w.Child("web", "baaaaa", lan[0].Link)).Network = "lan"
	w.Books(w.Pool(hostlocal.Name, "n1", "lan", "192.0.2.10-192.0.2.99"), "web").Pod = "web"
	w.Allocations[0].Namespace = "default"
}

// ofDevices are the situations whose causes depend on the device that has the address, or on its
// pod.
var ofDevices = []Situation{
	{
		Name: "T6 a pod has the own address of its node, which DHCP gave", Cause: unknown,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Device("n1", "eth0", "")
			w.Claims[1].Flags = 0
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
			w.Internal = "n1"
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=eth0",
			"ipam-state-lost: given-once owners=web pool=host-local|n1|kindnet",
			"static-address: has-lifetime owners=n1",
		},
	},
	{
		Name: "T6 a pod has the own address of its node", Cause: static,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Device("n1", "eth0", "")
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
			w.Internal = "n1"
		},
		Facts: []string{
			"given-by-network owners=web network=kindnet",
			"on-device-of-node owners=n1 device=eth0",
			"range-of-pool pool=host-local|n1|kindnet ranges=10.244.0.1-10.244.255.254",
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=eth0",
			"ipam-state-lost: given-once owners=web pool=host-local|n1|kindnet",
		},
	},
	{
		Name: "T6 on the node", Cause: static,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Device("n1", "eth0", "")
		},
		Facts: []string{
			"given-by-network owners=web network=kindnet",
			"on-device-of-node owners=n1 device=eth0",
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=eth0",
		},
	},
	{
		Name: "T6 on the node, with records of IPAM", Cause: static,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Device("n1", "eth0", "")
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
		},
		Facts: []string{
			"given-by-network owners=web network=kindnet",
			"on-device-of-node owners=n1 device=eth0",
			"range-of-pool pool=host-local|n1|kindnet ranges=10.244.0.1-10.244.255.254",
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=eth0",
			"ipam-state-lost: given-once owners=web pool=host-local|n1|kindnet",
		},
	},
	{
		Name: "T6 in a pod whose CNI result does not have it", Cause: static,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Within("n1", "", "", Who("mad"))
		},
		Facts: []string{
			"given-by-network owners=web network=kindnet",
			"not-in-cni-result owners=mad",
		},
	},
	{
		Name: "T6 in a pod that the API has with another address", Cause: static,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			mad := Who("mad")
			mad.Source = "cri"
			w.Within("n1", "", "", mad)
			w.Says("uid-mad", verdict.PodObject{Namespace: "default", Name: "mad", Phase: "Running", IPs: []netip.Addr{netip.MustParseAddr("10.244.0.77")}})
		},
		Facts: []string{
			"given-by-network owners=web network=kindnet",
			"not-among-pod-addresses owners=mad address=10.244.0.77",
		},
	},
	{
		Name: "T6 in a namespace that IPAM does not know", Cause: static,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Within("n1", "", "", verdict.Workload{Kind: verdict.Unknown, Name: "blue", Source: "netns"})
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
		},
		Facts: []string{
			"given-by-network owners=web network=kindnet",
			"allocated-to-other-owner owners=blue,web",
			"range-of-pool pool=host-local|n1|kindnet ranges=10.244.0.1-10.244.255.254",
		},
		RuledOut: []string{
			"ipam-state-lost: given-once owners=web pool=host-local|n1|kindnet",
		},
	},
	{
		Name: "a pod that is starting, and whose assignment is not known yet", Cause: unknown,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Within("n1", "", "", verdict.Workload{Kind: verdict.Unknown, Name: "cni-0123", Source: "netns"})
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "young")
		},
		RuledOut: []string{
			"ipam-state-lost: given-once owners=web pool=host-local|n1|kindnet",
			"static-address (open): giver-not-known owners=cni-0123",
		},
	},
	{
		Name: "a second interface of which no CNI result is known", Cause: unknown,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Within("n1", "", "", Who("multus")).Interface.Name = "net1"
		},
		RuledOut: []string{
			"static-address (open): giver-not-known owners=multus",
		},
	},
	{
		Name: "a container of podman, which has results of CNI, too", Cause: unknown,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Within("n1", "cni-podman1", "", Who("podman"))
		},
		RuledOut: []string{
			"static-address (open): giver-not-known owners=podman",
		},
	},
	{
		Name: "T6 behind the port of a pod", Cause: static,
		Build: func(w *World) {
			w.Within("n1", "cni0", "cbr0", Who("web"))
			Guest(w, "10.244.1.9 cni-result eth0")
		},
		Facts: []string{
			"given-by-network owners=web network=cbr0",
			"guest-of-owner-with-other-addresses owners=launcher",
		},
		RuledOut: []string{
			"external-device: behind-port owners=launcher",
		},
	},
	{
		Name: "a virtual machine that has its pod's own address", Cause: lost,
		Build: func(w *World) {
			w.Within("n1", "cni0", "cbr0", Who("web"))
			Guest(w, "10.244.1.5 cni-result eth0")
			w.Books(w.Pool(hostlocal.Name, "n1", "cbr0"), "launcher")
			w.Past = nil
		},
		Facts: []string{
			"given-by-network owners=web network=cbr0",
			"meant-for owners=launcher text=cni-result",
			"record pool=host-local|n1|cbr0 state=1 record=container-launcher->launcher",
		},
		RuledOut: []string{
			"external-device: behind-port owners=launcher",
			"static-address: given-to-all owners=web,launcher",
		},
	},
	{
		Name: "T6 a virtual machine of the node", Cause: static,
		Build: func(w *World) {
			w.Within("n1", "cni0", "cbr0", Who("web"))
			tap := w.Interface(w.Host("n1"), verdict.Interface{Name: "vnet0", Attachment: verdict.Own, Link: w.Link("n1", "cni0", verdict.Bridge, true), Tap: true})
			w.Wire(tap, "\x52\x54\x00\x00\x00\x01")
		},
		Facts: []string{
			"given-by-network owners=web network=cbr0",
			"guest-behind-port owners=52:54:00:00:00:01",
		},
		RuledOut: []string{
			"external-device: behind-port owners=52:54:00:00:00:01",
		},
	},
	{
		Name: "T6 a virtual machine of another node has the node's address, and its frames arrive there from outside", Cause: unknown, Addr: "192.168.1.10",
		Build: func(w *World) {
			uplinks := OnLAN(w, "n1", "n2", "n3")
			w.Assigned(uplinks[0])
			tap := w.Interface(w.Host("n2"), verdict.Interface{Name: "vnet0", Attachment: verdict.Own, Link: uplinks[1].Link, Tap: true})
			for _, port := range []*verdict.Interface{uplinks[0], tap, uplinks[2]} {
				w.Wire(port, "\x52\x54\x00\x00\x00\x01")
			}
		},
		RuledOut: []string{
			"external-device: behind-port owners=52:54:00:00:00:01",
		},
	},
	{
		Name: "T6 a virtual machine behind a macvtap device has the address of its node", Cause: unknown, Addr: "192.168.1.10",
		Build: func(w *World) { w.macvtap(0) },
		RuledOut: []string{
			"external-device: behind-port owners=52:54:00:00:00:01",
		},
	},
	{
		Name: "T6 a virtual machine behind a macvtap device has the address of another node", Cause: unknown, Addr: "192.168.1.10",
		Build: func(w *World) { w.macvtap(2) },
		RuledOut: []string{
			"external-device: behind-port owners=52:54:00:00:00:01",
		},
	},
	{
		Name: "T7 a machine outside has the node's address, and its frames arrive at several nodes", Cause: outside, Addr: "192.168.1.10",
		Build: func(w *World) {
			uplinks := OnLAN(w, "n1", "n2", "n3")
			w.Assigned(uplinks[0])
			for _, port := range uplinks {
				w.Wire(port, "\x02\x00\x00\x00\x00\x99")
			}
		},
		Facts: []string{
			"from-outside owners=02:00:00:00:00:99 devices=n1/eth0,n2/eth0,n3/eth0",
			"mac-of-no-node",
			"holds owners=n1",
		},
	},
	{
		Name: "T7 a machine outside has the node's address", Cause: outside, Addr: "192.168.1.10",
		Build: func(w *World) {
			w.Wire(w.Device("n1", "eth0", ""), "\x02\x00\x00\x00\x00\x99")
		},
		Facts: []string{
			"from-outside owners=02:00:00:00:00:99 devices=n1/eth0",
			"mac-of-no-node",
			"holds owners=n1",
		},
	},
	{
		Name: "T7 a machine outside with the MAC of a node has the address of another node", Cause: outside, Addr: "192.168.1.10",
		Build: func(w *World) {
			lan := OnLAN(w, "n1", "n2")
			w.Assigned(lan[1])
			for _, port := range lan {
				c := w.Wire(port, string(lan[0].MAC))
				c.Kind, c.FromOutside = verdict.Used, port == lan[0]
			}
		},
		Facts: []string{
			"from-outside owners=76:70:6c:6b:6e:31 devices=n1/eth0,n2/eth0",
			"mac-of-a-node nodes=n1",
			"holds owners=n2",
		},
	},
	{
		Name: "T7 a router outside has the address of docker's bridge", Cause: outside, Addr: "192.168.1.1",
		Build: func(w *World) {
			eth0 := w.Uplink("n1")
			w.Wire(eth0, "\x02\x00\x00\x00\x00\x99")
			w.Device("n1", "docker0", "bridge")
			w.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: eth0, Answer: verdict.KernelAnswer{By: verdict.ByAddress}})
			w.Wire(eth0, string(eth0.MAC)).Kind = verdict.Answered
		},
		Facts: []string{
			"from-outside owners=02:00:00:00:00:99 devices=n1/eth0",
			"mac-of-no-node",
			"holds owners=n1",
		},
	},
	{
		Name: "T7 a machine outside has a pod's address, and a node has no agent", Cause: outside, Addr: "192.168.1.10",
		Build: func(w *World) {
			lan := OnLAN(w, "n1", "n2")
			w.Assigned(w.Child("a", "baaaaa", lan[0].Link)).Network = "lan"
			w.Wire(lan[1], "\x02\x00\x00\x00\x00\x99")
			w.Uncovered = []string{"n3"}
		},
		Facts: []string{
			"from-outside owners=02:00:00:00:00:99 devices=n2/eth0",
			"mac-of-no-node",
			"holds owners=a",
			"nodes-uncovered",
		},
	},
	{
		Name: "T7 a router outside has an address that IPAM has allocated to a pod", Cause: outside, Addr: "192.168.1.1",
		Build: func(w *World) {
			lan := OnLAN(w, "n1")
			w.Assigned(w.Child("a", "baaaaa", lan[0].Link)).Network = "lan"
			w.Wire(lan[0], "\x02\x00\x00\x00\x00\x99")
			w.Books(w.Pool(hostlocal.Name, "n1", "lan", "192.168.1.1-192.168.1.99"), "a").Pod = "a"
			w.Allocations[0].Namespace = "default"
		},
		Facts: []string{
			"from-outside owners=02:00:00:00:00:99 devices=n1/eth0",
			"mac-of-no-node",
			"holds owners=a",
		},
		RuledOut: []string{
			"ipam-state-lost: given-once owners=a pool=host-local|n1|lan",
		},
	},
	{
		Name: "T7 the MAC of a virtual router", Cause: unknown, Addr: "192.168.1.10",
		Build: func(w *World) {
			w.Wire(w.Device("n1", "eth0", ""), "\x00\x00\x5e\x00\x01\x07")
		},
		RuledOut: []string{
			"external-device: virtual-router owners=00:00:5e:00:01:07",
		},
	},
	{
		Name: "an external device may be a pod of a node without an agent", Cause: unknown, Addr: "192.168.1.10",
		Build: func(w *World) {
			lan := OnLAN(w, "n1")
			w.Assigned(w.Child("a", "baaaaa", lan[0].Link)).Network = "lan"
			w.Wire(lan[0], "\x02\x00\x00\x00\x00\x99")
			w.Uncovered = []string{"n3"}
			p := w.Pool(whereabouts.Name, "", "lan", "192.168.1.1-192.168.1.99")
			w.Calico(p, "far", "n3")
		},
		RuledOut: []string{
			"external-device: may-be-on-uncovered-node owners=02:00:00:00:00:99 pool=whereabouts||lan record=default|far|container-far|n3",
			"ipam-booked-elsewhere: never-allocated-elsewhere pool=whereabouts||lan",
			"ipam-state-lost: given-once owners=a pool=whereabouts||lan",
		},
	},
	{
		Name: "T8 nodes of one link keep a virtual address", Cause: split, Addr: "192.168.1.200",
		Build: func(w *World) {
			for _, i := range OnLAN(w, "n1", "n2") {
				w.Assigned(i)
				i.Namespace.Node.VIPProgram = "keepalived"
			}
		},
		Facts: []string{
			"program-runs owners=n1 text=keepalived",
			"program-runs owners=n2 text=keepalived",
			"one-link",
			"beyond-handover-grace",
		},
	},
	{
		Name: "T8 kube-vip assigns the own address of a node to another node", Cause: split, Addr: "192.168.1.200",
		Build: func(w *World) {
			for _, i := range OnLAN(w, "n1", "n2") {
				w.Assigned(i)
				w.After(time.Minute)
			}
			w.Internal = "n2"
			p := &verdict.Pool{Pool: ipam.Pool{IPAM: vip.KubeVIP.Name, Traits: registry.Traits(vip.KubeVIP.Name), Name: "addresses", State: ipam.Known}}
			w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, Node: "n1", Purpose: "Service shop/web"}})
		},
		Facts: []string{
			"assigned-by-controller pool=kube-vip|| record=Service_shop/web||||n1",
			"one-link",
			"beyond-handover-grace",
		},
	},
	{
		Name: "kube-vip assigns the main address of a host to a node", Cause: unknown, Addr: "192.168.1.200",
		Build: func(w *World) {
			lan := OnLAN(w, "n1", "n3")
			w.Assigned(lan[1])
			w.After(time.Minute)
			w.Virtual(lan[0])
			w.Node("n1").VIPProgram = "kube-vip"
			p := &verdict.Pool{Pool: ipam.Pool{IPAM: vip.KubeVIP.Name, Traits: registry.Traits(vip.KubeVIP.Name), Name: "addresses", State: ipam.Known}}
			w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, Node: "n1", Purpose: "Service shop/web"}})
		},
	},
	{
		Name: "a host leases the virtual address of keepalived", Cause: static, Addr: "192.168.1.200",
		Build: func(w *World) {
			lan := OnLAN(w, "n1", "n3")
			w.Virtual(lan[0])
			w.Node("n1").VIPProgram = "keepalived"
			w.After(time.Minute)
			w.Assigned(lan[1]).Flags = 0
			p := w.Pool(dhcp.DnsmasqName, "n3", "", "192.168.1.100-192.168.1.250")
			p.Name, p.Routed, p.Device = "/var/lib/misc/dnsmasq.leases", false, "eth0"
			w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: lan[1].MAC.String()}})
		},
		Facts: []string{
			"allocated owners=n3 pool=dnsmasq|n3|",
			"on-device-of-node owners=n1 device=eth0",
			"range-of-pool pool=dnsmasq|n3| ranges=192.168.1.100-192.168.1.250",
		},
	},
	{
		Name: "machines that may have one address from DHCP, without a lifetime", Cause: unknown, Addr: "192.168.1.200",
		Build: func(w *World) {
			for _, i := range OnLAN(w, "n1", "n2") {
				w.Assigned(i)
			}
		},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2"},
	},
	{
		Name: "machines that may have one address from DHCP, for a limited time", Cause: unknown, Addr: "192.168.1.200",
		Build: func(w *World) {
			for _, i := range OnLAN(w, "n1", "n2") {
				w.Assigned(i).Flags = 0
			}
		},
		RuledOut: []string{
			"split-brain: not-moving owners=n1,n2",
			"static-address: has-lifetime owners=n1",
		},
	},
	{
		Name: "a pod with an address of the IPAM static, and its node", Cause: static, Addr: "192.0.2.50",
		Build: func(w *World) {
			l := w.Link("n1", "eth0", verdict.Uplink, false)
			w.Assigned(w.Child("web", "baaaaa", l)).Network = "static"
			w.Assigned(w.Uplink("n1"))
		},
		Facts:    []string{"given-by-network owners=web network=static", "on-device-of-node owners=n1 device=eth0"},
		RuledOut: []string{"tunnel-address: no-tunnel nodes=n1 device=eth0"},
	},
	{
		Name: "a pod on the LAN of its node gets the address that the node had first", Cause: static, Addr: "192.0.2.50",
		Build: func(w *World) {
			OnLANOf(w, "n1", 0)
		},
		Facts: []string{
			"given-by-network owners=web network=lan", "on-device-of-node owners=n1 device=eth0",
			"range-of-pool pool=host-local|n1|lan ranges=192.0.2.10-192.0.2.99",
		},
		RuledOut: []string{"tunnel-address: no-tunnel nodes=n1 device=eth0", "ipam-state-lost: given-once owners=web pool=host-local|n1|lan"},
	},
	{
		Name: "a pod on the LAN of its node gets the address that DHCP gave the node", Cause: unknown, Addr: "192.0.2.50",
		Build: func(w *World) {
			OnLANOf(w, "n1", 0)
			w.Claims[0].Flags = 0
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=eth0", "ipam-state-lost: given-once owners=web pool=host-local|n1|lan",
			"static-address: has-lifetime owners=n1",
		},
	},
	{
		Name: "a pod on the LAN of its node had the address before somebody set it on the node", Cause: static, Addr: "192.0.2.50",
		Build: func(w *World) {
			OnLANOf(w, "n1", 2*time.Minute)
		},
		Facts: []string{
			"given-by-network owners=web network=lan", "on-device-of-node owners=n1 device=eth0",
			"range-of-pool pool=host-local|n1|lan ranges=192.0.2.10-192.0.2.99",
		},
		RuledOut: []string{"tunnel-address: no-tunnel nodes=n1 device=eth0", "ipam-state-lost: given-once owners=web pool=host-local|n1|lan"},
	},
	{
		Name: "nodes that are on no common link", Cause: unknown, Addr: "192.168.1.200",
		Build: func(w *World) {
			w.Policy.Networks = []verdict.Network{{Name: "hosts", Prefixes: Prefixes("192.168.0.0/16")}}
			for _, n := range []string{"n1", "n2"} {
				w.Device(n, "eth0", "")
			}
		},
		RuledOut: []string{
			"split-brain: no-common-link",
		},
	},
	{
		Name: "T9 unknown namespaces", Cause: unknown,
		Build: func(w *World) {
			for _, name := range []string{"a", "b"} {
				w.Within("n1", "", "", verdict.Workload{Kind: verdict.Unknown, Name: name, Source: "netns"})
			}
		},
	},
	{
		Name: "T9 pods with one MAC", Cause: lost,
		Build: func(w *World) {
			a, b := Twins(w)
			b.Interface.MAC = a.Interface.MAC
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
		},
		Facts: []string{
			"given-by-network owners=old network=kindnet",
			"given-by-network owners=new network=kindnet",
			"record pool=host-local|n1|kindnet state=1 record=container-new->new",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T10 the pod is deleted, and IPAM has allocated its address again", Cause: orphan,
		Build: func(w *World) {
			Twins(w)
			w.Says("uid-old", verdict.PodObject{Absent: true})
			w.Says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Running"})
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
		},
		Facts: []string{
			"sandbox-left owners=old",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "both pods exist", Cause: lost,
		Build: func(w *World) {
			Twins(w)
			w.Says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running"})
			w.Says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Running"})
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
		},
		Facts: []string{
			"given-by-network owners=old network=kindnet",
			"given-by-network owners=new network=kindnet",
			"record pool=host-local|n1|kindnet state=1 record=container-new->new",
		},
		RuledOut: []string{
			"orphaned-sandbox: pods-are-there owners=old,new",
			"overlapping-networks: one-network network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T11 a tunnel", Cause: tunnel,
		Build: func(w *World) {
			w.Within("n1", "", "k8s-pod-network", Who("web"))
			w.Device("n1", "vxlan.calico", "vxlan")
		},
		Facts: []string{
			"tunnel-has-address owners=n1,web device=vxlan.calico text=vxlan",
			"given-by-network owners=web network=k8s-pod-network",
		},
	},
	{
		Name: "T11 a tunnel of another node", Cause: tunnel,
		Build: func(w *World) {
			w.Policy.Networks = []verdict.Network{{Name: "pods", Prefixes: Prefixes("10.244.0.0/16")}}
			w.Within("n1", "", "k8s-pod-network", Who("web"))
			w.Device("n2", "tunl0", "ipip")
			w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: w.Pool(calico.IPAM.Name, "", ""), Allocation: ipam.Allocation{Node: "n2", Purpose: "IP-in-IP tunnel"}})
		},
		Facts: []string{
			"tunnel-has-address owners=n2,web device=tunl0 text=ipip",
			"given-by-network owners=web network=k8s-pod-network",
			"allocated-for-purpose pool=calico|| record=IP-in-IP_tunnel||||n2",
		},
		RuledOut: []string{
			"ipam-booked-elsewhere: never-allocated-elsewhere pool=calico||",
			"pod-cidr-overlap: pool-of-cluster pool=calico||",
			"static-address: given-to-all owners=web,n2",
		},
	},
	{
		Name: "T11 the bridge that pods are on", Cause: static, Addr: "10.244.0.1",
		Build: func(w *World) {
			w.Within("n1", "cni0", "", Who("web"))
			w.Device("n1", "cni0", "bridge")
		},
		Facts: []string{
			"on-bridge-of-pods owners=n1 device=cni0",
			"not-in-cni-result owners=web",
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=cni0",
		},
	},
	{
		Name: "the bridge that pods are on, whose address a CNI network gave", Cause: unknown, Addr: "10.244.0.1",
		Build: func(w *World) {
			w.Within("n1", "cni0", "kindnet", Who("web"))
			w.Device("n1", "cni0", "bridge")
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=cni0",
		},
	},
	{
		Name: "T11 the bridge that pods are on, with an address of their pool", Cause: static,
		Build: func(w *World) {
			w.Within("n1", "cni0", "cbr0", Who("web"))
			w.Device("n1", "cni0", "bridge")
			p := w.Pool(hostlocal.Name, "n1", "cbr0")
			p.Device = "cni0"
			w.Books(p, "web")
		},
		Facts: []string{
			"given-by-network owners=web network=cbr0",
			"on-device-of-node owners=n1 device=cni0",
			"range-of-pool pool=host-local|n1|cbr0 ranges=10.244.0.1-10.244.255.254",
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=cni0",
			"ipam-state-lost: given-once owners=web pool=host-local|n1|cbr0",
		},
	},
	{
		Name: "the bridge that pods are on, with the gateway of their pool", Cause: unknown,
		Build: func(w *World) {
			w.Within("n1", "cni0", "cbr0", Who("web"))
			w.Device("n1", "cni0", "bridge")
			p := w.Pool(hostlocal.Name, "n1", "cbr0")
			p.Device, p.Gateways = "cni0", []netip.Addr{w.Addr}
			w.Books(p, "web")
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=cni0",
			"ipam-state-lost: given-once owners=web pool=host-local|n1|cbr0",
		},
	},
	{
		Name: "a bridge of the node that no pod is on", Cause: static,
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Device("n1", "br0", "bridge")
		},
		Facts: []string{
			"given-by-network owners=web network=kindnet",
			"on-device-of-node owners=n1 device=br0",
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=br0",
		},
	},
	{
		Name: "the bridge of docker", Cause: unknown, Addr: "172.17.0.1",
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Device("n1", "docker0", "bridge")
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=docker0",
			"static-address: device-of-container-engine device=docker0",
		},
	},
	{
		Name: "the bridge of docker, whose range a CNI network has", Cause: networks, Addr: "172.17.0.1",
		Build: func(w *World) {
			w.Within("n1", "", "kindnet", Who("web"))
			w.Subnet(w.Device("n1", "docker0", "bridge"), "172.17.0.1/16")
		},
		Facts: []string{
			"on-network owners=n1 device=docker0",
			"range-of-network device=docker0 ranges=172.17.0.0/16",
			"given-by-network owners=web network=kindnet",
			"networks-meet-on-node nodes=n1",
		},
		RuledOut: []string{
			"tunnel-address: no-tunnel nodes=n1 device=docker0",
			"static-address: device-of-container-engine device=docker0",
		},
	},
	{
		Name: "T3 in a declared network, unknown namespaces", Cause: unknown,
		Build: func(w *World) {
			w.Policy.Networks = []verdict.Network{{Name: "pods", Prefixes: Prefixes("10.244.0.0/16")}}
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "", "", verdict.Workload{Kind: verdict.Unknown, Name: "p" + n, Source: "netns"})
			}
		},
	},
}

// macvtap gives one of three nodes the address. A virtual machine behind a macvtap device of the first node announces it.
func (w *World) macvtap(holder int) {
	uplinks := OnLAN(w, "n1", "n2", "n3")
	w.Assigned(uplinks[holder])
	guest := w.Interface(w.Host("n1"), verdict.Interface{
		Name: "macvtap0", Kind: "macvtap", MAC: "\x52\x54\x00\x00\x00\x01", Attachment: verdict.Own, Link: uplinks[0].Link, Macvtap: true,
	})
	for _, port := range uplinks[1:] {
		w.Wire(port, string(guest.MAC))
	}
}

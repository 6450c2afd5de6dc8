package verdicttest

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
)

// ofRanges are the situations whose causes depend on the ranges of pools and networks.
var ofRanges = []Situation{
	{
		Name: "T5 each node's own IPAM has it for its own pod", Cause: overlap,
		Build: func(w *World) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "", "pods", Who("web"+n))
				w.Books(w.Pool(hostlocal.Name, n, "pods"), "web"+n)
			}
		},
		Facts: []string{
			"range-of-pool pool=host-local|n1|pods ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=webn1 network=pods",
			"range-of-pool pool=host-local|n2|pods ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=webn2 network=pods",
		},
		RuledOut: []string{
			"ipam-state-lost: given-once owners=webn1 pool=host-local|n1|pods",
			"static-address: given-to-all owners=webn1,webn2",
		},
	},
	{
		Name: "T5 host-local of one NetworkAttachmentDefinition, on one LAN of Open vSwitch", Cause: overlap,
		Build: func(w *World) {
			var pods []*verdict.Claim
			for _, n := range []string{"n1", "n2"} {
				c := w.Within(n, "", "lan", Who("web"+n))
				c.Interface.Name, c.Interface.Link.Kind = "net1", verdict.OVSPort
				pods = append(pods, c)
				w.Says("uid-web"+n, verdict.PodObject{Namespace: "default", Name: "web" + n, Phase: "Running", Memberships: []verdict.Membership{
					{Address: w.Addr, Interface: "net1", Network: verdict.DefinitionNetwork("default", "lan"), PerNode: true},
				}})
				w.Books(w.Pool(hostlocal.Name, n, "lan"), "web"+n)
			}
			for i, n := range []string{"n1", "n2"} {
				w.Wire(w.Uplink(n), string(pods[1-i].Interface.MAC))
			}
		},
		Facts: []string{
			"range-of-pool pool=host-local|n1|lan ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=webn1 network=lan",
			"range-of-pool pool=host-local|n2|lan ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=webn2 network=lan",
		},
		RuledOut: []string{
			"orphaned-sandbox: pods-are-there owners=webn1,webn2",
			"ipam-state-lost: given-once owners=webn1 pool=host-local|n1|lan",
			"static-address: given-to-all owners=webn1,webn2",
		},
	},
	{
		Name: "T5 host-local of a macvlan network, on one LAN", Cause: overlap,
		Build: func(w *World) {
			for _, uplink := range OnLAN(w, "n1", "n2") {
				n := uplink.Namespace.Node.Name
				ns := w.Namespace(n, 2, "10"+n[1:], Who("web"+n))
				w.Assigned(w.Interface(ns, verdict.Interface{MAC: verdict.MAC("chld" + n), Attachment: verdict.Lower, Link: uplink.Link, HostInterface: "eth0"})).Network = "lan"
				w.ofPlugin(n, "macvlan", "eth0")
			}
		},
		Facts: []string{
			"range-of-pool pool=host-local|n1|lan ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=webn1 network=lan",
			"range-of-pool pool=host-local|n2|lan ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=webn2 network=lan",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=lan",
			"ipam-state-lost: given-once owners=webn1 pool=host-local|n1|lan",
			"static-address: given-to-all owners=webn1,webn2",
		},
	},
	{
		Name: "T5 host-local on bridges of nodes that lead to one LAN", Cause: overlap,
		Build: func(w *World) {
			d := OnLAN(w, "n1", "n2")[0].Link.Domain
			for _, n := range []string{"n1", "n2"} {
				c := w.Within(n, "br0", "lan", Who("web"+n))
				c.Interface.Link.Domain, c.Interface.Link.Proven = d, d
				w.Bridge(n, "br0", "10.244.0.9/16")
				w.Subnets[len(w.Subnets)-1].LAN = true
				w.ofPlugin(n, "bridge", "br0")
			}
		},
		Facts: []string{
			"range-of-pool pool=host-local|n1|lan ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=webn1 network=lan",
			"range-of-pool pool=host-local|n2|lan ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=webn2 network=lan",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=lan",
			"ipam-state-lost: given-once owners=webn1 pool=host-local|n1|lan",
			"static-address: given-to-all owners=webn1,webn2",
		},
	},
	{
		Name: "T5 the ranges of pods of both nodes have it", Cause: overlap,
		Build: func(w *World) {
			w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.Within("n1", "", "pods", Who("a"))
			w.Within("n2", "", "pods", Who("b"))
		},
		Facts: []string{
			"in-pod-cidr-of-several-nodes nodes=n1,n2",
		},
		RuledOut: []string{
			"static-address: given-to-all owners=a,b",
		},
	},
	{
		Name: "T5 the bridges of pods of both nodes have the prefix", Cause: overlap,
		Build: func(w *World) {
			w.Within("n1", "cni0", "pods", Who("a"))
			w.Within("n2", "cni0", "pods", Who("b"))
		},
		Facts: []string{
			"range-of-bridge nodes=n1 device=cni0 ranges=10.244.1.0/24",
			"given-by-network owners=a network=pods",
			"range-of-bridge nodes=n2 device=cni0 ranges=10.244.1.0/24",
			"given-by-network owners=b network=pods",
		},
		RuledOut: []string{
			"static-address: given-to-all owners=a,b",
		},
	},
	{
		Name: "T5 two CiliumNodes have one range, and the records of both pods are in one of them", Cause: overlap,
		Build: func(w *World) {
			w.ciliumNodes("10.244.1.0-10.244.1.255", "10.244.1.0-10.244.1.255")
		},
		Facts: []string{
			"range-of-pool pool=cilium|| ranges=10.244.1.0/24",
			"given-by-network owners=a network=cilium",
			"range-of-pool pool=cilium|| ranges=10.244.1.0/24",
			"given-by-network owners=b network=cilium",
		},
		RuledOut: []string{
			"ipam-booked-elsewhere: never-allocated-elsewhere pool=cilium||",
			"ipam-state-lost: all-allocated owners=a,b pool=cilium||",
			"static-address: given-to-all owners=a,b",
		},
	},
	{
		Name: "two CiliumNodes, only one of which has the range", Cause: unknown,
		Build: func(w *World) {
			w.ciliumNodes("10.244.1.0-10.244.1.255", "10.244.2.0-10.244.2.255")
		},
		RuledOut: []string{
			"ipam-booked-elsewhere: never-allocated-elsewhere pool=cilium||",
			"pod-cidr-overlap (open): range-of-owner-not-known owners=b",
			"ipam-state-lost: all-allocated owners=a,b pool=cilium||",
			"static-address: given-to-all owners=a,b",
		},
	},
	{
		Name: "pods of both nodes are on a LAN whose addresses come from a DHCP server", Cause: unknown,
		Build: func(w *World) {
			for _, n := range []string{"n1", "n2"} {
				w.Within(n, "br1", "lan", Who(n))
				w.Bridge(n, "br1", "10.244.0.0/16")
				w.Subnets[len(w.Subnets)-1].LAN = true
			}
		},
		RuledOut: []string{
			"pod-cidr-overlap (open): ranges-of-nodes-not-known nodes=n1,n2",
			"ipam-state-lost (open): no-records-known nodes=n1,n2",
			"static-address: given-to-all owners=n1,n2",
		},
	},
	{
		Name: "T5 the gateway of both nodes' pods", Cause: overlap, Addr: "10.244.0.1",
		Build: func(w *World) {
			w.Policy.Networks = []verdict.Network{{Name: "pods", Prefixes: Prefixes("10.244.0.0/16")}}
			for _, n := range []string{"n1", "n2"} {
				w.Subnet(w.Device(n, "cni0", "bridge"), "10.244.0.1/16")
				p := w.Pool(hostlocal.Name, n, "pods", "10.244.0.2-10.244.255.254")
				p.Plugin, p.Device, p.Gateways = "bridge", "cni0", []netip.Addr{w.Addr}
			}
		},
		Facts: []string{
			"range-of-pool pool=host-local|n1|pods ranges=10.244.0.2-10.244.255.254",
			"range-of-pool pool=host-local|n2|pods ranges=10.244.0.2-10.244.255.254",
		},
	},
	{
		Name: "an address that a mesh gave to two nodes", Cause: unknown, Addr: "10.10.0.2",
		Build: func(w *World) {
			w.Policy.Networks = []verdict.Network{{Name: "mesh", Prefixes: Prefixes("10.10.0.0/16")}}
			for _, n := range []string{"n1", "n2"} {
				c := w.Assigned(w.Interface(w.Host(n), verdict.Interface{Name: "tun0", Kind: "tun", Attachment: verdict.Own, Link: w.Link(n, "tun0", verdict.Uplink, false)}))
				c.PrefixLength = 16
			}
		},
	},
	{
		Name: "docker's bridges in a declared network", Cause: unknown, Addr: "172.17.0.1",
		Build: func(w *World) {
			w.Policy.Networks = []verdict.Network{{Name: "containers", Prefixes: Prefixes("172.16.0.0/12")}}
			for _, n := range []string{"n1", "n2"} {
				w.Assigned(w.Bridge(n, "docker0", "172.17.0.1/24"))
			}
		},
		RuledOut: []string{"static-address: device-of-container-engine device=docker0"},
	},
	{
		Name: "the gateway of pods of both nodes, which have ranges of their own", Cause: unknown, Addr: "10.50.0.1",
		Build: func(w *World) {
			d := OnLAN(w, "n1", "n2")[0].Link.Domain
			for _, n := range []string{"n1", "n2"} {
				i := w.Device(n, "cni5", "bridge")
				i.MAC, i.Link.Domain, i.Link.Proven, i.Link.BothWays = verdict.MAC("cni5"+n), d, d, d
				w.Subnet(i, "10.50.0.1/24")
				w.Subnets[len(w.Subnets)-1].LAN = true
				p := w.Pool(hostlocal.Name, n, "flat", map[string]string{"n1": "10.50.0.10-10.50.0.18", "n2": "10.50.0.20-10.50.0.28"}[n])
				p.Plugin, p.Device, p.Gateways, p.Config = "bridge", "cni5", []netip.Addr{w.Addr}, "/etc/cni/net.d/10-flat.conflist"
			}
		},
		Facts: []string{
			"range-of-pool pool=host-local|n1|flat ranges=10.50.0.10-10.50.0.18",
			"range-of-pool pool=host-local|n2|flat ranges=10.50.0.20-10.50.0.28",
		},
		RuledOut: []string{
			"split-brain: not-moving owners=n1,n2",
			"pod-cidr-overlap: ranges-apart nodes=n1,n2",
		},
	},
	{
		Name: "only one node has the range", Cause: unknown,
		Build: func(w *World) {
			w.PodCIDR, w.PodCIDROf = netip.MustParsePrefix("10.244.1.0/24"), "n1"
			w.Within("n1", "", "pods", Who("a"))
			w.Within("n2", "", "pods", Who("b"))
		},
		RuledOut: []string{
			"pod-cidr-overlap: in-pod-cidr-of-one-node nodes=n1,n2",
			"ipam-state-lost (open): no-records-known nodes=n1,n2",
			"static-address: given-to-all owners=a,b",
		},
	},
	{
		Name: "bridges of docker have one range on every node", Cause: unknown, Addr: "172.17.0.2",
		Build: func(w *World) {
			w.Policy.Networks = []verdict.Network{{Name: "all", Prefixes: Prefixes("172.17.0.0/16")}}
			for _, n := range []string{"n1", "n2"} {
				w.Bridge(n, "docker0", "172.17.0.1/16")
				w.Within(n, "docker0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c" + n, Source: "cgroup"})
			}
		},
	},
	{
		Name: "T14 two CNI networks", Cause: networks,
		Build: func(w *World) {
			w.Within("n1", "cni0", "net0", Who("web"))
			w.Within("n1", "cni1", "net1", Who("db"))
		},
		Facts: []string{
			"given-by-network owners=web network=net0",
			"range-of-network device=cni0 network=net0 ranges=10.244.1.0/24",
			"given-by-network owners=db network=net1",
			"range-of-network device=cni1 network=net1 ranges=10.244.1.0/24",
			"networks-meet-on-node nodes=n1",
		},
		RuledOut: []string{
			"static-address: given-to-all owners=web,db",
		},
	},
	{
		Name: "T14 two CNI networks, each of which allocated it to its own pod", Cause: networks,
		Build: func(w *World) {
			w.Within("n1", "cni0", "net0", Who("web"))
			w.Within("n1", "cni1", "net1", Who("db"))
			for i, name := range []string{"web", "db"} {
				w.Bridge("n1", fmt.Sprint("cni", i), "10.244.0.1/16")
				p := w.Pool(hostlocal.Name, "n1", fmt.Sprint("net", i))
				p.Plugin, p.Device = "bridge", fmt.Sprint("cni", i)
				w.Books(p, name)
			}
		},
		Facts: []string{
			"given-by-network owners=web network=net0",
			"range-of-network device=cni0 network=net0 ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=db network=net1",
			"range-of-network device=cni1 network=net1 ranges=10.244.0.1-10.244.255.254",
			"networks-meet-on-node nodes=n1",
		},
		RuledOut: []string{
			"ipam-state-lost: given-once owners=web pool=host-local|n1|net0",
			"static-address: given-to-all owners=web,db",
		},
	},
	{
		Name: "T14 a CNI network under a new name, on the bridge of its former pods", Cause: networks,
		Build: func(w *World) {
			w.Within("n1", "cni0", "cbr0", Who("old"))
			w.Books(w.Pool(hostlocal.Name, "n1", "cbr0"), "old")
			w.After(time.Minute).Within("n1", "cni0", "pods", Who("new"))
			w.Bridge("n1", "cni0", "10.244.0.1/16")
			p := w.Pool(hostlocal.Name, "n1", "pods")
			p.Plugin, p.Device, p.Config = "bridge", "cni0", "/etc/cni/net.d/10-pods.conflist"
			w.Books(p, "new")
		},
		Facts: []string{
			"given-by-network owners=old network=cbr0",
			"range-of-network device=cni0 network=cbr0 ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=new network=pods",
			"range-of-network device=cni0 network=pods ranges=10.244.0.1-10.244.255.254",
			"networks-meet-on-node nodes=n1",
		},
		RuledOut: []string{
			"ipam-state-lost: given-once owners=old pool=host-local|n1|cbr0",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T14 two CNI networks on one bridge", Cause: networks,
		Build: func(w *World) {
			w.Bridge("n1", "cni0", "10.244.0.1/16")
			for i, name := range []string{"web", "db"} {
				w.Within("n1", "cni0", fmt.Sprint("net", i), Who(name))
				p := w.Pool(hostlocal.Name, "n1", fmt.Sprint("net", i))
				p.Plugin, p.Device, p.Config = "bridge", "cni0", fmt.Sprintf("/etc/cni/net.d/1%d-net%d.conflist", i, i)
				w.Books(p, name)
			}
		},
		Facts: []string{
			"given-by-network owners=web network=net0",
			"range-of-network device=cni0 network=net0 ranges=10.244.0.1-10.244.255.254",
			"given-by-network owners=db network=net1",
			"range-of-network device=cni0 network=net1 ranges=10.244.0.1-10.244.255.254",
			"networks-meet-on-node nodes=n1",
		},
		RuledOut: []string{
			"ipam-state-lost: given-once owners=web pool=host-local|n1|net0",
			"static-address: given-to-all owners=web,db",
		},
	},
	{
		Name: "T14 a CNI network and a bridge of docker", Cause: networks,
		Build: func(w *World) {
			w.Bridge("n1", "docker0", "10.244.0.1/16")
			w.Within("n1", "docker0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c1", Source: "cgroup"})
			w.Within("n1", "", "kindnet", Who("web"))
		},
		Facts: []string{
			"on-network owners=c1 device=docker0",
			"range-of-network device=docker0 ranges=10.244.0.0/16",
			"given-by-network owners=web network=kindnet",
			"networks-meet-on-node nodes=n1",
		},
	},
	{
		Name: "a container with an address that its bridge does not have", Cause: unknown,
		Build: func(w *World) {
			w.Bridge("n1", "docker0", "172.17.0.1/16")
			w.Within("n1", "docker0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c1", Source: "cgroup"})
			w.Within("n1", "", "kindnet", Who("web"))
		},
		RuledOut: []string{
			"static-address (open): giver-not-known owners=c1",
		},
	},
	{
		Name: "two networks with one pool", Cause: lost,
		Build: func(w *World) {
			w.Within("n1", "cni0", "net0", Who("old"))
			w.After(time.Minute).Within("n1", "cni0", "net1", Who("new"))
			p := w.Pool(hostlocal.Name, "n1", "net0")
			p.Networks = []string{"net0", "net1"}
			w.Books(p, "new")
		},
		Facts: []string{
			"given-by-network owners=old network=net0",
			"given-by-network owners=new network=net1",
			"record pool=host-local|n1|net0 state=1 record=container-new->new",
		},
		RuledOut: []string{
			"overlapping-networks: one-pool pool=host-local|n1|net0",
			"static-address: given-to-all owners=old,new",
		},
	},
}

// ofPlugin adds a pool of host-local that a CNI plugin uses for pod web of a node, on a device of the node.
func (w *World) ofPlugin(node, plugin, device string) {
	p := w.Pool(hostlocal.Name, node, "lan")
	p.Wiring, p.Config = ipam.Wiring{Plugin: plugin, Device: device}, "/etc/cni/net.d/10-lan.conflist"
	w.Books(p, "web"+node)
}

// ciliumNodes adds two nodes whose CiliumNodes have these ranges, and a pod on each. The records of both
// pods are in the first object.
func (w *World) ciliumNodes(ranges ...string) {
	for i, n := range []string{"n1", "n2"} {
		pod := []string{"a", "b"}[i]
		w.Within(n, "", "cilium", Who(pod))
		p := w.Pool(cilium.IPAM.Name, "", "", ranges[i])
		p.Name = n
		w.Books(w.Pools[0], pod).Node = n
	}
}

package explain_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// twoPods puts two pods with the address on links of a node.
func twoPods(w *verdicttest.World, links ...string) (a, b *verdict.Claim) {
	one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n1", links[0], verdict.Bridge, false))
	two, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("b")), "bbbbbb", w.Link("n1", links[1], verdict.Bridge, false))
	return w.Assigned(one), w.Assigned(two)
}

// refusedBy lets detection of duplicates fail in a namespace, because another one on its bridge has the address.
func refusedBy(w *verdicttest.World, flags uint32, in, by verdict.Workload) (failed, rival *verdict.Claim) {
	l := w.Link("n1", "br1", verdict.Bridge, false)
	one, _ := w.Veth(w.Namespace("n1", 2, "102", by), "baaaaa", l)
	rival = w.Assigned(one)
	two, _ := w.Veth(w.Namespace("n1", 3, "103", in), "bbbbbb", l)
	w.After(time.Minute)
	return w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed | flags, Interface: two, PrefixLength: 64}), rival
}

// joinedBridges has the address on the bridges of libvirt or docker on two nodes, which are one link.
func joinedBridges(w *verdicttest.World, libvirt bool) {
	name, prefix := "docker0", "172.17.0.1/16"
	if libvirt {
		name, prefix = "virbr0", "192.168.122.1/24"
	}
	d := &verdict.Domain{}
	for _, n := range []string{"n1", "n2"} {
		i := w.Bridge(n, name, prefix)
		i.MAC = verdict.MAC("\x52\x54\x00\x7a\x7a" + n[1:])
		if d.Node == nil {
			d.Node, d.Name = i.Link.Node, i.Link.Name
		}
		i.Link.Domain, i.Link.Proven, i.Link.BothWays = d, d, d
		w.Assigned(i)
		if libvirt && n == "n2" {
			w.Wire(w.Interface(w.Host(n), verdict.Interface{Name: "eth1", Uplink: true, Attachment: verdict.Own, Link: i.Link}), "\x52\x54\x00\x7a\x7a1")
		}
	}
}

// groupAnswers has the address on two nodes, of which the first ones answer with a group MAC.
func groupAnswers(w *verdicttest.World, answering int) {
	lan := verdicttest.OnLAN(w, "n1", "n2", "n3")
	for k, i := range lan[:2] {
		w.Assigned(i)
		w.Node(i.Namespace.Node.Name).VIPProgram = "pacemakerd"
		if k < answering {
			c := w.Wire(lan[2], "\x03\x00\x60\x0d\xf0\x0d")
			c.Kind, c.Source = verdict.Answered, i.MAC
		}
	}
}

// scenes are addresses whose explanations contain steps that occur in no situation.
var scenes = []verdicttest.Situation{
	{Name: "no owner", Build: func(*verdicttest.World) {}},
	{Name: "one pod", Build: func(w *verdicttest.World) { w.Within("n1", "", "net0", verdicttest.Who("web")) }},
	{Name: "pods that do not meet", Build: func(w *verdicttest.World) { twoPods(w, "br1", "br2") }},
	{Name: "link-local pods that do not meet", Addr: "169.254.7.5", Build: func(w *verdicttest.World) { twoPods(w, "br1", "br2") }},
	{Name: "declared as shared", Build: func(w *verdicttest.World) {
		w.Policy.Shared = []verdict.Shared{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Reason: "anycast"}}
		twoPods(w, "br1", "br1")
	}},
	{Name: "a disconnected node", Build: func(w *verdicttest.World) {
		twoPods(w, "br1", "br1")
		w.Node("n1").Unheard = true
	}},
	{Name: "an external device that fell silent", Addr: "192.168.1.10", Build: func(w *verdicttest.World) {
		w.Wire(w.Uplink("n1"), "\x02\x00\x00\x00\x00\x99")
		w.After(w.Policy.StaleAfter)
	}},
	{Name: "a frame sent in the name of another", Addr: "192.168.1.10", Build: func(w *verdicttest.World) {
		eth0 := w.Uplink("n1")
		w.Assigned(eth0)
		w.Wire(eth0, "\x02\x00\x00\x00\x00\x99").Source = "\x02\x00\x00\x00\x00\x98"
		w.Wire(eth0, "\x01\x00\x5e\x00\x00\x01")
	}},
	{Name: "a node that answers for its pod", Build: func(w *verdicttest.World) {
		w.Within("n1", "", "", verdicttest.Who("web"))
		w.Wire(w.Uplink("n1"), "vplkn1")
	}},
	{Name: "both ends of a veth", Addr: "fd00:7::2", Build: func(w *verdicttest.World) {
		ns := w.Namespace("n1", 5, "105", verdict.Workload{Kind: verdict.Unknown, Name: "app", Source: "netns", PID: 1})
		inside, port := w.Veth(ns, "baaaaa", w.Link("n1", "veth105", verdict.PointToPoint, false))
		w.Assigned(port).PrefixLength = 64
		w.After(time.Minute)
		w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed | verdict.FlagPermanent, Interface: inside, PrefixLength: 64})
	}},
	{Name: "senders that take turns", Addr: "192.168.1.20", Build: func(w *verdicttest.World) {
		eth0 := w.Uplink("n1")
		a := w.Wire(eth0, "\x02\x00\x00\x00\x00\x98")
		w.After(time.Second)
		w.Wire(eth0, "\x02\x00\x00\x00\x00\x99")
		w.After(time.Second)
		w.Seen(a)
	}},
	{Name: "senders one after the other", Addr: "192.168.1.20", Build: func(w *verdicttest.World) {
		eth0 := w.Uplink("n1")
		w.Wire(eth0, "\x02\x00\x00\x00\x00\x98")
		w.After(time.Second)
		w.Wire(eth0, "\x02\x00\x00\x00\x00\x99")
	}},
	{Name: "a kernel that refused it, and a proxy", Addr: "fd00::5", Build: func(w *verdicttest.World) {
		l := w.Link("n1", "br1", verdict.Bridge, false)
		one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", l)
		w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed, Interface: one, PrefixLength: 64})
		_, port := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("proxy")), "bbbbbb", l)
		w.Wire(port, "bbbbbb").Kind = verdict.Answered
	}},
	{Name: "a kernel that refused it, and a rival that has left", Addr: "fd00::5", Build: func(w *verdicttest.World) {
		_, rival := refusedBy(w, 0, verdicttest.Pod("a"), verdicttest.Pod("b"))
		w.Judge()
		w.After(time.Minute).Drop(rival)
	}},
	{Name: "a client that gave it up, and a rival that has left", Addr: "192.168.1.20", Build: func(w *verdicttest.World) {
		w.Claim(verdict.Claim{Kind: verdict.DADFailed, Interface: w.Uplink("n1"), PrefixLength: 24})
	}},
	{Name: "a sandbox whose kernel refused it because of another sandbox of its pod", Addr: "fd00::5", Build: func(w *verdicttest.World) {
		old := verdicttest.Who("db-0")
		old.ContainerID = "container-old"
		refusedBy(w, verdict.FlagPermanent, verdicttest.Who("db-0"), old)
	}},
	{Name: "a virtual address that the next node refused", Addr: "fd00::50", Build: func(w *verdicttest.World) {
		lan := verdicttest.OnLAN(w, "n1", "n2")
		w.Virtual(lan[0])
		w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed | verdict.FlagPermanent, Interface: lan[1], PrefixLength: 128})
		p := &verdict.Pool{Pool: ipam.Pool{IPAM: vip.KubeVIP.Name, Traits: registry.Traits(vip.KubeVIP.Name), Name: "addresses", State: ipam.Known}}
		w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, Node: "n2", Purpose: "Service shop/web"}})
	}},
	{Name: "an address with a lifetime that a kernel refused and deleted", Addr: "fd00::5", Build: func(w *verdicttest.World) {
		refusedBy(w, 0, verdict.Workload{Kind: verdict.Unknown, Name: "one", Source: "netns"}, verdict.Workload{Kind: verdict.Unknown, Name: "two", Source: "netns"})
	}},
	{Name: "an address that two kernels refused", Addr: "fd00::5", Build: func(w *verdicttest.World) {
		l := w.Link("n1", "br1", verdict.Bridge, false)
		for k, mac := range []string{"baaaaa", "bbbbbb"} {
			i, _ := w.Veth(w.Namespace("n1", uint32(k+2), fmt.Sprint(102+k), verdict.Workload{Kind: verdict.Unknown, Name: mac, Source: "netns"}), mac, l)
			w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed | verdict.FlagPermanent, Interface: i, PrefixLength: 64})
		}
	}},
	{Name: "a link-local address that both nodes also have on a bridge", Addr: "fe80::1", Build: func(w *verdicttest.World) {
		lan := verdicttest.OnLAN(w, "n1", "n2")
		for k, i := range lan {
			w.Assigned(i).PrefixLength = 64
			w.Assigned(w.Bridge(i.Namespace.Node.Name, "br-c", "10.50.0.0/24")).PrefixLength = 64 // its name comes first
			w.Wire(i, string(lan[1-k].MAC)).Kind = verdict.Answered
		}
	}},
	{Name: "an address that a node has on two LANs, and a device on one of them", Addr: "192.0.2.10", Build: func(w *verdicttest.World) {
		w.Assigned(w.Uplink("n1"))
		eth1 := w.Interface(w.Host("n1"), verdict.Interface{Name: "eth1.5", MAC: "\x02\x00\x00\x00\x01\x01", Attachment: verdict.Own, Uplink: true, Link: w.Link("n1", "eth1.5", verdict.Uplink, false)})
		w.Assigned(eth1)
		w.Wire(eth1, "\x02\x00\x00\x00\x00\x99")
	}},
	{Name: "a virtual address that a node has on two LANs, and on one of them another node", Addr: "192.0.2.10", Build: func(w *verdicttest.World) {
		lan := verdicttest.OnLAN(w, "n1", "n2")
		w.Virtual(lan[0])
		w.Virtual(lan[1])
		w.Virtual(w.Interface(w.Host("n1"), verdict.Interface{Name: "backup", MAC: "\x02\x00\x00\x00\x01\x01", Attachment: verdict.Own, Uplink: true, Link: w.Link("n1", "backup", verdict.Uplink, false)}))
		w.Node("n1").VIPProgram, w.Node("n2").VIPProgram = "keepalived", "keepalived"
	}},
	{Name: "an address of a pod that its node has on two LANs", Addr: "192.0.2.10", Build: func(w *verdicttest.World) {
		w.Assigned(w.Uplink("n1"))
		w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{Name: "eth1", MAC: "\x02\x00\x00\x00\x01\x01", Attachment: verdict.Own, Uplink: true, Link: w.Link("n1", "eth1", verdict.Uplink, false)}))
		w.After(time.Minute).Within("n1", "", "net0", verdicttest.Who("web"))
	}},
	{Name: "a client that gave its address up to a device", Addr: "192.168.1.20", Build: func(w *verdicttest.World) {
		eth0 := w.Uplink("n1")
		w.Claim(verdict.Claim{Kind: verdict.DADFailed, Interface: eth0, PrefixLength: 24, Times: verdict.Times{AssignedAt: w.Now}})
		w.After(time.Hour)
		w.Wire(eth0, "\x02\x00\x00\x00\x00\x99")
	}},
	{Name: "bridges of libvirt that a port joins", Addr: "192.168.122.1", Build: func(w *verdicttest.World) { joinedBridges(w, true) }},
	{Name: "bridges of docker that are one link", Addr: "172.17.0.1", Build: func(w *verdicttest.World) { joinedBridges(w, false) }},
	{Name: "nodes that answer with one group MAC", Addr: "192.168.1.121", Build: func(w *verdicttest.World) { groupAnswers(w, 2) }},
	{Name: "nodes of which one answered with a group MAC", Addr: "192.168.1.121", Build: func(w *verdicttest.World) { groupAnswers(w, 1) }},
	{Name: "a virtual address that its controller assigns to one node", Addr: "192.168.1.50", Build: func(w *verdicttest.World) {
		for _, i := range verdicttest.OnLAN(w, "n1", "n2") {
			w.Assigned(i)
		}
		p := &verdict.Pool{Pool: ipam.Pool{IPAM: vip.KubeVIP.Name, Traits: registry.Traits(vip.KubeVIP.Name), Name: "addresses", State: ipam.Known}}
		w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{
			Address: w.Addr, Node: "n2", Purpose: "Service shop/web", Location: "services shop/web /metadata/annotations/kube-vip.io/vipHost",
		}})
	}},
	{Name: "the anycast address of the routers of a subnet", Addr: "2001:db8:1::", Build: func(w *verdicttest.World) {
		lan := verdicttest.OnLAN(w, "n1", "n2", "n3")
		for i, mac := range []verdict.MAC{"\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02"} {
			lan[i].MAC = mac
			w.Wire(lan[2], string(mac)).NoOverride = true
		}
		c := w.Assigned(lan[2])
		c.Kind, c.PrefixLength, c.Flags = verdict.DADFailed, 64, verdict.FlagDADFailed|verdict.FlagPermanent
	}},
	{Name: "a virtual address that two controllers assign to different nodes", Addr: "192.168.1.50", Build: func(w *verdicttest.World) {
		for k, i := range verdicttest.OnLAN(w, "n1", "n2") {
			w.Virtual(i)
			of := []string{vip.MetalLB.Name, vip.KubeVIP.Name}[k]
			w.Allocations = append(w.Allocations, &verdict.Allocation{
				Pool:       &verdict.Pool{Pool: ipam.Pool{IPAM: of, Traits: registry.Traits(of), Name: "addresses", State: ipam.Known}},
				Allocation: ipam.Allocation{Address: w.Addr, Node: i.Namespace.Node.Name, Purpose: "Service shop/web", Location: "services shop/web"},
			})
		}
	}},
	{Name: "a virtual address that a program has left behind", Addr: "192.168.1.50", Build: func(w *verdicttest.World) {
		for _, i := range verdicttest.OnLAN(w, "n1", "n2") {
			w.Virtual(i)
			w.After(time.Minute)
			i.Namespace.Node.VIPProgram, i.Namespace.Node.VIPProgramEnded = "keepalived", i.Namespace.Node.Name == "n1"
		}
	}},
	{Name: "an address of two nodes, beside a program that moves another one", Addr: "192.168.1.50", Build: func(w *verdicttest.World) {
		for _, i := range verdicttest.OnLAN(w, "n1", "n2") {
			w.Assigned(i)
			w.After(time.Minute)
			i.Namespace.Node.VIPProgram, i.Namespace.Node.VIPProgramEnded = "keepalived", i.Namespace.Node.Name == "n1"
		}
	}},
	{Name: "a virtual address that programs on two nodes hold at once", Addr: "192.168.1.50", Build: func(w *verdicttest.World) {
		for _, i := range verdicttest.OnLAN(w, "n1", "n2") {
			w.Assigned(i)
			w.After(time.Minute)
			i.Namespace.Node.VIPProgram = "ucarp"
		}
	}},
	{Name: "a virtual address in both halves of a cluster of Pacemaker", Addr: "192.168.1.50", Build: func(w *verdicttest.World) {
		for _, i := range verdicttest.OnLAN(w, "n1", "n2") {
			w.Assigned(i)
			w.After(time.Minute)
			i.Namespace.Node.VIPProgram = "pacemakerd"
		}
	}},
	{Name: "a virtual address that a node and a peer without an agent hold at once", Addr: "192.168.1.50", Build: func(w *verdicttest.World) {
		eth0 := w.Uplink("n1")
		w.Virtual(eth0)
		eth0.Namespace.Node.VIPProgram = "keepalived"
		w.After(time.Minute)
		w.Wire(eth0, "\x02\x00\x00\x00\x00\x99")
	}},
	{Name: "a virtual address that two watchdogs of Pgpool-II hold at once", Addr: "192.168.1.50", Build: func(w *verdicttest.World) {
		for _, i := range verdicttest.OnLAN(w, "n1", "n2") {
			w.Virtual(i)
			w.After(time.Minute)
			i.Namespace.Node.VIPProgram = "pgpool"
		}
	}},
	{Name: "a virtual address that a program has left behind in a namespace", Build: func(w *verdicttest.World) {
		for _, name := range []string{"old", "new"} {
			w.Within("n1", "br0", "", verdict.Workload{Kind: verdict.Unknown, Name: name, Source: "netns", VIPProgram: "keepalived", VIPProgramEnded: name == "old"})
			w.After(time.Minute)
		}
	}},
	{Name: "a virtual address that a program has left behind in a container", Build: func(w *verdicttest.World) {
		for i, name := range []string{"old", "new"} {
			who := verdicttest.Contained("docker", name)
			who.PID, who.VIPProgram, who.VIPProgramEnded = uint32(40+i), "keepalived", name == "old"
			w.Within("n1", "br0", "", who)
			w.After(time.Minute)
		}
	}},
	{Name: "a virtual address in two namespaces, of which one is known to run a program", Build: func(w *verdicttest.World) {
		w.Within("n1", "br0", "", verdict.Workload{Kind: verdict.Unknown, Name: "old", Source: "netns"})
		w.After(time.Minute).Within("n1", "br0", "", verdict.Workload{Kind: verdict.Unknown, Name: "new", Source: "netns", VIPProgram: "keepalived"})
	}},
	{Name: "a virtual address that FRR has left behind", Addr: "192.168.1.50", Build: func(w *verdicttest.World) {
		for _, i := range verdicttest.OnLAN(w, "n1", "n2") {
			router := *i
			router.Name, router.Kind, router.MAC, router.Uplink = "vrrp4-2-1", "macvlan", "\x00\x00\x5e\x00\x01\x01", false
			w.Assigned(&router)
			w.After(time.Minute)
			i.Namespace.Node.VIPProgram, i.Namespace.Node.VIPProgramEnded = "vrrpd", i.Namespace.Node.Name == "n1"
		}
	}},
	{Name: "real servers, of which only the director answers", Addr: "10.9.0.13", Build: func(w *verdicttest.World) {
		for i, name := range []string{"director", "server-1", "server-2"} {
			w.Within("n1", "br0", "", verdict.Workload{Kind: verdict.Unknown, Name: name, PID: uint32(40 + i), Process: "nginx", Source: "netns"})
			w.After(time.Minute)
		}
	}},
	{Name: "clients of two DHCP servers that do not know each other", Addr: "192.168.1.50", Build: func(w *verdicttest.World) {
		for k, i := range verdicttest.OnLAN(w, "n1", "n2") {
			w.Assigned(i)
			p := &verdict.Pool{Node: w.Node([]string{"n3", "n4"}[k]), Pool: ipam.Pool{
				IPAM: dhcp.DnsmasqName, Traits: registry.Traits(dhcp.DnsmasqName), Name: "/var/lib/misc/dnsmasq.leases#eth0", State: ipam.Known,
			}}
			w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: i.MAC.String(), Location: p.Name}})
		}
	}},
	{Name: "sandboxes of one pod", Build: func(w *verdicttest.World) {
		w.Within("n1", "", "net0", verdicttest.Who("web"))
		second := verdicttest.Who("web")
		second.ContainerID = "container-second"
		w.Within("n1", "", "net0", second)
	}},
	{Name: "sandboxes of one pod, of which one is on a disconnected node", Build: func(w *verdicttest.World) {
		w.Policy.Networks = []verdict.Network{{Name: "pods", Prefixes: verdicttest.Prefixes("10.244.0.0/16")}}
		w.Within("n1", "", "net0", verdicttest.Who("web"))
		second := verdicttest.Who("web")
		second.ContainerID = "container-second"
		w.Within("n2", "", "net0", second)
		w.Node("n1").Unheard = true
	}},
	{Name: "pods of one virtual machine", Build: func(w *verdicttest.World) {
		for _, name := range []string{"from", "to"} {
			who := verdicttest.Who(name)
			who.VirtualMachine = "vm"
			w.Within("n1", "", "net0", who)
		}
	}},
	{Name: "pods of a virtual machine that was migrated", Build: func(w *verdicttest.World) {
		w.Policy.Networks = []verdict.Network{{Name: "pods", Prefixes: verdicttest.Prefixes("10.244.0.0/16")}}
		for i, name := range []string{"from", "to"} {
			who := verdicttest.Who(name)
			who.VirtualMachine = "vm"
			w.Within([]string{"n1", "n2"}[i], "", "", who)
			w.Says("uid-"+name, verdict.PodObject{
				Namespace: "default", Name: name, Node: []string{"n1", "n2"}[i], Phase: "Running", VirtualMachine: "vm", MachineNode: "n2", MachineSince: verdicttest.Start,
			})
		}
	}},
	{Name: "links that are not proven to be one", Addr: "192.168.1.200", Build: func(w *verdicttest.World) {
		for _, i := range verdicttest.OnLAN(w, "n1", "n2") {
			i.Link.Proven, i.Link.BothWays = nil, nil
			w.Assigned(i)
		}
	}},
	{Name: "links that are not proven to be one, with an IPv6 address", Addr: "fd00::200", Build: func(w *verdicttest.World) {
		for _, i := range verdicttest.OnLAN(w, "n1", "n2") {
			i.Link.Proven, i.Link.BothWays = nil, nil
			w.Assigned(i)
		}
	}},
	{Name: "a device that may be a repeater", Addr: "192.168.1.200", Build: func(w *verdicttest.World) {
		uplinks := verdicttest.OnLAN(w, "n1", "n2")
		for _, i := range uplinks {
			i.Link.BothWays = nil
		}
		w.Assigned(uplinks[0])
		w.Wire(uplinks[1], "\x02\x00\x00\x00\x00\x77")
	}},
	{Name: "several ports of one owner", Build: func(w *verdicttest.World) {
		a, _ := twoPods(w, "br1", "br2")
		w.Wire(w.Uplink("n1"), string(a.Interface.MAC))
		w.Interfaces[len(w.Interfaces)-1].Link = a.Interface.Link
		w.Claims[len(w.Claims)-1].Link = a.Interface.Link
	}},
	{Name: "in a declared network", Build: func(w *verdicttest.World) {
		w.Policy.Networks = []verdict.Network{{Name: "pods", Prefixes: verdicttest.Prefixes("10.244.0.0/16")}}
		twoPods(w, "br1", "br2")
	}},
	{Name: "in a range of pods", Build: func(w *verdicttest.World) {
		w.PodCIDR = netip.MustParsePrefix("10.244.1.0/24")
		twoPods(w, "br1", "br1")
	}},
	{Name: "a node whose cable is out, and one that took the address", Addr: "192.0.2.14", Build: func(w *verdicttest.World) {
		lan := verdicttest.OnLAN(w, "n1", "n2")
		w.Assigned(lan[0])
		lan[0].Link.CarrierLost = w.Now
		w.Assigned(lan[1])
	}},
	{Name: "a conflict outlasts a cable that is out for a moment", Addr: "192.0.2.14", Build: func(w *verdicttest.World) {
		lan := verdicttest.OnLAN(w, "n1", "n2")
		w.Assigned(lan[0])
		w.Assigned(lan[1])
		w.Judge()
		w.Now = w.Now.Add(time.Minute)
		w.Read(w.Claims...)
		w.Judge()
		w.Now = w.Now.Add(time.Second)
		lan[0].Link.CarrierLost = w.Now
	}},
	{Name: "given by the container runtime", Build: func(w *verdicttest.World) { w.Within("n1", "", "cri", verdicttest.Who("web")) }},
	{Name: "reported once in the wider scope", Build: func(w *verdicttest.World) {
		a, _ := twoPods(w, "br1", "br1")
		a.Interface.Link.Routed = true
	}},
	{Name: "a pod that claims the address of another", Addr: "10.0.0.5", Build: func(w *verdicttest.World) {
		l := w.Link("n1", "cni0", verdict.Bridge, false)
		owner, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "\x02\x00\x00\x00\x00\x0a", l)
		_, port := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("evil")), "\x02\x00\x00\x00\x00\x0b", l)
		w.Assigned(owner)
		w.Wire(port, "\x02\x00\x00\x00\x00\x0b").Kind = verdict.Answered
	}},
	{Name: "a pod that sends with the MAC of another", Addr: "10.0.0.5", Build: func(w *verdicttest.World) {
		l := w.Link("n1", "cni0", verdict.Bridge, false)
		owner, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "\x02\x00\x00\x00\x00\x0a", l)
		_, port := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("evil")), "\x02\x00\x00\x00\x00\x0b", l)
		w.Assigned(owner)
		w.Wire(port, "\x02\x00\x00\x00\x00\x0a")
	}},
}

package verdict_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// blue returns a network namespace that was created by hand.
func blue(name string) verdict.Workload {
	return verdict.Workload{Kind: verdict.Unknown, Name: name, Source: "netns", PID: 1}
}

// moving is a namespace in which a keepalived runs or has ended.
func moving(name string, ended bool) verdict.Workload {
	who := blue(name)
	who.VIPProgram, who.VIPProgramEnded = "keepalived", ended
	return who
}

// movable gives nodes on one LAN a virtual address, one after the other. Their clocks agree.
func movable(w *verdicttest.World, nodes ...string) {
	for _, i := range verdicttest.OnLAN(w, nodes...) {
		i.Namespace.Node.SkewKnown = true
		w.Virtual(i)
		w.After(time.Minute)
	}
}

// migrated adds two pods of a virtual machine on two nodes. KubeVirt says that it runs on a node.
func migrated(w *verdicttest.World, node string, migrating bool) {
	w.Policy.Networks = []verdict.Network{{Name: "pods", Prefixes: verdicttest.Prefixes("10.244.0.0/16")}}
	for i, name := range []string{"from", "to"} {
		on := []string{"n1", "n2"}[i]
		who := verdicttest.Who(name)
		who.VirtualMachine = "vm"
		w.Within(on, "", "", who)
		w.After(time.Minute)
		w.Node(on).SkewKnown = true
		w.Says("uid-"+name, verdict.PodObject{
			Namespace: "default", Name: name, Node: on, Phase: "Running", VirtualMachine: "vm", MachineNode: node, Migrating: migrating, MachineSince: w.Now,
		})
	}
}

// assign has a controller assign the address to a node.
func assign(w *verdicttest.World, node string, state ipam.State) {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: vip.KubeVIP.Name, Traits: registry.Traits(vip.KubeVIP.Name), Name: "addresses", State: state}}
	w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{
		Address: w.Addr, Node: node, Purpose: "Service shop/web", Location: "services shop/web " + node,
	}})
}

// assigned remembers that a controller assigned the address to a node, until a time after the start.
func assigned(w *verdicttest.World, node string, until time.Duration) {
	for _, c := range w.Claims {
		if c.Node().Name == node {
			w.Past = append(w.Past, verdict.Past{Owner: c.Interface.Namespace.ID, Kind: verdict.FindingVIPHeldElsewhere, Since: verdicttest.Start.Add(until)})
		}
	}
}

// bothEnds gives a namespace the address, and the node that has the other end of its veth, or that of another
// namespace. It returns the claim of the namespace.
func bothEnds(w *verdicttest.World, of verdict.Workload, nodeFirst, another bool) (inside *verdict.Claim) {
	ns := w.Namespace("n1", 5, "105", of)
	end, port := w.Veth(ns, "\x02\x00\x00\x00\x01\x05", w.Link("n1", "veth105", verdict.PointToPoint, false))
	if another {
		_, port = w.Veth(w.Namespace("n1", 6, "106", blue("other")), "\x02\x00\x00\x00\x01\x06", w.Link("n1", "veth106", verdict.PointToPoint, false))
	}
	if nodeFirst {
		w.Assigned(port)
		return w.After(time.Minute).Assigned(end)
	}
	inside = w.Assigned(end)
	w.After(time.Minute).Assigned(port)
	return inside
}

// program makes a program that moves virtual addresses run on a node, or end there.
func program(w *verdicttest.World, node, name string, ended bool) {
	w.Node(node).VIPProgram, w.Node(node).VIPProgramEnded = name, ended
}

func TestRightfulOwner(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *verdicttest.World)
		keep  string
		right verdict.Right
	}{
		{"IPAM has it for the newer one", func(w *verdicttest.World) {
			verdicttest.Twins(w)
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
		}, "new", verdict.RightAllocation},
		{"detection of duplicates failed in the newer sandbox of a pod: age does not decide", func(w *verdicttest.World) {
			a, b := verdicttest.Twins(w)
			b.Kind, b.Flags, b.Interface.Link = verdict.DADFailed, verdict.FlagDADFailed|verdict.FlagPermanent, a.Interface.Link
			second := verdicttest.Who("old")
			second.ContainerID = "container-second"
			b.Interface.Namespace.Who = second.Who()
		}, "", verdict.RightUndecided},
		{"detection of duplicates failed in the newer pod", func(w *verdicttest.World) {
			a, b := verdicttest.Twins(w)
			b.Kind, b.Flags, b.Interface.Link = verdict.DADFailed, verdict.FlagDADFailed|verdict.FlagPermanent, a.Interface.Link
		}, "old", verdict.RightOlderAssignment},
		{"IPAM has it for the earlier owner", func(w *verdicttest.World) {
			w.Within("n1", "", "", blue("blue"))
			w.After(time.Minute).Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
		}, "web", verdict.RightAllocation},
		{"IPAM has it for both: the older one of them", func(w *verdicttest.World) {
			verdicttest.Twins(w)
			p := w.Pool(whereabouts.Name, "", "kindnet")
			w.Books(p, "old")
			w.Books(p, "new")
		}, "old", verdict.RightOlderAssignment},
		{"IPAM has it for two of three, and the third one came first", func(w *verdicttest.World) {
			w.Within("n1", "", "", blue("blue"))
			w.After(time.Minute).Within("n1", "", "", verdicttest.Who("old"))
			w.After(time.Minute).Within("n1", "", "", verdicttest.Who("new"))
			p := w.Pool(hostlocal.Name, "n1", "kindnet")
			w.Books(p, "old")
			w.Books(p, "new")
		}, "old", verdict.RightOlderAssignment},
		{"a router without processes came first: it forwards, or is left over", func(w *verdicttest.World) {
			router := blue("qrouter")
			router.PID, router.Idle, router.MayForward = 0, true, true
			w.Within("n1", "", "", router)
			w.After(time.Minute).Within("n1", "", "", verdicttest.Who("web"))
		}, "", verdict.RightUndecided},
		{"a router without processes came second", func(w *verdicttest.World) {
			router := blue("qrouter")
			router.PID, router.Idle, router.MayForward = 0, true, true
			w.Within("n1", "", "", verdicttest.Who("web"))
			w.After(time.Minute).Within("n1", "", "", router)
		}, "web", verdict.RightOlderAssignment},
		{"the gateway of a pool on its bridge", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "cni0", "", verdicttest.Who("web"))
			w.After(time.Minute).Device("n1", "cni0", "bridge")
			p := w.Pool(hostlocal.Name, "n1", "pods", "10.244.0.2-10.244.255.254")
			p.Device, p.Gateways = "cni0", []netip.Addr{w.Addr}
		}, "n1", verdict.RightAllocation},
		{"the gateway of a pool on another device", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("10.244.0.1")
			w.Within("n1", "cni0", "", verdicttest.Who("web"))
			w.After(time.Minute).Device("n1", "br0", "bridge")
			p := w.Pool(hostlocal.Name, "n1", "pods", "10.244.0.2-10.244.255.254")
			p.Device, p.Gateways = "cni0", []netip.Addr{w.Addr}
		}, "web", verdict.RightOlderAssignment},
		{"one that gets the address again after a restart", func(w *verdicttest.World) {
			verdicttest.Twins(w)
			p := w.Pool(ovn.KubeOVN.Name, "", "kindnet")
			w.Books(p, "old")
			w.Books(p, "new").Kept = true
		}, "new", verdict.RightKept},
		{"two that get the address again after a restart", func(w *verdicttest.World) {
			verdicttest.Twins(w)
			p := w.Pool(ovn.KubeOVN.Name, "", "kindnet")
			w.Books(p, "old").Kept = true
			w.Books(p, "new").Kept = true
		}, "old", verdict.RightOlderAssignment},
		{"no records: the older one", func(w *verdicttest.World) { verdicttest.Twins(w) }, "old", verdict.RightOlderAssignment},
		{"two namespaces without processes", func(w *verdicttest.World) {
			for _, name := range []string{"old", "new"} {
				who := blue(name)
				who.PID, who.Idle = 0, true
				w.Within("n1", "", "", who)
				w.After(time.Minute)
			}
			w.Node("n1").SeesProcesses = true
		}, "", verdict.RightUndecided},
		{"an older one without processes, whose agent has just started", func(w *verdicttest.World) {
			who := blue("old")
			who.PID = 0
			w.Within("n1", "", "", who)
			w.After(time.Minute).Within("n1", "", "", blue("new"))
			w.Node("n1").SeesProcesses = true
		}, "", verdict.RightUndecided},
		{"two namespaces with processes", func(w *verdicttest.World) {
			w.Within("n1", "", "", blue("old"))
			w.After(time.Minute).Within("n1", "", "", blue("new"))
			w.Node("n1").SeesProcesses = true
		}, "old", verdict.RightOlderAssignment},
		{"an older one by hand, without records", func(w *verdicttest.World) {
			w.Within("n1", "", "", blue("blue"))
			w.After(time.Minute).Within("n1", "", "kindnet", verdicttest.Who("web"))
		}, "blue", verdict.RightOlderAssignment},
		{"at the same time, and one was meant to have it", func(w *verdicttest.World) {
			w.Within("n1", "", "", blue("blue"))
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
		}, "web", verdict.RightIntent},
		{"at one time, and both were meant to", func(w *verdicttest.World) {
			w.Within("n1", "", "kindnet", verdicttest.Who("a"))
			w.Within("n1", "", "kindnet", verdicttest.Who("b"))
		}, "", verdict.RightUndecided},
		{"on two nodes whose clocks cannot be compared", func(w *verdicttest.World) {
			w.Policy.Networks = []verdict.Network{{Name: "pods", Prefixes: verdicttest.Prefixes("10.244.0.0/16")}}
			w.Within("n1", "", "", blue("a"))
			w.After(time.Minute).Within("n2", "", "", blue("b"))
		}, "", verdict.RightUndecided},
		{"IPAM has it for a holder that may be one of them", func(w *verdicttest.World) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.After(time.Minute).Within("n1", "", "", blue("cni-0123"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "young")
		}, "", verdict.RightUndecided},
		{"frames alone, from behind a port, after the assignment", func(w *verdicttest.World) {
			w.Within("n1", "cni0", "", blue("blue"))
			w.After(time.Minute)
			verdicttest.Guest(w, "")
		}, "blue", verdict.RightOlderAssignment},
		{"frames alone, from behind a port, before the assignment", func(w *verdicttest.World) {
			verdicttest.Guest(w, "")
			w.After(time.Minute).Within("n1", "cni0", "", blue("blue"))
		}, "", verdict.RightUndecided},
		{"a device outside, and a node", func(w *verdicttest.World) {
			w.Wire(w.Device("n1", "eth0", ""), "\x02\x00\x00\x00\x00\x99")
		}, "", verdict.RightUndecided},
		{"a kernel that refused it", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("fd00:10:244::5")
			w.Within("n1", "cni0", "", blue("first"))
			c := w.After(time.Minute).Within("n1", "cni0", "", blue("refused"))
			c.Kind, c.Flags = verdict.DADFailed, verdict.FlagDADFailed
		}, "first", verdict.RightOlderAssignment},
		{"a client that gave its address up to a newer owner", func(w *verdicttest.World) {
			w.Within("n1", "cni0", "", blue("client")).Kind = verdict.DADFailed
			w.After(time.Minute).Within("n1", "cni0", "", blue("newer"))
		}, "", verdict.RightUndecided},
		{"a newer client that gave its address up", func(w *verdicttest.World) {
			w.Within("n1", "cni0", "", blue("first"))
			w.After(time.Minute).Within("n1", "cni0", "", blue("client")).Kind = verdict.DADFailed
		}, "first", verdict.RightOlderAssignment},
		{"a controller assigns it to the newer node", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			assign(w, "n2", ipam.Known)
		}, "n2", verdict.RightAssignment},
		{"a node's own address with a lifetime, and IPAM has it for a pod", func(w *verdicttest.World) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.After(time.Minute).Device("n1", "eth0", "")
			w.Claims[1].Flags = 0
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
			w.Internal = "n1"
		}, "n1", verdict.RightNode},
		{"an address of a node with a lifetime, and IPAM has it for a pod", func(w *verdicttest.World) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.After(time.Minute).Device("n1", "eth0", "")
			w.Claims[1].Flags = 0
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
		}, "web", verdict.RightAllocation},
		{"both ends of a veth, the end of the node first", func(w *verdicttest.World) { bothEnds(w, blue("blue"), true, false) }, "", verdict.RightUndecided},
		{"both ends of a veth, the end of the namespace first", func(w *verdicttest.World) { bothEnds(w, blue("blue"), false, false) }, "", verdict.RightUndecided},
		{"both ends of a veth, and detection of duplicates failed in the namespace", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("fd00:7::2")
			bothEnds(w, blue("blue"), true, false).Kind = verdict.DADFailed
		}, "", verdict.RightUndecided},
		{"both ends of a veth, and detection of duplicates failed at the node", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("fd00:7::2")
			bothEnds(w, blue("blue"), false, false)
			w.Claims[1].Kind = verdict.DADFailed
		}, "", verdict.RightUndecided},
		{"both ends of a veth, and a network assigned it to the pod", func(w *verdicttest.World) {
			bothEnds(w, verdicttest.Who("web"), true, false).Network = "net0"
		}, "web", verdict.RightIntent},
		{"a namespace, and the port of another one, which the node had first", func(w *verdicttest.World) { bothEnds(w, blue("blue"), true, true) }, "n1", verdict.RightOlderAssignment},
		{"a namespace, and later the port of another one", func(w *verdicttest.World) { bothEnds(w, blue("blue"), false, true) }, "blue", verdict.RightOlderAssignment},
		{"a namespace, and the card that the node had first", func(w *verdicttest.World) {
			w.Device("n1", "eth0", "")
			w.After(time.Minute).Within("n1", "", "", blue("blue"))
		}, "n1", verdict.RightOlderAssignment},
		{"a pod on the LAN gets the address that its node had first", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("192.0.2.50")
			verdicttest.OnLANOf(w, "n1", 0)
		}, "n1", verdict.RightNode},
		{"a pod on the LAN gets the address that DHCP gave its node", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("192.0.2.50")
			verdicttest.OnLANOf(w, "n1", 0)
			w.Claims[0].Flags = 0
		}, "n1", verdict.RightNode},
		{"a pod on the LAN gets the address that another node had first", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("192.0.2.50")
			verdicttest.OnLANOf(w, "n2", 0)
		}, "n2", verdict.RightNode},
		{"a pod on the LAN gets the address of another node, whose clock cannot be compared", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("192.0.2.50")
			verdicttest.OnLANOf(w, "n2", 0)
			w.Node("n2").SkewKnown = false
		}, "web", verdict.RightAllocation},
		{"the kernel of a pod on the LAN refused the address that its node had first", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("2001:db8::50")
			verdicttest.OnLANOf(w, "n1", 0)
			w.Claims[1].Kind, w.Claims[1].Flags = verdict.DADFailed, verdict.FlagDADFailed
		}, "n1", verdict.RightNode},
		{"a pod on the LAN had the address before its node", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("192.0.2.50")
			verdicttest.OnLANOf(w, "n1", 2*time.Minute)
		}, "web", verdict.RightAllocation},
		{"a pod on the LAN gets an address that its node had beside its main one", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("192.0.2.50")
			verdicttest.OnLANOf(w, "n1", 0)
			w.Claims[0].Flags |= verdict.FlagSecondary
		}, "web", verdict.RightAllocation},
		{"a pod on the LAN gets the address that a program has set on its node", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("192.0.2.50")
			verdicttest.OnLANOf(w, "n1", 0)
			program(w, "n1", "keepalived", false)
		}, "web", verdict.RightAllocation},
		{"a DHCP server leases the address of its node to a pod on the LAN", func(w *verdicttest.World) {
			w.Addr = netip.MustParseAddr("192.0.2.50")
			verdicttest.OnLANOf(w, "n1", 0)
			w.Allocations = nil
			p := w.Pool(dhcp.DnsmasqName, "n1", "", "192.0.2.10-192.0.2.99")
			w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: verdict.MAC("baaaaa").String()}})
		}, "web", verdict.RightAllocation},
		{"a pod on a bridge with an uplink gets the address that its node had first", func(w *verdicttest.World) {
			br0 := w.Device("n1", "br0", "bridge")
			w.Subnet(br0, "10.244.1.5/24")
			w.Subnets[0].LAN = true
			w.After(time.Minute).Within("n1", "br0", "lan", verdicttest.Who("web"))
			w.Books(w.Pool(hostlocal.Name, "n1", "lan"), "web")
		}, "n1", verdict.RightNode},
		{"a pod on a bridge without an uplink gets the address that its node had first", func(w *verdicttest.World) {
			w.Subnet(w.Device("n1", "br0", "bridge"), "10.244.1.5/24")
			w.After(time.Minute).Within("n1", "br0", "lan", verdicttest.Who("web"))
			w.Books(w.Pool(hostlocal.Name, "n1", "lan"), "web")
		}, "web", verdict.RightAllocation},
		{"a pod behind a veth gets the address that its node had first", func(w *verdicttest.World) {
			w.Device("n1", "eth0", "")
			w.After(time.Minute).Within("n1", "", "kindnet", verdicttest.Who("web"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "web")
		}, "web", verdict.RightAllocation},
		{"a controller assigns the own address of the older node to the newer one", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			assign(w, "n2", ipam.Known)
			w.Internal = "n1"
		}, "n1", verdict.RightNode},
		{"a controller assigns it to the newer node by turns, and it is the address of that one", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			assign(w, "n2", ipam.Known)
			assigned(w, "n1", 24*time.Hour)
			assigned(w, "n2", 24*time.Hour)
			w.Internal = "n2"
		}, "n2", verdict.RightNode},
		{"a controller assigns it to a node that does not have it", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			assign(w, "n3", ipam.Known)
		}, "", verdict.RightUndecided},
		{"two objects of a controller assign it to both nodes", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			assign(w, "n1", ipam.Known)
			assign(w, "n2", ipam.Known)
		}, "", verdict.RightUndecided},
		{"a controller assigns it to both nodes by turns", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			assign(w, "n2", ipam.Known)
			assigned(w, "n1", 24*time.Hour)
			assigned(w, "n2", 24*time.Hour)
		}, "", verdict.RightUndecided},
		{"a controller assigned it to the older node when that one held it alone", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			assign(w, "n2", ipam.Known)
			assigned(w, "n1", 24*time.Hour)
			assigned(w, "n2", -time.Hour)
		}, "n2", verdict.RightAssignment},
		{"a controller assigned it to the newer node when the API last responded", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			assign(w, "n2", ipam.Stale)
		}, "", verdict.RightUndecided},
		{"a controller assigns a pod's address to a node", func(w *verdicttest.World) {
			verdicttest.Twins(w)
			assign(w, "n1", ipam.Known)
		}, "old", verdict.RightOlderAssignment},
		{"keepalived has ended on the older node", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			program(w, "n1", "keepalived", true)
			program(w, "n2", "keepalived", false)
		}, "n2", verdict.RightProgram},
		{"keepalived has ended on the older node, and one of them has the address as its own", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			program(w, "n1", "keepalived", true)
			program(w, "n2", "keepalived", false)
			w.Claims[1].PrefixLength = 24
		}, "", verdict.RightUndecided},
		{"keepalived has ended on the older node, and set the address with the prefix of the subnet", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			program(w, "n1", "keepalived", true)
			program(w, "n2", "keepalived", false)
			for _, c := range w.Claims {
				c.PrefixLength, c.Flags = 24, c.Flags|verdict.FlagSecondary
			}
		}, "n2", verdict.RightProgram},
		{"the vrrpd of FRR has ended on the older node", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			program(w, "n1", "vrrpd", true)
			program(w, "n2", "vrrpd", false)
			for _, c := range w.Claims {
				router := *c.Interface
				router.MAC = vrrpMAC
				c.PrefixLength, c.Interface = 24, &router
			}
		}, "n2", verdict.RightProgram},
		{"keepalived has ended on the node whose own address it is", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			program(w, "n1", "keepalived", true)
			program(w, "n2", "keepalived", false)
			w.Internal = "n1"
		}, "n1", verdict.RightNode},
		{"keepalived runs on both nodes", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			program(w, "n1", "keepalived", false)
			program(w, "n2", "keepalived", false)
		}, "", verdict.RightUndecided},
		{"keepalived has ended on both nodes", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			program(w, "n1", "keepalived", true)
			program(w, "n2", "keepalived", true)
		}, "", verdict.RightUndecided},
		{"keepalived runs on one node, and was never seen on the other", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			program(w, "n2", "keepalived", false)
		}, "", verdict.RightUndecided},
		{"another program has ended on the other node", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			program(w, "n1", "ucarp", true)
			program(w, "n2", "keepalived", false)
		}, "", verdict.RightUndecided},
		{"keepalived has ended, and a controller assigns it to that node", func(w *verdicttest.World) {
			movable(w, "n1", "n2")
			program(w, "n1", "keepalived", true)
			program(w, "n2", "keepalived", false)
			assign(w, "n1", ipam.Known)
		}, "n1", verdict.RightAssignment},
		{"keepalived has ended in the older namespace", func(w *verdicttest.World) {
			w.Within("n1", "br0", "", moving("old", true))
			w.After(time.Minute).Within("n1", "br0", "", moving("new", false))
		}, "new", verdict.RightProgram},
		{"keepalived runs in the newer namespace, and was never seen in the other", func(w *verdicttest.World) {
			w.Within("n1", "br0", "", blue("old"))
			w.After(time.Minute).Within("n1", "br0", "", moving("new", false))
		}, "", verdict.RightUndecided},
		{"keepalived has ended in the newer namespace, and was never seen in the other", func(w *verdicttest.World) {
			w.Within("n1", "br0", "", blue("old"))
			w.After(time.Minute).Within("n1", "br0", "", moving("new", true))
		}, "", verdict.RightUndecided},
		{"keepalived runs on the newer owner, a node", func(w *verdicttest.World) {
			w.Within("n1", "br0", "", blue("old"))
			w.After(time.Minute).Device("n1", "br0", "bridge")
			program(w, "n1", "keepalived", false)
		}, "", verdict.RightUndecided},
		{"keepalived runs on the newer owner, a node, and the other was meant to have it", func(w *verdicttest.World) {
			w.Within("n1", "br0", "kindnet", verdicttest.Who("web"))
			w.After(time.Minute).Device("n1", "br0", "bridge")
			program(w, "n1", "keepalived", false)
		}, "web", verdict.RightIntent},
		{"keepalived runs in the newer of two pods, both of which a network gave the address", func(w *verdicttest.World) {
			w.Within("n1", "br0", "kindnet", verdicttest.Who("old"))
			who := verdicttest.Who("new")
			who.VIPProgram = "keepalived"
			w.After(time.Minute).Within("n1", "br0", "kindnet", who)
		}, "old", verdict.RightOlderAssignment},
		{"a virtual machine that has moved to the newer pod", func(w *verdicttest.World) { migrated(w, "n2", false) }, "to", verdict.RightMachine},
		{"a virtual machine that is being migrated", func(w *verdicttest.World) { migrated(w, "n1", true) }, "from", verdict.RightOlderAssignment},
		{"a virtual machine on a third node", func(w *verdicttest.World) { migrated(w, "n3", false) }, "from", verdict.RightOlderAssignment},
		{"a sandbox of a deleted pod", func(w *verdicttest.World) {
			verdicttest.Twins(w)
			w.Says("uid-old", verdict.PodObject{Absent: true})
			w.Says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Running"})
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "old")
		}, "new", verdict.RightIntent},
		{"two sandboxes of one pod", func(w *verdicttest.World) {
			w.Within("n1", "", "kindnet", verdicttest.Who("web"))
			second := verdicttest.Who("web")
			second.ContainerID = "container-second"
			w.After(time.Minute).Within("n1", "", "kindnet", second)
		}, "", verdict.RightUndecided},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := verdicttest.Situation{Build: test.build}
			_, c := s.Judge()
			if c == nil {
				t.Fatal("got no conflict, or several, want one")
			}
			if got := keeper(c); got != test.keep || c.Right != test.right {
				t.Errorf("got %q by %d, want %q by %d", got, c.Right, test.keep, test.right)
			}
		})
	}
}

package verdict_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// who is a pod with a sandbox.
func who(name string) verdict.Workload {
	p := pod(name)
	p.ContainerID = "container-" + name
	return p
}

// within has somebody on a node have the address: on a bridge, or by a point-to-point
// veth where none is named; given by a CNI network, or by nobody.
func (w *world) within(node, bridge, network string, of verdict.Workload) *verdict.Claim {
	ns := w.namespace(node, uint32(len(w.namespaces)+2), fmt.Sprint(100+len(w.namespaces)), of)
	l := w.link(node, "veth"+ns.Netns, verdict.PointToPoint, false)
	if bridge != "" {
		l = w.link(node, bridge, verdict.Bridge, true)
	}
	inside, _ := w.veth(ns, "\x02\x00\x00\x00\x01"+string(rune(len(w.namespaces))), l)
	c := w.assigned(inside)
	c.Network = network
	if bridge == "" {
		c.PrefixLength = 32
	}
	return c
}

// device has a node itself have the address.
func (w *world) device(node, name, kind string) *verdict.Interface {
	linkKind := verdict.Uplink
	if kind == "bridge" {
		linkKind = verdict.Bridge
	}
	l := w.link(node, name, linkKind, kind == "bridge")
	i := w.iface(w.host(node), verdict.Interface{
		Name: name, Kind: kind, MAC: verdict.MAC("dev" + name[:3]), Attachment: verdict.Own, Link: l, Uplink: kind == "",
	})
	if kind == "" {
		i.Kind, i.Peer = "veth", 77 // a cable to another namespace, as in a lab
	}
	w.assigned(i)
	return i
}

// pool is one that a node has for itself, or the whole cluster where none is named.
func (w *world) pool(ipam, node, network string, ranges ...string) *verdict.Pool {
	p := &verdict.Pool{IPAM: ipam, Name: "/var/lib/cni/networks/" + network, Network: network, State: verdict.PoolKnown, Routed: true}
	if node != "" {
		p.Node = w.node(node)
	}
	if len(ranges) == 0 {
		ranges = []string{"10.244.0.1-10.244.255.254"}
	}
	for _, r := range ranges {
		from, to, _ := strings.Cut(r, "-")
		p.Ranges = append(p.Ranges, verdict.Range{First: netip.MustParseAddr(from), Last: netip.MustParseAddr(to)})
	}
	w.pools = append(w.pools, p)
	return p
}

// books has a pool have the address for a pod's sandbox.
func (w *world) books(p *verdict.Pool, name string) *verdict.Allocation {
	al := &verdict.Allocation{Pool: p, Address: w.addr, ContainerID: "container-" + name, Location: p.Name + "/" + w.addr.String()}
	w.allocations = append(w.allocations, al)
	return al
}

// calico has Calico have the address for a pod on a node.
func (w *world) calico(p *verdict.Pool, name, node string) *verdict.Allocation {
	al := &verdict.Allocation{Pool: p, Address: w.addr, Namespace: "default", Pod: name, Node: node, ContainerID: "container-" + name}
	w.allocations = append(w.allocations, al)
	return al
}

// was has it remembered of the first owner of a name what IPAM said.
func (w *world) was(c *verdict.Claim, kind string, al *verdict.Allocation) {
	w.past = append(w.past, verdict.Past{Owner: c.Interface.Namespace.ID, Kind: kind, Allocation: al, Since: start})
}

func (w *world) subnet(i *verdict.Interface, prefix string) {
	w.subnets = append(w.subnets, verdict.Subnet{Prefix: netip.MustParsePrefix(prefix), Interface: i})
}

// bridge is a bridge of a node with a prefix of its own.
func (w *world) bridge(node, name, prefix string) *verdict.Interface {
	i := w.iface(w.host(node), verdict.Interface{Name: name, Kind: "bridge", Attachment: verdict.Own, Link: w.link(node, name, verdict.Bridge, true)})
	w.subnet(i, prefix)
	return i
}

// situation is one of a conflict, with the cause that it has and no other.
type situation struct {
	name  string
	build func(w *world)
	cause string
	// because has parts of the facts, not a cause and a part of why it is not it.
	because []string
	not     map[string]string
	addr    string
}

const (
	lost      = verdict.CauseIPAMStateLost
	elsewhere = verdict.CauseIPAMBookedElsewhere
	overlap   = verdict.CausePodCIDROverlap
	networks  = verdict.CauseOverlappingNetworks
	static    = verdict.CauseStaticAddress
	tunnel    = verdict.CauseTunnelAddress
	outside   = verdict.CauseExternalDevice
	orphan    = verdict.CauseOrphanedSandbox
	split     = verdict.CauseSplitBrain
	unknown   = verdict.CauseUnknown
)

// twins are two pods of one node that one network gave the address.
func twins(w *world) (a, b *verdict.Claim) {
	a = w.within("n1", "", "kindnet", who("old"))
	w.after(time.Minute)
	return a, w.within("n1", "", "kindnet", who("new"))
}

// situations are each cause, and what only seems to be it.
var situations = []situation{
	{
		name: "T1 the record of the first pod is gone", cause: lost,
		build: func(w *world) {
			twins(w)
			p := w.pool(verdict.HostLocal, "n1", "kindnet")
			p.LostAt, p.Lost = start.Add(time.Second), 3
			w.books(p, "new")
		},
		because: []string{"network kindnet gave it to pod default/old", "has it for pod default/new alone", "All of its records were lost at", "there were 3"},
		not:     map[string]string{networks: "network kindnet gave it to both", static: "nobody set it by hand"},
	},
	{
		name: "T1 all records are gone", cause: lost,
		build: func(w *world) {
			twins(w)
			w.pool(verdict.HostLocal, "n1", "kindnet").State = verdict.PoolMissing
		},
		because: []string{"are missing"},
	},
	{
		name: "T1 without IPAM records", cause: unknown,
		build: func(w *world) { twins(w) },
		not:   map[string]string{lost: "no IPAM records of node n1 are known", static: "nobody set it by hand"},
	},
	{
		name: "T1 records that are being read", cause: unknown,
		build: func(w *world) {
			twins(w)
			w.pool(verdict.HostLocal, "n1", "kindnet").State = verdict.PoolReading
		},
		not: map[string]string{lost: "still being read"},
	},
	{
		name: "T1 records that cannot be read: host-local gives no address of a network twice", cause: lost,
		build: func(w *world) {
			twins(w)
			p := w.pool(verdict.HostLocal, "n1", "kindnet")
			p.State, p.Problem = verdict.PoolUnreadable, "permission denied"
		},
		because: []string{"cannot be read: permission denied", "While its records are whole"},
	},
	{
		name: "records of whereabouts that cannot be read prove nothing", cause: unknown,
		build: func(w *world) {
			twins(w)
			p := w.pool(verdict.Whereabouts, "", "kindnet")
			p.State, p.Problem = verdict.PoolUnreadable, "no such resource"
		},
		not: map[string]string{lost: "cannot be read now: no such resource"},
	},
	{
		name: "IPAM has it for both", cause: unknown,
		build: func(w *world) {
			twins(w)
			p := w.pool(verdict.Whereabouts, "", "kindnet")
			w.books(p, "old")
			w.books(p, "new")
		},
		not: map[string]string{lost: "has it for pod default/old and pod default/new"},
	},
	{
		name: "the pod that IPAM has no more is being deleted", cause: unknown,
		build: func(w *world) {
			twins(w)
			w.says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running", DeletionTimestamp: start})
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
		},
		not: map[string]string{lost: "is being deleted"},
	},
	{
		name: "T1 only the container runtime says who gave it", cause: lost,
		build: func(w *world) {
			a, b := twins(w)
			a.Network, b.Network = "cri", "cri"
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
		},
		because: []string{"The container runtime says that it gave it to pod default/old"},
	},
	{
		name: "T2 on a bridge", cause: lost,
		build: func(w *world) {
			w.within("n1", "cni0", "cbr0", who("old"))
			w.after(time.Minute).within("n1", "cni0", "cbr0", who("new"))
			w.books(w.pool(verdict.HostLocal, "n1", "cbr0"), "new")
		},
	},
	{
		name: "T13 the same of IPv6", cause: lost, addr: "fd00:10:244::5",
		build: func(w *world) {
			w.within("n1", "cni0", "cbr0", who("old"))
			w.after(time.Minute).within("n1", "cni0", "cbr0", who("new"))
			w.books(w.pool(verdict.HostLocal, "n1", "cbr0", "fd00:10:244::1-fd00:10:244::ffff"), "new")
		},
	},
	{
		name: "T12 the same where the kernel finds it", cause: lost, addr: "fd00:10:244::5",
		build: func(w *world) {
			w.within("n1", "cni0", "cbr0", who("old"))
			c := w.after(time.Minute).within("n1", "cni0", "cbr0", who("new"))
			c.Kind, c.Network = verdict.DADFailed, ""
			w.books(w.pool(verdict.HostLocal, "n1", "cbr0", "fd00:10:244::1-fd00:10:244::ffff"), "new")
		},
	},
	{
		name: "T4 a reservation of whereabouts is lost", cause: lost, addr: "192.168.2.5",
		build: func(w *world) {
			lan := onLAN(w, "n1", "n2")
			var claims []*verdict.Claim
			for i, name := range []string{"old", "new"} {
				ns := w.namespace(fmt.Sprint("n", i+1), 7, fmt.Sprint(70+i), who(name))
				c := w.assigned(w.iface(ns, verdict.Interface{Name: "net1", MAC: verdict.MAC("nv" + name + "x")[:6], Attachment: verdict.Lower, Link: lan[i].Link, HostInterface: "eth0"}))
				c.Network = "lan"
				claims = append(claims, c)
			}
			p := w.pool(verdict.Whereabouts, "", "lan", "192.168.2.1-192.168.2.9")
			w.books(p, "new")
			w.was(claims[0], verdict.FindingInUseUnallocated, &verdict.Allocation{Pool: p, ContainerID: "container-old"})
		},
		because: []string{"Its record of pod default/old vanished at"},
		not:     map[string]string{overlap: "for the whole cluster", networks: "network lan gave it to both"},
	},
	{
		name: "T3 booked for another node", cause: elsewhere,
		build: func(w *world) {
			a := w.within("n1", "", "k8s-pod-network", who("web"))
			w.after(time.Minute).within("n2", "", "k8s-pod-network", who("db"))
			p := w.pool(verdict.Calico, "", "")
			w.calico(p, "db", "n2")
			w.was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n9"})
		},
		because: []string{"had it for pod default/web on node n9 while pod default/web (eth0, node n1) had it", "has it for pod default/db alone"},
		not:     map[string]string{overlap: "for the whole cluster"},
	},
	{
		name: "T3 nodename is another node's", cause: elsewhere,
		build: func(w *world) {
			w.node("n1").CalicoNodename = "n9"
			w.within("n1", "", "k8s-pod-network", who("web"))
			w.after(time.Minute).within("n2", "", "k8s-pod-network", who("db"))
			w.calico(w.pool(verdict.Calico, "", ""), "db", "n2")
		},
		because: []string{"/var/lib/calico/nodename on node n1 says n9"},
	},
	{
		name: "nodename is right: the record was lost", cause: lost,
		build: func(w *world) {
			w.node("n1").CalicoNodename = "n1.example.org"
			a := w.within("n1", "", "k8s-pod-network", who("web"))
			w.after(time.Minute).within("n2", "", "k8s-pod-network", who("db"))
			p := w.pool(verdict.Calico, "", "")
			w.calico(p, "db", "n2")
			w.was(a, verdict.FindingInUseUnallocated, &verdict.Allocation{Pool: p, Namespace: "default", Pod: "web", Node: "n1"})
		},
		not: map[string]string{elsewhere: "nodename is right on n1"},
	},
	{
		name: "nodename is wrong, but the address is not Calico's", cause: lost,
		build: func(w *world) {
			w.node("n1").CalicoNodename = "n9"
			twins(w)
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
		},
		not: map[string]string{elsewhere: "no IPPool of Calico has the address"},
	},
	{
		name: "that IPAM has it for the rival is no booking elsewhere", cause: lost,
		build: func(w *world) {
			a, _ := twins(w)
			al := w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
			w.was(a, verdict.FindingBookedElsewhere, al)
		},
	},
	{
		name: "T5 each node's own IPAM has it for its own pod", cause: overlap,
		build: func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "", "pods", who("web"+n))
				w.books(w.pool(verdict.HostLocal, n, "pods"), "web"+n)
			}
		},
		because: []string{"node n1) gives addresses from 10.244.0.1 to 10.244.255.254", "node n2) gives addresses from"},
	},
	{
		name: "T5 the ranges of pods of both nodes have it", cause: overlap,
		build: func(w *world) {
			w.podCIDR = netip.MustParsePrefix("10.244.1.0/24")
			w.within("n1", "", "pods", who("a"))
			w.within("n2", "", "pods", who("b"))
		},
		because: []string{"node n1 and in that of node n2 (Node.spec.podCIDRs)"},
	},
	{
		name: "T5 the bridges of pods of both nodes have the prefix", cause: overlap,
		build: func(w *world) {
			w.within("n1", "cni0", "pods", who("a"))
			w.within("n2", "cni0", "pods", who("b"))
		},
		because: []string{"Pods on cni0 of node n1 have addresses of 10.244.1.0/24", "Pods on cni0 of node n2"},
	},
	{
		name: "pods of both nodes are on a LAN by a bridge, which some DHCP server gives addresses of", cause: unknown,
		build: func(w *world) {
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "br1", "lan", who(n))
				w.bridge(n, "br1", "10.244.0.0/16")
				w.subnets[len(w.subnets)-1].LAN = true
			}
		},
		not: map[string]string{overlap: "no ranges are known that nodes n1 and n2 give addresses of pods from"},
	},
	{
		name: "T5 the gateway of both nodes' pods", cause: overlap, addr: "10.244.0.1",
		build: func(w *world) {
			w.policy.Networks = []verdict.Network{{Name: "pods", Prefixes: prefixes("10.244.0.0/16")}}
			for _, n := range []string{"n1", "n2"} {
				w.device(n, "cni0", "bridge")
				p := w.pool(verdict.HostLocal, n, "pods", "10.244.0.2-10.244.255.254")
				p.Device, p.Gateways = "cni0", []netip.Addr{w.addr}
			}
		},
		not: map[string]string{split: "no link in common"},
	},
	{
		name: "only one node has the range", cause: unknown,
		build: func(w *world) {
			w.podCIDR, w.podCIDROf = netip.MustParsePrefix("10.244.1.0/24"), "n1"
			w.within("n1", "", "pods", who("a"))
			w.within("n2", "", "pods", who("b"))
		},
		not: map[string]string{overlap: "node n1 only, and not of node n2"},
	},
	{
		name: "bridges of docker have one range on every node", cause: unknown, addr: "172.17.0.2",
		build: func(w *world) {
			w.policy.Networks = []verdict.Network{{Name: "all", Prefixes: prefixes("172.17.0.0/16")}}
			for _, n := range []string{"n1", "n2"} {
				w.bridge(n, "docker0", "172.17.0.1/16")
				w.within(n, "docker0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c" + n, Source: "cgroup"})
			}
		},
	},
	{
		name: "T14 two CNI networks", cause: networks,
		build: func(w *world) {
			w.within("n1", "cni0", "net0", who("web"))
			w.within("n1", "cni1", "net1", who("db"))
		},
		because: []string{"network net0 gave it to pod default/web", "Network net1 has addresses of 10.244.1.0/24"},
	},
	{
		name: "T14 two CNI networks, each of which has it for its own", cause: networks,
		build: func(w *world) {
			w.within("n1", "cni0", "net0", who("web"))
			w.within("n1", "cni1", "net1", who("db"))
			w.books(w.pool(verdict.HostLocal, "n1", "net0"), "web")
			w.books(w.pool(verdict.HostLocal, "n1", "net1"), "db")
		},
		because: []string{"Network net0 has addresses of 10.244.0.1 to"},
	},
	{
		name: "T14 a CNI network and a bridge of docker", cause: networks,
		build: func(w *world) {
			w.bridge("n1", "docker0", "10.244.0.1/16")
			w.within("n1", "docker0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c1", Source: "cgroup"})
			w.within("n1", "", "kindnet", who("web"))
		},
		because: []string{"Bridge docker0 has addresses of 10.244.0.0/16"},
	},
	{
		name: "a container with an address that its bridge does not have", cause: unknown,
		build: func(w *world) {
			w.bridge("n1", "docker0", "172.17.0.1/16")
			w.within("n1", "docker0", "", verdict.Workload{Kind: verdict.Container, ContainerID: "c1", Source: "cgroup"})
			w.within("n1", "", "kindnet", who("web"))
		},
		not: map[string]string{static: "who gave it to container c1"},
	},
	{
		name: "two networks with one pool", cause: lost,
		build: func(w *world) {
			w.within("n1", "cni0", "net0", who("old"))
			w.after(time.Minute).within("n1", "cni0", "net1", who("new"))
			p := w.pool(verdict.HostLocal, "n1", "net0")
			p.Networks = []string{"net0", "net1"}
			w.books(p, "new")
		},
		not: map[string]string{networks: "gives the addresses of both networks"},
	},
	{
		name: "T6 on the node", cause: static,
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.device("n1", "eth0", "")
		},
		because: []string{"network kindnet gave it to pod default/web", "on eth0 of node n1 itself"},
		not:     map[string]string{tunnel: "eth0 of node n1 is no tunnel"},
	},
	{
		name: "T6 on the node, with records of IPAM", cause: static,
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.device("n1", "eth0", "")
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "web")
		},
		not: map[string]string{lost: "gave it to pod default/web alone"},
	},
	{
		name: "T6 in a pod whose CNI result does not have it", cause: static,
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.within("n1", "", "", who("mad"))
		},
		because: []string{"The CNI result of pod default/mad (eth0, node n1) does not have it"},
	},
	{
		name: "T6 in a pod that the API has with another address", cause: static,
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			mad := who("mad")
			mad.Source = "cri"
			w.within("n1", "", "", mad)
			w.says("uid-mad", verdict.PodObject{Namespace: "default", Name: "mad", Phase: "Running", IPs: []netip.Addr{netip.MustParseAddr("10.244.0.77")}})
		},
		because: []string{"its addresses are 10.244.0.77"},
	},
	{
		name: "T6 in a namespace that IPAM does not know", cause: static,
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.within("n1", "", "", verdict.Workload{Kind: verdict.Unknown, Name: "blue", Source: "netns"})
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "web")
		},
		because: []string{"IPAM has it for pod default/web, and not for network namespace blue"},
	},
	{
		name: "a pod that is only beginning is not yet known to have it by nobody", cause: unknown,
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.within("n1", "", "", verdict.Workload{Kind: verdict.Unknown, Name: "cni-0123", Source: "netns"})
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "young")
		},
		not: map[string]string{static: "who gave it to network namespace cni-0123"},
	},
	{
		name: "a second interface of which no CNI result is known", cause: unknown,
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.within("n1", "", "", who("multus")).Interface.Name = "net1"
		},
		not: map[string]string{static: "who gave it to pod default/multus"},
	},
	{
		name: "a container of podman, which has results of CNI, too", cause: unknown,
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.within("n1", "cni-podman1", "", who("podman"))
		},
		not: map[string]string{static: "who gave it to pod default/podman"},
	},
	{
		name: "T6 behind the port of a pod", cause: static,
		build: func(w *world) {
			w.within("n1", "cni0", "cbr0", who("web"))
			guest(w, "10.244.1.9 cni-result eth0")
		},
		because: []string{"enters by n1/vm, the port of pod default/launcher"},
		not:     map[string]string{outside: "it is behind that"},
	},
	{
		name: "a virtual machine that has its pod's own address", cause: lost,
		build: func(w *world) {
			w.within("n1", "cni0", "cbr0", who("web"))
			guest(w, "10.244.1.5 cni-result eth0")
			w.books(w.pool(verdict.HostLocal, "n1", "cbr0"), "launcher")
			w.past = nil
		},
		not: map[string]string{static: "nobody set it by hand"},
	},
	{
		name: "T6 a virtual machine of the node", cause: static,
		build: func(w *world) {
			w.within("n1", "cni0", "cbr0", who("web"))
			tap := w.iface(w.host("n1"), verdict.Interface{Name: "vnet0", Attachment: verdict.Own, Link: w.link("n1", "cni0", verdict.Bridge, true), Tap: true})
			w.wire(tap, "\x52\x54\x00\x00\x00\x01")
		},
		not: map[string]string{outside: "a virtual machine of that node"},
	},
	{
		name: "T7 a machine outside has the node's address", cause: outside, addr: "192.168.1.10",
		build: func(w *world) {
			w.wire(w.device("n1", "eth0", ""), "\x02\x00\x00\x00\x00\x99")
		},
		because: []string{"from outside, by n1/eth0", "No node with an agent has that MAC"},
	},
	{
		name: "T7 a machine outside has a pod's address, and a node has no agent", cause: outside, addr: "192.168.1.10",
		build: func(w *world) {
			lan := onLAN(w, "n1", "n2")
			w.assigned(w.child("a", "baaaaa", lan[0].Link)).Network = "lan"
			w.wire(lan[1], "\x02\x00\x00\x00\x00\x99")
			w.uncovered = []string{"n3"}
		},
		because: []string{"Not known: whether every node has an agent"},
	},
	{
		name: "T7 the MAC of a virtual router", cause: unknown, addr: "192.168.1.10",
		build: func(w *world) {
			w.wire(w.device("n1", "eth0", ""), "\x00\x00\x5e\x00\x01\x07")
		},
		not: map[string]string{outside: "a virtual router's hardware address"},
	},
	{
		name: "what seems to be outside may be a pod of a node without an agent", cause: unknown, addr: "192.168.1.10",
		build: func(w *world) {
			lan := onLAN(w, "n1")
			w.assigned(w.child("a", "baaaaa", lan[0].Link)).Network = "lan"
			w.wire(lan[0], "\x02\x00\x00\x00\x00\x99")
			w.uncovered = []string{"n3"}
			p := w.pool(verdict.Whereabouts, "", "lan", "192.168.1.1-192.168.1.99")
			w.calico(p, "far", "n3")
		},
		not: map[string]string{outside: "for pod default/far on node n3"},
	},
	{
		name: "T8 nodes of one link keep a virtual address", cause: split, addr: "192.168.1.200",
		build: func(w *world) {
			for _, i := range onLAN(w, "n1", "n2") {
				w.assigned(i)
			}
		},
	},
	{
		name: "nodes that are on no common link", cause: unknown, addr: "192.168.1.200",
		build: func(w *world) {
			w.policy.Networks = []verdict.Network{{Name: "hosts", Prefixes: prefixes("192.168.0.0/16")}}
			for _, n := range []string{"n1", "n2"} {
				w.device(n, "eth0", "")
			}
		},
		not: map[string]string{split: "no link in common"},
	},
	{
		name: "T9 namespaces that nobody knows", cause: unknown,
		build: func(w *world) {
			for _, name := range []string{"a", "b"} {
				w.within("n1", "", "", verdict.Workload{Kind: verdict.Unknown, Name: name, Source: "netns"})
			}
		},
	},
	{
		name: "T9 pods with one MAC", cause: lost,
		build: func(w *world) {
			a, b := twins(w)
			b.Interface.MAC = a.Interface.MAC
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
		},
	},
	{
		name: "T10 the pod is no more, and IPAM has given its address away", cause: orphan,
		build: func(w *world) {
			twins(w)
			w.says("uid-old", verdict.PodObject{Absent: true})
			w.says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Running"})
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
		},
		because: []string{"The Kubernetes API has no pod default/old"},
	},
	{
		name: "both pods are there", cause: lost,
		build: func(w *world) {
			twins(w)
			w.says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running"})
			w.says("uid-new", verdict.PodObject{Namespace: "default", Name: "new", Phase: "Running"})
			w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
		},
		not: map[string]string{orphan: "none of them has ended"},
	},
	{
		name: "T11 a tunnel", cause: tunnel,
		build: func(w *world) {
			w.within("n1", "", "k8s-pod-network", who("web"))
			w.device("n1", "vxlan.calico", "vxlan")
		},
		because: []string{"vxlan.calico of node n1 is a tunnel device (vxlan)", "gave it to pod default/web"},
	},
	{
		name: "T11 a tunnel of another node", cause: tunnel,
		build: func(w *world) {
			w.policy.Networks = []verdict.Network{{Name: "pods", Prefixes: prefixes("10.244.0.0/16")}}
			w.within("n1", "", "k8s-pod-network", who("web"))
			w.device("n2", "tunl0", "ipip")
			w.allocations = append(w.allocations, &verdict.Allocation{Pool: w.pool(verdict.Calico, "", ""), Node: "n2", Purpose: "IP-in-IP tunnel"})
		},
		because: []string{"has it for the IP-in-IP tunnel on node n2"},
	},
	{
		name: "T11 the bridge that pods are on", cause: static, addr: "10.244.0.1",
		build: func(w *world) {
			w.within("n1", "cni0", "", who("web"))
			w.device("n1", "cni0", "bridge")
		},
		because: []string{"Bridge cni0 of node n1 connects pods, and its kernel has the address", "The CNI result of pod default/web (eth0, node n1) does not have it"},
		not:     map[string]string{tunnel: "cni0 of node n1 is no tunnel"},
	},
	{
		name: "the bridge that pods are on, whose address a CNI network gave", cause: unknown, addr: "10.244.0.1",
		build: func(w *world) {
			w.within("n1", "cni0", "kindnet", who("web"))
			w.device("n1", "cni0", "bridge")
		},
		not: map[string]string{tunnel: "cni0 of node n1 is no tunnel"},
	},
	{
		name: "a bridge of the node that no pod is on", cause: static,
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.device("n1", "br0", "bridge")
		},
		not: map[string]string{tunnel: "br0 of node n1 is no tunnel"},
	},
	{
		name: "the bridge of docker", cause: unknown, addr: "172.17.0.1",
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.device("n1", "docker0", "bridge")
		},
		not: map[string]string{tunnel: "docker0 of node n1 is no tunnel"},
	},
	{
		name: "the bridge of docker, whose range a CNI network has", cause: networks, addr: "172.17.0.1",
		build: func(w *world) {
			w.within("n1", "", "kindnet", who("web"))
			w.subnet(w.device("n1", "docker0", "bridge"), "172.17.0.1/16")
		},
	},
	{
		name: "T3 in a declared network, of namespaces that nobody knows", cause: unknown,
		build: func(w *world) {
			w.policy.Networks = []verdict.Network{{Name: "pods", Prefixes: prefixes("10.244.0.0/16")}}
			for _, n := range []string{"n1", "n2"} {
				w.within(n, "", "", verdict.Workload{Kind: verdict.Unknown, Name: "p" + n, Source: "netns"})
			}
		},
	},
}

// guest is a virtual machine behind a pod's port, which has the address.
func guest(w *world, intended string) {
	ns := w.namespace("n1", 9, "109", who("launcher"))
	ns.Intended = intended
	l := w.link("n1", "cni0", verdict.Bridge, true)
	w.iface(ns, verdict.Interface{MAC: "lnchr0", Attachment: verdict.Peer, Link: l, HostInterface: "vm"})
	port := w.iface(w.host("n1"), verdict.Interface{Name: "vm", MAC: "hostvm", Attachment: verdict.Own, Link: l, Peer: 9})
	w.wire(port, "\x02\x00\x00\x00\x00\x06")
}

// judge gives the conflict of a situation, once it has lasted for a while.
func (s *situation) judge(t *testing.T) verdict.Conflict {
	t.Helper()
	w := newWorld(cmp.Or(s.addr, "10.244.1.5"))
	s.build(w)
	var out verdict.Judgement
	for range 3 {
		out = w.judge()
		w.after(time.Minute)
		for _, c := range w.claims {
			w.read(c)
			w.seen(c)
		}
	}
	if len(out.Conflicts) != 1 || !out.Conflicts[0].Active() {
		t.Fatalf("got %d conflicts, want one", len(out.Conflicts))
	}
	return out.Conflicts[0]
}

func TestCauses(t *testing.T) {
	reached := map[string]bool{}
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			c := s.judge(t)
			t.Log(c.Summary)
			for _, fact := range c.Because {
				t.Log("  because: ", fact)
			}
			for _, e := range c.Excluded {
				t.Logf("  not %s: %s", e.Cause, e.Reason)
			}
			for _, d := range c.Diagnosis {
				t.Logf("  %s: %s", d.Step, d.Answer)
			}
			for _, a := range flat(c.Remedy) {
				t.Log("  do: ", a)
			}
			reached[c.Cause] = true
			if c.Cause != s.cause {
				t.Fatalf("got cause %s, want %s", c.Cause, s.cause)
			}
			if (len(c.Because) == 0) != (c.Cause == unknown) {
				t.Errorf("got facts %q of cause %s", c.Because, c.Cause)
			}
			facts := strings.Join(c.Because, "\n")
			for _, part := range s.because {
				if !strings.Contains(facts, part) {
					t.Errorf("got facts %q, want them to say %q", c.Because, part)
				}
			}
			for cause, part := range s.not {
				if !slices.ContainsFunc(c.Excluded, func(e verdict.Exclusion) bool { return e.Cause == cause && strings.Contains(e.Reason, part) }) {
					t.Errorf("got excluded %q, want %s as %q", c.Excluded, cause, part)
				}
			}
			for i, e := range c.Excluded {
				if e.Cause == c.Cause || slices.ContainsFunc(c.Excluded[:i], func(other verdict.Exclusion) bool { return other.Cause == e.Cause }) {
					t.Errorf("got excluded %q, want each once, and not the cause", c.Excluded)
				}
			}
		})
	}
	for _, cause := range []string{lost, elsewhere, overlap, networks, static, tunnel, outside, orphan, split} {
		if !reached[cause] {
			t.Errorf("no situation has cause %s", cause)
		}
	}
}

func TestOwnersAreOrderedByWhenTheyCame(t *testing.T) {
	w := newWorld("10.244.0.5")
	a := w.within("n1", "", "", who("a"))
	b := w.within("n1", "", "", who("b"))
	a.AssignedAt, b.AssignedAt = start.Add(time.Minute), start
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); !slices.Equal(c.Order, []uint32{1, 0}) {
		t.Errorf("got order %v, want b before a", c.Order)
	}

	w = newWorld("10.244.0.5")
	w.policy.Networks = []verdict.Network{{Name: "pods", Prefixes: prefixes("10.244.0.0/16")}}
	a, b = w.within("n1", "", "", who("a")), w.within("n2", "", "", who("b"))
	a.AssignedAt, b.AssignedAt = start, start.Add(-time.Second)
	w.node("n2").Skew, w.node("n2").SkewKnown = -2*time.Second, true // its clock is behind
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods"); !slices.Equal(c.Order, []uint32{0, 1}) {
		t.Errorf("got order %v, want a before b, whose clock is behind", c.Order)
	}
	b.AssignedAt, b.First = 0, start.Add(-time.Minute)
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods"); !slices.Equal(c.Order, []uint32{1, 0}) {
		t.Errorf("got order %v, want b, which was seen first, before a", c.Order)
	}
}

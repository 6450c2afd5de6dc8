package tests

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// lan is an external switch with the machines connected to it. It has no agent.
type lan struct {
	*lab
	cables int
}

func newLAN(t *testing.T) *lan {
	t.Helper()
	n := &lan{lab: &lab{Host: newHost(t), t: t}}
	n.sh("ip link add br0 type bridge", "ip link set br0 up")
	return n
}

// lan creates an external network and connects the node's eth0 to it, with an address.
func (l *lab) lan(addr string) *lan {
	l.t.Helper()
	n := newLAN(l.t)
	n.cable(l, "eth0")
	l.sh("ip addr add " + addr + " dev eth0")
	return n
}

// cable connects an interface of the node to the switch, and returns the port.
func (n *lan) cable(node *lab, ifname string) (port string) {
	n.t.Helper()
	n.cables++
	port = fmt.Sprintf("port%d", n.cables)
	if err := node.Cable(ifname, n.Host, port); err != nil {
		n.t.Fatal(err)
	}
	n.sh("ip link set " + port + " master br0")
	return port
}

// machine connects a machine to the switch, with a MAC and addresses.
func (n *lan) machine(name, mac string, addrs ...string) {
	n.t.Helper()
	n.pod(name)
	n.sh(fmt.Sprintf("ip -n %s link set eth0 address %s", name, mac), fmt.Sprintf("ip link set v%s master br0", name))
	n.assign(name, addrs...)
}

// macvlan is a network of the macvlan plugin on the node's uplink. Its pods get an additional
// interface, net1, as from Multus.
func (l *lab) macvlan() *netlab.CNI {
	l.t.Helper()
	c := l.cni(macvlan)
	c.Interface = "net1"
	return c
}

const macvlan = `{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"macvlan","master":"eth0","mode":"bridge",
	"ipam":{"type":"host-local","ranges":[[{"subnet":"192.0.2.0/24","rangeStart":"192.0.2.100","gateway":"192.0.2.1"}]]}}]}`

func TestT4MacvlanPodsOfOneParentWithTheIPAMDirectoryWiped(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	l.lan("192.0.2.1/24")
	cni := l.macvlan()
	// Frames between the two never enter a port of the node, so only netlink shows the conflict.
	wipe(t, l, cni, 1)
	l.wantConflict("192.0.2.100", ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/new1 | default/old1", "LINK node1/eth0",
		"pod default/old1", "pod default/new1")
	l.row("T4", "192.0.2.100", "assigned-twice")

	if err := cni.Delete("old1"); err != nil {
		t.Fatal(err)
	}
	l.watch.await("the conflict to be resolved", inState("192.0.2.100", ipwitnessv1.Conflict_RESOLVED))
	l.awaitOwners("192.0.2.100", 1)
}

// takes makes an external machine claim an address until the conflict is confirmed: the machine's
// kernel sends requests for a neighbour with the address as their source.
func (l *lab) takes(out *lan, machine, addr, neighbour string) {
	l.t.Helper()
	wait.Until(l.t, addr+" to be confirmed", func() bool {
		out.uses(machine, addr, neighbour)
		return inState(addr, ipwitnessv1.Conflict_CONFIRMED)(l.watch.all())
	})
}

// uses makes the kernel of a pod ask for a neighbour from an address.
func (l *lab) uses(pod, addr, neighbour string) {
	l.t.Helper()
	l.sh(fmt.Sprintf("ip -n %s neigh flush dev eth0", pod))
	l.ask(pod, addr, neighbour)
}

// isOutside waits until the node knows that a machine is external. A port leads to a switch only
// once the switch has a second port, and until the agent learns this, it attributes frames to the
// namespace that contains the switch.
func (l *lab) isOutside(out *lan, machine, addr string) {
	l.t.Helper()
	wait.Until(l.t, machine+" to be outside", func() bool {
		out.announce(machine, addr)
		return slices.ContainsFunc(l.owners("?address="+addr), func(o *ipwitnessv1.Owner) bool {
			return o.GetState() == ipwitnessv1.Owner_LIVE && o.GetWorkload().GetKind() == ipwitnessv1.Workload_EXTERNAL
		})
	})
}

func TestT7MachineOutsideTakesTheNodesAddress(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	l.ports(1)
	l.awaitOwners("192.0.2.1", 1)
	out.machine("thief", "02:00:00:00:00:99", "192.0.2.1/24")
	l.takes(out, "thief", "192.0.2.1", "192.0.2.77")
	l.wantConflict("192.0.2.1", ipwitnessv1.Conflict_CONFIRMED, "assigned-and-wire", " | node1", "LINK node1/eth0",
		"node node1 itself", "02:00:00:00:00:99")
	l.evidence("192.0.2.1", "", "USED eth0")
	l.row("T7", "192.0.2.1", "assigned-and-wire")
}

func TestT7MachineOutsideTakesAPodsAddress(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	cni := l.macvlan()
	if err := cni.Add("web"); err != nil {
		t.Fatal(err)
	}
	l.ports(1)
	l.awaitOwners("192.0.2.100", 1)
	out.machine("thief", "02:00:00:00:00:99", "192.0.2.100/24")
	out.announce("thief", "192.0.2.100")
	l.evidence("192.0.2.100", "", "ANNOUNCED eth0")
	l.plant() // a single frame confirms nothing, even after the settle time
	if c := l.only("192.0.2.100"); c.GetState() != ipwitnessv1.Conflict_SUSPECTED {
		t.Errorf("state after one frame: got %s, want SUSPECTED", c.GetState())
	}
	l.takes(out, "thief", "192.0.2.100", "192.0.2.77")
	l.wantConflict("192.0.2.100", ipwitnessv1.Conflict_CONFIRMED, "assigned-and-wire", " | default/web", "LINK node1/eth0",
		"pod default/web", "02:00:00:00:00:99")
	l.evidence("192.0.2.100", "", "USED eth0")
	l.row("T7-pod", "192.0.2.100", "assigned-and-wire")
}

func TestT7MachineOutsideAndAnUplinkInABridge(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	// As with libvirt, OVN and Multus: the uplink is a bridge port, and the bridge has the node's
	// address.
	l.sh("ip link add br-ext type bridge", "ip link set br-ext up", "ip addr del 192.0.2.1/24 dev eth0",
		"ip link set eth0 master br-ext", "ip addr add 192.0.2.1/24 dev br-ext")
	l.ports(1)
	l.awaitOwners("192.0.2.1", 1)
	out.machine("thief", "02:00:00:00:00:99", "192.0.2.1/24")
	l.isOutside(out, "thief", "192.0.2.66")
	l.takes(out, "thief", "192.0.2.1", "192.0.2.77")
	l.wantConflict("192.0.2.1", ipwitnessv1.Conflict_CONFIRMED, "assigned-and-wire", " | node1", "LINK node1/br-ext",
		"node node1 itself", "the device with MAC 02:00:00:00:00:99")
}

func TestT7MachineOutsideTakesTheNodesIPv6Address(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	l.sh("ip addr add fd00:2::1/64 dev eth0 nodad")
	l.ports(1)
	l.awaitOwners("fd00:2::1", 1)
	out.machine("thief", "02:00:00:00:00:99", "fd00:2::1/64") // without having sent a solicitation
	l.takes(out, "thief", "fd00:2::1", "fd00:2::77")
	l.wantConflict("fd00:2::1", ipwitnessv1.Conflict_CONFIRMED, "assigned-and-wire", " | node1", "LINK node1/eth0",
		"node node1 itself", "02:00:00:00:00:99")
	l.evidence("fd00:2::1", "", "USED eth0")
	l.row("T7-ipv6", "fd00:2::1", "assigned-and-wire")
}

func TestT7TwoMachinesOutsideAlternate(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	l.ports(1)
	out.machine("one", "02:00:00:00:00:91", "192.0.2.50/24")
	out.machine("two", "02:00:00:00:00:92", "192.0.2.50/24")
	// Both machines claim the address repeatedly, because a single frame is only a change of MAC.
	wait.Until(t, "192.0.2.50 to be suspected", func() bool {
		out.announce("one", "192.0.2.50")
		out.announce("two", "192.0.2.50")
		return inState("192.0.2.50", ipwitnessv1.Conflict_SUSPECTED)(l.watch.all())
	})
	l.wantOnlyPlanted() // no agent can confirm either machine, so the conflict stays suspected
	l.wantConflict("192.0.2.50", ipwitnessv1.Conflict_SUSPECTED, "externals-alternate", " | ", "LINK node1/eth0",
		"02:00:00:00:00:91", "02:00:00:00:00:92")
	l.row("T7-externals", "192.0.2.50", "externals-alternate")
}

func TestL12RouterOutsideAnswersForMany(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	cni := l.macvlan()
	if err := cni.Add("web"); err != nil {
		t.Fatal(err)
	}
	l.ports(1)
	l.awaitOwners("192.0.2.100", 1)
	// A router with proxy ARP answers for all addresses that it routes elsewhere. This includes the
	// pod, which the node does not reach by this link.
	out.machine("router", "02:00:00:00:00:fe", "192.0.2.254/24")
	out.sh("ip -n router link add in0 type veth peer name in1", "ip -n router link set in0 up", "ip -n router link set in1 up",
		"ip -n router route add 192.0.2.96/27 dev in0")
	out.sysctl("router", "net/ipv4/ip_forward=1", "net/ipv4/conf/eth0/proxy_arp=1", "net/ipv4/neigh/eth0/proxy_delay=0")
	const many = 20
	for i := range many {
		addr := fmt.Sprintf("192.0.2.%d", 101+i)
		l.resolve("", "eth0", addr)
		l.knows("", addr, "02:00:00:00:00:fe")
		l.evidence(addr, "", "ANSWERED eth0")
	}
	for range 2 { // again after the settle time, so that it is more than one event
		l.resolve("", "eth0", "192.0.2.100")
		l.knows("", "192.0.2.100", "02:00:00:00:00:fe")
		l.evidence("192.0.2.100", "", "ANSWERED eth0")
		l.plantNext()
	}
	l.wantConfirmed()
	l.wantNone("192.0.2.100")
	l.row("L12-router", "192.0.2.100", "reachable-via")
}

func TestL12NodeWithProxyARPOnItsUplink(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	l.sysctl("", "net/ipv4/ip_forward=1", "net/ipv4/conf/eth0/proxy_arp=1", "net/ipv4/neigh/eth0/proxy_delay=0")
	// A pod has an address of the LAN, and the node answers for it. The node receives its own
	// answers by a second cable to the LAN.
	l.pod("web", "192.0.2.100/32")
	l.sh("ip route add 192.0.2.100/32 dev vweb", "ip link set eth0 address 02:00:00:00:00:10")
	out.cable(l, "eth1")
	l.ports(3)
	l.awaitOwners("192.0.2.100", 1)
	out.machine("asker", "02:00:00:00:00:20", "192.0.2.20/24")
	out.resolve("asker", "eth0", "192.0.2.100")
	out.knows("asker", "192.0.2.100", "02:00:00:00:00:10")
	// An answer is sent only to the asker. A broadcast answer, as from a kernel with arp_notify or
	// an announcing proxy, comes back by the other cable.
	mac, _ := net.ParseMAC("02:00:00:00:00:10")
	l.in("", func() error {
		return netlab.Send("eth0", netlab.ARP(2, mac, netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("192.0.2.20")))
	})
	l.evidence("192.0.2.100", "web", "ANSWERED eth1")
	l.wantOnlyPlanted()
	l.wantNone("192.0.2.100")
	l.row("L12-node", "192.0.2.100", "node-mac")
}

func TestL13ResponderAnswersWithTheOwnersMAC(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	l.sh("ip link add br-ext type bridge", "ip link set br-ext up", "ip addr flush dev eth0", "ip link set eth0 master br-ext",
		"ip addr add 192.0.2.1/24 dev br-ext")
	l.pod("a")
	l.sh("ip link set va master br-ext", "ip -n a link set eth0 address 02:00:00:00:00:0a")
	l.assign("a", "192.0.2.7/24")
	l.bridged(2)
	l.awaitOwners("192.0.2.7", 1)
	// EVPN and OVN answer from the data of the control plane: for the owner, with the owner's MAC,
	// from any device.
	out.machine("vtep", "02:00:00:00:00:0e")
	out.arp("vtep", 2, "02:00:00:00:00:0a", "192.0.2.7", "192.0.2.9")
	l.evidence("192.0.2.7", "a", "ANSWERED eth0")
	l.wantOnlyPlanted()
	l.wantNone("192.0.2.7")
	l.row("L13", "192.0.2.7", "one-owner")
}

func TestL13AntreasResponderMAC(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	l.ports(1)
	l.awaitOwners("192.0.2.1", 1)
	// Antrea's flows answer every ARP request with this MAC, for any address.
	out.machine("responder", "02:00:00:00:00:0e")
	for range 2 {
		out.arp("responder", 2, "aa:bb:cc:dd:ee:ff", "192.0.2.1", "192.0.2.9")
		l.evidence("192.0.2.1", "", "ANSWERED eth0")
		l.plantNext()
	}
	l.wantConfirmed()
	l.wantNone("192.0.2.1")
	l.row("L13-antrea", "192.0.2.1", "reachable-via")
}

func TestL14HostWithTwoInterfacesOnOneLAN(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	out.cable(l, "eth1")
	l.sh("ip link set eth0 address 02:00:00:00:00:e0", "ip link set eth1 address 02:00:00:00:00:e1", "ip addr add 192.0.2.2/24 dev eth1")
	l.ports(2)
	l.awaitOwners("192.0.2.1", 1)
	// ARP flux: Linux sends requests by one interface with the address of another, and answers for
	// both addresses by each. Its requests come back by the other cable.
	out.machine("asker", "02:00:00:00:00:20", "192.0.2.20/24")
	out.resolve("asker", "eth0", "192.0.2.1")
	wait.Until(t, "an answer of the node", func() bool {
		got, err := out.Run("ip -n asker neigh show 192.0.2.1")
		return err == nil && strings.Contains(got, "lladdr 02:00:00:00:00:e")
	})
	l.sh("ip route add 192.0.2.77/32 dev eth1", "ip route add 192.0.2.78/32 dev eth0")
	l.ask("", "192.0.2.1", "192.0.2.77") // out by eth1, in by eth0
	l.ask("", "192.0.2.1", "192.0.2.78") // out by eth0, in by eth1
	l.evidence("192.0.2.1", "node1", "USED eth0", "USED eth1")
	l.wantOnlyPlanted()
	l.wantNone("192.0.2.1", "192.0.2.2")
	l.row("L14-host", "192.0.2.1", "one-namespace")
}

func TestL15FiftyAddressesOnOneMAC(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("192.0.2.1/24")
	cni := l.macvlan()
	if err := cni.Add("web"); err != nil {
		t.Fatal(err)
	}
	l.ports(1)
	out.machine("many", "02:00:00:00:00:15")
	for i := range 50 {
		inside, outside := fmt.Sprintf("192.0.2.%d", 101+i), fmt.Sprintf("192.0.2.%d", 201+i)
		l.sh("ip -n web addr add " + inside + "/24 dev net1")
		out.arp("many", 1, "02:00:00:00:00:15", outside, outside)
	}
	l.frames("event", 50)
	for i := range 50 {
		l.awaitOwners(fmt.Sprintf("192.0.2.%d", 101+i), 1)
		l.awaitOwners(fmt.Sprintf("192.0.2.%d", 201+i), 1)
	}
	l.wantOnlyPlanted()
	if got := l.watch.all(); len(got) != 1 {
		t.Errorf("conflicts: got %v, want the planted one", got)
	}
	l.row("L15", "192.0.2.150", "one-owner")
	l.row("L15-outside", "192.0.2.250", "one-owner")
}

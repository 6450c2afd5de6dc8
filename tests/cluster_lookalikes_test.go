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

func TestL2PodMovesToAnotherNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.nodes[0].cni(podsByPTP), c.nodes[1].cni(podsByPTP)
	move := func(addr string, ended bool) {
		t.Helper()
		add(t, one, "web-0")
		c.awaitOwners(addr, 1)
		if err := one.Delete("web-0"); err != nil {
			t.Fatal(err)
		}
		if ended {
			c.awaitOwners(addr, 0)
		}
		add(t, two, "web-0")
	}
	// Without a pause, so that the end on one node may be reported after the start on the other.
	for n := range 3 {
		move(podAddress(n+1), false)
		if err := two.Delete("web-0"); err != nil {
			t.Fatal(err)
		}
	}
	move(podAddress(4), true)
	c.wantOnlyPlanted()
	c.wantNone(podAddress(4))
	c.wantHolders(map[string][]string{podAddress(4): {"node2/default/web-0"}, "10.244.0.1": {"node2/node2"}})
	c.row("L2", podAddress(4), "one-owner")
}

func TestL2PodMovesAwayFromANodeThatIsSilent(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.nodes[0], c.nodes[1]
	addr := podAddress(1)
	add(t, one.cni(podsByPTP), "web-0")
	c.awaitPod(addr, "web-0")
	one.agent.Kill()
	c.awaitNode("node1", ipwitnessv1.Node_DISCONNECTED)
	add(t, two.cni(podsByPTP), "web-1")
	c.wantConflict(addr, ipwitnessv1.Conflict_SUSPECTED, "assigned-twice", "default/web-0 | default/web-1", "NETWORK pods",
		"which is disconnected")
	// The node is disconnected, so its state cannot be read again: silence neither confirms nor
	// resolves a conflict.
	two.plantNext()
	c.wantActive(addr + " SUSPECTED")
	c.wantConfirmed()
	c.row("L2-unheard", addr, "node-disconnected")

	// The node reports again, without the pod.
	one.sh("ip netns del web-0")
	one.witness(one.args...)
	c.watch.await("the conflict to be resolved", inState(addr, ipwitnessv1.Conflict_RESOLVED))
	c.wantConfirmed()
	c.wantHolders(map[string][]string{addr: {"node2/default/web-1"}, "10.244.0.1": {"node2/node2"}})
}

func TestL2NodeThatIsSilentForTooLong(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--node-timeout", "20s") // longer than a pod takes to start on a busy machine
	one, two := c.nodes[0], c.nodes[1]
	addr := podAddress(1)
	add(t, one.cni(podsByPTP), "web-0")
	c.awaitPod(addr, "web-0")
	one.agent.Kill()
	add(t, two.cni(podsByPTP), "web-1")
	c.watch.await("the conflict to be resolved", inState(addr, ipwitnessv1.Conflict_RESOLVED))
	c.wantConfirmed()
	wantWords(t, c.only(addr).GetSummary(), "node1", "disconnected", "20s")
	c.awaitOwners(addr, 1)
}

// vrrp is the MAC of the VRRP router 51 (RFC 9568, section 7.3).
const vrrp = "00:00:5e:00:01:33"

// router creates the interface that keepalived creates with use_vmac: a macvlan with the MAC of the
// virtual router, in the pod, or on the host if pod is empty.
func (l *lab) router(pod string) {
	l.t.Helper()
	in := ""
	if pod != "" {
		in = " -n " + pod
	}
	// Without link-local addresses (RFC 9568, section 7.4), because both routers would generate the
	// same one.
	l.sh(fmt.Sprintf("ip%s link add vrrp.51 link eth0 address %s type macvlan mode private", in, vrrp),
		fmt.Sprintf("ip%s link set vrrp.51 addrgenmode none", in), fmt.Sprintf("ip%s link set vrrp.51 up", in))
}

func TestL6VirtualRouterOnTwoNodesChangesHands(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--handover-grace", "1h") // longer than the test takes on a busy machine
	c.shared()
	const vip = "192.0.2.50"
	one, two := c.nodes[0], c.nodes[1]
	for _, n := range c.nodes {
		n.router("")
	}
	take := func(n, other *lab) {
		t.Helper()
		n.sh("ip addr add " + vip + "/32 dev vrrp.51")
		n.announce("/vrrp.51", vip)
		c.seen(vip, other.name+"/eth0")
	}
	take(one, two)
	// The backup missed advertisements: for a moment both routers are master.
	take(two, one)
	one.announce("/vrrp.51", vip)
	one.sh("ip addr del " + vip + "/32 dev vrrp.51")
	c.awaitOwners(vip, 1)
	c.wantOnlyPlanted()
	c.wantActive()
	c.wantHolders(map[string][]string{vip: {"node2/node2"}, "192.0.2.1": {"node1/node1"}, "192.0.2.2": {"node2/node2"}})
	c.row("L6", vip, "one-owner")
}

func TestL6VirtualRouterOutsideChangesHands(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	out := c.shared()
	const vip = "192.0.2.254"
	for i, router := range []string{"r1", "r2"} {
		out.machine(router, fmt.Sprintf("02:00:00:00:00:f%d", i+1), fmt.Sprintf("192.0.2.%d/24", 251+i))
		out.router(router)
	}
	for range 3 { // there and back again
		for _, router := range []string{"r1", "r2"} {
			out.announce(router+"/vrrp.51", vip)
		}
	}
	c.evidence(vip, "", "ANNOUNCED node1/eth0", "ANNOUNCED node2/eth0")
	c.wantOnlyPlanted()
	c.wantNone(vip)
	c.awaitOwners(vip, 1)
	c.row("L6-outside", vip, "one-owner")
}

func TestL7VirtualAddressChangesHands(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--handover-grace", "1h") // longer than the test takes on a busy machine
	c.shared()
	const vip = "192.0.2.50"
	one, two := c.nodes[0], c.nodes[1]
	take := func(n, other *lab) {
		t.Helper()
		n.sh("ip addr add " + vip + "/32 dev eth0")
		n.announce("/eth0", vip)
		c.evidence(vip, n.name, "ASSIGNED eth0", "ANNOUNCED "+other.name+"/eth0")
	}
	// kube-vip: the new leader takes the address before the old leader releases it.
	c.moves("kube-vip")
	take(one, two)
	take(two, one)
	c.watch.await("it to be suspected", inState(vip, ipwitnessv1.Conflict_SUSPECTED))
	one.announce("/eth0", vip)
	c.plant() // the handover is no conflict after the settle time
	if got := c.only(vip).GetState(); got != ipwitnessv1.Conflict_SUSPECTED {
		t.Errorf("state within the grace: got %s, want SUSPECTED", got)
	}
	one.sh("ip addr del " + vip + "/32 dev eth0")
	c.watch.await("the hand-over to end", inState(vip, ipwitnessv1.Conflict_RESOLVED))
	c.wantOnlyPlanted()
	c.wantHolders(map[string][]string{vip: {"node2/node2"}, "192.0.2.1": {"node1/node1"}, "192.0.2.2": {"node2/node2"}})
	c.row("L7", vip, "one-owner")
}

// The cable of a node is out, and another node takes its addresses: one for which the first node answers by its second card, and
// one for which it does not.
func TestACableIsOut(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--handover-grace", "500ms")
	lan := c.shared()
	const alone, weak = "192.0.2.50", "192.0.2.60"
	one, two := c.nodes[0], c.nodes[1]
	lan.cable(one, "eth1")
	one.sh("ip link set eth1 address 02:00:00:00:0e:e1", "sysctl -q -w net.ipv4.conf.eth1.arp_ignore=1", "ip addr add 192.0.2.61/24 dev eth1", "ip addr add "+alone+"/24 dev eth0")
	one.ports(2)
	one.announce("/eth0", alone)
	one.announce("/eth1", "192.0.2.61")
	c.seen(alone, "node2/eth0")
	c.seen("192.0.2.61", "node2/eth0")

	lan.sh("ip link set port1 down")
	wait.Until(t, "the loss of the carrier, of which the kernel tells within a second", func() bool {
		var m ipwitnessv1.ExplainResponse
		return c.program.Get(t.Context(), "/v1/explain?address="+alone, &m) == nil &&
			slices.ContainsFunc(m.GetSteps(), func(s *ipwitnessv1.ExplainResponse_Step) bool { return s.GetRule() == "no-carrier" })
	})
	two.sh("ip addr add " + alone + "/24 dev eth0")
	c.awaitOwners(alone, 2)
	c.wantOnlyPlanted()
	lan.sh("ip link set port1 up")
	c.watch.await("the conflict to be confirmed", inState(alone, ipwitnessv1.Conflict_CONFIRMED))

	lan.sh("ip link set port1 down")
	one.sh("sysctl -q -w net.ipv4.conf.eth1.arp_ignore=0", "ip addr add "+weak+"/24 dev eth0")
	two.sh("ip addr add " + weak + "/24 dev eth0")
	c.watch.await("the conflict of the card that answers to be confirmed", inState(weak, ipwitnessv1.Conflict_CONFIRMED))
}

func TestL7AnnouncedAddressChangesHands(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--handover-grace", "3s")
	c.shared()
	const vip = "192.0.2.50"
	one, two := c.nodes[0], c.nodes[1]
	// MetalLB: no interface has the address, and one speaker announces it.
	one.announce("/eth0", vip)
	c.evidence(vip, "node1", "ANNOUNCED node2/eth0")
	// The new speaker announces it before the old one stops.
	wait.Until(t, vip+" to be suspected", func() bool {
		two.announce("/eth0", vip)
		one.announce("/eth0", vip)
		return inState(vip, ipwitnessv1.Conflict_SUSPECTED)(c.watch.all())
	})
	// Nobody assigns the address, and answers go only to those who ask: that the old speaker is silent does not prove
	// that it has handed the address over.
	wait.Until(t, "the conflict to say that the old speaker is silent", func() bool {
		two.announce("/eth0", vip)
		return slices.ContainsFunc(c.only(vip).GetBecause(), func(fact string) bool { return strings.Contains(fact, "has not been seen with the address since") })
	})
	if got := c.only(vip).GetState(); got != ipwitnessv1.Conflict_SUSPECTED {
		t.Errorf("state with a silent owner: got %s, want SUSPECTED", got)
	}
	c.wantConfirmed()
}

func TestL9LinkLocalAddressThatEveryNodeHas(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--handover-grace", "1s")
	out := newLAN(t)
	// OVN-Kubernetes: the uplink is a port of br-ex, which has 169.254.169.2 on
	// every node.
	for _, n := range c.nodes {
		out.join(n, fmt.Sprintf("192.0.2.%d/24", n.number))
		n.sh("ip link add br-ex type bridge", "ip link set br-ex up", "ip addr flush dev eth0", "ip link set eth0 master br-ex",
			fmt.Sprintf("ip addr add 192.0.2.%d/24 dev br-ex", n.number),
			"ip addr add 169.254.169.2/29 dev br-ex", "ip addr add fe80::1/64 dev br-ex nodad")
	}
	for i, n := range c.nodes {
		n.ports(1)
		other := c.nodes[1-i]
		wait.Until(t, other.name+" to hear "+n.name, func() bool {
			n.announce("/br-ex", fmt.Sprintf("192.0.2.%d", n.number))
			return strings.Contains(fmt.Sprint(c.owners(fmt.Sprintf("?address=192.0.2.%d", n.number))), other.name+"/eth0")
		})
	}
	wait.Until(t, "both to have both", func() bool {
		return len(c.owners("?address=169.254.169.2")) == 2 && len(c.owners("?address=fe80::1")) == 2
	})
	c.wantOnlyPlanted()
	c.wantNone("169.254.169.2", "fe80::1")
	c.row("L9-nodes", "169.254.169.2", "link-local")

	// Frames are evidence of use: one of the nodes now uses the address on the LAN.
	wait.Until(t, "169.254.169.2 to be confirmed", func() bool {
		c.nodes[1].announce("/br-ex", "169.254.169.2")
		return inState("169.254.169.2", confirmed)(c.watch.all())
	})
	if got, want := ownerNames(c.only("169.254.169.2")), "node1 | node2"; got != want {
		t.Errorf("owners: got %s, want %s", got, want)
	}
	c.wantNone("fe80::1")
}

const (
	dockerAddress = "172.17.0.2"
	dockerMAC     = "02:42:ac:11:00:02" // derived from dockerAddress, and the same on every node
)

// docker makes every node run a container, as docker does.
func (c *cluster) docker() {
	c.t.Helper()
	for _, n := range c.nodes {
		pod := "c" + n.name
		n.sh("ip link add docker0 type bridge", "ip link set docker0 up", "ip addr add 172.17.0.1/16 dev docker0")
		n.pod(pod)
		n.sh(fmt.Sprintf("ip link set v%s master docker0", pod), fmt.Sprintf("ip -n %s link set eth0 address %s", pod, dockerMAC))
		n.assign(pod, dockerAddress+"/16")
		n.bridged(2)
		n.resolve(pod, "eth0", "172.17.0.1")
		c.evidence(dockerAddress, pod, "ASSIGNED "+n.name+"/eth0", "USED "+n.name+"/v"+pod)
	}
}

func TestL10DockerOnEveryNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.shared()
	c.docker()
	c.wantOnlyPlanted()
	c.wantNone(dockerAddress, "172.17.0.1")
	c.row("L10-nodes", dockerAddress, "different-links")
}

func TestL10FrameOfAContainerGetsOutOfItsNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.shared()
	c.docker()
	// A frame with this MAC and address reaches another node, which has a container with the same
	// ones.
	sha, _ := net.ParseMAC(dockerMAC)
	a := netip.MustParseAddr(dockerAddress)
	for i, n := range c.nodes {
		n.from("eth0", netlab.ARP(1, sha, a, a))
		c.seen(dockerAddress, c.nodes[1-i].name+"/eth0")
	}
	c.wantOnlyPlanted()
	c.wantNone(dockerAddress, "172.17.0.1")
}

func TestL17OneAddressOnTwoLANs(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	const addr = "192.0.2.100"
	for i, n := range c.nodes {
		out := newLAN(t)
		out.join(n, "192.0.2.1/24")
		n.ports(1)
		add(t, n.macvlan(), fmt.Sprintf("p%d", i+1))
		// Both LANs have a router with the virtual router's MAC, and a device with the MAC of a
		// container that the other node has, too.
		out.machine("router", vrrp, "192.0.2.254/24")
		out.announce("router", "192.0.2.254")
		c.seen("192.0.2.254", n.name+"/eth0")
		n.pod("docked")
		n.sh("ip -n docked link set eth0 address 02:42:ac:11:00:02")
		n.router("")
		out.machine("docked", "02:42:ac:11:00:02", "192.0.2.253/24")
		out.announce("docked", "192.0.2.253")
		c.seen("192.0.2.253", n.name+"/eth0")
		c.awaitOwners(addr, i+1)
	}
	c.wantOnlyPlanted()
	c.wantNone(addr, "192.0.2.1")
	c.row("L17-lans", addr, "different-links")
}

// A machine on the LAN of node1 forges a frame of node2, which is on another LAN. Both
// nodes have the same address of 192.168.0.0/16, and each has a pod with another
// shared address.
func TestAForgedFrameConfirmsNoConflictOfTwoLANs(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--stale-after", "4s", "--handover-grace", "2s")
	const own, pods = "192.168.1.5", "192.0.2.100"
	var lans []*lan
	for i, n := range c.nodes {
		out := newLAN(t)
		lans = append(lans, out)
		out.join(n, own+"/24")
		n.ports(1)
		add(t, n.macvlan(), fmt.Sprintf("p%d", i+1))
		c.awaitOwners(own, i+1)
		c.awaitOwners(pods, i+1)
	}
	c.wantActive()

	attacker := lans[0]
	attacker.machine("attacker", "02:00:00:00:00:99")
	attacker.arp("attacker", 1, c.nodes[1].mac("/eth0"), own, own)
	for _, addr := range []string{own, pods} {
		c.watch.await("the conflict of "+addr+" to be suspected", inState(addr, ipwitnessv1.Conflict_SUSPECTED))
		if got := c.only(addr).GetLinkProof(); got != ipwitnessv1.LinkProof_ONE_WAY {
			t.Errorf("link proof of %s: got %s, want ONE_WAY", addr, got)
		}
	}
	forged := c.only(own)
	c.plant()
	// The LANs that one frame joined are separated again, and the conflicts on them end.
	for _, addr := range []string{own, pods} {
		c.watch.await("the conflict of "+addr+" to be over", inState(addr, ipwitnessv1.Conflict_RESOLVED))
		if c.only(addr).GetConfirmedAt() != nil || slices.Contains(c.watch.reportedStates(addr), confirmed) {
			t.Errorf("conflict of %s: got that it was confirmed: %v", addr, c.watch.reportedStates(addr))
		}
	}
	c.wantActive()
	wantAttack(t, "stitched-lans", "addresses that both LANs have look like duplicates",
		fmt.Sprintf("conflicts that stay %s with `linkProof` %s, and end by themselves: %s", forged.GetState(), forged.GetLinkProof(), forged.GetSummary()))

	// The LANs become one: the nodes receive each other's frames.
	if err := lans[0].Cable("trunk", lans[1].Host, "trunk"); err != nil {
		t.Fatal(err)
	}
	for _, out := range lans {
		out.sh("ip link set trunk master br0")
	}
	for _, addr := range []string{own, pods} {
		wait.Until(t, "the conflict of "+addr+" to be confirmed", func() bool {
			for i, n := range c.nodes {
				n.announce("/eth0", own)
				n.announce(fmt.Sprintf("p%d/net1", i+1), pods)
			}
			return inState(addr, confirmed)(c.watch.all())
		})
		if got := c.only(addr); got.GetLinkProof() != ipwitnessv1.LinkProof_PROVEN || got.GetScope().GetName() != "node1/eth0" {
			t.Errorf("conflict of %s on one LAN: got proof %s and scope %v, want PROVEN and node1/eth0", addr, got.GetLinkProof(), got.GetScope())
		}
	}
}

func TestL18TwoClustersOnOneLAN(t *testing.T) {
	t.Parallel()
	// Two kind clusters on one machine. Each has an aggregator and a node, and their pods use the
	// same addresses.
	const addr = "10.244.0.7"
	out := newLAN(t)
	var all []*cluster
	for i, name := range []string{"red", "blue"} {
		c := newAggregator(t, "--cluster", name, "--network", "pods=10.244.0.0/16")
		n := c.addMachine(newHost(t), name+"-control-plane", i+1)
		n.report(c)
		c.awaitNodes(n)
		out.join(n, fmt.Sprintf("192.0.2.%d/24", n.number))
		n.ports(1)
		n.pod(name, addr+"/32")
		all = append(all, c)
	}
	for _, c := range all {
		n := c.nodes[0]
		n.announce("/eth0", fmt.Sprintf("192.0.2.%d", n.number))
	}
	for i, c := range all {
		n := c.nodes[0]
		c.seen(fmt.Sprintf("192.0.2.%d", 2-i), n.name+"/eth0")
		c.wantOnlyPlanted()
		c.wantNone(addr)
		c.wantHolders(map[string][]string{
			addr:                                {n.name + "/" + []string{"red", "blue"}[i]},
			fmt.Sprintf("192.0.2.%d", n.number): {n.name + "/" + n.name},
			fmt.Sprintf("192.0.2.%d", 2-i):      {fmt.Sprintf("%s/02:00:00:00:0e:%02d", n.name, 2-i)},
		})
	}
	all[0].row("L18", addr, "one-owner")
}

func TestL18TwoNodesOfOneMachine(t *testing.T) {
	t.Parallel()
	// Two kind nodes that share a kernel and /run/netns, which both agents read.
	c := newAggregator(t, "--network", "pods=10.244.0.0/16")
	one := newHost(t)
	two, err := one.Beside()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(two.Close)
	for i, h := range []*netlab.Host{one, two} {
		c.addMachine(h, fmt.Sprintf("worker%d", i+1), i+1).report(c)
	}
	c.awaitNodes(c.nodes...)
	c.shared()
	for i, n := range c.nodes {
		n.pod(fmt.Sprintf("p%d", i+1), fmt.Sprintf("10.244.%d.2/32", i+1))
	}
	c.plant()
	c.wantConfirmed()
	c.wantHolders(map[string][]string{
		"10.244.1.2": {"worker1/p1"}, "10.244.2.2": {"worker2/p2"}, "192.0.2.1": {"worker1/worker1"}, "192.0.2.2": {"worker2/worker2"},
	})
	// An address that two pods really have is reported as a duplicate.
	c.nodes[1].pod("p3", "10.244.1.2/32")
	c.wantConflict("10.244.1.2", confirmed, "assigned-twice", "p1 | p3", "NETWORK pods", "on worker1", "on worker2")
}

func TestL20FrameThatTwoNodesSee(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	out := c.shared()
	const addr = "192.0.2.60"
	out.machine("printer", "02:00:00:00:00:60", addr+"/24")
	out.announce("printer", addr)
	c.evidence(addr, "", "ANNOUNCED node1/eth0", "ANNOUNCED node2/eth0", "ANNOUNCED node3/eth0")
	c.wantOnlyPlanted()
	c.wantNone(addr)
	c.wantHolders(map[string][]string{
		addr: {"node1/02:00:00:00:00:60"}, "192.0.2.1": {"node1/node1"}, "192.0.2.2": {"node2/node2"}, "192.0.2.3": {"node3/node3"},
	})
	c.row("L20-nodes", addr, "one-owner")
}

func TestL20MachineThatMovesBetweenNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	out := c.shared()
	const addr, mac = "192.0.2.60", "02:00:00:00:00:60"
	want := func(holder string) {
		t.Helper()
		c.wantHolders(map[string][]string{addr: {holder}, "192.0.2.1": {"node1/node1"}, "192.0.2.2": {"node2/node2"}})
	}
	out.machine("vm", mac, addr+"/24")
	out.announce("vm", addr)
	c.evidence(addr, "", "ANNOUNCED node1/eth0", "ANNOUNCED node2/eth0")
	want("node1/" + mac)
	// The virtual machine migrates from a host without an agent to one that has an agent, and on to
	// the next. It keeps its MAC and its address, and announces itself immediately.
	out.sh("ip netns del vm")
	for i, n := range c.nodes {
		if err := n.Namespace("vm"); err != nil {
			t.Fatal(err)
		}
		n.sh("ip link add vm0 link eth0 address "+mac+" type macvlan mode bridge", "ip link set vm0 netns vm name eth0", "ip -n vm link set eth0 up")
		n.assign("vm", addr+"/24")
		n.announce("vm", addr)
		c.evidence(addr, "vm", "ASSIGNED eth0", "ANNOUNCED "+c.nodes[1-i].name+"/eth0")
		want(n.name + "/vm")
		if i == 0 {
			n.sh("ip netns del vm")
			c.awaitOwners(addr, 0) // on a busy machine the end is reported late
		}
	}
	c.wantOnlyPlanted()
	c.wantNone(addr)
	c.row("L20-moved", addr, "one-owner")
}

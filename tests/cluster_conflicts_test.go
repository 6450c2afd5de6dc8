package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// The networks of the pods. They have the same name on all nodes, as on real nodes.
var (
	podsByPTP    = strings.Replace(netlab.PTP, "kindnet", "pods", 1)
	podsByBridge = strings.Replace(netlab.Bridge, "cbr0", "pods", 1)
)

const confirmed = ipwitnessv1.Conflict_CONFIRMED

func TestT3PodsOfTwoNodesWithOneAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	// The IPAM of each node allocates the address. No link joins the nodes, so no frame shows the
	// conflict.
	addr := podAddress(1)
	add(t, c.nodes[0].cni(podsByPTP), "web")
	c.awaitOwners(addr, 1)
	add(t, c.nodes[1].cni(podsByPTP), "db")
	c.wantConflict(addr, confirmed, "assigned-twice", "default/db | default/web", "NETWORK pods",
		"pod default/web", "pod default/db", "on node1", "on node2")
	// Both nodes also have the gateway address, but it belongs to no pod.
	c.wantHolders(map[string][]string{
		addr:         {"node1/default/web", "node2/default/db"},
		"10.244.0.1": {"node1/node1", "node2/node2"},
	})
	c.plant()
	c.wantActive(addr + " CONFIRMED")
	c.row("T3", addr, "assigned-twice")

	c.nodes[1].sh("ip netns del db")
	c.watch.await("the conflict to be resolved", inState(addr, ipwitnessv1.Conflict_RESOLVED))
	c.awaitOwners(addr, 1)
}

func TestT3DeclaredNetwork(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--network", "pods=10.244.0.0/16,fd00:10:244::/64")
	for i, n := range c.nodes {
		n.pod(fmt.Sprintf("p%d", i+1), "10.244.3.7/32", "fd00:10:244::7/128", "10.245.0.7/32")
	}
	for _, addr := range []string{"10.244.3.7", "fd00:10:244::7"} {
		c.wantConflict(addr, confirmed, "assigned-twice", "p1 | p2", "NETWORK pods",
			"network namespace p1", "network namespace p2", "on node1", "on node2")
	}
	c.plant()
	c.wantNone("10.245.0.7") // in no declared network: each node has a different address
	c.wantActive("10.244.3.7 CONFIRMED", "fd00:10:244::7 CONFIRMED")
	c.row("T3-declared", "10.244.3.7", "assigned-twice")
}

func TestT4MacvlanPodsOfTwoNodesOnOneLAN(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.shared()
	const addr = "192.0.2.100"
	// Without the reservation, each node allocates the first address.
	for i, n := range c.nodes {
		add(t, n.macvlan(), fmt.Sprintf("p%d", i+1))
	}
	c.wantConflict(addr, confirmed, "assigned-twice", "default/p1 | default/p2", "LINK node1/eth0",
		"pod default/p1", "pod default/p2", "on node1", "on node2")
	for i, n := range c.nodes {
		pod := fmt.Sprintf("p%d", i+1)
		n.announce(pod+"/net1", addr)
		c.evidence(addr, pod, "ASSIGNED "+n.name+"/net1", "ANNOUNCED "+c.nodes[1-i].name+"/eth0")
	}
	c.plant()
	c.wantActive(addr + " CONFIRMED") // one conflict for the LAN, not one for each node
	c.row("T4-nodes", addr, "assigned-twice")

	c.nodes[0].sh("ip netns del p1")
	c.watch.await("the conflict to be resolved", inState(addr, ipwitnessv1.Conflict_RESOLVED))
	c.wantHolders(map[string][]string{addr: {"node2/default/p2"}, "192.0.2.1": {"node1/node1"}, "192.0.2.2": {"node2/node2"}})
}

// Incident 61: host-local knows nothing of other nodes, which have the same network on one LAN.
func TestIncidentTheMacvlanNetworksOfTwoNodesHaveOneRange(t *testing.T) {
	t.Parallel()
	const addr = "192.0.2.100"
	c := newCluster(t, 2)
	c.shared()
	i := c.incident(61)
	var networks []*netlab.CNI
	for _, n := range c.nodes {
		networks = append(networks, n.macvlan())
	}
	i.foretold("pod-cidr-overlap", addr+"-192.0.2.254")
	for k, pod := range []string{"web", "db"} {
		add(t, networks[k], pod)
		c.awaitOwners(addr, k+1)
	}
	i.conflicted(addr, "pod-cidr-overlap")
	// Each node gets a part of the range, and the pod of the second one is restarted.
	for k, part := range []string{"192.0.2.100\",\"rangeEnd\":\"192.0.2.149", "192.0.2.150"} {
		c.nodes[k].cni(strings.Replace(macvlan, addr, part, 1))
	}
	c.nodes[1].sh("ip netns del db")
	i.remedied()
	c.awaitFindings()
}

func TestT5TwoNodesWithOneRangeOfPodAddresses(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	// The same configuration as containerd's 10-containerd-net.conflist, on every node.
	for i, n := range c.nodes {
		add(t, n.cni(podsByBridge), fmt.Sprintf("web%d", i+1), fmt.Sprintf("db%d", i+1))
	}
	c.wantConflict(podAddress(1), confirmed, "assigned-twice", "default/web1 | default/web2", "NETWORK pods",
		"pod default/web1", "pod default/web2", "on node1", "on node2")
	c.wantConflict(podAddress(2), confirmed, "assigned-twice", "default/db1 | default/db2", "NETWORK pods")
	for i, n := range c.nodes {
		pod := fmt.Sprintf("web%d", i+1)
		n.ports(2)
		n.announce(pod, podAddress(1)) // the plugin's own announcement may have preceded the observer
		c.evidence(podAddress(1), pod, "ASSIGNED eth0", "ANNOUNCED")
	}
	c.plant()
	c.wantActive(podAddress(1)+" CONFIRMED", podAddress(2)+" CONFIRMED")
	c.row("T5", podAddress(1), "assigned-twice")
}

func TestT5GatewayAddressInADeclaredNetwork(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--network", "pods=10.244.0.0/16", "--handover-grace", "1h") // no node hands its gateway over
	for i, n := range c.nodes {
		add(t, n.cni(podsByBridge), fmt.Sprintf("web%d", i+1))
	}
	c.wantConflict("10.244.0.1", confirmed, "assigned-twice", "node1 | node2", "NETWORK pods",
		"node node1 itself", "node node2 itself")
	c.wantConflict(podAddress(1), confirmed, "assigned-twice", "default/web1 | default/web2", "NETWORK pods")
	c.wantActive("10.244.0.1 CONFIRMED", podAddress(1)+" CONFIRMED")
	c.row("T5-gateway", "10.244.0.1", "assigned-twice")
}

// wantGrace fails if the conflict of an address was not reported as suspected first, or was
// confirmed before the grace period had passed.
func (l *lab) wantGrace(addr string, grace time.Duration) {
	l.t.Helper()
	c := l.only(addr)
	if reportedStates := l.watch.reportedStates(addr); len(reportedStates) == 0 || reportedStates[0] != ipwitnessv1.Conflict_SUSPECTED {
		l.t.Errorf("reported states of %s: got %v, want SUSPECTED first", addr, reportedStates)
	}
	if got := c.GetConfirmedAt().AsTime().Sub(c.GetDetectedAt().AsTime()); got < grace {
		l.t.Errorf("conflict of %s: confirmed after %s, want %s or more", addr, got, grace)
	}
}

// wantCause checks the cause of the conflict of an address.
func (l *lab) wantCause(addr, cause string) {
	l.t.Helper()
	if got := l.only(addr).GetCause(); got != cause {
		l.t.Errorf("cause of %s: got %s, want %s", addr, got, cause)
	}
}

// apart isolates two ports of the switch from each other. All other ports receive the frames of
// both.
func (n *lan) apart(ports ...string) {
	n.t.Helper()
	for _, port := range ports {
		n.sh("ip link set " + port + " type bridge_slave isolated on")
	}
}

func TestT7MachineOutsideThatOnlyAnotherNodeSees(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	out := c.shared()
	add(t, c.nodes[0].macvlan(), "web")
	const addr = "192.0.2.100"
	c.awaitOwners(addr, 1)
	// The switch does not forward the machine's frames to node1, as with storm control, a private
	// VLAN or a broken cable.
	out.machine("thief", "02:00:00:00:00:99")
	out.apart("port1", "vthief")
	out.assign("thief", addr+"/24")
	c.takes(out, "thief", addr, "192.0.2.77")
	c.wantConflict(addr, confirmed, "assigned-and-wire", " | default/web", "LINK node1/eth0",
		"pod default/web", "02:00:00:00:00:99")
	c.evidence(addr, "", "USED node2/eth0")
	c.wantHolders(map[string][]string{
		addr: {"node1/default/web", "node2/02:00:00:00:00:99"}, "192.0.2.1": {"node1/node1"}, "192.0.2.2": {"node2/node2"},
	})
	c.row("T7-nodes", addr, "assigned-and-wire")
}

func TestT7MachineOutsideThatBothNodesSeeIsOneOwner(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	out := c.shared()
	out.machine("thief", "02:00:00:00:00:99", "192.0.2.1/24")
	c.takes(out, "thief", "192.0.2.1", "192.0.2.77")
	c.wantConflict("192.0.2.1", confirmed, "assigned-and-wire", " | node1", "LINK node1/eth0",
		"node node1 itself", "02:00:00:00:00:99")
	c.evidence("192.0.2.1", "", "USED node1/eth0", "USED node2/eth0")
	owners := c.awaitOwners("192.0.2.1", 2)
	if i := slices.IndexFunc(owners, func(o *ipwitnessv1.Owner) bool { return o.GetMac() == "02:00:00:00:00:99" }); i < 0 || len(owners[i].GetEvidence()) < 2 {
		t.Errorf("owners: got %v, want the machine with two witnesses", owners)
	}
	c.plant()
	c.wantActive("192.0.2.1 CONFIRMED")
}

func TestT8VirtualAddressStaysOnTwoNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--handover-grace", "2s")
	c.shared()
	const vip = "192.0.2.50"
	// keepalived that does not receive its peer's advertisements takes the address and announces
	// it.
	c.moves("keepalived")
	for _, n := range c.nodes {
		n.sh("ip addr add " + vip + "/32 dev eth0")
		n.announce("/eth0", vip)
	}
	c.wantConflict(vip, confirmed, "split-brain", "node1 | node2", "LINK node1/eth0", "node node1 itself", "node node2 itself")
	c.wantGrace(vip, 2*time.Second)
	c.wantCause(vip, "split-brain")
	c.evidence(vip, "node1", "ASSIGNED node1/eth0", "ANNOUNCED node2/eth0")
	c.evidence(vip, "node2", "ASSIGNED node2/eth0", "ANNOUNCED node1/eth0")
	c.wantActive(vip + " CONFIRMED")
	c.row("T8", vip, "split-brain")

	c.nodes[0].sh("ip addr del " + vip + "/32 dev eth0")
	c.watch.await("the conflict to be resolved", inState(vip, ipwitnessv1.Conflict_RESOLVED))
	c.awaitOwners(vip, 1)
}

func TestT8TwoSpeakersAnnounceOneAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--handover-grace", "2s")
	c.shared()
	const vip = "192.0.2.50"
	// MetalLB: no interface has the address, but a process answers for it.
	wait.Until(t, vip+" to be confirmed", func() bool {
		for _, n := range c.nodes {
			n.announce("/eth0", vip)
		}
		return inState(vip, confirmed)(c.watch.all())
	})
	c.wantConflict(vip, confirmed, "externals-alternate", "node1 | node2", "LINK node1/eth0", "node node1 itself", "node node2 itself")
	c.wantGrace(vip, 2*time.Second)
	c.wantCause(vip, "unknown") // no controller is known that assigns the address
	c.evidence(vip, "node1", "ANNOUNCED node2/eth0")
	c.evidence(vip, "node2", "ANNOUNCED node1/eth0")
}

package tests

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

func TestL1AddressReusedAfterItsPodWasDeleted(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	for i := range 10 {
		pod := fmt.Sprintf("p%d", i)
		l.pod(pod, "10.244.0.9/24")
		l.awaitOwners("10.244.0.9", 1)
		// When a namespace ends, the kernel sends no RTM_DELADDR.
		l.sh("ip netns del " + pod)
	}
	l.wantOnlyPlanted()
	l.awaitOwners("10.244.0.9", 0)

	// If the end of the first was reported before the start of the second, not even the history has
	// an overlap.
	l.pod("before", "10.244.0.8/24")
	l.awaitOwners("10.244.0.8", 1)
	l.sh("ip netns del before")
	l.awaitOwners("10.244.0.8", 0)
	l.pod("after", "10.244.0.8/24")
	l.awaitOwners("10.244.0.8", 1)
	l.row("L1", "10.244.0.8", "one-owner")
}

func TestL3SandboxOfOnePodRecreated(t *testing.T) {
	t.Parallel()
	// The second sandbox is identified when its plugin has ended. On a busy machine this takes
	// longer than the default settle time.
	l := newRow(t, "--handover-grace", "1h", "--settle", "10s")
	cni := l.cni(netlab.PTP)
	// kubelet creates a new sandbox for the same pod while the old one is still ending: in another
	// namespace, with the same pod in the CNI arguments.
	for _, sandbox := range []string{"sandbox1", "sandbox2"} {
		if err := cni.AddAs(sandbox, "web-0"); err != nil {
			t.Fatal(err)
		}
		if err := cni.Forget(); err != nil {
			t.Fatal(err)
		}
	}
	l.watch.await("the two sandboxes to be suspected", inState(podAddress(1), ipwitnessv1.Conflict_SUSPECTED))
	l.plant()
	if c := l.only(podAddress(1)); c.GetState() != ipwitnessv1.Conflict_SUSPECTED || c.GetRule() != "same-pod" {
		t.Errorf("two sandboxes of one pod: got %s by rule %s, want SUSPECTED by same-pod", c.GetState(), c.GetRule())
	}
	l.row("L3", podAddress(1), "same-pod")
	if err := cni.Delete("sandbox1"); err != nil {
		t.Fatal(err)
	}
	l.watch.await("the conflict to be resolved", inState(podAddress(1), ipwitnessv1.Conflict_RESOLVED))
}

func TestL5HostNetworkPodsShareTheNodesAddress(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	l.pod("p1")
	l.sh("ip addr add 192.0.2.1/24 dev vp1")
	// Processes of hostNetwork pods run in the node's own namespace.
	for range 3 {
		cmd := l.Command("sleep", "infinity")
		if err := l.Start(cmd); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	}
	l.wantOnlyPlanted()
	owners := l.awaitOwners("192.0.2.1", 1)
	if owners[0].GetWorkload().GetKind() != ipwitnessv1.Workload_HOST {
		t.Errorf("owner of the node's address: got %v, want HOST", owners[0].GetWorkload())
	}
	l.row("L5", "192.0.2.1", "one-owner")
}

func TestL9LinkLocalAddressesThatEveryLinkHas(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	l.sh("ip addr add 169.254.20.10/32 dev lo") // nodelocaldns
	for _, pod := range []string{"a", "b"} {
		l.pod(pod, "169.254.169.2/30", "fe80::1/64")
		l.sh(fmt.Sprintf("ip -n %s link set lo up", pod), fmt.Sprintf("ip -n %s addr add 169.254.20.10/32 dev lo", pod))
	}
	l.wantOnlyPlanted()
	for _, addr := range []string{"169.254.169.2", "fe80::1", "169.254.20.10"} {
		if c := l.watch.find(addr); len(c) != 0 {
			t.Errorf("conflict of %s: got %v, want none", addr, c)
		}
	}
	l.row("L9", "169.254.169.2", "link-local")
	l.row("L9-nodelocaldns", "169.254.20.10", "loopback-or-dummy")
}

func TestL11GatewayAddressOnEveryHostVeth(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	cni := l.cni(netlab.PTP)
	for i := range 5 {
		if err := cni.Add(fmt.Sprintf("p%d", i)); err != nil {
			t.Fatal(err)
		}
		l.awaitOwners(podAddress(i+1), 1)
	}
	l.wantOnlyPlanted()
	if got, err := l.Run("ip -4 -o addr show to 10.244.0.1"); err != nil || strings.Count(got, "\n") != 5 {
		t.Fatalf("gateway addresses on the host: got %q, %v, want five", got, err)
	}
	owners := l.awaitOwners("10.244.0.1", 1)
	if owners[0].GetWorkload().GetKind() != ipwitnessv1.Workload_HOST {
		t.Errorf("owner of the gateway address: got %v, want HOST", owners[0].GetWorkload())
	}
	l.row("L11", "10.244.0.1", "one-namespace")
}

func TestL17EqualRangesOnIsolatedBridges(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	for _, tenant := range []string{"red", "blue"} {
		l.sh(fmt.Sprintf("ip link add br-%s type bridge", tenant), fmt.Sprintf("ip link set br-%s up", tenant))
		l.pod(tenant)
		l.sh(fmt.Sprintf("ip link set v%s master br-%s", tenant, tenant))
		l.assign(tenant, "10.0.0.5/24")
	}
	l.wantOnlyPlanted()
	if c := l.watch.find("10.0.0.5"); slices.ContainsFunc(c, func(c *ipwitnessv1.Conflict) bool { return c.GetConfirmedAt() != nil }) {
		t.Errorf("conflict of 10.0.0.5: got %v, want none", c)
	}
	l.row("L17", "10.0.0.5", "different-links")

	// On one bridge the same two addresses are a conflict, even if the bridge has no address of the
	// node.
	l.pod("green")
	l.sh("ip link set vgreen master br-red")
	l.assign("green", "10.0.0.5/24")
	l.watch.await("10.0.0.5 on br-red to be confirmed", inState("10.0.0.5", ipwitnessv1.Conflict_CONFIRMED))
	for _, c := range l.watch.find("10.0.0.5") {
		if c.GetState() != ipwitnessv1.Conflict_CONFIRMED {
			continue
		}
		if got, want := ownerNames(c), "green | red"; got != want || c.GetScope().GetName() != "node1/br-red" {
			t.Errorf("conflict: got %s in %v, want %s in LINK node1/br-red", got, c.GetScope(), want)
		}
	}
}

// arp sends an ARP packet from a pod, on eth0 or on the interface named after a slash.
func (l *lab) arp(pod string, op uint16, sha, spa, tpa string) {
	l.t.Helper()
	mac, err := net.ParseMAC(sha)
	if err != nil {
		l.t.Fatal(err)
	}
	pod, ifname := port(pod)
	l.in(pod, func() error {
		return netlab.Send(ifname, netlab.ARP(op, mac, netip.MustParseAddr(spa), netip.MustParseAddr(tpa)))
	})
}

// port splits POD/INTERFACE. The interface defaults to eth0.
func port(pod string) (name, ifname string) {
	name, ifname, named := strings.Cut(pod, "/")
	if !named {
		ifname = "eth0"
	}
	return name, ifname
}

// announce sends a gratuitous ARP for an address (RFC 5227, section 3) with the MAC of a pod, or of
// the host if the name is empty.
func (l *lab) announce(pod, addr string) {
	l.t.Helper()
	l.arp(pod, 1, l.mac(pod), addr, addr)
}

// talks repeats frames several times a second, as the program does that holds an address, until
// silence is called or the test ends. A frame that is sent once is evidence only for --stale-after,
// which may be over before a slow machine reaches the next step of a test.
func talks(t *testing.T, send func()) (silence func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			send()
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	silence = func() { cancel(); <-ended }
	t.Cleanup(silence)
	return silence
}

// mac returns the MAC of a pod's eth0, or of the interface named after a slash.
func (l *lab) mac(pod string) string {
	l.t.Helper()
	pod, ifname := port(pod)
	var i *net.Interface
	l.in(pod, func() (err error) {
		i, err = net.InterfaceByName(ifname)
		return err
	})
	return i.HardwareAddr.String()
}

// ports waits until the observer is attached to n ports.
func (l *lab) ports(n uint32) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprintf("%d ports", n), func() bool { return l.node().GetPorts() == n })
}

// bridged waits until the observer is attached to the given number of ports and the agent knows
// their links. To prove the latter, it creates a pair of ports after all other changes and waits
// until the agent knows it. Frames that arrive before the agent knows that a port has joined a
// bridge would be forgotten.
func (l *lab) bridged(ports uint32) {
	l.t.Helper()
	l.ports(ports)
	l.sh("ip link add last0 type veth peer name last1")
	l.ports(ports + 2)
	l.sh("ip link del last0")
	l.ports(ports)
}

// frames waits until the observer has counted n ARP frames with a result.
func (l *lab) frames(result string, n int) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprintf("%d frames with result %s", n, result), func() bool { return l.result(result) == float64(n) })
}

func TestL19ARPProbesOwnNothing(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	l.pod("holder", "10.244.0.7/24")
	l.pod("prober")
	l.ports(2)
	l.awaitOwners("10.244.0.7", 1)
	l.arp("prober", 1, "02:00:00:00:00:99", "0.0.0.0", "10.244.0.7")
	l.arp("prober", 1, "02:00:00:00:00:99", "0.0.0.0", "10.244.0.7")
	l.frames("probe", 2)
	l.wantOnlyPlanted()
	if c := l.watch.find("10.244.0.7"); len(c) != 0 {
		t.Errorf("conflict of a probed address: got %v, want none", c)
	}
	l.awaitOwners("10.244.0.7", 1)
	l.row("L19", "10.244.0.7", "one-owner")
}

func TestL19DuplicateAddressDetectionOwnsNothing(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	const addr = "fd00:10:244::7"
	l.pod("holder", addr+"/64")
	l.pod("prober")
	l.ports(2)
	l.awaitOwners(addr, 1)
	// Wait until the kernels have finished duplicate address detection for their link-local
	// addresses.
	for _, pod := range []string{"holder", "prober"} {
		wait.Until(t, "the addresses of "+pod+" to be proven", func() bool {
			out, err := l.Run("ip -n %s -6 addr show dev eth0 scope link", pod)
			return err == nil && strings.Contains(out, "fe80:") && !strings.Contains(out, "tentative")
		})
	}
	probes := func() float64 { return l.metric(`ipwitness_agent_frames_total{protocol="ndp",result="probe"}`) }
	before := probes()
	frame := netlab.DAD(net.HardwareAddr{2, 0, 0, 0, 0, 0x99}, netip.MustParseAddr(addr))
	l.in("prober", func() error { return netlab.Send("eth0", frame, frame) })
	wait.Until(t, "two probes", func() bool { return probes() == before+2 })
	l.wantOnlyPlanted()
	l.wantNone(addr)
	l.awaitOwners(addr, 1)
	l.row("L19-ipv6", addr, "one-owner")
}

func TestL20OneHolderSeenOnTheWireIsOneOwner(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	out := l.lan("10.244.0.1/24")
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr flush dev eth0", "ip link set eth0 master cni0", "ip addr add 10.244.0.1/24 dev cni0")
	l.pod("a")
	l.sh("ip link set va master cni0", "ip -n a link set eth0 address 02:00:00:00:00:0a")
	l.assign("a", "10.244.0.7/24")
	l.bridged(2)
	out.machine("loop", "02:00:00:00:00:0e")
	// The pod's own announcement, request and answer arrive on its own port. One frame then also
	// arrives on another port, as after a loop in the external wiring.
	l.arp("a", 1, "02:00:00:00:00:0a", "10.244.0.7", "10.244.0.7")
	l.arp("a", 1, "02:00:00:00:00:0a", "10.244.0.7", "10.244.0.1")
	l.arp("a", 2, "02:00:00:00:00:0a", "10.244.0.7", "10.244.0.1")
	out.arp("loop", 1, "02:00:00:00:00:0a", "10.244.0.7", "10.244.0.1")
	wait.Until(t, "four kinds of evidence by two witnesses", func() bool {
		kinds := map[string]bool{}
		for _, o := range l.awaitOwners("10.244.0.7", 1) {
			for _, e := range o.GetEvidence() {
				kinds[e.GetKind().String()+e.GetWitness()] = true
			}
		}
		return len(kinds) >= 5
	})
	l.wantOnlyPlanted()
	if c := l.watch.find("10.244.0.7"); len(c) != 0 {
		t.Errorf("conflict: got %v, want none", c)
	}
	l.row("L20", "10.244.0.7", "one-owner")
}

func TestL8ServiceAddressOnLoopback(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	const service = "10.96.0.10"
	l.sh("ip addr add "+service+"/32 dev lo", "ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0")
	for i, pod := range []string{"a", "b"} {
		l.pod(pod, fmt.Sprintf("10.244.0.%d/24", i+2))
		l.sh(fmt.Sprintf("ip link set v%s master cni0", pod),
			fmt.Sprintf("ip -n %s link set lo up", pod), fmt.Sprintf("ip -n %s addr add %s/32 dev lo", pod, service))
	}
	l.pod("c", "10.244.0.4/24")
	l.sh("ip link set vc master cni0", "ip -n c route add "+service+"/32 dev eth0")
	l.bridged(3)
	// Linux uses the address in requests on any interface, and answers for it.
	for _, pod := range []string{"a", "b"} {
		l.ask(pod, service, "10.244.0.1")
		l.evidence(service, pod, "ASSIGNED lo", "USED v"+pod)
	}
	l.resolve("c", "eth0", service)
	for _, pod := range []string{"a", "b"} {
		l.evidence(service, pod, "ANSWERED v"+pod)
	}
	l.wantOnlyPlanted()
	l.wantNone(service)
	l.awaitOwners(service, 0)
	// It is not a conflict, but it is a problem: a client reaches an arbitrary one of them.
	l.awaitFindings("shared-address-answered " + service)
	l.row("L8", service, "loopback-or-dummy")
}

func TestL10DockersBridgesOnOneNode(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	for i, bridge := range []string{"docker0", "podman0", "virbr0"} {
		gateway := fmt.Sprintf("172.%d.0.1", 17+i)
		l.sh(fmt.Sprintf("ip link add %s type bridge", bridge), fmt.Sprintf("ip link set %s up", bridge),
			fmt.Sprintf("ip addr add %s/16 dev %s", gateway, bridge))
	}
	l.pod("c1")
	l.sh("ip link set vc1 master docker0", "ip -n c1 link set eth0 address 02:42:ac:11:00:02")
	l.assign("c1", "172.17.0.2/16")
	l.bridged(1)
	l.resolve("c1", "eth0", "172.17.0.1")
	l.evidence("172.17.0.2", "c1", "ASSIGNED eth0", "USED vc1")
	l.wantOnlyPlanted()
	l.wantNone("172.17.0.1", "172.17.0.2")
	l.row("L10", "172.17.0.2", "one-owner")
}

func TestL12PodWithProxyARP(t *testing.T) {
	t.Parallel()
	l := newRow(t, "--router", "prox?=it routes")
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0")
	for i, pod := range []string{"holder", "proxy", "asker"} {
		l.pod(pod, fmt.Sprintf("10.244.0.%d/24", 7+i))
		l.sh(fmt.Sprintf("ip link set v%s master cni0", pod))
	}
	l.sh("ip -n proxy link add in0 type veth peer name in1", "ip -n proxy link set in0 up", "ip -n proxy link set in1 up",
		"ip -n proxy route add 10.244.0.7/32 dev in0")
	l.sysctl("proxy", "net/ipv4/ip_forward=1", "net/ipv4/conf/eth0/proxy_arp=1", "net/ipv4/neigh/eth0/proxy_delay=0")
	l.bridged(3)
	for range 2 {
		l.resolve("asker", "eth0", "10.244.0.7")
		l.evidence("10.244.0.7", "holder", "ASSIGNED eth0", "ANSWERED vholder")
		l.evidence("10.244.0.7", "proxy", "ANSWERED vproxy")
		l.plantNext()
	}
	l.wantConfirmed()
	l.wantNone("10.244.0.7")
	l.row("L12-pod", "10.244.0.7", "reachable-via")
}

func TestL12PodWithNDPProxy(t *testing.T) {
	t.Parallel()
	l := newRow(t, "--router", "prox?=it routes")
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add fd00:10:244::1/64 dev cni0 nodad")
	for i, pod := range []string{"holder", "proxy", "asker"} {
		l.pod(pod, fmt.Sprintf("fd00:10:244::%d/64", 7+i))
		l.sh(fmt.Sprintf("ip link set v%s master cni0", pod), fmt.Sprintf("ip -n %s link set eth0 address 02:00:00:00:00:0%d", pod, 7+i))
	}
	l.sh("ip -n proxy neigh add proxy fd00:10:244::7 dev eth0")
	l.sysctl("proxy", "net/ipv6/conf/all/forwarding=1", "net/ipv6/conf/eth0/proxy_ndp=1", "net/ipv6/neigh/eth0/proxy_delay=0")
	l.bridged(3)
	for range 2 {
		l.resolve("asker", "eth0", "fd00:10:244::7")
		l.evidence("fd00:10:244::7", "holder", "ASSIGNED eth0", "ANSWERED vholder")
		l.evidence("fd00:10:244::7", "proxy", "ANSWERED vproxy")
		l.plantNext()
	}
	l.wantConfirmed()
	l.wantNone("fd00:10:244::7")
	l.row("L12-ndp", "fd00:10:244::7", "reachable-via")
}

func TestL14PodWithTwoInterfacesOnOneBridge(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0")
	l.pod("a", "10.244.0.7/24")
	l.sh("ip link set va master cni0", "ip -n a link set eth0 address 02:00:00:00:00:a0",
		"ip link add va1 type veth peer name eth1 netns a", "ip link set va1 master cni0", "ip link set va1 up",
		"ip -n a link set eth1 address 02:00:00:00:00:a1", "ip -n a link set eth1 up", "ip -n a addr add 10.244.0.8/24 dev eth1")
	for _, dev := range []string{"all", "eth0", "eth1"} { // a new namespace inherits the machine's IPv4 settings
		l.sysctl("a", "net/ipv4/conf/"+dev+"/rp_filter=0", "net/ipv4/conf/"+dev+"/arp_ignore=0", "net/ipv4/conf/"+dev+"/arp_filter=0")
	}
	l.bridged(2)
	l.awaitOwners("10.244.0.7", 1)
	// The node broadcasts a request, and the pod answers on both interfaces, each with its own MAC.
	l.resolve("", "cni0", "10.244.0.7")
	l.evidence("10.244.0.7", "a", "ANSWERED va", "ANSWERED va1")
	l.wantOnlyPlanted()
	l.wantNone("10.244.0.7", "10.244.0.8")
	l.row("L14-pod", "10.244.0.7", "one-namespace")
}

func TestL16PrivateLinkInEveryLauncher(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	for i, pod := range []string{"launcher1", "launcher2"} {
		l.pod(pod, fmt.Sprintf("10.244.0.%d/24", i+2))
		l.sh(fmt.Sprintf("ip -n %s link add k6t-eth0 type bridge", pod), fmt.Sprintf("ip -n %s link set k6t-eth0 up", pod),
			fmt.Sprintf("ip -n %s addr add 10.0.2.1/24 dev k6t-eth0", pod))
	}
	wait.Until(t, "both launchers to be seen with 10.0.2.1", func() bool { return len(l.owners("?address=10.0.2.1")) == 2 })
	l.wantOnlyPlanted()
	l.wantNone("10.0.2.1")
	l.row("L16", "10.0.2.1", "private-link")
}

func TestL21NeighbourEntriesOwnNothing(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0")
	for _, pod := range []string{"holder", "believer"} {
		l.pod(pod)
		l.sh(fmt.Sprintf("ip link set v%s master cni0", pod))
	}
	l.assign("holder", "10.244.0.7/24")
	l.assign("believer", "10.244.0.8/24")
	l.awaitOwners("10.244.0.7", 1)
	for _, state := range []string{"stale", "reachable", "permanent"} {
		l.sh("ip neigh replace 10.244.0.7 lladdr 02:00:00:00:00:99 nud "+state+" dev cni0",
			"ip -n believer neigh replace 10.244.0.7 lladdr 02:00:00:00:00:98 nud "+state+" dev eth0")
	}
	l.sh("ip neigh replace 10.244.0.99 lladdr 02:00:00:00:00:99 nud permanent dev cni0")
	l.wantOnlyPlanted()
	l.wantNone("10.244.0.7", "10.244.0.99")
	l.awaitOwners("10.244.0.7", 1)
	l.awaitOwners("10.244.0.99", 0)
	l.awaitFindings("stale-belief 10.244.0.7", "stale-belief 10.244.0.7") // one for each MAC
	l.row("L21", "10.244.0.7", "one-owner")
}

func TestL22DeclaredSharedAddress(t *testing.T) {
	t.Parallel()
	l := newRow(t, "--shared", "10.96.0.0/24=anycast DNS")
	for _, pod := range []string{"dns1", "dns2"} {
		l.pod(pod, "10.96.0.10/32")
	}
	wait.Until(t, "both to be seen", func() bool { return len(l.owners("?address=10.96.0.10")) == 2 })
	l.wantOnlyPlanted()
	l.wantNone("10.96.0.10")
	e := l.explain("10.96.0.10")
	if !slices.ContainsFunc(e.GetSteps(), func(s *ipwitnessv1.ExplainResponse_Step) bool {
		return s.GetRule() == "declared-shared" && strings.Contains(s.GetReason(), "anycast DNS")
	}) {
		t.Errorf("explanation: got %v, want the declared reason", e.GetSteps())
	}
	l.row("L22", "10.96.0.10", "declared-shared")
}

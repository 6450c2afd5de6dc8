package tests

import (
	"fmt"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// wipe simulates an accident: pods are created, the IPAM directory is deleted, and as many pods are
// created again. ipwitness can name what was lost only if it had read it before.
func wipe(t *testing.T, l *lab, cni *netlab.CNI, pods int) {
	t.Helper()
	for _, generation := range []string{"old", "new"} {
		for i := range pods {
			if err := cni.Add(fmt.Sprintf("%s%d", generation, i+1)); err != nil {
				t.Fatal(err)
			}
		}
		if generation == "old" {
			l.awaitAllocations(uint64(pods))
			if err := cni.Forget(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// wantWiped checks what is reported of each duplicate after a wipe.
func wantWiped(t *testing.T, l *lab, pods int) {
	t.Helper()
	for i := range pods {
		addr := podAddress(i + 1)
		owners := fmt.Sprintf("default/new%d | default/old%d", i+1, i+1)
		l.watch.await(fmt.Sprintf("%s to be confirmed between %s", addr, owners), between(addr, ipwitnessv1.Conflict_CONFIRMED, owners))
		c := l.only(addr)
		if c.GetScope().GetKind() != ipwitnessv1.Scope_NODE || c.GetScope().GetName() != "node1" {
			t.Errorf("scope of %s: got %v, want NODE node1", addr, c.GetScope())
		}
		if c.GetRule() != "assigned-twice" {
			t.Errorf("rule for %s: got %q, want assigned-twice", addr, c.GetRule())
		}
		for _, pod := range []string{"old", "new"} {
			if name := fmt.Sprintf("default/%s%d", pod, i+1); !strings.Contains(c.GetSummary(), name) {
				t.Errorf("summary of %s does not name %s: %q", addr, name, c.GetSummary())
			}
		}
		if len(c.GetRemedy()) == 0 {
			t.Errorf("conflict of %s has no remedy", addr)
		}
	}
	for _, c := range l.watch.all() {
		if c.GetAddress() == "10.244.0.1" {
			t.Errorf("the gateway address was reported: %v", c)
		}
	}
	if got := len(l.watch.all()); got != pods {
		t.Errorf("conflicts: got %d, want %d: %v", got, pods, l.watch.all())
	}
}

func TestT1PTPWithTheIPAMDirectoryDeletedUnderLivePods(t *testing.T) {
	for _, wire := range []string{"auto", "clsact", "off"} {
		t.Run("wire "+wire, func(t *testing.T) {
			t.Parallel()
			l := newRow(t, "--wire", wire)
			cni := l.cni(netlab.PTP)
			const pods = 3
			wipe(t, l, cni, pods)
			wantWiped(t, l, pods)
			// The plugin did not replace the route to the first pod (incident 16).
			for _, o := range l.owners("?address=" + podAddress(1)) {
				if name := o.GetWorkload().GetName(); o.GetRouted() != (name == "old1") {
					t.Errorf("%s: got routed %t, want only old1 to be routed", name, o.GetRouted())
				}
			}
			if wire == "auto" {
				l.row("T1", podAddress(1), "assigned-twice")
			}

			for i := range pods {
				if err := cni.Delete(fmt.Sprintf("old%d", i+1)); err != nil {
					t.Fatal(err)
				}
			}
			for i := range pods {
				addr := podAddress(i + 1)
				l.watch.await(addr+" to be resolved", inState(addr, ipwitnessv1.Conflict_RESOLVED))
				l.awaitOwners(addr, 1)
			}
		})
	}
}

func TestT2BridgeWithTheIPAMDirectoryWiped(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	cni := l.cni(netlab.Bridge)
	const pods = 3
	wipe(t, l, cni, pods)
	wantWiped(t, l, pods)

	// The plugin announces the address of a new pod, perhaps before the observer is attached, so
	// announce it again. Both pods also answer ARP requests.
	l.ports(2 * pods)
	addr := podAddress(1)
	for _, pod := range []string{"old1", "new1"} {
		l.announce(pod, addr)
	}
	l.resolve("", "cni0", addr)
	for _, pod := range []string{"old1", "new1"} {
		l.evidence(addr, pod, "ASSIGNED", "ANNOUNCED", "ANSWERED")
	}
	for _, o := range l.owners("?address=" + addr) {
		if o.GetEvidence()[0].GetKind() != ipwitnessv1.Evidence_ASSIGNED {
			t.Errorf("evidence for %s: got %v, want ASSIGNED first", o.GetWorkload().GetName(), o.GetEvidence())
		}
	}
	l.row("T2", addr, "assigned-twice")
}

func TestT9DuplicatesWithOneMACDerivedFromTheAddress(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		l.sh(fmt.Sprintf("ip -n %s link set eth0 address 0a:58:0a:f4:00:07", pod))
		l.assign(pod, "10.244.0.7/24")
	}
	l.watch.await("10.244.0.7 to be confirmed", inState("10.244.0.7", ipwitnessv1.Conflict_CONFIRMED))
	c := l.only("10.244.0.7")
	if got, want := ownerNames(c), "a | b"; got != want {
		t.Errorf("owners: got %s, want %s", got, want)
	}
	for _, o := range c.GetOwners() {
		if o.GetMac() != "0a:58:0a:f4:00:07" {
			t.Errorf("MAC of %s: got %s", o.GetWorkload().GetName(), o.GetMac())
		}
		if kind := o.GetWorkload().GetKind(); kind != ipwitnessv1.Workload_UNKNOWN { // the namespace has a name, but no runtime has a workload for it
			t.Errorf("kind of network namespace %s: got %s, want UNKNOWN", o.GetWorkload().GetName(), kind)
		}
	}
	l.row("T9", "10.244.0.7", "assigned-twice")
}

func TestT13IPv6DuplicateThatNoFrameShows(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add fd00:10:244::1/64 dev cni0 nodad")
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		// Without duplicate address detection, as the CNI bridge plugin sets it.
		off := l.Command("ip", "netns", "exec", pod, "sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad")
		if _, err := l.Output(off); err != nil {
			t.Fatal(err)
		}
		l.sh(fmt.Sprintf("ip link set v%s master cni0", pod),
			fmt.Sprintf("ip -n %s addr add fd00:10:244::7/64 dev eth0", pod))
	}
	l.watch.await("fd00:10:244::7 to be confirmed", inState("fd00:10:244::7", ipwitnessv1.Conflict_CONFIRMED))
	if got, want := ownerNames(l.only("fd00:10:244::7")), "a | b"; got != want {
		t.Errorf("owners: got %s, want %s", got, want)
	}
	l.row("T13", "fd00:10:244::7", "assigned-twice")
}

func TestT6AddressSetByHandInsideThePodNetwork(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	l.lan("192.0.2.1/24")
	cni := l.cni(netlab.PTP)
	if err := cni.Add("web"); err != nil {
		t.Fatal(err)
	}
	addr := podAddress(1)
	l.awaitOwners(addr, 1)
	// A user of the node adds the address, or a process of a hostNetwork pod.
	l.sh("ip addr add " + addr + "/32 dev eth0")
	l.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/web | node1", "NODE node1",
		"node node1 itself", "pod default/web")
	l.row("T6", addr, "assigned-twice")
}

func TestT6GuestInsideThePodNetwork(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	cni := l.cni(netlab.Bridge)
	for _, pod := range []string{"web", "launcher"} {
		if err := cni.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	addr := podAddress(1)
	l.ports(2)
	l.announce("web", addr)
	l.evidence(addr, "web", "ASSIGNED eth0", "ANNOUNCED")
	// A virtual machine, bridged behind the launcher's port, with its own MAC and kernel. It has
	// been given an address that the pod has.
	l.sh("ip -n launcher link add br0 type bridge", "ip -n launcher link set br0 up", "ip -n launcher addr flush dev eth0",
		"ip -n launcher link set eth0 master br0",
		"ip netns add guest", "ip -n launcher link add tap0 type veth peer name tap1", "ip -n launcher link set tap0 master br0",
		"ip -n launcher link set tap1 up", "ip -n launcher link add link tap1 name eth0 netns guest type macvlan mode bridge",
		"ip -n launcher link set tap0 up", "ip -n guest link set eth0 address 02:00:00:00:00:06", "ip -n guest link set eth0 up")
	l.assign("guest", addr+"/16")
	l.ask("guest", addr, "10.244.0.77")
	wait.Until(t, addr+" to be confirmed", func() bool {
		l.sh("ip -n guest neigh flush dev eth0")
		l.ask("guest", addr, "10.244.0.77")
		return inState(addr, ipwitnessv1.Conflict_CONFIRMED)(l.watch.all())
	})
	l.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-and-wire", "default/launcher | default/web", "NODE node1",
		"pod default/web", "pod default/launcher")
	l.row("T6-guest", addr, "assigned-and-wire")
}

func TestT11TunnelAddressThatAPodHas(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	l.lan("192.0.2.1/24")
	cni := l.cni(netlab.PTP)
	if err := cni.Add("web"); err != nil {
		t.Fatal(err)
	}
	addr := podAddress(1)
	l.awaitOwners(addr, 1)
	l.sh("ip link add vxlan.calico type vxlan id 4096 dstport 4789 dev eth0 local 192.0.2.1 nolearning",
		"ip addr add "+addr+"/32 dev vxlan.calico", "ip link set vxlan.calico up")
	l.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/web | node1", "NODE node1",
		"node node1 itself (vxlan.calico)", "pod default/web")
	l.row("T11", addr, "assigned-twice")
}

func TestT11BridgeAddressThatAPodHas(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	cni := l.cni(netlab.Bridge)
	if err := cni.Add("web"); err != nil {
		t.Fatal(err)
	}
	l.awaitOwners("10.244.0.1", 1)
	l.sh("ip -n web addr add 10.244.0.1/16 dev eth0")
	l.wantConflict("10.244.0.1", ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/web | node1", "NODE node1",
		"node node1 itself (cni0)", "pod default/web")
	l.row("T11-bridge", "10.244.0.1", "assigned-twice")
}

func TestT12IPv6DuplicateThatTheKernelDetects(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add fd00:10:244::1/64 dev cni0 nodad")
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		l.sh(fmt.Sprintf("ip link set v%s master cni0", pod))
		l.sysctl(pod, "net/ipv6/conf/eth0/accept_dad=1")
	}
	l.bridged(2)
	const addr = "fd00:10:244::7"
	l.assign("a", addr+"/64")
	l.awaitOwners(addr, 1)
	l.sh("ip -n b addr add " + addr + "/64 dev eth0")
	wait.Until(t, "the kernel of b to find the duplicate", func() bool {
		out, err := l.Run("ip -n b -6 addr show dev eth0 dadfailed")
		return err == nil && strings.Contains(out, addr)
	})
	l.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "dad-failed", "a | b", "NODE node1",
		"network namespace a", "network namespace b")
	// A request during duplicate address detection is answered to all nodes (RFC 4861, section
	// 7.2.4).
	l.evidence(addr, "a", "ASSIGNED", "ANNOUNCED va")
	l.evidence(addr, "b", "DAD_FAILED")
	l.row("T12", addr, "dad-failed")
}

func TestT14TwoNetworksWithOneRange(t *testing.T) {
	t.Parallel()
	l := newRow(t)
	for i, name := range []string{"web", "db"} {
		network := strings.NewReplacer("cbr0", fmt.Sprint("net", i), "cni0", fmt.Sprint("cni", i)).Replace(netlab.Bridge)
		if err := l.cni(network).Add(name); err != nil {
			t.Fatal(err)
		}
	}
	addr := podAddress(1)
	l.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/db | default/web", "NODE node1",
		"pod default/web", "pod default/db")
	l.ports(2)
	for _, pod := range []string{"web", "db"} {
		l.announce(pod, addr)
		l.evidence(addr, pod, "ASSIGNED eth0", "ANNOUNCED")
	}
	l.row("T14", addr, "assigned-twice")
}

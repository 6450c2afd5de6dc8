package tests

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/situations"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// The tests called TestDevice… need devices that not every kernel has. A test is skipped if its
// device is missing, but never under `make test-kernels`, which boots a kernel that has all of
// them.

// probes are the commands that create a device of each kind, called probe, on a device called
// lower.
var probes = map[string][]string{
	"bond":   {"ip link add name probe type bond"},
	"dummy":  {"ip link add name probe type dummy"},
	"ipvlan": {"ip link add name probe link lower type ipvlan"},
	"tap":    {"ip tuntap add dev probe mode tap"},
	"vlan":   {"ip link add name probe link lower type vlan id 9"},
	"vrf":    {"ip link add name probe type vrf table 9"},
	"netkit": {"ip link add name probe type netkit"},
	"bridge that filters VLANs": {
		"ip link add name probe type bridge vlan_filtering 1", "bridge vlan add dev probe vid 9 self",
	},
}

// newDeviceLab is like newLab, but skips the test if the kernel lacks one of the kinds of devices.
func newDeviceLab(t *testing.T, kinds ...string) *lab {
	t.Helper()
	h := newHost(t)
	l := &lab{Host: h, t: t}
	for _, kind := range kinds {
		l.sh("ip link add name lower type veth peer name lowerpeer")
		for _, line := range probes[kind] {
			if _, err := l.Run("%s", line); err != nil {
				lacks(t, kind, err)
			}
		}
		l.sh("ip link del probe", "ip link del lower")
	}
	return startLab(t, h)
}

// lacks skips or fails a test because the kernel lacks a kind of device.
func lacks(t *testing.T, kind string, err error) {
	t.Helper()
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	text := fmt.Sprintf("Linux %s has no %s: make test-kernels has a kernel with it (%v)", strings.TrimSpace(string(kernel)), kind, err)
	if os.Getenv("IPWITNESS_KERNEL_MATRIX") != "" {
		t.Fatal(text)
	}
	t.Skip(text)
}

// outside creates a switch, with a cable from each of its ports to the host's interface of the same
// name.
func (l *lab) outside(cables ...string) *lab {
	l.t.Helper()
	out := &lab{Host: newHost(l.t), t: l.t}
	out.sh("ip link add switch type bridge", "ip link set switch up")
	for _, name := range cables {
		if err := l.Cable(name, out.Host, name); err != nil {
			l.t.Fatal(err)
		}
		out.sh(fmt.Sprintf("ip link set %s master switch", name))
	}
	return out
}

// externalMAC is the MAC of a machine outside the host.
var externalMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x99}

// claim returns a gratuitous ARP frame of the external machine, with VLAN tags in order from the outermost.
func claim(addr string, vlans ...uint16) []byte {
	a := netip.MustParseAddr(addr)
	f := netlab.ARP(1, externalMAC, a, a)
	for _, vid := range slices.Backward(vlans) {
		f = slices.Insert(f, 12, 0x81, 0x00, byte(vid>>8), byte(vid))
	}
	return f
}

// from sends frames on an interface of a host.
func (l *lab) from(ifname string, frames ...[]byte) {
	l.t.Helper()
	if err := l.Do(func() error { return netlab.Send(ifname, frames...) }); err != nil {
		l.t.Fatal(err)
	}
}

// awaitScopes waits until the owners of an address have exactly these scopes, each given as KIND
// NAME, in order.
func (l *lab) awaitScopes(addr string, want ...string) {
	l.t.Helper()
	var got []string
	defer func() {
		if l.t.Failed() {
			l.t.Logf("scopes of %s: got %q, want %q", addr, got, want)
		}
	}()
	wait.Until(l.t, fmt.Sprintf("%s to be in the scopes %q", addr, want), func() bool {
		got = nil
		for _, o := range l.owners("?address=" + addr) {
			if o.GetExcluded() == "" && o.GetState() == ipwitnessv1.Owner_LIVE {
				got = append(got, fmt.Sprint(o.GetScope().GetKind(), " ", o.GetScope().GetName()))
			}
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

// awaitConflict waits until a conflict is confirmed in a scope, given as KIND NAME. It calls again
// repeatedly to keep the conflict alive.
func (l *lab) awaitConflict(addr, scope, rule string, again func()) *ipwitnessv1.Conflict {
	l.t.Helper()
	var found *ipwitnessv1.Conflict
	defer func() {
		if l.t.Failed() {
			l.t.Logf("owners of %s: %v\nconflicts: %v", addr, l.owners("?address="+addr), l.watch.find(addr))
		}
	}()
	wait.Until(l.t, fmt.Sprintf("%s to be confirmed in %s", addr, scope), func() bool {
		if again != nil {
			again()
		}
		for _, c := range l.watch.find(addr) {
			if c.GetState() == ipwitnessv1.Conflict_CONFIRMED && fmt.Sprint(c.GetScope().GetKind(), " ", c.GetScope().GetName()) == scope {
				found = c
			}
		}
		return found != nil
	})
	if found.GetRule() != rule {
		l.t.Errorf("rule for %s: got %s, want %s", addr, found.GetRule(), rule)
	}
	return found
}

// awaitNoConflict waits until all conflicts of an address are resolved.
func (l *lab) awaitNoConflict(addr string) {
	l.t.Helper()
	l.watch.await(addr+" to have no conflict", func([]*ipwitnessv1.Conflict) bool {
		return !slices.ContainsFunc(l.watch.find(addr), func(c *ipwitnessv1.Conflict) bool {
			return c.GetState() != ipwitnessv1.Conflict_RESOLVED
		})
	})
}

// evidenceBy waits until there is evidence of a kind for an address on an interface of the node.
func (l *lab) evidenceBy(addr string, kind ipwitnessv1.Evidence_Kind, ifname string) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprintf("%s to be witnessed as %s by %s", addr, kind, ifname), func() bool {
		return slices.ContainsFunc(l.owners("?address="+addr), func(o *ipwitnessv1.Owner) bool {
			return slices.ContainsFunc(o.GetEvidence(), func(e *ipwitnessv1.Evidence) bool {
				return e.GetKind() == kind && e.GetWitness() == "node1/"+ifname
			})
		})
	})
}

func TestDeviceBridgeWithVLANsIsALinkForEachVLAN(t *testing.T) {
	t.Parallel()
	l := newDeviceLab(t, "bridge that filters VLANs", "vlan")
	l.sh("ip link add br0 type bridge vlan_filtering 1", "ip link set br0 up")
	for pod, vid := range map[string]int{"a": 10, "b": 20} {
		l.pod(pod)
		l.sh(fmt.Sprintf("ip link set v%s master br0", pod), fmt.Sprintf("bridge vlan add dev v%s vid %d pvid untagged", pod, vid))
		l.assign(pod, "10.0.0.5/24")
	}
	l.awaitScopes("10.0.0.5", "LINK node1/br0.10", "LINK node1/br0.20")
	l.wantOnlyPlanted()
	if c := l.watch.find("10.0.0.5"); slices.ContainsFunc(c, func(c *ipwitnessv1.Conflict) bool { return c.GetConfirmedAt() != nil }) {
		t.Errorf("one address in two VLANs: got %v, want no conflict", c)
	}
	situations.WantApplied(t, l.explain("10.0.0.5"), "different-links")

	// One of the ports is moved to the other's VLAN, and back.
	l.sh("bridge vlan add dev vb vid 10 pvid untagged")
	c := l.awaitConflict("10.0.0.5", "LINK node1/br0.10", "assigned-twice", nil)
	if got, want := ownerNames(c), "a | b"; got != want {
		t.Errorf("owners: got %s, want %s", got, want)
	}
	l.sh("bridge vlan add dev vb vid 20 pvid untagged")
	l.awaitNoConflict("10.0.0.5")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.10", "LINK node1/br0.20")

	// A port without a VLAN for untagged frames drops them.
	l.sh("bridge vlan del dev vb vid 20")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.10", "LINK node1/vb")
	l.sh("bridge vlan add dev vb vid 20 pvid untagged")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.10", "LINK node1/br0.20")

	// The node has an interface in VLAN 10, and so routes for that VLAN.
	l.sh("ip link add br0.10 link br0 type vlan id 10", "bridge vlan add dev br0 vid 10 self", "ip link set br0.10 up",
		"ip addr add 10.0.0.1/24 dev br0.10")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.20", "NODE node1")
	l.awaitScopes("10.0.0.1", "NODE node1")
	l.sh("ip link del br0.10")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.10", "LINK node1/br0.20")

	// The same with an address of the bridge itself, and with a veth into the bridge; both are
	// moved between VLANs.
	l.sh("ip addr add 10.0.0.1/24 dev br0", "bridge vlan add dev br0 vid 10 pvid untagged self")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.20", "NODE node1")
	l.sh("bridge vlan add dev br0 vid 20 pvid untagged self")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.10", "NODE node1")
	l.sh("ip addr del 10.0.0.1/24 dev br0", "ip link add leg type veth peer name legport", "ip link set leg up",
		"ip link set legport master br0", "ip link set legport up", "ip addr add 10.0.0.1/24 dev leg",
		"bridge vlan add dev legport vid 20 pvid untagged")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.10", "NODE node1")
	l.sh("bridge vlan add dev legport vid 10 pvid untagged")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.20", "NODE node1")
	l.sh("ip link del leg")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.10", "LINK node1/br0.20")

	// VLAN filtering is turned off, and on again.
	l.sh("ip link set br0 type bridge vlan_filtering 0")
	l.awaitConflict("10.0.0.5", "LINK node1/br0", "assigned-twice", nil)
	l.sh("ip link set br0 type bridge vlan_filtering 1")
	l.awaitNoConflict("10.0.0.5")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.10", "LINK node1/br0.20")
}

func TestDeviceBridgeGivesItsPortsAnotherDefaultVLAN(t *testing.T) {
	t.Parallel()
	l := newDeviceLab(t, "bridge that filters VLANs")
	l.sh("ip link add br0 type bridge vlan_filtering 1", "ip link set br0 up")
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		l.sh(fmt.Sprintf("ip link set v%s master br0", pod))
		l.assign(pod, "10.0.0.5/24")
	}
	l.awaitConflict("10.0.0.5", "LINK node1/br0.1", "assigned-twice", nil)
	l.sh("bridge vlan add dev vb vid 30 pvid untagged")
	l.awaitNoConflict("10.0.0.5")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.1", "LINK node1/br0.30")

	// Ports with the default VLAN follow changes of the default, also to no VLAN.
	l.sh("ip link set br0 type bridge vlan_default_pvid 40")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.30", "LINK node1/br0.40")
	l.sh("ip link set br0 type bridge vlan_default_pvid 0")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.30", "LINK node1/va")

	// Without a default, a new port has no VLAN. Setting a default gives one to all ports.
	l.pod("c")
	l.sh("ip link set vc master br0")
	l.assign("c", "10.0.0.5/24")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.30", "LINK node1/va", "LINK node1/vc")
	l.sh("ip link set br0 type bridge vlan_default_pvid 50")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.50", "LINK node1/br0.50", "LINK node1/br0.50")
	l.sh("bridge vlan add dev vb vid 30 pvid untagged", "ip link set vc nomaster", "ip link set vc master br0")
	l.awaitScopes("10.0.0.5", "LINK node1/br0.30", "LINK node1/br0.50", "LINK node1/br0.50")
	l.sh("ip netns del c")
	l.awaitNoConflict("10.0.0.5")

	// Tagged frames belong to the link of their VLAN.
	l.assign("b", "10.0.0.7/24")
	l.sh("bridge vlan add dev va vid 30")
	p, err := l.Pod("a")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	l.awaitConflict("10.0.0.7", "LINK node1/br0.30", "assigned-and-wire", func() {
		if err := p.Do(func() error { return netlab.Send("eth0", claim("10.0.0.7", 30)) }); err != nil {
			t.Fatal(err)
		}
	})
}

// One VXLAN device has the frames of many networks, which a bridge tells apart by their tunnels.
func TestDeviceVXLANOfManyNetworksIsALinkForEachVLAN(t *testing.T) {
	t.Parallel()
	const shared, rival = "10.1.0.5", "10.1.0.77"
	l := newDeviceLab(t, "bridge that filters VLANs")
	out := l.outside("eth0")
	out.sh("ip addr add 192.0.2.9/24 dev switch")
	l.sh("ip link set eth0 up", "ip addr add 192.0.2.1/24 dev eth0",
		"ip link add br0 type bridge vlan_filtering 1 vlan_default_pvid 0", "ip link set br0 up",
		"ip link add vx0 type vxlan external dstport 4789 local 192.0.2.1", "ip link set vx0 master br0 up", "bridge link set dev vx0 vlan_tunnel on")
	for pod, vid := range map[string]int{"a": 10, "b": 20} {
		vni := 10000 + vid
		l.sh(fmt.Sprintf("bridge vlan add dev vx0 vid %d", vid), fmt.Sprintf("bridge vlan add dev vx0 vid %d tunnel_info id %d", vid, vni))
		l.pod(pod)
		l.sh(fmt.Sprintf("ip link set v%s master br0", pod), fmt.Sprintf("bridge vlan add dev v%s vid %d pvid untagged", pod, vid))
		out.sh(fmt.Sprintf("ip link add vx%d type vxlan id %d dstport 4789 local 192.0.2.9 remote 192.0.2.1", vid, vni), fmt.Sprintf("ip link set vx%d up", vid))
	}
	l.assign("b", shared+"/24", rival+"/24")
	l.ports(4)
	l.awaitScopes(rival, "LINK node1/br0.20")

	// The address of a pod in the network of another one is a different one.
	talks(t, func() { out.from("vx10", claim(shared), claim(rival)) })
	l.awaitScopes(shared, "LINK node1/br0.10", "LINK node1/br0.20")
	l.wantOnlyPlanted()
	if c := append(l.watch.find(shared), l.watch.find(rival)...); len(c) != 0 {
		t.Errorf("one address in two networks: got %v, want no conflict", c)
	}
	l.awaitConflict(rival, "LINK node1/br0.20", "assigned-and-wire", func() { out.from("vx20", claim(rival)) })

	// The bridge drops the frames of a tunnel without a VLAN.
	l.sh("bridge vlan del dev vx0 vid 10 tunnel_info id 10010")
	l.awaitScopes(shared, "LINK node1/br0.20")
}

// Nothing tells the frames of a VXLAN device of many networks apart if it is no port of a bridge that does.
func TestVXLANWhoseNetworksNothingTellsApart(t *testing.T) {
	t.Parallel()
	const addr = "10.1.0.9"
	l := newLab(t)
	out := l.outside("eth0")
	out.sh("ip addr add 192.0.2.9/24 dev switch")
	l.sh("ip link set eth0 up", "ip addr add 192.0.2.1/24 dev eth0", "ip link add vx0 type vxlan external dstport 4789 local 192.0.2.1", "ip link set vx0 up")
	for _, vni := range []int{10, 20} {
		out.sh(fmt.Sprintf("ip link add vx%d type vxlan id %d dstport 4789 local 192.0.2.9 remote 192.0.2.1", vni, vni), fmt.Sprintf("ip link set vx%d up", vni))
	}
	l.ports(2)
	talks(t, func() {
		out.from("vx10", claim(addr))
		out.from("vx20", claim(addr))
	})
	wait.Until(t, "a problem of the node about vx0", func() bool {
		return slices.ContainsFunc(l.node().GetProblems(), func(p string) bool { return strings.Contains(p, "vx0 and are not told apart") })
	})
	l.wantOnlyPlanted()
	if c := l.watch.find(addr); len(c) != 0 {
		t.Errorf("one address in two networks that nothing tells apart: got %v, want no conflict", c)
	}
}

func TestDeviceVLANOfTheUplink(t *testing.T) {
	t.Parallel()
	l := newDeviceLab(t, "vlan")
	out := l.outside("eth0")
	l.sh("ip link set eth0 up", "ip addr add 192.0.2.1/24 dev eth0",
		"ip link add eth0.10 link eth0 type vlan id 10", "ip link set eth0.10 up", "ip addr add 203.0.113.1/24 dev eth0.10")
	l.ports(1)
	l.awaitScopes("203.0.113.1", "NODE node1")

	// The same address on another VLAN is a different one.
	out.from("eth0", claim("203.0.113.1"), claim("203.0.113.1", 20), claim("203.0.113.1", 10, 10))
	l.evidenceBy("203.0.113.1", ipwitnessv1.Evidence_ANNOUNCED, "eth0")
	l.wantOnlyPlanted()
	if c := l.watch.find("203.0.113.1"); len(c) != 0 {
		t.Errorf("one address on two VLANs of the uplink: got %v, want no conflict", c)
	}
	situations.WantApplied(t, l.explain("203.0.113.1"), "different-links")
	l.awaitConflict("203.0.113.1", "LINK node1/eth0.10", "assigned-and-wire", func() { out.from("eth0", claim("203.0.113.1", 10)) })

	// A pod has a VLAN device on the node's uplink.
	l.sh("ip netns add web", "ip link add net1 link eth0 netns web type vlan id 30", "ip -n web link set net1 up",
		"ip -n web addr add 10.30.0.5/24 dev net1")
	l.awaitScopes("10.30.0.5", "LINK node1/eth0.30")
	l.awaitConflict("10.30.0.5", "LINK node1/eth0.30", "assigned-and-wire", func() { out.from("eth0", claim("10.30.0.5", 30)) })

	// Another pod has a macvlan on a VLAN device of the node.
	l.sh("ip netns add db", "ip link add net1 link eth0.10 netns db type macvlan mode bridge", "ip -n db link set net1 up",
		"ip -n db addr add 203.0.113.5/24 dev net1")
	l.awaitScopes("203.0.113.5", "LINK node1/eth0.10")
	l.awaitConflict("203.0.113.5", "LINK node1/eth0.10", "assigned-and-wire", func() { out.from("eth0", claim("203.0.113.5", 10)) })
}

func TestDeviceVLANInABridgeJoinsPodsWithMachinesOutside(t *testing.T) {
	t.Parallel()
	l := newDeviceLab(t, "vlan")
	out := l.outside("eth0")
	l.sh("ip link set eth0 up", "ip addr add 192.0.2.1/24 dev eth0",
		"ip link add eth0.30 link eth0 type vlan id 30", "ip link set eth0.30 up",
		"ip link add br30 type bridge", "ip link set br30 up", "ip link set eth0.30 master br30")
	l.pod("web")
	l.sh("ip link set vweb master br30")
	l.assign("web", "10.30.0.5/24")
	l.ports(2)
	l.awaitScopes("10.30.0.5", "LINK node1/br30")
	out.from("eth0", claim("10.30.0.5"), claim("10.30.0.5", 31))
	l.evidenceBy("10.30.0.5", ipwitnessv1.Evidence_ANNOUNCED, "eth0")
	l.wantOnlyPlanted()
	if c := l.watch.find("10.30.0.5"); len(c) != 0 {
		t.Errorf("the address on another VLAN: got %v, want no conflict", c)
	}
	l.awaitConflict("10.30.0.5", "LINK node1/br30", "assigned-and-wire", func() { out.from("eth0", claim("10.30.0.5", 30)) })

	// The VLAN device leaves the bridge, and frames seen on it no longer conflict with the pod.
	l.sh("ip link set eth0.30 nomaster")
	l.awaitNoConflict("10.30.0.5")
}

func TestDeviceBondFailsOver(t *testing.T) {
	t.Parallel()
	l := newDeviceLab(t, "bond", "vlan")
	out := l.outside("eth0", "eth1")
	// Each port keeps its MAC, and the bond takes the MAC of the active port.
	l.sh("ip link add bond0 type bond mode active-backup fail_over_mac active miimon 100",
		"ip link set eth0 down", "ip link set eth1 down", // a bond accepts only ports that are down
		"ip link set eth0 master bond0", "ip link set eth1 master bond0", "ip link set bond0 up", "ip addr add 192.0.2.1/24 dev bond0")
	l.ports(2)
	l.awaitScopes("192.0.2.1", "NODE node1")
	// After a failover the new active port announces the address, and the other port receives the
	// announcement.
	for _, port := range [][2]string{{"eth1", "eth0"}, {"eth0", "eth1"}} {
		wait.Until(t, "the bond to fail over to "+port[0], func() bool {
			l.sh("ip link set bond0 type bond active_slave " + port[0])
			got, err := l.Run("ip -d link show bond0")
			return err == nil && strings.Contains(got, "active_slave "+port[0])
		})
		l.evidenceBy("192.0.2.1", ipwitnessv1.Evidence_ANNOUNCED, port[1])
	}
	l.wantOnlyPlanted()
	if c := l.watch.find("192.0.2.1"); len(c) != 0 {
		t.Errorf("fail-over: got %v, want no conflict", c)
	}
	l.awaitOwners("192.0.2.1", 1)
	l.awaitConflict("192.0.2.1", "LINK node1/bond0", "assigned-and-wire", func() { out.from("eth1", claim("192.0.2.1")) })
	// One pod is on the bond, and another one is on a VLAN of the bond.
	l.sh("ip link add bond0.40 link bond0 type vlan id 40", "ip link set bond0.40 up")
	for pod, on := range map[string]string{"a": "bond0", "b": "bond0.40"} {
		l.sh("ip netns add "+pod, fmt.Sprintf("ip link add net1 link %s netns %s type macvlan mode bridge", on, pod),
			fmt.Sprintf("ip -n %s link set net1 up", pod), fmt.Sprintf("ip -n %s addr add 192.0.2.5/24 dev net1", pod))
	}
	l.awaitScopes("192.0.2.5", "LINK node1/bond0", "LINK node1/bond0.40")
	l.awaitConflict("192.0.2.5", "LINK node1/bond0.40", "assigned-and-wire", func() { out.from("eth0", claim("192.0.2.5", 40)) })
}

func TestDeviceDummyAddressesMakeNoOwner(t *testing.T) {
	t.Parallel()
	l := newDeviceLab(t, "dummy")
	l.sh("ip link add name kube-ipvs0 type dummy", "ip addr add 10.96.0.1/32 dev kube-ipvs0")
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		l.sh(fmt.Sprintf("ip -n %s link add name dummy0 type dummy", pod), fmt.Sprintf("ip -n %s link set dummy0 up", pod),
			fmt.Sprintf("ip -n %s addr add 10.96.0.1/32 dev dummy0", pod))
	}
	l.wantOnlyPlanted()
	l.awaitOwners("10.96.0.1", 0)
	if c := l.watch.find("10.96.0.1"); len(c) != 0 {
		t.Errorf("service address on dummy devices: got %v, want no conflict", c)
	}
	situations.WantApplied(t, l.explain("10.96.0.1"), "loopback-or-dummy")
}

func TestDevicePassthruHasTheLinkLocalAddressOfItsLowerDevice(t *testing.T) {
	t.Parallel()
	l := newDeviceLab(t)
	l.outside("eth0")
	l.sh("ip link set eth0 down", "ip link set eth0 address 92:54:00:aa:bb:01", "ip link set eth0 up", "ip netns add guest",
		"ip link add net1 link eth0 netns guest type macvlan mode passthru", "ip -n guest link set net1 up")
	const addr = "fe80::9054:ff:feaa:bb01"
	l.awaitOwner(addr, "guest")
	l.wantOnlyPlanted()
	l.wantNone(addr)
	situations.WantApplied(t, l.explain(addr), "passthru")
	l.sh("ip addr add fe80::1/64 dev eth0", "ip -n guest addr add fe80::1/64 dev net1") // set twice by a person
	l.awaitConflict("fe80::1", "LINK node1/eth0", "assigned-twice", nil)
}

func TestDeviceIPVLANPodsOfOneUplink(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"l2", "l3"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := newDeviceLab(t, "ipvlan")
			out := l.outside("eth0", "eth1")
			l.sh("ip link set eth0 up", "ip link set eth1 up", "ip addr add 192.0.2.1/24 dev eth0")
			for i, pod := range []string{"a", "b", "c"} {
				l.sh("ip netns add "+pod, fmt.Sprintf("ip link add net1 link eth0 netns %s type ipvlan mode %s", pod, mode),
					fmt.Sprintf("ip -n %s link set net1 up", pod), fmt.Sprintf("ip -n %s addr add 192.0.2.%d/24 dev net1", pod, 101+i))
			}
			l.ports(2)
			for i := range 3 {
				l.awaitScopes(fmt.Sprintf("192.0.2.%d", 101+i), "LINK node1/eth0")
			}
			// The kernel prevents duplicates between the children of one parent.
			if text, err := l.Run("ip -n b addr add 192.0.2.101/24 dev net1"); err == nil {
				t.Errorf("a second child with one address: the kernel took it: %s", text)
			}
			if mode == "l2" {
				// Three addresses with one MAC are announced, and the announcements come back by
				// the other cable.
				for i, pod := range []string{"a", "b", "c"} {
					l.shout(pod, "net1", fmt.Sprintf("192.0.2.%d", 101+i))
					l.evidenceBy(fmt.Sprintf("192.0.2.%d", 101+i), ipwitnessv1.Evidence_ANNOUNCED, "eth1")
				}
			}
			l.wantOnlyPlanted()
			for i := range 3 {
				addr := fmt.Sprintf("192.0.2.%d", 101+i)
				if c := l.watch.find(addr); len(c) != 0 {
					t.Errorf("addresses on one MAC: got %v, want no conflict", c)
				}
				l.awaitOwners(addr, 1)
			}
			// The kernel does not prevent duplicates of the parent's address or of a machine
			// outside.
			l.sh("ip -n b addr add 192.0.2.1/24 dev net1")
			l.awaitConflict("192.0.2.1", "LINK node1/eth0", "assigned-twice", nil)
			l.awaitConflict("192.0.2.101", "LINK node1/eth0", "assigned-and-wire", func() { out.from("eth0", claim("192.0.2.101")) })
		})
	}
}

// shout announces an address on an interface of a pod, with the MAC of that interface.
func (l *lab) shout(pod, ifname, addr string) {
	l.t.Helper()
	p, err := l.Pod(pod)
	if err != nil {
		l.t.Fatal(err)
	}
	defer p.Close()
	err = p.Do(func() error {
		i, err := net.InterfaceByName(ifname)
		if err != nil {
			return err
		}
		a := netip.MustParseAddr(addr)
		return netlab.Send(ifname, netlab.ARP(1, i.HardwareAddr, a, a))
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

func TestDeviceVRFsAreNodesOfTheirOwn(t *testing.T) {
	t.Parallel()
	l := newDeviceLab(t, "vrf")
	for i, vrf := range []string{"blue", "red"} {
		l.sh(fmt.Sprintf("ip link add %s type vrf table %d", vrf, 10+i), fmt.Sprintf("ip link set %s up", vrf))
		l.pod("in" + vrf)
		l.sh(fmt.Sprintf("ip link set vin%s master %s", vrf, vrf))
		l.assign("in"+vrf, "10.0.0.5/32")
	}
	l.awaitScopes("10.0.0.5", "NODE node1/blue", "NODE node1/red")
	l.wantOnlyPlanted()
	if c := l.watch.find("10.0.0.5"); slices.ContainsFunc(c, func(c *ipwitnessv1.Conflict) bool { return c.GetConfirmedAt() != nil }) {
		t.Errorf("one address in two VRFs: got %v, want no conflict", c)
	}
	l.sh("ip link set vinblue master red")
	c := l.awaitConflict("10.0.0.5", "NODE node1/red", "assigned-twice", nil)
	if got, want := ownerNames(c), "inblue | inred"; got != want {
		t.Errorf("owners: got %s, want %s", got, want)
	}
	// The node's own address in a VRF, and on a bridge in a VRF.
	l.sh("ip link add br0 type bridge", "ip link set br0 master blue", "ip link set br0 up", "ip addr add 10.1.0.1/24 dev br0")
	l.awaitScopes("10.1.0.1", "NODE node1/blue")
	l.pod("c")
	l.sh("ip link set vc master br0")
	l.assign("c", "10.1.0.1/24")
	l.awaitConflict("10.1.0.1", "NODE node1/blue", "assigned-twice", nil)
}

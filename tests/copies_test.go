package tests

import (
	"fmt"
	"testing"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// clientID is a DHCP option of udhcpc: an identifier as systemd-networkd derives it from a machine-id.
const clientID = "-x 0x3d:ff00000000000200ab115e1f2a3b4c"

// Incident 54, aws/eks-anywhere#940: machines that were cloned with their machine-id are one client for the DHCP server.
func TestIncidentMachinesWithOneMachineIDGetOneLease(t *testing.T) {
	t.Parallel()
	n := newDHCPNode(t)
	n.dnsmasq("dhcp-range=10.9.0.15,10.9.0.16,1h")
	i := n.incident(54)
	i.copied(n, clientMAC, fixedMAC, clientID+"5d", clientID+"5d")
	i.conflicted("10.9.0.15", "dhcp-client-identity")
	n.wantOnlyPlanted("10.9.0.15")
	carried := n.carry(i.conflict.GetRemedy(), "copy on node1 is the copy", map[string]func(){
		"Give the DHCP client":              func() { n.sh("ip -n copy addr flush dev eth0") },
		"so that it requests another lease": func() { n.requestAs("copy", clientID+"77") },
	})
	n.awaitOwner("10.9.0.16", "copy")
	i.remedied(carried...)
}

// Incident 55, AdaptiveScale/lxdui#266: a container was copied with its MAC, which is all that dnsmasq knows of it.
func TestIncidentACopiedContainerKeepsItsMAC(t *testing.T) {
	t.Parallel()
	n := newDHCPNode(t)
	n.dnsmasq("dhcp-range=10.9.0.15,10.9.0.16,1h")
	i := n.incident(55)
	i.copied(n, clientMAC, clientMAC, "-C", "-C")
	i.conflicted("10.9.0.15", "dhcp-client-identity")
	n.wantOnlyPlanted("10.9.0.15")
	carried := n.carry(i.conflict.GetRemedy(), "copy on node1 is the copy", map[string]func(){
		"MAC of its own": func() {
			n.sh("ip -n copy link set eth0 down", "ip -n copy addr flush dev eth0", "ip -n copy link set eth0 address "+fixedMAC, "ip -n copy link set eth0 up")
		},
		"so that it requests another lease": func() { n.requestAs("copy", "-C") },
	})
	n.awaitOwner("10.9.0.16", "copy")
	i.remedied(carried...)
}

// copied has a machine and its copy request one lease.
func (i *incident) copied(n *dhcpNode, mac, copiedMAC, client, copiedClient string) {
	n.t.Helper()
	n.machine("web", mac)
	n.machine("copy", copiedMAC)
	for _, m := range [][2]string{{"web", client}, {"copy", copiedClient}} {
		if got := n.requestAs(m[0], m[1]); got != "10.9.0.15" {
			n.t.Fatalf("dnsmasq leased %s to %s, want 10.9.0.15", got, m[0])
		}
		n.awaitAllocations(1)
	}
}

// Incident 56, kubernetes/kubernetes#32291: a port in hairpin mode returns the solicitations of a pod, whose kernel
// takes them for those of another host.
func TestIncidentAPortReturnsTheSolicitationsOfAPod(t *testing.T) {
	t.Parallel()
	const addr, other = "fd00:7::a", "fd00:7::b"
	l := newLab(t)
	i := l.incident(56)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add fd00:7::1/64 dev cni0 nodad")
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		l.sh("ip link set v"+pod+" master cni0", "bridge link set dev v"+pod+" hairpin on")
		l.sysctl(pod, "net/ipv6/conf/all/enhanced_dad=0", "net/ipv6/conf/eth0/enhanced_dad=0", "net/ipv6/conf/eth0/accept_dad=1")
	}
	l.sysctl("b", "net/ipv6/conf/eth0/enhanced_dad=1", "net/ipv6/conf/all/enhanced_dad=1") // a look-alike
	l.bridged(2)
	l.sh("ip -n b addr add " + other + "/64 dev eth0")
	l.awaitOwner(other, "b")
	l.sh("ip -n a addr add " + addr + "/64 dev eth0")
	i.found("intended-not-observed", addr)
	l.wantOnlyPlanted()
	l.awaitFindings("intended-not-observed " + addr)
	const off = "bridge link set dev va hairpin off"
	l.sh(off, "ip -n a addr del "+addr+"/64 dev eth0", "ip -n a addr add "+addr+"/64 dev eth0")
	l.awaitOwner(addr, "a")
	i.remedied(off)
}

// Incident 57, containernetworking/plugins#718: the DEL of a sandbox failed, and its network namespace stays, without a
// process. A new pod on another node gets its address.
func TestIncidentANamespaceWithoutAProcessKeepsItsAddress(t *testing.T) {
	t.Parallel()
	const addr = "192.0.2.100"
	c := newAggregator(t)
	for k, name := range []string{"node1", "node2"} { // with PIDs of their own, all of which their agents can read
		h, err := netlab.NewMachine(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.Close)
		n := c.addMachine(h, name, k+1)
		n.boot(n.number)
		n.report(c)
	}
	c.awaitNodes(c.nodes...)
	c.shared()
	i := c.incident(57)
	for k, pod := range []string{"old", "new"} {
		n := c.nodes[k]
		add(t, n.macvlan(), pod)
		if pod == "new" {
			n.runs(pod)
		}
		c.awaitOwners(addr, k+1)
	}
	i.conflicted(addr, "leftover-namespace")
	c.wantOnlyPlanted(addr)
	old := &dhcpNode{c.nodes[0]}
	carried := old.carry(i.conflict.GetRemedy(), "it lists none", nil)
	c.awaitOwner(addr, "new")
	i.remedied(carried...)
}

// runs starts a process in a pod, which ends with the test.
func (l *lab) runs(pod string) {
	l.t.Helper()
	cmd := l.Command("ip", "netns", "exec", pod, "sleep", "1000")
	if err := l.Start(cmd); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { end(l.t, "the process in "+pod, cmd, new(netlab.Log)) })
}

// Incident 58, containernetworking/plugins#250: two machines on one LAN have one MAC and different addresses.
func TestIncidentTwoMachinesHaveOneMAC(t *testing.T) {
	t.Parallel()
	spoofers.Store(t.Name(), true)
	c := newCluster(t, 3)
	c.shared()
	i := c.incident(58)
	c.wantOnlyPlanted()
	c.awaitFindings()
	const mac = "52:54:00:aa:bb:cc"
	for _, n := range c.nodes[:2] {
		n.sh("ip link set eth0 address " + mac)
		own := fmt.Sprintf("192.0.2.%d", n.number)
		talks(t, func() { n.announce("/eth0", own) })
	}
	i.found("mac-cloned", "192.0.2.1")
	c.wantConfirmed()
	c.nodes[1].sh("ip link set eth0 address 02:00:00:00:0e:02")
	i.remedied()
}

// Incident 59, linuxkit/linuxkit#1800: a machine was cloned with its address and its MAC.
func TestIncidentAMachineWasClonedWithItsMAC(t *testing.T) {
	t.Parallel()
	const addr = "192.0.2.1"
	c := newCluster(t, 3)
	c.shared()
	i := c.incident(59)
	c.wantOnlyPlanted()
	first, clone := c.nodes[0], c.nodes[1]
	clone.sh("ip link set eth0 address "+first.mac("/eth0"), "ip addr del 192.0.2.2/24 dev eth0", "ip addr add "+addr+"/24 dev eth0")
	talks(t, func() { first.announce("/eth0", addr) })
	talks(t, func() { c.nodes[2].announce("/eth0", "192.0.2.3") })
	silence := talks(t, func() { clone.announce("/eth0", addr) })
	i.conflicted(addr, "cloned-machine")
	silence()
	clone.sh("ip link set eth0 down")
	clone.sh("ip link set eth0 address 02:00:00:00:0e:02", "ip addr flush dev eth0", "ip addr add 192.0.2.2/24 dev eth0", "ip link set eth0 up")
	i.remedied()
}

// Incident 60, BeryJu/gravity#871: several DHCP servers, which do not know the leases of each other, serve one LAN with
// one range.
func TestIncidentTwoDHCPServersHaveOneRange(t *testing.T) {
	t.Parallel()
	const addr = "10.9.0.15"
	c := newCluster(t, 2)
	out := newLAN(t)
	i := c.incident(60)
	var silence func()
	for k, name := range []string{"laptop", "printer"} {
		n := &dhcpNode{c.nodes[k]}
		out.cable(n.lab, "eth0")
		n.sh("ip link add br0 type bridge", "ip link set br0 up", "ip link set eth0 master br0", fmt.Sprintf("ip addr add 10.9.0.%d/24 dev br0", k+1), "mkdir -p /var/lib/misc /etc/dnsmasq.d /run/fakes")
		n.clients()
		n.dnsmasq("dhcp-range=10.9.0.15,10.9.0.16,1h", "dhcp-sequential-ip")
		n.machine(name, []string{clientMAC, fixedMAC}[k])
		n.sh("ip link set eth0 down") // the other server does not hear it
		if got := n.request(name); got != addr {
			t.Fatalf("dnsmasq leased %s, want %s", got, addr)
		}
		n.sh("ip link set eth0 up")
		n.awaitAllocations(uint64(k + 1))
		silence = talks(t, func() { n.announce(name, addr) })
	}
	i.conflicted(addr, "two-dhcp-servers")
	c.wantOnlyPlanted(addr)
	// The second server ends, and its client asks the first one.
	n := &dhcpNode{c.nodes[1]}
	carried := n.carry(i.conflict.GetRemedy(), "node node1) serves this network", map[string]func(){
		"stop the other one": func() {
			if out, err := n.Output(n.Command("sh", "-c", "kill $(cat /run/dnsmasq.pid) && rm /var/lib/misc/dnsmasq.leases")); err != nil {
				t.Fatal(out, err)
			}
		},
		"printer on node2 release its lease": func() {
			silence()
			n.sh("ip -n printer addr flush dev eth0")
			if got := n.request("printer"); got != "10.9.0.16" {
				t.Errorf("the first server leased %s, want the next address", got)
			}
		},
	})
	c.awaitOwner(addr, "laptop")
	i.remedied(carried...)
}

package tests

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

const answered = "answered-by-another"

// Incident 41, kubernetes/kubernetes#127410: the externalIPs of a Service are the address of a node, and
// kube-proxy puts it on a device of the other nodes.
func TestIncidentTheExternalIPOfAServiceIsTheAddressOfANode(t *testing.T) {
	t.Parallel()
	const addr = "192.0.2.2"
	c := newCluster(t, 3)
	c.shared()
	i := c.incident(41)
	c.nodes[2].sysctl("", "net/ipv4/conf/all/arp_ignore=1") // a look-alike: it does not answer
	for _, k := range []int{2, 0} {
		c.nodes[k].sh("ip addr add " + addr + "/32 dev lo")
	}
	c.awaitOwners(addr, 1)
	i.foretold(answered, addr)
	i.found(answered, addr)
	c.wantOnlyPlanted(addr)
	c.awaitFindings(answered + " " + addr) // one, of node1
	const silent = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
	c.nodes[0].sh(silent)
	i.remedied(silent)
	c.awaitFindings()
	// The bridge of an engine in the range of the LAN, with the address of the gateway.
	out := c.nodes[1]
	out.sh("ip link add docker0 type bridge", "ip link set docker0 up", "ip addr add 192.0.2.1/24 dev docker0")
	c.awaitFindings(answered + " 192.0.2.1")
	out.sh("ip addr flush dev docker0", "ip addr add 172.17.0.1/16 dev docker0")
	c.awaitFindings()
}

// Real servers of LVS (direct routing) have the address of their director on a device without ARP.
func TestRealServersHaveTheAddressOfTheirDirectorWithoutARP(t *testing.T) {
	t.Parallel()
	const addr = "192.0.2.50"
	c := newCluster(t, 3)
	c.shared()
	c.nodes[0].sh("ip addr add " + addr + "/32 dev eth0")
	for _, n := range c.nodes[1:] {
		n.sysctl("", "net/ipv4/conf/all/arp_ignore=1", "net/ipv4/conf/all/arp_announce=2")
		n.sh("ip link add vip0 link eth0 type macvlan mode bridge", "ip link set vip0 arp off", "ip link set vip0 up", "ip addr add "+addr+"/32 dev vip0")
	}
	c.awaitOwners(addr, 3)
	c.wantOnlyPlanted()
	c.awaitFindings()
	n := c.nodes[1]
	n.sysctl("", "net/ipv4/conf/all/arp_ignore=0")
	c.awaitFindings(answered + " " + addr)
	n.sysctl("", "net/ipv4/conf/all/arp_ignore=1")
	c.awaitFindings()
	n.sh("ip link set vip0 arp on")
	c.wantActive(addr + " CONFIRMED")
}

// Incident 42, threefoldtech/zos#544: a host with proxy_arp has no route to the hosts of a LAN.
func TestIncidentAProxyAnswersForTheHostsOfItsLAN(t *testing.T) {
	t.Parallel()
	const addr = "192.0.2.2"
	c := newCluster(t, 2)
	c.shared()
	i := c.incident(42)
	n := c.nodes[0]
	n.sysctl("", "net/ipv4/ip_forward=1", "net/ipv4/conf/eth0/proxy_arp=1", "net/ipv4/conf/all/rp_filter=0", "net/ipv4/conf/eth0/rp_filter=0")
	c.wantOnlyPlanted(addr) // its route to the LAN is by the same interface
	c.awaitFindings()
	n.sh("ip link add in0 type veth peer name in1", "ip link set in0 up", "ip link set in1 up", "ip addr add 198.18.0.1/24 dev in0", "ip route add 192.0.2.2/32 via 198.18.0.2")
	i.foretold(answered, addr)
	i.found(answered, addr)
	const off, everywhere = "sysctl -w net/ipv4/conf/eth0/proxy_arp=0", "sysctl -w net/ipv4/conf/all/proxy_arp=0"
	n.sh(off, everywhere)
	i.remedied(off, everywhere)
}

// A node answers as a proxy for single addresses, for IPv6 only with proxy_ndp.
func TestAProxyEntryAnswersForALivingHost(t *testing.T) {
	t.Parallel()
	const addr, addr6 = "192.0.2.2", "2001:db8::2"
	c := newCluster(t, 2)
	c.shared()
	n := c.nodes[0]
	c.nodes[1].sh("ip addr add " + addr6 + "/64 dev eth0 nodad")
	n.sysctl("", "net/ipv4/ip_forward=1", "net/ipv4/conf/all/rp_filter=0", "net/ipv4/conf/eth0/rp_filter=0", "net/ipv6/conf/all/forwarding=1")
	n.sh("ip neigh add proxy "+addr+" dev eth0", "ip neigh add proxy "+addr6+" dev eth0")
	c.wantOnlyPlanted(addr, addr6) // its route to the LAN is by the same interface
	c.awaitFindings()
	n.sysctl("", "net/ipv6/conf/eth0/proxy_ndp=1")
	c.awaitFindings(answered + " " + addr6)
	n.sh("ip link add in0 type veth peer name in1", "ip link set in0 up", "ip link set in1 up", "ip addr add 198.18.0.1/24 dev in0", "ip route add "+addr+"/32 via 198.18.0.2")
	c.awaitFindings(answered+" "+addr, answered+" "+addr6)
	n.sh("ip neigh del proxy "+addr+" dev eth0", "ip neigh del proxy "+addr6+" dev eth0")
	c.awaitFindings()
}

// A VXLAN device answers from its table, in which a pod has the MAC of the time before it moved here.
func TestAVXLANDeviceAnswersFromAnOutdatedTable(t *testing.T) {
	t.Parallel()
	const moved, right = "10.50.0.12", "10.50.0.11"
	l := newLab(t)
	l.outside("eth0")
	l.sh("ip link set eth0 up", "ip addr add 192.0.2.1/24 dev eth0", "ip link add br10 type bridge", "ip link set br10 up",
		"ip link add vx10 type vxlan id 10 dstport 4789 local 192.0.2.1 remote 192.0.2.2 nolearning proxy", "ip link set vx10 master br10 up")
	for pod, addr := range map[string]string{"a": right, "b": moved} {
		l.pod(pod, addr+"/24")
		l.sh("ip link set v" + pod + " master br10")
		l.awaitOwner(addr, pod)
	}
	l.sh("ip neigh add "+right+" lladdr "+l.mac("a")+" dev vx10 nud permanent", "ip neigh add 10.50.0.99 lladdr 02:00:00:00:de:ad dev vx10 nud permanent")
	l.wantOnlyPlanted()
	l.awaitFindings()
	l.sh("ip neigh add " + moved + " lladdr 02:00:00:00:de:ad dev vx10 nud permanent")
	l.awaitFindings(answered + " " + moved)
	l.resolve("a", "eth0", moved)
	l.knows("a", moved, "02:00:00:00:de:ad")
	l.wantConfirmed()
	l.sh("ip neigh del " + moved + " dev vx10")
	l.awaitFindings()
}

// A bridge answers for a neighbour from its table, in which a pod has the MAC of the time before it moved here.
func TestABridgeAnswersFromAnOutdatedTable(t *testing.T) {
	t.Parallel()
	const moved, former = "10.50.0.12", "02:00:00:00:de:ad"
	l := newLab(t)
	l.outside("eth0")
	l.sh("ip link set eth0 up", "ip addr add 192.0.2.1/24 dev eth0", "ip link add br10 type bridge", "ip link set br10 up",
		"ip link add vx10 type vxlan id 10 dstport 4789 local 192.0.2.1 nolearning", "ip link set vx10 master br10 up", "bridge link set dev vx10 learning off neigh_suppress on")
	for pod, addr := range map[string]string{"a": "10.50.0.11", "b": moved} {
		l.pod(pod, addr+"/24")
		l.sh("ip link set v" + pod + " master br10")
		l.awaitOwner(addr, pod)
	}
	l.sh("ip neigh add " + moved + " lladdr " + former + " dev br10 nud noarp")
	l.wantOnlyPlanted()
	l.awaitFindings()
	l.sh("bridge fdb add " + former + " dev vx10 master static")
	l.awaitFindings(answered + " " + moved)
	l.resolve("a", "eth0", moved)
	l.wantConfirmed()
	l.sh("ip neigh del " + moved + " dev br10")
	l.awaitFindings()
}

// Two VPN servers give clients one address of the LAN, as the peer of a point-to-point device, and answer for it there (pppd with
// proxyarp). Nobody on the LAN has it, and no kernel of theirs.
func TestTwoVPNServersGiveTheirClientsOneAddress(t *testing.T) {
	t.Parallel()
	const one, both = "192.0.2.201", "192.0.2.200"
	c := newCluster(t, 3)
	c.shared()
	client := func(n *lab, device, addr string) {
		n.sh("ip tuntap add "+device+" mode tun", "ip addr add 198.51.100.1 peer "+addr+"/32 dev "+device, "ip link set "+device+" up", "ip neigh add proxy "+addr+" dev eth0")
	}
	for _, n := range c.nodes[:2] {
		n.sysctl("", "net/ipv4/ip_forward=1", "net/ipv4/neigh/eth0/proxy_delay=0")
		client(n, "ppp0", both)
	}
	client(c.nodes[0], "ppp1", one)
	asks := func() {
		for _, a := range []string{one, both} {
			c.nodes[2].resolve("", "eth0", a)
		}
	}
	c.awaitFindings()
	talks(t, asks)
	c.awaitFindings("shared-address-answered " + both)
	c.wantOnlyPlanted()
	c.nodes[1].sh("ip neigh del proxy " + both + " dev eth0")
	c.awaitFindings()
}

// Incident 52, openwrt/odhcpd#48: the routes to hosts behind a proxy stay on a node after the hosts have moved.
func TestIncidentAProxyKeepsTheRoutesOfHostsThatMoved(t *testing.T) {
	t.Parallel()
	const addr, addr6 = "192.0.2.50", "2001:db8::50"
	c := newCluster(t, 2)
	c.shared()
	i := c.incident(52)
	for _, n := range c.nodes {
		n.sysctl("", "net/ipv4/ip_forward=1", "net/ipv4/conf/eth0/proxy_arp=1", "net/ipv6/conf/all/forwarding=1", "net/ipv6/conf/eth0/proxy_ndp=1")
	}
	behind := func(n *lab, guest string) {
		n.pod(guest, addr+"/32", addr6+"/128")
		n.sh("ip route add "+addr+"/32 dev v"+guest, "ip -6 route add "+addr6+"/128 dev v"+guest, "ip neigh add proxy "+addr6+" dev eth0")
	}
	from, to := c.nodes[0], c.nodes[1]
	behind(from, "db")
	c.awaitOwner(addr, "db")
	c.wantOnlyPlanted()
	c.awaitFindings()
	from.sh("ip -n db addr flush dev eth0")
	behind(to, "copy")
	c.awaitOwner(addr, "copy")
	i.foretold(answered, addr)
	i.found(answered, addr)
	c.awaitFindings(answered+" "+addr, answered+" "+addr6)
	const off = "ip route del " + addr + " dev vdb"
	from.sh(off)
	i.remedied(off)
	from.sh("ip neigh del proxy " + addr6 + " dev eth0")
	c.awaitFindings()
}

// Incident 53, k3s-io/k3s#588: the range of the pods is that of a LAN of their node, and a host there has the address of a pod.
func TestIncidentTheRangeOfThePodsIsThatOfALANOfTheirNode(t *testing.T) {
	t.Parallel()
	const addr, other = "10.42.0.3", "10.42.0.4"
	l := newLab(t)
	i := l.incident(53)
	out := l.lan("10.42.0.1/24")
	l.sh("ip link add br0 type bridge", "ip link set br0 up", "ip addr add 10.42.0.1/24 dev br0")
	l.pod("web", addr+"/24")
	l.sh("ip link set vweb master br0")
	l.ports(2)
	l.awaitOwner(addr, "web")
	for name, a := range map[string]string{"client": addr, "guest": other} { // of the address of guest, there is no pod
		out.machine(name, "02:00:00:00:00:6"+a[len(a)-1:], a+"/24")
		talks(t, func() { out.announce(name, a) })
	}
	i.found("ranges-overlap", addr)
	l.wantOnlyPlanted()
	l.awaitFindings("ranges-overlap " + addr)
	l.sh("ip link set br0 down", "ip addr flush dev br0", "ip addr add 10.43.0.1/24 dev br0", "ip link set br0 up", "ip -n web addr flush dev eth0")
	l.assign("web", "10.43.0.3/24")
	i.remedied()
	l.awaitFindings()
}

// Incident 43, cilium/cilium#36817: the guest agent of a cloud adds a local route for an alias range, from which
// pods have their addresses.
func TestIncidentALocalRouteTakesThePacketsOfPods(t *testing.T) {
	t.Parallel()
	const bridged, routed = "10.9.0.11", "10.244.1.2"
	l := newLab(t)
	i := l.incident(43)
	l.sh("ip link add br0 type bridge", "ip link set br0 up", "ip addr add 10.9.0.1/24 dev br0")
	l.pod("web", bridged+"/24")
	l.pod("db", routed+"/32")
	l.sh("ip link set vweb master br0", "ip addr add 10.244.1.1/32 dev vdb", "ip route add "+routed+" dev vdb")
	l.awaitOwner(bridged, "web")
	l.awaitOwner(routed, "db")
	// The route of the pod is longer, and wins as long as there is no rule.
	l.sh("ip route add local 10.244.1.0/24 dev br0 proto 66", "ip route add local default dev lo table 100")
	l.wantOnlyPlanted(bridged, routed)
	l.awaitFindings()
	l.sh("ip route add local 10.9.0.8/29 dev br0 proto 66")
	i.foretold(answered, bridged)
	i.found(answered, bridged)
	l.sh("ip rule add from 203.0.113.0/24 lookup 100")
	l.awaitFindings(answered+" "+routed, answered+" "+bridged)
	const off = "ip route flush table all type local exact 10.9.0.8/29 dev br0"
	l.sh(off)
	i.remedied(off)
	l.sh("ip route del local 10.244.1.0/24 dev br0")
	l.awaitFindings()
}

// Incident 51: the range of a node changes, and its bridge and a pod that started before do not.
func TestIncidentANodeKeepsAddressesOfItsFormerRange(t *testing.T) {
	t.Parallel()
	const overlap = "pod-cidr-overlap"
	c := newCluster(t, 2)
	node, other := c.nodes[0], c.nodes[1]
	conf := func(cidr string) string { return strings.Replace(netlab.Bridge, "10.244.0.0/16", cidr, 1) }
	i := c.incident(51)
	add(t, node.cni(conf("10.244.7.0/24")), "early")
	c.awaitOwners("10.244.7.2", 1)
	node.sh("rm -rf /var/lib/cni/networks/cbr0")
	node.cni(conf("10.244.8.0/24"))
	other.cni(conf("10.244.9.0/24")) // a look-alike: a range of its own
	c.wantOnlyPlanted("10.244.7.2")
	c.awaitFindings()
	other.cni(conf("10.244.7.0/24"))
	const common = "10.244.7.2-10.244.7.254"
	i.foretold(overlap, common)
	i.found(overlap, common)
	const end = "ip link del dev cni0"
	node.sh("ip netns del early", end)
	i.remedied(end)
	c.awaitFindings()
}

// What a program on the node sends through a packet socket does not enter any port of the node. If this fails because the
// node sees it, docs/verdicts.md says so no longer.
func TestFramesThatANodeSendsAreNotSeenThere(t *testing.T) {
	t.Parallel()
	const addr = "192.0.2.9"
	l := newLab(t)
	out := l.outside("eth0")
	l.sh("ip link set eth0 up", "ip addr add 192.0.2.1/24 dev eth0")
	l.ports(1)
	out.from("eth0", claim(addr))
	l.awaitOwners(addr, 1)
	a := netip.MustParseAddr(addr)
	for op := range uint16(2) {
		l.from("eth0", netlab.ARP(op+1, net.HardwareAddr{0x02, 0, 0, 0, 0, 0x77}, a, a))
	}
	l.wantOnlyPlanted()
	l.awaitOwners(addr, 1)
}

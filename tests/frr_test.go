package tests

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// frr starts a daemon of FRR on a host with a configuration, and zebra before the first one. Both have
// their files in /run/frr.
func (l *lab) frr(daemon, config string) *exec.Cmd {
	l.t.Helper()
	if _, err := l.Run("test -d /run/frr"); err != nil {
		// They leave crash logs in /var/tmp.
		l.sh("mount -t tmpfs tmpfs /var/tmp", "install -d -o frr -g frr /run/frr")
		l.frrDaemon("zebra", "")
		wait.Until(l.t, "zebra to run", func() bool { _, err := l.Run("test -S /run/frr/zserv.api"); return err == nil })
	}
	return l.frrDaemon(daemon, config)
}

func (l *lab) frrDaemon(name, config string) *exec.Cmd {
	l.t.Helper()
	file := "/run/frr/" + name + ".conf"
	write(l.t, l.Path(file), config)
	l.sh("chown frr:frr " + file)
	cmd := l.Command("/usr/lib/frr/"+name, "--config_file", file, "--vty_port", "0")
	if err := l.Start(cmd); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { ended(cmd, syscall.SIGKILL) })
	return cmd
}

// ended ends a program by a signal, and waits for it.
func ended(cmd *exec.Cmd, by syscall.Signal) {
	_ = cmd.Process.Signal(by)
	_ = cmd.Wait()
}

// virtualRouter is the macvlan device on which FRR's vrrpd expects the virtual address. The vrrpd of a
// backup takes its carrier away, and the address stays.
const virtualRouter = "vrrp4-2-51"

// vrrpd starts FRR's vrrpd on a node. It moves vip, and does not take it back from another node.
func (l *lab) vrrpd() *exec.Cmd {
	l.t.Helper()
	if _, err := l.Run("ip link show " + virtualRouter); err != nil {
		// The kernel of a backup would answer on eth0 for the address that it has on the other device.
		l.sysctl("", "net/ipv4/conf/all/arp_ignore=1")
		l.sh("ip link add "+virtualRouter+" link eth0 address "+vrrp+" type macvlan mode bridge",
			"ip link set "+virtualRouter+" addrgenmode none", "ip addr add "+vip+"/24 dev "+virtualRouter, "ip link set "+virtualRouter+" up")
	}
	return l.frr("vrrpd", fmt.Sprintf(`interface eth0
 vrrp 51 version 3
 vrrp 51 priority %d
 vrrp 51 advertisement-interval 200
 no vrrp 51 preempt
 vrrp 51 ip %s
`, 150-l.number, vip))
}

// masters waits until exactly these nodes are masters: the device with vip has a carrier.
func (c *cluster) masters(want ...*lab) {
	c.t.Helper()
	names := func(nodes []*lab) (list []string) {
		for _, n := range nodes {
			list = append(list, n.name)
		}
		return list
	}
	wait.Until(c.t, fmt.Sprintf("the masters to be %q", names(want)), func() bool {
		var got []*lab
		for _, n := range c.nodes {
			out, err := n.Run("ip -br link show dev " + virtualRouter)
			if err == nil && strings.Contains(out, "LOWER_UP") {
				got = append(got, n)
			}
		}
		return fmt.Sprint(names(got)) == fmt.Sprint(names(want))
	})
}

func TestVRRPOfFRRHandsOverAndIsKilled(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newCluster(t, 2, "--handover-grace", "3s")
	c.shared()
	one, two := c.nodes[0], c.nodes[1]
	holders := func(n *lab) {
		t.Helper()
		c.wantHolders(map[string][]string{vip: {n.name + "/" + n.name}, "192.0.2.1": {"node1/node1"}, "192.0.2.2": {"node2/node2"}})
	}
	first := one.vrrpd()
	c.masters(one)
	c.evidence(vip, "node1", "ASSIGNED "+virtualRouter, "ANNOUNCED node2/eth0")
	second := two.vrrpd()
	c.masters(one)
	// The kernel of the backup has the address as well, on a device that cannot send.
	if out, err := two.Run("ip -br addr show dev " + virtualRouter); err != nil || !strings.Contains(out, vip+"/24") {
		t.Fatalf("addresses of the backup: got %q, %v, want %s", out, err, vip)
	}
	holders(one)
	// Hand-overs in both directions.
	ended(first, syscall.SIGTERM)
	c.masters(two)
	holders(two)
	first = one.vrrpd()
	c.masters(two)
	ended(second, syscall.SIGTERM)
	c.masters(one)
	holders(one)
	two.vrrpd()
	c.wantOnlyPlanted()

	c.awaitProgram("node1", "vrrpd", false)
	c.awaitProgram("node2", "vrrpd", false)
	ended(first, syscall.SIGKILL)
	c.masters(one, two)
	c.wantConflict(vip, confirmed, "split-brain", "node1 | node2", "LINK node1/eth0", "node node1 itself", "node node2 itself")
	c.wantCause(vip, "split-brain")
	wait.Until(t, "the remedy to name the node that keeps the address", func() bool {
		remedy := c.only(vip).GetRemedy()
		return len(remedy) > 1 && len(remedy[0].GetChoice()) == 0
	})
	// The remedy is to start it again, which takes the carrier away. FRR expects the address to stay.
	for _, a := range c.only(vip).GetRemedy() {
		if a.GetNode() != "" || len(a.GetChoice()) > 0 {
			t.Errorf("got the step %v, want none on either node", a)
		}
	}
	one.vrrpd()
	c.masters(two)
	c.watch.await("the conflict to be resolved", inState(vip, ipwitnessv1.Conflict_RESOLVED))
	holders(two)
}

// An address that BGP announces from the loopback devices of several nodes is shared on purpose.
func TestAnycastOfFRROnLoopbackIsNoConflict(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newCluster(t, 2)
	out := c.shared()
	const anycast = "203.0.113.10"
	router := &lab{Host: newHost(t), service: c.service, t: t, name: "router", number: 9}
	out.join(router, "192.0.2.9/24")
	var peers strings.Builder
	for _, n := range c.nodes {
		fmt.Fprintf(&peers, " neighbor 192.0.2.%[1]d remote-as 6500%[1]d\n neighbor 192.0.2.%[1]d timers connect 1\n", n.number)
		n.sh("ip addr add " + anycast + "/32 dev lo")
		n.frr("bgpd", fmt.Sprintf(`router bgp 6500%[1]d
 bgp router-id 192.0.2.%[1]d
 no bgp ebgp-requires-policy
 neighbor 192.0.2.9 remote-as 65009
 neighbor 192.0.2.9 timers connect 1
 address-family ipv4 unicast
  network %[2]s/32
`, n.number, anycast))
	}
	router.frr("bgpd", `router bgp 65009
 bgp router-id 192.0.2.9
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
`+peers.String())
	wait.Until(t, "the router to have two routes", func() bool {
		routes, err := router.Run("ip route show " + anycast)
		return err == nil && strings.Contains(routes, "via 192.0.2.1 ") && strings.Contains(routes, "via 192.0.2.2 ")
	})
	// The kernels of both nodes answer for it on the LAN, too.
	router.sh("ip route add " + anycast + "/32 dev eth0 metric 1")
	for range 2 {
		router.resolve("", "eth0", anycast)
		wait.Until(t, "an answer of a node", func() bool {
			got, err := router.Run("ip neigh show " + anycast)
			return err == nil && strings.Contains(got, "lladdr 02:00:00:00:0e:0")
		})
		c.plant()
	}
	c.wantConfirmed()
	c.wantNone(anycast)
	c.awaitOwners(anycast, 0) // none that counts
	if got := c.owners("?address=" + anycast); len(got) != 2 {
		t.Errorf("got %v, want the nodes", got)
	}
}

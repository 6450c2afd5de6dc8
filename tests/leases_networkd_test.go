package tests

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// networkd runs systemd-networkd for an interface that is configured by DHCP, and returns a function
// that ends it. Its command line begins with prefix, and it has a /sys that is read-only, so that it
// does not wait for udev.
func networkd(t *testing.T, l *lab, device, options string, prefix ...string) (stop func()) {
	t.Helper()
	script := `
		mount -o remount,bind,ro /sys
		mkdir -p /run/systemd/netif/leases /run/systemd/netif/links /run/systemd/netif/lldp /run/systemd/network
		chown -R systemd-network /run/systemd/netif
		printf "[Match]\nName=` + device + `\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\n[DHCPv4]\nClientIdentifier=mac\n` + options + `" > /run/systemd/network/10.network
		exec /lib/systemd/systemd-networkd`
	cmd := l.Command("env", append(prefix, "unshare", "--mount", "--propagation", "private", "sh", "-euc", script)...)
	var log netlab.Log
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Env = append(cmd.Env, "SYSTEMD_LOG_LEVEL=info")
	if err := l.Start(cmd); err != nil {
		t.Fatal(err)
	}
	stop = func() { end(t, "systemd-networkd", cmd, &log) }
	t.Cleanup(stop)
	return stop
}

// end kills a program, and logs its output if the test failed.
func end(t *testing.T, name string, cmd *exec.Cmd, log *netlab.Log) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if t.Failed() {
		t.Logf("%s said:\n%s", name, log.String())
	}
}

// dhcpOutside connects eth0 of a node to a LAN whose DHCP server has no agent, and leases one address.
func dhcpOutside(t *testing.T, n *lab) *lan {
	t.Helper()
	server := &dhcpNode{newLAN(t).lab}
	outside := &lan{lab: server.lab}
	outside.cable(n, "eth0")
	server.sh("ip addr add 10.9.0.1/24 dev br0", "mkdir -p /var/lib/misc /etc/dnsmasq.d /run/fakes")
	server.dnsmasq("dhcp-range=10.9.0.15,10.9.0.15,1h")
	return outside
}

// The DHCP server is elsewhere, and has no agent. The lease on the node shows that the node was given
// its address, and a machine outside was not.
func TestNodeWithADHCPLeaseKeepsItsAddress(t *testing.T) {
	t.Parallel()
	n := newLab(t)
	lan := dhcpOutside(t, n)
	networkd(t, n, "eth0", "")
	n.awaitOwners("10.9.0.15", 1)
	lan.machine("thief", "02:00:00:00:00:99", "10.9.0.15/24")
	n.takes(lan, "thief", "10.9.0.15", "10.9.0.77")
	wait.Until(t, "the lease in the conflict", func() bool { return len(n.only("10.9.0.15").GetAllocations()) == 1 })
	c := n.only("10.9.0.15")
	if al := c.GetAllocations()[0]; al.GetIpam() != "dhcp-client" || al.GetMac() == "" || c.GetCause() != "external-device" {
		t.Errorf("got cause %s, allocation %v, want external-device and the lease of the node", c.GetCause(), al)
	}
	if keeper := c.GetRemedy()[0].GetText(); keeper == "" || len(c.GetRemedy()[0].GetChoice()) != 0 {
		t.Errorf("got remedy %v, want that the node keeps the address", c.GetRemedy())
	}
	n.awaitFindings()
}

// Two nodes were cloned with one identifier, and their DHCP server has no agent. What their clients have recorded tells it.
func TestNodesWithOneClientIdentifierSaySoThemselves(t *testing.T) {
	t.Parallel()
	const addr, id = "10.9.0.15", "ClientIdentifier=duid\nIAID=7\nDUIDType=vendor\nDUIDRawData=00:00:ab:11:f9:2a:c2:77:29:f9:5c:00\n"
	c := newCluster(t, 2)
	lan := dhcpOutside(t, c.nodes[0])
	lan.cable(c.nodes[1], "eth0")
	for _, n := range c.nodes {
		networkd(t, n, "eth0", id)
		c.awaitOwners(addr, n.number)
		talks(t, func() { n.announce("/eth0", addr) })
	}
	wait.Until(t, "the cause", func() bool {
		found := c.watch.find(addr)
		return len(found) == 1 && found[0].GetState() == ipwitnessv1.Conflict_CONFIRMED && found[0].GetCause() == "dhcp-client-identity"
	})
	if got := c.only(addr); len(got.GetBecause()) != 1 || !strings.Contains(got.GetBecause()[0], "0002") {
		t.Errorf("got cause %s, because %q, want the identifier of both", got.GetCause(), got.GetBecause())
	}
	c.wantOnlyPlanted(addr)
}

// A client gives its address up when another machine claims it for the second time (RFC 5227, section
// 2.4). It lives, and has lost the address that its server gave it.
func TestClientThatGivesItsAddressUpToAnotherMachineIsReported(t *testing.T) {
	t.Parallel()
	n := newLab(t)
	lan := dhcpOutside(t, n)
	lan.machine("thief", "02:00:00:00:00:99")
	n.sh("ip addr add 192.0.2.1/24 dev eth0")
	n.isOutside(lan, "thief", "10.9.0.66")
	networkd(t, n, "eth0", "SendDecline=yes\n")
	n.awaitOwners("10.9.0.15", 1)
	lan.assign("thief", "10.9.0.15/24")
	wait.Until(t, "the client to give its address up", func() bool {
		lan.announce("thief", "10.9.0.15")
		got, err := n.Run("ip -4 addr show dev eth0")
		return err == nil && !strings.Contains(got, "10.9.0.15")
	})
	n.wantConflict("10.9.0.15", ipwitnessv1.Conflict_CONFIRMED, "dad-failed", " | node1", "LINK node1/eth0",
		"node node1 itself", "the device with MAC 02:00:00:00:00:99")
	n.plant()
	if c := n.only("10.9.0.15"); c.GetState() != ipwitnessv1.Conflict_CONFIRMED || c.GetCause() != "external-device" {
		t.Errorf("got %v, want that it lasts", c)
	}
}

// A host gives a static address up at the second claim of a newcomer as well, as networkd and dhcpcd do.
func TestHostThatGivesAStaticAddressUpToAnotherMachineIsReported(t *testing.T) {
	t.Parallel()
	const addr = "10.9.0.9"
	n := newLab(t)
	lan := n.lan("192.0.2.1/24")
	lan.machine("thief", "02:00:00:00:00:99", "192.0.2.66/24")
	n.isOutside(lan, "thief", "192.0.2.66")
	n.sh("ip addr add " + addr + "/24 dev eth0")
	n.awaitOwners(addr, 1)
	lan.assign("thief", addr+"/24")
	lan.announce("thief", addr)
	n.watch.await("a suspicion", inState(addr, ipwitnessv1.Conflict_SUSPECTED))
	time.Sleep(2 * time.Second) // ANNOUNCE_INTERVAL (RFC 5227, section 1.1)
	lan.announce("thief", addr)
	n.sh("ip addr del " + addr + "/24 dev eth0")
	// The second announcement alone confirms the conflict.
	n.watch.await("the address to be given up", func(all []*ipwitnessv1.Conflict) bool {
		return slices.ContainsFunc(all, func(c *ipwitnessv1.Conflict) bool { return c.GetAddress() == addr && c.GetRule() == "dad-failed" })
	})
	n.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "dad-failed", " | node1", "LINK node1/eth0",
		"node node1 itself", "the device with MAC 02:00:00:00:00:99")
}

// Incident 38: a client finds that the address of its lease is in use, and does not take it. Its
// server learns that only if the client declines the lease, and the machine with the address does not
// learn it at all.
func TestClientThatDetectsADuplicateItselfIsReported(t *testing.T) {
	t.Parallel()
	n := newDHCPNode(t)
	n.dnsmasq("dhcp-range=10.9.0.15,10.9.0.15,1h")
	n.machine("fixed", fixedMAC, "10.9.0.15/24")
	i := n.incident(38)
	i.foretold("in-use-unallocated", "10.9.0.15") // before the client starts
	n.machine("client", clientMAC)
	client := func() (stop func()) {
		return networkd(t, n.lab, "eth0", "SendDecline=yes\n", "ip", "netns", "exec", "client", "unshare", "--mount", "--propagation", "private", "sh", "-c", `mount -t tmpfs none /run; exec "$@"`, "sh")
	}
	stop := client()
	f := n.awaitFindings("booked-elsewhere 10.9.0.15")[0]
	if al := f.GetAllocations(); len(al) != 1 || al[0].GetMac() != clientMAC || f.GetSeverity() != ipwitnessv1.Finding_CRITICAL || len(f.GetRemedy()) == 0 {
		t.Errorf("got %v, want the lease of the client, and a remedy", f)
	}
	i.found("booked-elsewhere", "10.9.0.15")
	n.plant()
	n.wantNone("10.9.0.15") // the client has not taken it

	n.write("/etc/dnsmasq.d/more", "dhcp-range=10.9.0.30,10.9.0.30,1h\n")
	carried := n.carry(i.finding.GetRemedy(), "must keep this one", map[string]func(){"release its lease and request another one": func() {
		stop()
		client()
	}})
	n.awaitOwner("10.9.0.30", "client")
	n.awaitOwner("10.9.0.15", "fixed")
	i.remedied(carried...)
	n.awaitFindings()
}

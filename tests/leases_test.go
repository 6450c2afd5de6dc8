package tests

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// dhcpNode is a host with a DHCP server on the bridge br0, 10.9.0.1/24, and its clients. Each client
// is a namespace with a real DHCP client.
type dhcpNode struct{ *lab }

// newDHCPNode returns a node whose server does not run yet.
func newDHCPNode(t *testing.T) *dhcpNode {
	t.Helper()
	n := &dhcpNode{newLab(t)}
	n.sh("ip link add br0 type bridge", "ip link set br0 up", "ip addr add 10.9.0.1/24 dev br0", "mkdir -p /var/lib/misc /etc/dnsmasq.d /run/fakes")
	n.clients()
	return n
}

// lan connects the bridge to a LAN, on which machines are seen on the wire only.
func (n *dhcpNode) lan() *dhcpNode {
	n.t.Helper()
	out := newLAN(n.t)
	out.cable(n.lab, "eth0")
	n.sh("ip link set eth0 master br0")
	outside := &dhcpNode{out.lab}
	outside.clients()
	return outside
}

// clients prepares the host for DHCP clients.
func (n *dhcpNode) clients() {
	n.t.Helper()
	// The script of the client sets the address that the server gives, and removes it.
	n.write("/run/client", "#!/bin/sh\ncase $1 in\nbound|renew) ip addr replace $ip/24 dev $interface;;\ndeconfig) ip addr flush dev $interface;;\nesac\n")
	n.write("/run/leave", "#!/bin/sh\n/run/client $1\nif test $1 = bound; then kill $PPID; fi\n")
}

// write writes an executable file of the host.
func (n *dhcpNode) write(path, content string) {
	n.t.Helper()
	if err := os.WriteFile(n.Path(path), []byte(content), 0o755); err != nil {
		n.t.Fatal(err)
	}
}

// dnsmasq starts dnsmasq with more lines of configuration. It asks nobody before it leases an
// address, as LXD and Incus start it.
func (n *dhcpNode) dnsmasq(lines ...string) {
	n.t.Helper()
	n.write("/etc/dnsmasq.conf", strings.Join(append([]string{
		"port=0", "interface=br0", "bind-interfaces", "no-ping", "dhcp-authoritative", "user=root", "conf-dir=/etc/dnsmasq.d",
		"pid-file=/run/dnsmasq.pid", "dhcp-leasefile=/var/lib/misc/dnsmasq.leases",
	}, lines...), "\n")+"\n")
	// dnsmasq creates its PID file before it serves. It ends with the test, and is started again by
	// what the remedies say.
	n.write("/run/fakes/systemctl", "#!/bin/sh -e\ntest \"$*\" = 'restart dnsmasq'\nif test -e /run/dnsmasq.pid; then kill -9 $(cat /run/dnsmasq.pid); rm /run/dnsmasq.pid; fi\ndnsmasq --conf-file=/etc/dnsmasq.conf\n")
	n.sh("/run/fakes/systemctl restart dnsmasq")
	n.t.Cleanup(func() { _, _ = n.Output(n.Command("sh", "-c", "kill $(cat /run/dnsmasq.pid)")) })
}

// machine creates a machine on the bridge, with addresses that were set by hand.
func (n *dhcpNode) machine(name, mac string, addrs ...string) {
	n.t.Helper()
	n.pod(name)
	n.sh(fmt.Sprintf("ip -n %s link set eth0 address %s", name, mac), fmt.Sprintf("ip link set v%s master br0", name))
	n.assign(name, addrs...)
}

// request has a machine request an address by DHCP, and returns it.
func (n *dhcpNode) request(name string) (addr string) {
	n.t.Helper()
	return n.requestAs(name, "")
}

// requestAs is request with more options of the client.
func (n *dhcpNode) requestAs(name, options string) (addr string) {
	n.t.Helper()
	n.sh(fmt.Sprintf("ip netns exec %s busybox udhcpc -i eth0 -s /run/client -n -q -t 5 -T 1 -x hostname:%[1]s %s", name, options))
	out, err := n.Run("ip -n %s -4 -o addr show dev eth0", name)
	if err != nil {
		n.t.Fatal(err)
	}
	for word := range strings.FieldsSeq(out) {
		if a, ok := strings.CutSuffix(word, "/24"); ok {
			return a
		}
	}
	n.t.Fatalf("%s has no address: %s", name, out)
	return ""
}

// release has a machine renew its lease and release it, which the client does when a signal ends it.
func (n *dhcpNode) release(name string) {
	n.t.Helper()
	n.sh("ip netns exec " + name + " busybox udhcpc -f -i eth0 -s /run/leave -n -R -t 5 -T 1 -x hostname:" + name)
}

// carry carries out the commands of actions, in order. Instructions without a command are for a
// person; byHand does what those that contain its keys say. carry returns the commands.
func (n *dhcpNode) carry(actions []*ipwitnessv1.Action, choose string, byHand map[string]func()) (carried []string) {
	n.t.Helper()
	for _, a := range actions {
		for part, do := range byHand {
			if strings.Contains(a.GetText(), part) {
				do()
			}
		}
		if command := a.GetCommand(); command != "" && !strings.HasPrefix(command, "ipwitness ") {
			cmd := n.Command("sh", "-c", "PATH=/run/fakes:$PATH; "+command)
			if out, err := n.Output(cmd); err != nil {
				n.t.Errorf("%s: %v: %s", command, err, out)
			}
			carried = append(carried, command)
		}
		i := slices.IndexFunc(a.GetChoice(), func(c *ipwitnessv1.Alternative) bool { return strings.Contains(c.GetWhen(), choose) })
		if len(a.GetChoice()) > 0 && i < 0 {
			n.t.Fatalf("got the choice %v, want one with %q", a.GetChoice(), choose)
		}
		if i >= 0 {
			carried = append(carried, n.carry(a.GetChoice()[i].GetActions(), choose, byHand)...)
		}
	}
	return carried
}

const (
	fixedMAC  = "02:00:00:00:00:0f"
	clientMAC = "02:00:00:00:00:0c"
)

// threatened returns a node whose server may lease the address of a machine.
func threatened(t *testing.T) *dhcpNode {
	t.Helper()
	n := newDHCPNode(t)
	n.dnsmasq("dhcp-range=10.9.0.15,10.9.0.15,1h")
	n.machine("fixed", fixedMAC, "10.9.0.15/24")
	f := n.awaitFindings("in-use-unallocated 10.9.0.15")[0]
	if got := f.GetPool().GetName(); got != "/var/lib/misc/dnsmasq.leases#br0" || f.GetSeverity() != ipwitnessv1.Finding_CRITICAL {
		t.Errorf("got %v of pool %q, want it critical, of dnsmasq's lease file", f, got)
	}
	return n
}

// givenAway returns the conflict after the server has leased the address to a client.
func (n *dhcpNode) givenAway() *ipwitnessv1.Conflict {
	n.t.Helper()
	n.machine("client", clientMAC)
	if got := n.request("client"); got != "10.9.0.15" {
		n.t.Fatalf("dnsmasq leased %s, want 10.9.0.15", got)
	}
	n.watch.await("the duplicate", inState("10.9.0.15", ipwitnessv1.Conflict_CONFIRMED))
	c := n.only("10.9.0.15")
	if got := c.GetCause(); got != "static-address" {
		n.t.Errorf("got cause %s, want static-address: %v", got, c)
	}
	if al := c.GetAllocations(); len(al) != 1 || al[0].GetMac() != clientMAC || al[0].GetHostname() != "client" {
		n.t.Errorf("got allocations %v, want the lease of the client", al)
	}
	return c
}

// Incident 36: dnsmasq leases an address that a machine has. Each alternative of the remedy is carried
// out.
func TestDHCPServerGivesAwayAFixedAddress(t *testing.T) {
	t.Parallel()
	for keeper, way := range map[string]string{"client": "DHCP has leased it", "fixed": "must keep this address"} {
		t.Run(keeper, func(t *testing.T) {
			t.Parallel()
			n := threatened(t)
			var i *incident
			if keeper == "fixed" { // the other alternative need not be on the page
				i = n.incident(36)
				i.foretold("in-use-unallocated", "10.9.0.15")
			}
			c := n.givenAway()
			if i != nil {
				i.conflicted("10.9.0.15", "static-address")
			}
			other := ""
			// The server has another address by now.
			n.write("/etc/dnsmasq.d/more", "dhcp-range=10.9.0.30,10.9.0.30,1h\n")
			carried := n.carry(c.GetRemedy(), way, map[string]func(){"client on node1 release its lease": func() { other = n.request("client") }})
			n.watch.await("the end of the duplicate", inState("10.9.0.15", ipwitnessv1.Conflict_RESOLVED))
			n.awaitOwner("10.9.0.15", keeper)
			if keeper == "fixed" && other != "10.9.0.30" {
				t.Errorf("the client got %q, want the address that is not reserved", other)
			}
			n.awaitFindings()
			if i != nil {
				i.remedied(carried...)
			}
		})
	}
}

func TestReservationKeepsADHCPServerFromGivingAwayAnAddress(t *testing.T) {
	t.Parallel()
	n := newDHCPNode(t)
	n.dnsmasq("dhcp-range=10.9.0.15,10.9.0.15,1h")
	n.machine("fixed", fixedMAC, "10.9.0.15/24")
	f := n.awaitFindings("in-use-unallocated 10.9.0.15")[0]
	n.write("/etc/dnsmasq.d/more", "dhcp-range=10.9.0.30,10.9.0.30,1h\n")
	n.carry(f.GetRemedy(), "must keep", nil)
	n.awaitFindings()
	n.machine("client", clientMAC)
	if got := n.request("client"); got != "10.9.0.30" {
		t.Errorf("dnsmasq leased %s, want the address that is not reserved", got)
	}
	n.awaitOwner("10.9.0.30", "client")
	n.wantOnlyPlanted()
	n.awaitFindings()
}

// dnsmasq is started again after its lease file was lost, and leases the address of a client to another
// one. Nothing tells the loss of one lease from one that its client gave back.
func TestDHCPServerThatLosesItsLeasesGivesThemAgain(t *testing.T) {
	t.Parallel()
	n := newDHCPNode(t)
	n.dnsmasq("dhcp-range=10.9.0.15,10.9.0.15,1h")
	n.machine("client", clientMAC)
	n.request("client")
	n.awaitOwner("10.9.0.15", "client")
	n.awaitAllocations(1)
	n.plant()
	n.sh("rm /var/lib/misc/dnsmasq.leases", "/run/fakes/systemctl restart dnsmasq")
	n.awaitFindings("in-use-unallocated 10.9.0.15")
	n.machine("next", fixedMAC)
	if got := n.request("next"); got != "10.9.0.15" {
		t.Fatalf("dnsmasq leased %s, want 10.9.0.15", got)
	}
	n.watch.await("the duplicate", inState("10.9.0.15", ipwitnessv1.Conflict_CONFIRMED))
	c := n.only("10.9.0.15")
	if got := c.GetCause(); got != "unknown" {
		t.Errorf("got cause %s, want none, because the client may have given its lease back: %v", got, c)
	}
	n.write("/etc/dnsmasq.d/more", "dhcp-range=10.9.0.30,10.9.0.30,1h\n")
	n.sh("/run/fakes/systemctl restart dnsmasq")
	other := ""
	n.carry(c.GetRemedy(), "", map[string]func(){"client on node1 release its lease": func() { other = n.request("client") }})
	n.watch.await("the end of the duplicate", inState("10.9.0.15", ipwitnessv1.Conflict_RESOLVED))
	n.awaitOwner("10.9.0.15", "next")
	if other != "10.9.0.30" {
		t.Errorf("the client got %q, want the free address; remedy %v", other, c.GetRemedy())
	}
	n.awaitFindings()
}

// Incident 36: an instance and its copy have one fixed address, so that dnsmasq leases it to neither
// reliably. With LXD and Incus, each reservation is a file.
func TestAddressThatIsReservedTwiceIsReported(t *testing.T) {
	t.Parallel()
	n := newDHCPNode(t)
	n.sh("mkdir -p /var/lib/incus/networks/br0/dnsmasq.hosts")
	n.write("/var/lib/incus/networks/br0/dnsmasq.pid", "name: dnsmasq\nargs: [--keep-in-foreground, --interface=br0, --dhcp-range, '10.9.0.2,10.9.0.254,1h']\npid: 1\n")
	n.write("/var/lib/incus/networks/br0/dnsmasq.hosts/www.eth0", fixedMAC+",10.9.0.10,www\n")
	n.write("/var/lib/incus/networks/br0/dnsmasq.leases", "4000000000 "+fixedMAC+" 10.9.0.10 www *\n")
	n.machine("www", fixedMAC, "10.9.0.10/24")
	n.machine("stray", clientMAC, "10.9.0.20/24")
	n.awaitFindings("in-use-unallocated 10.9.0.20") // the positive control
	n.write("/var/lib/incus/networks/br0/dnsmasq.hosts/copy.eth0", clientMAC+",10.9.0.10,copy\n")
	n.awaitFindings("in-use-unallocated 10.9.0.20", "double-allocated 10.9.0.10")
	n.sh("rm /var/lib/incus/networks/br0/dnsmasq.hosts/copy.eth0", "ip -n stray addr flush dev eth0")
	n.awaitFindings()
}

// Leases of machines inside and outside of the node start, are renewed and are released, and some
// machines leave without a word.
func TestChurnOfADHCPServerIsSilent(t *testing.T) {
	t.Parallel()
	t.Run("dnsmasq", func(t *testing.T) {
		t.Parallel()
		n := newDHCPNode(t)
		n.dnsmasq("dhcp-range=10.9.0.50,10.9.0.250,2m", "dhcp-host="+fixedMAC+",10.9.0.40")
		n.churnOfLeases(func(addr string) bool {
			leases, err := os.ReadFile(n.Path("/var/lib/misc/dnsmasq.leases"))
			return err == nil && !strings.Contains(string(leases), " "+addr+" ")
		})
	})
	t.Run("kea", func(t *testing.T) {
		t.Parallel()
		n := newDHCPNode(t)
		n.kea(120, 1, "10.9.0.50 - 10.9.0.250")
		n.churnOfLeases(n.released)
		if _, err := os.Stat(n.Path("/var/lib/kea/kea-leases4.csv.2")); err != nil {
			t.Errorf("Kea has not cleaned up its lease file: %v", err)
		}
	})
}

// churnOfLeases lets leases start and end. released reports whether a lease was released.
func (n *dhcpNode) churnOfLeases(released func(addr string) bool) {
	n.t.Helper()
	out := n.lan()
	found := n.follow()
	n.machine("fixed", fixedMAC, "10.9.0.40/24")
	const machines = 6
	leases := (churned(48) + machines - 1) / machines
	of := func(i int) (*dhcpNode, string) {
		if i == 1 {
			return out, fmt.Sprintf("m%d", i)
		}
		return n, fmt.Sprintf("m%d", i)
	}
	for i := range machines {
		at, name := of(i)
		at.machine(name, fmt.Sprintf("02:00:00:00:01:%02x", i))
	}
	taken := make(map[string]bool) // leased now, or by a machine outside, which is known for some time
	for round := range leases {
		for i := range machines {
			at, name := of(i)
			// As a new machine: with another hardware address.
			at.sh("ip -n "+name+" addr flush dev eth0", fmt.Sprintf("ip -n %s link set eth0 address 02:00:00:00:%02x:%02x", name, round+2, i))
			addr := at.request(name)
			at.announce(name, addr)
			was := taken[addr]
			taken[addr] = true
			switch { // the range has no address for all of them at once
			case round == leases-1, round%6 == 0 && i < 2:
				at.request(name) // again
			case i < 4, round%6 > 0:
				at.release(name)
				wait.Until(n.t, addr+" to be released", func() bool { return released(addr) })
				taken[addr] = was || at == out
			}
		}
	}
	n.machine("stray", clientMAC, "10.9.0.49/24", "10.9.0.251/24") // outside of the range
	control := "10.9.0.249"
	for last := 249; taken[control]; last-- {
		control = fmt.Sprint("10.9.0.", last)
	}
	n.sh("ip -n stray addr add " + control + "/24 dev eth0")
	n.awaitFindings("in-use-unallocated " + control)
	wait.Until(n.t, "the finding to be watched", func() bool { return len(found.all()) > 0 })
	if got := found.all(); !slices.Equal(got, []string{"in-use-unallocated " + control}) {
		n.t.Errorf("findings during the churn: got %q, want only that of the machine with a fixed address", got)
	}
	n.wantOnlyPlanted()
}

// A machine outside of the node, which no agent reports, has an address of the server's range.
func TestMachineOnALANWithoutALeaseIsPredicted(t *testing.T) {
	slow(t) // a frame of a known machine is reported every 30 s
	t.Parallel()
	n := newDHCPNode(t)
	out := n.lan()
	n.dnsmasq("dhcp-range=10.9.0.15,10.9.0.15,1h")
	out.machine("fixed", fixedMAC, "10.9.0.15/24")
	wait.Until(t, "the finding", func() bool {
		out.announce("fixed", "10.9.0.15")
		return len(n.findings("?kind=in-use-unallocated")) == 1
	})
	n.machine("client", clientMAC)
	if got := n.request("client"); got != "10.9.0.15" {
		t.Fatalf("dnsmasq leased %s, want 10.9.0.15", got)
	}
	wait.Until(t, "the duplicate", func() bool {
		out.announce("fixed", "10.9.0.15")
		return inState("10.9.0.15", ipwitnessv1.Conflict_CONFIRMED)(n.watch.all())
	})
	if c := n.only("10.9.0.15"); c.GetCause() != "external-device" {
		t.Errorf("got cause %s, want external-device: %v", c.GetCause(), c)
	}
}

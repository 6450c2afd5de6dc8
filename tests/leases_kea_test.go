package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/situations"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// kea starts Kea's DHCPv4 server with these pools of 10.9.0.0/24. Its leases end after some seconds. It
// cleans up its lease file at an interval in seconds; 0 for never.
func (n *dhcpNode) kea(seconds, cleanup int, pools ...string) {
	n.t.Helper()
	var list []string
	for _, p := range pools {
		list = append(list, fmt.Sprintf(`{ "pool": %q }`, p))
	}
	n.sh("mkdir -p /etc/kea /var/lib/kea /run/kea")
	n.write("/etc/kea/kea-dhcp4.conf", fmt.Sprintf(`{
		// the server of br0
		"Dhcp4": {
			"interfaces-config": { "interfaces": [ "br0" ], "service-sockets-max-retries": 100, "service-sockets-retry-wait-time": 50 }, # br0 may not be ready
			"lease-database": { "type": "memfile", "persist": true, "name": "/var/lib/kea/kea-leases4.csv", "lfc-interval": %d },
			"valid-lifetime": %d,
			"subnet4": [ { "id": 1, "subnet": "10.9.0.0/24", "pools": [ %s ],
				"reservations": [ { "hw-address": %q, "ip-address": "10.9.0.40" } ] } ]
		}
	}`, cleanup, seconds, strings.Join(list, ", "), fixedMAC))
	cmd := n.Command("env", "KEA_PIDFILE_DIR=/run/kea", "KEA_LOCKFILE_DIR=none", "kea-dhcp4", "-c", "/etc/kea/kea-dhcp4.conf")
	var log netlab.Log
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := n.Start(cmd); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { end(n.t, "kea-dhcp4", cmd, &log) })
}

func TestLeasesOfKea(t *testing.T) {
	t.Parallel()
	n := newDHCPNode(t)
	n.kea(3600, 0, "10.9.0.15 - 10.9.0.16")
	n.machine("reserved", fixedMAC, "10.9.0.40/24")
	n.machine("one", "02:00:00:00:00:11")
	n.machine("two", "02:00:00:00:00:12")
	first, second := n.request("one"), n.request("two")
	if first == second {
		t.Fatalf("got %s for both clients", first)
	}
	// A machine takes the address of a client that is switched off, and has a reservation no more.
	n.sh("ip -n two addr flush dev eth0")
	n.machine("stray", clientMAC, second+"/24", "10.9.0.41/24")
	f := n.awaitFindings("booked-elsewhere " + second)[0]
	if al := f.GetAllocations(); len(al) != 1 || al[0].GetMac() != "02:00:00:00:00:12" || al[0].GetHostname() != "two" || f.GetPool().GetName() != "/var/lib/kea/kea-leases4.csv#br0" {
		t.Errorf("got %v, want the lease of the other client", f)
	}
	// The client comes back.
	if again := n.request("two"); again != second {
		t.Fatalf("Kea leased %s, want %s again", again, second)
	}
	n.watch.await("the duplicate", inState(second, ipwitnessv1.Conflict_CONFIRMED))
	c := n.only(second)
	if got := c.GetCause(); got != "static-address" {
		t.Errorf("got cause %s, want static-address: %v", got, c)
	}
	n.carry(c.GetRemedy(), "DHCP has leased it", nil)
	n.watch.await("the end of the duplicate", inState(second, ipwitnessv1.Conflict_RESOLVED))
	n.awaitOwner(second, "two")
	n.awaitFindings()
}

// dhcpd starts the daemon of the CNI plugin dhcp, and returns how to kill it.
func (n *dhcpNode) dhcpd() (kill func()) {
	n.t.Helper()
	bin, err := netlab.Plugins()
	if err != nil {
		n.t.Fatal(err)
	}
	n.sh("mkdir -p /run/cni")
	cmd := n.Command(filepath.Join(bin, "dhcp"), "daemon")
	var log netlab.Log
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := n.Start(cmd); err != nil {
		n.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() { end(n.t, "the plugin dhcp", cmd, &log) })
	n.t.Cleanup(kill)
	wait.Until(n.t, "the socket of the plugin dhcp", func() bool {
		_, err := os.Stat(n.Path("/run/cni/dhcp.sock"))
		return err == nil
	})
	return kill
}

// The daemon of the CNI plugin dhcp renews the leases of pods. When it is killed, their leases end, but
// the pods keep their addresses.
func TestPodsOfTheDHCPPluginOutliveTheirLeases(t *testing.T) {
	t.Parallel()
	n := newDHCPNode(t)
	found := n.follow()
	n.kea(4, 0, "10.9.0.15 - 10.9.0.15")
	kill := n.dhcpd()
	cni := n.cni(`{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"bridge","bridge":"br0","ipam":{"type":"dhcp"}}]}`)
	wait.Until(t, "Kea", func() bool {
		if err := cni.Add("web"); err == nil {
			return true
		}
		_, _ = n.Run("ip netns del web")
		return false
	})
	n.awaitPod("10.9.0.15", "web")
	first := n.lease()
	wait.Until(t, "two renewals", func() bool { return n.lease() > first+1 })
	if got := found.all(); len(got) != 0 {
		t.Errorf("got findings %q while the lease is renewed, want none", got)
	}
	kill()
	f := n.awaitFindings("in-use-unallocated 10.9.0.15")[0]
	if got := situations.Commands(f.GetRemedy()); !slices.Contains(got, "kubectl delete pod -n default web") {
		t.Errorf("got commands %q, want one that restarts the pod", got)
	}
	n.machine("client", clientMAC)
	n.request("client")
	n.watch.await("the duplicate", inState("10.9.0.15", ipwitnessv1.Conflict_CONFIRMED))
	if c := n.only("10.9.0.15"); c.GetCause() != "unknown" || !strings.Contains(c.GetSummary(), "ended without being renewed") {
		t.Errorf("got cause %s, want none, because the lease was not lost but not renewed: %v", c.GetCause(), c)
	}
}

// released reports whether a lease of Kea was released. It is the last line of the address that counts,
// in the order in which Kea reads its files.
func (n *dhcpNode) released(addr string) bool {
	last := ""
	for _, ending := range []string{".2", ".1", ""} {
		data, _ := os.ReadFile(n.Path("/var/lib/kea/kea-leases4.csv" + ending))
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, addr+",") {
				last = line
			}
		}
	}
	return last == "" || strings.Split(last, ",")[3] == "0" // its lifetime
}

// lease returns the number of lines in Kea's lease file.
func (n *dhcpNode) lease() int {
	data, _ := os.ReadFile(n.Path("/var/lib/kea/kea-leases4.csv"))
	return strings.Count(string(data), "\n")
}

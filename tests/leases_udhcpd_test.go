package tests

import (
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// udhcpd starts BusyBox' udhcpd without leases, and returns how to end it.
func (n *dhcpNode) udhcpd() (stop func()) {
	n.t.Helper()
	n.write("/etc/udhcpd.conf", "interface br0\nstart 10.9.0.50\nend 10.9.0.60\nlease_file /run/udhcpd.leases\npidfile /run/udhcpd.pid\noption lease 3600\n")
	n.write("/run/udhcpd.leases", "")
	cmd := n.Command("busybox", "udhcpd", "-f", "/etc/udhcpd.conf")
	var log netlab.Log
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := n.Start(cmd); err != nil {
		n.t.Fatal(err)
	}
	return func() { end(n.t, "udhcpd", cmd, &log) }
}

// udhcpd asks by ARP before it offers an address, and keeps back one that answers, so that no client gets it for an hour. The
// server of Debian writes its leases only when it is told to, and every two hours.
func TestUdhcpdKeepsBackAnAddressInUse(t *testing.T) {
	t.Parallel()
	n := newDHCPNode(t)
	n.machine("one", "02:00:00:00:00:11")
	stop := n.udhcpd()
	used := n.request("one")
	stop()
	n.sh("ip -n one addr flush dev eth0")
	n.machine("stray", clientMAC, used+"/24")
	stop = n.udhcpd()
	t.Cleanup(stop)
	if got := n.request("one"); got == used {
		t.Fatalf("udhcpd leased %s, which another machine has", used)
	}
	if out, err := n.Output(n.Command("sh", "-c", "kill -USR1 $(cat /run/udhcpd.pid)")); err != nil {
		t.Fatal(out, err)
	}
	f := n.awaitFindings("in-use-unallocated " + used)[0]
	if f.GetSeverity() != ipwitnessv1.Finding_WARNING || f.GetPool().GetIpam() != "udhcpd" {
		t.Errorf("got %v, want a warning about the server's range", f)
	}
	n.sh("ip -n stray addr flush dev eth0")
	n.awaitFindings()
}

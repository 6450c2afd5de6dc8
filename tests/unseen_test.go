package tests

import (
	"fmt"
	"testing"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// If this fails because one of the addresses has an owner, or a conflict, docs/verdicts.md says no longer that it is not
// seen.
func TestClaimsThatEnterNoPortAreUnseen(t *testing.T) {
	t.Parallel()
	const nested, child, tap, moved, outdated = "10.1.2.9", "192.0.2.201", "192.0.2.202", "10.1.3.9", "10.1.2.8"
	l := newLab(t)
	out := l.lan("192.0.2.1/24")
	out.machine("host", "02:00:00:00:00:68", "192.0.2.9/24")
	// A guest on a bridge in another namespace.
	const box = "cni-6b2a4a5c-1f0e-4ad8-9c3b-0d5c6ad1a003" // as a runtime names it
	if err := l.Namespace(box); err != nil {
		t.Fatal(err)
	}
	l.sh("ip link add vbox type veth peer name eth0 netns "+box, "ip link set vbox up", "ip -n "+box+" link set eth0 up", "ip -n "+box+" addr add 10.1.4.2/24 dev eth0")
	l.bridge(box, "br0")
	l.inner("inner", box, "br0", outdated+"/24")
	l.inner("peer", box, "br0", "10.1.2.7/24")
	// A child of the uplink with another namespace, and one in the node's own, whose frames take the way of a macvtap guest's.
	if err := l.Namespace("lower"); err != nil {
		t.Fatal(err)
	}
	l.sh("ip link add child link eth0 netns lower type macvlan mode bridge", "ip -n lower link set child up", "ip link add tap link eth0 type macvlan mode bridge", "ip link set tap up")
	// Two pods with devices that are not one end of a veth.
	for n := range 2 {
		pod := fmt.Sprintf("moved%d", n)
		if err := l.Namespace(pod); err != nil {
			t.Fatal(err)
		}
		l.sh("ip tuntap add dev function"+pod[5:]+" mode tap", "ip link set function"+pod[5:]+" netns "+pod, "ip -n "+pod+" link set function"+pod[5:]+" up",
			"ip -n "+pod+" addr add "+moved+"/24 dev function"+pod[5:])
	}
	// A VXLAN device in another namespace, which answers from an outdated table.
	l.sh("ip -n "+box+" link add vx9 type vxlan id 9 dstport 4789 local 10.1.4.2 nolearning proxy", "ip -n "+box+" link set vx9 master br0 up",
		"ip -n "+box+" neigh add "+outdated+" lladdr 02:00:00:00:de:ad dev vx9 nud permanent")
	l.awaitOwners(outdated, 1)
	for range 3 {
		l.in("inner", func() error { return netlab.Send("eth0", claim(nested)) })
		l.in("lower", func() error { return netlab.Send("child", claim(child)) })
		l.from("tap", claim(tap))
		out.announce("host", "192.0.2.9")
	}
	l.awaitOwners("192.0.2.9", 1) // the positive control
	l.wantOnlyPlanted()
	for _, addr := range []string{nested, child, tap, moved} {
		if got := l.owners("?address=" + addr); len(got) != 0 {
			t.Errorf("owners of %s: got %v, want none", addr, got)
		}
	}
	l.awaitFindings()
}

// The same as above, for one MAC at two places of a LAN of which one has no agent and only announces its address.
func TestOneMACOfANodeAndOfAMachineOutsideIsUnseen(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	out := c.shared()
	out.machine("copy", c.nodes[0].mac("/eth0"), "192.0.2.77/24")
	talks(t, func() { out.announce("copy", "192.0.2.77") })
	c.seen("192.0.2.77", "node2/eth0")
	c.wantOnlyPlanted()
	c.awaitFindings()
}

package tests

import (
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// A pod keeps the MAC of a former owner of an address, and does not reach the next one until its entry is deleted, as the
// finding says.
func TestAPodSendsToTheMACOfAFormerOwner(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.7"
	l := newLab(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0")
	start := func(name string, addrs ...string) {
		l.pod(name)
		l.sh("ip link set v" + name + " master cni0")
		l.assign(name, addrs...)
	}
	pings := func() bool {
		_, err := l.Run("ip netns exec a busybox ping -c 1 -W 1 %s", addr)
		return err == nil
	}
	start("a", "10.244.0.5/24")
	start("b", addr+"/24")
	l.awaitOwner(addr, "b")
	l.sysctl("a", "net/ipv4/neigh/eth0/base_reachable_time_ms=3600000") // the entry would heal by itself within a minute
	wait.Until(t, "an answer of b", pings)
	stale := l.mac("b")
	l.knows("a", addr, stale)
	l.awaitFindings()

	l.sh("ip netns del b")
	l.awaitOwners(addr, 0)
	l.awaitFindings() // nobody has the address
	start("c", addr+"/24")
	if pings() {
		t.Fatal("a reaches c at once: the kernel of c has announced its address")
	}
	f := l.awaitFindings("stale-belief " + addr)[0]
	b := f.GetBeliefs()[0]
	if b.GetMac() != stale || b.GetState() != ipwitnessv1.Belief_IN_USE || b.GetCount() != 1 || b.GetHolders()[0].GetWorkload().GetName() != "a" ||
		b.GetFormer().GetWorkload().GetName() != "b" || f.GetOwners()[0].GetWorkload().GetName() != "c" || f.GetSeverity() != ipwitnessv1.Finding_CRITICAL {
		t.Errorf("got %v, want that a sends to the MAC of b, and not to c", f)
	}
	for _, action := range f.GetRemedy() {
		if strings.Contains(action.GetCommand(), "neigh del") {
			l.sh(action.GetCommand())
		}
	}
	wait.Until(t, "an answer of c", pings)
	l.awaitFindings()
	l.wantOnlyPlanted()
}

// What only looks like a stale belief, with one as a control.
func TestBeliefsThatAreNotStale(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0")
	for i, name := range []string{"a", "b"} {
		l.pod(name)
		l.sh("ip link set v" + name + " master cni0")
		l.assign(name, []string{"10.244.0.5/24", "10.244.0.6/24"}[i])
	}
	l.awaitOwner("10.244.0.6", "b")
	neigh := func(addr, mac, state string) {
		l.sh("ip -n a neigh replace " + addr + " lladdr " + mac + " nud " + state + " dev eth0")
	}
	const wrong = "02:00:00:00:00:99"
	neigh("10.244.0.6", wrong, "stale")                     // not used
	neigh("10.244.0.1", "00:00:5e:00:01:07", "permanent")   // a virtual router
	neigh("10.244.0.99", wrong, "reachable")                // nobody has the address
	l.sh("ip -n b link add eth1 type veth peer name peer1") // another interface of the owner, as in a bond
	l.sh("ip -n b link set eth1 address 02:00:00:00:00:98")
	neigh("10.244.0.6", "02:00:00:00:00:98", "permanent")
	l.plant()
	l.awaitFindings()
	neigh("10.244.0.6", wrong, "permanent")
	l.awaitFindings("stale-belief 10.244.0.6")
}

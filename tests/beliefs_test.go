package tests

import (
	"fmt"
	"maps"
	"slices"
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

// wantSenders waits until explain names exactly these senders for each owner of an address.
func (l *lab) wantSenders(addr string, want map[string][]string) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprint("explain to name ", want), func() bool {
		got := map[string][]string{}
		var e ipwitnessv1.ExplainResponse
		if err := l.program.Get(l.t.Context(), "/v1/explain?senders=true&address="+addr, &e); err != nil {
			if strings.Contains(err.Error(), "429") { // limited by questionsPerSecond
				return false
			}
			l.t.Fatal(err)
		}
		for _, r := range e.GetSenders().GetReceivers() {
			if len(r.GetOwners()) != 1 || len(r.GetSenders()) != int(r.GetInUse()+r.GetPermanent()+r.GetOld()) {
				l.t.Fatalf("got %v, want one owner, and all senders by name", r)
			}
			for _, s := range r.GetSenders() {
				owner := e.GetOwners()[r.GetOwners()[0]].GetWorkload().GetName()
				got[owner] = append(got[owner], s.GetWorkload().GetName())
			}
		}
		for _, names := range got {
			slices.Sort(names)
		}
		return maps.EqualFunc(got, want, slices.Equal)
	})
}

// Twenty pods on a bridge have resolved an address while one of its two owners answered.
func TestExplainNamesWhoSendsToWhichOwner(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.7"
	l := newLab(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up")
	pods := []string{"a", "b"}
	for i := range 20 {
		pods = append(pods, fmt.Sprintf("c%02d", i))
	}
	for i, name := range pods {
		l.pod(name)
		l.sh("ip link set v" + name + " master cni0")
		if i > 1 {
			l.assign(name, fmt.Sprintf("10.244.0.%d/24", 10+i))
		}
	}
	l.assign("a", addr+"/24")
	l.awaitOwner(addr, "a")
	for _, name := range pods[2:12] {
		l.resolve(name, "eth0", addr)
		l.knows(name, addr, l.mac("a"))
	}
	l.sh("ip link set va down")
	l.assign("b", addr+"/24")
	for _, name := range pods[12:] {
		l.resolve(name, "eth0", addr)
		l.knows(name, addr, l.mac("b"))
	}
	l.sh("ip link set va up")
	l.wantConflict(addr, confirmed, "assigned-twice", "a | b", "LINK node1/cni0")
	byKernels := func() {
		t.Helper()
		want := map[string][]string{}
		for _, name := range pods[2:] {
			out, err := l.Run("ip -n %s neigh show %s", name, addr)
			if err != nil {
				t.Fatal(err)
			}
			for _, owner := range pods[:2] {
				if strings.Contains(out, l.mac(owner)) {
					want[owner] = append(want[owner], name)
				}
			}
		}
		if len(want["a"])+len(want["b"]) != 20 || len(want["a"]) == 0 || len(want["b"]) == 0 {
			t.Fatalf("got %v, want 20 pods that send to either of the owners", want)
		}
		l.wantSenders(addr, want)
	}
	byKernels()
	l.sh("ip -n c00 neigh replace "+addr+" lladdr "+l.mac("b")+" nud reachable dev eth0", "ip -n c19 neigh replace "+addr+" lladdr "+l.mac("a")+" nud permanent dev eth0")
	byKernels()
	wantWords(t, l.says("explain", addr), "Who sends to it", "1: netns/c19")
}

// Twenty containers of two nodes on one LAN send to either of two owners, each on one of the nodes.
func TestExplainNamesSendersOnTwoNodes(t *testing.T) {
	t.Parallel()
	const addr = "192.0.2.100"
	c := newCluster(t, 2)
	c.shared()
	start := func(n *lab, name, addr string) {
		if err := n.Namespace(name); err != nil {
			t.Fatal(err)
		}
		n.sh("ip link add link eth0 name eth0 netns "+name+" type macvlan mode bridge", "ip -n "+name+" link set eth0 up")
		n.assign(name, addr)
	}
	for i, n := range c.nodes {
		start(n, fmt.Sprint("owner", i+1), addr+"/24")
		for k := range 10 {
			start(n, fmt.Sprintf("n%d-%d", i+1, k), fmt.Sprintf("192.0.2.%d/24", 110+10*i+k))
		}
	}
	c.wantConflict(addr, confirmed, "assigned-twice", "owner1 | owner2", "LINK node1/eth0")
	want := map[string][]string{}
	for i, n := range c.nodes {
		for k := range 10 {
			name, to := fmt.Sprintf("n%d-%d", i+1, k), (k+i)%3/2 // seven of the first node, and six of the second one, send to owner1
			n.sh(fmt.Sprintf("ip -n %s neigh replace %s lladdr %s nud reachable dev eth0", name, addr, c.nodes[to].mac(fmt.Sprint("owner", to+1))))
			owner := fmt.Sprint("owner", to+1)
			want[owner] = append(want[owner], name)
		}
	}
	c.wantSenders(addr, want)
}

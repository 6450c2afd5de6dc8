package tests

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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

// The node's own route for an address in conflict leads to its owners or elsewhere, by the rules for packets without a mark.
func TestExplainSaysWhereTheRouteOfANodeLeads(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.7"
	l := newLab(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0")
	l.sh("ip link add docker0 type bridge", "ip link set docker0 up", "ip addr add 10.1.0.1/24 dev docker0")
	for _, name := range []string{"a", "b"} {
		l.pod(name)
		l.sh("ip link set v" + name + " master cni0")
		l.assign(name, addr+"/24")
	}
	l.wantConflict(addr, confirmed, "assigned-twice", "a | b", "NODE node1")
	leads := func(kind ipwitnessv1.Senders_Route_Kind, owners int, through string) {
		t.Helper()
		var got []*ipwitnessv1.Senders_Route
		wait.Until(t, fmt.Sprint("a route ", kind, " to ", owners, " owners through ", through), func() bool {
			var e ipwitnessv1.ExplainResponse
			if err := l.program.Get(t.Context(), "/v1/explain?senders=true&address="+addr, &e); err != nil {
				t.Fatal(err)
			}
			got = e.GetSenders().GetRoutes()
			return len(got) == 1 && got[0].GetKind() == kind && len(got[0].GetOwners()) == owners && !got[0].GetPartly() &&
				(through == "" || len(got[0].GetHops()) == 1 && got[0].GetHops()[0].GetInterface() == through)
		})
	}
	const paths, none = ipwitnessv1.Senders_Route_PATHS, ipwitnessv1.Senders_Route_NONE
	leads(paths, 2, "cni0")
	l.sh("ip route add "+addr+" dev docker0 table 100", "ip rule add fwmark 7 lookup 100")
	leads(paths, 2, "cni0") // of packets with a mark only
	l.sh("ip rule add to " + addr + " lookup 100")
	leads(paths, 0, "docker0")
	for _, kind := range []string{"blackhole", "prohibit", "unreachable"} {
		l.sh("ip route replace " + kind + " " + addr + " table 100")
		leads(none, 0, "")
	}
	l.sh("ip route flush table 100", "ip route add local "+addr+" dev lo table 100")
	leads(ipwitnessv1.Senders_Route_LOCAL, 0, "")
	wantWords(t, l.says("explain", addr), "elsewhere, to none of these owners: the node itself")
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

// Pods on a bridge get and lose addresses and MACs at random, and their neighbour tables change at random. A stale belief is reported
// if and only if a kernel would send to a MAC that no owner of the address has.
func TestStaleBeliefsOfRandomTablesAreThoseOfTheKernels(t *testing.T) {
	t.Parallel()
	const bridge, router = "02:00:00:00:00:01", "00:00:5e:00:01:07"
	l := newLab(t)
	l.sh("ip link add cni0 address "+bridge+" type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0")
	pods, addrs := []string{"p0", "p1", "p2", "p3", "p4", "p5"}, []string{"10.244.0.100", "10.244.0.101", "10.244.0.102"}
	for i, name := range pods {
		l.pod(name)
		l.sh("ip link set v"+name+" master cni0", "ip -n "+name+" link add eth1 type veth peer name eth2")
		l.assign(name, fmt.Sprintf("10.244.0.%d/24", 10+i))
		l.sysctl(name, "net/ipv4/neigh/eth0/base_reachable_time_ms=3600000") // entries stay as they are
	}
	l.awaitOwner("10.244.0.15", "p5")
	r := rand.New(rand.NewPCG(37, 3))
	pick := func(of []string) string { return of[r.IntN(len(of))] }
	has := map[string]map[string]bool{} // pods by address
	for _, addr := range addrs {
		has[addr] = map[string]bool{}
	}
	macs := func(name string) []string { // of all interfaces
		out, err := l.Run("ip -n %s -o link show", name)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, m := range regexp.MustCompile(`link/ether (\S+)`).FindAllStringSubmatch(out, -1) {
			all = append(all, m[1])
		}
		return all
	}
	var steps []string
	do := func(line string) {
		steps = append(steps, line)
		_, _ = l.Run("%s", line) // fails if there is nothing to delete
	}
	step := func() {
		name, addr := pick(pods), pick(addrs)
		switch r.IntN(8) {
		case 0: // an address comes or goes
			if has[addr][name] = !has[addr][name]; has[addr][name] {
				do("ip -n " + name + " addr add " + addr + "/24 dev eth0")
			} else {
				do("ip -n " + name + " addr del " + addr + "/24 dev eth0")
			}
		case 1, 2: // it is handed over
			for other := range has[addr] {
				do("ip -n " + other + " addr del " + addr + "/24 dev eth0")
			}
			has[addr] = map[string]bool{name: true}
			do("ip -n " + name + " addr add " + addr + "/24 dev eth0")
		case 3: // another MAC
			do(fmt.Sprintf("ip -n %s link set eth0 address 02:00:00:00:01:%02x", name, r.IntN(256)))
		case 4:
			do("ip -n " + name + " neigh del " + addr + " dev eth0")
		case 5: // the kernel asks
			do("ip -n " + name + " neigh replace " + addr + " dev eth0 use")
		default: // of a pod, of nobody, of a virtual router, of the node
			mac := pick(append(macs(pick(pods)), "02:00:00:00:00:99", router, bridge))
			do("ip -n " + name + " neigh replace " + addr + " lladdr " + mac + " nud " + pick([]string{"reachable", "reachable", "permanent", "stale"}) + " dev eth0")
		}
	}
	// kernels returns the pods that send packets for an address to a MAC that no owner has, by both. A MAC that several addresses are
	// believed to have may be that of a router, so it is reported only if an owner has left: unsure.
	kernels := func() (want map[string][]string, unsure map[string]bool) {
		want, unsure = map[string][]string{}, map[string]bool{}
		believed := map[string]map[string]bool{} // addresses by MAC
		for _, addr := range addrs {
			owners, owned := 0, []string{router, bridge} // the node may pass packets on
			for name, yes := range has[addr] {
				if yes {
					owners++
					owned = append(owned, macs(name)...)
				}
			}
			for _, name := range pods {
				out, err := l.Run("ip -n %s neigh show %s dev eth0", name, addr)
				if err != nil {
					t.Fatal(err)
				}
				f := regexp.MustCompile(`lladdr (\S+) .*(REACHABLE|PERMANENT|DELAY|PROBE)`).FindStringSubmatch(out)
				if f == nil || has[addr][name] {
					continue
				}
				if believed[f[1]] == nil {
					believed[f[1]] = map[string]bool{}
				}
				believed[f[1]][addr] = true
				if owners == 1 && !slices.Contains(owned, f[1]) { // nobody has it, or a conflict replaces the finding
					want[addr+" "+f[1]] = append(want[addr+" "+f[1]], name)
				}
			}
		}
		for key := range want {
			_, mac, _ := strings.Cut(key, " ")
			unsure[key] = len(believed[mac]) > 1
		}
		return want, unsure
	}
	found := 0
	var got, want map[string][]string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("got %v, want %v, after\n%s", got, want, strings.Join(steps, "\n"))
		}
	})
	for range 20 {
		for range 1 + r.IntN(4) {
			step()
		}
		var unsure map[string]bool
		began := time.Now()
		wait.Until(t, "the stale beliefs of the kernels", func() bool {
			if time.Since(began) > 30*time.Second { // frames bear entries out for a minute
				t.Fatal("not within 30 s")
			}
			got = map[string][]string{}
			want, unsure = kernels()
			for _, f := range l.findings("?kind=stale-belief") {
				for _, b := range f.GetBeliefs() {
					key := f.GetAddress() + " " + b.GetMac()
					for _, h := range b.GetHolders() {
						got[key] = append(got[key], h.GetWorkload().GetName())
					}
					slices.Sort(got[key])
				}
			}
			maps.DeleteFunc(want, func(key string, _ []string) bool { return unsure[key] && got[key] == nil })
			return maps.EqualFunc(got, want, slices.Equal)
		})
		found += len(want)
	}
	if found < 5 {
		t.Errorf("got %d stale beliefs, want more of them", found)
	}
}

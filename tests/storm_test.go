package tests

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// binding returns the n-th binding of a storm: an address and the MAC that claims it.
func binding(n int) (netip.Addr, net.HardwareAddr) {
	n += 256
	a := [4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}
	return netip.AddrFrom4(a), append(net.HardwareAddr{2, 0}, a[:]...)
}

// answers returns ARP replies to a nonexistent station, one for each binding.
func answers(from, to int) (frames [][]byte) {
	for n := from; n < to; n++ {
		addr, mac := binding(n)
		frames = append(frames, answer(addr, mac))
	}
	return frames
}

func answer(addr netip.Addr, mac net.HardwareAddr) []byte {
	f := netlab.ARP(2, mac, addr, netip.MustParseAddr("10.255.255.254"))
	copy(f, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	return f
}

// flood sends frames on a pod's eth0 while more returns true.
func (l *lab) flood(pod string, frames [][]byte, more func(sent int) int) {
	l.t.Helper()
	p, err := l.Pod(pod)
	if err != nil {
		l.t.Fatal(err)
	}
	defer p.Close()
	err = p.Do(func() error {
		_, err := netlab.Flood("eth0", frames, more)
		return err
	})
	runtime.KeepAlive(frames)
	if err != nil {
		l.t.Fatal(err)
	}
}

// metric returns the value of one series in /metrics of the host's agent.
func (l *lab) metric(series string) float64 { l.t.Helper(); return l.metricOf(l.agent, series) }

// metricOf returns the value of one series in a program's /metrics.
func (l *lab) metricOf(p *netlab.Program, series string) float64 {
	l.t.Helper()
	text, err := p.Text(l.t.Context(), "/metrics")
	if err != nil {
		l.t.Fatal(err)
	}
	_, value, ok := strings.Cut(text, "\n"+series+" ")
	value, _, _ = strings.Cut(value, "\n")
	n, err := strconv.ParseFloat(value, 64)
	if !ok || err != nil {
		l.t.Fatalf("metric %s: got %q", series, value)
	}
	return n
}

// ownersOfNode counts the owners whose address must be unique on the node.
const ownersOfNode = `ipwitness_owners{scope_kind="node"}`

// result returns the number of ARP frames with a result.
func (l *lab) result(result string) float64 {
	l.t.Helper()
	return l.metric(fmt.Sprintf("ipwitness_agent_frames_total{protocol=\"arp\",result=%q}", result))
}

// counted waits until the observer has seen the given number of frames that claim an address.
func (l *lab) counted(frames int) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprintf("%d frames to be counted", frames), func() bool {
		return l.result("known")+l.result("event")+l.result("lost")+l.result("limited") >= float64(frames)
	})
}

func (l *lab) lost(source string) float64 {
	l.t.Helper()
	return l.metric(fmt.Sprintf("ipwitness_agent_lost_events_total{source=%q}", source))
}

// held returns the addresses of a prefix in the list of owners, and the number of owners. It
// follows the pages.
func (l *lab) held(prefix string) (addresses map[string]bool, owners int) {
	l.t.Helper()
	addresses = map[string]bool{}
	for token := ""; ; {
		text, err := l.program.Text(l.t.Context(), "/v1/owners?page_size=10000&cidr="+prefix+"&page_token="+token)
		if err != nil {
			l.t.Fatal(err)
		}
		var page struct { // protojson would take ten times as long
			Owners        []struct{ Address string }
			NextPageToken string
		}
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			l.t.Fatal("parse owners: ", err)
		}
		for _, o := range page.Owners {
			addresses[o.Address] = true
			owners++
		}
		if token = page.NextPageToken; token == "" {
			return addresses, owners
		}
	}
}

// wantHeld fails unless each address of the bindings has one owner, and no other address has an
// owner.
func (l *lab) wantHeld(prefix string, from, to int) {
	l.t.Helper()
	got, owners := l.held(prefix)
	for n := from; n < to; n++ {
		if addr, _ := binding(n); !got[addr.String()] {
			l.t.Errorf("nobody holds %s", addr)
			break
		}
	}
	if len(got) != to-from || owners != to-from {
		l.t.Errorf("owners: got %d of %d addresses, want %d of as many", owners, len(got), to-from)
	}
}

// wantProblem waits until the node reports a problem. It adds a port because that makes the agent
// report its state, which it otherwise does only twice a minute.
func (l *lab) wantProblem(words string) {
	l.t.Helper()
	l.pod("news")
	wait.Until(l.t, "the node to say "+words, func() bool {
		return strings.Contains(strings.Join(l.node().GetProblems(), "\n"), words)
	})
	l.sh("ip netns del news")
}

func TestTwoMACsAlternateAtLineRate(t *testing.T) {
	slow(t)
	const atLeast = 200_000
	addr := netip.MustParseAddr("192.0.2.7")
	first, second := net.HardwareAddr{2, 0, 0, 0, 0, 0xa}, net.HardwareAddr{2, 0, 0, 0, 0, 0xb}
	frames := [][]byte{answer(addr, first), answer(addr, second)}
	for i := len(frames); i < 1024; i++ {
		frames = append(frames, frames[i%2])
	}
	for name, owners := range map[string]int{
		"behind the port of a pod, as its guests": 1,
		"behind an uplink, as external devices":   2,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.pod("lan")
			if owners == 2 { // a switch at the far end, and a LAN address at the near end
				l.sh("ip -n lan link add br0 type bridge", "ip -n lan link set br0 up",
					"ip -n lan link set eth0 master br0", "ip addr add 192.0.2.1/24 dev vlan")
				l.awaitOwners("192.0.2.1", 1)
			}
			l.ports(1)
			l.flood("lan", frames, netlab.Times(20_000))
			l.awaitOwners(addr.String(), owners)

			var over atomic.Bool
			sent, done := 0, make(chan struct{})
			go func() {
				defer close(done)
				l.flood("lan", frames, func(n int) int {
					if sent = n; over.Load() && n >= atLeast {
						return 0
					}
					return len(frames)
				})
			}()
			if owners == 2 {
				l.watch.await("A-B-A to be seen", inState(addr.String(), ipwitnessv1.Conflict_SUSPECTED))
			}
			over.Store(true)
			<-done
			l.counted(sent + 20_000)

			// The observer sends one event for each MAC, and one a second while the address is
			// contested.
			if got := l.result("event"); got > 1000 {
				t.Errorf("events of %d frames: got %v, want a few", sent, got)
			}
			if got := l.result("lost"); got != 0 {
				t.Errorf("frames that were lost: got %v, want none", got)
			}
			held, evidence := l.awaitOwners(addr.String(), owners), 0
			for _, o := range held {
				evidence += len(o.GetEvidence())
			}
			if evidence != 2 {
				t.Errorf("claims: got %d, want 2, one of each MAC: %v", evidence, held)
			}
			conflicts := l.watch.find(addr.String())
			switch {
			case owners == 1 && len(conflicts) != 0:
				t.Errorf("conflicts of a pod with its own guest: got %v, want none", conflicts)
			case owners == 2 && l.only(addr.String()).GetRule() != "externals-alternate":
				t.Errorf("rule: got %s, want externals-alternate", l.only(addr.String()).GetRule())
			}
			l.wantOnlyPlanted() // a conflict with an external machine is never confirmed
		})
	}
}

func TestFiftyThousandBindingsOnOnePortAreAllKnown(t *testing.T) {
	slow(t)
	l := newLab(t)
	l.pod("a")
	l.ports(1)
	const bindings = 50_000
	frames := answers(0, bindings)
	wait.Until(t, "all bindings to be known", func() bool {
		l.flood("a", frames, netlab.Times(bindings))
		return l.metric(ownersOfNode) >= bindings
	})
	l.wantHeld("10.0.0.0/8", 0, bindings)
	if got := l.lost("port_full"); got != 0 {
		t.Errorf("refused claims: got %v, want none", got)
	}
	l.plant() // and a duplicate among them is detected
	// The owners end with their port, and leave nothing behind.
	l.sh("ip netns del a", "ip netns del plant1", "ip netns del plant2")
	wait.Until(t, "all owners to be gone", func() bool { return l.metric(ownersOfNode) == 0 })
	if got := l.metric("ipwitness_agent_claims"); got > 100 {
		t.Errorf("claims after the removal of the port: got %v, want almost none", got)
	}
}

// floodNew makes a pod send new bindings as fast as one core can, until the returned
// function is called or the test ends.
func (l *lab) floodNew(pod string, from int) (stop func()) {
	l.t.Helper()
	p, err := l.Pod(pod)
	if err != nil {
		l.t.Fatal(err)
	}
	frames := answers(from, from+1024)
	var over atomic.Bool
	done := make(chan error, 1)
	go func() {
		next := from
		done <- p.Do(func() error {
			_, err := netlab.Flood("eth0", frames, func(sent int) int {
				if over.Load() {
					return 0
				}
				if sent%len(frames) == 0 { // all frames were sent
					for _, f := range frames {
						addr, mac := binding(next)
						copy(f[6:], mac)
						copy(f[22:], mac)
						copy(f[28:], addr.AsSlice())
						next++
					}
				}
				return len(frames)
			})
			return err
		})
	}()
	stop = sync.OnceFunc(func() {
		over.Store(true)
		if err := <-done; err != nil {
			l.t.Error(err)
		}
		p.Close()
	})
	l.t.Cleanup(stop)
	return stop
}

// switched turns a pod into a LAN: its port leads to a switch, and the node has an address
// there.
func (l *lab) switched(pod, addr string) {
	l.t.Helper()
	l.sh("ip -n "+pod+" link add br0 type bridge", "ip -n "+pod+" link set br0 up",
		"ip -n "+pod+" link set eth0 master br0", "ip addr add "+addr+" dev v"+pod)
	address, _, _ := strings.Cut(addr, "/")
	l.awaitOwners(address, 1)
}

func TestAFloodHidesNoDuplicateAndIsNamed(t *testing.T) {
	slow(t)
	for _, wire := range []string{"tcx", "clsact"} {
		t.Run("wire "+wire, func(t *testing.T) {
			l := newLab(t, "--wire", wire)
			for _, pod := range []string{"alan", "b", "clan"} {
				l.pod(pod)
			}
			l.switched("alan", "192.0.2.1/26")
			l.switched("clan", "192.0.2.65/26")
			const assigned, onFlooding, onQuiet = "10.40.0.1", "192.0.2.7", "192.0.2.77"
			l.pod("d", assigned+"/32")
			l.ports(4)
			l.awaitOwners(assigned, 1)

			// Two ports show more bindings than the table can hold (agent/table), and continue.
			const all = 131072
			stopA, stopB := l.floodNew("alan", 0), l.floodNew("b", 1<<22)
			wait.Until(t, "the table to be full", func() bool { return l.metric("ipwitness_agent_claims") >= all })
			wait.Until(t, "claims to be left out", func() bool { return l.lost("port_full") > 0 })
			wait.Until(t, "both ports to be named, and who is behind them", func() bool {
				named := map[string]bool{}
				for _, f := range l.node().GetFlooding() {
					named[f.GetInterface()+" "+f.GetWorkload().GetName()] = f.GetLeftOut() > 0 && f.GetRate() > 0 && f.GetSince() != nil
				}
				return len(named) == 2 && named["valan alan"] && named["vb b"]
			})
			const floods = "vb (network namespace b) floods the agent"
			l.wantProblem(floods)
			said := l.node().GetProblems()
			said = said[slices.IndexFunc(said, func(p string) bool { return strings.Contains(p, floods) }):]
			if got := l.metric("ipwitness_agent_interfaces_flooding"); got != 2 {
				t.Errorf("flooding interfaces: got %v, want 2", got)
			}

			// External devices alternately claim an address on a quiet port and on a flooding one.
			for addr, pod := range map[string]string{onQuiet: "clan", onFlooding: "alan"} {
				wait.Until(t, "external devices by "+pod+" to be suspected", func() bool {
					l.arp(pod, 1, "02:aa:00:00:00:01", addr, addr)
					l.arp(pod, 1, "02:aa:00:00:00:02", addr, addr)
					return inState(addr, ipwitnessv1.Conflict_SUSPECTED)(l.watch.all())
				})
				if got := l.only(addr).GetRule(); got != "externals-alternate" {
					t.Errorf("rule for %s: got %s, want externals-alternate", addr, got)
				}
			}
			// A device on the flooding port claims the address of a pod.
			wait.Until(t, "the duplicate by a port that floods to be confirmed", func() bool {
				l.arp("b", 1, "02:aa:00:00:00:03", assigned, assigned)
				return inState(assigned, ipwitnessv1.Conflict_CONFIRMED)(l.watch.all())
			})
			// Duplicates between two kernels are still found.
			l.plant()

			if got := l.metric("ipwitness_agent_claims"); got > all+100 {
				t.Errorf("claims: got %v, want at most the limit of the table", got)
			}
			stopA()
			stopB()
			l.wantConfirmed(assigned)
			for _, c := range l.watch.all() {
				if !slices.Contains([]string{planted, assigned, onFlooding, onQuiet}, c.GetAddress()) {
					t.Errorf("conflict of an address that only the flood made up: %v", c)
				}
			}
			wantAttack(t, "flood-bindings", "the agent's table is full, and it leaves claims out",
				"the duplicates, and a problem of the node: "+masked(said[0], `\d+ frames`, `since .* UTC`, `\d+ per second`))
		})
	}
}

func TestManyMACsOnOneAddressAreBounded(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod("a")
	l.ports(1)
	addr := netip.MustParseAddr("10.40.0.1")
	const claimants, most = 5000, 256 // most: agent/table
	var frames [][]byte
	for n := range claimants {
		_, mac := binding(n)
		frames = append(frames, answer(addr, mac))
	}
	wait.Until(t, "claimants to be refused", func() bool {
		l.flood("a", frames, netlab.Times(claimants))
		return l.lost("port_full") >= claimants-most
	})
	if got := len(l.awaitOwners(addr.String(), 1)[0].GetEvidence()); got != most {
		t.Errorf("evidence: got %d, want %d", got, most)
	}
	l.wantProblem("va (network namespace a) floods the agent")
	l.wantOnlyPlanted()
}

func TestWhatAFullRingLosesIsCountedAndReportedByTheNextFrame(t *testing.T) {
	slow(t)
	l := newLab(t)
	// Each port may report 768 new bindings at once. All ports together may fill half of the
	// ring, which has room for 16,384 events (bpf/observe.c).
	const pods, each, bindings = 24, 1000, 24 * 1000
	for n := range pods {
		l.pod(fmt.Sprint("p", n))
	}
	l.ports(pods)
	show := func() {
		for n := range pods {
			l.flood(fmt.Sprint("p", n), answers(n*each, (n+1)*each), netlab.Times(each))
		}
	}
	l.signal(syscall.SIGSTOP)
	show()
	l.signal(syscall.SIGCONT)
	l.counted(bindings)
	lost, reported := l.result("lost"), l.result("event")
	if lost == 0 || reported == 0 {
		t.Fatalf("frames into an unread ring buffer: got %v lost and %v reported, want some of each", lost, reported)
	}
	if got := l.lost("ringbuf"); got != lost {
		t.Errorf("lost events: got %v, want the %v frames that were lost", got, lost)
	}
	// All reported bindings are known, and the lost ones are reported as a problem.
	wait.Until(t, "the ring to be read", func() bool { return l.metric(ownersOfNode) >= reported })
	if got := l.metric(ownersOfNode); got != reported {
		t.Errorf("owners: got %v, want the %v reported ones", got, reported)
	}
	l.wantProblem("is unknown until its next frame")
	if got := l.node().GetLostEvents(); float64(got) < lost {
		t.Errorf("lost events of the node: got %d, want %v", got, lost)
	}

	wait.Until(t, "all bindings to be known", func() bool {
		show()
		return l.metric(ownersOfNode) >= bindings
	})
	l.wantHeld("10.0.0.0/8", 0, bindings)
}

func TestAThousandAddressesOnOneInterface(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod("a")
	p, err := l.Pod("a")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const addresses = 1000
	each := func(change func(netlink.Link, *netlink.Addr) error) {
		t.Helper()
		err := p.Do(func() error {
			eth0, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			for n := range addresses {
				addr, _ := binding(n)
				if err := change(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}); err != nil {
					return fmt.Errorf("%s: %w", addr, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // again, after all of them were removed
		each(netlink.AddrAdd)
		wait.Until(t, "all addresses to be held", func() bool { _, n := l.held("10.0.0.0/8"); return n == addresses })
		l.wantHeld("10.0.0.0/8", 0, addresses)
		each(netlink.AddrDel)
		wait.Until(t, "no address to be held", func() bool { _, n := l.held("10.0.0.0/8"); return n == 0 })
	}
	// All at once, by removing the interface.
	each(netlink.AddrAdd)
	wait.Until(t, "all addresses to be held", func() bool { _, n := l.held("10.0.0.0/8"); return n == addresses })
	l.sh("ip link del va")
	wait.Until(t, "no address to be held", func() bool { _, n := l.held("10.0.0.0/8"); return n == 0 })
	l.wantOnlyPlanted()
}

func TestLinksThatFlapAndMoveBetweenBridges(t *testing.T) {
	for _, wire := range []string{"tcx", "clsact"} {
		t.Run("wire "+wire, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "--wire", wire)
			l.sh("ip link add br0 type bridge", "ip link set br0 up", "ip link add br1 type bridge", "ip link set br1 up")
			l.pod("a", "10.40.0.1/24")
			l.pod("b", "10.40.0.2/24")
			l.sh("ip link set va master br0", "ip link set vb master br1")
			l.ports(2)
			l.awaitOwners("10.40.0.1", 1)
			goroutines, before := l.metric("go_goroutines"), l.usage()

			p, err := l.Pod("a")
			if err != nil {
				t.Fatal(err)
			}
			flap := func(where func(func() error) error, name string, times int, steps ...func(netlink.Link) error) {
				t.Helper()
				err := where(func() error {
					link, err := netlink.LinkByName(name)
					if err != nil {
						return err
					}
					for range times {
						for _, step := range steps {
							if err := step(link); err != nil {
								return err
							}
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			const times = 200
			var bridges [2]int
			for i := range bridges {
				flap(l.Do, fmt.Sprintf("br%d", i), 1, func(l netlink.Link) error { bridges[i] = l.Attrs().Index; return nil })
			}
			flap(p.Do, "eth0", times, netlink.LinkSetDown, netlink.LinkSetUp)
			flap(l.Do, "va", times, netlink.LinkSetDown, netlink.LinkSetUp)
			flap(l.Do, "va", times,
				func(l netlink.Link) error { return netlink.LinkSetMasterByIndex(l, bridges[1]) },
				func(l netlink.Link) error { return netlink.LinkSetNoMaster(l) },
				func(l netlink.Link) error { return netlink.LinkSetMasterByIndex(l, bridges[0]) })
			p.Close()

			wait.Until(t, "the right owner on the right link", func() bool {
				owners := l.owners("?address=10.40.0.1")
				return len(owners) == 1 && owners[0].GetWorkload().GetName() == "a" && owners[0].GetScope().GetName() == "node1/br0"
			})
			l.bridged(2)
			// The observer is still attached: a frame of the pod is reported.
			_, mac := binding(1)
			l.arp("a", 2, mac.String(), "10.40.0.9", "10.40.0.1")
			l.awaitOwners("10.40.0.9", 1)
			l.wantOnlyPlanted()
			l.sh("ip netns del plant1", "ip netns del plant2")
			l.ports(2)
			wait.Until(t, "goroutines to end", func() bool { return l.metric("go_goroutines") <= goroutines+2 })
			l.awaitDescriptors(before.descriptors + 1)
			if got := l.lost("netlink"); got != 0 {
				t.Logf("netlink events that were lost, and listed again: %v times", got)
			}
		})
	}
}

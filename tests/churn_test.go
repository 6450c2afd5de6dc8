package tests

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// usage is the resources that a process uses.
type usage struct {
	descriptors int    // including those of open namespaces
	namespaces  uint32 // followed by the agent
}

func (l *lab) usage() usage {
	l.t.Helper()
	var u usage
	// nsenter replaced itself by the agent, so this is the agent's process.
	dir := fmt.Sprintf("/proc/%d", l.agent.Cmd.Process.Pid)
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		l.t.Fatal(err)
	}
	u.descriptors = len(fds)
	u.namespaces = l.node().GetNamespaces()
	return u
}

// awaitDescriptors waits until the agent has at most the given number of open files. Files that are
// open only briefly may exceed it for a moment; a leak exceeds it forever.
func (l *lab) awaitDescriptors(most int) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprintf("the agent to have at most %d open files", most), func() bool { return l.usage().descriptors <= most })
}

// churn creates and deletes pods by netlink as fast as possible. Each pod reuses the address of the
// previous one immediately.
func (l *lab) churn(from, to int) {
	l.t.Helper()
	for i := from; i < to; i++ {
		l.pod(fmt.Sprintf("c%d", i), "10.244.9.9/24")
		if i > from {
			l.sh(fmt.Sprintf("ip netns del c%d", i-1))
		}
	}
	l.sh(fmt.Sprintf("ip netns del c%d", to-1))
}

func TestChurnOfFiveHundredPodsWithImmediateReuse(t *testing.T) {
	slow(t)
	t.Parallel()
	l := newLab(t)
	l.churn(0, 100)
	l.awaitOwners("10.244.9.9", 0)
	l.ports(0)
	before := l.usage()

	// In each round, one pod in a hundred is a true duplicate.
	for round := 1; round <= 4; round++ {
		a, b := fmt.Sprintf("dup%da", round), fmt.Sprintf("dup%db", round)
		addr := fmt.Sprintf("10.244.8.%d", round)
		l.pod(a, addr+"/24")
		l.churn(100*round, 100*round+50)
		l.pod(b, addr+"/24")
		l.churn(100*round+50, 100*round+100)
		l.watch.await(addr+" to be confirmed", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
		l.sh("ip netns del "+a, "ip netns del "+b)
	}
	l.wantOnlyPlanted("10.244.8.1", "10.244.8.2", "10.244.8.3", "10.244.8.4")
	l.sh("ip netns del plant1", "ip netns del plant2")
	l.awaitOwners("10.244.9.9", 0)
	l.ports(0)

	wait.Until(t, "all namespaces to be gone", func() bool { return l.usage().namespaces == before.namespaces })
	l.awaitDescriptors(before.descriptors) // make bench ARGS=churn measures memory
}

func TestChurnOfAThousandLinks(t *testing.T) {
	slow(t)
	t.Parallel()
	for _, wire := range []string{"tcx", "clsact"} {
		t.Run("wire "+wire, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "--wire", wire)
			l.churn(0, 3)
			l.ports(0)
			before := l.usage()
			// Both ends of these veth pairs stay on the host, so each pair has two ports. Half of
			// the pairs are renamed, and half are moved to another namespace before they are
			// deleted.
			l.sh("ip netns add away")
			away, err := l.Pod("away")
			if err != nil {
				t.Fatal(err)
			}
			err = l.Do(func() error {
				for i := range 500 {
					v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("a%d", i)}, PeerName: fmt.Sprintf("b%d", i)}
					if err := netlink.LinkAdd(v); err != nil {
						return err
					}
					if i%2 == 0 {
						if err := netlink.LinkSetName(v, fmt.Sprintf("r%d", i)); err != nil {
							return err
						}
					} else if err := netlink.LinkSetNsFd(v, away.Fd()); err != nil {
						return err
					}
					if i >= 20 {
						peer, err := netlink.LinkByName(fmt.Sprintf("b%d", i-20))
						if err != nil {
							return err
						}
						if err := netlink.LinkDel(peer); err != nil {
							return err
						}
					}
				}
				return nil
			})
			away.Close()
			if err != nil {
				t.Fatal(err)
			}
			// 20 pairs are left, and ten of them have one end in the other namespace.
			l.ports(30)
			l.sh("ip netns del away")
			l.ports(20)
			err = l.Do(func() error {
				for i := 480; i < 500; i += 2 {
					if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("r%d", i)}}); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			l.ports(0)
			l.awaitDescriptors(before.descriptors)
			if wire == "clsact" {
				l.wantNoFilters()
			}
		})
	}
}

// wantNoFilters fails if a filter or clsact qdisc is left on the host.
func (l *lab) wantNoFilters() {
	l.t.Helper()
	if out, err := l.Run("tc qdisc show"); err != nil || strings.Contains(out, "clsact") {
		l.t.Errorf("qdiscs: got %q, %v, want no clsact", out, err)
	}
}

func TestTwoAgentsWithOneRunNetnsDoNotSeeEachOthersPods(t *testing.T) {
	t.Parallel()
	first := newLab(t)
	host, err := first.Beside()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	second := startLab(t, host)
	for name, l := range map[string]*lab{"one": first, "two": second} {
		l.pod(name, "10.244.0.7/24")
	}
	// The nodes share no link, so one address on both is not a conflict. Each node sees only its
	// own pod.
	for name, l := range map[string]*lab{"one": first, "two": second} {
		l.awaitOwner("10.244.0.7", name)
		l.plantAs("plant" + name)
		if c := l.watch.find("10.244.0.7"); len(c) != 0 {
			t.Errorf("conflict with a pod of the other node: %v", c)
		}
		l.awaitOwners("10.244.0.7", 1)
	}
}

// signal sends a signal to the host's agent.
func (l *lab) signal(s syscall.Signal) {
	l.t.Helper()
	if err := l.agent.Cmd.Process.Signal(s); err != nil {
		l.t.Fatal(err)
	}
}

func TestListingRecoversLostNetlinkEvents(t *testing.T) {
	slow(t)
	l := newLab(t, "--wire", "off")
	l.pod("a")
	l.pod("b", "10.40.0.1/24")
	l.pod("c", "10.40.0.3/24")
	l.awaitOwners("10.40.0.1", 1)
	l.awaitOwners("10.40.0.3", 1)
	a, err := l.Pod("a")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	// change adds (+) and deletes (-) addresses the given number of times.
	change := func(times int, changes ...string) {
		t.Helper()
		err := a.Do(func() error {
			eth0, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			for range times {
				for _, c := range changes {
					addr, err := netlink.ParseAddr(c[1:])
					if err != nil {
						return err
					}
					act := netlink.AddrAdd
					if c[0] == '-' {
						act = netlink.AddrDel
					}
					if err := act(eth0, addr); err != nil {
						return fmt.Errorf("%s: %w", c, err)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	l.signal(syscall.SIGSTOP)
	change(1, "+10.50.0.1/32")                       // the agent receives this change
	change(30_000, "+10.60.0.1/32", "-10.60.0.1/32") // fills the socket
	change(1, "-10.50.0.1/32")                       // the agent misses this change
	l.sh("ip link del vb", "ip link add vb type veth peer name eth0 netns b", "ip link set vb up", "ip -n b link set eth0 up")
	l.assign("b", "10.40.0.2/24")
	l.sh("ip netns del c") // the agent also misses the changes of a whole namespace, and of the next one
	l.pod("d", "10.40.0.3/24")
	l.signal(syscall.SIGCONT)
	for i := range 8 { // while the agent reads the backlog
		change(1, fmt.Sprintf("+10.51.0.%d/32", i+1))
	}

	wait.Until(t, "a loss to be counted", func() bool { return l.node().GetLostEvents() > 0 })
	for i := range 8 {
		l.awaitOwners(fmt.Sprintf("10.51.0.%d", i+1), 1)
	}
	l.awaitOwners("10.40.0.2", 1)
	for _, gone := range []string{"10.40.0.1", "10.50.0.1", "10.60.0.1"} {
		l.awaitOwners(gone, 0)
	}
	wait.Until(t, "10.40.0.3 to be the new pod's", func() bool {
		owners := l.owners("?address=10.40.0.3")
		return len(owners) == 1 && owners[0].GetWorkload().GetName() == "d"
	})
	if got := l.lost("netlink"); got == 0 {
		t.Error("lost events of netlink: got none")
	}
	l.wantOnlyPlanted()
}

func TestInterfaceOfASandboxReplacedDuringLostEvents(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod("a", "10.40.0.1/24")
	l.awaitOwners("10.40.0.1", 1)
	for i := range 5 {
		l.signal(syscall.SIGSTOP)
		l.sh("ip link del va", "ip link add va type veth peer name eth0 netns a", "ip link set va up", "ip -n a link set eth0 up")
		l.assign("a", fmt.Sprintf("10.40.0.%d/24", i+2))
		l.signal(syscall.SIGCONT)
	}
	l.awaitOwners("10.40.0.6", 1)
	for i := range 5 {
		l.awaitOwners(fmt.Sprintf("10.40.0.%d", i+1), 0)
	}
}

func TestUnusualInterfaceNameIsHarmless(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod("odd")
	l.sh("ip -n odd link set eth0 down", "ip -n odd link set eth0 name e\xff0", "ip -n odd link set e\xff0 up", "ip -n odd addr add 10.40.0.1/24 dev e\xff0")
	l.awaitOwners("10.40.0.1", 1)
	l.plant()
}

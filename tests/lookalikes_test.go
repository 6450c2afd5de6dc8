package tests

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// wantApplied fails where the explanation of an address does not say that a
// rule applied.
func wantApplied(t *testing.T, e *ipwitnessv1.ExplainResponse, rule string) {
	t.Helper()
	if !slices.ContainsFunc(e.GetSteps(), func(s *ipwitnessv1.ExplainResponse_Step) bool {
		return s.GetRule() == rule && s.GetApplied() && s.GetReason() != ""
	}) {
		t.Errorf("explanation of %s: rule %s did not apply in %v", e.GetAddress(), rule, e.GetSteps())
	}
}

func TestL1AddressReusedAfterItsPodWasDeleted(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for i := range 10 {
		pod := fmt.Sprintf("p%d", i)
		l.pod(pod, "10.244.0.9/24")
		l.awaitOwners("10.244.0.9", 1)
		// Its death sends no RTM_DELADDR.
		l.sh("ip netns del " + pod)
	}
	l.wantOnlyPlanted()
	l.awaitOwners("10.244.0.9", 0)
}

func TestL3SandboxOfOnePodMadeAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t, "--handover-grace", "1h")
	cni := l.cni(netlab.PTP)
	// kubelet makes a new sandbox for the same pod, while the old one still ends:
	// another namespace, the same pod in the CNI arguments.
	for _, sandbox := range []string{"sandbox1", "sandbox2"} {
		if err := cni.AddAs(sandbox, "web-0"); err != nil {
			t.Fatal(err)
		}
		if err := cni.Forget(); err != nil {
			t.Fatal(err)
		}
	}
	l.watch.await("the two sandboxes to be suspected", inState(podAddress(1), ipwitnessv1.Conflict_SUSPECTED))
	l.plant()
	if c := l.only(podAddress(1)); c.GetState() != ipwitnessv1.Conflict_SUSPECTED || c.GetRule() != "same-pod" {
		t.Errorf("two sandboxes of one pod: got %s by rule %s, want SUSPECTED by same-pod", c.GetState(), c.GetRule())
	}
	if err := cni.Delete("sandbox1"); err != nil {
		t.Fatal(err)
	}
	l.watch.await("the conflict to be resolved", inState(podAddress(1), ipwitnessv1.Conflict_RESOLVED))
}

func TestL5HostNetworkPodsShareTheNodesAddress(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod("p1")
	l.sh("ip addr add 192.0.2.1/24 dev vp1")
	// Processes of hostNetwork pods are in the node's own namespace.
	for range 3 {
		cmd := l.Command("sleep", "infinity")
		if err := l.Start(cmd); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	}
	l.wantOnlyPlanted()
	owners := l.awaitOwners("192.0.2.1", 1)
	if owners[0].GetWorkload().GetKind() != ipwitnessv1.Workload_HOST {
		t.Errorf("owner of the node's address: got %v, want HOST", owners[0].GetWorkload())
	}
}

func TestL9LinkLocalAddressesThatEveryLinkHas(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh("ip addr add 169.254.20.10/32 dev lo") // nodelocaldns
	for _, pod := range []string{"a", "b"} {
		l.pod(pod, "169.254.169.2/30", "fe80::1/64")
		l.sh(fmt.Sprintf("ip -n %s addr add 169.254.20.10/32 dev lo", pod))
	}
	l.wantOnlyPlanted()
	for _, addr := range []string{"169.254.169.2", "fe80::1", "169.254.20.10"} {
		if c := l.watch.find(addr); len(c) != 0 {
			t.Errorf("conflict of %s: got %v, want none", addr, c)
		}
	}
	wantApplied(t, l.explain("169.254.169.2"), "link-local")
	wantApplied(t, l.explain("169.254.20.10"), "loopback-or-dummy")
}

func TestL11GatewayAddressOnEveryHostVeth(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cni := l.cni(netlab.PTP)
	for i := range 5 {
		if err := cni.Add(fmt.Sprintf("p%d", i)); err != nil {
			t.Fatal(err)
		}
		l.awaitOwners(podAddress(i+1), 1)
	}
	l.wantOnlyPlanted()
	if got, err := l.Run("ip -4 -o addr show to 10.244.0.1"); err != nil || strings.Count(got, "\n") != 5 {
		t.Fatalf("gateway addresses on the host: got %q, %v, want five", got, err)
	}
	owners := l.awaitOwners("10.244.0.1", 1)
	if owners[0].GetWorkload().GetKind() != ipwitnessv1.Workload_HOST {
		t.Errorf("owner of the gateway address: got %v, want HOST", owners[0].GetWorkload())
	}
	wantApplied(t, l.explain("10.244.0.1"), "one-namespace")
}

func TestL17EqualRangesOnIsolatedBridges(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, tenant := range []string{"red", "blue"} {
		l.sh(fmt.Sprintf("ip link add br-%s type bridge", tenant), fmt.Sprintf("ip link set br-%s up", tenant))
		l.pod(tenant)
		l.sh(fmt.Sprintf("ip link set v%s master br-%s", tenant, tenant))
		l.assign(tenant, "10.0.0.5/24")
	}
	l.wantOnlyPlanted()
	if c := l.watch.find("10.0.0.5"); slices.ContainsFunc(c, func(c *ipwitnessv1.Conflict) bool { return c.GetConfirmedAt() != nil }) {
		t.Errorf("conflict of 10.0.0.5: got %v, want none", c)
	}
	wantApplied(t, l.explain("10.0.0.5"), "different-links")

	// The same two on one bridge are a conflict, even where the node has no part in it.
	l.pod("green")
	l.sh("ip link set vgreen master br-red")
	l.assign("green", "10.0.0.5/24")
	l.watch.await("10.0.0.5 on br-red to be confirmed", inState("10.0.0.5", ipwitnessv1.Conflict_CONFIRMED))
	for _, c := range l.watch.find("10.0.0.5") {
		if c.GetState() != ipwitnessv1.Conflict_CONFIRMED {
			continue
		}
		if got, want := ownerNames(c), "green | red"; got != want || c.GetScope().GetName() != "node1/br-red" {
			t.Errorf("conflict: got %s in %v, want %s in LINK node1/br-red", got, c.GetScope(), want)
		}
	}
}

// arp sends an ARP packet out of a pod.
func (l *lab) arp(pod string, op uint16, sha, spa, tpa string) {
	l.t.Helper()
	mac, err := net.ParseMAC(sha)
	if err != nil {
		l.t.Fatal(err)
	}
	p, err := l.Pod(pod)
	if err != nil {
		l.t.Fatal(err)
	}
	defer p.Close()
	err = p.Do(func() error {
		return netlab.Send("eth0", netlab.ARP(op, mac, netip.MustParseAddr(spa), netip.MustParseAddr(tpa)))
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

// ports waits until the observer is on so many ports.
func (l *lab) ports(n uint32) {
	l.t.Helper()
	until(l.t, fmt.Sprintf("%d ports", n), func() bool { return l.node().GetPorts() == n })
}

// frames waits until the observer counted so many frames with a result.
func (l *lab) frames(result string, n int) {
	l.t.Helper()
	until(l.t, fmt.Sprintf("%d frames with result %s", n, result), func() bool {
		text, err := l.program.Text(l.t.Context(), "/metrics")
		if err != nil {
			l.t.Fatal(err)
		}
		_, value, _ := strings.Cut(text, fmt.Sprintf("ipwitness_agent_frames_total{protocol=%q,result=%q} ", "arp", result))
		value, _, _ = strings.Cut(value, "\n")
		return value != "" && value == fmt.Sprint(n)
	})
}

func TestL19ARPProbesOwnNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod("holder", "10.244.0.7/24")
	l.pod("prober")
	l.ports(2)
	l.awaitOwners("10.244.0.7", 1)
	l.arp("prober", 1, "02:00:00:00:00:99", "0.0.0.0", "10.244.0.7")
	l.arp("prober", 1, "02:00:00:00:00:99", "0.0.0.0", "10.244.0.7")
	l.frames("probe", 2)
	l.wantOnlyPlanted()
	if c := l.watch.find("10.244.0.7"); len(c) != 0 {
		t.Errorf("conflict of a probed address: got %v, want none", c)
	}
	l.awaitOwners("10.244.0.7", 1)
}

func TestL20OneHolderSeenOnTheWireIsOneOwner(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0")
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		l.sh(fmt.Sprintf("ip link set v%s master cni0", pod), fmt.Sprintf("ip -n %s link set eth0 address 02:00:00:00:00:0%s", pod, pod))
	}
	l.assign("a", "10.244.0.7/24")
	l.ports(2)
	// Its own announcement, request and answer, by its own port; and its frame
	// once more by another port, as a loop in the wiring would bring it.
	l.arp("a", 1, "02:00:00:00:00:0a", "10.244.0.7", "10.244.0.7")
	l.arp("a", 1, "02:00:00:00:00:0a", "10.244.0.7", "10.244.0.1")
	l.arp("a", 2, "02:00:00:00:00:0a", "10.244.0.7", "10.244.0.1")
	l.arp("b", 1, "02:00:00:00:00:0a", "10.244.0.7", "10.244.0.1")
	until(t, "four kinds of evidence by two witnesses", func() bool {
		kinds := map[string]bool{}
		for _, o := range l.awaitOwners("10.244.0.7", 1) {
			for _, e := range o.GetEvidence() {
				kinds[e.GetKind().String()+e.GetWitness()] = true
			}
		}
		return len(kinds) >= 5
	})
	l.wantOnlyPlanted()
	if c := l.watch.find("10.244.0.7"); len(c) != 0 {
		t.Errorf("conflict: got %v, want none", c)
	}
}

package tests

import (
	"fmt"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// wipe plays the accident: pods, the IPAM directory deleted, as many pods more.
func wipe(t *testing.T, l *lab, cni *netlab.CNI, pods int) {
	t.Helper()
	for _, generation := range []string{"old", "new"} {
		for i := range pods {
			if err := cni.Add(fmt.Sprintf("%s%d", generation, i+1)); err != nil {
				t.Fatal(err)
			}
		}
		if generation == "old" {
			if err := cni.Forget(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// wantWiped checks what must be said of each duplicate after a wipe.
func wantWiped(t *testing.T, l *lab, pods int) {
	t.Helper()
	for i := range pods {
		addr := podAddress(i + 1)
		l.watch.await(addr+" to be confirmed", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
		c := l.only(addr)
		if got, want := ownerNames(c), fmt.Sprintf("default/new%d | default/old%d", i+1, i+1); got != want {
			t.Errorf("owners of %s: got %s, want %s", addr, got, want)
		}
		if c.GetScope().GetKind() != ipwitnessv1.Scope_NODE || c.GetScope().GetName() != "node1" {
			t.Errorf("scope of %s: got %v, want NODE node1", addr, c.GetScope())
		}
		if c.GetRule() != "assigned-twice" {
			t.Errorf("rule for %s: got %q, want assigned-twice", addr, c.GetRule())
		}
		for _, pod := range []string{"old", "new"} {
			if name := fmt.Sprintf("default/%s%d", pod, i+1); !strings.Contains(c.GetSummary(), name) {
				t.Errorf("summary of %s does not name %s: %q", addr, name, c.GetSummary())
			}
		}
		if len(c.GetAdvice()) == 0 {
			t.Errorf("conflict of %s has no advice", addr)
		}
	}
	for _, c := range l.watch.all() {
		if c.GetAddress() == "10.244.0.1" {
			t.Errorf("the gateway address was reported: %v", c)
		}
	}
	if got := len(l.watch.all()); got != pods {
		t.Errorf("conflicts: got %d, want %d: %v", got, pods, l.watch.all())
	}
}

func TestT1PTPWithTheIPAMDirectoryDeletedUnderLivePods(t *testing.T) {
	for _, wire := range []string{"auto", "clsact", "off"} {
		t.Run("wire "+wire, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "--wire", wire)
			cni := l.cni(netlab.PTP)
			const pods = 3
			wipe(t, l, cni, pods)
			wantWiped(t, l, pods)

			for i := range pods {
				if err := cni.Delete(fmt.Sprintf("old%d", i+1)); err != nil {
					t.Fatal(err)
				}
			}
			for i := range pods {
				addr := podAddress(i + 1)
				l.watch.await(addr+" to be resolved", inState(addr, ipwitnessv1.Conflict_RESOLVED))
				l.awaitOwners(addr, 1)
			}
		})
	}
}

func TestT2BridgeWithTheIPAMDirectoryWiped(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	cni := l.cni(netlab.Bridge)
	const pods = 3
	wipe(t, l, cni, pods)
	wantWiped(t, l, pods)

	// Both pods announced the address when they came: the wire is a witness of each.
	c := l.only(podAddress(1))
	for _, o := range c.GetOwners() {
		if len(o.GetEvidence()) == 0 || o.GetEvidence()[0].GetKind() != ipwitnessv1.Evidence_ASSIGNED {
			t.Errorf("evidence for %s: got %v, want ASSIGNED first", o.GetWorkload().GetName(), o.GetEvidence())
		}
	}
}

func TestT9DuplicatesWithOneMACDerivedFromTheAddress(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		l.sh(fmt.Sprintf("ip -n %s link set eth0 address 0a:58:0a:f4:00:07", pod))
		l.assign(pod, "10.244.0.7/24")
	}
	l.watch.await("10.244.0.7 to be confirmed", inState("10.244.0.7", ipwitnessv1.Conflict_CONFIRMED))
	c := l.only("10.244.0.7")
	if got, want := ownerNames(c), "a | b"; got != want {
		t.Errorf("owners: got %s, want %s", got, want)
	}
	for _, o := range c.GetOwners() {
		if o.GetMac() != "0a:58:0a:f4:00:07" {
			t.Errorf("MAC of %s: got %s", o.GetWorkload().GetName(), o.GetMac())
		}
	}
}

func TestT13IPv6DuplicateThatNoFrameShows(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add fd00:10:244::1/64 dev cni0 nodad")
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		// As the CNI bridge plugin does: without duplicate address detection.
		off := l.Command("ip", "netns", "exec", pod, "sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad")
		if _, err := l.Output(off); err != nil {
			t.Fatal(err)
		}
		l.sh(fmt.Sprintf("ip link set v%s master cni0", pod),
			fmt.Sprintf("ip -n %s addr add fd00:10:244::7/64 dev eth0", pod))
	}
	l.watch.await("fd00:10:244::7 to be confirmed", inState("fd00:10:244::7", ipwitnessv1.Conflict_CONFIRMED))
	if got, want := ownerNames(l.only("fd00:10:244::7")), "a | b"; got != want {
		t.Errorf("owners: got %s, want %s", got, want)
	}
}

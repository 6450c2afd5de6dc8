package tests

import (
	"strings"
	"testing"
	"time"
)

func TestAnAddressHasOneTimeAtEachStart(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	assigned := func(addr string) time.Time {
		t.Helper()
		o := l.awaitOwners(addr, 1)[0]
		if o.GetAssignedAt().AsTime().After(o.GetFirstSeen().AsTime()) {
			t.Errorf("%s: assigned at %s, seen at %s", addr, o.GetAssignedAt().AsTime(), o.GetFirstSeen().AsTime())
		}
		return o.GetAssignedAt().AsTime()
	}
	before := time.Now()
	l.pod("a", "10.244.0.7/24")
	after := time.Now()
	want := assigned("10.244.0.7")
	const step = 10 * time.Millisecond // of the kernel's stamps
	if want.Before(before.Add(-step)) || want.After(after) {
		t.Errorf("assigned at %s, want between %s and %s", want, before, after)
	}
	for n := range 3 {
		if _, err := l.agent.Stop(); err != nil {
			t.Error(err)
		}
		l.start(strings.Fields("--node node1")...)
		if n == 1 { // a new address must not change what is known of the old one
			l.pod("b", "10.244.0.8/24")
			assigned("10.244.0.8")
		}
		if got := assigned("10.244.0.7"); got.Sub(want).Abs() > step {
			t.Errorf("start %d: assigned at %s, want %s", n+2, got, want)
		}
	}
}

// An address like ::ffff:10.244.0.7 is not the IPv4 address, and Linux drops packets from it.
func TestAMappedAddressIsNotTheIPv4Address(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0")
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		l.sh("ip link set v" + pod + " master cni0")
	}
	l.assign("a", "10.244.0.7/24")
	l.sh("ip -n b addr add ::ffff:10.244.0.7/128 dev eth0 nodad")
	l.assign("b", "10.244.0.8/24")
	l.awaitOwners("10.244.0.8", 1)
	l.awaitOwners("10.244.0.7", 1)
	l.wantNone("10.244.0.7")
}

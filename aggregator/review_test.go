package aggregator

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestANodeThatKubernetesNamesOtherwiseDoesNotOverlapItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		one := verdict.RangeOf(netip.MustParsePrefix("10.244.0.0/24"))
		compare := func(agent, kubernetes string) {
			l.store.mu.Lock()
			defer l.store.mu.Unlock()
			l.store.overlaps.found = make(map[string]struct{})
			l.store.compareGroup([]side{
				{node: kubernetes, Range: one},
				{node: agent, rec: &verdict.Node{Name: agent}, Range: one},
			})
		}
		for agent, kubernetes := range map[string]string{"n1": "n1.example.org", "N1.example.org": "n1", "worker": "Worker"} {
			compare(agent, kubernetes)
			l.wantFindings(agent + " is " + kubernetes)
		}
		compare("n1", "n10")
		l.wantFindings("two nodes", "pod-cidr-overlap 10.244.0.0/24")
	})
}

func TestReuseOfAnAddressIsNotRememberedAsABookingElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := kindNode(l)
		// One message has it all: the pod has ended, and the next one has its address.
		next := merge(kindPod(4, "c", "10.244.0.2"), given(allocated("10.244.0.2", "sandbox-c")))
		next.Namespaces = append(next.Namespaces, &pb.NamespaceRecord{Id: 2, Gone: true})
		a.send(next).sync()
		time.Sleep(time.Minute)
		l.wantFindings("it is reused")
		if past := l.store.table.get(netip.MustParseAddr("10.244.0.2")).booking.past; len(past) != 0 {
			t.Errorf("got past %+v, want none", past[0])
		}
		// Another node has the same range.
		l.dial().send(snapshot(hello("n2", 1), kindPod(2, "d", "10.244.0.2"),
			poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)), given(allocated("10.244.0.2", "sandbox-d")))).sync()
		if c := l.conflict(pb.Conflict_SUSPECTED); c.GetCause() != verdict.CausePodCIDROverlap {
			t.Errorf("got cause %s because of %q", c.GetCause(), c.GetBecause())
		}
	})
}

func TestAPoolThatIsReadAnewIsNotRememberedAsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := kindNode(l)
		for _, again := range []*pb.ReportRequest{
			snapshot(hello("n1", 1), kindPod(2, "a", "10.244.0.2"), kindPod(3, "b", "10.244.0.3"), poolOf(hostLocal("10.244.0.0/24", pb.Pool_READING))),
			snapshot(hello("n1", 1), kindPod(2, "a", "10.244.0.2"), kindPod(3, "b", "10.244.0.3")),
		} {
			a = l.dial().send(again).sync()
			a.send(merge(&pb.ReportRequest{}, poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)),
				given(allocated("10.244.0.2", "sandbox-a"), allocated("10.244.0.3", "sandbox-b")))).sync()
			time.Sleep(time.Minute)
			l.wantFindings("all is well")
			if past := l.store.table.get(netip.MustParseAddr("10.244.0.2")).booking.past; len(past) != 0 {
				t.Errorf("got past %+v, want none", past[0])
			}
		}
	})
}

func TestALeakIsFoundOnceAllNodesAreHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{LeakedAfter: time.Minute})
		p := &verdict.Pool{
			IPAM: verdict.Calico, Name: "p", State: verdict.PoolKnown,
			Ranges: []verdict.Range{verdict.RangeOf(netip.MustParsePrefix("192.168.0.0/16"))},
		}
		l.ofCluster(kube.IPAMChange{Pool: p}, kube.IPAMChange{Allocation: &verdict.Allocation{Pool: p, Address: netip.MustParseAddr("192.168.9.9"), Pod: "x", Namespace: "y"}})
		time.Sleep(time.Hour)
		l.wantFindings("no agent is heard from")
		a := l.dial().send(snapshot(hello("n1", 1))).sync()
		time.Sleep(2*time.Minute + coverageFor)
		l.wantFindings("all are, and nobody has it", "leaked 192.168.9.9")
		l.ofCluster(kube.IPAMChange{Allocation: &verdict.Allocation{Pool: p, Address: netip.MustParseAddr("192.168.9.10"), Pod: "x2", Namespace: "y"}})
		time.Sleep(30 * time.Second)
		a.cancel()
		_ = a.ended()
		time.Sleep(time.Minute)
		l.wantFindings("its node may be the one that is away", "leaked 192.168.9.9")
		l.dial().send(snapshot(hello("n1", 1))).sync()
		time.Sleep(2*time.Minute + coverageFor)
		l.wantFindings("it is back", "leaked 192.168.9.10", "leaked 192.168.9.9")
	})
}

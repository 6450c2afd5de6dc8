package facts

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// If the link of an interface becomes a veth, frames that other nodes saw are no longer attributed
// to the interface. Frames of interfaces on other links are not judged again.
func TestFramesAreJudgedWhenTheLinkOfTheirSenderChanges(t *testing.T) {
	s := newScene(t)
	other := onLAN(4, "10.0.0.4")
	other.Interfaces[0].Link = "eth1"
	a, b := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.2"), other), s.joins("n2", "b2", 1, lan(2))
	b.report(seen("10.0.0.9", records.MAC(2), 1), seen("10.0.0.8", records.MAC(7), 1))
	weak := seen("10.0.0.7", records.MAC(4), 1)
	weak.Claims[0].Source = records.MAC(77)
	b.report(weak)
	s.judgeAll()
	a.report(&pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_POINT_TO_POINT}}})
	s.wantJudged("its link is a veth", "10.0.0.2", "10.0.0.9")
	s.check(t, "its link is a veth")
}

// A frame that another node of the domain saw is judged again when an interface gets its hardware
// address. Frames in other domains are not.
func TestFramesAreJudgedWhenAnInterfaceGetsTheirMAC(t *testing.T) {
	for name, mac := range map[string][]byte{"a MAC of one interface": records.MAC(8), "a virtual MAC": {0, 0, 0x5e, 0, 1, 7}} {
		s := newScene(t)
		inside := func(record uint32, addr string) *pb.ReportRequest { // a pod on a bridge with the uplink as a port
			m := pod(record, addr)
			m.Links, m.Interfaces[0].Link, m.Interfaces[1].Link = nil, "eth0", "eth0"
			return m
		}
		frame := func(record uint32, addr string) *pb.ReportRequest {
			c := announced(record, addr, mac)
			c.Link = "eth0"
			return records.Claims(c)
		}
		a, b := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"), onLAN(4, "10.0.0.4")), s.joins("n2", "b2", 1, lan(2), inside(3, "10.0.0.3"))
		b.report(seen("10.0.0.4", records.MAC(4), 1), frame(3, "10.0.0.9"))
		s.joins("n3", "b3", 1, lan(3), onLAN(5, "10.0.0.5"))
		d := s.joins("n4", "b4", 1, lan(4), inside(6, "10.0.0.6"))
		d.report(seen("10.0.0.5", records.MAC(5), 1), frame(6, "10.0.0.10"))
		s.wantDomains(name, "10.0.0.9", "n2 n1/eth0 -")
		s.wantDomains(name, "10.0.0.10", "n4 n3/eth0 -")
		for _, mac := range [][]byte{mac, records.MAC(2)} {
			s.judgeAll()
			m := onLAN(2, "10.0.0.1")
			m.Interfaces[0].Mac = mac
			a.report(&pb.ReportRequest{Interfaces: m.Interfaces})
			s.wantJudged(name, "10.0.0.1", "10.0.0.9")
		}
	}
}

// The MAC of a namespace that two agents report identifies one sender, as soon as both agents know
// that it is one namespace.
func TestFramesJoinLinksOnceTheirSenderIsKnown(t *testing.T) {
	s := newScene(t)
	part := func(netns string) *pb.ReportRequest {
		m := onLAN(2, "10.0.0.1")
		m.Namespaces[1].Netns = netns
		return m
	}
	s.joins("n1", "b1", 1, lan(1), part("4002"))
	inner, err := s.hello(&pb.Hello{Node: "n2", BootId: "b1", Netns: "2", Epoch: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	inner.snapshot(lan(2), part(""))
	s.joins("n3", "b3", 1, lan(3), seen("10.0.0.1", records.MAC(2), 1))
	s.wantDomains("two namespaces have the MAC", "10.0.0.1", "n1 - -", "n2 - -", "n3 - -")
	inner.report(&pb.ReportRequest{Namespaces: part("4002").Namespaces[1:]})
	s.wantDomains("it is one namespace", "10.0.0.1", "n1 n1/eth0 -", "n2 n1/eth0 -", "n3 n1/eth0 -")
}

// Frames from before a change do not end with a kernel's address that comes and goes in one change.
func TestFramesOutliveAnAddressThatComesAndGoes(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.2"), seen("10.0.0.9", records.MAC(2), 1))
	s.judgeAll()
	s.Settle(key("10.0.0.9"), true)
	a.report(records.Claims(assigned(2, "10.0.0.9"), withdrawn(2, "10.0.0.9").Claims[0]))
	if !s.WiredOrFailed(key("10.0.0.9")) {
		t.Error("got the frame ended, want it kept")
	}
	s.judgeAll()
	s.Settle(key("10.0.0.9"), true)
	a.report(assignedMessage(2, "10.0.0.9"))
	s.judgeAll()
	if a.report(withdrawn(2, "10.0.0.9")); s.WiredOrFailed(key("10.0.0.9")) {
		t.Error("got the frame kept, want it ended with the address that was judged")
	}
}

// The owners from before a change have the claims from before the change.
func TestClaimsBeforeTheyAreSeenAgain(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"))
	s.judgeAll()
	s.OwnersWatched = func() bool { return true }
	first := s.now
	s.after(time.Second)
	again := assignedMessage(2, "10.0.0.2")
	again.Claims[0].Count = 2
	a.report(again)
	if owners, derived := s.Before(key("10.0.0.2")); !derived || len(owners) != 1 || owners[0].Claims[0].Read != first || owners[0].Claims[0].Count != 1 {
		t.Errorf("got %+v, want the claim as it was first read", owners)
	}
}

// Making one case after the other takes no memory for records.
func TestABuilderReusesItsRecords(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), records.Claims(announced(2, "10.0.0.2", records.MAC(2))))
	b := s.Builder()
	for range 10 {
		b.Case(key("10.0.0.2"), false)
	}
	if len(b.claims.records) != 2 || len(b.interfaces.records) != 2 || len(b.namespaces.records) != 2 || len(b.links.records) != 1 {
		t.Errorf("got %d claims, %d interfaces, %d namespaces and %d links after several cases",
			len(b.claims.records), len(b.interfaces.records), len(b.namespaces.records), len(b.links.records))
	}
	for range 2 {
		b.Keep()
		b.Case(key("10.0.0.2"), false)
		if len(b.claims.records) != 2 {
			t.Errorf("got %d claims after a case that was kept, want those of the last one", len(b.claims.records))
		}
	}
}

// A claim that ended before it expires is not deleted twice.
func TestClaimsThatEndBeforeTheyExpire(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), seen("10.0.0.9", records.MAC(9), 1), seen("10.0.0.8", records.MAC(8), 1))
	b := s.Builder()
	refs := b.Refs(b.Case(key("10.0.0.9"), false).Claims)
	s.judgeAll()
	item := s.queue(key("10.0.0.9")).Take(key("10.0.0.9"))
	gone := seen("10.0.0.9", records.MAC(9), 1)
	gone.Claims[0].Gone = true
	a.report(gone)
	s.after(time.Hour)
	s.Expire(item, refs)
	item.Finish()
	if a.n.Claims() != 1 || !s.Claimed(key("10.0.0.8")) {
		t.Errorf("got %d claims, want the other one", a.n.Claims())
	}
	s.checkBudget("it has ended")
}

// The networks of a node's pods may change when a namespace is found to be a pod.
func TestRangesChangeWithTheOwnerOfANamespace(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"))
	s.notified.heard = nil
	next := pod(2, "10.0.0.2").Namespaces[1]
	next.Workload.Kind = pb.Workload_CONTAINER
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{next}})
	s.wantHeard("a pod is a container", "lack n1#2", "ranges n1")
}

// Whether a node is covered matters only for the node of a pool, not for other nodes with a claim.
func TestOnlyTheNodeOfAPoolIsCovered(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.2", "c")}})
	s.joins("n2", "b2", 1, pod(2, "10.0.0.2"))
	c := s.Builder().Case(key("10.0.0.2"), true)
	if len(c.Nodes) != 1 || c.Nodes[0].Node.Name != "n1" || !c.Nodes[0].Covered {
		t.Errorf("got nodes %+v, want that of the pool", c.Nodes)
	}
}

// MACs that several devices share by design are not counted as shared by nodes.
func TestVirtualMACsAreNotShared(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1))
	before, _ := s.SharedMACs()
	a.report(seen("10.0.0.9", []byte{0, 0, 0x5e, 0, 1, 7}, 1))
	if macs, _ := s.SharedMACs(); macs != before {
		t.Errorf("got %d MACs, want %d", macs, before)
	}
	a.report(seen("10.0.0.9", records.MAC(9), 1), seen("10.0.0.8", records.MAC(9), 1))
	if macs, _ := s.SharedMACs(); macs != before+1 {
		t.Errorf("got %d MACs, want one more than %d", macs, before)
	}
}

// A namespace whose inode equals the epoch of the agent is replaced by one with another inode.
func TestAnInodeIsNotAnEpoch(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 4002, pod(2, "10.0.0.2"))
	if id := a.n.NamespaceOf(2).Netns; id != "4002" {
		t.Fatalf("got %s, want the epoch as the inode", id)
	}
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Netns: "4003"}}})
	if a.n.Claims() != 0 {
		t.Errorf("got %d claims of another namespace", a.n.Claims())
	}
	s.check(t, "another namespace has the number")
}

// A namespace that replaces another one is charged like the other one.
func TestANamespaceInThePlaceOfAnotherOneIsCharged(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1)
	var charged []int64
	for _, netns := range []string{"5000", "5001"} {
		a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 5, Netns: netns}}})
		charged = append(charged, a.n.Charged())
	}
	if charged[0] != charged[1] {
		t.Errorf("got %d bytes charged, want %d", charged[1], charged[0])
	}
	s.check(t, "another namespace has the number")
}

// A frame of an undisputed owner is judged if it was forwarded by the node and the one before was
// not, and the other way round.
func TestFramesAreJudgedWhenTheirPathChanges(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1))
	for i, test := range []struct{ routed, judged bool }{{false, true}, {false, false}, {true, true}, {true, false}, {false, true}} {
		m := seen("10.0.0.9", records.MAC(9), uint32(i+1))
		m.Claims[0].Routed = test.routed
		a.report(m)
		var want []string
		if test.judged {
			want = []string{"10.0.0.9"}
		}
		s.wantJudged(fmt.Sprint("frame ", i), want...)
		s.Settle(key("10.0.0.9"), true)
	}
}

// A machine that rebooted is listed under its old boot ID for a day.
func TestARebootedNodeIsListedForADay(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.1")).leave()
	s.joins("n1", "b2", 1, lan(1))
	want := []string{"n1@b1 unheard timed-out rebooted claims=0", "n1 connected covers claims=0"}
	s.wantNodes("it rebooted", want...)
	s.after(2 * policyForTests.NodeTimeout)
	s.Ring()
	s.wantNodes("a moment later", want...)
	s.after(ForgetNodeAfter)
	s.Ring()
	s.wantNodes("a day later", want[1])
}

// A machine that rebooted stays listed if the time of its old boot is over before its addresses are
// judged.
func TestARebootedNodeDoesNotTimeOutBeforeItIsJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.Stopped = nil // wait for judgements
		s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.1")).leave()
		s.judgeAll()
		s.after(policyForTests.NodeTimeout - 1)
		now, err := s.hello(&pb.Hello{Node: "n1", BootId: "b2", Netns: "1", Epoch: 1}, "")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if _, err := s.Snapshot(now.p, now.n, &Snapshot{Messages: once(pod(2, "10.0.0.2"), lan(1))}, func() {}); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		s.wantNodes("it reports after a reboot", "n1@b1 unheard timed-out rebooted claims=1", "n1 connected covers claims=1")
		s.after(1)
		s.Ring()
		s.wantNodes("the time of the old boot is over", "n1@b1 unheard timed-out rebooted claims=1", "n1 connected covers claims=1")
		s.wantJudged("the time of the old boot is over", "10.0.0.1", "10.0.0.2")
		synctest.Wait()
		s.wantNodes("its addresses are judged", "n1@b1 unheard timed-out rebooted claims=0", "n1 connected covers claims=1")
		s.wantJudged("its addresses are judged", "10.0.0.1")
		s.check(t, "its addresses are judged")
		s.after(ForgetNodeAfter)
		s.Ring()
		s.wantNodes("a day later", "n1 connected covers claims=1")
	})
}

// Two ports that see the same answer count as one address, and answers on another link do not count.
func TestAnswersCountOnce(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), pod(3, "10.0.0.3"))
	answer := func(addr, link string, port uint32) *pb.ClaimRecord {
		c := announced(port, addr, records.MAC(99))
		c.Kind, c.Link = pb.Evidence_ANSWERED, link
		return c
	}
	a.report(records.Claims(answer("10.0.0.9", "eth0", 2), answer("10.0.0.9", "eth0", 3), answer("10.0.0.8", "eth0", 2), answer("10.0.0.7", "veth2", 2)))
	i := slices.IndexFunc(s.Builder().Case(key("10.0.0.9"), false).Answers, func(a verdict.Answer) bool { return a.Link.Name == "eth0" })
	if i < 0 {
		t.Fatal("got no answer on eth0")
	}
	if got := s.Builder().Case(key("10.0.0.9"), false).Answers[i].Addresses; got != 2 {
		t.Errorf("got %d addresses, want 2", got)
	}
	if judged := s.judgeAll(); !slices.Contains(judged, netip.MustParseAddr("10.0.0.7")) {
		t.Errorf("got %v to be judged", judged)
	}
}

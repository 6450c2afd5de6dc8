package facts

import (
	"net/netip"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// A change of a node's pools or addresses may change the causes of conflicts about addresses that
// the node claims or sent frames about.
func TestDisputesAreJudgedWhenTheirNodesChange(t *testing.T) {
	address := onHost("10.0.0.200")
	for _, test := range []struct {
		name string
		m    *pb.ReportRequest
		want []string
	}{
		{"a pool", &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("q", "", "")}}, []string{"10.0.0.1", "10.0.0.2", "10.0.0.9"}},
		{"the end of a pool", &pb.ReportRequest{Pools: []*pb.PoolRecord{{Ipam: "host-local", Name: "p", Gone: true}}}, []string{"10.0.0.1", "10.0.0.2", "10.0.0.9"}},
		{"an interface of the node", &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 20, Name: "x", Attachment: pb.InterfaceRecord_OWN}}}, []string{"10.0.0.1", "10.0.0.2", "10.0.0.9"}},
		{"an interface of a pod", &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 20, Name: "x", Attachment: pb.InterfaceRecord_PEER}}}, nil},
		{"an address of the node", address, []string{"10.0.0.1", "10.0.0.2", "10.0.0.200", "10.0.0.9"}},
		{"an address of a pod", assignedMessage(2, "10.0.0.201"), []string{"10.0.0.201"}},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"), pod(4, "10.0.0.2"), &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}})
		b := s.joins("n2", "b2", 1, lan(2), pod(3, "10.0.0.3"))
		b.report(seen("10.0.0.9", records.MAC(2), 1), seen("10.0.0.8", records.MAC(77), 1), seen("10.0.0.7", []byte{0, 0, 0x5e, 0, 1, 7}, 1))
		s.joins("n3", "b3", 1, pod(5, "10.0.0.5")) // without frames
		s.judgeAll()
		s.notified.contested = []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5", "10.0.0.7", "10.0.0.8", "10.0.0.9"}
		a.report(test.m)
		s.wantJudged(test.name, test.want...)
		a.report(&pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "unused", Kind: pb.LinkRecord_BRIDGE}}})
		s.wantJudged(test.name + ": a change of something else")
	}
}

// If a sender answers for one more or one less address, all of them are judged again, unless there
// are many.
func TestSendersOfManyAnswersAreNotJudgedAgain(t *testing.T) {
	answer := func(i int) *pb.ClaimRecord {
		c := seen(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String(), records.MAC(99), 1).Claims[0]
		c.Kind = pb.Evidence_ANSWERED
		return c
	}
	judged := func(s *scene) bool { return len(s.judgeAll()) > 1 }
	for _, test := range []struct {
		count      int // number of addresses answered before
		more, less bool
		kernel     bool
	}{
		{1, true, true, true}, {fewAnswers - 1, true, true, true}, {fewAnswers, false, true, true}, {fewAnswers + 1, false, true, false}, {fewAnswers + 2, false, false, false},
	} {
		scene := func() (*scene, *agent) {
			s := newScene(t)
			a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"))
			for i := range test.count {
				a.report(records.Claims(answer(i)))
			}
			s.judgeAll()
			return s, a
		}
		s, a := scene()
		a.report(records.Claims(answer(1000)))
		if got := judged(s); got != test.more {
			t.Errorf("one more than %d: got all of them judged: %t, want %t", test.count, got, test.more)
		}
		s, a = scene()
		gone := answer(0)
		gone.Gone = true
		a.report(records.Claims(gone))
		if got := judged(s); got != test.less && test.count > 1 {
			t.Errorf("one less than %d: got all of them judged: %t, want %t", test.count, got, test.less)
		}
		s, a = scene()
		a.report(assignedMessage(2, "10.1.0.0"))
		if got := judged(s); got != test.kernel && test.count > 1 {
			t.Errorf("a kernel has one of %d: got all of them judged: %t, want %t", test.count, got, test.kernel)
		}
	}
}

// Claims in frames that another hardware address sent are judged again when the sender changes.
func TestProxiesAreJudgedAgain(t *testing.T) {
	s := newScene(t)
	frame := seen("10.0.0.9", records.MAC(9), 1)
	frame.Claims[0].Source = records.MAC(2)
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), pod(3, "10.0.0.3"), frame)
	s.judgeAll()
	for _, step := range []struct {
		name string
		m    *pb.ReportRequest
		want []string
	}{
		{"another pod changes", &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 3, Index: 2, Name: "other", Mac: records.MAC(3), Attachment: pb.InterfaceRecord_PEER, Link: "veth3"}}}, []string{"10.0.0.3"}},
		{"the sender changes", &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Name: "other", Mac: records.MAC(2), Attachment: pb.InterfaceRecord_PEER, Link: "veth2"}}}, []string{"10.0.0.2", "10.0.0.9"}},
		{"another pod has its MAC", &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 3, Index: 5, Name: "net1", Mac: records.MAC(2), Attachment: pb.InterfaceRecord_PEER}}}, []string{"10.0.0.9"}},
		{"the frame is gone", func() *pb.ReportRequest { frame.Claims[0].Gone = true; return frame }(), []string{"10.0.0.9"}},
		{"the sender is gone", &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Gone: true}}}, []string{"10.0.0.2"}},
	} {
		a.report(step.m)
		s.wantJudged(step.name, step.want...)
	}
}

// The owners from before a change stay the same, whatever is derived later.
func TestOwnersBeforeSeveralChanges(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"), pod(3, "10.0.0.3"))
	s.judgeAll()
	s.OwnersWatched = func() bool { return true }
	a.report(&pb.ReportRequest{Claims: []*pb.ClaimRecord{withdrawn(2, "10.0.0.2").Claims[0], withdrawn(3, "10.0.0.3").Claims[0]}})
	for addr, want := range map[string]string{"10.0.0.2": "veth2", "10.0.0.3": "veth3"} {
		owners, derived := s.Before(key(addr))
		if !derived || len(owners) != 1 || owners[0].Namespace.Who.Name() != want || len(owners[0].Claims) != 1 {
			t.Errorf("%s: got %+v, want %s", addr, owners, want)
		}
	}
	s.judgeAll()
	s.OwnersWatched = unwatched
	a.report(assignedMessage(2, "10.0.0.2"))
	if owners, derived := s.Before(key("10.0.0.2")); derived || owners != nil {
		t.Errorf("got %v without a subscriber", owners)
	}
}

// All namespaces that may have gained an intended address are reported, not only the one that
// changed.
func TestAllHoldersOfAMACAreNotified(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), pod(3, "10.0.0.3"), secondInterface(3, 2, "10.0.0.33"), seen("10.0.0.9", records.MAC(2), 1), records.Claims(announced(3, "10.0.0.8", records.MAC(9))))
	s.notified.heard = nil
	renamed := pod(2, "10.0.0.2").Interfaces[:1]
	renamed[0].Name = "other"
	a.report(&pb.ReportRequest{Interfaces: renamed})
	s.wantHeard("an interface with the MAC changes", "lack n1#2", "lack n1#3", "ranges n1")
	a.report(assignedMessage(2, "10.0.0.8"))
	s.wantHeard("a kernel has an address that entered by another pod's port", "lack n1#2", "lack n1#3", "ranges n1")
}

// The allocations of a node's pools are judged when the node leaves, even if they are not in use.
func TestAllocationsOfANodeThatLeavesAreJudged(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.7", "c")}})
	s.judgeAll()
	a.leave()
	s.wantJudged("it leaves", "10.0.0.7")
}

// A node watches its disputed addresses again once its snapshot is complete.
func TestDisputesAreJudgedAfterASnapshot(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"), assignedMessage(2, "10.0.0.3"))
	s.judgeAll()
	s.notified.contested = []string{"10.0.0.2", "10.0.0.9"}
	a.snapshot(pod(2, "10.0.0.2"), assignedMessage(2, "10.0.0.3"))
	s.wantJudged("a snapshot of known records", "10.0.0.2")
}

package aggregator

import (
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestDeviceThatAnswersForManyAddressesBecomesAProxy(t *testing.T) {
	l := newLab(t, Config{})
	router := []byte{2, 9, 9, 9, 9, 9}
	answer := func(n int) *pb.ClaimRecord {
		return &pb.ClaimRecord{
			Address: []byte{10, 244, 0, byte(n)}, Kind: pb.Evidence_ANSWERED, Namespace: 1, Index: 50, Mac: router, Link: "br0",
			FirstSeen: timestamppb.Now(), LastSeen: timestamppb.Now(), Count: 1,
		}
	}
	m := snapshot(hello("n1", 1), podVeth(2, "a", "10.244.0.1"), &pb.ReportRequest{
		Links:      []*pb.LinkRecord{{Name: "br0", Kind: pb.LinkRecord_BRIDGE, Routed: true}},
		Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 50, Name: "eth0", Attachment: pb.InterfaceRecord_OWN, Link: "br0", Uplink: true}},
		Claims:     []*pb.ClaimRecord{answer(1)},
	})
	for _, i := range m.Interfaces {
		i.Link = "br0"
	}
	a := l.dial().send(m).sync()
	l.conflict(pb.Conflict_SUSPECTED)
	for n := 2; n < verdict.ManyAnswers; n++ {
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{answer(n)}})
	}
	a.sync()
	l.conflict(pb.Conflict_SUSPECTED)
	a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{answer(verdict.ManyAnswers)}}).sync()
	l.conflict(pb.Conflict_RESOLVED)
	a.send(gone(answer(verdict.ManyAnswers))).sync()
	l.conflict(pb.Conflict_SUSPECTED)
}

func TestDeviceThatAnswersForTwoOwnersIsAProxy(t *testing.T) {
	l := newLab(t, Config{})
	answer := func(n int) *pb.ClaimRecord {
		return &pb.ClaimRecord{
			Address: []byte{10, 244, 0, byte(n)}, Kind: pb.Evidence_ANSWERED, Namespace: 1, Index: 50, Mac: []byte{2, 9, 9, 9, 9, 9}, Link: "br0",
			FirstSeen: timestamppb.Now(), LastSeen: timestamppb.Now(), Count: 1,
		}
	}
	m := snapshot(hello("n1", 1), podVeth(2, "a", "10.244.0.1"), podVeth(3, "b", "10.244.0.9"), &pb.ReportRequest{
		Links:      []*pb.LinkRecord{{Name: "br0", Kind: pb.LinkRecord_BRIDGE, Routed: true}},
		Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 50, Name: "eth0", Attachment: pb.InterfaceRecord_OWN, Link: "br0", Uplink: true}},
		Claims:     []*pb.ClaimRecord{answer(1), answer(2)},
	})
	for _, i := range m.Interfaces {
		i.Link = "br0"
	}
	a := l.dial().send(m).sync()
	l.conflict(pb.Conflict_SUSPECTED)
	// The other pod gets the second address, so no single device is a duplicate of both.
	second := assigned(3, "10.244.0.2")
	a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{second}}).sync()
	l.conflict(pb.Conflict_RESOLVED)
	a.send(gone(second)).sync()
	l.conflict(pb.Conflict_SUSPECTED)
	// The device announces the first address, which a proxy would not do.
	a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(3, "10.244.0.2")}}).sync()
	announced := answer(1)
	announced.Kind = pb.Evidence_ANNOUNCED
	a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{announced}}).sync()
	active, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{Address: "10.244.0.1"})
	if err != nil || len(active.GetConflicts()) != 1 {
		t.Errorf("conflicts of the address that it announced: got %v, %v, want one", active.GetConflicts(), err)
	}
}

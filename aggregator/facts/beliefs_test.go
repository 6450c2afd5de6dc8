package facts

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// believes returns a report of a pod that sends packets for an address to a MAC.
func believes(record uint32, addr string, mac []byte, gone bool) *pb.ReportRequest {
	return &pb.ReportRequest{Beliefs: []*pb.BeliefRecord{{
		Link: "eth0", Address: netip.MustParseAddr(addr).AsSlice(), Mac: mac, State: pb.BeliefRecord_IN_USE, Count: 1,
		Holders: []*pb.BeliefRecord_Holder{{Namespace: record, Index: 2}}, Gone: gone,
	}}}
}

func (s *scene) beliefs(addr string) []verdict.Belief {
	return s.Builder().Case(key(addr), false).Beliefs
}

func TestBeliefsAreInTheCase(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"), onLAN(3, "10.0.0.2"))
	s.judgeAll()
	a.report(believes(2, "10.0.0.2", records.MAC(9), false))
	s.wantJudged("a belief", "10.0.0.2")
	if got := s.beliefs("10.0.0.2"); len(got) != 1 || got[0].State != verdict.EntryInUse || len(got[0].Holders) != 1 || got[0].Inside || got[0].Addresses != 1 || got[0].Left != 0 {
		t.Fatalf("got %+v, want the belief of pod 2", got)
	}
	a.report(believes(2, "10.0.0.2", records.MAC(3), false))
	if got := s.beliefs("10.0.0.2"); len(got) != 2 || len(got[1].Receivers) != 1 {
		t.Errorf("got %+v, want one with a receiver, too", got)
	}
	a.report(withdrawn(3, "10.0.0.2"))
	if got := s.beliefs("10.0.0.2"); got[1].Left == 0 || got[1].Former == nil || got[1].Former.Who.Name() == "" {
		t.Errorf("got %+v, want it of one that has left", got)
	}
	s.judgeAll()
	a.report(believes(2, "10.0.0.2", records.MAC(9), true))
	s.wantJudged("its end", "10.0.0.2")
	a.report(believes(2, "10.0.0.7", records.MAC(3), false), believes(2, "10.0.0.8", records.MAC(9), false), believes(2, "10.0.0.7", records.MAC(3), false))
	if got := s.beliefs("10.0.0.2"); len(got) != 1 || got[0].Addresses != 2 {
		t.Errorf("got %+v, want two addresses with one MAC", got)
	}
	a.snapshot(lan(1), onLAN(2, "10.0.0.1"))
	if got := s.beliefs("10.0.0.2"); len(got) != 0 || len(s.believed)+len(a.n.believed) != 0 {
		t.Errorf("got %+v after a snapshot without it, want none", got)
	}
}

// Another interface of the owner has the MAC. Agents have not seen that its link is that of the belief.
func TestACardOfTheOwnerThatIsNotOnTheLinkIsKnown(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"))
	s.joins("n2", "b2", 1, lan(2), onLAN(3, "10.0.0.2"), &pb.ReportRequest{
		Links:      []*pb.LinkRecord{{Name: "eth1", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{Namespace: 3, Index: 7, Name: "eth1", Mac: records.MAC(77), Attachment: pb.InterfaceRecord_LOWER, Link: "eth1"}},
	})
	s.joins("n3", "b3", 1, lan(3), onLAN(4, "10.0.0.4")) // its MAC is that of no owner
	a.report(believes(2, "10.0.0.2", records.MAC(77), false), believes(2, "10.0.0.2", records.MAC(4), false))
	got := s.beliefs("10.0.0.2")
	if len(got) != 2 || len(got[0].Cards) != 1 || got[0].Cards[0].Name != "eth1" || len(got[1].Cards) != 0 || len(got[0].Receivers)+len(got[1].Receivers) > 0 {
		t.Errorf("got %+v, want eth1 of pod 3 as the card with the first MAC", got)
	}
}

// Agents that saw frames of an owner learn that its kernel has given the address, or the MAC, up.
func TestAgentsLearnWhoHasDeparted(t *testing.T) {
	const addr = "10.0.0.1"
	for name, change := range map[string]func(s *scene, a *agent){
		"the address":                func(_ *scene, a *agent) { a.report(withdrawn(2, addr)) },
		"the MAC":                    func(_ *scene, a *agent) { m := onLAN(2, addr); m.Interfaces[0].Mac = records.MAC(7); a.report(m) },
		"the address, in a snapshot": func(_ *scene, a *agent) { a.snapshot(lan(1)) },
	} {
		s := newScene(t)
		a, b, c := s.joins("n1", "b1", 1, lan(1), onLAN(2, addr)), s.joins("n2", "b2", 1, lan(2)), s.joins("n3", "b3", 1, lan(3))
		b.report(seen(addr, records.MAC(2), 1))
		s.judgeAll()
		s.Settle(key(addr), false)
		a.report(onLAN(3, "10.0.0.3")) // another owner changes nothing
		if len(b.p.departed) > 0 {
			t.Fatalf("%s: got %v at first, want none", name, b.p.departed)
		}
		change(s, a)
		want := []string{addr + " " + verdict.MAC(records.MAC(2)).String()}
		if !slices.Equal(b.p.departed, want) || len(a.p.departed)+len(c.p.departed) > 0 {
			t.Errorf("%s: got %v, and %v and %v at agents that saw no frame, want %v", name, b.p.departed, a.p.departed, c.p.departed, want)
		}
		b.p.departed = nil
		late := seen(addr, records.MAC(2), 2)
		late.Claims[0].Age = durationpb.New(time.Second) // the frame is older than the end
		if b.report(late); !slices.Equal(b.p.departed, want) {
			t.Errorf("%s: got %v after an older frame, want %v", name, b.p.departed, want)
		}
	}
}

// The only node with the address to which a VXLAN device sends the frames is known.
func TestTheEndOfATunnelIsKnown(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"))
	through := believes(2, "10.0.0.2", records.MAC(9), false)
	through.Beliefs[0].Tunnel = netip.MustParseAddr("192.0.2.12").AsSlice()
	own := func(mac byte) *pb.ReportRequest {
		m := lan(mac)
		m.Claims = []*pb.ClaimRecord{{Address: netip.MustParseAddr("192.0.2.12").AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: 1, Index: 9, Count: 1, PrefixLength: 24}}
		return m
	}
	want := func(when, node string) {
		t.Helper()
		if b := s.beliefs("10.0.0.2")[0]; b.Tunnel != netip.MustParseAddr("192.0.2.12") || (b.Far == nil) != (node == "") || b.Far != nil && b.Far.Name != node {
			t.Errorf("%s: got %s and node %+v, want node %q", when, b.Tunnel, b.Far, node)
		}
	}
	a.report(through)
	want("nobody has the address", "")
	s.joins("n2", "b2", 1, lan(2), onLAN(3, "192.0.2.12")) // a pod
	want("a pod has it", "")
	s.joins("n3", "b3", 1, own(3))
	want("a node has it", "n3")
	s.joins("n4", "b4", 1, own(4))
	want("two nodes have it", "")
}

func TestNodesNearAnAddressComeFirst(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"))
	s.joins("n2", "b2", 1, lan(1), onLAN(2, "10.0.0.2"))
	s.judgeAll()
	for addr, want := range map[string]string{"10.0.0.1": "n1", "10.0.0.2": "n2"} {
		if got := s.Near(key(addr)); len(got) != 2 || got[0].Name != want {
			t.Errorf("%s: got %d nodes, %s first, want two, %s first", addr, len(got), got[0].Name, want)
		}
	}
}

// An answer has states that reports do not have, and holders that are not known are counted only.
func TestAnsweredBeliefsHaveTheirHolders(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"), onLAN(3, "10.0.0.2"))
	s.judgeAll()
	b := s.Builder()
	b.Explained(key("10.0.0.2"))
	rec := func(link string, state pb.BeliefRecord_State) *pb.BeliefRecord {
		return &pb.BeliefRecord{Link: link, Address: []byte{10, 0, 0, 2}, Mac: records.MAC(3), State: state, Count: 2, Holders: []*pb.BeliefRecord_Holder{{Namespace: 2, Index: 2}, {Namespace: 9, Index: 2}}}
	}
	got := b.Answered(s.nodes[1], &pb.BeliefAnswer{Beliefs: []*pb.BeliefRecord{rec("eth0", pb.BeliefRecord_OLD), rec("eth0", 0), rec("eth0", 9), rec("eth9", pb.BeliefRecord_OLD)}})
	if len(got) != 1 || got[0].State != verdict.EntryOld || got[0].Count != 2 || len(got[0].Holders) != 1 || len(got[0].Receivers) != 1 {
		t.Errorf("got %+v, want one belief of two holders, one of which is known", got)
	}
	a.report(&pb.ReportRequest{Beliefs: []*pb.BeliefRecord{rec("eth0", pb.BeliefRecord_OLD)}})
	if got := s.beliefs("10.0.0.2"); len(got) != 0 {
		t.Errorf("got %+v, want that reports have no such state", got)
	}
}

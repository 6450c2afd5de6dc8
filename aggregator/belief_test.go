package aggregator

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// bridged returns a report of a pod on cni0 with an address.
func bridged(record uint32, name, addr string) *pb.ReportRequest {
	return &pb.ReportRequest{
		Namespaces: []*pb.NamespaceRecord{{Id: record, Netns: "400" + name, Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: name, Uid: "uid-" + name}}},
		Links:      []*pb.LinkRecord{{Name: "cni0", Kind: pb.LinkRecord_BRIDGE, Routed: true}},
		Interfaces: []*pb.InterfaceRecord{{Namespace: record, Index: 2, Name: "eth0", Kind: "veth", Mac: records.MAC(record), Attachment: pb.InterfaceRecord_PEER, Link: "cni0"}},
		Claims:     []*pb.ClaimRecord{{Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: record, Index: 2, Count: 1, PrefixLength: 24}},
	}
}

func TestAPodThatSendsToTheMACOfAFormerOwnerIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const addr = "10.244.0.7"
		l := newLab(t, Config{})
		n := l.dial().send(snapshot(hello("n1", 1), bridged(2, "a", "10.244.0.5"), bridged(3, "b", addr))).sync()
		time.Sleep(time.Minute)
		n.send(ended(3)).sync()
		believes := func(gone bool) *pb.ReportRequest {
			return &pb.ReportRequest{Beliefs: []*pb.BeliefRecord{{
				Link: "cni0", Address: netip.MustParseAddr(addr).AsSlice(), Mac: records.MAC(3), State: pb.BeliefRecord_IN_USE, Count: 1,
				Holders: []*pb.BeliefRecord_Holder{{Namespace: 2, Index: 2}}, Gone: gone,
			}}}
		}
		n.send(bridged(4, "c", addr)).send(believes(false)).sync()
		l.wantFindings("within the settle time")
		time.Sleep(2 * time.Second)
		f := l.wantFindings("after it", "stale-belief "+addr)[0]
		b := f.GetBeliefs()[0]
		if f.GetOwners()[0].GetWorkload().GetName() != "c" || b.GetHolders()[0].GetWorkload().GetName() != "a" || b.GetFormer().GetWorkload().GetName() != "b" || f.GetSeverity() != pb.Finding_CRITICAL {
			t.Errorf("got %v, want that a sends to the MAC of b, and not to c", f)
		}
		time.Sleep(time.Hour) // longer than the end of b is remembered
		if f := l.wantFindings("an hour later", "stale-belief "+addr)[0]; f.GetBeliefs()[0].GetFormer().GetWorkload().GetName() != "b" {
			t.Errorf("got %v, want b as the former owner", f)
		}
		n.send(believes(true)).sync()
		l.wantFindings("the entry is deleted")
	})
}

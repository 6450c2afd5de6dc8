package aggregator

import (
	"net/netip"
	"slices"
	"strings"
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
		n.answer = func(*pb.BeliefQuestion) *pb.BeliefAnswer {
			return &pb.BeliefAnswer{Beliefs: []*pb.BeliefRecord{believes(false).Beliefs[0]}}
		}
		if got, _ := l.sendersOf(addr); len(got) != 1 || got[0] != "not  1+0+0: n1/a" {
			t.Errorf("got senders %q, want a, to no owner", got)
		}
		time.Sleep(time.Hour) // longer than the end of b is remembered
		if f := l.wantFindings("an hour later", "stale-belief "+addr)[0]; f.GetBeliefs()[0].GetFormer().GetWorkload().GetName() != "b" {
			t.Errorf("got %v, want b as the former owner", f)
		}
		n.send(believes(true)).sync()
		l.wantFindings("the entry is deleted")
	})
}

// A node gives an address to another one without an announcement. The agent of a third node, which saw frames of the former
// one, learns it, and reports its entry before the frames are old.
func TestASilentHandOverBetweenNodesIsFound(t *testing.T) {
	const addr = "192.0.2.50"
	mac := func(node byte) []byte { return []byte{2, 0, 0, 0, 1, node} }
	on := func(node byte, addrs ...string) *pb.ReportRequest {
		m := &pb.ReportRequest{
			Links:      []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}},
			Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 2, Name: "eth0", Mac: mac(node), Attachment: pb.InterfaceRecord_OWN, Link: "eth0", Uplink: true}},
		}
		for _, a := range addrs {
			m.Claims = append(m.Claims, &pb.ClaimRecord{Address: netip.MustParseAddr(a).AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: 1, Index: 2, Count: 1, PrefixLength: 24})
		}
		return m
	}
	saw := func(a string, node byte) *pb.ReportRequest {
		return &pb.ReportRequest{Claims: []*pb.ClaimRecord{{
			Address: netip.MustParseAddr(a).AsSlice(), Kind: pb.Evidence_ANNOUNCED, Namespace: 1, Index: 2, Mac: mac(node), Link: "eth0", Count: 1,
		}}}
	}
	believes := func(gone bool) *pb.ReportRequest {
		return &pb.ReportRequest{Beliefs: []*pb.BeliefRecord{{
			Link: "eth0", Address: netip.MustParseAddr(addr).AsSlice(), Mac: mac(1), State: pb.BeliefRecord_IN_USE, Count: 1,
			Holders: []*pb.BeliefRecord_Holder{{Namespace: 1, Index: 2}}, Gone: gone,
		}}}
	}
	relays := func(answered byte, count uint32) *pb.ReportRequest { // an access point answers with the MAC of a node
		m := saw(addr, answered)
		m.Claims[0].Kind, m.Claims[0].Source, m.Claims[0].Count = pb.Evidence_ANSWERED, mac(10), count
		return m
	}
	for _, test := range []struct {
		name     string
		answered byte // the node with whose MAC the access point answers
		want     bool
	}{
		{"with the MAC of the former owner", 1, true},
		{"with the MAC of the owner", 2, false},
		{"with that of a machine outside, which sleeps", 9, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, Config{})
			n1 := l.dial().send(snapshot(hello("n1", 1), on(1, "192.0.2.1", addr))).sync()
			n2 := l.dial().send(snapshot(hello("n2", 1), on(2, "192.0.2.2"))).sync()
			n3 := l.dial().send(snapshot(hello("n3", 1), on(3, "192.0.2.3"))).sync()
			n3.send(saw(addr, 1)).send(saw("192.0.2.2", 2)).sync()
			time.Sleep(time.Minute)
			gone := on(1, addr)
			gone.Claims[0].Gone = true
			n1.send(gone).sync()
			n2.send(on(2, "192.0.2.2", addr)).sync()
			time.Sleep(time.Second)
			entry := believes(false)
			entry.Beliefs[0].Mac = mac(test.answered)
			if test.answered == 2 {
				entry = &pb.ReportRequest{}
			}
			n3.send(saw(addr, 2)).send(entry).sync()
			for i := range uint32(14) {
				n3.send(relays(test.answered, i+1)).sync()
				time.Sleep(time.Second)
			}
			if !test.want {
				l.wantFindings(test.name)
				return
			}
			f := l.wantFindings(test.name, "stale-belief "+addr)[0]
			if f.GetOwners()[0].GetNode() != "n2" || f.GetBeliefs()[0].GetNode() != "n3" || !slices.ContainsFunc(f.GetEvidence(), func(s string) bool { return strings.Contains(s, "02:00:00:00:01:0a") }) {
				t.Errorf("%s: got %v, want n3, n2 and the access point", test.name, f)
			}
		})
	}
	for _, announced := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, Config{})
			n1 := l.dial().send(snapshot(hello("n1", 1), on(1, "192.0.2.1", addr))).sync()
			n2 := l.dial().send(snapshot(hello("n2", 1), on(2, "192.0.2.2"))).sync()
			n3 := l.dial().send(snapshot(hello("n3", 1), on(3, "192.0.2.3"))).sync()
			n3.send(saw(addr, 1)).send(saw("192.0.2.2", 2)).sync()
			time.Sleep(time.Minute)
			gone := on(1, addr)
			gone.Claims[0].Gone = true
			n1.send(gone).sync()
			n2.send(on(2, "192.0.2.2", addr)).sync()
			time.Sleep(time.Second)
			n3.send(&pb.ReportRequest{}).sync()
			if len(n3.departed) != 1 || n3.departed[0] != addr+" 02:00:00:00:01:01" || len(n1.departed)+len(n2.departed) > 0 {
				t.Fatalf("got %v at n3, %v at n1 and %v at n2, want the former owner at n3", n3.departed, n1.departed, n2.departed)
			}
			n3.send(believes(false)).sync()
			if announced {
				time.Sleep(time.Second)
				n3.send(believes(true)).send(saw(addr, 2)).sync()
			}
			time.Sleep(9 * time.Second)
			l.wantFindings("within the grace of a hand-over")
			time.Sleep(2 * time.Second)
			if announced {
				l.wantFindings("after a hand-over that was announced")
				return
			}
			f := l.wantFindings("after it", "stale-belief "+addr)[0]
			if b := f.GetBeliefs()[0]; f.GetOwners()[0].GetNode() != "n2" || b.GetNode() != "n3" || b.GetReceiver().GetKind() != pb.Workload_HOST {
				t.Errorf("got %v, want that n3 sends to the MAC of n1, and not to n2", f)
			}
		})
	}
}

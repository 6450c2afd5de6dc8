package facts

import (
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/ipam/dhcp"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// The cause of a conflict depends on the subnets of a node that contain the address: those that the
// node gains, loses or changes.
func TestDisputesAreJudgedAgainWhenSubnetsChange(t *testing.T) {
	s := newScene(t)
	s.notified.contested = []string{"10.0.0.9", "10.0.1.9", "10.1.0.9", "fe80::9"}
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.9"), pod(3, "10.0.1.9"), pod(4, "10.1.0.9"), pod(5, "fe80::9"))
	count := uint32(0)
	own := func(prefix uint32, gone bool) {
		s.judgeAll()
		s.notified.heard = nil
		count++
		a.report(&pb.ReportRequest{Claims: []*pb.ClaimRecord{{
			Address: []byte{10, 0, 0, 1}, Kind: pb.Evidence_ASSIGNED, Namespace: 1, Index: 9, Count: count, PrefixLength: prefix, Gone: gone,
		}}})
	}
	for _, test := range []struct {
		why    string
		prefix uint32
		gone   bool
		judged []string
		ranges bool
	}{
		{"a new address", 24, false, []string{"10.0.0.1", "10.0.0.9"}, true},
		{"it is seen again", 24, false, []string{"10.0.0.1"}, false},
		{"its subnet becomes wider", 16, false, []string{"10.0.0.1", "10.0.0.9", "10.0.1.9"}, true},
		{"and wider", 8, false, []string{"10.0.0.1", "10.0.0.9", "10.0.1.9", "10.1.0.9"}, true},
		{"it becomes narrower", 32, false, []string{"10.0.0.1", "10.0.0.9", "10.0.1.9", "10.1.0.9"}, true},
		{"it is seen again in no subnet", 32, false, []string{"10.0.0.1"}, false},
		{"it gets a subnet", 16, false, []string{"10.0.0.1", "10.0.0.9", "10.0.1.9"}, true},
		{"it is gone", 0, true, []string{"10.0.0.1", "10.0.0.9", "10.0.1.9"}, true},
	} {
		own(test.prefix, test.gone)
		s.wantJudged(test.why, test.judged...)
		if ranges := slices.Contains(s.notified.heard, "ranges n1"); ranges != test.ranges {
			t.Errorf("%s: got a notification of changed ranges of n1 %t, want %t", test.why, ranges, test.ranges)
		}
		s.check(t, test.why)
	}
	s.judgeAll()
	a.report(lan(2))
	s.wantJudged("its interface changes", s.notified.contested...)
}

// The steps for a node whose lease is gone depend on whether it has another one.
func TestDisputesAreJudgedAgainWhenAnAddressOfTheirNodeIsLeased(t *testing.T) {
	s := newScene(t)
	s.notified.contested = []string{"10.0.0.9", "10.0.1.9"}
	own := &pb.ClaimRecord{Address: []byte{10, 0, 0, 1}, Kind: pb.Evidence_ASSIGNED, Namespace: 1, Index: 9, Count: 1, PrefixLength: 24}
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.9"), pod(3, "10.0.1.9"), &pb.ReportRequest{
		Claims: []*pb.ClaimRecord{own}, Pools: []*pb.PoolRecord{{Ipam: dhcp.DnsmasqName, Name: "p", State: pb.Pool_KNOWN}},
	})
	for _, test := range []struct {
		why    string
		mac    byte
		gone   bool
		leased bool
	}{
		{"to its MAC", 1, false, true},
		{"to another MAC", 2, false, false},
		{"to its MAC again", 1, false, true},
		{"to nobody any more", 1, true, false},
	} {
		s.judgeAll()
		al := given("p", "10.0.0.1", "")
		al.Ipam, al.Mac, al.Gone = dhcp.DnsmasqName, []byte{2, 2, 0, 0, 0, test.mac}, test.gone
		a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{al}})
		s.wantJudged(test.why, "10.0.0.1", "10.0.0.9")
		found := 0
		for _, n := range s.Builder().Case(key("10.0.0.9"), true).Nodes {
			for _, sub := range n.Subnets {
				if found++; sub.Leased != test.leased {
					t.Errorf("%s: got %+v, want leased %t", test.why, sub, test.leased)
				}
			}
		}
		if found != 1 {
			t.Errorf("%s: got %d subnets, want one", test.why, found)
		}
		s.check(t, test.why)
	}
}

// A frame is judged again when something about an interface with its hardware address changes, also
// if the interface has no address and its link is in no domain.
func TestFramesAreJudgedWhenTheirSenderChanges(t *testing.T) {
	for name, change := range map[string]*pb.ReportRequest{
		"its pod":       {Namespaces: []*pb.NamespaceRecord{{Id: 2, Netns: "4002", Workload: &pb.Workload{Kind: pb.Workload_POD, Name: "other"}}}},
		"its interface": {Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Name: "other", Mac: records.MAC(2), Attachment: pb.InterfaceRecord_PEER, Link: "veth2"}}},
		"its link":      {Links: []*pb.LinkRecord{{Name: "veth2", Kind: pb.LinkRecord_BRIDGE}}},
		"the node's name for its link": {Interfaces: []*pb.InterfaceRecord{
			{Namespace: 2, Index: 2, Name: "eth0", Mac: records.MAC(2), Attachment: pb.InterfaceRecord_PEER, Link: "other"},
		}},
	} {
		silent := pod(2, "10.0.0.2")
		silent.Claims = nil
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1), silent, pod(3, "10.0.0.3"), seen("10.0.0.9", records.MAC(2), 1), seen("10.0.0.8", records.MAC(9), 1))
		s.judgeAll()
		before := s.text("10.0.0.9")
		a.report(change)
		if s.text("10.0.0.9") == before {
			t.Errorf("%s: got an equal case, want a different one", name)
		}
		s.wantJudged(name, "10.0.0.9")
	}
}

// Several nodes may have the same virtual hardware address. When an interface with it changes,
// other interfaces with it in the same domain may lack an address that was attributed to them.
func TestHoldersOfASharedMACAreNotified(t *testing.T) {
	for name, test := range map[string]struct {
		seen []byte // the hardware address in a frame that entered the other node
		want bool
	}{"it is in a frame": {[]byte{0, 0, 0x5e, 0, 1, 7}, true}, "another one is in a frame": {[]byte{0, 0, 0x5e, 0, 1, 8}, false}} {
		s := newScene(t)
		virtual := []byte{0, 0, 0x5e, 0, 1, 7}
		holder := func(record uint32, addr string) *pb.ReportRequest {
			m := onLAN(record, addr)
			m.Interfaces[0].Mac = virtual
			return m
		}
		a, b := s.joins("n1", "b1", 1, lan(1), holder(2, "10.0.0.1"), onLAN(4, "10.0.0.4")), s.joins("n2", "b2", 1, lan(2), holder(3, "10.0.0.3"))
		b.report(seen("10.0.0.4", records.MAC(4), 1), seen("10.0.0.9", test.seen, 1))
		s.wantDomains(name, "10.0.0.9", "n2 n1/eth0 -")
		s.notified.heard = nil
		renamed := holder(2, "10.0.0.1").Interfaces
		renamed[0].Name = "other"
		a.report(&pb.ReportRequest{Interfaces: renamed})
		if got := slices.Contains(s.notified.heard, "lack n2#3"); got != test.want {
			t.Errorf("%s: got a notification of the pod on the other node %t, want %t", name, got, test.want)
		}
	}
}

// The MAC of a macvtap device is a virtual machine's while the node itself has no address there but those that its kernel makes.
// Frames with the MAC are judged again when that changes, wherever they were seen.
func TestAMacvtapDeviceIsItsNodesWhileItHasAnAddress(t *testing.T) {
	for _, test := range []struct {
		kind       string
		namespace  uint32
		attachment pb.InterfaceRecord_Attachment
		guest      bool
	}{
		{"macvtap", 1, pb.InterfaceRecord_OWN, true},
		{"macvlan", 1, pb.InterfaceRecord_OWN, false},
		{"ipvtap", 1, pb.InterfaceRecord_OWN, false}, // it has the MAC of its lower device
		{"macvtap", 2, pb.InterfaceRecord_LOWER, false},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), seen("10.0.0.8", records.MAC(7), 1), &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{
			{Namespace: test.namespace, Index: 5, Name: "mvt", Kind: test.kind, Mac: records.MAC(7), Attachment: test.attachment, Link: "eth0", HostInterface: "eth0"},
		}})
		s.joins("n2", "b2", 1, lan(2), seen("10.0.0.9", records.MAC(7), 1))
		s.judgeAll()
		for _, step := range []struct {
			why, addr string
			gone      bool
			judged    []string // if it is the device of a guest
			guest     bool
		}{
			{"no address", "", false, nil, true},
			{"a link-local address", "fe80::7", false, []string{"fe80::7"}, true},
			{"an address", "10.0.0.7", false, []string{"10.0.0.7", "10.0.0.8", "10.0.0.9", "fe80::7"}, false},
			{"the same one", "10.0.0.7", false, []string{"10.0.0.7"}, false},
			{"it is gone", "10.0.0.7", true, []string{"10.0.0.7", "10.0.0.8", "10.0.0.9", "fe80::7"}, true},
		} {
			why := test.kind + ", " + step.why
			if step.addr != "" {
				c := assigned(test.namespace, step.addr)
				c.Index, c.Gone = 5, step.gone
				a.report(&pb.ReportRequest{Claims: []*pb.ClaimRecord{c}})
				if !test.guest {
					step.judged = []string{step.addr}
				}
				s.wantJudged(why, step.judged...)
			}
			for _, addr := range []string{"10.0.0.8", "10.0.0.9"} {
				all := s.Builder().Case(key(addr), false).Stations
				if want := step.guest && test.guest; len(all) != 1 || all[0].Name != "mvt" || all[0].Macvtap != want {
					t.Errorf("%s: got stations %+v for %s, want the device of a guest %t", why, all, addr, want)
				}
			}
			s.check(t, why)
		}
	}
}

// Frames that other nodes see are not attributed to an interface that does not reach other nodes.
func TestFramesOnOtherNodesAreNotOfAPodBehindAVeth(t *testing.T) {
	for name, test := range map[string]struct {
		m    *pb.ReportRequest
		want []string
	}{"a pod behind a veth": {pod(2, "10.0.0.2"), []string{"10.0.0.2"}}, "a pod on the LAN": {onLAN(2, "10.0.0.2"), []string{"10.0.0.2", "10.0.0.9"}}} {
		s := newScene(t)
		a, b := s.joins("n1", "b1", 1, lan(1), test.m), s.joins("n2", "b2", 1, lan(2))
		b.report(seen("10.0.0.9", records.MAC(2), 1))
		s.judgeAll()
		test.m.Interfaces[0].Name = "other"
		a.report(&pb.ReportRequest{Interfaces: test.m.Interfaces[:1]})
		s.wantJudged(name, test.want...)
		s.check(t, name)
	}
}

// If an interface of another pod gets the hardware address in the frames from a pod's port, the pod
// may then lack the address that they claimed.
func TestAPodIsNotifiedWhenItsFramesBelongToAnother(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"), pod(3, "10.0.0.3"), records.Claims(announced(3, "10.0.0.9", records.MAC(9))))
	for _, test := range []struct {
		mac  uint32
		want bool
	}{{8, false}, {9, true}} {
		s.notified.heard = nil
		next := pod(2, "10.0.0.2").Interfaces[:1]
		next[0].Mac = records.MAC(test.mac)
		a.report(&pb.ReportRequest{Interfaces: next})
		if got := slices.Contains(s.notified.heard, "lack n1#3"); got != test.want {
			t.Errorf("pod 2 gets MAC %d: got a notification of pod 3 %t, want %t", test.mac, got, test.want)
		}
	}
}

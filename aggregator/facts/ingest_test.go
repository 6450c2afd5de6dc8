package facts

import (
	"fmt"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/tests/records"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Changes are always applied. A snapshot repeats known claims, so only a claim with another count,
// time or network is applied.
func TestWhichRecordsOfAKnownClaimAreApplied(t *testing.T) {
	for _, test := range []struct {
		field           string
		change          func(c *pb.ClaimRecord)
		delta, snapshot bool // the change is applied
	}{
		{"nothing", func(*pb.ClaimRecord) {}, false, false},
		{"count", func(c *pb.ClaimRecord) { c.Count++ }, true, true},
		{"time", func(c *pb.ClaimRecord) { c.LastSeen = &timestamppb.Timestamp{Seconds: 8} }, true, true},
		{"network", func(c *pb.ClaimRecord) { c.Network = "other" }, true, true},
		{"prefix length", func(c *pb.ClaimRecord) { c.PrefixLength = 16 }, true, false},
		{"flags", func(c *pb.ClaimRecord) { c.Flags = 9 }, true, false},
		{"route", func(c *pb.ClaimRecord) { c.Routed = true }, true, true},
	} {
		for _, kernel := range []bool{true, false} {
			for _, snapshot := range []bool{true, false} {
				name := fmt.Sprintf("%s changes, kernel %t, snapshot %t", test.field, kernel, snapshot)
				first := func() *pb.ReportRequest {
					m := assignedMessage(2, "10.0.0.9")
					if !kernel {
						m = seen("10.0.0.9", records.MAC(9), 1)
					}
					m.Claims[0].FirstSeen, m.Claims[0].LastSeen = &timestamppb.Timestamp{Seconds: 5}, &timestamppb.Timestamp{Seconds: 7}
					m.Claims[0].Count, m.Claims[0].Network = 4, "net0"
					return m
				}
				s := newScene(t)
				a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), first())
				before := s.text("10.0.0.9")
				next := first()
				test.change(next.Claims[0])
				want := test.delta
				if snapshot {
					want = test.snapshot && (kernel || test.field != "route")
					a.snapshot(lan(1), pod(2, "10.0.0.2"), next)
				} else {
					a.report(next)
				}
				if got := s.text("10.0.0.9") != before; got != want {
					t.Errorf("%s: got applied %t, want %t", name, got, want)
				}
				s.check(t, name)
			}
		}
	}
}

// Wire claims end with their owner, but not a claim that reuses the record of one.
func TestClaimsInThePlaceOfFramesOutliveTheOwner(t *testing.T) {
	const addr, other = "10.0.0.1", "10.0.0.8"
	frame := seen(addr, records.MAC(2), 1).Claims[0]
	gone := seen(addr, records.MAC(2), 1).Claims[0]
	gone.Gone = true
	kernel := assigned(3, addr)
	for _, test := range []struct {
		name string
		next *pb.ClaimRecord // in the place of the frame; nil if the frame stays
		addr string
		want bool // the claim in that place stays
	}{
		{"the frame of the owner", nil, addr, false},
		{"a frame for another address", seen(other, records.MAC(9), 1).Claims[0], other, true},
		{"a frame for the address that was not judged", seen(addr, records.MAC(9), 1).Claims[0], addr, true},
		{"an address of another pod's kernel", kernel, addr, true},
	} {
		s := newScene(t)
		home, by := s.joins("n1", "b1", 1, lan(1), onLAN(2, addr)), s.joins("n2", "b2", 1, lan(2), onLAN(3, "10.0.0.3"), records.Claims(frame))
		s.judgeAll()
		s.Settle(key(addr), false)
		if test.next != nil {
			by.report(records.Claims(gone, test.next))
		}
		if test.addr != addr { // only this address is judged before the owner ends
			s.queue(key(test.addr)).Take(key(test.addr)).Finish()
			s.Settle(key(test.addr), true)
		}
		home.report(withdrawn(2, addr))
		if got := s.Claimed(key(test.addr)); got != test.want {
			t.Errorf("%s: got claimed %t, want %t", test.name, got, test.want)
		}
		s.check(t, test.name)
	}
}

// Another node may know an owner by the hardware address of an interface that does not have the
// address. A late frame with that hardware address does not bring the owner back either.
func TestAllHardwareAddressesOfAnOwnerThatEndedAreLate(t *testing.T) {
	const addr = "10.0.0.1"
	for name, mac := range map[string]uint32{"seen of the owner": 7, "never seen of the owner": 8} {
		second := onLAN(2, "10.0.0.2")
		second.Interfaces[0].Index, second.Interfaces[0].Mac, second.Claims[0].Index = 3, records.MAC(7), 3
		s := newScene(t)
		home, by := s.joins("n1", "b1", 1, lan(1), pod(2, addr), second), s.joins("n2", "b2", 1, lan(2))
		by.report(seen(addr, records.MAC(7), 1))
		s.judgeAll()
		s.Settle(key(addr), true)
		home.report(withdrawn(2, addr))
		if s.Claimed(key(addr)) {
			t.Fatalf("%s: got a claim to the address, want the frame to end with its owner", name)
		}
		late := seen(addr, records.MAC(mac), 2)
		late.Claims[0].Age = durationpb.New(time.Second)
		s.after(time.Second)
		by.report(late)
		if got, want := s.Claimed(key(addr)), mac != 7; got != want {
			t.Errorf("%s: got a late frame accepted %t, want %t", name, got, want)
		}
	}
}

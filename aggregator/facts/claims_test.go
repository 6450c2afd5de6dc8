package facts

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

func TestAMappedAddressIsNoClaimToTheIPv4Address(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	mapped := assignedMessage(2, "10.0.0.7")
	mapped.Claims[0].Address = append([]byte{10: 0xff, 11: 0xff}, mapped.Claims[0].Address...)
	a.report(mapped)
	s.wantJudged("a mapped address", "10.0.0.1")
	if s.notified.dropped["claim"] != 1 {
		t.Errorf("got %d dropped claims, want 1", s.notified.dropped["claim"])
	}
}

// Wire claims from before a snapshot end with their owner. Those in the snapshot are kept.
func TestFramesInASnapshotOutliveTheirOwner(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"), seen("10.0.0.1", records.MAC(2), 1))
	s.judgeAll()
	s.Settle(key("10.0.0.1"), true)
	without := onLAN(2, "10.0.0.1")
	without.Claims = nil
	a.snapshot(lan(1), without, seen("10.0.0.1", records.MAC(2), 1))
	if a.n.Claims() != 1 || !s.WiredOrFailed(key("10.0.0.1")) {
		t.Errorf("got %d claims, want the frame that the snapshot has", a.n.Claims())
	}
	a.report(onLAN(2, "10.0.0.1"))
	s.judgeAll()
	s.Settle(key("10.0.0.1"), true)
	if a.report(withdrawn(2, "10.0.0.1")); a.n.Claims() != 0 {
		t.Errorf("got %d claims, want none: the frame was from the owner that ended", a.n.Claims())
	}
}

// A claim that has not been judged yet has no owner: it may be from the next one.
func TestNewFramesOutliveAnOwner(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"))
	s.judgeAll()
	s.Settle(key("10.0.0.1"), true)
	a.report(seen("10.0.0.1", records.MAC(2), 1), withdrawn(2, "10.0.0.1"))
	if a.n.Claims() != 1 {
		t.Errorf("got %d claims, want the frame", a.n.Claims())
	}
	b := s.joins("n2", "b2", 1, lan(2))
	b.report(onLAN(3, "10.0.0.3"), seen("10.0.0.3", records.MAC(9), 1))
	s.judgeAll()
	s.Settle(key("10.0.0.3"), false)
	if b.report(withdrawn(3, "10.0.0.3")); b.n.Claims() != 1 {
		t.Errorf("got %d claims, want the frame of another sender", b.n.Claims())
	}
}

// Sightings of an owner end with it, and frames that were on their way do not bring it back.
func TestAHolderThatEndedIsNotBroughtBack(t *testing.T) {
	mac := []byte{2, 0, 0, 0, 0, 7}
	holder := func(gone bool) *pb.ReportRequest {
		return &pb.ReportRequest{
			Namespaces: []*pb.NamespaceRecord{{Id: 2, Netns: "4002", Workload: &pb.Workload{Kind: pb.Workload_POD, Name: "a"}}},
			Links:      []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}},
			Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Name: "eth0", Mac: mac, Attachment: pb.InterfaceRecord_LOWER, Link: "eth0"}},
			Claims:     []*pb.ClaimRecord{{Address: []byte{10, 0, 0, 1}, Kind: pb.Evidence_ASSIGNED, Namespace: 2, Index: 2, Count: 1, Gone: gone}},
		}
	}
	for _, test := range []struct {
		name string
		age  time.Duration // of the frame when it is reported, 10 s after the end
		mac  []byte
		want int
	}{
		{"a frame of before", 10*time.Second + time.Millisecond, mac, 0},
		{"a frame of just after", 10*time.Second - 50*time.Millisecond, mac, 0},
		{"a frame of later", 9 * time.Second, mac, 1},
		{"a frame of another sender", 10*time.Second + time.Millisecond, []byte{2, 0, 0, 0, 0, 8}, 1},
	} {
		s := newScene(t)
		home, by := s.joins("n1", "b1", 1, lan(1), holder(false)), s.joins("n2", "b2", 1, lan(2))
		by.report(seen("10.0.0.1", mac, 1))
		s.judgeAll()
		for n := range s.Nodes {
			if n == by.n {
				s.Settle(index.AddressOf(netip.MustParseAddr("10.0.0.1")), false)
			}
		}
		home.report(&pb.ReportRequest{Claims: holder(true).GetClaims()})
		if by.n.Claims() != 0 {
			t.Errorf("%s: got %d claims of the holder, want none", test.name, by.n.Claims())
		}
		s.after(10 * time.Second)
		late := seen("10.0.0.1", test.mac, 2)
		late.Claims[0].Age = durationpb.New(test.age)
		by.report(late)
		if by.n.Claims() != test.want {
			t.Errorf("%s: got %d claims, want %d", test.name, by.n.Claims(), test.want)
		}
		s.after(time.Minute)
		late.Claims[0].Age = durationpb.New(test.age + time.Minute - 10*time.Second)
		if by.report(late); by.n.Claims() != 1 {
			t.Errorf("%s: got %d claims a minute later, want one", test.name, by.n.Claims())
		}
	}
}

func TestClaimsThatAreTooOldEnd(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1))
	a.report(seen("10.0.0.1", []byte{2, 0, 0, 0, 0, 7}, 1), seen("10.0.0.1", []byte{2, 0, 0, 0, 0, 8}, 1))
	s.judgeAll()
	s.after(time.Minute)
	a.report(seen("10.0.0.1", []byte{2, 0, 0, 0, 0, 8}, 2))
	old := seen("10.0.0.2", []byte{2, 0, 0, 0, 0, 9}, 1) // after a start, from an agent whose speaker has only answered since
	old.Claims[0].Age = durationpb.New(20 * time.Minute)
	young := seen("10.0.0.3", []byte{2, 0, 0, 0, 0, 7}, 1)
	young.Claims[0].Age = durationpb.New(2*time.Minute - 1)
	a.report(old, young)
	s.judgeAll()
	if a.n.Claims() != 4 {
		t.Fatalf("got %d claims, want all 4: an owner, and no claim alone, is too old", a.n.Claims())
	}
	addr := index.AddressOf(netip.MustParseAddr("10.0.0.1"))
	expire := func() {
		s.RLock()
		b := s.Builder()
		refs := b.Refs(b.Case(addr, false).Claims)
		s.RUnlock()
		s.Expire(&Item{Address: addr}, refs)
	}
	s.after(time.Minute - 1)
	if expire(); a.n.Claims() != 4 {
		t.Errorf("got %d claims, want none to end yet", a.n.Claims())
	}
	s.after(1)
	if expire(); a.n.Claims() != 3 {
		t.Errorf("got %d claims, want the old one ended", a.n.Claims())
	}
	s.wantJudged("a claim has ended, of a MAC that claims another address", "10.0.0.1", "10.0.0.3")
}

func TestTimesOfKernelClaims(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.1"))
	claim := func(addr string) verdict.Claim {
		s.RLock()
		defer s.RUnlock()
		return *s.Builder().Case(index.AddressOf(netip.MustParseAddr(addr)), false).Claims[0]
	}
	begun := s.now
	s.after(time.Second)
	again := assignedMessage(2, "10.0.0.1")
	again.Claims[0].Count = 2
	a.report(again)
	if c := claim("10.0.0.1"); c.Begun != begun || c.Read != s.now || c.Seen != s.now || c.Count != 2 {
		t.Errorf("got begun %d, read %d, seen %d, want read = now", c.Begun, c.Read, c.Seen)
	}
	read := s.now
	s.after(time.Second)
	a.report(assignedMessage(2, "10.0.0.1"))
	if c := claim("10.0.0.1"); c.Read != s.now {
		t.Errorf("got read at %d, want now: the kernel reported a change", c.Read)
	}
	s.judgeAll()
	s.after(time.Second)
	if _, err := s.Delta(a.p, a.n, &pb.ReportRequest{Checked: []uint64{7}}, s.now, func(id uint64) []index.Address {
		if id != 7 {
			t.Errorf("got check %d, want 7", id)
		}
		return []index.Address{index.AddressOf(netip.MustParseAddr("10.0.0.1"))}
	}); err != nil {
		t.Fatal(err)
	}
	if c := claim("10.0.0.1"); c.Read != s.now || c.Read == read {
		t.Errorf("got read at %d, want now: the agent answered a check", c.Read)
	}
	s.wantJudged("a check is answered", "10.0.0.1")

	frame := seen("10.0.0.2", []byte{2, 0, 0, 0, 0, 7}, 1)
	frame.Claims[0].Age = durationpb.New(3 * time.Second)
	a.report(frame)
	first := s.now
	if c := claim("10.0.0.2"); c.Begun != first.Add(-3*time.Second) || c.Seen != c.Begun || c.Before != 0 || c.Read != c.Begun {
		t.Errorf("got begun %d, seen %d, before %d, want three seconds ago", c.Begun, c.Seen, c.Before)
	}
	s.judgeAll()
	s.after(10 * time.Second)
	a.report(seen("10.0.0.2", []byte{2, 0, 0, 0, 0, 7}, 2))
	if c := claim("10.0.0.2"); c.Seen != s.now || c.Before != first.Add(-3*time.Second) || c.Begun != c.Before {
		t.Errorf("got begun %d, seen %d, before %d, want now and before that", c.Begun, c.Seen, c.Before)
	}
	s.wantJudged("a frame is seen again", "10.0.0.2")
	s.RLock()
	s.Settle(index.AddressOf(netip.MustParseAddr("10.0.0.2")), true)
	s.RUnlock()
	a.report(seen("10.0.0.2", []byte{2, 0, 0, 0, 0, 7}, 3))
	s.wantJudged("a frame of a plain owner is seen again")
}

func TestOwnersBeforeAChange(t *testing.T) {
	s := newScene(t)
	s.OwnersWatched = func() bool { return true }
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	s.judgeAll()
	if owners, derived := s.Before(key("10.0.0.1")); derived || owners != nil {
		t.Errorf("got %v before no change", owners)
	}
	a.report(withdrawn(2, "10.0.0.1"))
	if owners, derived := s.Before(key("10.0.0.1")); !derived || len(owners) != 1 {
		t.Errorf("got %v before a change", owners)
	}
}

func TestClaimsOfKernelsComeFirst(t *testing.T) {
	one, two := assigned(2, "10.0.0.1"), assigned(2, "10.0.0.2")
	frame, other := announced(2, "10.0.0.1", records.MAC(9)), announced(2, "10.0.0.2", records.MAC(9))
	if got := kernelFirst([]*pb.ClaimRecord{frame, one, other, two}); !slices.Equal(got, []*pb.ClaimRecord{one, two, frame, other}) {
		t.Errorf("got %v, want kernel claims first", got)
	}
}

// A kernel claim that is reported as if for the first time needs no history of its own.
func TestHistoriesOfKernelClaims(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	for _, count := range []uint32{2, 3, 1} {
		m := assignedMessage(2, "10.0.0.1")
		m.Claims[0].Count = count
		a.report(m)
		want := 1
		if count == 1 {
			want = 0
		}
		if got := s.Builder().Case(key("10.0.0.1"), false).Claims[0].Count; got != count || a.n.histories.count != want {
			t.Errorf("got count %d and %d histories, want %d and %d", got, a.n.histories.count, count, want)
		}
		s.check(t, "another count")
	}
}

// Kernel claims are kept, however long ago they were reported.
func TestOldClaimsOfKernelsAreKept(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	old := assignedMessage(2, "10.0.0.2")
	old.Claims[0].Age = durationpb.New(30 * time.Minute)
	if a.report(old); !s.Claimed(key("10.0.0.2")) {
		t.Error("got an old claim of a kernel left out")
	}
}

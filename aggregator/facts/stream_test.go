package facts

import (
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestANodeThatIsSilentIsGivenUp(t *testing.T) {
	s := newScene(t)
	if at := s.Ring(); at != 0 {
		t.Errorf("got something due at %d, want nothing", at)
	}
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	s.wantNodes("it reports", "n1 connected covers claims=1")
	s.wantHeard("it reports", "names n1", "lack n1#1", "lack n1#2", "ranges ", "ranges n1", "changed n1")
	s.judgeAll()
	s.after(time.Minute)
	s.Ring()
	s.wantNodes("it still reports", "n1 connected covers claims=1")
	a.leave()
	s.wantNodes("it is silent", "n1 unheard claims=1")
	s.wantJudged("it is silent", "10.0.0.1")
	s.wantHeard("it is silent", "changed n1", "names n1")
	if at := s.Ring(); at != s.now.Add(time.Minute) {
		t.Errorf("got due at %d, want in a minute", at.Sub(s.now))
	}
	s.after(time.Minute - 1)
	s.Ring()
	s.wantNodes("the time is not over", "n1 unheard claims=1")
	s.after(1)
	if s.Overdue(s.now-1) || !s.Overdue(s.now) {
		t.Error("got not due in time")
	}
	if at := s.Ring(); at != s.now.Add(ForgetNodeAfter) {
		t.Errorf("got due in %s, want in a day", at.Sub(s.now))
	}
	s.wantNodes("it is given up", "n1 unheard timed-out claims=0")
	s.wantJudged("it is given up", "10.0.0.1")
	s.wantHeard("it is given up", "changed n1", "lack n1#1", "lack n1#2")
	if s.Claimed(index.AddressOf(netip.MustParseAddr("10.0.0.1"))) || a.n.Namespaces() != 0 || s.NodeCount() != 1 {
		t.Error("got records of a node that is given up")
	}
	s.after(ForgetNodeAfter)
	s.Ring()
	s.wantNodes("it is forgotten")
	s.wantHeard("it is forgotten", "names n1")
	if s.NodeCount() != 0 || s.Node(a.n.Rec) != nil || len(s.Called("n1")) != 0 || len(s.At(a.n.ID.Place())) != 0 {
		t.Error("got a node that is forgotten")
	}
}

func TestANodeThatComesBackHasWhatItReports(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"), pod(3, "10.0.0.3"))
	a.leave()
	s.judgeAll()
	s.told.heard = nil
	a, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 2, Version: "v", Kernel: "k"}, "")
	if err != nil || a.n.Version != "v" || a.n.Kernel != "k" || a.n.ConnectedAt != s.now || a.n.LastHeard != s.now {
		t.Fatalf("got %v and %+v", err, a.n.Agent)
	}
	s.wantNodes("it is connected", "n1 connected unheard claims=2")
	s.wantJudged("it is connected")
	s.wantHeard("it is connected")
	s.after(time.Second)
	a.snapshot(pod(3, "10.0.0.3"))
	s.wantNodes("it has reported", "n1 connected covers claims=1")
	s.wantJudged("it has reported", "10.0.0.1", "10.0.0.3")
	if a.n.LastHeard != s.now {
		t.Error("got not heard now")
	}
	s.wantHeard("it has reported", "changed n1", "names n1", "lack n1#1", "lack n1#2", "lack n1#3", "ranges n1")
	if s.Ring(); s.Ring() != 0 {
		t.Error("got something due, want nothing")
	}
	a.leave()
	s.after(time.Minute)
	s.Ring()
	s.wantNodes("it is given up", "n1 unheard timed-out claims=0")
	a, _ = s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 3}, "")
	a.leave()
	s.wantNodes("it came without a word", "n1 unheard timed-out claims=0")
	a, _ = s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 3}, "")
	a.snapshot(pod(2, "10.0.0.1"))
	s.wantNodes("it is back", "n1 connected covers claims=1")
	s.after(2 * ForgetNodeAfter)
	s.Ring()
	s.wantNodes("it stays", "n1 connected covers claims=1")
}

func TestANodeThatNeverReportsIsGivenUp(t *testing.T) {
	s := newScene(t)
	a, _ := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1"}, "")
	if at := s.Ring(); at != s.now.Add(time.Minute) {
		t.Errorf("got due in %s, want in a minute", at.Sub(s.now))
	}
	s.after(30 * time.Second)
	a.leave()
	s.after(30 * time.Second)
	s.Ring()
	s.wantNodes("a minute is over", "n1 unheard timed-out claims=0")
}

func TestOneStreamReportsForANode(t *testing.T) {
	s := newScene(t)
	old := s.joins("n1", "b1", 2, pod(2, "10.0.0.1"))
	if _, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 1}, ""); status.Code(err) != codes.FailedPrecondition || old.p.ended != nil {
		t.Errorf("got %v, and %v for the other one, want an older agent refused", err, old.p.ended)
	}
	now := s.joins("n1", "b1", 2, pod(2, "10.0.0.1"))
	if status.Code(old.p.ended) != codes.Aborted || now.n != old.n {
		t.Errorf("got %v, want the old stream ended", old.p.ended)
	}
	for name, err := range map[string]error{
		"a delta":    second(s.Delta(old.p, old.n, assignedMessage(2, "10.0.0.9"), s.now, nil)),
		"a snapshot": second(s.Snapshot(old.p, old.n, &Snapshot{Messages: once(pod(2, "10.0.0.9"))}, func() { t.Error("got it applied") })),
	} {
		if err != ErrTakenOver {
			t.Errorf("%s of the old stream: got %v", name, err)
		}
	}
	old.leave()
	s.wantNodes("the old stream ends", "n1 connected covers claims=1")
	if s.Claimed(index.AddressOf(netip.MustParseAddr("10.0.0.9"))) {
		t.Error("got what the old stream said")
	}
}

// A stream that takes the node over in the middle of a snapshot ends it.
func TestASnapshotIsTakenOver(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	_, err := s.Snapshot(a.p, a.n, &Snapshot{Messages: func(yield func(*pb.ReportRequest) bool) {
		if yield(pod(3, "10.0.0.3")) {
			if _, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 1}, ""); err != nil {
				t.Error(err)
			}
			yield(pod(4, "10.0.0.4"))
		}
	}}, func() { t.Error("got it done") })
	if err != ErrTakenOver || a.n.Claims() != 2 || a.n.Applying() || s.Claimed(key("10.0.0.4")) {
		t.Errorf("got %v and %d claims, want what came before", err, a.n.Claims())
	}
}

func TestASnapshotSaysWhatIsLeftOut(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1)
	in := &Snapshot{
		Messages: once(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}, Checked: []uint64{3}}), Excess: 4, LeftOut: LeftOut{Records: 2},
		Corrections: map[string]int{"name": 1}, Checked: func(uint64) []index.Address { return nil },
	}
	if _, err := s.Snapshot(a.p, a.n, in, func() {
		if !a.n.Applying() {
			t.Error("got not applied")
		}
	}); err != nil {
		t.Fatal(err)
	}
	if a.n.Excess() != 4 || a.n.LeftOut() != in.LeftOut || a.n.Corrections["name"] != 1 || !a.n.Incomplete() || !a.n.Blind() || a.n.Covers() {
		t.Errorf("got %d excess, %+v left out, %v corrected", a.n.Excess(), a.n.LeftOut(), a.n.Corrections)
	}
	if a.snapshot(); a.n.Incomplete() || a.n.Blind() || !a.n.Covers() {
		t.Error("got it incomplete, want it whole again")
	}
	in.LeftOut, in.Excess = LeftOut{}, 1
	if _, err := s.Snapshot(a.p, a.n, in, func() {}); err != nil || !a.n.Incomplete() || a.n.Blind() {
		t.Errorf("got %v, incomplete %t, want frames alone left out", err, a.n.Incomplete())
	}
}

func TestAddressesOfIPv4HaveOneForm(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	mapped := assignedMessage(2, "::ffff:10.0.0.7")
	mapped.Claims[0].Address = make([]byte, 16)
	copy(mapped.Claims[0].Address, []byte{10: 0xff, 11: 0xff, 12: 10, 15: 7})
	a.tell(mapped)
	s.wantJudged("a mapped address", "10.0.0.1", "10.0.0.7")
	mapped.Claims[0].Gone = true
	if a.tell(mapped); s.Claimed(key("10.0.0.7")) {
		t.Error("got a claim that is gone")
	}
}

// What the wire showed of an owner before a snapshot ends with it; what the snapshot has stays.
func TestFramesInASnapshotOutliveTheirOwner(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"), seen("10.0.0.1", podMAC(2), 1))
	s.judgeAll()
	s.Settle(key("10.0.0.1"), true)
	without := onLAN(2, "10.0.0.1")
	without.Claims = nil
	a.snapshot(lan(1), without, seen("10.0.0.1", podMAC(2), 1))
	if a.n.Claims() != 1 || !s.Wired(key("10.0.0.1")) {
		t.Errorf("got %d claims, want the frame that the snapshot has", a.n.Claims())
	}
	a.tell(onLAN(2, "10.0.0.1"))
	s.judgeAll()
	s.Settle(key("10.0.0.1"), true)
	if a.tell(back2(2, "10.0.0.1")); a.n.Claims() != 0 {
		t.Errorf("got %d claims, want none: the frame was of the owner that ended", a.n.Claims())
	}
}

// A claim that was not judged yet is nobody's: it may be of the next owner.
func TestNewFramesOutliveAnOwner(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"))
	s.judgeAll()
	s.Settle(key("10.0.0.1"), true)
	a.tell(seen("10.0.0.1", podMAC(2), 1), back2(2, "10.0.0.1"))
	if a.n.Claims() != 1 {
		t.Errorf("got %d claims, want the frame", a.n.Claims())
	}
	b := s.joins("n2", "b2", 1, lan(2))
	b.tell(onLAN(3, "10.0.0.3"), seen("10.0.0.3", podMAC(9), 1))
	s.judgeAll()
	s.Settle(key("10.0.0.3"), false)
	if b.tell(back2(3, "10.0.0.3")); b.n.Claims() != 1 {
		t.Errorf("got %d claims, want the frame of another sender", b.n.Claims())
	}
}

func second[T any](_ T, err error) error { return err }

func assignedMessage(record uint32, addr string) *pb.ReportRequest {
	return &pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(record, addr)}}
}

// lan is an uplink of a node with a MAC.
func lan(mac byte) *pb.ReportRequest {
	return &pb.ReportRequest{
		Links:      []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 9, Name: "eth0", Mac: []byte{2, 2, 0, 0, 0, mac}, Attachment: pb.InterfaceRecord_OWN, Link: "eth0", Uplink: true}},
	}
}

// seen is a frame that entered by the uplink of a node.
func seen(addr string, mac []byte, count uint32) *pb.ReportRequest {
	return &pb.ReportRequest{Claims: []*pb.ClaimRecord{{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ANNOUNCED, Namespace: 1, Index: 9, Mac: mac, Link: "eth0", Count: count,
	}}}
}

func TestAMachineThatIsRebootedIsAnotherNode(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(s *scene, old *agent)
		mac    byte
		node   string
		want   []string
	}{
		{"with the MAC of its uplink", nil, 1, "n1", []string{"n1@b1 unheard timed-out rebooted claims=0", "n1 connected covers claims=0"}},
		{"with another MAC", nil, 2, "n1", []string{"n1@b1 unheard claims=1", "n1 connected covers claims=0"}},
		{"by another name", nil, 1, "n2", []string{"n1 unheard claims=1", "n2 connected covers claims=0"}},
		{"and both were there at once", func(_ *scene, old *agent) { old.n.Shared = true }, 1, "n1", []string{"n1@b1 unheard claims=1", "n1 connected covers claims=0"}},
		{"long after", func(s *scene, _ *agent) { s.after(time.Minute); s.Ring() }, 1, "n1", []string{"n1@b1 unheard timed-out claims=0", "n1 connected covers claims=0"}},
	} {
		s := newScene(t)
		old := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.1"))
		old.leave()
		if test.change != nil {
			test.change(s, old)
		}
		s.joins(test.node, "b2", 1, lan(test.mac))
		s.wantNodes(test.name, test.want...)
	}
	// The stream of before may end later.
	s := newScene(t)
	old := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.1"))
	s.joins("n1", "b2", 1, lan(1))
	s.wantNodes("both streams are there", "n1 connected covers claims=1", "n1@b2 connected covers claims=0")
	old.leave()
	s.wantNodes("the old stream ends", "n1@b1 unheard timed-out rebooted claims=0", "n1 connected covers claims=0")
}

func TestNodesOfOneNameHaveLongerOnes(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "boot-id-of-b", 1)
	s.joins("n1", "boot-id-of-c", 1)
	s.wantNodes("two", "n1 connected covers claims=0", "n1@boot-id- connected covers claims=0")
	third, _ := s.hello(&pb.Hello{Node: "n1", BootId: "boot-id-of-a", Netns: "7"}, "")
	s.wantNodes("three", "n1@boot-id-.1 connected covers claims=0", "n1@boot-id- connected covers claims=0", "n1 connected unheard claims=0")
	s.told.heard = nil
	other, _ := s.hello(&pb.Hello{Node: "n9", BootId: "boot-id-of-c", Netns: "1", Epoch: 1}, "")
	s.wantNodes("one is renamed", "n1@boot-id-.1 connected covers claims=0", "n9 connected covers claims=0", "n1 connected unheard claims=0")
	s.wantHeard("one is renamed", "changed n9", "names n9", "ranges n1@boot-id-")
	if got := s.Called("n1"); len(got) != 2 || len(s.Called("n9")) != 1 || s.Called("n9")[0] != other.n {
		t.Errorf("got %d nodes that call themselves n1", len(got))
	}
	third.leave()
	s.after(time.Minute)
	s.Ring()
	s.wantNodes("the first one is given up", "n1 connected covers claims=0", "n9 connected covers claims=0", "n1@boot-id- unheard timed-out claims=0")
}

// What was seen of an owner ends with it, and frames that were under way do not bring it back.
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
		by.tell(seen("10.0.0.1", mac, 1))
		s.judgeAll()
		for n := range s.Nodes {
			if n == by.n {
				s.Settle(index.AddressOf(netip.MustParseAddr("10.0.0.1")), false)
			}
		}
		home.tell(&pb.ReportRequest{Claims: holder(true).GetClaims()})
		if by.n.Claims() != 0 {
			t.Errorf("%s: got %d claims of the holder, want none", test.name, by.n.Claims())
		}
		s.after(10 * time.Second)
		late := seen("10.0.0.1", test.mac, 2)
		late.Claims[0].Age = durationpb.New(test.age)
		by.tell(late)
		if by.n.Claims() != test.want {
			t.Errorf("%s: got %d claims, want %d", test.name, by.n.Claims(), test.want)
		}
		s.after(time.Minute)
		late.Claims[0].Age = durationpb.New(test.age + time.Minute - 10*time.Second)
		if by.tell(late); by.n.Claims() != 1 {
			t.Errorf("%s: got %d claims a minute later, want one", test.name, by.n.Claims())
		}
	}
}

func TestClaimsThatAreTooOldEnd(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1))
	a.tell(seen("10.0.0.1", []byte{2, 0, 0, 0, 0, 7}, 1), seen("10.0.0.1", []byte{2, 0, 0, 0, 0, 8}, 1))
	s.judgeAll()
	s.after(time.Minute)
	a.tell(seen("10.0.0.1", []byte{2, 0, 0, 0, 0, 8}, 2))
	old := seen("10.0.0.2", []byte{2, 0, 0, 0, 0, 7}, 1)
	old.Claims[0].Age = durationpb.New(2 * time.Minute)
	young := seen("10.0.0.3", []byte{2, 0, 0, 0, 0, 7}, 1)
	young.Claims[0].Age = durationpb.New(2*time.Minute - 1)
	a.tell(old, young)
	s.judgeAll()
	if a.n.Claims() != 3 {
		t.Fatalf("got %d claims, want 3: one was too old at once", a.n.Claims())
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
	if expire(); a.n.Claims() != 3 {
		t.Errorf("got %d claims, want none to end yet", a.n.Claims())
	}
	s.after(1)
	if expire(); a.n.Claims() != 2 {
		t.Errorf("got %d claims, want the old one ended", a.n.Claims())
	}
	s.wantJudged("a claim has ended, of a MAC that claims another address", "10.0.0.1", "10.0.0.3")
}

func TestTheWordsOfKernelsAreKeptByTheirTime(t *testing.T) {
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
	a.tell(again)
	if c := claim("10.0.0.1"); c.Begun != begun || c.Read != s.now || c.Seen != s.now || c.Count != 2 {
		t.Errorf("got begun %d, read %d, seen %d, want read now", c.Begun, c.Read, c.Seen)
	}
	read := s.now
	s.after(time.Second)
	a.tell(assignedMessage(2, "10.0.0.1"))
	if c := claim("10.0.0.1"); c.Read != s.now {
		t.Errorf("got read at %d, want now: the kernel said another thing", c.Read)
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
	a.tell(frame)
	first := s.now
	if c := claim("10.0.0.2"); c.Begun != first.Add(-3*time.Second) || c.Seen != c.Begun || c.Before != 0 {
		t.Errorf("got begun %d, seen %d, before %d, want three seconds ago", c.Begun, c.Seen, c.Before)
	}
	s.judgeAll()
	s.after(10 * time.Second)
	a.tell(seen("10.0.0.2", []byte{2, 0, 0, 0, 0, 7}, 2))
	if c := claim("10.0.0.2"); c.Seen != s.now || c.Before != first.Add(-3*time.Second) || c.Begun != c.Before {
		t.Errorf("got begun %d, seen %d, before %d, want now and before that", c.Begun, c.Seen, c.Before)
	}
	s.wantJudged("a frame is seen again", "10.0.0.2")
	s.RLock()
	s.Settle(index.AddressOf(netip.MustParseAddr("10.0.0.2")), true)
	s.RUnlock()
	a.tell(seen("10.0.0.2", []byte{2, 0, 0, 0, 0, 7}, 3))
	s.wantJudged("a frame of a plain owner is seen again")
}

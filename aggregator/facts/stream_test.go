package facts

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

func TestANodeThatIsSilentIsGivenUp(t *testing.T) {
	s := newScene(t)
	if at := s.Ring(); at != 0 {
		t.Errorf("got the next work at %d, want none", at)
	}
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	s.wantNodes("it reports", "n1 connected covers claims=1")
	s.wantHeard("it reports", "names n1", "lack n1#1", "lack n1#2", "ranges n1", "changed n1")
	s.judgeAll()
	s.after(time.Minute)
	s.Ring()
	s.wantNodes("it still reports", "n1 connected covers claims=1")
	a.leave()
	s.wantNodes("it is silent", "n1 unheard claims=1")
	s.wantJudged("it is silent", "10.0.0.1")
	s.wantHeard("it is silent", "changed n1", "coverage", "names n1")
	if at := s.Ring(); at != s.now.Add(time.Minute) {
		t.Errorf("got the next work at %d, want in a minute", at.Sub(s.now))
	}
	s.after(time.Minute - 1)
	s.Ring()
	s.wantNodes("the time is not over", "n1 unheard claims=1")
	s.after(1)
	if s.Overdue(s.now-1) || !s.Overdue(s.now) {
		t.Error("got no due work in time")
	}
	if at := s.Ring(); at != s.now.Add(ForgetNodeAfter) {
		t.Errorf("got the next work in %s, want in a day", at.Sub(s.now))
	}
	s.wantNodes("it times out", "n1 unheard timed-out claims=0")
	s.wantJudged("it times out", "10.0.0.1")
	s.wantHeard("it times out", "changed n1", "former n1#b1/4002", "lack n1#2")
	if s.Claimed(index.AddressOf(netip.MustParseAddr("10.0.0.1"))) || a.n.Namespaces() != 0 || s.NodeCount() != 1 {
		t.Error("got records of a node that timed out")
	}
	s.after(ForgetNodeAfter)
	s.Ring()
	s.wantNodes("it is forgotten")
	s.wantHeard("it is forgotten", "names n1")
	if s.NodeCount() != 0 || s.Node(a.n.Rec) != nil || len(s.Called("n1")) != 0 || len(s.At(a.n.ID.Place())) != 0 {
		t.Error("got a forgotten node")
	}
	if got := len(s.called) + len(s.shown) + len(s.places); got != 0 {
		t.Errorf("got %d names and places of a forgotten node", got)
	}
}

func TestANodeThatReconnectsHasTheReportedRecords(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"), pod(3, "10.0.0.3"))
	a.leave()
	s.judgeAll()
	s.notified.heard = nil
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
		t.Error("got no update of the last message's time")
	}
	s.wantHeard("it has reported", "changed n1", "former n1#b1/4002", "names n1", "lack n1#1", "lack n1#2", "lack n1#3", "ranges n1")
	if s.Ring(); s.Ring() != 0 {
		t.Error("got scheduled work, want none")
	}
	a.leave()
	s.after(time.Minute)
	s.Ring()
	s.wantNodes("it times out", "n1 unheard timed-out claims=0")
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

func TestAChangeIsDoneWhenItIsJudged(t *testing.T) {
	s := newScene(t)
	done := func(b *Batch) bool {
		select {
		case <-b.Done():
			return true
		default:
			return false
		}
	}
	p := &quiet{}
	n, b, err := s.Connect(p, &pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 1}, "")
	if err != nil || !done(b) {
		t.Fatalf("got %v, done %t, want a node with nothing to judge", err, done(b))
	}
	batches := snapshotOf(t, s.Facts, p, n, records.Merge(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}}, pod(2, "10.0.0.1")))
	delta := deltaOf(t, s.Facts, p, n, assignedMessage(2, "10.0.0.2"))
	left := s.Disconnect(p, n, func(*Node) bool { return true })
	all := slices.Concat(batches, []*Batch{delta}, left)
	if slices.ContainsFunc(all, done) || len(left) != 1 || !n.Shared {
		t.Errorf("got some of %d changes done before they are judged", len(all))
	}
	s.judgeAll()
	for i, b := range all {
		if !done(b) {
			t.Errorf("change %d is not done", i)
		}
	}
	b, _ = s.IPAMChanged(nil)
	if !done(b) || !done(s.PodsChanged(nil)) || !done(s.PodsOnChanged(func(string) bool { return false })) {
		t.Error("got empty changes that are not done")
	}
}

func TestANodeThatNeverReportsIsGivenUp(t *testing.T) {
	s := newScene(t)
	a, _ := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1"}, "")
	if at := s.Ring(); at != s.now.Add(time.Minute) {
		t.Errorf("got the next work in %s, want in a minute", at.Sub(s.now))
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
		"a snapshot": second(s.Snapshot(old.p, old.n, &Snapshot{Messages: once(pod(2, "10.0.0.9"))}, func() { t.Error("got the message applied") })),
	} {
		if !errors.Is(err, ErrTakenOver) {
			t.Errorf("%s of the old stream: got %v", name, err)
		}
	}
	old.leave()
	s.wantNodes("the old stream ends", "n1 connected covers claims=1")
	if s.Claimed(index.AddressOf(netip.MustParseAddr("10.0.0.9"))) {
		t.Error("got the records of the old stream")
	}
}

// A stream that replaces another one during its snapshot ends that snapshot.
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
	}}, func() { t.Error("got the snapshot done") })
	if !errors.Is(err, ErrTakenOver) || a.n.Claims() != 2 || a.n.Applying || s.Claimed(key("10.0.0.4")) {
		t.Errorf("got %v and %d claims, want the previous records", err, a.n.Claims())
	}
}

func TestDroppedRecordsOfASnapshotAreCounted(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1)
	in := &Snapshot{
		Messages: once(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}, Checked: []uint64{3}}), Excess: 4, LeftOut: LeftOut{Records: 2},
		Corrections: map[string]int{"name": 1}, Checked: func(uint64) []index.Address { return nil },
	}
	if _, err := s.Snapshot(a.p, a.n, in, func() {
		if !a.n.Applying {
			t.Error("got a snapshot that was not applied")
		}
	}); err != nil {
		t.Fatal(err)
	}
	if a.n.Excess != 4 || a.n.LeftOut != in.LeftOut || a.n.Corrections["name"] != 1 || !a.n.Incomplete() || !a.n.Blind() || a.n.Covers() {
		t.Errorf("got %d excess, %+v left out, %v corrected", a.n.Excess, a.n.LeftOut, a.n.Corrections)
	}
	if a.snapshot(); a.n.Incomplete() || a.n.Blind() || !a.n.Covers() {
		t.Error("got an incomplete node, want it complete again")
	}
	in.LeftOut, in.Excess = LeftOut{}, 1
	if _, err := s.Snapshot(a.p, a.n, in, func() {}); err != nil || !a.n.Incomplete() || a.n.Blind() {
		t.Errorf("got %v, incomplete %t, want only frames left out", err, a.n.Incomplete())
	}
}

// All pieces of a large message are applied.
func TestAllOfALargeMessageIsApplied(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1)
	m := bridgeAndPods()
	for i := range 2 * piece {
		m.Claims = append(m.Claims, assigned(2, netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}).String()))
	}
	m.Pools, m.Status = []*pb.PoolRecord{hostLocal("a", "10.9.0.1", "10.9.0.99")}, &pb.StatusRecord{Ports: make([]*pb.Node_Port, 2)}
	m.Allocations = []*pb.AllocationRecord{given("a", "10.9.0.1", "c")}
	a.report(m)
	if a.n.Claims() != 7+2*piece || a.n.Namespaces() != 5 || a.n.links.count != 3 || a.n.interfaces.count != 13 || a.n.Ports != 2 || s.Allocations() != 1 {
		t.Errorf("got %d claims, %d namespaces, %d links, %d interfaces, %d ports, %d allocations", a.n.Claims(), a.n.Namespaces(), a.n.links.count, a.n.interfaces.count, a.n.Ports, s.Allocations())
	}
}

// judgeBatches judges all addresses, and reports whether the batches are done.
func (s *scene) judgeBatches(batches []*Batch) bool {
	s.judgeAll()
	return !slices.ContainsFunc(batches, func(b *Batch) bool {
		select {
		case <-b.Done():
			return false
		default:
			return true
		}
	})
}

// A node that timed out and reconnects without sending a snapshot is forgotten a day after it
// disconnects.
func TestNodeThatConnectsAndSendsNothingIsForgotten(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1)
	a.leave()
	s.after(time.Minute)
	s.Ring()
	s.after(time.Hour)
	if a, _ = s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 2}, ""); a.n.Charged() != nodeCost {
		t.Errorf("got %d bytes of a node that connects, want %d", a.n.Charged(), nodeCost)
	}
	if !s.judgeBatches(s.Disconnect(a.p, a.n, func(*Node) bool { return false })) {
		t.Error("got a change that is never done")
	}
	if a.n.Charged() != 0 {
		t.Errorf("got %d bytes of a node that disconnected", a.n.Charged())
	}
	s.checkBudget("it disconnects")
	if at := s.Ring(); at != s.now.Add(ForgetNodeAfter-time.Hour) {
		t.Errorf("got the next work in %s, want a day after it timed out", at.Sub(s.now))
	}
	if !s.judgeBatches(s.Disconnect(a.p, a.n, func(*Node) bool { return false })) {
		t.Error("got the end of a stream that is never done")
	}
}

// A stream that replaces another one of a connected node schedules nothing.
func TestAReplacedConnectionMakesNothingDue(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1)
	if _, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 1}, ""); err != nil {
		t.Fatal(err)
	}
	if at := s.Ring(); at != 0 {
		t.Errorf("got the next work in %s, want nothing", at.Sub(s.now))
	}
}

func TestTheNextTimeIsTheSoonest(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
		s := newScene(t)
		agents := []*agent{s.joins("n0", "b0", 1), s.joins("n1", "b1", 1), s.joins("n2", "b2", 1)}
		begin := s.now
		for _, i := range order {
			agents[i].leave()
			s.after(time.Second)
		}
		if at := s.Ring(); at != begin.Add(time.Minute) {
			t.Errorf("%v: got the next work after %s, want after a minute", order, at.Sub(begin))
		}
		if s.Overdue(begin.Add(time.Minute-1)) || !s.Overdue(begin.Add(time.Minute)) {
			t.Errorf("%v: got overdue work at a different time", order)
		}
		var overdue []bool // while a node times out
		s.Changed = func(c *Changes) {
			if len(c.Nodes) > 0 {
				overdue = append(overdue, s.Overdue(s.now))
			}
		}
		s.now = begin.Add(time.Minute)
		for _, q := range s.queues {
			select {
			case <-q.Wake():
			default:
			}
		}
		if at := s.Ring(); at != s.now.Add(time.Second) || s.Overdue(s.now) {
			t.Errorf("%v: got the next work in %s, want in a second", order, at.Sub(s.now))
		}
		if len(overdue) != 1 || !overdue[0] {
			t.Errorf("%v: got overdue %v while a node times out", order, overdue)
		}
		for i, q := range s.queues {
			select {
			case <-q.Wake():
			default:
				t.Errorf("%v: queue %d was not woken for the waiting addresses", order, i)
			}
		}
	}
}

// A replaced stream changes nothing, not even the time of the last message.
func TestMessagesOfAnOldStreamAreIgnored(t *testing.T) {
	s := newScene(t)
	old := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	now := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	heard := now.n.LastHeard
	s.after(time.Second)
	if _, err := s.Delta(old.p, old.n, assignedMessage(2, "10.0.0.2"), s.now, nil); !errors.Is(err, ErrTakenOver) || now.n.LastHeard != heard {
		t.Errorf("a change: got %v, heard at %d, want %d", err, now.n.LastHeard, heard)
	}
	if _, err := s.Snapshot(old.p, old.n, &Snapshot{Messages: once(), LeftOut: LeftOut{Wire: 1}}, func() {}); !errors.Is(err, ErrTakenOver) || now.n.LastHeard != heard || now.n.Incomplete() || now.n.Claims() != 1 {
		t.Errorf("a snapshot: got %v, heard at %d, want %d and nothing left out", err, now.n.LastHeard, heard)
	}
	if now.report(assignedMessage(2, "10.0.0.3")); now.n.Claims() != 2 || now.n.LastHeard != s.now {
		t.Errorf("got %d claims of the current stream, want 2", now.n.Claims())
	}
}

// A snapshot of known records changes nothing, except for records that moved.
func TestASnapshotOfWhatIsKnown(t *testing.T) {
	s := newScene(t)
	frame := seen("10.0.0.9", records.MAC(9), 1)
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.1"), frame)
	s.judgeAll()
	s.notified.heard = nil
	a.snapshot(lan(1), pod(2, "10.0.0.1"), seen("10.0.0.9", records.MAC(9), 1))
	s.wantJudged("it is the same")
	s.wantHeard("it is the same")
	frame.Claims[0].Link = "eth1"
	a.snapshot(lan(1), pod(2, "10.0.0.1"), frame)
	s.wantJudged("a frame is on another link", "10.0.0.9")
	if c := s.Builder().Case(key("10.0.0.9"), false); len(c.Claims) != 1 || c.Claims[0].Link.Name != "eth1" {
		t.Errorf("got claims %+v, want one on the other link", c.Claims)
	}
	read := func() verdict.Stamp { return s.Builder().Case(key("10.0.0.1"), false).Claims[0].Read }
	before := read()
	s.after(time.Second)
	a.snapshot(lan(1), pod(2, "10.0.0.1"), frame)
	if read() != before {
		t.Error("got a new reading, but only a snapshot was received")
	}
	if _, err := s.Snapshot(a.p, a.n, &Snapshot{
		Messages: once(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}, Checked: []uint64{5}}, lan(1), pod(2, "10.0.0.1"), frame),
		Checked:  func(uint64) []index.Address { return []index.Address{key("10.0.0.1")} },
	}, func() {}); err != nil || read() != s.now {
		t.Errorf("got %v, read at %d, want now: the agent answered a check", err, read())
	}
}

// Only the agent's own namespace is completed.
func TestTheNodesOwnNamespace(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1}, {Id: 3}}})
	if got := a.n.NamespaceOf(1).Netns; got != "1" {
		t.Errorf("got %q, want the network namespace of the agent", got)
	}
	if got := a.n.NamespaceOf(3).Netns; got != "" {
		t.Errorf("got %q of an unknown namespace", got)
	}
}

// A message may add kernel claims up to the limit of the node.
func TestHowManyKernelClaimsAMessageMayAdd(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	a.n.wireClaims = a.n.claims.count + 2 - MaxClaims
	two := records.Claims(assigned(2, "10.0.0.2"), assigned(2, "10.0.0.3"))
	three := records.Claims(assigned(2, "10.0.0.4"), assigned(2, "10.0.0.5"), assigned(2, "10.0.0.6"))
	if _, err := s.Delta(a.p, a.n, three, s.now, nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("three kernel claims: got %v, want RESOURCE_EXHAUSTED", err)
	}
	three.Claims[2].Gone = true
	three.Claims[1].Kind, three.Claims[1].Mac = pb.Evidence_USED, records.MAC(9)
	if _, err := s.Delta(a.p, a.n, three, s.now, nil); err != nil {
		t.Errorf("one kernel claim, a frame and an end: got %v", err)
	}
	a.n.wireClaims = a.n.claims.count + 2 - MaxClaims
	if _, err := s.Delta(a.p, a.n, two, s.now, nil); err != nil || !s.Claimed(key("10.0.0.3")) {
		t.Errorf("two kernel claims: got %v, want them accepted", err)
	}
}

// Judgements wait for links that are due to separate.
func TestLinksAreOverdue(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, lan(1), onLAN(2, "10.0.0.1"))
	b := s.joins("n2", "b2", 1, lan(2))
	if s.Ring() != 0 || s.Overdue(s.now) {
		t.Error("got overdue work before the links are joined")
	}
	b.report(seen("10.0.0.1", records.MAC(2), 1))
	_, domains := s.SharedMACs()
	due := domains.Due()
	for at, want := range map[verdict.Stamp]bool{s.now: false, due - 1: false, due: true, due + 1: true} {
		if got := s.Overdue(at); got != want {
			t.Errorf("%d: got overdue %t, want %t: links are due at %d", at, got, want, due)
		}
	}
}

// A removed node whose next snapshot was not completed leaves nothing behind.
func TestANodeThatIsForgottenAfterHalfASnapshot(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	a.leave()
	s.after(time.Minute)
	s.Ring()
	one, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	var two *agent
	_, err = s.Snapshot(one.p, one.n, &Snapshot{Messages: func(yield func(*pb.ReportRequest) bool) {
		if yield(pod(2, "10.0.0.1")) {
			two, _ = s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 1}, "")
			yield(pod(3, "10.0.0.3"))
		}
	}}, func() {})
	if err == nil || two == nil {
		t.Fatalf("got %v, want the snapshot to be applied", err)
	}
	two.leave()
	s.check(t, "it left")
	s.after(ForgetNodeAfter)
	s.Ring()
	s.after(ForgetNodeAfter)
	s.Ring()
	s.wantNodes("it is forgotten")
	if s.Claimed(key("10.0.0.1")) {
		t.Error("got a claim of a forgotten node")
	}
	s.joins("n2", "b2", 1, pod(2, "10.0.0.1"))
	s.checkBudget("another node has the address")
}

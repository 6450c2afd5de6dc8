package facts

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

func TestItemsHaveTheReasonOfTheirJudgement(t *testing.T) {
	s := newScene(t)
	s.follow(&api{})
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	s.judgeAll()
	one := func() *Item { return s.items()["10.0.0.1"] }
	s.Touch([]index.Address{key("10.0.0.1")})
	if i := one(); i.Pods || i.Republish || !i.Touched() || i.New || i.At != 0 {
		t.Errorf("touched: got %+v", i)
	}
	s.Republish([]index.Address{key("10.0.0.1")})
	if i := one(); i.Pods || !i.Republish {
		t.Errorf("reported again: got %+v", i)
	}
	s.PodsChanged([]string{"uidveth2"})
	if i := one(); !i.Pods || i.Republish {
		t.Errorf("its pod changed: got %+v", i)
	}
	s.PodsOnChanged(func(string) bool { return true })
	s.Touch([]index.Address{key("10.0.0.1")})
	if i := one(); !i.Pods {
		t.Errorf("its pod and its claims changed: got %+v", i)
	}
	at := s.now
	a.report(assignedMessage(2, "10.0.0.2"))
	s.after(time.Second)
	again := assignedMessage(2, "10.0.0.2")
	again.Claims[0].Count = 2
	a.report(again)
	if i := s.items()["10.0.0.2"]; !i.New || i.At != at {
		t.Errorf("a claim: got %+v, want the first time", i)
	}
	if i := s.queue(key("10.0.0.1")).Take(key("10.0.0.1")); i.Touched() || i.Address != key("10.0.0.1") {
		t.Errorf("after it was taken: got %+v, want no change", i)
	}

	before := []verdict.Owner{{ID: "x"}}
	vanished := []*verdict.Allocation{{Allocation: ipam.Allocation{Pod: "y"}}}
	s.Expire(&Item{Address: key("10.0.0.1"), Before: before, Derived: true, Vanished: vanished, At: 5, Residence: 6, Pods: true, Republish: true}, nil)
	if i := one(); len(i.Before) != 1 || !i.Derived || len(i.Vanished) != 1 || i.At != 5 || i.Residence != 6 || !i.Pods || !i.Republish {
		t.Errorf("judged once more: got %+v, want the known one", i)
	}
}

func TestBatchesAreDoneWhenAllIsJudged(t *testing.T) {
	s := newScene(t)
	done := func(b *Batch) bool {
		select {
		case <-b.Done():
			return true
		default:
			return false
		}
	}
	if !done(s.Touch(nil)) {
		t.Error("got an empty batch that is not done")
	}
	first := s.Touch([]index.Address{key("10.0.0.1"), key("10.0.0.2")})
	second := s.Touch([]index.Address{key("10.0.0.1"), key("10.0.0.1")})
	waiting := 0
	for _, q := range s.queues {
		waiting += q.Len()
	}
	if waiting != 2 || done(first) || done(second) {
		t.Errorf("got %d waiting addresses", waiting)
	}
	for _, q := range s.queues {
		select {
		case <-q.Wake():
		default:
			if q.Len() > 0 {
				t.Error("got nobody woken")
			}
		}
	}
	s.queue(key("10.0.0.1")).Take(key("10.0.0.1")).Finish()
	if done(first) || !done(second) {
		t.Error("got the wrong batch done, want only the second one")
	}
	if s.judgeAll(); !done(first) {
		t.Error("got the first batch not done")
	}
	third := s.Touch([]index.Address{key("10.0.0.1")})
	item := s.queue(key("10.0.0.1")).Take(key("10.0.0.1"))
	s.Expire(item, nil)
	if item.Finish(); done(third) {
		t.Error("got a batch done before its address is judged without expired claims")
	}
	if s.judgeAll(); !done(third) {
		t.Error("got the third batch not done")
	}
	var many []index.Address
	for i := range 3 * piece {
		many = append(many, index.AddressOf(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})))
	}
	large := s.Touch(many)
	small := s.Touch(many[:1])
	s.queue(many[0]).Next().Finish()
	if !done(small) || done(large) {
		t.Error("got the large batch first")
	}
	if got := len(s.judgeAll()); got != 3*piece-1 || !done(large) {
		t.Errorf("got %d addresses judged", got)
	}
}

func TestADisputedClaimCostsMore(t *testing.T) {
	frame := func(addr string, mac []byte) *pb.ReportRequest { return seen(addr, mac, 1) }
	for _, test := range []struct {
		name  string
		first *pb.ReportRequest
		then  *pb.ReportRequest
		cost  int
	}{
		{"a kernel's", lan(1), assignedMessage(2, "10.0.0.9"), KernelCost},
		{"a kernel's, with a network", lan(1), &pb.ReportRequest{Claims: []*pb.ClaimRecord{{Address: []byte{10, 0, 0, 9}, Kind: pb.Evidence_ASSIGNED, Namespace: 2, Index: 2, Network: "net0"}}}, KernelCost + textCost("net0")},
		{"a frame", lan(1), frame("10.0.0.9", records.MAC(9)), WireCost},
		{"a frame on a new link", lan(1), &pb.ReportRequest{Claims: []*pb.ClaimRecord{{Address: []byte{10, 0, 0, 9}, Kind: pb.Evidence_USED, Namespace: 1, Index: 9, Mac: records.MAC(9), Link: "new"}}}, WireCost + linkCost + textCost("new")},
		{"a second kernel's", assignedMessage(3, "10.0.0.9"), assignedMessage(2, "10.0.0.9"), KernelCost + rivalCost},
		{"a frame of another sender", assignedMessage(3, "10.0.0.9"), frame("10.0.0.9", records.MAC(9)), WireCost + rivalCost},
		{"a frame of the owner", assignedMessage(3, "10.0.0.9"), frame("10.0.0.9", records.MAC(3)), WireCost},
		{"a second frame of another sender", frame("10.0.0.9", records.MAC(8)), frame("10.0.0.9", records.MAC(9)), WireCost + rivalCost},
		{"the owner's kernel", frame("10.0.0.9", records.MAC(2)), assignedMessage(2, "10.0.0.9"), KernelCost},
		{"another one's kernel", frame("10.0.0.9", records.MAC(8)), assignedMessage(2, "10.0.0.9"), KernelCost + rivalCost},
		{"another kernel with the same MAC", &pb.ReportRequest{
			Interfaces: []*pb.InterfaceRecord{{Namespace: 3, Index: 2, Mac: records.MAC(2), Attachment: pb.InterfaceRecord_PEER}}, Claims: assignedMessage(3, "10.0.0.9").GetClaims(),
		}, assignedMessage(2, "10.0.0.9"), KernelCost + rivalCost},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), pod(3, "10.0.0.3"), test.first)
		before := a.n.Charged()
		a.report(test.then)
		if got := int(a.n.Charged() - before); got != test.cost {
			t.Errorf("%s: got %d bytes, want %d", test.name, got, test.cost)
		}
		a.report(test.then)
		if got := int(a.n.Charged() - before); got != test.cost {
			t.Errorf("%s: got %d bytes when it is reported once more, want %d", test.name, got, test.cost)
		}
		s.checkBudget(test.name)
	}
}

// Claims of senders that are only seen on the wire are evicted first.
func TestWhichClaimsAreOnlySeenOnTheWire(t *testing.T) {
	for _, test := range []struct {
		name string
		more *pb.ReportRequest
		want bool
	}{
		{"a frame", &pb.ReportRequest{}, true},
		{"a frame, and another sender", seen("10.0.0.9", records.MAC(8), 1), false},
		{"a frame, and the kernel of its sender", assignedMessage(2, "10.0.0.9"), false},
		{"a frame, and an allocation", &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.9", "c")}}, false},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), seen("10.0.0.9", records.MAC(2), 1), test.more)
		c := a.n.same(s.addresses.of(key("10.0.0.9"), a.n.number))
		got := false
		for one := range c {
			got = got || s.seenOnlyOnWire(a.n, one)
		}
		if got != test.want {
			t.Errorf("%s: got an external device's claim %t, want %t", test.name, got, test.want)
		}
	}
}

// All addresses of a renamed node are judged again.
func TestANodeThatIsRenamedIsJudgedAgain(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"), &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "10.0.0.1", "10.0.0.9")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.7", "c")}})
	s.judgeAll()
	s.notified.heard = nil
	s.joins("n1", "b0", 1)
	s.wantJudged("another node has its name", "10.0.0.1", "10.0.0.7")
	s.wantHeard("another node has its name", "changed n1", "changed n1@b1", "lack n1#1", "names n1", "names n1@b1", "pool p", "pool-ended p of n1", "ranges n1", "ranges n1@b1")
	if a.n.Rec.Name != "n1@b1" || !s.Covered("n1@b1") {
		t.Errorf("got name %s", a.n.Rec.Name)
	}
	a.leave()
	if s.Covered("n1@b1") || !s.Covered("n1") {
		t.Error("got the wrong node covered")
	}
}

func TestTombstonesAreForgotten(t *testing.T) {
	s := newScene(t)
	a, b := s.joins("n1", "b1", 1), s.joins("n2", "b2", 1)
	mac := verdict.MAC(records.MAC(7))
	addr := func(i int) index.Address {
		return index.AddressOf(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	for i := range maxTombstones + 10 {
		s.bury(a.n, addr(i), mac, 0)
	}
	if len(s.tombstones) != maxTombstones || len(s.burials) != maxTombstones {
		t.Errorf("got %d tombstones, want %d", len(s.tombstones), maxTombstones)
	}
	for i, want := range map[int]bool{0: false, 9: false, 10: true, maxTombstones + 9: true} {
		if got := s.isBuried(b.n, addr(i), mac, s.now); got != want {
			t.Errorf("%d: got buried %t, want %t", i, got, want)
		}
	}
	if s.isBuried(a.n, addr(20), mac, s.now) || s.isBuried(b.n, addr(20), verdict.MAC(records.MAC(8)), s.now) || s.isBuried(b.n, addr(20), mac, s.now.Add(lateWithin+1)) {
		t.Error("got a tombstone for a sighting of the same node, of another sender, or a later one")
	}
	if !s.isBuried(b.n, addr(20), mac, s.now.Add(lateWithin)) {
		t.Error("got no tombstone for a slightly later sighting")
	}
	s.after(30 * time.Second)
	s.bury(a.n, addr(20), mac, time.Second)
	s.after(30 * time.Second)
	if s.isBuried(b.n, addr(30), mac, 0) || !s.isBuried(b.n, addr(20), mac, 0) {
		t.Error("got a tombstone from a minute ago, or none for a later one")
	}
	s.bury(a.n, addr(1), mac, 0)
	if len(s.tombstones) != 2 || len(s.burials) != 2 {
		t.Errorf("got %d tombstones in %d burials, want the ones of the last minute", len(s.tombstones), len(s.burials))
	}
	s.after(time.Hour)
	s.bury(a.n, addr(1), mac, time.Minute)
	if len(s.tombstones) != 0 || len(s.burials) != 0 {
		t.Errorf("got %d tombstones in %d burials, want none from a minute ago", len(s.tombstones), len(s.burials))
	}
}

// An agent that lags behind reports frames late.
func TestFramesOfAgentsThatAreBehindAreOlder(t *testing.T) {
	s := newScene(t)
	a, b := s.joins("n1", "b1", 1), s.joins("n2", "b2", 1)
	s.bury(a.n, key("10.0.0.1"), verdict.MAC(records.MAC(7)), 0)
	seen := s.now.Add(time.Second)
	buried := func() bool { return s.isBuried(b.n, key("10.0.0.1"), verdict.MAC(records.MAC(7)), seen) }
	if buried() {
		t.Error("got a tombstone for a sighting a second later")
	}
	b.p.lag = 2 * time.Second
	if !buried() {
		t.Error("got no tombstone for a sighting a second later by the clock of an agent that lags by two")
	}
	b.leave()
	if buried() {
		t.Error("got a tombstone for a sighting of a node whose stream has ended")
	}
}

func TestAnEpochMakesNamespacesOthers(t *testing.T) {
	s := newScene(t)
	m := func(netns, name string) *pb.ReportRequest {
		return &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Netns: netns, Workload: &pb.Workload{Kind: pb.Workload_POD, Name: name}}}}
	}
	var got []string
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	for _, step := range []struct{ netns, name string }{{"4002", "a"}, {"", "a"}, {"", "b"}, {"7", "b"}, {"8", "b"}, {"odd", "b"}, {"007", "b"}} {
		a.report(m(step.netns, step.name), assignedMessage(2, "10.0.0.1"), &pb.ReportRequest{Interfaces: pod(2, "10.0.0.1").Interfaces}, assignedMessage(2, "10.0.0.1"))
		got = append(got, a.n.NamespaceOf(2).ID)
	}
	want := []string{"b1/4002", "b1/1/1/2", "b1/1/1/2", "b1/7", "b1/8", "b1/odd", "b1/007"}
	if !slices.Equal(got, want) {
		t.Errorf("got ids %q, want %q", got, want)
	}
	kept := func(first, second string) bool {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, m(first, "a"), &pb.ReportRequest{Interfaces: pod(2, "10.0.0.1").Interfaces}, assignedMessage(2, "10.0.0.1"))
		a.report(m(second, "a"))
		return a.n.Claims() == 1
	}
	for _, test := range []struct {
		first, second string
		want          bool
	}{{"7", "7", true}, {"", "7", true}, {"7", "8", false}, {"7", "", false}, {"", "", true}, {"", "odd", true}, {"odd", "other", false}, {"odd", "odd", true}} {
		if got := kept(test.first, test.second); got != test.want {
			t.Errorf("from %q to %q: got it kept: %t, want %t", test.first, test.second, got, test.want)
		}
	}
	a, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 2}, "")
	if err != nil {
		t.Fatal(err)
	}
	a.snapshot(m("", "a"), &pb.ReportRequest{Interfaces: pod(2, "10.0.0.1").Interfaces})
	if id := a.n.NamespaceOf(2).ID; id != "b1/1/2/2" || a.n.Claims() != 0 {
		t.Errorf("got id %s and %d claims in another epoch", id, a.n.Claims())
	}
}

// Await waits until no judgement holds the facts, and does not hold them afterwards.
func TestWaitingForJudgementsReleasesTheFacts(t *testing.T) {
	s := newScene(t)
	s.RLock()
	done := make(chan struct{})
	go func() {
		s.Await()
		close(done)
	}()
	select {
	case <-done:
		t.Error("got no wait for a judgement in progress")
	default:
	}
	s.RUnlock()
	<-done
	s.joins("n1", "b1", 1)
}

// An address counts until it has been judged, also during its judgement, and twice if it changes
// meanwhile.
func TestAnAddressCountsUntilItIsJudged(t *testing.T) {
	f, _ := newFacts(t)
	p, n := connectNode(t, f, "n1")
	snapshotOf(t, f, p, n, pod(2, "10.0.0.1"))
	f.judgeAll()
	waiting := func(when string, want int) {
		t.Helper()
		got := 0
		for _, q := range f.queues {
			got += q.Len()
		}
		if got != want {
			t.Errorf("%s: got %d addresses that are not judged, want %d", when, got, want)
		}
	}
	waiting("all is judged", 0)
	change := func(addr string) *Queue {
		deltaOf(t, f, p, n, assignedMessage(2, addr))
		for _, q := range f.queues {
			if q.Len() > 0 {
				return q
			}
		}
		t.Fatal("nothing is to be judged")
		return nil
	}
	q := change("10.0.0.2")
	waiting("it waits", 1)
	item := q.Next()
	waiting("it is under way", 1)
	again := assignedMessage(2, "10.0.0.2")
	again.Claims[0].Count = 2
	deltaOf(t, f, p, n, again)
	waiting("something changes meanwhile", 2)
	item.Finish()
	waiting("it waits for the second time", 1)
	q.Take(item.Address).Finish()
	waiting("all is judged again", 0)
	item = q.Take(item.Address)
	waiting("its time has come", 1)
	item.Finish()
	waiting("it is judged", 0)
}

// The residence of a change in the agent is that of its oldest claim.
func TestResidenceOfAChangeInTheAgent(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"), assignedMessage(2, "10.0.0.3"))
	s.judgeAll()
	m := records.Claims(assigned(2, "10.0.0.4"), assigned(2, "10.0.0.5"), assigned(2, "10.0.0.3"))
	for i, d := range []time.Duration{2 * time.Second, time.Second, 3 * time.Second} {
		m.Claims[i].Residence = durationpb.New(d)
	}
	m.Claims[2].Gone = true
	a.report(m)
	if i := s.items()["10.0.0.5"]; i.Residence != 2*time.Second || i.At != s.now {
		t.Errorf("got %s in the agent, received at %d", i.Residence, i.At)
	}
}

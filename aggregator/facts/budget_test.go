package facts

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// heavy returns namespaces whose charges are just above a number of bytes each.
func heavy(from, count, bytes int) *pb.ReportRequest {
	m := &pb.ReportRequest{}
	for i := range count {
		m.Namespaces = append(m.Namespaces, &pb.NamespaceRecord{Id: uint32(from + i), Intended: make([]*pb.Intended, bytes/intendedCost)})
	}
	return m
}

// room returns the number of bytes that are free up to a total charge.
func (s *scene) room(total int64) int { return int(total - s.used) }

// A node may use free memory up to a threshold, its share up to the limit, and nothing beyond.
func TestTheBudgetOfANode(t *testing.T) {
	type step struct {
		node  int
		bytes func(s *scene, n *Node) int
		want  bool
	}
	total := func(what func(b *budget) int64) func(*scene, *Node) int {
		return func(s *scene, _ *Node) int { return s.room(what(&s.budget)) }
	}
	limit := total(func(b *budget) int64 { return b.limit })
	high := total((*budget).high)
	one := func(*scene, *Node) int { return 1 }
	share := func(s *scene, n *Node) int { return int(LeastBudget/2 - n.account.used) }
	less := func(s *scene, n *Node) int { return share(s, n) - 1 }
	more := func(s *scene, n *Node) int { return share(s, n) + 1 }
	for _, test := range []struct {
		name  string
		nodes int
		steps []step
	}{
		{"one node has all", 1, []step{{0, limit, true}, {0, one, false}}},
		{"a node uses the memory that the other one does not use", 2, []step{{0, high, true}, {0, one, false}}},
		{"the others in its account use the rest", 2, []step{{0, high, true}, {1, limit, true}}},
		{"each has its share", 2, []step{{0, share, true}, {1, share, true}, {0, one, false}, {1, one, false}}},
		{"a little less than its share", 2, []step{{0, share, true}, {1, less, true}, {1, one, true}, {1, one, false}}},
		{"a little more than its share", 2, []step{{0, less, true}, {1, more, false}, {1, share, true}}},
	} {
		s := newScene(t)
		s.small()
		var nodes []*Node
		for i := range test.nodes {
			nodes = append(nodes, s.joins(fmt.Sprint("n", i), fmt.Sprint("b", i), 1).n)
		}
		for i, step := range test.steps {
			n := nodes[step.node]
			before := n.account.used
			bytes := step.bytes(s, n)
			if got := s.Hold(n, bytes); got != step.want {
				t.Errorf("%s: step %d: got room for %d bytes %t, want %t", test.name, i, bytes, got, step.want)
			}
			want := before
			if step.want {
				want += int64(bytes)
			}
			if n.account.used != want {
				t.Errorf("%s: step %d: got %d bytes, want %d", test.name, i, n.account.used, want)
			}
		}
		for _, n := range nodes {
			if n.Incomplete() {
				t.Errorf("%s: got %+v of %s left out", test.name, n.LeftOut, n.Rec.Name)
			}
		}
	}
}

// Charges of no node reduce the shares.
func TestChargesOfNoNodeReduceTheShares(t *testing.T) {
	s := newScene(t)
	s.small()
	var cost int32
	s.charge(nil, &cost, 1<<20, true)
	a, b := s.joins("n1", "b1", 1), s.joins("n2", "b2", 1)
	const want = (LeastBudget - 1<<20) / 2
	for _, n := range []*Node{a.n, b.n} {
		if got := s.share(n.account); got != want {
			t.Errorf("got a share of %d bytes, want %d", got, want)
		}
	}
	if got := s.share(&account{}); got != (LeastBudget-1<<20)/3 {
		t.Errorf("got a share of %d bytes for a third node", got)
	}
	if s.charge(nil, &cost, 0, true); cost != 0 || s.common != 0 || s.share(a.n.account) != LeastBudget/2 {
		t.Errorf("got %d bytes charged to no node, want none", s.common)
	}
	s.checkBudget("all is released")
}

// When a node needs its share, records of the node that exceeds its own share the most are evicted.
func TestRecordsAboveAShareAreEvicted(t *testing.T) {
	join := func(s *scene, i int, vouched string, kilobytes int) *Node {
		s.Helper()
		a, err := s.hello(&pb.Hello{Node: vouched, BootId: fmt.Sprint("b", i), Netns: "1"}, vouched)
		if err != nil {
			s.Fatal(err)
		}
		a.snapshot(heavy(10, kilobytes/12, 12_000))
		if a.n.Incomplete() {
			s.Fatalf("node %d: got %+v left out", i, a.n.LeftOut)
		}
		return a.n
	}
	for _, test := range []struct {
		name  string
		nodes []int    // kilobytes of each node
		names []string // name of each node's credential
		want  []bool   // whether records of each node are evicted
	}{
		{"the one above its share", []int{1000, 5000}, []string{"x", "y"}, []bool{false, true}},
		{"the one above its share that came first", []int{5000, 1000}, []string{"x", "y"}, []bool{true, false}},
		{"the one that exceeds it by more", []int{2600, 4400}, []string{"x", "y"}, []bool{false, true}},
		{"the one that exceeds it by more and came first", []int{4400, 2600}, []string{"x", "y"}, []bool{true, false}},
		{"the larger node of one credential", []int{1000, 3000, 2000}, []string{"x", "x", "y"}, []bool{false, true, false}},
		{"the larger node of one credential that came first", []int{3000, 1000, 2000}, []string{"x", "x", "y"}, []bool{true, false, false}},
	} {
		s := newScene(t)
		s.small()
		var nodes []*Node
		for i, kilobytes := range test.nodes {
			nodes = append(nodes, join(s, i, test.names[i], kilobytes))
		}
		last := join(s, 99, "z", 0)
		if !s.Hold(last, s.room(LeastBudget)) { // within the share of last
			t.Fatalf("%s: got no room for a node within its share", test.name)
		}
		var before []int64
		for i, n := range nodes {
			if before = append(before, n.Charged()); n.Incomplete() {
				t.Errorf("%s: node %d: got %+v left out, but there is room", test.name, i, n.LeftOut)
			}
		}
		if !s.Hold(last, 1) {
			t.Errorf("%s: got no room for a node within its share", test.name)
		}
		s.Release(last, last.account.used-last.Charged()) // leaves only charges of records
		for i, n := range nodes {
			gone := 0
			if test.want[i] {
				gone = 1 + 1 + LeastBudget/128/12_000 // its own namespace, and a batch of others
			}
			if got, want := n.LeftOut, (LeftOut{Records: gone}); got != want || n.Charged() > before[i]-int64(gone-1)*12_000 {
				t.Errorf("%s: node %d: got %+v of %d bytes left out, want %+v", test.name, i, got, before[i], want)
			}
		}
		s.checkBudget(test.name)
	}
}

// Kernel claims and namespaces of a node above its share are evicted if it has nothing else. Nodes
// within their shares lose nothing.
func TestRecordsWithinAShareAreNotEvicted(t *testing.T) {
	s := newScene(t)
	s.small()
	a, b := s.joins("n1", "b1", 1, heavy(10, 30, 12_000)), s.joins("n2", "b2", 1)
	if !s.Hold(a.n, int(LeastBudget/2-a.n.account.used)) || !s.Hold(b.n, s.room(LeastBudget)) {
		t.Fatal("got no room for shares")
	}
	if s.Hold(b.n, 1) || s.Hold(a.n, 1) || a.n.Incomplete() || b.n.Incomplete() {
		t.Errorf("got %+v and %+v left out, want none", a.n.LeftOut, b.n.LeftOut)
	}
	if _, err := s.hello(&pb.Hello{Node: "n3", BootId: "b3", Netns: "1"}, ""); err != nil {
		t.Errorf("a third node: got %v, want the shares to be smaller", err)
	}
	if a.n.LeftOut.Records == 0 {
		t.Error("got no dropped records of a node above its reduced share")
	}
}

// Kept messages are not evicted.
func TestMessagesThatAreKeptStay(t *testing.T) {
	s := newScene(t)
	s.small()
	a, b := s.joins("n1", "b1", 1), s.joins("n2", "b2", 1)
	if !s.Hold(a.n, s.room(s.high())) || !s.Hold(b.n, s.room(s.limit)) {
		t.Fatal("got no room")
	}
	held := a.n.account.used - a.n.Charged()
	if s.Hold(b.n, 10_000) || a.n.account.used-a.n.Charged() != held {
		t.Errorf("got %d bytes of another node held, want %d", a.n.account.used-a.n.Charged(), held)
	}
}

// Addresses with evicted records are judged.
func TestAddressesThatMakeRoomAreJudged(t *testing.T) {
	s := newScene(t)
	s.small()
	a := s.joins("n1", "b1", 1, lan(1), seen("10.0.0.1", records.MAC(9), 1))
	s.judgeAll()
	if !s.Hold(a.n, s.room(s.limit)) || s.Hold(a.n, WireCost+1) || !s.Hold(a.n, WireCost) {
		t.Error("got no room for a message in the place of a frame, or for a larger one")
	}
	s.wantJudged("a frame made room", "10.0.0.1")

	s = newScene(t)
	s.small()
	b := s.joins("n2", "b2", 1, pod(2, "10.0.0.2"))
	if !s.Hold(b.n, s.room(s.high())) {
		t.Fatal("got no room")
	}
	s.judgeAll()
	c := s.joins("n3", "b3", 1)
	if !s.Hold(c.n, s.room(LeastBudget)) || !s.Hold(c.n, 1) || b.n.Claims() != 0 {
		t.Errorf("got %d claims of a node above its share, want none", b.n.Claims())
	}
	s.wantJudged("a claim of a kernel made room", "10.0.0.2")
}

// Wire claims of a node are evicted for a message within its share, or while there is free memory.
func TestFramesMakeRoom(t *testing.T) {
	const batch = (LeastBudget/128 + WireCost - 1) / WireCost * WireCost // evicted at once
	for _, test := range []struct {
		name   string
		frames int
		share  bool // whether the other node uses all of its share
		want   bool
	}{
		{"up to the threshold", 300, false, true},
		{"up to the threshold, with few frames", 10, false, false},
		{"up to its share", 300, true, true},
		{"up to its share, with few frames", 10, true, false},
	} {
		s := newScene(t)
		s.small()
		a, b := s.joins("n1", "b1", 1, lan(1), flood(0, test.frames)), s.joins("n2", "b2", 1)
		total := s.high()
		if test.share {
			total = s.limit
			if !s.Hold(b.n, int(s.share(b.n.account)-b.n.account.used)) {
				t.Fatalf("%s: got no share", test.name)
			}
		}
		if !s.Hold(a.n, s.room(total)) {
			t.Fatalf("%s: got no room to begin with", test.name)
		}
		if got := s.Hold(a.n, batch); got != test.want {
			t.Errorf("%s: got room %t, want %t", test.name, got, test.want)
		}
		want := LeftOut{Wire: min(test.frames, batch/WireCost)}
		if a.n.LeftOut != want || b.n.Incomplete() {
			t.Errorf("%s: got %+v left out, want %+v", test.name, a.n.LeftOut, want)
		}
	}
}

// Wire claims of a node are evicted so that the next node with the same credential can connect.
func TestANodeOfACredentialConnectsInThePlaceOfFrames(t *testing.T) {
	s := newScene(t)
	s.small()
	old, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1"}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	old.snapshot(lan(1), flood(0, 300))
	if !s.Hold(old.n, s.room(s.limit)) {
		t.Fatal("got no room")
	}
	if _, err := s.hello(&pb.Hello{Node: "n1", BootId: "b2", Netns: "1"}, "n1"); err != nil || s.used > s.limit || old.n.LeftOut.Wire == 0 {
		t.Errorf("got %v, %d of %d bytes used and %+v left out, want frames left out", err, s.used, s.limit, old.n.LeftOut)
	}
}

// A node that uses all of its share keeps kernel claims at the expense of its own wire claims, or
// those of another node of the same credential, but not the other way round.
func TestKernelsComeBeforeFrames(t *testing.T) {
	join := func(s *scene, name, boot, vouched string) *agent {
		a, err := s.hello(&pb.Hello{Node: name, BootId: boot, Netns: "1"}, vouched)
		if err != nil {
			t.Fatal(err)
		}
		a.snapshot(lan(1), pod(2, "10.4.0.1"))
		return a
	}
	for _, test := range []struct {
		name   string
		frames []int // of two nodes of one credential, and of one without a credential
		taker  int
		m      *pb.ReportRequest
		want   []bool // which of them loses wire claims
		taken  bool
	}{
		{"its own frames", []int{40, 0, 0}, 0, assignedMessage(2, "10.4.0.2"), []bool{true, false, false}, true},
		{"its own frames first", []int{40, 80, 0}, 0, assignedMessage(2, "10.4.0.2"), []bool{true, false, false}, true},
		{"wire claims of the other node", []int{0, 40, 0}, 0, assignedMessage(2, "10.4.0.2"), []bool{false, true, false}, true},
		{"no other node", []int{0, 0, 40}, 0, assignedMessage(2, "10.4.0.2"), []bool{false, false, false}, false},
		{"no other node without a credential", []int{40, 0, 0}, 2, assignedMessage(2, "10.4.0.2"), []bool{false, false, false}, false},
		{"a frame", []int{40, 40, 0}, 0, seen("10.4.0.2", records.MAC(9), 1), []bool{false, false, false}, false},
	} {
		s := newScene(t)
		s.small()
		all := []*agent{join(s, "n1", "b1", "n1"), join(s, "n1", "b2", "n1"), join(s, "n2", "b3", "")}
		before := make([]int, len(all))
		for i, a := range all {
			a.report(flood(1000*i, test.frames[i]))
			before[i] = a.n.wireClaims
		}
		taker := all[test.taker].n
		if !s.Hold(taker, s.room(s.high())) {
			t.Fatalf("%s: got no room up to the threshold", test.name)
		}
		all[test.taker].report(test.m)
		for i, a := range all {
			left := a.n.LeftOut
			if i == test.taker && !test.taken {
				if left.Records+left.Wire != 1 || a.n.Claims() != 1+before[i] {
					t.Errorf("%s: got %+v of the node dropped, want its kernel claims kept", test.name, left)
				}
			} else if lost := left.Wire > 0 && a.n.wireClaims < before[i]; lost != test.want[i] || left.Records > 0 {
				t.Errorf("%s: node %d: got %+v left out, frames lost %t, want %t", test.name, i, left, lost, test.want[i])
			}
		}
		if got := s.Claimed(key("10.4.0.2")); got != test.taken {
			t.Errorf("%s: got accepted %t, want %t", test.name, got, test.taken)
		}
	}
}

// The wire claims of a snapshot take the memory that its kernel claims leave.
func TestFramesOfASnapshotComeAfterKernelClaims(t *testing.T) {
	s := newScene(t)
	s.small()
	a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.1"))
	if !s.Hold(a.n, s.room(LeastBudget)-100*WireCost) {
		t.Fatal("got no room")
	}
	m := flood(0, 150)
	m.Claims = append(m.Claims, assigned(2, "10.0.0.2"))
	a.snapshot(lan(1), pod(2, "10.0.0.1"), m)
	if left := a.n.LeftOut; left.Records > 0 || left.Wire > 52 || a.n.wireClaims+left.Wire != 150 || !s.Claimed(key("10.0.0.2")) {
		t.Errorf("got %+v left out and %d frames, want those left out for which there was no room", left, a.n.wireClaims)
	}
	s.checkBudget("a snapshot")
}

// Records that are most likely known from elsewhere, or least needed, are evicted first.
func TestTheOrderInWhichRecordsGo(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, lan(1), pod(3, "10.0.0.3"), pod(2, "10.0.0.1"))
	b := s.joins("n2", "b2", 1, pod(4, "10.0.0.3"))
	a.report(
		&pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.8", "c")}},
		seen("10.0.0.3", records.MAC(9), 1), seen("10.0.0.8", records.MAC(9), 1), seen("10.0.0.7", records.MAC(9), 1),
	)
	want := [][]string{ // records that remain after each step
		{"10.0.0.1", "10.0.0.3", "10.0.0.3 wire", "10.0.0.8 wire"},
		{"10.0.0.1", "10.0.0.3", "10.0.0.8 wire"},
		{"10.0.0.1", "10.0.0.3"},
		{"10.0.0.3"},
		nil,
	}
	wantAlso := [][]string{want[0], {"10.0.0.1", "10.0.0.3", "10.0.0.3 wire"}, want[2], want[3], want[4]}
	for i := range want {
		s.piece(newBatch(), func() {
			if got := s.evict(a.n, 1, i < 3); !got {
				t.Errorf("step %d: freed nothing", i)
			}
		})
		var got []string
		for _, addr := range []string{"10.0.0.1", "10.0.0.3", "10.0.0.7", "10.0.0.8"} {
			for _, c := range s.Builder().Case(key(addr), false).Claims {
				switch {
				case c.Node() != a.n.Rec:
				case wired(c):
					got = append(got, addr+" wire")
				default:
					got = append(got, addr)
				}
			}
		}
		if slices.Sort(got); !slices.Equal(got, want[i]) && !slices.Equal(got, wantAlso[i]) {
			t.Errorf("step %d: got %q left, want %q", i, got, want[i])
		}
	}
	if got, want := a.n.LeftOut, (LeftOut{Records: 2, Wire: 3}); got != want || len(a.n.Pools) != 1 {
		t.Errorf("got %+v left out and %d pools, want %+v and one", got, len(a.n.Pools), want)
	}
	s.piece(newBatch(), func() {
		if s.evict(a.n, 1, true) {
			t.Error("freed something, but there are no frames")
		}
	})
	var order []string
	for a.n.Charged() > nodeCost && len(order) < 50 {
		s.notified.heard = nil
		records := a.n.LeftOut.Records
		s.piece(newBatch(), func() { s.evict(a.n, 1, false) })
		for _, heard := range s.notified.heard {
			if record, ok := strings.CutPrefix(heard, "refused "); ok && !slices.Contains(order, record) {
				order = append(order, record)
			}
		}
		if a.n.LeftOut.Records != records+1 || a.n.LeftOut.Wire != 3 {
			t.Fatalf("got %+v after %v, want one record at a time", a.n.LeftOut, order)
		}
	}
	if want := []string{"pool", "interface", "namespace", "link"}; !slices.Equal(order, want) {
		t.Errorf("got order %q, want %q", order, want)
	}
	if a.n.interfaces.count+a.n.Namespaces()+a.n.links.count+len(a.n.Pools) != 0 || b.n.Incomplete() {
		t.Errorf("got %d interfaces, %d namespaces, %d links and %d pools, want nothing", a.n.interfaces.count, a.n.Namespaces(), a.n.links.count, len(a.n.Pools))
	}
	s.checkBudget("all is gone")
}

// A rebooted machine is accepted without free memory, because its old records are dropped.
func TestRebootedNodeIsAcceptedWithoutMemory(t *testing.T) {
	s := newScene(t)
	s.small()
	old, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1"}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	s.fill(old.n)
	now, err := s.hello(&pb.Hello{Node: "n1", BootId: "b2", Netns: "1"}, "n1")
	if err != nil || now.n.account != old.n.account || now.n.Charged() != nodeCost {
		t.Fatalf("got %v, want the node of the same credential", err)
	}
	s.limit = 2 * LeastBudget
	s.checkBudgetOf("a rebooted node", old.n, LeastBudget+nodeCost)
	if _, err := s.hello(&pb.Hello{Node: "n2", BootId: "b3", Netns: "1"}, "n2"); err != nil {
		t.Errorf("another node with memory: got %v", err)
	}
	s.limit = LeastBudget
	if _, err := s.hello(&pb.Hello{Node: "n3", BootId: "b4", Netns: "1"}, "n3"); status.Code(err) != codes.ResourceExhausted || s.NodeCount() != 3 {
		t.Errorf("another node without memory: got %v and %d nodes", err, s.NodeCount())
	}
}

func (s *scene) checkBudgetOf(why string, n *Node, want int64) {
	s.Helper()
	if n.account.used != want {
		s.Errorf("%s: got %d bytes, want %d", why, n.account.used, want)
	}
}

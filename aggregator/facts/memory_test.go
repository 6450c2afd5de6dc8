package facts

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

func TestHalfOfTheMemoryIsForRecords(t *testing.T) {
	for memory, want := range map[int64]int64{
		0: 0, -1: 0, 1: LeastBudget, BudgetOverhead: LeastBudget, BudgetOverhead + 2*LeastBudget: LeastBudget, BudgetOverhead + 3*LeastBudget: LeastBudget * 3 / 2, 1 << 30: (1<<30 - 32<<20) / 2,
	} {
		if got := newBudget(memory).limit; got != want {
			t.Errorf("%d bytes: got %d, want %d", memory, got, want)
		}
	}
}

// small sets the smallest budget.
func (s *scene) small() { s.budget = newBudget(1) }

// checkBudget checks that each record is charged exactly once.
func (s *scene) checkBudget(why string) {
	s.Helper()
	s.check(s.T, why)
	var used, accounts int64
	seen := map[*account]bool{}
	for n := range s.Nodes {
		if !seen[n.account] {
			seen[n.account] = true
			used += n.account.used
			if n.account.used > 0 {
				accounts++
			}
		}
	}
	if s.used != used+s.common || s.accounts != accounts {
		s.Errorf("%s: got %d bytes in %d accounts, want %d in %d", why, s.used, s.accounts, used+s.common, accounts)
	}
	if s.limit > 0 && s.used > s.limit {
		s.Errorf("%s: got %d bytes, which is more than the limit", why, s.used)
	}
}

// flood returns a message with frames of many external devices.
func flood(from, count int) *pb.ReportRequest {
	m := &pb.ReportRequest{}
	for i := from; i < from+count; i++ {
		mac := []byte{2, 9, 0, 0, byte(i >> 8), byte(i)}
		m.Claims = append(m.Claims, seen(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}).String(), mac, 1).GetClaims()...)
	}
	return m
}

// many returns a report of a pod with many addresses.
func many(record uint32, count int) *pb.ReportRequest {
	m := pod(record, netip.AddrFrom4([4]byte{10, byte(record), 0, 0}).String())
	for i := 1; i < count; i++ {
		m.Claims = append(m.Claims, assigned(record, netip.AddrFrom4([4]byte{10, byte(record), byte(i >> 8), byte(i)}).String()))
	}
	return m
}

func TestNodesShareTheMemory(t *testing.T) {
	s := newScene(t)
	s.small()
	quiet := s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	loud := s.joins("n2", "b2", 1, lan(2), pod(3, "10.0.0.3"))
	loud.report(seen("10.0.0.1", []byte{2, 0, 0, 0, 0, 7}, 1))
	s.notified.heard = nil
	loud.report(flood(0, 16_000))
	s.checkBudget("a flood")
	used, limit := s.Budget()
	if limit != LeastBudget || used > limit-limit/16 || used < limit/2 {
		t.Errorf("got %d of %d bytes used, want most of them", used, limit)
	}
	if left := loud.n.LeftOut; left.Records != 0 || left.Wire == 0 || left.Wire+loud.n.Claims() != 16_002 || !loud.n.Incomplete() || loud.n.Blind() {
		t.Errorf("got %+v left out of %d", left, loud.n.Claims())
	}
	if quiet.n.Incomplete() || quiet.n.Charged() < nodeCost || quiet.n.Charged() > 2*nodeCost {
		t.Errorf("got %d bytes for a quiet node", quiet.n.Charged())
	}
	s.wantHeard("a flood", "changed n2", "refused claim")

	before := loud.n.Claims()
	loud.report(many(3, 500))
	s.checkBudget("what kernels have")
	if left := loud.n.LeftOut; left.Records != 0 || loud.n.wireClaims >= before-1 || loud.n.Claims()-loud.n.wireClaims != 501 {
		t.Errorf("got %+v left out, %d claims, want kernel claims instead of wire claims", left, loud.n.Claims())
	}

	third := s.joins("n3", "b3", 1, many(4, 2000))
	s.checkBudget("another node")
	if third.n.Claims() != 2000 || third.n.Incomplete() {
		t.Errorf("got %d claims of a node within its share, want 2000", third.n.Claims())
	}
	if !s.WiredOrFailed(index.AddressOf(netip.MustParseAddr("10.0.0.1"))) {
		t.Error("got the sighting of a disputed address left out, want addresses without other claims first")
	}

	for range 2 { // the first replacement is reported before the old record ends
		loud.snapshot(lan(2), flood(0, 10))
	}
	s.checkBudget("a small snapshot")
	if loud.n.Incomplete() || loud.n.Claims() != 10 {
		t.Errorf("got %+v left out of %d claims, want all", loud.n.LeftOut, loud.n.Claims())
	}
}

func TestKernelRecordsAboveAShareAreEvictedLast(t *testing.T) {
	s := newScene(t)
	s.small()
	large := s.joins("n1", "b1", 1, pod(2, "10.4.0.1"))
	for i := range 20 {
		m := &pb.ReportRequest{}
		for k := range 1000 {
			m.Claims = append(m.Claims, assigned(2, netip.AddrFrom4([4]byte{10, 5, byte(i*4 + k/250), byte(k % 250)}).String()))
		}
		large.report(m)
	}
	s.checkBudget("one node takes all")
	if left := large.n.LeftOut; left.Wire != 0 {
		t.Errorf("got %+v left out", left)
	}
	alone := large.n.Charged()
	for i := range 10 {
		n := s.joins(fmt.Sprint("m", i), fmt.Sprint("c", i), 1, lan(byte(10+i)), flood(1000*i, 1000))
		s.checkBudget("another node")
		if n.n.Incomplete() {
			t.Fatalf("node %d: got %+v left out, want as many records as its share allows", i, n.n.LeftOut)
		}
	}
	if left := large.n.LeftOut; left.Records == 0 || large.n.Charged() >= alone || !large.n.Blind() {
		t.Errorf("got %+v left out of %d bytes", left, large.n.Charged())
	}
}

// All kinds of records of a node above its share are dropped for other nodes.
func TestAllSortsOfRecordsAreDroppedForOthers(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for name, large := range map[string]func(m *pb.ReportRequest){
		"namespace": func(m *pb.ReportRequest) {
			for i := range 9_000 {
				m.Namespaces = append(m.Namespaces, &pb.NamespaceRecord{Id: uint32(i + 10), Workload: &pb.Workload{Name: fmt.Sprint(long, i)}})
			}
		},
		"interface": func(m *pb.ReportRequest) {
			for i := range 9_000 {
				m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{Namespace: 1, Index: uint32(i + 10), Name: fmt.Sprint(long, i), Attachment: pb.InterfaceRecord_OWN})
			}
		},
		"link": func(m *pb.ReportRequest) {
			for i := range 9_000 {
				m.Links = append(m.Links, &pb.LinkRecord{Name: fmt.Sprint(long, i), Kind: pb.LinkRecord_BRIDGE})
			}
		},
		"pool": func(m *pb.ReportRequest) {
			for i := range 4 {
				p := hostLocal(fmt.Sprint("p", i), "", "")
				m.Pools = append(m.Pools, p)
				for k := range 1000 {
					m.Allocations = append(m.Allocations, given(p.Name, netip.AddrFrom4([4]byte{10, byte(i), byte(k >> 8), byte(k)}).String(), "c"))
				}
			}
		},
	} {
		s := newScene(t)
		s.small()
		m := &pb.ReportRequest{}
		large(m)
		a := s.joins("n1", "b1", 1, m)
		before := a.n.Charged()
		s.notified.heard = nil
		for i := range 3 {
			n := s.joins(fmt.Sprint("m", i), fmt.Sprint("c", i), 1, many(uint32(20+i), 4000))
			if n.n.Incomplete() || n.n.Claims() != 4000 {
				t.Errorf("%s: got %+v of another node left out", name, n.n.LeftOut)
			}
		}
		s.checkBudget(name)
		if a.n.Charged() >= before || a.n.LeftOut.Records == 0 || !slices.Contains(s.notified.heard, "refused "+name) {
			t.Errorf("%s: got %d bytes of %d, %+v left out", name, a.n.Charged(), before, a.n.LeftOut)
		}
	}
}

func TestThereIsNoMemoryForManyNodes(t *testing.T) {
	s := newScene(t)
	s.small()
	refused := 0
	for i := range 200 {
		if _, err := s.hello(&pb.Hello{Node: fmt.Sprint("n", i), BootId: fmt.Sprint("b", i), Netns: "1"}, ""); status.Code(err) == codes.ResourceExhausted {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	s.checkBudget("many nodes")
	if room := int(LeastBudget / nodeCost); s.NodeCount() < room*9/10 || s.NodeCount() > room || refused != 200-s.NodeCount() {
		t.Errorf("got %d nodes and %d refused, want up to %d", s.NodeCount(), refused, room)
	}
}

func TestOneCredentialHasOneAccount(t *testing.T) {
	s := newScene(t)
	s.small()
	one, _ := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1"}, "n1")
	two, _ := s.hello(&pb.Hello{Node: "n1", BootId: "b2", Netns: "1"}, "n1")
	other, _ := s.hello(&pb.Hello{Node: "n2", BootId: "b3", Netns: "1"}, "n2")
	if one.n.account != two.n.account || one.n.account == other.n.account || s.accounts != 2 {
		t.Errorf("got %d accounts, want one for each credential", s.accounts)
	}
	two.snapshot(lan(1), pod(2, "10.4.0.1"))
	two.report(flood(0, 16_000))
	one.snapshot(many(4, 3000))
	s.checkBudget("one credential")
	if one.n.Claims() != 3000 || two.n.wireClaims == 0 {
		t.Errorf("got %d and %d claims, want wire claims of one node replaced by kernel claims of the other", one.n.Claims(), two.n.Claims())
	}
}

func TestMessagesThatAreKeptAreCharged(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1)
	if !s.Hold(a.n, 1<<30) {
		t.Error("got no room without a limit")
	}
	s.Release(a.n, 1<<30)
	s.small()
	b := s.joins("n2", "b2", 1)
	if !s.Hold(b.n, 1000) || b.n.account.used != b.n.used+1000 {
		t.Errorf("got %d bytes held", b.n.account.used-b.n.used)
	}
	if s.Hold(b.n, LeastBudget) || b.n.account.used != b.n.used+1000 {
		t.Error("got more held than used")
	}
	s.Release(b.n, 1000)
	if b.n.account.used != b.n.used {
		t.Errorf("got %d bytes held", b.n.account.used-b.n.used)
	}
	s.Release(b.n, b.n.account.used) // an account without a charge does not count
	if s.Hold(b.n, 0); s.accounts != 0 {
		t.Errorf("got %d accounts after an empty message, want none", s.accounts)
	}
}

// Each text of a record is charged by its length.
func TestTextsAreCharged(t *testing.T) {
	text := strings.Repeat("x", 100)
	check := func(m proto.Message, cost func() int, except ...protoreflect.Name) {
		t.Helper()
		empty := cost()
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			if field.Kind() != protoreflect.StringKind || field.IsList() || field.IsMap() || slices.Contains(except, field.Name()) {
				continue
			}
			m.ProtoReflect().Set(field, protoreflect.ValueOfString(text))
			if got := cost() - empty; got != textCost(text) || got < len(text) || got > 2*len(text) {
				t.Errorf("%s: got %d bytes for %d", field.FullName(), got, len(text))
			}
			m.ProtoReflect().Clear(field)
		}
	}
	ns, who := &pb.NamespaceRecord{}, &pb.Workload{}
	ns.Workload = who
	check(ns, func() int { return namespaceCostOf(ns) })
	check(who, func() int { return namespaceCostOf(ns) }, "phase") // agents do not report phases
	i := &pb.InterfaceRecord{}
	check(i, func() int { return interfaceCostOf(i) })
	p := &pb.PoolRecord{}
	check(p, func() int { return poolCostOf(p) })

	ns.Intended, who.Sources = make([]*pb.Intended, 3), map[string]string{text: "cri"}
	if got := namespaceCostOf(ns); got != namespaceCost+3*intendedCost+textCost(text, "cri") {
		t.Errorf("namespace: got %d bytes", got)
	}
	p.Ranges, p.Gateways = make([]*pb.AddressRange, 2), make([][]byte, 1)
	if got := poolCostOf(p); got != poolCost+3*rangeCost {
		t.Errorf("pool: got %d bytes", got)
	}
	if got := allocationCostOf(&verdict.Allocation{Allocation: ipam.Allocation{ContainerID: text, Interface: text, Pod: text, Namespace: text, Location: text}}); got != allocationCost+5*textCost(text) {
		t.Errorf("allocation: got %d bytes", got)
	}
	if textCost("") != 0 || interfaceCostOf(i) != interfaceCost {
		t.Error("got a cost of an empty string")
	}
}

// All charges of a node are released with its records.
func TestRecordsAreReleased(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1)
	empty := a.n.Charged()
	a.report(bridgeAndPods(), &pb.ReportRequest{
		Pools:       []*pb.PoolRecord{{Ipam: hostlocal.Name, Name: "p", State: pb.Pool_KNOWN}},
		Allocations: []*pb.AllocationRecord{{Ipam: hostlocal.Name, Pool: "p", Address: []byte{10, 0, 0, 2}, ContainerId: "c"}},
		Claims:      []*pb.ClaimRecord{{Address: []byte{10, 0, 0, 2}, Kind: pb.Evidence_USED, Namespace: 1, Index: 12, Mac: []byte{2, 0, 0, 0, 9, 9}, Count: 1, Link: "far"}},
	})
	s.checkBudget("full")
	if full := a.n.Charged(); full < empty+5000 {
		t.Errorf("got %d bytes for all, %d for nothing", full, empty)
	}
	a.snapshot()
	s.checkBudget("empty")
	if a.n.Charged() != empty || a.n.links.count != 0 || a.n.interfaces.count != 0 {
		t.Errorf("got %d bytes, want %d as before", a.n.Charged(), empty)
	}
}

// A record that does not fit into memory is dropped and the known version is kept, unless wire
// claims of the node can be evicted.
func TestRecordsOfEachKindNeedMemory(t *testing.T) {
	long := strings.Repeat("x", 400)
	pool := hostLocal("p", "", "")
	pool.Problem = long
	longer := assignedMessage(2, "10.0.0.2")
	longer.Claims[0].Network = long
	moved := records.Claims(announced(2, "10.0.0.9", records.MAC(9)))
	moved.Claims[0].Link, moved.Claims[0].Count = long, 2
	for _, test := range []struct {
		name  string
		m     *pb.ReportRequest
		want  LeftOut
		kind  string
		frame bool // wire claims are not evicted for it
	}{
		{"a status", &pb.ReportRequest{Status: &pb.StatusRecord{Runtime: long}}, LeftOut{Records: 1}, "status", false},
		{"a namespace", &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 9, Workload: &pb.Workload{Name: long}}}}, LeftOut{Records: 1}, "namespace", false},
		{"a namespace that takes more", &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Netns: "4002", Workload: &pb.Workload{Name: long}}}}, LeftOut{Records: 1}, "namespace", false},
		{"a link", &pb.ReportRequest{Links: []*pb.LinkRecord{{Name: long, Kind: pb.LinkRecord_BRIDGE}}}, LeftOut{Records: 1}, "link", false},
		{"an interface", &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 9, Name: long, Attachment: pb.InterfaceRecord_PEER}}}, LeftOut{Records: 1}, "interface", false},
		{"an interface that takes more", &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 2, Index: 2, Name: long, Attachment: pb.InterfaceRecord_PEER}}}, LeftOut{Records: 1}, "interface", false},
		{"a pool", &pb.ReportRequest{Pools: []*pb.PoolRecord{pool}}, LeftOut{Records: 1}, "pool", false},
		{"a claim", assignedMessage(2, "10.0.0.8"), LeftOut{Records: 1}, "claim", false},
		{"a claim that takes more", longer, LeftOut{Records: 1}, "claim", false},
		{"a frame", seen("10.0.0.8", records.MAC(9), 1), LeftOut{Wire: 1}, "claim", true},
		{"a frame that takes more", moved, LeftOut{Wire: 1}, "claim", true},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"))
		if test.frame {
			a.report(records.Claims(announced(2, "10.0.0.9", records.MAC(9))))
		}
		s.fill(a.n)
		before, known := a.n.Charged(), s.text("10.0.0.2")+s.text("10.0.0.9")
		s.notified.heard = nil
		a.report(proto.CloneOf(test.m))
		if a.n.LeftOut != test.want || a.n.Charged() != before {
			t.Errorf("%s: got %+v left out and %d bytes more, want %+v", test.name, a.n.LeftOut, a.n.Charged()-before, test.want)
		}
		if got := s.text("10.0.0.2") + s.text("10.0.0.9"); got != known || a.n.Status != nil || s.Claimed(key("10.0.0.8")) || len(a.n.Pools) > 0 || a.n.Namespaces() != 2 || a.n.HasInterfaces(9) {
			t.Errorf("%s: got\n%s\nwant\n%s", test.name, got, known)
		}
		s.wantHeard(test.name, "changed n1", "refused "+test.kind)
		s.checkBudget(test.name)
		if test.frame {
			continue
		}

		s = newScene(t)
		a = s.joins("n1", "b1", 1, lan(1), pod(2, "10.0.0.2"), flood(0, 5))
		s.fill(a.n)
		a.report(proto.CloneOf(test.m))
		if got, want := a.n.LeftOut, (LeftOut{Wire: 5}); got != want {
			t.Errorf("%s: got %+v left out, want frames in its place", test.name, got)
		}
		s.checkBudget(test.name + ", in the place of frames")
	}
}

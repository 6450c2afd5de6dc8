package facts

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	ipams "github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func key(addr string) index.Address { return index.AddressOf(netip.MustParseAddr(addr)) }

// items takes all queued items.
func (s *scene) items() map[string]*Item {
	items := map[string]*Item{}
	for _, q := range s.queues {
		for item := q.Next(); item != nil; item = q.Next() {
			items[item.Address.Addr().String()] = item
			item.Finish()
		}
	}
	return items
}

// poolsOf returns the names of the pools in the case of an address.
func (s *scene) poolsOf(addr string) (names []string) {
	for _, p := range s.Builder().Case(key(addr), false).Pools {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

func hostLocal(name, first, last string) *pb.PoolRecord {
	p := &pb.PoolRecord{Ipam: hostlocal.Name, Name: name, Network: name, State: pb.Pool_KNOWN}
	if first != "" {
		p.Ranges = []*pb.AddressRange{{First: netip.MustParseAddr(first).AsSlice(), Last: netip.MustParseAddr(last).AsSlice()}}
	}
	return p
}

func given(pool, addr, sandbox string) *pb.AllocationRecord {
	return &pb.AllocationRecord{Ipam: hostlocal.Name, Pool: pool, Address: netip.MustParseAddr(addr).AsSlice(), ContainerId: sandbox}
}

func back(al *pb.AllocationRecord) *pb.ReportRequest {
	al.Gone = true
	return &pb.ReportRequest{Allocations: []*pb.AllocationRecord{al}}
}

func TestPoolsOfANode(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, bridgeAndPods())
	b := s.joins("n2", "b2", 1)
	s.judgeAll()
	s.notified.heard = nil
	a.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("net0", "10.0.0.1", "10.0.0.3"), hostLocal("net2", "", "")}})
	b.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("other", "10.0.0.1", "10.0.0.99")}})
	s.wantHeard("pools come", "pool net0", "pool net2", "pool other", "ranges n1", "ranges n2")
	s.wantJudged("pools come", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.1.0.1", "10.1.0.4", "10.2.0.1")
	for addr, want := range map[string][]string{"10.0.0.2": {"net0"}, "10.0.0.4": nil, "10.1.0.4": {"net2"}, "10.9.9.9": nil} {
		if got := s.poolsOf(addr); !slices.Equal(got, want) {
			t.Errorf("%s: got pools %q, want %q", addr, got, want)
		}
	}
	a.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("net0", "10.0.0.1", "10.0.0.3")}})
	s.wantHeard("nothing changes")
	s.wantJudged("nothing changes")

	al := given("net0", "10.0.0.2", "c-a")
	a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{al, given("net0", "10.0.0.50", "c-x")}})
	s.wantHeard("allocations", "pool net0", "ranges n1")
	if items := s.items(); len(items) != 2 || items["10.0.0.2"].Vanished != nil || !items["10.0.0.50"].New || items["10.0.0.2"].New {
		t.Errorf("got %+v to be judged", items)
	}
	if got := s.poolsOf("10.0.0.50"); !slices.Equal(got, []string{"net0"}) || a.n.Given() != 2 || s.Allocations() != 2 || a.n.Pools[0].Allocated.Of(audit.Both) != 2 {
		t.Errorf("got pools %q, %d given", got, a.n.Given())
	}
	s.after(time.Second)
	a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{al}})
	s.wantJudged("the same once more")
	s.notified.heard = nil
	moved := given("net0", "10.0.0.2", "c-y")
	a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{moved}})
	if items := s.items(); len(items) != 1 || len(items["10.0.0.2"].Vanished) != 1 || items["10.0.0.2"].Vanished[0].ContainerID != "c-a" || s.Allocations() != 2 {
		t.Errorf("got %+v to be judged: it was allocated to another one", items)
	}
	s.wantHeard("it was allocated to another one")
	same := given("net0", "10.0.0.2", "c-y")
	same.Interface = "eth0"
	a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{same}})
	if items := s.items(); len(items) != 1 || len(items["10.0.0.2"].Vanished) != 0 {
		t.Errorf("got %+v to be judged: only its interface changed", items)
	}
	a.report(back(given("net0", "10.0.0.2", "")))
	if items := s.items(); len(items) != 1 || len(items["10.0.0.2"].Vanished) != 1 || a.n.Given() != 1 || a.n.Pools[0].Allocated.Of(audit.Both) != 1 {
		t.Errorf("got %+v to be judged, %d given: it was withdrawn", items, a.n.Given())
	}
	s.wantHeard("it was taken back", "pool net0", "ranges n1")
	a.report(back(given("net0", "10.0.0.2", "")), back(given("net2", "10.0.0.50", "")))
	s.wantJudged("nothing was taken back")

	a.n.Pools[0].AtRisk[netip.MustParseAddr("10.77.0.1")] = Risk{}
	rec := &a.n.Pools[0].Rec
	if s.Pool(rec) != a.n.Pools[0] {
		t.Error("got no pool by its record")
	}
	s.notified.heard = nil
	a.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{{Ipam: hostlocal.Name, Name: "net0", Gone: true}}})
	items := s.items()
	if len(items) != 9 || items["10.77.0.1"] == nil || len(items["10.0.0.50"].Vanished) != 1 || items["10.0.0.50"].Vanished[0].Pool.State != ipam.Stale {
		t.Errorf("got %+v to be judged: the pool ended", items)
	}
	s.wantHeard("it ends", "pool net0", "pool-ended net0 of n1", "ranges n1")
	if s.Allocations() != 0 || a.n.Given() != 0 || len(a.n.Pools) != 1 || s.Pool(rec) != nil || s.poolsOf("10.0.0.50") != nil {
		t.Errorf("got %d allocations, %d pools", s.Allocations(), len(a.n.Pools))
	}
	names := 0
	for range s.Pools {
		names++
	}
	if names != 2 {
		t.Errorf("got %d pools, want 2", names)
	}
	for range s.Pools {
		break
	}
}

func TestASnapshotHasAllPoolsAndAllocations(t *testing.T) {
	s := newScene(t)
	both := &pb.ReportRequest{
		Pools:       []*pb.PoolRecord{hostLocal("a", "10.0.0.1", "10.0.0.99"), hostLocal("b", "10.0.1.1", "10.0.1.99")},
		Allocations: []*pb.AllocationRecord{given("a", "10.0.0.1", "c1"), given("a", "10.0.0.2", "c2"), given("b", "10.0.1.1", "c3")},
	}
	a := s.joins("n1", "b1", 1, both)
	s.judgeAll()
	a.snapshot(both)
	s.wantJudged("the same")
	a.snapshot(&pb.ReportRequest{Pools: both.Pools[:1], Allocations: both.Allocations[1:2]})
	s.wantJudged("less: another pool may have allocated the same addresses", "10.0.0.1", "10.0.0.2", "10.0.1.1")
	if s.Allocations() != 1 || len(a.n.Pools) != 1 || a.n.Given() != 1 {
		t.Errorf("got %d allocations and %d pools", s.Allocations(), len(a.n.Pools))
	}
}

func TestWhenAPoolLostItsRecordsIsRemembered(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1)
	lost := hostLocal("net0", "10.0.0.1", "10.0.0.99")
	lost.LostAt = &timestamppb.Timestamp{Seconds: 9}
	a.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{lost}})
	first := s.now
	heard := func() verdict.Stamp { return a.n.Pools[0].Rec.LostHeard }
	s.after(time.Second)
	lost.Plugin = "bridge"
	if a.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{lost}}); heard() != first || a.n.Pools[0].Rec.Plugin != "bridge" {
		t.Errorf("got heard at %d, want %d", heard(), first)
	}
	lost.LostAt = &timestamppb.Timestamp{Seconds: 10}
	if a.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{lost}}); heard() != s.now {
		t.Errorf("got heard at %d, want now", heard())
	}
	lost.LostAt = nil
	if a.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{lost}}); heard() != 0 {
		t.Errorf("got heard at %d, want never", heard())
	}
}

// Addresses allocated for a sandbox are judged when it appears and ends.
func TestSandboxesOfAllocations(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, &pb.ReportRequest{
		Pools: []*pb.PoolRecord{hostLocal("a", "10.0.0.1", "10.0.0.99")}, Allocations: []*pb.AllocationRecord{given("a", "10.0.0.1", "c1"), given("a", "10.0.0.2", "c1"), given("a", "10.0.0.3", "c3")},
	})
	sandboxed := func() bool { return s.Builder().Case(key("10.0.0.1"), false).Allocations[0].Sandbox }
	s.judgeAll()
	if sandboxed() {
		t.Error("got an unknown sandbox")
	}
	ns := &pb.NamespaceRecord{Id: 2, Netns: "2", Workload: &pb.Workload{Kind: pb.Workload_POD, ContainerId: "c1"}}
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{ns}})
	s.wantJudged("the sandbox comes", "10.0.0.1", "10.0.0.2")
	if !sandboxed() {
		t.Error("got no sandbox")
	}
	a.report(back(given("a", "10.0.0.2", "")))
	s.judgeAll()
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Netns: "2", Workload: &pb.Workload{Kind: pb.Workload_POD, ContainerId: "c3"}}}})
	s.wantJudged("it is another one", "10.0.0.1", "10.0.0.3")
	if sandboxed() {
		t.Error("got a removed sandbox")
	}
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}})
	s.wantJudged("it ends", "10.0.0.3")
	a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{given("a", "10.0.0.3", "c4")}})
	s.judgeAll()
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Netns: "2", Workload: &pb.Workload{Kind: pb.Workload_POD, ContainerId: "c3"}}}})
	s.wantJudged("a sandbox appears that had the address before")
	a.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Netns: "2", Workload: &pb.Workload{Kind: pb.Workload_POD, ContainerId: "c4"}}}})
	s.wantJudged("a sandbox appears that has the address", "10.0.0.3")
}

func TestPoolsOfTheCluster(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	s.judgeAll()
	s.notified.heard = nil
	span := func(first, last string) ipam.Range {
		return ipam.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
	}
	pool := func(name string, ranges ...ipam.Range) *verdict.Pool {
		return &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: ipams.Traits(calico.IPAM.Name), Name: name, State: ipam.Known, Ranges: ranges}}
	}
	wide, other := span("10.0.0.0", "10.0.255.255"), span("10.0.0.8", "10.0.0.9")
	change := func(changes ...kube.IPAMChange) []ipam.Range {
		_, reach := s.IPAMChanged(changes)
		return reach
	}
	if got := change(kube.IPAMChange{Pool: pool("p", wide, span("fd00::1", "fd00::ff"))}, kube.IPAMChange{Pool: pool("q", other)}); len(got) != 3 || got[0] != wide || got[2] != other {
		t.Errorf("got ranges %v of pools that are new", got)
	}
	s.wantHeard("pools come", "pool p", "pool q", "ranges -")
	for addr, want := range map[string][]string{"10.0.0.1": {"p"}, "10.0.0.8": {"p", "q"}, "10.0.0.10": {"p"}, "10.1.0.1": nil, "fd00::7": {"p"}, "fd00::ff00": nil} {
		if got := s.poolsOf(addr); !slices.Equal(got, want) {
			t.Errorf("%s: got pools %q, want %q", addr, got, want)
		}
	}
	if got := change(kube.IPAMChange{Pool: pool("q", other)}); got != nil {
		t.Errorf("got ranges %v of a pool that is as it was", got)
	}
	moved := span("10.7.0.1", "10.7.0.2")
	if got := change(kube.IPAMChange{Pool: pool("q", moved)}); !slices.Equal(got, []ipam.Range{other, moved}) {
		t.Errorf("got ranges %v of a pool that has others now", got)
	}
	if got := s.poolsOf("10.0.0.8"); !slices.Equal(got, []string{"p"}) {
		t.Errorf("got pools %q", got)
	}
	al := func(addr, location, pod string) *verdict.Allocation {
		return &verdict.Allocation{Pool: pool("p"), Allocation: ipam.Allocation{Address: netip.MustParseAddr(addr), Location: location, Namespace: "default", Pod: pod}}
	}
	s.judgeAll()
	change(kube.IPAMChange{Allocation: al("10.0.0.1", "one", "a")}, kube.IPAMChange{Allocation: al("10.0.0.1", "two", "b")}, kube.IPAMChange{Allocation: al("10.9.0.1", "three", "c")})
	s.wantJudged("allocations", "10.0.0.1", "10.9.0.1")
	p := s.Pool(s.Builder().Case(key("10.0.0.1"), false).Pools[0])
	if s.Allocations() != 3 || p == nil || p.Allocated.Of(audit.Both) != 2 {
		t.Errorf("got %d allocations of %+v, want three of two addresses", s.Allocations(), p)
	}
	change(kube.IPAMChange{Allocation: al("10.0.0.1", "two", "c")})
	if items := s.items(); len(items) != 1 || len(items["10.0.0.1"].Vanished) != 1 || items["10.0.0.1"].Vanished[0].Pod != "b" {
		t.Errorf("got %+v to be judged: it was allocated to another pod", items)
	}
	change(kube.IPAMChange{Allocation: al("10.0.0.1", "one", ""), Gone: true}, kube.IPAMChange{Allocation: al("10.0.0.1", "none", ""), Gone: true})
	if items := s.items(); len(items) != 1 || len(items["10.0.0.1"].Vanished) != 1 || s.Allocations() != 2 || p.Allocated.Of(audit.Both) != 2 {
		t.Errorf("got %+v to be judged: one of two is gone", items)
	}
	unknown := al("10.0.0.1", "one", "")
	unknown.Pool = pool("none")
	change(kube.IPAMChange{Allocation: unknown}, kube.IPAMChange{Pool: pool("none"), Gone: true})
	if s.notified.dropped["allocation"] != 1 {
		t.Errorf("got %v dropped, want an allocation of no pool", s.notified.dropped)
	}
	s.notified.heard = nil
	if got := change(kube.IPAMChange{Pool: pool("p"), Gone: true}); len(got) != 2 || got[0] != wide {
		t.Errorf("got ranges %v of a pool that ended", got)
	}
	s.wantHeard("a pool ends", "pool p", "pool-ended p of -", "ranges -")
	s.wantJudged("a pool ends", "10.0.0.1", "10.9.0.1")
	if s.poolsOf("10.0.0.1") != nil || s.Allocations() != 0 || s.common != int64(poolCostsOf(s)) {
		t.Errorf("got pools %q, %d allocations, %d bytes", s.poolsOf("10.0.0.1"), s.Allocations(), s.common)
	}
}

// poolCostsOf returns the charge of the cluster-wide pools.
func poolCostsOf(s *scene) (sum int) {
	for p := range s.Pools {
		if p.Node == nil {
			sum += int(p.cost)
		}
	}
	return sum
}

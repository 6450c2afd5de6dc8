package facts

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	ipams "github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// fill uses up all memory, that of a node and that of others.
func (s *scene) fill(n *Node) {
	s.Helper()
	s.limit = LeastBudget
	if used, limit := s.Budget(); !s.Hold(n, int(limit-used)) {
		s.Fatalf("got no room for %d bytes", limit-used)
	}
}

// sandboxOf returns the container ID of the only allocation of an address; empty if there is none.
func (s *scene) sandboxOf(addr string) string {
	s.Helper()
	all := s.Builder().Case(key(addr), false).Allocations
	if len(all) > 1 {
		s.Fatalf("%s: got %d allocations", addr, len(all))
	}
	for _, al := range all {
		return al.ContainerID
	}
	return ""
}

func TestAllocationsNeedMemory(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, test := range []struct {
		name string
		al   *pb.AllocationRecord
		want string
	}{
		{"a new one", given("p", "10.0.0.2", "c2"), ""},
		{"a larger one", given("p", "10.0.0.1", long), "c1"},
		{"one of the same size", given("p", "10.0.0.1", "c9"), "c9"},
		{"a known one", given("p", "10.0.0.1", "c1"), "c1"},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.1", "c1")}})
		s.fill(a.n)
		s.notified.heard = nil
		a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{test.al}})
		addr, _ := netip.AddrFromSlice(test.al.Address)
		var want LeftOut
		if test.want != test.al.ContainerId {
			want.Records = 1
		}
		if got := s.sandboxOf(addr.String()); got != test.want || a.n.LeftOut != want || s.Allocations() != 1 {
			t.Errorf("%s: got %.5q and %+v left out, want %q and %+v", test.name, got, a.n.LeftOut, test.want, want)
		}
		if want.Records > 0 {
			s.wantHeard(test.name, "changed n1", "refused allocation")
			s.wantJudged(test.name, "10.0.0.1")
		}
	}
}

// A renewal changes only when a lease ends, which is known when it has vanished.
func TestRenewalsOfLeasesAreNotJudged(t *testing.T) {
	leased := func(until int64) *pb.ReportRequest {
		al := given("p", "10.0.0.1", "")
		al.Mac, al.ExpiresAt = records.MAC(1), &timestamppb.Timestamp{Seconds: until}
		return &pb.ReportRequest{Allocations: []*pb.AllocationRecord{al}}
	}
	s := newScene(t)
	a := s.joins("n1", "b1", 1, &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}}, leased(100))
	s.judgeAll()
	a.report(leased(200))
	s.wantJudged("renewed")
	s.check(t, "renewed")
	gone := given("p", "10.0.0.1", "")
	gone.Gone = true
	a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{gone}})
	if item := s.items()["10.0.0.1"]; item == nil || len(item.Vanished) != 1 || item.Vanished[0].Expires != verdict.Stamp(200*time.Second) {
		t.Errorf("got %+v, want the lease until its last end", item)
	}
}

// Allocations above the limit are dropped. Those that are known are kept, also after a snapshot.
func TestAllocationsAreLimited(t *testing.T) {
	for name, limit := range map[string]func(s *scene, n *Node){
		"of a node": func(_ *scene, n *Node) { n.allocated = MaxNodeAllocations },
		"of all":    func(s *scene, _ *Node) { s.allocationCount = maxAllocations },
	} {
		s := newScene(t)
		all := &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.1", "c1")}}
		a := s.joins("n1", "b1", 1, all)
		limit(s, a.n)
		a.snapshot(all)
		if got := s.sandboxOf("10.0.0.1"); got != "c1" || s.notified.dropped["allocation"] != 0 {
			t.Errorf("%s: got %q and %v dropped, want the known ones", name, got, s.notified.dropped)
		}
		a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{given("p", "10.0.0.2", "c2")}})
		if got := s.sandboxOf("10.0.0.2"); got != "" || s.notified.dropped["allocation"] != 1 {
			t.Errorf("%s: got %q and %v dropped, want nothing more", name, got, s.notified.dropped)
		}
	}
}

func TestPoolsOfTheClusterAreLimited(t *testing.T) {
	s := newScene(t)
	pool := func(name, plugin string) kube.IPAMChange {
		return kube.IPAMChange{Pool: &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: ipams.Traits(calico.IPAM.Name), Name: name, State: ipam.Known, Wiring: ipam.Wiring{Plugin: plugin}}}}
	}
	s.IPAMChanged([]kube.IPAMChange{pool("p", "")})
	for i := range maxPools - 1 {
		s.byKey[poolKey{name: strconv.Itoa(i)}] = nil
	}
	s.IPAMChanged([]kube.IPAMChange{pool("q", ""), pool("p", "calico")})
	if s.notified.dropped["pool"] != 1 || s.byKey[poolKey{nil, calico.IPAM.Name, "q"}] != nil {
		t.Errorf("got %v dropped, want the pool that is too many", s.notified.dropped)
	}
	if got := s.byKey[poolKey{nil, calico.IPAM.Name, "p"}].Rec.Plugin; got != "calico" {
		t.Errorf("got plugin %q of a pool that is known", got)
	}
}

// A removed allocation leaves nothing behind.
func TestAnAllocationThatIsTakenBackIsForgotten(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}})
	before := a.n.Charged()
	mapped := given("p", "10.0.0.1", "c1")
	mapped.Address = append([]byte{10: 0xff, 11: 0xff}, mapped.Address...)
	a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{mapped, given("p", "fd00::1", "c2")}})
	if p := a.n.Pools[0]; p.Allocated.Of(audit.IPv4) != 1 || p.Allocated.Of(audit.IPv6) != 1 {
		t.Errorf("got %v allocated, want one of each family", p.Allocated)
	}
	a.report(back(given("p", "10.0.0.1", "")))
	s.judgeAll()
	changed := hostLocal("p", "10.9.0.1", "10.9.0.9")
	a.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{changed}})
	s.wantJudged("the pool changes", "fd00::1")
	a.report(back(given("p", "fd00::1", "")), &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}})
	if a.n.Charged() != before || s.Allocations() != 0 || len(s.allocations) != 0 || len(s.bySandbox) != 0 {
		t.Errorf("got %d bytes, %d allocations of %d addresses and %d sandboxes, want nothing", a.n.Charged()-before, s.Allocations(), len(s.allocations), len(s.bySandbox))
	}
}

// Pools of a node above the limit are dropped. Known pools may still change.
func TestPoolsOfANodeAreLimited(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1)
	for i := range MaxNodePools {
		a.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal(fmt.Sprint("p", i), "", "")}})
	}
	changed := hostLocal("p7", "", "")
	changed.Plugin = "bridge"
	a.report(&pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("more", "", ""), changed}})
	if len(a.n.Pools) != MaxNodePools || s.notified.dropped["pool"] != 1 || a.n.Pools[7].Rec.Plugin != "bridge" {
		t.Errorf("got %d pools and %v dropped, want %d", len(a.n.Pools), s.notified.dropped, MaxNodePools)
	}
}

// The number of a pool's allocated addresses matters up to the second one.
func TestWhenAPoolComesIntoUse(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}})
	for _, step := range []struct {
		name string
		al   *pb.AllocationRecord
		used bool
	}{
		{"the first", given("p", "10.0.0.1", "c1"), true},
		{"the second", given("p", "10.0.0.2", "c2"), false},
		{"the third", given("p", "10.0.0.3", "c3"), false},
		{"without the third", back(given("p", "10.0.0.3", "")).Allocations[0], false},
		{"without the second", back(given("p", "10.0.0.2", "")).Allocations[0], true},
		{"without the first", back(given("p", "10.0.0.1", "")).Allocations[0], true},
	} {
		s.notified.heard = nil
		a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{step.al}})
		want := []string{"pool p"}
		if step.used {
			want = append(want, "ranges n1")
		}
		s.wantHeard(step.name, want...)
	}
}

// Removed cluster-wide pools are no longer found, and their allocated addresses are judged when the
// pools change.
func TestPoolsOfTheClusterThatChange(t *testing.T) {
	s := newScene(t)
	s.joins("n1", "b1", 1, pod(2, "10.0.0.1"))
	pool := func(name, first, last, plugin string) *verdict.Pool {
		return &verdict.Pool{
			Pool: ipam.Pool{
				IPAM: calico.IPAM.Name, Traits: ipams.Traits(calico.IPAM.Name), Name: name, State: ipam.Known, Wiring: ipam.Wiring{Plugin: plugin},
				Ranges: []ipam.Range{{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}},
			},
		}
	}
	one, two := pool("one", "10.0.0.0", "10.0.255.255", ""), pool("two", "10.0.0.0", "10.0.255.255", "")
	other := pool("other", "10.5.0.0", "10.5.255.255", "")
	s.IPAMChanged([]kube.IPAMChange{{Pool: one}, {Pool: two}, {Pool: other}, {Allocation: &verdict.Allocation{Pool: one, Allocation: ipam.Allocation{Address: netip.MustParseAddr("10.9.0.1")}}}})
	s.judgeAll()
	s.IPAMChanged([]kube.IPAMChange{{Pool: pool("one", "10.0.0.0", "10.0.255.255", "calico")}})
	s.wantJudged("a pool changes", "10.9.0.1")
	found := func(want ...string) {
		t.Helper()
		if got := s.poolsOf("10.0.0.1"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got pools %q, want %q", got, want)
		}
	}
	found("one", "two")
	p := s.Pool(s.Builder().Case(key("10.9.0.1"), false).Pools[0])
	s.notified.heard = nil
	s.IPAMChanged([]kube.IPAMChange{{Pool: one, Gone: true}})
	if !p.Ended {
		t.Error("got a pool that has not ended")
	}
	s.wantHeard("it ends", "pool one", "pool-ended one of -", "ranges -")
	found("two")
	s.IPAMChanged([]kube.IPAMChange{{Pool: pool("two", "10.7.0.0", "10.7.255.255", "")}})
	found()
	s.IPAMChanged([]kube.IPAMChange{{Pool: two, Gone: true}})
	found()
	s.IPAMChanged([]kube.IPAMChange{{Pool: other, Gone: true}})
	if len(s.cluster.pools) != 0 {
		t.Errorf("got %d prefixes of pools that ended", len(s.cluster.pools))
	}
}

// Wire claims are evicted to make room for allocations.
func TestAllocationsInThePlaceOfFrames(t *testing.T) {
	for name, al := range map[string]*pb.AllocationRecord{"a new one": given("p", "10.0.0.2", "c2"), "a larger one": given("p", "10.0.0.1", strings.Repeat("x", 1000))} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, lan(1), flood(0, 5), &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.1", "c1")}})
		s.fill(a.n)
		a.report(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{al}})
		addr, _ := netip.AddrFromSlice(al.Address)
		if got := s.sandboxOf(addr.String()); got != al.ContainerId || a.n.LeftOut != (LeftOut{Wire: 5}) {
			t.Errorf("%s: got %.5q and %+v left out, want frames in its place", name, got, a.n.LeftOut)
		}
	}
}

package facts

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// fill leaves no memory, neither for a node nor for others.
func (s *scene) fill(n *Node) {
	s.Helper()
	s.limit = LeastBudget
	if used, limit := s.Budget(); !s.Hold(n, int(limit-used)) {
		s.Fatalf("got no room for %d bytes", limit-used)
	}
}

// sandboxOf returns the container id of the only allocation of an address; empty if there is none.
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
		{"one that takes more", given("p", "10.0.0.1", long), "c1"},
		{"one that takes as much", given("p", "10.0.0.1", "c9"), "c9"},
		{"one that is known", given("p", "10.0.0.1", "c1"), "c1"},
	} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1, &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.1", "c1")}})
		s.fill(a.n)
		s.told.heard = nil
		a.tell(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{test.al}})
		addr, _ := netip.AddrFromSlice(test.al.Address)
		var want LeftOut
		if test.want != test.al.ContainerId {
			want.Records = 1
		}
		if got := s.sandboxOf(addr.String()); got != test.want || a.n.LeftOut() != want || s.Allocations() != 1 {
			t.Errorf("%s: got %.5q and %+v left out, want %q and %+v", test.name, got, a.n.LeftOut(), test.want, want)
		}
		if want.Records > 0 {
			s.wantHeard(test.name, "changed n1", "refused allocation")
			s.wantJudged(test.name, "10.0.0.1")
		}
	}
}

// Allocations beyond the limits are dropped; those that are known stay, also after a snapshot.
func TestAllocationsAreLimited(t *testing.T) {
	for name, limit := range map[string]func(s *scene, n *Node){
		"of a node": func(_ *scene, n *Node) { n.allocated = MaxNodeAllocations },
		"of all":    func(s *scene, _ *Node) { s.booked = maxAllocations },
	} {
		s := newScene(t)
		all := &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}, Allocations: []*pb.AllocationRecord{given("p", "10.0.0.1", "c1")}}
		a := s.joins("n1", "b1", 1, all)
		limit(s, a.n)
		a.snapshot(all)
		if got := s.sandboxOf("10.0.0.1"); got != "c1" || s.told.dropped["allocation"] != 0 {
			t.Errorf("%s: got %q and %v dropped, want what was known", name, got, s.told.dropped)
		}
		a.tell(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{given("p", "10.0.0.2", "c2")}})
		if got := s.sandboxOf("10.0.0.2"); got != "" || s.told.dropped["allocation"] != 1 {
			t.Errorf("%s: got %q and %v dropped, want nothing more", name, got, s.told.dropped)
		}
	}
}

func TestPoolsOfTheClusterAreLimited(t *testing.T) {
	s := newScene(t)
	pool := func(name, plugin string) kube.IPAMChange {
		return kube.IPAMChange{Pool: &verdict.Pool{IPAM: verdict.Calico, Name: name, State: verdict.PoolKnown, Wiring: verdict.Wiring{Plugin: plugin}}}
	}
	s.IPAMChanged([]kube.IPAMChange{pool("p", "")})
	for i := range maxPools - 1 {
		s.byKey[poolKey{nil, "other", fmt.Sprint(i)}] = &Pool{}
	}
	s.IPAMChanged([]kube.IPAMChange{pool("q", ""), pool("p", "calico")})
	if s.told.dropped["pool"] != 1 || s.byKey[poolKey{nil, verdict.Calico, "q"}] != nil {
		t.Errorf("got %v dropped, want the pool that is too many", s.told.dropped)
	}
	if got := s.byKey[poolKey{nil, verdict.Calico, "p"}].Rec.Plugin; got != "calico" {
		t.Errorf("got plugin %q of a pool that is known", got)
	}
}

// An allocation that was taken back leaves nothing behind.
func TestAnAllocationThatIsTakenBackIsForgotten(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}})
	before := a.n.Charged()
	mapped := given("p", "10.0.0.1", "c1")
	mapped.Address = append([]byte{10: 0xff, 11: 0xff}, mapped.Address...)
	a.tell(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{mapped, given("p", "fd00::1", "c2")}})
	if p := a.n.Pools[0]; p.Allocated.Of(audit.IPv4) != 1 || p.Allocated.Of(audit.IPv6) != 1 {
		t.Errorf("got %v allocated, want one of each family", p.Allocated)
	}
	a.tell(back(given("p", "10.0.0.1", "")))
	s.judgeAll()
	changed := hostLocal("p", "10.9.0.1", "10.9.0.9")
	a.tell(&pb.ReportRequest{Pools: []*pb.PoolRecord{changed}})
	s.wantJudged("the pool changes", "fd00::1")
	a.tell(back(given("p", "fd00::1", "")), &pb.ReportRequest{Pools: []*pb.PoolRecord{hostLocal("p", "", "")}})
	if a.n.Charged() != before || s.Allocations() != 0 || len(s.allocations) != 0 || len(s.bySandbox) != 0 {
		t.Errorf("got %d bytes, %d allocations of %d addresses and %d sandboxes, want nothing", a.n.Charged()-before, s.Allocations(), len(s.allocations), len(s.bySandbox))
	}
}

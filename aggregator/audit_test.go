package aggregator

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

const dir = "/run/cni-ipam-state/kindnet"

// hostLocal returns the pool of a node's host-local.
func hostLocal(cidr string, state pb.Pool_State) *pb.PoolRecord {
	r := ipam.RangeOf(netip.MustParsePrefix(cidr))
	return &pb.PoolRecord{
		Ipam: hostlocal.Name, Name: dir, Network: "kindnet", State: state, Plugin: "ptp", Routed: true, Config: "/etc/cni/net.d/10-kindnet.conflist",
		Ranges:   []*pb.AddressRange{{First: r.First.Next().AsSlice(), Last: r.Last.Prev().AsSlice()}},
		Gateways: [][]byte{r.First.Next().AsSlice()},
	}
}

func poolOf(p ...*pb.PoolRecord) *pb.ReportRequest { return &pb.ReportRequest{Pools: p} }

// allocated returns a host-local allocation of an address to a sandbox.
func allocated(addr, container string) *pb.AllocationRecord {
	return &pb.AllocationRecord{
		Ipam: hostlocal.Name, Pool: dir, Address: netip.MustParseAddr(addr).AsSlice(), ContainerId: container, Interface: "eth0",
		AllocatedAt: timestamppb.Now(),
	}
}

func given(a ...*pb.AllocationRecord) *pb.ReportRequest { return &pb.ReportRequest{Allocations: a} }

func freed(a *pb.AllocationRecord) *pb.ReportRequest { a.Gone = true; return given(a) }

// kindPod returns a pod with an address that kindnet allocated.
func kindPod(record uint32, name, addr string) *pb.ReportRequest {
	m := podVeth(record, name, addr)
	m.Namespaces[0].Workload.ContainerId = "sandbox-" + name
	m.Claims[0].Network = "kindnet"
	return m
}

// wantFindings checks the kinds of the current findings, and returns the findings.
func (l *lab) wantFindings(why string, kinds ...string) []*pb.Finding {
	l.Helper()
	all := l.findings()
	var got []string
	for _, f := range all {
		got = append(got, f.GetKind()+" "+f.GetAddress())
	}
	if !slices.Equal(got, kinds) {
		l.Fatalf("%s: got findings %q, want %q", why, got, kinds)
	}
	return all
}

// kindNode connects a node with two kindnet pods.
func kindNode(l *lab) *agent {
	return l.dial().send(snapshot(hello("n1", 1), kindPod(2, "a", "10.244.0.2"), kindPod(3, "b", "10.244.0.3"),
		poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)),
		given(allocated("10.244.0.2", "sandbox-a"), allocated("10.244.0.3", "sandbox-b")))).sync()
}

// A network with running pods gets a new name, so that host-local has no records of their addresses, and has lost none.
func TestARenamedNetworkPutsEachAddressAtRisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := kindNode(l)
		time.Sleep(time.Second)
		l.wantFindings("all is well")
		former, renamed := hostLocal("10.244.0.0/24", pb.Pool_KNOWN), hostLocal("10.244.0.0/24", pb.Pool_MISSING)
		former.Config, former.Ranges, former.Gateways, former.Plugin, former.Routed = "", nil, nil, "", false
		renamed.Name, renamed.Network = "/var/lib/cni/networks/pods", "pods"
		a.send(records.Merge(&pb.ReportRequest{}, poolOf(former, renamed))).sync()
		time.Sleep(time.Minute)
		for _, f := range l.wantFindings("renamed", "in-use-unallocated 10.244.0.2", "in-use-unallocated 10.244.0.3") {
			if f.GetPool().GetName() != renamed.GetName() || f.GetSeverity() != pb.Finding_CRITICAL {
				t.Errorf("got severity %v of pool %s", f.GetSeverity(), f.GetPool().GetName())
			}
		}
		a.send(records.Merge(&pb.ReportRequest{}, poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN), &pb.PoolRecord{Ipam: renamed.GetIpam(), Name: renamed.GetName(), Gone: true}))).sync()
		time.Sleep(time.Minute)
		l.wantFindings("it has its former name back")
	})
}

func TestAWipedDirectoryPutsEachAddressAtRiskAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := kindNode(l)
		time.Sleep(time.Second)
		l.wantFindings("all is well")
		lost := hostLocal("10.244.0.0/24", pb.Pool_MISSING)
		lost.LostAt, lost.Lost = timestamppb.Now(), 2
		a.send(records.Merge(&pb.ReportRequest{}, poolOf(lost), freed(allocated("10.244.0.2", "sandbox-a")), freed(allocated("10.244.0.3", "sandbox-b")))).sync()
		all := l.wantFindings("before they have settled",
			"in-use-unallocated 10.244.0.2", "in-use-unallocated 10.244.0.3", "ipam-state-lost ")
		if f := all[0]; f.GetSeverity() != pb.Finding_CRITICAL || len(f.GetOwners()) != 1 || f.GetOwners()[0].GetWorkload().GetName() != "a" ||
			f.GetPool().GetName() != dir || f.GetPool().GetAllocated() != 0 || !slices.Equal(f.GetNodes(), []string{"n1"}) || f.GetRunbook() == "" {
			t.Errorf("got %v, want pod a, and the pool of node n1", f)
		}
		if f := all[2]; !slices.Equal(f.GetAddresses(), []string{"10.244.0.2", "10.244.0.3"}) {
			t.Errorf("got %v, want both addresses", f)
		}

		// The next pod gets the address of the first: this is now a conflict, and no longer a
		// finding.
		a.send(records.Merge(kindPod(4, "c", "10.244.0.2"), poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)), given(allocated("10.244.0.2", "sandbox-c")))).sync()
		time.Sleep(poolPause)
		l.wantFindings("a conflict says more", "in-use-unallocated 10.244.0.3")
		l.conflict(pb.Conflict_SUSPECTED)
	})
}

// A record that was lost with all others is not written again after its pod has ended. An address
// that is used without an allocation long after the loss was not part of it.
func TestLossDoesNotIncludeLaterAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := kindNode(l)
		time.Sleep(time.Minute)
		p := hostLocal("10.244.0.0/24", pb.Pool_KNOWN)
		p.LostAt, p.Lost = timestamppb.Now(), 2
		a.send(records.Merge(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 3, Gone: true}}}, poolOf(p),
			freed(allocated("10.244.0.2", "sandbox-a")), freed(allocated("10.244.0.3", "sandbox-b")))).sync()
		l.wantFindings("one lives on", "in-use-unallocated 10.244.0.2", "ipam-state-lost ")
		a.send(given(allocated("10.244.0.2", "sandbox-a"))).sync()
		time.Sleep(poolPause)
		l.wantFindings("its record is back")
		time.Sleep(time.Hour)
		a.send(podVeth(9, "by-hand", "10.244.0.9")).sync()
		time.Sleep(time.Minute)
		l.wantFindings("nobody gave it", "in-use-unallocated 10.244.0.9")
	})
}

// recordDelay is how long a new owner, and one whose record was removed, may have an address that
// IPAM considers free.
const recordDelay = 5 * time.Second

func TestAPodThatEndsFreesItsAddressFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := kindNode(l)
		a.send(freed(allocated("10.244.0.2", "sandbox-a"))).sync()
		time.Sleep(4 * time.Second)
		l.wantFindings("plugins free an address before they remove it, which takes seconds on an overloaded node")
		a.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}}).sync()
		time.Sleep(time.Minute)
		l.wantFindings("the pod has ended")
		a.send(freed(allocated("10.244.0.3", "sandbox-b"))).sync()
		time.Sleep(time.Minute)
		l.wantFindings("the other pod goes on", "in-use-unallocated 10.244.0.3")
	})
}

func TestAddressInUseThatIPAMConsidersFreeIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := kindNode(l)
		a.send(freed(allocated("10.244.0.2", "sandbox-a"))).sync()
		time.Sleep(recordDelay)
		l.wantFindings("the pod has not ended", "in-use-unallocated 10.244.0.2")
		a.send(given(allocated("10.244.0.2", "sandbox-a"))).sync()
		l.wantFindings("it is put right")
		a.send(freed(allocated("10.244.0.2", "sandbox-a"))).sync()
		time.Sleep(recordDelay)
		l.wantFindings("it is wrong again", "in-use-unallocated 10.244.0.2")
		a.cancel()
		_ = a.ended()
		time.Sleep(time.Minute)
		l.wantFindings("while the node is away, what was found stays", "in-use-unallocated 10.244.0.2")
		time.Sleep(DefaultNodeTimeout)
		l.wantFindings("the node counts as gone")
	})
}

func TestAllocationToAnotherOwnerIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := kindNode(l)
		a.send(given(allocated("10.244.0.2", "sandbox-of-old"))).sync()
		time.Sleep(recordDelay)
		f := l.wantFindings("it names another sandbox", "booked-elsewhere 10.244.0.2")[0]
		if len(f.GetAllocations()) != 1 || f.GetAllocations()[0].GetContainerId() != "sandbox-of-old" {
			t.Errorf("got %v, want the allocations of IPAM", f)
		}
	})
}

func TestUnusedAllocationIsLeakedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{LeakedAfter: time.Minute})
		a := kindNode(l)
		var more []*pb.AllocationRecord
		for i := 10; i < 15; i++ {
			more = append(more, allocated(fmt.Sprintf("10.244.0.%d", i), "sandbox-gone"))
		}
		a.send(given(more...)).sync()
		time.Sleep(59 * time.Second)
		l.wantFindings("a pod may be starting")
		time.Sleep(time.Second)
		all := l.wantFindings("nobody has come", "leaked 10.244.0.10", "leaked 10.244.0.11", "leaked 10.244.0.12", "leaked 10.244.0.13", "leaked 10.244.0.14")
		p := all[4].GetPool()
		if p.GetSize() != 253 || p.GetAllocated() != 7 || p.GetLeaked() != 5 {
			t.Errorf("got pool %v, want 253 addresses, 7 of them allocated, 5 leaked", p)
		}
		a.send(kindPod(9, "late", "10.244.0.12")).sync()
		time.Sleep(recordDelay)
		if all := l.findings(); len(all) != 5 || all[0].GetKind() != verdict.FindingBookedElsewhere {
			t.Errorf("got %v, want it allocated to another owner", all)
		}
		a.send(&pb.ReportRequest{Pools: []*pb.PoolRecord{{Ipam: hostlocal.Name, Name: dir, Gone: true}}}).sync()
		l.wantFindings("the pool is gone")
		if got := l.allocations(); got != 0 {
			t.Errorf("got %d allocations left, want none", got)
		}
	})
}

func TestExhaustionOfAPoolIsPredicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)))).sync()
		for i := 2; i < 200; i++ {
			a.send(given(allocated(fmt.Sprintf("10.244.0.%d", i), "sandbox"))).sync()
			time.Sleep(10 * time.Second)
		}
		out, err := l.client.ListPools(l.ctx, &pb.ListPoolsRequest{})
		if err != nil || len(out.GetPools()) != 1 {
			t.Fatal(out, err)
		}
		if in := out.GetPools()[0].GetExhaustedIn().AsDuration(); in < 500*time.Second || in > 600*time.Second {
			t.Errorf("got full in %s, want about 55 times 10 seconds", in)
		}
		if got := out.GetPools()[0].GetHistory(); len(got) != 0 {
			t.Errorf("got a history of %d samples, want none unless it is asked for", len(got))
		}
		if out, err = l.client.ListPools(l.ctx, &pb.ListPoolsRequest{History: true}); err != nil {
			t.Fatal(err)
		}
		history := out.GetPools()[0].GetHistory()
		if len(history) < 33 || len(history) > 35 {
			t.Fatalf("got %d samples of 33 minutes, want one for each", len(history))
		}
		for i, s := range history[1:] {
			before := history[i]
			if lasted, grown := s.GetAt().AsTime().Sub(before.GetAt().AsTime()), s.GetAllocated()-before.GetAllocated(); lasted.Seconds() != 10*float64(grown) {
				t.Errorf("got %d more addresses in %s, want one in 10 seconds", grown, lasted)
			}
		}
		all := l.findings()
		if !slices.ContainsFunc(all, func(f *pb.Finding) bool { return f.GetKind() == verdict.FindingPoolExhaustion }) {
			t.Errorf("got %d findings, want one about the exhaustion of the pool", len(all))
		}
	})
}

// Pods get an address of each family, so free IPv6 addresses do not help if IPv4 addresses are
// exhausted.
func TestUsageOfADualStackPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{LeakedAfter: time.Minute})
		both := hostLocal("10.244.0.0/24", pb.Pool_KNOWN)
		v6 := hostLocal("fd00::/64", pb.Pool_KNOWN)
		both.Ranges, both.Gateways = append(both.Ranges, v6.GetRanges()...), append(both.Gateways, v6.GetGateways()...)
		a := l.dial().send(snapshot(hello("n1", 1), poolOf(both))).sync()
		use := func() *pb.Pool {
			t.Helper()
			out, err := l.client.ListPools(l.ctx, &pb.ListPoolsRequest{})
			if err != nil || len(out.GetPools()) != 1 {
				t.Fatal(out, err)
			}
			return out.GetPools()[0]
		}
		if p := use(); p.GetSize() != 253 || p.GetAllocated() != 0 {
			t.Errorf("got %v, want none of 253", p)
		}
		for i := 2; i < 200; i++ {
			a.send(given(allocated(fmt.Sprintf("10.244.0.%d", i), "sandbox"), allocated(fmt.Sprintf("fd00::%x", i), "sandbox"))).sync()
			time.Sleep(10 * time.Second)
		}
		p := use()
		if p.GetSize() != 253 || p.GetAllocated() != 198 || p.GetLeaked() < 180 || p.GetLeaked() > 198 {
			t.Errorf("got %v, want 198 of 253, nearly all of them leaked", p)
		}
		if in := p.GetExhaustedIn().AsDuration(); in < 500*time.Second || in > 600*time.Second {
			t.Errorf("got full in %s, want about 55 times 10 seconds", in)
		}
		i := slices.IndexFunc(l.findings(), func(f *pb.Finding) bool { return f.GetKind() == verdict.FindingPoolExhaustion })
		if i < 0 {
			t.Fatal("got no finding about the exhaustion of the pool")
		}
		if f := l.findings()[i]; !strings.Contains(f.GetSummary(), " has allocated 198 of 253 IPv4 addresses (78 %)") || !slices.Contains(f.GetEvidence(), "55 IPv4 addresses are left.") {
			t.Errorf("got %q, %q", f.GetSummary(), f.GetEvidence())
		}
		families, err := l.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[f.GetName()] += m.GetGauge().GetValue()
			}
		}
		if got["ipwitness_ipam_pool_size"] != 253 || got["ipwitness_ipam_pool_allocated"] != 198 || got["ipwitness_ipam_allocations"] != 396 {
			t.Errorf("got size %v, allocated %v, all %v", got["ipwitness_ipam_pool_size"], got["ipwitness_ipam_pool_allocated"], got["ipwitness_ipam_allocations"])
		}
		a.send(&pb.ReportRequest{Pools: []*pb.PoolRecord{{Ipam: hostlocal.Name, Name: dir, Gone: true}}}).sync()
		if got := l.allocations(); got != 0 {
			t.Errorf("got %d allocations left, want none", got)
		}
	})
}

func TestTwoNodesWithOneRangeAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		for i, name := range []string{"n1", "n2"} {
			l.dial().send(snapshot(hello(name, 1), kindPod(2, "a"+name, fmt.Sprintf("10.244.0.%d", i+2)),
				poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)), given(allocated(fmt.Sprintf("10.244.0.%d", i+2), "sandbox-a"+name)))).sync()
		}
		time.Sleep(overlapPause)
		f := l.wantFindings("both give 10.244.0.0/24", "pod-cidr-overlap 10.244.0.1-10.244.0.254")[0]
		if !slices.Equal(f.GetNodes(), []string{"n1", "n2"}) {
			t.Errorf("got nodes %v, want both", f.GetNodes())
		}
	})
}

// A node got another range, and its bridge and a pod keep addresses of the former one, which another
// node, without any pod, will allocate from.
func TestAFormerRangeOfANodeIsFoundBeforeItIsAllocated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		own := hostLocal("10.244.8.0/24", pb.Pool_KNOWN)
		l.dial().send(snapshot(hello("n1", 1), kindPod(2, "early", "10.244.7.2"), kindPod(3, "late", "10.244.8.2"), poolOf(own), given(allocated("10.244.8.2", "sandbox-late")))).sync()
		next := hostLocal("10.244.9.0/24", pb.Pool_MISSING)
		next.Config = "/etc/cni/net.d/10-net.conflist"
		a := l.dial().send(snapshot(hello("n2", 1), poolOf(next))).sync()
		time.Sleep(overlapPause)
		l.wantFindings("n2 has a range of its own")
		former := hostLocal("10.244.7.0/24", pb.Pool_MISSING)
		former.Config = next.Config
		a.send(poolOf(former)).sync()
		time.Sleep(overlapPause)
		f := l.wantFindings("n2 has the former range of n1", "pod-cidr-overlap 10.244.7.2/32")[0]
		if !slices.Equal(f.GetNodes(), []string{"n1", "n2"}) {
			t.Errorf("got nodes %v, want both", f.GetNodes())
		}
		a.send(poolOf(next)).sync()
		time.Sleep(overlapPause)
		l.wantFindings("n2 has a range of its own again")
	})
}

func TestDockersBridgesOverlapOnPurpose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		onBridge := func(node, bridge string, kind pb.Workload_Kind, network string) {
			c := podVeth(2, "c", "172.17.0.2")
			c.Namespaces[0].Workload.Kind = kind
			c.Claims[0].Network = network
			c.Links[0].Name, c.Links[0].Kind, c.Links[0].Routed = bridge, pb.LinkRecord_BRIDGE, true
			c.Interfaces[0].Link, c.Interfaces[1].Link = bridge, bridge
			c.Interfaces = append(c.Interfaces, &pb.InterfaceRecord{
				Namespace: 1, Index: 9, Name: bridge, Kind: "bridge", Mac: []byte{2, 0x42, 0, 0, 0, 1}, Attachment: pb.InterfaceRecord_OWN, Link: bridge,
			})
			own := assigned(1, "172.17.0.1")
			own.Index, own.PrefixLength = 9, 16
			c.Claims = append(c.Claims, own)
			l.dial().send(snapshot(hello(node, 1), c)).sync()
		}
		for _, node := range []string{"n1", "n2"} {
			onBridge(node, "docker0", pb.Workload_CONTAINER, "")
		}
		time.Sleep(time.Minute)
		l.wantFindings("no CNI gave these addresses")
		for _, node := range []string{"n3", "n4"} {
			onBridge(node, "cni0", pb.Workload_POD, "lab")
		}
		time.Sleep(time.Minute)
		all := l.findings()
		if i := slices.IndexFunc(all, func(f *pb.Finding) bool { return f.GetKind() == verdict.FindingPodCIDROverlap }); i < 0 || !slices.Equal(all[i].GetNodes(), []string{"n3", "n4"}) {
			t.Errorf("got %v, want an overlap of addresses that a CNI assigned to pods of n3 and n4", all)
		}
	})
}

func TestTwoNetworksOfOneNodeWithOneRangeAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		other := hostLocal("10.244.0.128/25", pb.Pool_KNOWN)
		other.Name, other.Network, other.Plugin, other.Device = "/var/lib/cni/networks/lab", "lab", "bridge", "lab0"
		a := l.dial().send(snapshot(hello("n1", 1), poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN), other))).sync()
		time.Sleep(overlapPause)
		l.wantFindings("both are routed", "ranges-overlap 10.244.0.129-10.244.0.254")
		isolated := hostLocal("10.244.0.128/25", pb.Pool_KNOWN)
		isolated.Name, isolated.Network, isolated.Plugin, isolated.Device, isolated.Routed = other.GetName(), "lab", "bridge", "lab0", false
		a.send(poolOf(isolated)).sync()
		time.Sleep(overlapPause)
		l.wantFindings("a bridge without an address is a world of its own")
	})
}

func TestMissingAddressIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		lacks := kindPod(2, "a", "10.244.0.9")
		lacks.Namespaces[0].Intended = []*pb.Intended{{Address: "10.244.0.2", Source: "cni-result", Interface: "eth0"}}
		a := l.dial().send(snapshot(hello("n1", 1), lacks)).sync()
		f := l.wantFindings("its agent says so", "intended-not-observed 10.244.0.2")[0]
		if f.GetOwners()[0].GetWorkload().GetName() != "a" {
			t.Errorf("got %v, want pod a", f)
		}
		has := kindPod(2, "a", "10.244.0.2")
		a.send(has).sync()
		l.wantFindings("it has it now")
	})
}

// The wire shows that a guest, or a network stack outside the kernel such as gVisor's, has the
// address.
func TestAddressOnTheWireIsNotMissing(t *testing.T) {
	for name, mac := range map[string][]byte{"by a stack of its own": records.MAC(2), "by a guest": {0x52, 0x54, 0, 0, 0, 7}} {
		for _, kind := range []pb.Evidence_Kind{pb.Evidence_ANNOUNCED, pb.Evidence_USED, pb.Evidence_ANSWERED} {
			t.Run(name+" "+kind.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLab(t, Config{})
					lacks := kindPod(2, "a", "10.244.0.9")
					lacks.Namespaces[0].Intended = []*pb.Intended{{Address: "10.244.0.2", Source: "cri", Interface: "eth0"}}
					seen := announced(2, "10.244.0.2", mac)
					seen.Kind = kind
					a := l.dial().send(snapshot(hello("n1", 1), lacks)).sync()
					synctest.Wait()
					l.wantFindings("before it says anything", "intended-not-observed 10.244.0.2")
					a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{seen}}).sync()
					synctest.Wait()
					l.wantFindings("it says that it has it")
					if got := l.owner("10.244.0.9", "n1").GetIntended(); len(got) != 0 {
						t.Errorf("missing addresses: got %v, want none", got)
					}
					weak := announced(2, "10.244.0.2", mac)
					weak.Kind, weak.Source = kind, records.MAC(9)
					a.send(gone(seen)).send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{weak}}).sync()
					synctest.Wait()
					l.wantFindings("somebody else says so", "intended-not-observed 10.244.0.2")
				})
			})
		}
	}
}

// ofCluster applies changes of a cluster-wide IPAM.
func (l *lab) ofCluster(changes ...kube.IPAMChange) {
	l.core.kubernetesChanged(kube.Changes{IPAM: changes})
}

func TestAllocatedUnderTheWrongNodeThenFreedAndReallocated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		calicoPod := func(record uint32, name, addr string) *pb.ReportRequest {
			m := kindPod(record, name, addr)
			m.Claims[0].Network = "k8s-pod-network"
			return m
		}
		l.dial().send(snapshot(hello("n1", 1))).sync()
		l.dial().send(snapshot(hello("n2", 1), calicoPod(2, "first", "192.168.7.5"))).sync()
		p := &verdict.Pool{
			Pool: ipam.Pool{
				IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "default-ipv4-ippool", State: ipam.Known,
				Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("192.168.0.0/16"))},
			},
		}
		al := &verdict.Allocation{
			Pool: p, Allocation: ipam.Allocation{
				Address: netip.MustParseAddr("192.168.7.5"), Node: "n1", Namespace: "default", Pod: "first",
				ContainerID: "sandbox-first", Location: "ipamblocks 192-168-7-0-26 /spec/allocations/5",
			},
		}
		l.ofCluster(kube.IPAMChange{Pool: p}, kube.IPAMChange{Allocation: al})
		time.Sleep(recordDelay)
		l.wantFindings("booked for n1, and held on n2", "booked-elsewhere 192.168.7.5")
		l.ofCluster(kube.IPAMChange{Allocation: al, Gone: true})
		l.wantFindings("the garbage collector has freed it", "in-use-unallocated 192.168.7.5")

		// The address is allocated again.
		l.dial().send(snapshot(hello("n3", 1), calicoPod(2, "second", "192.168.7.5"))).sync()
		next := *al
		next.Node, next.Pod, next.ContainerID = "n3", "second", "sandbox-second"
		l.ofCluster(kube.IPAMChange{Allocation: &next})
		l.wantFindings("a conflict says more")
		past := l.past(al.Address.String())
		if !slices.ContainsFunc(past, func(p verdict.Past) bool {
			return p.Kind == verdict.FindingBookedElsewhere && p.Allocation != nil && p.Allocation.Node == "n1"
		}) {
			t.Errorf("got past %+v, want that it was allocated to n1", past)
		}
	})
}

func TestPoolThatIsNotReadYetCausesNoFinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{LeakedAfter: time.Second})
		l.dial().send(snapshot(hello("n1", 1), kindPod(2, "a", "192.168.7.5"))).sync()
		p := &verdict.Pool{
			Pool: ipam.Pool{
				IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "p", State: ipam.Reading,
				Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("192.168.0.0/16"))},
			},
		}
		l.ofCluster(kube.IPAMChange{Pool: p}, kube.IPAMChange{Allocation: &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: netip.MustParseAddr("192.168.9.9"), Pod: "x", Namespace: "y"}}})
		time.Sleep(time.Minute)
		l.wantFindings("it is being read")
		read := *p
		read.State = ipam.Known
		l.ofCluster(kube.IPAMChange{Pool: &read})
		time.Sleep(recordDelay)
		if all := l.findings(); len(all) == 0 || !strings.HasPrefix(all[0].GetKind(), verdict.FindingInUseUnallocated) {
			t.Errorf("got %v, want the address in use", all)
		}
	})
}

// Cilium records the same allocation in two places.
func TestAllocationThatIsRecordedTwiceCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		p := &verdict.Pool{Pool: ipam.Pool{IPAM: whereabouts.Name, Traits: registry.Traits(whereabouts.Name), Name: "p", State: ipam.Known, Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("10.0.0.0/24"))}}}
		write := func(location string, gone bool) {
			al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: netip.MustParseAddr("10.0.0.5"), Namespace: "default", Pod: "a", Location: location}}
			l.ofCluster(kube.IPAMChange{Allocation: al, Gone: gone})
		}
		check := func(want, all int) {
			t.Helper()
			list, err := l.client.ListPools(l.ctx, &pb.ListPoolsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got := list.GetPools()[0].GetAllocated(); got != uint64(want) || l.allocations() != all {
				t.Errorf("got %d and %d, want %d and %d", got, l.allocations(), want, all)
			}
		}
		l.ofCluster(kube.IPAMChange{Pool: p})
		write("one", false)
		write("two", false)
		check(1, 2)
		write("one", true)
		check(1, 1)
		write("two", true)
		check(0, 0)
	})
}

package aggregator

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

func TestReuseOfAnAddressIsNoAllocationToAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := kindNode(l)
		// A single message reports both: a pod has ended, and the next pod has its address.
		next := records.Merge(kindPod(4, "c", "10.244.0.2"), given(allocated("10.244.0.2", "sandbox-c")))
		next.Namespaces = append(next.Namespaces, &pb.NamespaceRecord{Id: 2, Gone: true})
		a.send(next).sync()
		time.Sleep(time.Minute)
		l.wantFindings("it is reused")
		if past := l.past("10.244.0.2"); len(past) != 0 {
			t.Errorf("got past %+v, want none", past[0])
		}
		// Another node has the same range.
		l.dial().send(snapshot(hello("n2", 1), kindPod(2, "d", "10.244.0.2"),
			poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)), given(allocated("10.244.0.2", "sandbox-d")))).sync()
		if c := l.conflict(pb.Conflict_SUSPECTED); c.GetCause() != verdict.CausePodCIDROverlap {
			t.Errorf("got cause %s because of %q", c.GetCause(), c.GetBecause())
		}
	})
}

func TestPoolThatIsReadAgainIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		last := kindNode(l)
		for _, again := range []*pb.ReportRequest{
			snapshot(hello("n1", 1), kindPod(2, "a", "10.244.0.2"), kindPod(3, "b", "10.244.0.3"), poolOf(hostLocal("10.244.0.0/24", pb.Pool_READING))),
			snapshot(hello("n1", 1), kindPod(2, "a", "10.244.0.2"), kindPod(3, "b", "10.244.0.3")),
		} {
			a := l.dial().send(again).sync()
			a.send(records.Merge(&pb.ReportRequest{}, poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)),
				given(allocated("10.244.0.2", "sandbox-a"), allocated("10.244.0.3", "sandbox-b")))).sync()
			time.Sleep(time.Minute)
			l.wantFindings("all is well")
			if past := l.past("10.244.0.2"); len(past) != 0 {
				t.Errorf("got past %+v, want none", past[0])
			}
			last = a
		}
		last.send(records.Merge(freed(allocated("10.244.0.2", "sandbox-a")), freed(allocated("10.244.0.3", "sandbox-b")))).sync()
		time.Sleep(time.Minute)
		l.wantFindings("now they are lost", "in-use-unallocated 10.244.0.2", "in-use-unallocated 10.244.0.3")
		if past := l.past("10.244.0.2"); len(past) != 1 || past[0].Kind != verdict.FindingInUseUnallocated {
			t.Errorf("got past %+v, want that its record is lost", past)
		}
	})
}

func TestLeakIsFoundOnceAllNodesReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{LeakedAfter: time.Minute})
		p := &verdict.Pool{
			Pool: ipam.Pool{
				IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "p", State: ipam.Known,
				Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("192.168.0.0/16"))},
			},
		}
		l.ofCluster(kube.IPAMChange{Pool: p}, kube.IPAMChange{Allocation: &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: netip.MustParseAddr("192.168.9.9"), Pod: "x", Namespace: "y"}}})
		time.Sleep(time.Hour)
		l.wantFindings("no agent is heard from")
		a := l.dial().send(snapshot(hello("n1", 1))).sync()
		time.Sleep(2*time.Minute + coverageFor)
		l.wantFindings("all are, and nobody has it", "leaked 192.168.9.9")
		l.ofCluster(kube.IPAMChange{Allocation: &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: netip.MustParseAddr("192.168.9.10"), Pod: "x2", Namespace: "y"}}})
		time.Sleep(30 * time.Second)
		a.cancel()
		_ = a.ended()
		time.Sleep(time.Minute)
		l.wantFindings("its node may be the one that is away", "leaked 192.168.9.9")
		l.dial().send(snapshot(hello("n1", 1))).sync()
		time.Sleep(2*time.Minute + coverageFor)
		l.wantFindings("it is back", "leaked 192.168.9.10", "leaked 192.168.9.9")
	})
}

// leakMany connects a node with the given number of unused allocations.
func leakMany(l *lab, count int) {
	var all []*pb.AllocationRecord
	p := hostLocal("10.240.0.0/12", pb.Pool_KNOWN)
	for i := range count {
		a := netip.AddrFrom4([4]byte{10, 240, byte(i / 250), byte(2 + i%250)})
		all = append(all, allocated(a.String(), "gone"))
	}
	l.dial().send(snapshot(hello("n1", 1), poolOf(p), given(all...))).sync()
}

func TestFindingsAreNotSplitAcrossPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{LeakedAfter: time.Second})
		leakMany(l, 1200)
		l.dial().send(snapshot(hello("n2", 1), poolOf(hostLocal("10.1.0.0/24", pb.Pool_KNOWN)), given(allocated("10.1.0.9", "gone")))).sync()
		time.Sleep(time.Minute)
		list := func(q *pb.ListFindingsRequest) (got []string) {
			for {
				out, err := l.client.ListFindings(l.ctx, q)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range out.GetFindings() {
					got = append(got, f.GetId())
				}
				if q.PageToken = out.GetNextPageToken(); q.PageToken == "" {
					return got
				}
			}
		}
		if got := list(&pb.ListFindingsRequest{PageSize: 100}); len(got) != 1201 || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 1201 {
			t.Errorf("got %d findings, want 1201 different ones", len(got))
		}
		if got := list(&pb.ListFindingsRequest{PageSize: 1, Node: "n2"}); len(got) != 1 {
			t.Errorf("got %d findings of n2, want one", len(got))
		}
		if got := list(&pb.ListFindingsRequest{Kind: verdict.FindingLeaked, Address: "10.240.0.7"}); len(got) != 1 {
			t.Errorf("got %d findings about an address, want one", len(got))
		}
	})
}

// Lists one page of 100,000 findings, and the findings of one node.
func BenchmarkListFindings(b *testing.B) {
	l := newLab(b, Config{LeakedAfter: time.Nanosecond})
	for i := range 5 {
		var all []*pb.AllocationRecord
		for k := range 20_000 {
			a := netip.AddrFrom4([4]byte{10, byte(240 + i), byte(k / 250), byte(2 + k%250)})
			all = append(all, allocated(a.String(), "gone"))
		}
		l.dial().send(snapshot(hello("n"+strconv.Itoa(i), 1), poolOf(hostLocal("10.240.0.0/12", pb.Pool_KNOWN)), given(all...))).sync()
	}
	for len(l.core.findings.All()) < 100_000 {
		time.Sleep(10 * time.Millisecond)
	}
	for name, of := range map[string]*pb.ListFindingsRequest{"page": {PageSize: 100}, "node": {PageSize: 100, Node: "n9"}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := l.core.witness.ListFindings(b.Context(), of); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestFindingsOfAPoolEndWithItsRenamedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		unusual := hostLocal("10.244.0.0/24", pb.Pool_UNREADABLE)
		unusual.Problem = "permission denied"
		a := l.dial().send(snapshot(hello("n1", 1), poolOf(unusual))).sync()
		l.wantFindings("it cannot be read", "ipam-unreadable ")
		a.cancel()
		_ = a.ended()
		booted := hello("n1", 1)
		booted.BootId = "boot-of-later"
		l.dial().send(snapshot(booted)).sync()
		time.Sleep(DefaultNodeTimeout + time.Second)
		l.wantFindings("the machine was booted, and has no such pool any more")
	})
}

func TestTheSamePoolsHaveSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		var all []*pb.PoolRecord
		for i := range 1024 {
			p := hostLocal("10.244.0.0/24", pb.Pool_KNOWN)
			p.Name += strconv.Itoa(i)
			p.Routed = false
			all = append(all, p)
		}
		// The last pool by name has one address, which is allocated.
		full := hostLocal("10.245.0.0/30", pb.Pool_KNOWN)
		full.Name += "999"
		full.Routed = false
		all[999] = full
		last := allocated("10.245.0.2", "c1")
		last.Pool = full.Name
		l.dial().send(snapshot(hello("n1", 1), poolOf(all...), given(last))).sync()
		series := func() (names []string) {
			families, err := l.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() == "ipwitness_ipam_pool_size" {
					for _, m := range f.GetMetric() {
						names = append(names, m.String())
					}
				}
			}
			return names
		}
		if first := series(); len(first) != maxPoolSeries || !slices.Equal(first, series()) {
			t.Errorf("got %d series, want the same %d each time", len(first), maxPoolSeries)
		} else if !slices.ContainsFunc(first, func(one string) bool { return strings.Contains(one, full.Name) }) {
			t.Errorf("the pool that is full has no series, and so no alert: it is the last one by name")
		}
	})
}

func TestNodeIsCoveredUnderAnyOfItsNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1))).sync()
		check := func(why string, want map[string]bool) {
			t.Helper()
			l.core.facts.RLock()
			defer l.core.facts.RUnlock()
			reporting := l.core.facts.Reporting()
			for name, covered := range want {
				if reporting(name) != covered {
					t.Errorf("%s: got %s covered %v, want %v", why, name, !covered, covered)
				}
			}
		}
		check("it reports", map[string]bool{"n1": true, "N1": true, "n1.example.org": true, "n10": false, "n2": false})
		a.cancel()
		_ = a.ended()
		time.Sleep(time.Second)
		check("it is silent", map[string]bool{"n1": false, "N1": false, "n1.example.org": false})
	})
}

func TestNetworksInTwoVRFsMayHaveOneRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		m := snapshot(hello("n1", 1))
		for i, tenant := range []string{"red", "blue"} {
			p := hostLocal("10.0.0.0/24", pb.Pool_KNOWN)
			p.Name, p.Network, p.Plugin, p.Device = "/var/lib/cni/networks/"+tenant, tenant, "bridge", "br-"+tenant
			m.Pools = append(m.Pools, p)
			m.Links = append(m.Links, &pb.LinkRecord{Name: p.Device, Kind: pb.LinkRecord_BRIDGE, Routed: true})
			m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{
				Namespace: 1, Index: uint32(10 + i), Name: p.Device, Kind: "bridge", Attachment: pb.InterfaceRecord_OWN, Link: p.Device, Vrf: tenant,
			})
		}
		a := l.dial().send(m).sync()
		time.Sleep(time.Second)
		l.wantFindings("each is in a VRF of its own")
		for _, i := range m.Interfaces {
			i.Vrf = ""
		}
		a.send(&pb.ReportRequest{Interfaces: m.Interfaces, Pools: []*pb.PoolRecord{hostLocal("10.9.0.0/24", pb.Pool_KNOWN)}}).sync()
		time.Sleep(time.Second)
		l.wantFindings("both are in none", "ranges-overlap 10.0.0.1-10.0.0.254")
	})
}

// Pods on a bridge to an external LAN have addresses of that LAN, as their nodes do. This is not an
// overlap of pod ranges.
func TestRangeOfABridgeIntoALANIsNotTheNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		var uplinks []*pb.InterfaceRecord
		var agents []*agent
		for i, name := range []string{"n1", "n2"} {
			m := kindPod(2, "a"+name, fmt.Sprintf("10.10.0.%d", 100+i))
			m.Claims[0].Network = "lan"
			m.Links[0].Name, m.Links[0].Kind, m.Links[0].Routed = "br1", pb.LinkRecord_BRIDGE, true
			m.Interfaces[0].Link, m.Interfaces[1].Link = "br1", "br1"
			uplink := &pb.InterfaceRecord{Namespace: 1, Index: 8, Name: "eth1", Mac: records.MAC(uint32(1000 + i)), Attachment: pb.InterfaceRecord_OWN, Link: "br1", Uplink: true}
			m.Interfaces = append(m.Interfaces, uplink, &pb.InterfaceRecord{
				Namespace: 1, Index: 9, Name: "br1", Kind: "bridge", Mac: records.MAC(uint32(1000 + i)), Attachment: pb.InterfaceRecord_OWN, Link: "br1",
			})
			own := assigned(1, fmt.Sprintf("10.10.0.%d", 10+i))
			own.Index = 9
			m.Claims = append(m.Claims, own)
			uplinks, agents = append(uplinks, uplink), append(agents, l.dial().send(snapshot(hello(name, 1), m)).sync())
		}
		time.Sleep(time.Minute)
		l.wantFindings("all are on one LAN")
		for i, a := range agents {
			uplinks[i].Gone = true
			a.send(&pb.ReportRequest{Interfaces: uplinks[i : i+1]}).sync()
		}
		time.Sleep(time.Second)
		l.wantFindings("each bridge is a world of its own", "pod-cidr-overlap 10.10.0.0/24")
	})
}

// A guest behind KubeVirt's bridge binding has the pod's address, and a gVisor sandbox has a
// network stack that is not the kernel's.
func TestAGuestMayHaveTheAddressOfItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		lacks := func(record uint32, name, addr string) *pb.ReportRequest {
			m := kindPod(record, name, "10.244.9.9")
			m.Claims = nil
			m.Namespaces[0].Intended = []*pb.Intended{{Address: addr, Source: "cni-result", Interface: "eth0"}}
			return m
		}
		launcher, sandbox := lacks(2, "virt-launcher-db", "10.244.0.2"), lacks(3, "sandboxed", "10.244.0.3")
		launcher.Namespaces[0].Workload.VirtualMachine = "db"
		answers := announced(3, "10.244.0.3", records.MAC(3))
		answers.Kind = pb.Evidence_ANSWERED
		sandbox.Claims = []*pb.ClaimRecord{answers}
		a := l.dial().send(snapshot(hello("n1", 1), launcher, sandbox)).sync()
		time.Sleep(time.Minute)
		l.wantFindings("both have it")
		a.send(lacks(4, "late", "10.244.0.4")).sync()
		time.Sleep(time.Minute)
		l.wantFindings("nothing shows it", "intended-not-observed 10.244.0.4")
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{announced(4, "10.244.0.4", records.MAC(4))}}).sync()
		time.Sleep(time.Second)
		l.wantFindings("a frame does")
	})
}

// All CiliumEndpoints are deleted, either to be recreated by Cilium, or because Cilium is
// configured to create none.
func TestCiliumsRecordsAreNotLostWithItsEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for of, want := range map[string][]string{
			cilium.IPAM.Name: {"in-use-unallocated 10.244.0.2", "in-use-unallocated 10.244.0.3"},
			calico.IPAM.Name: {"in-use-unallocated 10.244.0.2", "in-use-unallocated 10.244.0.3", "ipam-state-lost "},
		} {
			l := newLab(t, Config{})
			l.dial().send(snapshot(hello("n1", 1), kindPod(2, "a", "10.244.0.2"), kindPod(3, "b", "10.244.0.3"))).sync()
			l.ofCluster(kube.IPAMChange{Pool: &verdict.Pool{
				Pool: ipam.Pool{IPAM: of, Traits: registry.Traits(of), Name: "n1", State: ipam.Known, Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("10.244.0.0/24"))}},
			}})
			time.Sleep(time.Hour)
			l.wantFindings(of+" has no record of them", want...)
		}
	})
}

// An IPPool without allocations, in whose range the nodes themselves have addresses.
func TestAddressesOfNodesAreNotLostRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		for i, name := range []string{"n1", "n2"} {
			own := assigned(1, fmt.Sprintf("192.168.1.%d", 10+i))
			l.dial().send(snapshot(hello(name, 1), &pb.ReportRequest{
				Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 2, Name: "eth0", Mac: records.MAC(uint32(1000 + i)), Attachment: pb.InterfaceRecord_OWN, Link: "eth0", Uplink: true}},
				Claims:     []*pb.ClaimRecord{own},
			})).sync()
		}
		l.ofCluster(kube.IPAMChange{Pool: &verdict.Pool{
			Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "p", State: ipam.Known, Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix("192.168.0.0/16"))}},
		}})
		time.Sleep(time.Hour)
		l.wantFindings("Calico may give them away", "in-use-unallocated 192.168.1.10", "in-use-unallocated 192.168.1.11")
	})
}

// A NetworkAttachmentDefinition with host-local allocates the same addresses on each node, for pods
// on a separate bridge.
func TestFurtherInterfacesOfPodsHaveOneRangeOnEachNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		var agents []*agent
		parts := map[string]*pb.ReportRequest{}
		for _, name := range []string{"n1", "n2"} {
			m := kindPod(2, "a"+name, "10.244.0.2")
			m.Interfaces[0].Name = "net1"
			parts[name] = m
			agents = append(agents, l.dial().send(snapshot(hello(name, 1), m, poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)), given(allocated("10.244.0.2", "sandbox-a"+name)))).sync())
		}
		time.Sleep(time.Minute)
		l.wantFindings("they never meet")
		for i, name := range []string{"n1", "n2"} {
			agents[i].send(kindPod(3, "b"+name, fmt.Sprintf("10.244.0.%d", 10+i))).sync()
		}
		time.Sleep(time.Second)
		if all := l.findings(); !slices.ContainsFunc(all, func(f *pb.Finding) bool { return f.GetKind() == verdict.FindingPodCIDROverlap }) {
			t.Errorf("got %v, want an overlap of the pods' ranges for eth0", all)
		}
	})
}

// lanPool returns a pool of host-local for a macvlan network on eth0.
func lanPool() *pb.ReportRequest {
	p := hostLocal("192.0.2.64/26", pb.Pool_MISSING)
	p.Network, p.Plugin, p.Device, p.Routed, p.Gateways = "lan", "macvlan", "eth0", false, nil
	return poolOf(p)
}

// overlaps returns the severity of the findings about overlapping ranges of two nodes that are proven to be on one LAN.
func (l *lab) overlaps() (severity pb.Finding_Severity) {
	time.Sleep(time.Second)
	for _, f := range l.findings() {
		if f.GetKind() == verdict.FindingPodCIDROverlap {
			severity = max(severity, f.GetSeverity())
		}
	}
	return severity
}

// meet reports frames of two nodes that prove that they are on one LAN.
func meet(one, two *agent) {
	one.send(records.Claims(entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2)))).sync()
	two.send(records.Claims(entered(pb.Evidence_USED, "192.0.2.1", nodeMAC(1)))).sync()
}

// Two nodes have one range on a LAN. It is urgent only once one of them has assigned an address of it.
func TestARangeOnALANThatNobodyHasUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		agents := l.onLAN(2, func(int) *pb.ReportRequest { return lanPool() })
		if got := l.overlaps(); got != 0 {
			t.Errorf("got severity %s before it is known that the nodes are on one LAN", got)
		}
		meet(agents[0], agents[1])
		if got := l.overlaps(); got != pb.Finding_WARNING {
			t.Errorf("got severity %s, want a warning", got)
		}
		al := allocated("192.0.2.65", "sandbox-a")
		agents[1].send(given(al)).sync()
		if got := l.overlaps(); got != pb.Finding_CRITICAL {
			t.Errorf("got severity %s after an allocation, want critical", got)
		}
		agents[1].send(freed(al)).sync()
		if got := l.overlaps(); got != pb.Finding_WARNING {
			t.Errorf("got severity %s after its release, want a warning", got)
		}
	})
}

// A node is a container of another node, which has assigned it its address.
func TestANodeWithAnAddressFromAnotherNodesRange(t *testing.T) {
	for name, test := range map[string]struct {
		device string // of the pool
		addr   string // that the pool allocates
		want   pb.Finding_Severity
	}{
		"its address":                   {"eth0", "192.0.2.66", 0},
		"another address":               {"eth0", "192.0.2.67", pb.Finding_CRITICAL},
		"an address of another network": {"eth1", "192.0.2.66", pb.Finding_CRITICAL},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, Config{})
			agents := l.onLAN(2, onlyOn(1, lanPool()), onlyOn(2, ownAddress("192.0.2.66")))
			meet(agents[0], agents[1])
			if got := l.overlaps(); got != pb.Finding_CRITICAL {
				t.Errorf("%s: got severity %s, want critical as long as the address is not allocated", name, got)
			}
			al := allocated(test.addr, "guest")
			if test.device != "eth0" {
				other := lanPool()
				other.Pools[0].Name, other.Pools[0].Device, al.Pool = "/data", test.device, "/data"
				agents[0].send(other).sync()
			}
			agents[0].send(given(al)).sync()
			if got := l.overlaps(); got != test.want {
				t.Errorf("%s: got severity %s after its allocation, want %s", name, got, test.want)
			}
			agents[0].send(freed(al)).sync()
			if got := l.overlaps(); got != pb.Finding_CRITICAL {
				t.Errorf("%s: got severity %s after its release, want critical", name, got)
			}
		})
	}
}

// Cilium's operator has assigned the same range to two nodes. Kubernetes may have assigned it to a
// third node, but Cilium ignores that.
func TestTwoCiliumNodesWithOneRangeAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		pool := func(name, cidr string, grows, single bool) {
			l.ofCluster(kube.IPAMChange{Pool: &verdict.Pool{
				Pool: ipam.Pool{
					IPAM: cilium.IPAM.Name, Traits: registry.Traits(cilium.IPAM.Name), Name: name, State: ipam.Known, Wiring: ipam.Wiring{Routed: true}, Grows: grows, Single: single,
					Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix(cidr))},
				},
			}})
			time.Sleep(time.Second)
		}
		l.dial().send(snapshot(hello("n3", 1), kindPod(2, "a", "10.0.1.2"), poolOf(hostLocal("10.0.1.0/24", pb.Pool_KNOWN)), given(allocated("10.0.1.2", "sandbox-a")))).sync()
		pool("n1", "10.0.1.0/24", false, false)
		pool("n2", "10.0.2.0/24", false, false)
		pool("n4", "10.0.1.7/32", true, true)
		if all := l.findings(); slices.ContainsFunc(all, func(f *pb.Finding) bool { return f.GetKind() == verdict.FindingPodCIDROverlap }) {
			t.Errorf("got %v, want no overlap", all)
		}
		pool("n2", "10.0.1.128/25", false, false)
		i := slices.IndexFunc(l.findings(), func(f *pb.Finding) bool { return f.GetKind() == verdict.FindingPodCIDROverlap })
		if i < 0 {
			t.Fatal("got no overlap")
		}
		if f := l.findings()[i]; !slices.Equal(f.GetNodes(), []string{"n1", "n2"}) || f.GetAddress() != "10.0.1.128/25" {
			t.Errorf("got %v, want n1 and n2", f)
		}
	})
}

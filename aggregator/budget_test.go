package aggregator

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// memoryFor returns the memory limit for which the budget of all nodes has that many bytes.
func memoryFor(budget int64) int64 { return facts.BudgetOverhead + 2*budget }

func numbered(i int) []byte { return binary.BigEndian.AppendUint32(nil, 10<<24|uint32(i)) }

func macOf(i int) []byte { return binary.BigEndian.AppendUint32([]byte{2, 9}, uint32(i)) }

// binding returns a frame for an address that no kernel reports.
func binding(i int) *pb.ClaimRecord {
	c := announced(2, "10.0.0.1", macOf(i))
	c.Address = numbered(i)
	return c
}

func kernelClaim(record uint32, i int) *pb.ClaimRecord {
	c := assigned(record, "10.0.0.1")
	c.Address = numbered(i)
	return c
}

func (l *lab) node(name string) *pb.Node {
	l.Helper()
	list, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
	if err != nil {
		l.Fatal(err)
	}
	for _, n := range list.GetNodes() {
		if n.GetName() == name {
			return n
		}
	}
	l.Fatalf("there is no node %s", name)
	return nil
}

func (l *lab) used() int64 {
	return l.core.used()
}

// used returns the total charge.
func (c *core) used() int64 {
	c.facts.RLock()
	defer c.facts.RUnlock()
	used, _ := c.facts.Budget()
	return used
}

// flood sends the given number of bindings, 4096 in each message.
func (a *agent) flood(from, bindings int) *agent {
	a.Helper()
	for bindings > 0 {
		m := &pb.ReportRequest{}
		for range min(bindings, 4096) {
			m.Claims = append(m.Claims, binding(from))
			from++
			bindings--
		}
		a.send(m).sync()
	}
	return a
}

func TestFloodedNodesLeaveAnHonestOneComplete(t *testing.T) {
	const budget, flooders, bindings = facts.LeastBudget, 8, 16 << 10
	l := newLab(t, Config{Memory: memoryFor(budget)})
	for n := range flooders {
		l.dial().send(snapshot(hello(fmt.Sprint("flooded", n), 1), podVeth(2, "bad", fmt.Sprintf("10.200.%d.1", n)))).flood(n*bindings, bindings)
	}
	parts := []*pb.ReportRequest{podVeth(2, "a", addr), podVeth(3, "b", addr)}
	const pods = 200
	for i := range pods {
		parts = append(parts, podVeth(uint32(4+i), fmt.Sprint("pod", i), fmt.Sprintf("10.100.0.%d", i)))
	}
	wellBehaved := l.dial().send(snapshot(hello("honest", 1), parts...)).sync()
	check := func() {
		t.Helper()
		if n := l.node("honest"); n.GetIncomplete() || n.GetLeftOut() != 0 || n.GetClaims() < pods+2 {
			t.Errorf("got well-behaved node %v, want all of its %d claims", n, pods+2)
		}
		if got := len(l.owners(&pb.ListOwnersRequest{Node: "honest"})); got != pods+2 {
			t.Errorf("got %d owners of the well-behaved node, want %d", got, pods+2)
		}
		if used := l.used(); used > budget {
			t.Errorf("%d bytes are charged, want %d at most", used, budget)
		}
	}
	check()
	l.conflict(pb.Conflict_SUSPECTED)
	for n := range flooders {
		got := l.node(fmt.Sprint("flooded", n))
		if !got.GetIncomplete() || got.GetLeftOut() == 0 || !strings.Contains(strings.Join(got.GetProblems(), "\n"), "lacks memory") {
			t.Errorf("got %v, want it incomplete, with a problem that explains it", got)
		}
		if left := l.metric("ipwitness_node_left_out_records", got.GetName()); left != float64(got.GetLeftOut()) {
			t.Errorf("the metric says that %v records of %s are left out, the node %d", left, got.GetName(), got.GetLeftOut())
		}
	}
	if got := l.metric("ipwitness_aggregator_refused_records_total", "claim"); got == 0 {
		t.Error("no refused claim is counted")
	}
	// Later records also fit.
	wellBehaved.send(podVeth(900, "late", "10.244.0.6")).send(podVeth(901, "later", "10.244.0.6")).sync()
	if got := len(l.conflicts()); got != 2 {
		t.Errorf("got %d conflicts, want the second duplicate, too", got)
	}
}

func TestNodeMayUseMemoryThatNoOtherNodeNeeds(t *testing.T) {
	const budget = facts.LeastBudget
	l := newLab(t, Config{Memory: memoryFor(budget)})
	l.dial().send(snapshot(hello("quiet", 1))).sync()
	a := l.dial().send(snapshot(hello("large", 1), podVeth(2, "a", addr))).flood(0, budget*3/4/facts.WireCost)
	if n := l.node("large"); n.GetIncomplete() {
		t.Errorf("got %v, want it complete, as there is room", n)
	}
	a.flood(1<<20, budget/facts.WireCost)
	if n := l.node("large"); !n.GetIncomplete() {
		t.Errorf("got %v, want it incomplete, as it reports more than there is room for", n)
	}
}

func TestKernelClaimsArePreferredToWireClaims(t *testing.T) {
	const budget, mine = facts.LeastBudget, 1000
	all := snapshot(hello("n1", 1), podVeth(2, "a", addr))
	for i := range budget / facts.WireCost {
		all.Claims = append(all.Claims, binding(i))
	}
	for i := range mine {
		all.Claims = append(all.Claims, kernelClaim(2, 1<<20+i))
	}
	want := func(t *testing.T, l *lab) {
		t.Helper()
		kernel := 0
		for token := ""; ; {
			list, err := l.client.ListOwners(l.ctx, &pb.ListOwnersRequest{Cidr: "10.16.0.0/16", PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			kernel += len(list.GetOwners())
			if token = list.GetNextPageToken(); token == "" {
				break
			}
		}
		if n := l.node("n1"); kernel != mine || !n.GetIncomplete() {
			t.Errorf("got %d owners by the kernel of %v, want %d of an incomplete node", kernel, n, mine)
		}
	}
	t.Run("in one message", func(t *testing.T) {
		l := newLab(t, Config{Memory: memoryFor(budget)})
		l.dial().send(proto.CloneOf(all)).sync()
		want(t, l)
	})
	t.Run("in many", func(t *testing.T) {
		l := newLab(t, Config{Memory: memoryFor(budget)})
		a := l.dial()
		first := proto.CloneOf(all)
		claims := first.Claims
		first.Claims, first.SnapshotEnd = nil, false
		a.send(first)
		for len(claims) > 0 {
			n := min(len(claims), 1000)
			a.send(&pb.ReportRequest{Claims: claims[:n], SnapshotEnd: n == len(claims)})
			claims = claims[n:]
		}
		a.sync()
		want(t, l)
	})
	t.Run("later", func(t *testing.T) {
		l := newLab(t, Config{Memory: memoryFor(budget)})
		first := proto.CloneOf(all)
		claims := first.Claims
		first.Claims = claims[:len(claims)-mine]
		l.dial().send(first).send(&pb.ReportRequest{Claims: claims[len(claims)-mine:]}).sync()
		want(t, l)
	})
}

// The agent is asked to send the records that were left out only once there is room.
func TestDroppedRecordsAreSentAgainWhenThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = facts.LeastBudget
		l := newLab(t, Config{Memory: memoryFor(budget)})
		crowd := l.dial().send(snapshot(hello("crowd", 1), podVeth(2, "a", "10.200.0.1"))).flood(0, budget/2/facts.WireCost)
		mine := snapshot(hello("n1", 1), podVeth(2, "a", addr))
		for i := range budget * 5 / 8 / facts.WireCost {
			mine.Claims = append(mine.Claims, binding(1<<20+i))
		}
		again := proto.CloneOf(mine)
		again.Hello = nil
		a := l.dial().send(mine).sync()
		if n := l.node("n1"); !n.GetIncomplete() {
			t.Fatalf("got %v, want it incomplete", n)
		}
		time.Sleep(DefaultStaleAfter / 2) // a longer pause would expire the wire claims
		synctest.Wait()
		if a.asks(); a.resyncs > 0 {
			t.Errorf("the agent was asked %d times, want none: there is no room", a.resyncs)
		}
		crowd.send(proto.CloneOf(&pb.ReportRequest{SnapshotBegin: true, SnapshotEnd: true})).sync()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if a.asks(); a.resyncs != 1 {
			t.Fatalf("the agent was asked %d times after there was room, want once", a.resyncs)
		}
		if a.send(again).sync(); l.node("n1").GetIncomplete() {
			t.Errorf("got %v, want it complete", l.node("n1"))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if a.asks(); a.resyncs != 1 {
			t.Errorf("the agent was asked %d times, want once", a.resyncs)
		}
	})
}

// asks reads the requests that the agent has received so far.
func (a *agent) asks() {
	for len(a.responses) > 0 {
		a.take()
	}
}

// Every charge is released, regardless of how its record ends.
func TestChargesAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Memory: memoryFor(1 << 30)})
		empty := func(h *pb.Hello) *pb.ReportRequest {
			return &pb.ReportRequest{Hello: h, SnapshotBegin: true, SnapshotEnd: true, Status: &pb.StatusRecord{Wire: "tcx"}}
		}
		full := func(h *pb.Hello) *pb.ReportRequest {
			m := snapshot(h, podVeth(2, "a", addr), podVeth(3, "b", addr))
			m.Status = &pb.StatusRecord{Wire: "tcx"}
			m.Claims = append(m.Claims, binding(1), binding(2), announced(3, addr, macOf(3)))
			m.Pools = []*pb.PoolRecord{{Name: "/p", Ipam: "host-local", State: pb.Pool_KNOWN, Ranges: []*pb.AddressRange{{First: numbered(0), Last: numbered(9)}}}}
			m.Allocations = []*pb.AllocationRecord{{Ipam: "host-local", Pool: "/p", Address: numbered(1), ContainerId: "c1"}}
			return m
		}
		a := l.dial().send(empty(hello("n1", 1))).sync()
		bare := l.used()
		for name, change := range map[string]func(){
			"a snapshot without it": func() { a.send(empty(nil)) },
			"records that are gone, from the top": func() {
				m := &pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "veth2", Gone: true}, {Name: "veth3", Gone: true}}, Pools: []*pb.PoolRecord{{Name: "/p", Ipam: "host-local", Gone: true}}}
				for record := range uint32(3) {
					m.Namespaces = append(m.Namespaces, &pb.NamespaceRecord{Id: record + 1, Gone: true})
				}
				a.send(m)
			},
			"records that are gone, from the bottom": func() {
				m := full(nil)
				m.SnapshotBegin, m.SnapshotEnd = false, false
				for _, c := range m.GetClaims() {
					c.Gone = true
				}
				for _, al := range m.GetAllocations() {
					al.Gone = true
				}
				m.Interfaces, m.Namespaces, m.Links, m.Pools = nil, nil, nil, nil
				a.send(m)
				m = full(nil)
				m.SnapshotBegin, m.SnapshotEnd = false, false
				m.Claims, m.Allocations, m.Namespaces, m.Links = nil, nil, nil, nil
				for _, i := range m.GetInterfaces() {
					i.Gone = true
				}
				for _, p := range m.GetPools() {
					p.Gone = true
				}
				a.send(m)
				m = full(nil)
				m.SnapshotBegin, m.SnapshotEnd = false, false
				m.Claims, m.Allocations, m.Interfaces, m.Pools = nil, nil, nil, nil
				for _, l := range m.GetLinks() {
					l.Gone = true
				}
				for _, ns := range m.GetNamespaces() {
					ns.Gone = true
				}
				a.send(m)
			},
			"it was reported three times, with different names": func() {
				for _, name := range []string{"x", "a-longer-name", ""} {
					m := full(nil)
					m.Namespaces[1].Workload.Name, m.Namespaces[1].Netns = name, name
					m.Interfaces[0].Name, m.Claims[0].Network, m.Claims[2].Link = name, name, name
					m.Pools[0].Network, m.Allocations[0].ContainerId = name, name
					a.send(m)
				}
				a.send(empty(nil))
			},
			"half of a snapshot, and a whole one": func() {
				m := full(nil)
				m.SnapshotEnd = false
				a.send(m).sync()
				if half := l.used(); half <= bare {
					t.Errorf("half of a snapshot is charged with nothing")
				}
				a.send(empty(nil))
			},
		} {
			a.send(full(nil)).sync()
			if l.used() <= bare+8*facts.KernelCost {
				t.Fatalf("before %s: %d bytes are charged, %d when there was nothing", name, l.used(), bare)
			}
			change()
			if a.sync(); l.used() != bare {
				t.Errorf("after %s: %d bytes are charged, want %d", name, l.used(), bare)
			}
		}
		a.send(full(nil)).sync()
		half := full(nil)
		half.SnapshotEnd = false
		a.send(half).sync().cancel()
		time.Sleep(2 * DefaultNodeTimeout)
		synctest.Wait()
		if got := l.used(); got != 0 {
			t.Errorf("%d bytes are charged when the node timed out, want none", got)
		}
	})
}

// Agents with the same credential share one budget.
func TestManyBootIDsDoNotMakeAShareLarger(t *testing.T) {
	const budget = facts.LeastBudget
	l := newGuardedLabWith(t, Config{Memory: memoryFor(budget)}, "bad", "good")
	for n := range 8 {
		h := hello("bad", 1)
		h.BootId = fmt.Sprint("boot", n)
		l.report(h, podVeth(2, "bad", fmt.Sprintf("10.200.%d.1", n))).flood(n<<16, 4096)
	}
	good := l.report(hello("good", 1), podVeth(2, "a", addr)).flood(1<<20, budget*2/5/facts.WireCost)
	if n := l.node("good"); n.GetIncomplete() {
		t.Errorf("got %v, want it complete: half of the budget is its share", n)
	}
	_ = good
}

// TestRecordsCostWhatIsCharged compares the charges with the heap. A charge must not be lower
// than the heap of its record, and not much higher.
func TestRecordsCostWhatIsCharged(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: run make test-all")
	}
	measuresHeap(t)
	const many = 20_000
	for name, fill := range map[string]func(m *pb.ReportRequest, i int){
		"namespaces": func(m *pb.ReportRequest, i int) {
			ns := podNamespace(uint32(i+10), fmt.Sprint("pod", i))
			ns.Workload.ContainerId = fmt.Sprintf("%064x", i)
			m.Namespaces = append(m.Namespaces, ns)
		},
		"interfaces": func(m *pb.ReportRequest, i int) {
			m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{
				Namespace: 1, Index: uint32(i + 1000), Name: fmt.Sprint("if", i), Kind: "veth", Mac: macOf(i),
				Attachment: pb.InterfaceRecord_OWN, Link: "veth2", Uplink: true,
			})
		},
		"links": func(m *pb.ReportRequest, i int) {
			m.Links = append(m.Links, &pb.LinkRecord{Name: fmt.Sprint("link", i), Kind: pb.LinkRecord_BRIDGE})
		},
		"claims of the kernel": func(m *pb.ReportRequest, i int) { m.Claims = append(m.Claims, kernelClaim(2, i)) },
		"claims of the wire":   func(m *pb.ReportRequest, i int) { m.Claims = append(m.Claims, binding(i)) },
		"claims of the wire on links that are not known": func(m *pb.ReportRequest, i int) {
			c := binding(i)
			c.Link = fmt.Sprint("link", i)
			m.Claims = append(m.Claims, c)
		},
		"conflicts of kernels": func(m *pb.ReportRequest, i int) {
			m.Claims = append(m.Claims, kernelClaim(2, i), kernelClaim(3, i))
		},
		"conflicts with the wire": func(m *pb.ReportRequest, i int) {
			m.Claims = append(m.Claims, kernelClaim(3, i), binding(i))
		},
		"leaked allocations": func(m *pb.ReportRequest, i int) {
			if i == 0 {
				m.Pools = append(m.Pools, &pb.PoolRecord{Name: "/p", Ipam: "host-local", State: pb.Pool_KNOWN, Ranges: []*pb.AddressRange{{First: numbered(0), Last: numbered(1 << 20)}}})
			}
			m.Allocations = append(m.Allocations, &pb.AllocationRecord{Ipam: "host-local", Pool: "/p", Address: numbered(i), ContainerId: fmt.Sprintf("%064x", i), Interface: "eth0"})
		},
		"pools": func(m *pb.ReportRequest, i int) {
			if i < facts.MaxNodePools {
				m.Pools = append(m.Pools, &pb.PoolRecord{Name: fmt.Sprint("/p", i), Ipam: "host-local", State: pb.Pool_KNOWN, Ranges: []*pb.AddressRange{{First: numbered(i * 8), Last: numbered(i*8 + 7)}}})
			}
		},
		"names that are long": func(m *pb.ReportRequest, i int) {
			c := kernelClaim(2, i)
			c.Network = fmt.Sprintf("%0253d", i)
			m.Claims = append(m.Claims, c)
		},
		"a status": func(m *pb.ReportRequest, i int) {
			if i < facts.MaxProblems {
				m.Status.Problems = append(m.Status.Problems, fmt.Sprintf("%0*d", 1024, i))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := snapshot(nil, podVeth(2, "a", "192.0.2.1"), podVeth(3, "b", "192.0.2.2"))
			for i := range many {
				fill(m, i)
			}
			raw, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var took, cost int64
			for range 10 { // memory kept by the runtime or an earlier test may be freed meanwhile
				if took, cost = heapAndCharge(t, raw); cost >= took && cost <= 3*took {
					break
				}
			}
			if t.Logf("%s: %d bytes of heap, %d charged", name, took, cost); cost < took || cost > 3*took {
				t.Errorf("%d bytes of heap are charged as %d, want as many or up to three times that", took, cost)
			}
		})
	}
}

// heapAndCharge returns the growth of a new core's heap by a snapshot, in bytes, and the charge of
// the node.
func heapAndCharge(t *testing.T, snapshot []byte) (took, cost int64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newTestCore(t)
		r := s.begin(t, hello("n1", 1))
		synctest.Wait()
		before, charged := liveHeap(), s.used()
		func() {
			read := new(pb.ReportRequest)
			if err := proto.Unmarshal(snapshot, read); err != nil {
				t.Fatal(err)
			}
			r.must(t, read)
		}()
		time.Sleep(2 * time.Second) // conflicts are confirmed
		synctest.Wait()             // a judgement in progress would count as heap
		took, cost = liveHeap()-before, s.used()-charged
		runtime.KeepAlive(s)
		runtime.KeepAlive(snapshot)
	})
	return took, cost
}

// liveHeap collects garbage until the heap no longer shrinks: memory of earlier tests is freed only
// after several rounds.
func liveHeap() int64 {
	var m runtime.MemStats
	for least, same := uint64(math.MaxUint64), 0; same < 3; same++ {
		runtime.GC()
		if runtime.ReadMemStats(&m); m.HeapAlloc+1<<14 < least {
			least, same = m.HeapAlloc, 0
		}
	}
	return int64(m.HeapAlloc)
}

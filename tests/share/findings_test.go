package share

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// poolName is the directory of the node's host-local.
const poolName = "/var/lib/cni/networks/pods"

// pool reports the pool of the node. If lost is set, it has lost its records.
func (n *node) pool(lost bool) {
	key := table.PoolKey{IPAM: hostlocal.Name, Name: poolName}
	one := &pb.PoolRecord{
		Ipam: key.IPAM, Name: key.Name, Network: "pods", Plugin: "ptp", Routed: true, State: pb.Pool_KNOWN,
		Ranges: []*pb.AddressRange{{First: []byte{10, 244, 0, 1}, Last: []byte{10, 244, 0, 254}}},
	}
	if lost {
		one.State, one.LostAt, one.Lost = pb.Pool_MISSING, timestamppb.Now(), 6
	}
	n.Update(func() { n.Pools.Put(key, one, time.Now()) })
}

// allocate reports that the pool has allocated an address to a sandbox, or that it has not if gone is set.
func (n *node) allocate(addr, sandbox string, gone bool) {
	one := table.AllocationKey{Pool: table.PoolKey{IPAM: hostlocal.Name, Name: poolName}, Address: netip.MustParseAddr(addr)}
	n.Update(func() {
		if gone {
			n.Allocations.Remove(one, time.Now())
			return
		}
		n.Allocations.Put(one, &pb.AllocationRecord{
			Ipam: hostlocal.Name, Pool: poolName, Address: one.Address.AsSlice(), ContainerId: sandbox, Interface: "eth0", AllocatedAt: timestamppb.Now(),
		}, time.Now())
	})
}

// bridged makes the interfaces of a pod ports of the bridge br0.
func (n *node) bridged(record uint32) {
	now := time.Now()
	n.Update(func() {
		n.Links.Put("br0", &pb.LinkRecord{Name: "br0", Kind: pb.LinkRecord_BRIDGE}, now)
		for _, r := range records.Veth(record, 0, nil).GetInterfaces() {
			r.Link = "br0"
			n.Interfaces.Put(table.InterfaceKey{Namespace: r.GetNamespace(), Index: int32(r.GetIndex())}, r, now)
		}
	})
}

// announce reports a frame through the port of a pod, with the hardware address of a pod.
func (n *node) announce(port, of uint32, addr string) {
	now := time.Now()
	n.Update(func() { n.Add(n.frame(port, of, addr), table.Claim{First: now, Last: now, Count: 1, Link: "br0"}, now) })
}

func (n *node) frame(port, of uint32, addr string) table.ClaimKey {
	return table.ClaimKey{
		Address: netip.MustParseAddr(addr), Kind: pb.Evidence_ANNOUNCED, At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: int32(100 + port)}, MAC: string(records.MAC(of)),
	}
}

// findings returns the findings about several addresses with these addresses, and the others.
func (a *aggregated) findings(ctx context.Context) (all []string) {
	p, err := a.client.ListFindings(ctx, &pb.ListFindingsRequest{})
	if err != nil {
		return []string{err.Error()}
	}
	for _, f := range p.GetFindings() {
		all = append(all, fmt.Sprintf("%s %s%s", f.GetKind(), f.GetAddress(), strings.Join(f.GetAddresses(), ",")))
	}
	slices.Sort(all)
	return all
}

func (w *world) wantFindings(why string, want []string, of ...*aggregated) {
	w.Helper()
	w.wantAll(why, want, (*aggregated).findings, of)
}

// wantFindingsOnce checks that each of some findings began once in the history, and ended once if over is set.
// kinds has their numbers by kind.
func (w *world) wantFindingsOnce(why string, over bool, kinds map[string]int, of ...*aggregated) {
	w.Helper()
	for _, a := range of {
		for kind, n := range kinds {
			var began, ended int
			defer func() {
				if w.Failed() {
					w.Logf("%s at %s: %s began %d times, and ended %d times", why, a.name, kind, began, ended)
				}
			}()
			wait.Until(w, fmt.Sprintf("%s: the history of %s at %s", why, kind, a.name), func() bool {
				began, ended = 0, 0
				p, err := a.client.ListEvents(w.Context(), &pb.ListEventsRequest{Kind: pb.Event_FINDING})
				for _, e := range p.GetEvents() {
					switch {
					case e.GetFinding().GetKind() != kind:
					case e.GetType() == pb.Watch_ADDED:
						began++
					case e.GetType() == pb.Watch_REMOVED:
						ended++
					}
				}
				return err == nil && began >= n && (ended >= n || !over)
			})
			if began != n || ended > n || !over && ended > 0 {
				w.Errorf("%s at %s: %s began %d times, and ended %d times", why, a.name, kind, began, ended)
			}
		}
	}
}

func (w *world) wantLeaked(why string, want uint64, of ...*aggregated) {
	w.Helper()
	for _, a := range of {
		wait.Until(w, fmt.Sprintf("%s: %d leaked at %s", why, want, a.name), func() bool {
			p, err := a.client.ListPools(w.Context(), &pb.ListPoolsRequest{})
			return err == nil && len(p.GetPools()) == 1 && p.GetPools()[0].GetLeaked() == want
		})
	}
}

// Each replica serves only some of the addresses that a finding is about. All replicas answer with the same
// findings, which begin and end once, no matter which replicas join or leave.
func TestFindingsAboutSeveralAddresses(t *testing.T) {
	w := &world{lab: newLab(t), leakedAfter: 4 * time.Second}
	a, b, c := w.start("a", t.TempDir()), w.start("b", t.TempDir()), w.start("c", t.TempDir())
	n := w.join("n0")
	n.pool(false)
	var addrs []string
	for i := range uint32(6) {
		addr := fmt.Sprintf("10.244.0.%d", i+2)
		addrs = append(addrs, addr)
		n.pod(i+2, addr)
		n.allocate(addr, "", false)
	}
	w.wantDivided("at the start", a, b, c)
	w.wantOwners("at the start", len(addrs), a, b, c)
	w.wantFindings("at the start", nil, a, b, c)

	n.pool(true)
	for _, addr := range addrs {
		n.allocate(addr, "", true)
	}
	n.bridged(2)
	n.bridged(3)
	var claimed, want []string
	for i := range 8 {
		claimed = append(claimed, fmt.Sprintf("10.9.0.%d", i+1))
		n.announce(3, 2, claimed[i])
	}
	for _, addr := range addrs {
		want = append(want, "in-use-unallocated "+addr)
	}
	want = append(want, "ipam-state-lost "+strings.Join(addrs, ","), "mac-cloned "+strings.Join(claimed, ","))
	w.wantFindings("three replicas", want, a, b, c)
	several := map[string]int{"ipam-state-lost": 1, "mac-cloned": 1}
	w.wantFindingsOnce("three replicas", false, several, a, b, c)

	// Others take over: one that starts, and those that go on after one has stopped.
	d := w.start("d", t.TempDir())
	w.wantDivided("four replicas", a, b, c, d)
	w.wantFindings("four replicas", want, a, b, c, d)
	b.stop()
	w.wantDivided("without b", a, c, d)
	w.wantFindings("without b", want, a, c, d)
	w.wantFindingsOnce("without b", false, several, a, c, d)

	n.pool(false)
	for _, addr := range addrs {
		n.allocate(addr, "", false)
	}
	for _, addr := range claimed {
		n.Update(func() { n.RemoveClaim(n.frame(3, 2, addr), time.Now()) })
	}
	w.wantFindings("all is well", nil, a, c, d)
	w.wantFindingsOnce("all is well", true, several, a, c, d)

	const leaked = 40
	for i := range leaked {
		n.allocate(fmt.Sprintf("10.244.0.%d", 100+i), "gone", false)
	}
	w.wantLeaked("all", leaked, a, c, d)
	// One that takes over some of them does not wait again until it reports them.
	e := w.start("e", t.TempDir())
	w.wantDivided("with e", a, c, d, e)
	w.wantLeaked("with e", leaked, a, c, d, e)
	w.wantFindingsOnce("with e", false, map[string]int{"leaked": leaked}, a, c, d, e)
	n.allocate("10.244.0.100", "gone", true)
	w.wantLeaked("all but one", leaked-1, a, c, d, e)
}

// What a namespace was meant to have is only missing if the replica that serves the address says so.
func TestAnAddressThatAnotherReplicaServesIsNotMissing(t *testing.T) {
	w := &world{lab: newLab(t)}
	a, b := w.start("a", t.TempDir()), w.start("b", t.TempDir())
	w.wantDivided("two replicas", a, b)
	n := w.join("n0")
	const pods = 12
	var want []string
	for i := range uint32(pods) {
		n.pod(i+2, fmt.Sprintf("10.244.0.%d", i+2))
		meant := fmt.Sprintf("10.244.1.%d", i+2)
		ns := &pb.NamespaceRecord{Id: i + 2, Netns: fmt.Sprint(4_000_002 + i), Intended: []*pb.Intended{{Address: meant, Source: "cni-result"}}}
		now := time.Now()
		n.Update(func() {
			if i%2 == 0 { // its own network stack uses it
				n.Add(n.frame(i+2, i+2, meant), table.Claim{First: now, Last: now, Count: 1, Link: records.Port(i + 2)}, now)
			}
			n.Namespaces.Put(i+2, ns, now)
		})
		if i%2 == 1 {
			want = append(want, "intended-not-observed "+meant)
		}
	}
	slices.Sort(want)
	w.wantFindings("two replicas", want, a, b)
	c := w.start("c", t.TempDir())
	w.wantDivided("three replicas", a, b, c)
	w.wantFindings("three replicas", want, a, b, c)
	a.stop()
	w.wantDivided("without a", b, c)
	w.wantFindings("without a", want, b, c)
	w.wantFindingsNever("without a", "10.244.1.2", b, c)
}

// wantFindingsNever checks that no finding about an address was recorded. There are others.
func (w *world) wantFindingsNever(why, addr string, of ...*aggregated) {
	w.Helper()
	for _, a := range of {
		p, err := a.client.ListEvents(w.Context(), &pb.ListEventsRequest{Kind: pb.Event_FINDING})
		if err != nil || len(p.GetEvents()) == 0 {
			w.Errorf("%s at %s: got %v, %v, want some events", why, a.name, p, err)
		}
		for _, e := range p.GetEvents() {
			if e.GetFinding().GetAddress() == addr {
				w.Errorf("%s at %s: got %v, want no finding about %s", why, a.name, e, addr)
			}
		}
	}
}

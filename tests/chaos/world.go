// Package chaos has what a test of several replicas under faults needs: agents of nodes that do not exist,
// duplicates that begin and end, connections that can be cut, and a checker that compares what the replicas
// and their receivers say with what has happened.
//
// The agents are the real table and the real report streams of package agent; only what they report is
// invented. Processes and servers belong to the test.
package chaos

import (
	"context"
	"log/slog"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/ipwitness/ipwitness/agent/report"
	"github.com/ipwitness/ipwitness/agent/table"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// A Node is a node with an agent.
type Node struct {
	Name  string
	table *table.Table
	hello *pb.Hello

	mu sync.Mutex
	// last is the last record number of a namespace.
	last uint32
	// live are the addresses of churn that are assigned, by slot.
	live []bool
	next int
}

// crowd is the record number of the pod whose addresses come and go.
const crowd = table.OwnNamespace + 1

// NewNode returns the numbered node. addresses is the number of its addresses that come and go.
func NewNode(number int, name string, addresses int) *Node {
	n := &Node{
		Name: name, table: table.New(), last: crowd, live: make([]bool, addresses),
		hello: &pb.Hello{
			Node: name, BootId: "boot-" + name, Netns: strconv.Itoa(4_026_531_840 + number), Epoch: uint64(time.Now().UnixNano()), //nolint:gosec // after 1970
			Version: "v0.0.0-chaos", Kernel: "6.18.0",
		},
	}
	n.table.Update(func() {
		n.table.Namespaces.Put(table.OwnNamespace, &pb.NamespaceRecord{
			Id: table.OwnNamespace, Netns: n.hello.GetNetns(), Workload: &pb.Workload{Kind: pb.Workload_HOST, Name: name, Source: "node"},
		}, time.Now())
		n.table.SetStatus(&pb.StatusRecord{Wire: "off"})
	})
	n.add(crowd, &pb.Workload{Kind: pb.Workload_CONTAINER, Name: "crowd-" + name, Source: "cgroup"})
	return n
}

// add adds the namespace of a pod, its interface, and its addresses.
func (n *Node) add(record uint32, workload *pb.Workload, addrs ...netip.Addr) {
	now := time.Now()
	m := records.Veth(record, 4_026_600_000+int(record), workload)
	n.table.Update(func() {
		n.table.Namespaces.Put(record, m.GetNamespaces()[0], now)
		n.table.Links.Put(m.GetLinks()[0].GetName(), m.GetLinks()[0], now)
		for _, i := range m.GetInterfaces() {
			n.table.Interfaces.Put(table.InterfaceKey{Namespace: i.GetNamespace(), Index: int32(i.GetIndex())}, i, now) //nolint:gosec // small
		}
		for _, a := range addrs {
			n.assign(record, a, now)
		}
	})
}

// assign assigns an address to a pod. The caller has the table.
func (n *Node) assign(record uint32, addr netip.Addr, now time.Time) {
	n.table.Add(claimKey(record, addr), table.Claim{PrefixLength: 32, Assigned: now, First: now, Last: now, Count: 1}, now)
}

func claimKey(record uint32, addr netip.Addr) table.ClaimKey {
	return table.ClaimKey{Address: addr, Kind: pb.Evidence_ASSIGNED, At: table.InterfaceKey{Namespace: record, Index: 2}}
}

// AddPod adds a pod with an address, and returns its record number.
func (n *Node) AddPod(name string, addr netip.Addr) (record uint32) {
	n.mu.Lock()
	n.last++
	record = n.last
	n.mu.Unlock()
	n.add(record, &pb.Workload{Kind: pb.Workload_POD, Namespace: Namespace, Name: name, Uid: UID(name), Source: "cni-result"}, addr)
	return record
}

// Namespace is the namespace of all pods.
const Namespace = "default"

// UID returns the UID of a pod.
func UID(pod string) string { return "uid-" + pod }

// RemovePod removes a pod.
func (n *Node) RemovePod(record uint32, addr netip.Addr) {
	now := time.Now()
	n.table.Update(func() {
		n.table.RemoveClaim(claimKey(record, addr), now)
		n.table.Interfaces.Remove(table.InterfaceKey{Namespace: record, Index: 2}, now)
		n.table.Interfaces.Remove(table.InterfaceKey{Namespace: table.OwnNamespace, Index: int32(100 + record)}, now) //nolint:gosec // small
		n.table.Links.Remove(records.Port(record), now)
		n.table.RemoveNamespace(record, now)
	})
}

// churn lets some addresses come or go, and returns how many.
func (n *Node) churn(number, some int) int {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.table.Update(func() {
		for range some {
			slot := n.next
			n.next = (slot + 1) % len(n.live)
			addr := netip.AddrFrom4([4]byte{10, byte(100 + number), byte(slot / 250), byte(1 + slot%250)}) //nolint:gosec // at most 100 nodes
			if n.live[slot] = !n.live[slot]; n.live[slot] {
				n.assign(crowd, addr, now)
			} else {
				n.table.RemoveClaim(claimKey(crowd, addr), now)
			}
		}
	})
	return some
}

// noBeliefs answers that neighbour tables have no entry for an address.
func noBeliefs(netip.Addr) *pb.BeliefAnswer { return &pb.BeliefAnswer{} }

// Report reports to the replicas, which Dial connects to, until ctx ends.
func (n *Node) Report(ctx context.Context, log *slog.Logger, replicas []string, dial func(replica string) (report.Conn, error)) error {
	contests := report.NewContests(log, func(netip.Addr, bool) {})
	instances := report.NewInstances()
	return report.NewGroup(log, report.Target{
		Name: "replicas",
		Find: func(context.Context) ([]string, error) { return replicas, nil },
		Dial: dial,
	}, func(log *slog.Logger, conn grpc.ClientConnInterface) *report.Reporter {
		return report.New(log, n.table, n.hello, conn, func([]netip.Addr) bool { return true }, func(netip.Addr, string) {}, noBeliefs, contests, instances)
	}).Run(ctx)
}

// Churn makes addresses of nodes come and go until ctx ends, at a rate in changes per second, or less while
// hold returns true. It counts the changes.
func Churn(ctx context.Context, nodes []*Node, rate int, hold func() bool, count *atomic.Int64) {
	const tick = 20 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	each := max(1, rate*int(tick)/int(time.Second)/len(nodes))
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if hold() {
			continue
		}
		for i, n := range nodes {
			count.Add(int64(n.churn(i, each)))
		}
	}
}

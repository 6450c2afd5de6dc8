package journal

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// benchAddresses is the number of addresses in BenchmarkJournal.
const benchAddresses = 110_000

// freshPod returns a pod with random identifiers, as Kubernetes gives them.
func freshPod(random *rand.Rand, a netip.Addr, now time.Time) *pb.Owner {
	node := random.IntN(1000)
	return &pb.Owner{
		Address: a.String(), Scope: &pb.Scope{Kind: pb.Scope_NETWORK, Name: "pods"}, Node: fmt.Sprintf("ip-10-1-%d-%d.eu-central-1.compute.internal", node/250, node%250),
		Interface: "eth0", HostInterface: fmt.Sprintf("veth%08x", random.Uint32()), Netns: fmt.Sprint(4026532000 + random.IntN(10000)), State: pb.Owner_LIVE,
		Mac:       fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", a.As4()[0], a.As4()[1], a.As4()[2], a.As4()[3]),
		FirstSeen: timestamppb.New(now), AssignedAt: timestamppb.New(now),
		Workload: &pb.Workload{
			Kind: pb.Workload_POD, Namespace: fmt.Sprintf("team-%d", random.IntN(50)), Name: fmt.Sprintf("service-%d-%08x-%05x", random.IntN(200), random.Uint32(), random.IntN(1<<20)),
			Uid:         fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", random.Uint32(), random.IntN(1<<16), random.IntN(1<<12), random.IntN(1<<12), random.Uint64N(1<<48)),
			ContainerId: fmt.Sprintf("%016x%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64()), Source: "cri",
			Controller: &pb.Controller{Kind: "Deployment", Name: fmt.Sprintf("service-%d", random.IntN(200))}, Phase: "Running",
		},
	}
}

// BenchmarkJournal measures the disk space of a transition, and how long answers take, with 110,000
// addresses of which one in two records ends an owner and the next one begins another: for as many
// transitions as b.N, at 20 a second.
func BenchmarkJournal(b *testing.B) {
	j := newBench(b, b.TempDir())
	random := rand.New(rand.NewPCG(1, 2))
	owners := make([]*pb.Owner, benchAddresses)
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(1 + i>>16), byte(i >> 8), byte(i)}) }
	first := make(map[string]*pb.Owner, len(owners))
	for i := range owners {
		owners[i] = freshPod(random, addr(i), j.Now())
		first[fmt.Sprint(i)] = owners[i]
	}
	j.state(first)
	began := time.Now()
	b.ResetTimer()
	for n := 0; n < b.N; n += 2 {
		i := random.IntN(len(owners))
		j.changed(pb.Watch_REMOVED, fmt.Sprint(i), owners[i])
		j.add(50 * time.Millisecond)
		owners[i] = freshPod(random, addr(i), j.Now())
		j.changed(pb.Watch_ADDED, fmt.Sprint(i), owners[i])
		j.add(50 * time.Millisecond)
	}
	j.flush()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "transitions/s")
	j.must(j.store.db.Flush())
	j.must(j.store.db.Compact(b.Context(), tablePrefix(0, 0), tablePrefix(1<<30, 0), true))
	b.ReportMetric(float64(j.Stats().Bytes), "disk-bytes")
	var took []time.Duration
	for range 1000 {
		a := addr(random.IntN(len(owners)))
		start := time.Now()
		n := 0
		j.must(j.Events(b.Context(), &Query{Span: ipam.Range{First: a, Last: a}}, func(*pb.Event) bool { n++; return true }))
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[500].Microseconds())/1e3, "history-p50-ms")
	b.ReportMetric(float64(took[990].Microseconds())/1e3, "history-p99-ms")
	start, n := time.Now(), 0
	j.must(j.At(b.Context(), pb.Event_OWNER, j.Now(), ipam.Range{}, Position{}, func(*pb.Event, Position) bool { n++; return n < 100_000 }))
	b.ReportMetric(float64(time.Since(start).Milliseconds()), "at-100k-ms")
}

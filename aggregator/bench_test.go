package aggregator

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// filledStore returns a core with the given number of owners, 110 on each node, as pods with ptp
// veths. The last node is the one that a benchmark changes.
func filledStore(tb testing.TB, owners int) (*core, *source) {
	tb.Helper()
	s := newTestCore(tb)
	return s, fillStore(tb, s, owners)
}

// fillStore fills a store as filledStore does and returns the session of its last node.
func fillStore(tb testing.TB, s *core, owners int) (r *source) {
	tb.Helper()
	for n := 0; n*perNode < owners; n++ {
		parts := make([]*pb.ReportRequest, 0, perNode)
		for i := range min(perNode, owners-n*perNode) {
			var a [4]byte
			binary.BigEndian.PutUint32(a[:], 10<<24|uint32(n*perNode+i))
			p := podVeth(uint32(i+2), fmt.Sprintf("workload-%d-%d", n, i), "10.0.0.1")
			p.Claims[0].Address = a[:]
			parts = append(parts, p)
		}
		r = s.filled(tb, hello(fmt.Sprintf("node-%d", n), 1), parts...)
	}
	return r
}

var sizes = []struct {
	name   string
	owners int
}{{"10k", 10_000}, {"1M", 1_000_000}}

// BenchmarkChange measures the end and the new start of a claim: two changes.
func BenchmarkChange(b *testing.B) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) {
			_, r := filledStore(b, size.owners)
			come, end := assigned(2, "10.200.0.1"), assigned(2, "10.200.0.1")
			end.Gone = true
			coming, ending := &pb.ReportRequest{Claims: []*pb.ClaimRecord{come}}, &pb.ReportRequest{Claims: []*pb.ClaimRecord{end}}
			runtime.GC()
			b.ReportAllocs()
			for b.Loop() {
				if err := r.send(coming); err != nil {
					b.Fatal(err)
				}
				if err := r.send(ending); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRefresh measures a repeated frame.
func BenchmarkRefresh(b *testing.B) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) {
			_, r := filledStore(b, size.owners)
			m := &pb.ReportRequest{Claims: []*pb.ClaimRecord{announced(2, "10.200.0.1", records.MAC(2))}}
			runtime.GC()
			b.ReportAllocs()
			for b.Loop() {
				if err := r.send(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDuplicate measures a duplicate that comes and goes: the conflict is suspected and
// resolved.
func BenchmarkDuplicate(b *testing.B) {
	_, r := filledStore(b, 10_000)
	m := snapshot(nil, podVeth(2, "a", addr), podVeth(3, "b", "10.244.0.6"))
	if err := r.send(m); err != nil {
		b.Fatal(err)
	}
	come, end := assigned(3, addr), assigned(3, addr)
	end.Gone = true
	coming, ending := &pb.ReportRequest{Claims: []*pb.ClaimRecord{come}}, &pb.ReportRequest{Claims: []*pb.ClaimRecord{end}}
	b.ReportAllocs()
	for b.Loop() {
		if r.send(coming) != nil || r.send(ending) != nil {
			b.Fatal("delta failed")
		}
	}
}

// BenchmarkDuplicateToLine measures from the sending of a claim until an HTTP client of
// conflicts:watch has read the line.
func BenchmarkDuplicateToLine(b *testing.B) {
	l := newLab(b, Config{})
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", "10.244.0.6"))).sync()
	r, err := http.Get(l.serve() + "/v1/conflicts:watch")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	lines := bufio.NewScanner(r.Body)
	lines.Scan()
	end := assigned(3, addr)
	end.Gone = true
	for b.Loop() {
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(3, addr)}})
		lines.Scan()
		b.StopTimer()
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{end}})
		lines.Scan()
		a.sync()
		b.StartTimer()
	}
}

// realPod returns a pod with names of the length that Kubernetes generates. If wire is set, its
// port has also shown one frame.
func realPod(node, number int, wire bool) *pb.ReportRequest {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 10<<24|uint32(node)<<8|uint32(number))
	hash := sha256.Sum256(a[:])
	id := hex.EncodeToString(hash[:])
	m := podVeth(uint32(number+2), "checkout-7d9f8b6c5d-"+id[:5], "10.0.0.1")
	m.Claims[0].Address, m.Claims[0].Network = a[:], "cbr0"
	w := m.Namespaces[0].Workload
	w.ContainerId = id
	w.Uid = fmt.Sprintf("%s-%s-%s-%s-%s", id[:8], id[8:12], id[12:16], id[16:20], id[20:32])
	m.Namespaces[0].Netns = strconv.Itoa(4026532000 + number)
	port := "veth" + id[:8]
	m.Links[0].Name = port
	for i, rec := range m.Interfaces {
		rec.Link, rec.Mac = port, slices.Concat([]byte{byte(2 + 4*i)}, hash[i:i+5])
	}
	m.Interfaces[0].HostInterface, m.Interfaces[1].Name = port, port
	if wire {
		c := announced(uint32(number+2), "10.0.0.1", m.Interfaces[0].Mac)
		c.Address, c.Link = a[:], port
		m.Claims = append(m.Claims, c)
	}
	return m
}

// perNode is the number of owners of a node in the budget.
const perNode = 110

// realSnapshot returns the encoded snapshot of a node.
func realSnapshot(tb testing.TB, node int, wire bool) []byte {
	tb.Helper()
	h := hello(fmt.Sprintf("node-%d", node), 1)
	h.BootId = fmt.Sprintf("%08x-9f64-4e6b-8d0c-0b7f5a1c2d3e", node)
	parts := make([]*pb.ReportRequest, perNode)
	for i := range parts {
		parts[i] = realPod(node, i, wire)
	}
	m := snapshot(h, parts...)
	m.Sequence = 1
	raw, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// report processes the snapshot of a node as if it had been received.
func (c *core) report(tb testing.TB, raw []byte) {
	tb.Helper()
	m := new(pb.ReportRequest)
	if err := proto.Unmarshal(raw, m); err != nil {
		tb.Fatal(err)
	}
	if err := c.source().send(m); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkMemory measures the heap for each owner that is known from a kernel, and for each that
// is also seen on the wire, and the time to receive all of them, twice.
func BenchmarkMemory(b *testing.B) {
	for _, wire := range []bool{false, true} {
		b.Run(fmt.Sprintf("wire=%t", wire), func(b *testing.B) {
			const nodes = 1000
			snapshots := make([][]byte, nodes)
			for n := range snapshots {
				snapshots[n] = realSnapshot(b, n, wire)
			}
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				s := newTestCore(b)
				for _, name := range []string{"first", "again"} {
					start := time.Now()
					for _, raw := range snapshots {
						s.report(b, raw)
					}
					b.ReportMetric(float64(time.Since(start).Nanoseconds())/(nodes*perNode), name+"-ns/owner")
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(nodes*perNode), "bytes/owner")
				b.ReportMetric(float64(after.HeapObjects-before.HeapObjects)/(nodes*perNode), "objects/owner")
				runtime.KeepAlive(s)
			}
		})
	}
}

// worked returns how much of the processors' time the process has taken.
func worked() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot happen
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBudget measures the cluster of the budget, with the garbage collector settings of the
// command: the peak of the process's memory without connections, and the time to receive all
// owners. It reports both elapsed time and CPU time, because the latter does not depend on other
// load.
func BenchmarkBudget(b *testing.B) {
	const nodes = 5000
	held := func() float64 {
		samples := []runtimemetrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
		runtimemetrics.Read(samples)
		return float64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
	}
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	for b.Loop() {
		debug.FreeOSMemory()
		before, most := held(), 0.0
		s := newTestCore(b)
		for _, name := range []string{"first", "again"} {
			var took, cpu time.Duration
			for n := range nodes {
				raw := realSnapshot(b, n, true)
				start, idle := time.Now(), worked()
				s.report(b, raw)
				took, cpu = took+time.Since(start), cpu+worked()-idle
				most = max(most, held())
			}
			b.ReportMetric(took.Seconds(), name+"-s")
			b.ReportMetric(cpu.Seconds(), name+"-cpu-s")
		}
		b.ReportMetric((most-before)/(nodes*perNode), "held-bytes/owner")
		runtime.KeepAlive(s)
	}
}

// BenchmarkKubernetes measures a burst of updates from the Kubernetes API about 1,000 nodes: their
// pod ranges, a change of the API's state, and one new node.
func BenchmarkKubernetes(b *testing.B) {
	const nodes = 1000
	s := newTestCore(b)
	networks := make([]netip.Prefix, nodes)
	for n := range nodes {
		s.report(b, realSnapshot(b, n, true))
		networks[n] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0}), 24)
	}
	for name, c := range map[string]kube.Changes{
		"ranges": {Networks: networks}, "state": {State: true}, "node": {Nodes: []string{"node-7"}},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s.kubernetesChanged(c)
			}
		})
	}
}

// many is the number of owners in the benchmarks of lists and watches.
const many = 1_100_000

// BenchmarkPage measures a page of 500 owners at any place in the list: its creation, and its
// reception by a REST client, also with filters that match few owners.
func BenchmarkPage(b *testing.B) {
	l := newLab(b, Config{})
	fillStore(b, l.core, many)
	base := l.serve() + "/v1/owners?page_size=500"
	runtime.GC()
	after := func(i int) string {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 10<<24|uint32(i*7919%(many-500)))
		return base64.RawURLEncoding.EncodeToString([]byte(netip.AddrFrom4(a).String() + " "))
	}
	b.Run("made", func(b *testing.B) {
		b.ReportAllocs()
		idle := worked()
		defer func() { b.ReportMetric((worked()-idle).Seconds()*1000/float64(b.N), "cpu-ms/page") }()
		for i := 0; b.Loop(); i++ {
			page := l.core.page(b, &pb.ListOwnersRequest{PageSize: 500, PageToken: after(i)})
			if len(page.GetOwners()) != 500 || page.GetNextPageToken() == "" {
				b.Fatalf("got %d owners", len(page.GetOwners()))
			}
		}
	})
	for _, query := range []string{"", "&cidr=10.8.0.0/16", "&node=node-7", "&namespace=nobody", "&state=STALE"} {
		b.Run("REST"+query, func(b *testing.B) {
			idle := worked()
			defer func() { b.ReportMetric((worked()-idle).Seconds()*1000/float64(b.N), "cpu-ms/page") }()
			for i := 0; b.Loop(); i++ {
				token := ""
				if query == "" {
					token = "&page_token=" + after(i)
				}
				r, err := http.Get(base + query + token)
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.Copy(io.Discard, r.Body)
				if err != nil || r.StatusCode != http.StatusOK {
					b.Fatalf("got %s and %v", r.Status, err)
				}
				b.ReportMetric(float64(n), "bytes")
				_ = r.Body.Close()
			}
		})
	}
}

// BenchmarkWatch measures a watch of all owners by gRPC and by REST: the time to the first line and
// to the last one, and the growth of the heap until then.
func BenchmarkWatch(b *testing.B) {
	l := newLab(b, Config{})
	fillStore(b, l.core, many)
	url := l.serve() + "/v1/owners:watch"
	live := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	report := func(b *testing.B, next func() (last bool)) {
		before := live()
		began, idle := time.Now(), worked()
		next()
		b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "first-ms")
		var looking, looked time.Duration
		for n := 1; !next(); n++ {
			if n == many/2 {
				at, cpu := time.Now(), worked()
				b.ReportMetric(live()-before, "grown-MiB")
				looking, looked = time.Since(at), worked()-cpu
			}
		}
		b.ReportMetric((time.Since(began) - looking).Seconds(), "all-s")
		b.ReportMetric((worked() - idle - looked).Seconds(), "all-cpu-s")
	}
	b.Run("made", func(b *testing.B) {
		for b.Loop() {
			ctx, cancel := context.WithCancel(b.Context())
			messages := make(chan *pb.WatchOwnersResponse, 64)
			stream := &streamOf[pb.WatchOwnersResponse]{ctx: ctx, send: func(m *pb.WatchOwnersResponse) error { messages <- m; return nil }}
			done := make(chan error, 1)
			go func() { done <- l.core.witness.WatchOwners(&pb.WatchOwnersRequest{}, stream) }()
			report(b, func() (last bool) { return (<-messages).GetType() == pb.Watch_BOOKMARK })
			cancel()
			if err := <-done; status.Code(err) != codes.Canceled {
				b.Fatal(err)
			}
		}
	})
	b.Run("gRPC", func(b *testing.B) {
		for b.Loop() {
			ctx, cancel := context.WithCancel(l.ctx)
			var stream pb.WitnessService_WatchOwnersClient
			report(b, func() bool {
				var err error
				if stream == nil {
					if stream, err = l.client.WatchOwners(ctx, &pb.WatchOwnersRequest{}); err != nil {
						b.Fatal(err)
					}
				}
				m, err := stream.Recv()
				if err != nil {
					b.Fatal(err)
				}
				return m.GetType() == pb.Watch_BOOKMARK
			})
			cancel()
		}
	})
	b.Run("REST", func(b *testing.B) {
		for b.Loop() {
			var lines *bufio.Scanner
			var body io.Closer
			report(b, func() bool {
				if lines == nil {
					r, err := http.Get(url)
					if err != nil {
						b.Fatal(err)
					}
					lines, body = bufio.NewScanner(r.Body), r.Body
				}
				if !lines.Scan() {
					b.Fatal(lines.Err())
				}
				return bytes.Contains(lines.Bytes(), []byte(`"BOOKMARK"`))
			})
			_ = body.Close()
		}
	})
}

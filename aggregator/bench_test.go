package aggregator

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// filledStore has as many owners as asked, 110 on a node, as pods on ptp veths.
// The last node is the one that a benchmark changes.
func filledStore(tb testing.TB, owners int) (*store, *session) {
	tb.Helper()
	s := newStore(policyForTests, slog.New(slog.DiscardHandler), newMetrics())
	const perNode = 110
	var r *session
	for n := 0; n*perNode < owners; n++ {
		r = newSession(s)
		if err := s.connect(r, hello(fmt.Sprintf("node-%d", n), 1)); err != nil {
			tb.Fatal(err)
		}
		parts := make([]*pb.ReportRequest, 0, perNode)
		for i := range min(perNode, owners-n*perNode) {
			var a [4]byte
			binary.BigEndian.PutUint32(a[:], 10<<24|uint32(n*perNode+i))
			p := podVeth(uint32(i+2), fmt.Sprintf("workload-%d-%d", n, i), "10.0.0.1")
			p.Claims[0].Address = a[:]
			parts = append(parts, p)
		}
		if err := s.snapshot(r, []*pb.ReportRequest{snapshot(nil, parts...)}); err != nil {
			tb.Fatal(err)
		}
	}
	return s, r
}

var sizes = []struct {
	name   string
	owners int
}{{"10k", 10_000}, {"1M", 1_000_000}}

// BenchmarkChange is one claim that ends and begins again: two changes.
func BenchmarkChange(b *testing.B) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) {
			s, r := filledStore(b, size.owners)
			come, end := assigned(2, "10.200.0.1"), assigned(2, "10.200.0.1")
			end.Gone = true
			coming, ending := &pb.ReportRequest{Claims: []*pb.ClaimRecord{come}}, &pb.ReportRequest{Claims: []*pb.ClaimRecord{end}}
			runtime.GC()
			b.ReportAllocs()
			for b.Loop() {
				if err := s.delta(r, coming, 0); err != nil {
					b.Fatal(err)
				}
				if err := s.delta(r, ending, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRefresh is a frame that is seen again.
func BenchmarkRefresh(b *testing.B) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) {
			s, r := filledStore(b, size.owners)
			m := &pb.ReportRequest{Claims: []*pb.ClaimRecord{announced(2, "10.200.0.1", podMAC(2))}}
			runtime.GC()
			b.ReportAllocs()
			for b.Loop() {
				if err := s.delta(r, m, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDuplicate is a duplicate that comes and goes: a conflict suspected
// and resolved.
func BenchmarkDuplicate(b *testing.B) {
	s, r := filledStore(b, 10_000)
	m := snapshot(nil, podVeth(2, "a", addr), podVeth(3, "b", "10.244.0.6"))
	if err := s.snapshot(r, []*pb.ReportRequest{m}); err != nil {
		b.Fatal(err)
	}
	come, end := assigned(3, addr), assigned(3, addr)
	end.Gone = true
	coming, ending := &pb.ReportRequest{Claims: []*pb.ClaimRecord{come}}, &pb.ReportRequest{Claims: []*pb.ClaimRecord{end}}
	b.ReportAllocs()
	for b.Loop() {
		if s.delta(r, coming, 0) != nil || s.delta(r, ending, 0) != nil {
			b.Fatal("delta failed")
		}
	}
}

// BenchmarkDuplicateToLine is from the sending of a claim to the line that an
// HTTP client of conflicts:watch reads.
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

// BenchmarkMemory is how much heap one owner takes.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s, _ := filledStore(b, 200_000)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/200_000, "bytes/owner")
		runtime.KeepAlive(s)
	}
}

// BenchmarkListPage is one page of a thousand out of a million owners.
func BenchmarkListPage(b *testing.B) {
	s, _ := filledStore(b, 1_000_000)
	runtime.GC()
	b.ReportAllocs()
	for b.Loop() {
		if page, _ := s.listOwners(&filter{}, place{}, defaultPage); len(page) != defaultPage {
			b.Fatalf("got %d owners", len(page))
		}
	}
}

package stream

import (
	"fmt"
	"runtime"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A page of 500 owners of a cluster with 100,000, and the owners of one address, of a fleet with 10 clusters.
func BenchmarkListsOfAFleet(b *testing.B) {
	const clusters, owners = 10, 100_000
	var before, after runtime.MemStats
	l := newLab(b)
	for i := range clusters {
		addrs := make([]string, 0, owners)
		for n := range owners / (1 + 9*min(i, 1)) { // the others have a tenth
			addrs = append(addrs, fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255))
		}
		l.in(fmt.Sprintf("c%d", i)).leads(addrs...)
	}
	runtime.GC()
	runtime.ReadMemStats(&before)
	f := newFleet(b, l.url)
	for i := range clusters {
		f.awaitState(fmt.Sprintf("c%d", i), pb.Cluster_LIVE)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.Run("page", func(b *testing.B) {
		token := ""
		for b.Loop() {
			page, err := f.ListOwners(b.Context(), &pb.ListOwnersRequest{Cluster: []string{"c0"}, PageSize: 500, PageToken: token})
			if err != nil || len(page.GetOwners()) != 500 && page.GetNextPageToken() != "" {
				b.Fatal(len(page.GetOwners()), err)
			}
			token = page.GetNextPageToken()
		}
	})
	b.Run("address", func(b *testing.B) {
		for b.Loop() {
			page, err := f.ListOwners(b.Context(), &pb.ListOwnersRequest{Address: "10.0.5.7"})
			if err != nil || len(page.GetOwners()) != clusters {
				b.Fatal(page, err)
			}
		}
		b.ReportMetric(float64(after.HeapInuse-before.HeapInuse)/clusters, "heapB/cluster")
	})
}

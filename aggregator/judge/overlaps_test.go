package judge

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// BenchmarkCompareRanges compares ranges while pods come and go on each of 5,000 nodes.
func BenchmarkCompareRanges(b *testing.B) {
	w := newWorld(b, nil)
	var nodes []*facts.Node
	for i := range 5000 {
		third, second := i%256, 64+i/256
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(second), byte(third), 0}), 24)
		r := ipam.RangeOf(prefix)
		parts := []*pb.ReportRequest{{Pools: []*pb.PoolRecord{{
			Ipam: hostlocal.Name, Name: "/var/lib/cni/networks/kindnet", Network: "kindnet", State: pb.Pool_KNOWN, Plugin: "ptp", Routed: true,
			Ranges: []*pb.AddressRange{{First: r.First.Next().AsSlice(), Last: r.Last.Prev().AsSlice()}},
		}}}}
		for k := range 20 {
			parts = append(parts, pod(uint32(k+2), "a"+strconv.Itoa(k), netip.AddrFrom4([4]byte{10, byte(second), byte(third), byte(k + 2)}).String()))
		}
		n, _ := w.node("n"+strconv.Itoa(i), parts...)
		nodes = append(nodes, n)
	}
	for b.Loop() {
		for _, n := range nodes {
			w.RangesChanged(n)
		}
		w.at = 1
		w.Overlaps.run()
	}
}

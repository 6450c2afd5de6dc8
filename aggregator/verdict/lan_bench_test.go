package verdict_test

import (
	"fmt"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// BenchmarkLAN judges the address of a gateway that many nodes of one LAN have seen. The time must
// grow linearly with the number of nodes.
func BenchmarkLAN(b *testing.B) {
	for _, nodes := range []int{100, 1000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			w := newWorld("192.168.1.1")
			d := &verdict.Domain{}
			for n := range nodes {
				i := w.Uplink(fmt.Sprint("n", n))
				i.Link.Domain, i.Link.Proven, i.Link.BothWays = d, d, d
				if n == 0 {
					d.Node, d.Name = i.Link.Node, i.Link.Name
				}
				w.Wire(i, "\x00\x11\x22\x33\x44\x55").Kind = verdict.Answered
				w.Wire(i, "\x00\x11\x22\x33\x44\x55").Kind = verdict.Used
			}
			w.Interfaces = nil // no node has the hardware address; looking it up is not part of the verdict
			in := w.Case()
			b.ReportAllocs()
			for b.Loop() {
				w.Policy.Judge(in)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*nodes), "ns/node")
		})
	}
}

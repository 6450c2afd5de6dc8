package cilium

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

// silent is a publisher that ignores everything.
type silent struct{ ipam.Publisher }

func (silent) Put(ipam.Pool, string, bool)             {}
func (silent) Allocate(string, ipam.Allocation, int64) {}
func (silent) Release(string, ipam.Allocation)         {}
func (silent) Use()                                    {}

// BenchmarkNodeComes adds a node to a cluster with 5,000 nodes and 100,000 endpoints.
func BenchmarkNodeComes(b *testing.B) {
	const nodes, endpoints = 5000, 100_000
	r := newReader(silent{})
	r.endpoints.Records = make(map[ipam.Key]*endpoint)
	ip := func(net, n, host int) netip.Addr {
		return netip.AddrFrom4([4]byte{byte(net), byte(n / 256), byte(n), byte(host)})
	}
	enter := func(n int) {
		r.nodes.Set(ipam.Key{Name: "n" + strconv.Itoa(n)}, &node{
			prefixes: []netip.Prefix{netip.PrefixFrom(ip(10, n, 0), 24)}, internal: []netip.Addr{ip(11, n, 1)},
		})
	}
	for n := range nodes {
		enter(n)
	}
	for i := range endpoints {
		r.endpoints.Records[ipam.Key{Namespace: "default", Name: strconv.Itoa(i)}] = &endpoint{addrs: []netip.Addr{ip(10, i%nodes, 1+i/nodes)}, node: ip(11, i%nodes, 1)}
	}
	r.settle()
	more := nodes
	for b.Loop() {
		enter(more)
		r.settle()
		more++
	}
}

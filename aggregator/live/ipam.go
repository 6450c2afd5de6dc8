package live

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/ipam"
)

// maxPoolSeries is the maximum number of pools with their own series.
const maxPoolSeries = 1000

// ipamMetrics are the metrics about IPAM.
type ipamMetrics struct {
	pools, allocations, size, allocated, leaked *prometheus.Desc
}

func newIPAMMetrics() ipamMetrics {
	of := []string{"ipam", "node", "pool", "network"}
	capped := fmt.Sprintf("One series for each pool, at most %d.", maxPoolSeries)
	return ipamMetrics{
		pools:       prometheus.NewDesc("ipwitness_ipam_pools", "Audited address pools, by the state of their records.", []string{"ipam", "state"}, nil),
		allocations: prometheus.NewDesc("ipwitness_ipam_allocations", "Addresses that IPAM has allocated.", []string{"ipam"}, nil),
		size:        prometheus.NewDesc("ipwitness_ipam_pool_size", "Number of addresses in a pool. "+capped, of, nil),
		allocated:   prometheus.NewDesc("ipwitness_ipam_pool_allocated", "Number of allocated addresses of a pool. "+capped, of, nil),
		leaked:      prometheus.NewDesc("ipwitness_ipam_pool_leaked", "Number of leaked addresses of a pool, which are allocated but have no holder. "+capped, of, nil),
	}
}

func (m *ipamMetrics) describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.pools, m.allocations, m.size, m.allocated, m.leaked} {
		out <- d
	}
}

// poolStates are the states of a pool in metrics.
var poolStates = map[ipam.State]string{
	ipam.Known: "known", ipam.Reading: "reading", ipam.Missing: "missing",
	ipam.Unreadable: "unreadable", ipam.Stale: "stale",
}

// filled returns the usage of a pool as one of a few steps that rarely change: less than half,
// half, nearly full (90 %), and full.
func filled(size, allocated float64) (step int) {
	for _, part := range []float64{0.5, 0.9, 1} {
		if size > 0 && allocated >= part*size {
			step++
		}
	}
	return step
}

// collect sends the current metrics.
func (m *ipamMetrics) collect(known *facts.Facts, found *judge.Pools, out chan<- prometheus.Metric) {
	type kind struct{ ipam, state string }
	type one struct {
		at                      judge.PoolPlace
		network                 string
		size, allocated, leaked float64
	}
	kinds, allocations := make(map[kind]int), make(map[string]int)
	var series []one
	known.RLock()
	for p := range known.Pools {
		kinds[kind{p.Rec.IPAM, poolStates[p.Rec.State]}]++
		allocations[p.Rec.IPAM] += p.Allocated.Of(audit.Both)
		use := found.Use(p)
		series = append(series, one{judge.PoolPlaceOf(p), p.Rec.Network, float64(use.Size), float64(use.Allocated), float64(use.Leaked)})
	}
	known.RUnlock()
	// The order makes each scrape return the same pools. The fullest ones come first, because they
	// are the ones that alerts need.
	slices.SortFunc(series, func(a, b one) int {
		return cmp.Or(cmp.Compare(filled(b.size, b.allocated), filled(a.size, a.allocated)), a.at.Compare(b.at))
	})
	series = series[:min(len(series), maxPoolSeries)]
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for k, n := range kinds {
		gauge(m.pools, float64(n), k.ipam, k.state)
	}
	for _, ipam := range slices.Sorted(maps.Keys(allocations)) {
		gauge(m.allocations, float64(allocations[ipam]), ipam)
	}
	for _, one := range series {
		labels := []string{one.at.IPAM, one.at.Node, one.at.Name, one.network}
		if one.size > 0 {
			gauge(m.size, one.size, labels...)
		}
		gauge(m.allocated, one.allocated, labels...)
		gauge(m.leaked, one.leaked, labels...)
	}
}

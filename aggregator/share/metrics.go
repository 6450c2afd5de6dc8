package share

import "github.com/prometheus/client_golang/prometheus"

var (
	descPartitions = prometheus.NewDesc("ipwitness_share_partitions",
		"Partitions of the addresses, of 256, by state: served are those that this replica serves, complete those of which it has all claims, and missing those that no replica serves completely. Replicas that do not share the addresses have no such series.",
		[]string{"state"}, nil)
	descReplicas = prometheus.NewDesc("ipwitness_share_replicas", "Replicas that share the addresses, including this one.", nil, nil)
	descUp       = prometheus.NewDesc("ipwitness_share_up", "1 while the replicas can reach each other on NATS.", nil, nil)
	descWaiting  = prometheus.NewDesc("ipwitness_share_waiting_bytes", "Bytes that wait to be published to the log of the replicas.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Share) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descPartitions, descReplicas, descUp, descWaiting} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Share) Collect(ch chan<- prometheus.Metric) {
	state, _ := s.State()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(descPartitions, float64(state.Served.Count()), "served")
	gauge(descPartitions, float64(state.Complete.Count()), "complete")
	gauge(descPartitions, float64(state.Missing()), "missing")
	gauge(descReplicas, float64(len(state.Others)+1))
	up := 0.0
	if state.Failing == nil {
		up = 1
	}
	gauge(descUp, up)
	s.mail.mu.Lock()
	waiting := s.mail.bytes
	s.mail.mu.Unlock()
	gauge(descWaiting, float64(waiting))
}

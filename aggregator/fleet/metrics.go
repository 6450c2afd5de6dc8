package fleet

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// metrics are the metrics of a fleet. Values are read at scrape time.
type metrics struct {
	fleet                         *Fleet
	clusters, lag, messages, gaps *prometheus.Desc
	bytes, conflicts              *prometheus.Desc
}

// Metrics returns the metrics of the fleet.
func (f *Fleet) Metrics() prometheus.Collector {
	of := []string{"cluster"}
	return &metrics{
		fleet: f,
		clusters: prometheus.NewDesc("ipwitness_fleet_clusters",
			"Clusters of the fleet, by state: live, disconnected (no message has arrived for 30 s), or waiting (messages are missing, so the complete state is awaited).", []string{"state"}, nil),
		lag:       prometheus.NewDesc("ipwitness_fleet_lag_seconds", "Age of the last message of a cluster. A cluster publishes at least every 10 s.", of, nil),
		messages:  prometheus.NewDesc("ipwitness_fleet_messages_total", "Messages of a cluster that were received.", of, nil),
		gaps:      prometheus.NewDesc("ipwitness_fleet_gaps_total", "Gaps in the numbers of the messages of a cluster. After a gap, the complete state is awaited.", of, nil),
		bytes:     prometheus.NewDesc("ipwitness_fleet_journal_bytes", "Size of the records of a cluster.", of, nil),
		conflicts: prometheus.NewDesc("ipwitness_fleet_conflicts", "Active conflicts between clusters, in the networks that they share (--network).", []string{"state"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.clusters, m.lag, m.messages, m.gaps, m.bytes, m.conflicts} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	all, _, err := m.fleet.named(nil)
	if err != nil {
		return // which cannot be: no name is given
	}
	now := m.fleet.Clock()
	states := map[pb.Cluster_State]int{pb.Cluster_LIVE: 0, pb.Cluster_DISCONNECTED: 0, pb.Cluster_WAITING: 0}
	for _, c := range all {
		states[c.lives(now)]++
		bytes := c.journal.Stats().Bytes
		c.mu.Lock()
		heard, messages, gaps := c.at.Heard, c.messages, c.gaps
		c.mu.Unlock()
		if !heard.IsZero() {
			to <- prometheus.MustNewConstMetric(m.lag, prometheus.GaugeValue, max(0, now.Sub(heard).Seconds()), c.name)
		}
		to <- prometheus.MustNewConstMetric(m.messages, prometheus.CounterValue, float64(messages), c.name)
		to <- prometheus.MustNewConstMetric(m.gaps, prometheus.CounterValue, float64(gaps), c.name)
		to <- prometheus.MustNewConstMetric(m.bytes, prometheus.GaugeValue, float64(bytes), c.name)
	}
	if b := m.fleet.between; b != nil {
		states := map[pb.Conflict_State]int{pb.Conflict_SUSPECTED: 0, pb.Conflict_CONFIRMED: 0}
		b.mu.Lock()
		for _, c := range b.contests {
			if c.active() {
				states[c.conflict.GetState()]++
			}
		}
		b.mu.Unlock()
		for state, n := range states {
			to <- prometheus.MustNewConstMetric(m.conflicts, prometheus.GaugeValue, float64(n), strings.ToLower(state.String()))
		}
	}
	for state, n := range states {
		to <- prometheus.MustNewConstMetric(m.clusters, prometheus.GaugeValue, float64(n), strings.ToLower(state.String()))
	}
}

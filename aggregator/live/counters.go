package live

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/facts"
)

// counters count events that the facts and the shards report.
type counters struct {
	detection prometheus.Histogram
	records   *prometheus.CounterVec
	refused   *prometheus.CounterVec
	failed    prometheus.Counter
}

func newCounters() counters {
	m := counters{
		detection: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ipwitness_detection_seconds",
			Help: "Time from the agent's receipt of a change to the verdict that suspects a conflict.",
			Buckets: []float64{
				50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10,
			},
		}),
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ipwitness_aggregator_dropped_records_total",
			Help: "Invalid records of agents: of an unknown kind, or on an interface or namespace that was not reported.",
		}, []string{"record"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ipwitness_aggregator_refused_records_total",
			Help: "Records of agents that were dropped for lack of memory. Their nodes are incomplete until there is enough memory.",
		}, []string{"record"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ipwitness_aggregator_judgement_failures_total",
			Help: "Addresses that could not be judged because of a bug. They are not judged until something about them changes; the log has details.",
		}),
	}
	for _, record := range facts.RecordKinds {
		m.records.WithLabelValues(record)
		m.refused.WithLabelValues(record)
	}
	m.refused.WithLabelValues("status")
	return m
}

// Detected observes how long it took to suspect a conflict.
func (m *counters) Detected(took time.Duration) { m.detection.Observe(took.Seconds()) }

// Dropped counts records that are invalid or exceed a limit.
func (m *counters) Dropped(record string, n int) { m.records.WithLabelValues(record).Add(float64(n)) }

// Refused counts a record that did not fit into memory.
func (m *counters) Refused(record string) { m.refused.WithLabelValues(record).Inc() }

// Panicked counts an address whose judgement panicked.
func (m *counters) Panicked() { m.failed.Inc() }

func (m *counters) describe(out chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{m.detection, m.records, m.refused, m.failed} {
		c.Describe(out)
	}
}

func (m *counters) collect(out chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.detection, m.records, m.refused, m.failed} {
		c.Collect(out)
	}
}

package live

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/export"
)

// exportMetrics describe the series of exporters.
type exportMetrics struct{ sent, refused, failures, lost, lag *prometheus.Desc }

func newExportMetrics() exportMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("ipwitness_export_"+name, help, []string{"exporter", "receiver"}, nil)
	}
	return exportMetrics{
		sent:     desc("transitions_total", "Transitions that a receiver has accepted."),
		refused:  desc("refused_transitions_total", "Transitions of which a receiver does not accept the content, and which it does not get."),
		failures: desc("failures_total", "Attempts to deliver transitions that failed. Each is repeated."),
		lost:     desc("lost_periods_total", "Periods of which a receiver does not get all transitions, because the journal lost or dropped them before they were delivered."),
		lag:      desc("lag_seconds", "Age of the oldest transition that is to be delivered, or of an outage of NATS; 0 if there is none."),
	}
}

func (m *exportMetrics) describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.sent, m.refused, m.failures, m.lost, m.lag} {
		out <- d
	}
}

func (m *exportMetrics) collect(out chan<- prometheus.Metric, all []export.Stats) {
	for _, s := range all {
		for desc, count := range map[*prometheus.Desc]uint64{m.sent: s.Sent, m.refused: s.Refused, m.failures: s.Failures, m.lost: s.Lost} {
			out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(count), s.Exporter, s.Receiver)
		}
		out <- prometheus.MustNewConstMetric(m.lag, prometheus.GaugeValue, s.Lag.Seconds(), s.Exporter, s.Receiver)
	}
}

// exported returns the counters of all exporters, among which is the publisher.
func (m *Metrics) exported() []export.Stats {
	all := m.Exports.Stats()
	if s := m.Stream.Stats(); s != nil {
		all = append(all, export.Stats{Exporter: "nats", Receiver: s.Hosts, Sent: s.Sent, Refused: s.Refused, Failures: s.Failures, Lost: s.Lost, Lag: s.Lag})
	}
	return all
}

package live

import "github.com/prometheus/client_golang/prometheus"

// collectJournal sends the metrics of the journal.
func (m *Metrics) collectJournal(out chan<- prometheus.Metric) {
	j := m.Journal.Stats()
	oldest := 0.0
	if !j.Oldest.IsZero() {
		oldest = float64(j.Oldest.UnixMicro()) / 1e6
	}
	for _, one := range []struct {
		of    *prometheus.Desc
		typ   prometheus.ValueType
		value float64
	}{
		{m.journaled, prometheus.CounterValue, float64(j.Records)},
		{m.gaps, prometheus.CounterValue, float64(j.Gaps)},
		{m.lost, prometheus.CounterValue, float64(j.Lost)},
		{m.size, prometheus.GaugeValue, float64(j.Bytes)},
		{m.oldest, prometheus.GaugeValue, oldest},
	} {
		out <- prometheus.MustNewConstMetric(one.of, one.typ, one.value)
	}
}

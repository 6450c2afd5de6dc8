package aggregator

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// maxConflictInfo is how many conflicts have a series of their own.
const maxConflictInfo = 1000

// metrics are what Prometheus is told. What can be counted from the live state
// is counted when it is asked for.
type metrics struct {
	store     *store
	detection prometheus.Histogram
	records   *prometheus.CounterVec

	conflicts, acknowledged, info, findings, owners, nodes *prometheus.Desc

	ipam ipamMetrics
}

func newMetrics() *metrics {
	return &metrics{
		detection: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ipwitness_detection_seconds",
			Help: "From the agent's receipt of a change to the verdict that suspects a conflict.",
			Buckets: []float64{
				50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10,
			},
		}),
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ipwitness_aggregator_dropped_records_total",
			Help: "Records of agents that do not fit: of an unknown kind, or on an interface or namespace that was not reported.",
		}, []string{"record"}),
		conflicts: prometheus.NewDesc("ipwitness_conflicts", "Active conflicts, with those that are acknowledged.", []string{"state", "cause"}, nil),
		acknowledged: prometheus.NewDesc("ipwitness_conflicts_acknowledged",
			"Active conflicts that are acknowledged: with the labels of ipwitness_conflicts, so that one can be taken from the other.",
			[]string{"state", "cause"}, nil),
		info: prometheus.NewDesc("ipwitness_conflict_info",
			fmt.Sprintf("One series for each active conflict that is not acknowledged, at most %d.", maxConflictInfo),
			[]string{"address", "scope", "cause", "id", "state"}, nil),
		findings: prometheus.NewDesc("ipwitness_findings", "What is wrong and not yet a conflict.", []string{"kind"}, nil),
		owners: prometheus.NewDesc("ipwitness_owners", "Owners of addresses, by the widest scope in which they are compared.",
			[]string{"scope_kind"}, nil),
		nodes: prometheus.NewDesc("ipwitness_nodes", "Nodes, by whether their agent is heard from.", []string{"state"}, nil),
		ipam:  newIPAMMetrics(),
	}
}

func (m *metrics) dropped(record string) { m.records.WithLabelValues(record).Inc() }

// Describe is for prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	m.detection.Describe(out)
	m.records.Describe(out)
	for _, d := range []*prometheus.Desc{m.conflicts, m.acknowledged, m.info, m.findings, m.owners, m.nodes} {
		out <- d
	}
	m.ipam.describe(out)
}

// Collect is for prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.detection.Collect(out)
	m.records.Collect(out)
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}

	type class struct{ state, cause string }
	type count struct{ all, acknowledged int }
	// The two series that alerts look at are there even when all is well.
	conflicts := map[class]count{
		{phaseWords[verdict.Suspected], verdict.CauseUnknown}: {},
		{phaseWords[verdict.Confirmed], verdict.CauseUnknown}: {},
	}
	nodes := map[string]int{"live": 0, "unheard": 0}
	var infos []verdict.Conflict

	s := m.store
	s.mu.Lock()
	for id, e := range s.byID {
		c := e.conflict(id)
		if !c.Active() {
			continue
		}
		of := class{phaseWords[c.Phase], c.Cause}
		n := conflicts[of]
		n.all++
		if s.acknowledged[id] != nil {
			n.acknowledged++
		} else if len(infos) < maxConflictInfo {
			infos = append(infos, *c)
		}
		conflicts[of] = n
	}
	findings, owners := s.findings.count(), s.ownerCount
	for _, n := range s.nodes {
		if n.rec.Unheard {
			nodes["unheard"]++
		} else {
			nodes["live"]++
		}
	}
	s.mu.Unlock()

	for c, n := range conflicts {
		gauge(m.conflicts, n.all, c.state, c.cause)
		gauge(m.acknowledged, n.acknowledged, c.state, c.cause)
	}
	for _, c := range infos {
		gauge(m.info, 1, c.Address.String(), c.Scope, c.Cause, c.ID, phaseWords[c.Phase])
	}
	for kind, n := range findings {
		gauge(m.findings, n, kind)
	}
	for kind, name := range []string{"none", "link", "node", "network"} {
		gauge(m.owners, owners[kind], name)
	}
	for state, n := range nodes {
		gauge(m.nodes, n, state)
	}
	m.ipam.collect(s, out)
}

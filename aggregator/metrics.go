package aggregator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// How many conflicts, findings and nodes have series of their own.
const (
	maxConflictInfo  = 1000
	maxFindingSeries = 1000
	maxNodeSeries    = 5000
	// maxNamed is how many owners or nodes one label names.
	maxNamed = 4
)

// metrics are what Prometheus is told. What can be counted from the live state
// is counted when it is asked for.
type metrics struct {
	store     *store
	detection prometheus.Histogram
	records   *prometheus.CounterVec
	refused   *prometheus.CounterVec
	failed    prometheus.Counter

	conflicts, acknowledged, info, since, findings, finding, owners, nodes, nodeUp, skew, watches, problems, leftOut, charged, budget *prometheus.Desc

	ipam ipamMetrics
}

func newMetrics() *metrics {
	m := &metrics{
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
		watches: prometheus.NewDesc("ipwitness_aggregator_watches", "Clients that watch: their streams that are open.", []string{"of"}, nil),
		problems: prometheus.NewDesc("ipwitness_aggregator_problems",
			"Things that do not work in the aggregator itself, like its data directory. `ipwitness nodes` names them.", nil, nil),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ipwitness_aggregator_refused_records_total",
			Help: "Records of agents that there was no memory for: their nodes are incomplete until there is.",
		}, []string{"record"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ipwitness_aggregator_judgement_failures_total",
			Help: "Addresses that could not be judged because of a defect. They are not judged until something changes about them; the log has more.",
		}),
		leftOut: prometheus.NewDesc("ipwitness_node_left_out_records",
			fmt.Sprintf("Records of a node that are left out, as the aggregator has no room for them: duplicates of them are not seen. Only for incomplete nodes, at most %d.", maxNodeSeries),
			[]string{"node"}, nil),
		charged:   prometheus.NewDesc("ipwitness_aggregator_budget_used_bytes", "Memory that what agents report is charged with.", nil, nil),
		budget:    prometheus.NewDesc("ipwitness_aggregator_budget_bytes", "Memory for what agents report; 0 for no limit.", nil, nil),
		conflicts: prometheus.NewDesc("ipwitness_conflicts", "Active conflicts, with those that are acknowledged.", []string{"state", "cause"}, nil),
		acknowledged: prometheus.NewDesc("ipwitness_conflicts_acknowledged",
			"Active conflicts that are acknowledged: with the labels of ipwitness_conflicts, so that one can be taken from the other.",
			[]string{"state", "cause"}, nil),
		info: prometheus.NewDesc("ipwitness_conflict_info",
			fmt.Sprintf("One series for each active conflict that is not acknowledged, at most %d: the confirmed ones first.", maxConflictInfo),
			[]string{"address", "scope", "cause", "id", "state", "owners"}, nil),
		since: prometheus.NewDesc("ipwitness_conflict_detected_timestamp_seconds",
			"When a conflict was detected, for each that ipwitness_conflict_info shows.", []string{"address", "id"}, nil),
		findings: prometheus.NewDesc("ipwitness_findings", "What is wrong and not yet a conflict.", []string{"kind"}, nil),
		finding: prometheus.NewDesc("ipwitness_finding_detected_timestamp_seconds",
			fmt.Sprintf("When a finding was made. One series for each, at most %d: the critical ones first.", maxFindingSeries),
			[]string{"kind", "severity", "address", "node", "holder", "pool", "id"}, nil),
		owners: prometheus.NewDesc("ipwitness_owners", "Owners of addresses, by the widest scope in which they are compared.",
			[]string{"scope_kind"}, nil),
		nodes: prometheus.NewDesc("ipwitness_nodes",
			"Nodes, by whether their agent is heard from: live, unheard, or absent, which are those of Kubernetes that are meant to have one and that no agent has told of.", []string{"state"}, nil),
		nodeUp: prometheus.NewDesc("ipwitness_node_up",
			fmt.Sprintf("1 for a node whose agent is heard from; 0 for one that is silent, or that is meant to have an agent in Kubernetes and none has told of. A silent one whose machine was rebooted or replaced, that Kubernetes has no more, or where no agent is meant to be, is left out. At most %d, those with 0 first.", maxNodeSeries),
			[]string{"node"}, nil),
		skew: prometheus.NewDesc("ipwitness_node_clock_skew_seconds",
			fmt.Sprintf("How much a node's wall clock is ahead of the aggregator's, negative where it is behind; for %d nodes at most. It decides nothing.", maxNodeSeries),
			[]string{"node"}, nil),
		ipam: newIPAMMetrics(),
	}
	for _, record := range facts.RecordKinds {
		m.records.WithLabelValues(record)
		m.refused.WithLabelValues(record)
	}
	m.refused.WithLabelValues("status")
	return m
}

// Describe is for prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	m.detection.Describe(out)
	m.records.Describe(out)
	m.refused.Describe(out)
	m.failed.Describe(out)
	for _, d := range []*prometheus.Desc{m.conflicts, m.acknowledged, m.info, m.since, m.findings, m.finding, m.owners, m.nodes, m.nodeUp, m.skew, m.watches, m.problems, m.leftOut, m.charged, m.budget} {
		out <- d
	}
	m.ipam.describe(out)
}

// Collect is for prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.detection.Collect(out)
	m.records.Collect(out)
	m.refused.Collect(out)
	m.failed.Collect(out)
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
	var shown []conflictPlace

	s := m.store
	for _, c := range s.shards.Conflicts.All() {
		if !c.Active() {
			continue
		}
		of := class{phaseWords[c.Phase], c.Cause}
		n := conflicts[of]
		n.all++
		if s.acknowledgements.of(c.ID) != nil {
			n.acknowledged++
		} else {
			shown = append(shown, conflictPlace{c.Phase, c.ID})
		}
		conflicts[of] = n
	}
	findings, owners := s.findings.count(), s.shards.Counts()
	s.facts.RLock()
	charged, limit := s.facts.Budget()
	s.facts.RUnlock()

	for c, n := range conflicts {
		gauge(m.conflicts, n.all, c.state, c.cause)
		gauge(m.acknowledged, n.acknowledged, c.state, c.cause)
	}
	gauge(m.charged, int(charged))
	gauge(m.budget, int(limit))
	m.collectConflicts(shown, out)
	m.collectFindings(out)
	m.collectNodes(out)
	for kind, n := range findings {
		gauge(m.findings, n, kind)
	}
	for kind, name := range []string{"none", "link", "node", "network"} {
		gauge(m.owners, owners[kind], name)
	}
	for of, h := range map[string]*events{"owners": s.told.owners, "conflicts": s.told.conflicts, "findings": s.findings.events} {
		gauge(m.watches, h.Subscribers(), of)
	}
	gauge(m.problems, len(s.problems()))
	m.ipam.collect(s, out)
}

// conflictPlace is where a conflict is among those that have series.
type conflictPlace struct {
	phase verdict.Phase
	id    string
}

// collectConflicts tells of conflicts one by one: the same ones each time, and the
// confirmed ones before others.
func (m *metrics) collectConflicts(shown []conflictPlace, out chan<- prometheus.Metric) {
	slices.SortFunc(shown, func(a, b conflictPlace) int {
		return cmp.Or(-cmp.Compare(a.phase, b.phase), cmp.Compare(a.id, b.id))
	})
	s := m.store
	for _, at := range shown[:min(len(shown), maxConflictInfo)] {
		c := s.shards.Conflicts.Get(at.id)
		if c == nil || !c.Active() {
			continue
		}
		var owners []string
		for i := range c.Owners {
			o := &c.Owners[i]
			owners = append(owners, s.callWithNode(o))
		}
		out <- prometheus.MustNewConstMetric(m.info, prometheus.GaugeValue, 1,
			c.Address.String(), c.Scope, c.Cause, c.ID, phaseWords[c.Phase], several(owners, " | "))
		out <- prometheus.MustNewConstMetric(m.since, prometheus.GaugeValue, seconds(c.DetectedAt), c.Address.String(), c.ID)
	}
}

// callWithNode is what an owner is called, with its node.
func (s *store) callWithNode(o *verdict.Owner) string {
	s.facts.RLock()
	defer s.facts.RUnlock()
	return fmt.Sprintf("%s (%s)", explain.OwnerName(o), o.Node.Name)
}

// collectFindings tells of findings one by one: the same ones each time, and those that
// matter more before others.
func (m *metrics) collectFindings(out chan<- prometheus.Metric) {
	type ranked struct {
		severity verdict.Severity
		findingPlace
	}
	s := m.store
	var shown []ranked
	for _, f := range s.findings.all() {
		shown = append(shown, ranked{f.Severity, f.place})
	}
	slices.SortFunc(shown, func(a, b ranked) int {
		return cmp.Or(-cmp.Compare(a.severity, b.severity), a.compare(b.findingPlace))
	})
	s.facts.RLock()
	defer s.facts.RUnlock()
	for _, at := range shown[:min(len(shown), maxFindingSeries)] {
		f := s.findings.get(at.id)
		if f == nil {
			continue
		}
		nodes, holders, pool := f.who()
		address := at.address
		if f.Stock != nil && len(f.Stock.AtRisk) > 0 {
			address = f.Stock.AtRisk[0].Address.String()
			if more := len(f.Stock.AtRisk) - 1; more > 0 {
				address += fmt.Sprintf(" and %d more", more)
			}
		}
		out <- prometheus.MustNewConstMetric(m.finding, prometheus.GaugeValue, seconds(f.since), at.kind,
			strings.ToLower(pb.Finding_Severity(at.severity).String()), address, several(nodes, ", "), several(holders, " | "), pool, at.id)
	}
}

// who are the nodes and the holders that a finding is about, and its pool.
func (f *found) who() (nodes, holders []string, pool string) {
	for i := range f.Owners {
		holders = append(holders, explain.OwnerName(&f.Owners[i]))
	}
	if f.Pool != nil {
		pool = f.Pool.Name
	}
	return audit.Nodes(f.Finding), holders, pool
}

// several names the first of many.
func several(names []string, between string) string {
	if more := len(names) - maxNamed; more > 0 {
		return strings.Join(names[:maxNamed], between) + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, between)
}

func seconds(at verdict.Stamp) float64 { return float64(at.Time().UnixMilli()) / 1000 }

// collectNodes tells which nodes are heard from. Where several have one name, one of
// them is enough.
func (m *metrics) collectNodes(out chan<- prometheus.Metric) {
	s := m.store
	s.facts.RLock()
	a := s.attend()
	unheard := s.facts.NodeCount() - len(a.heard)
	up, skew, leftOut := make(map[string]float64), make(map[string]float64), make(map[string]float64)
	for _, name := range a.absent {
		up[name] = 0
	}
	for _, n := range a.silent {
		up[n.Rec.Name] = 0
	}
	for _, n := range a.heard {
		up[n.Rec.Name] = 1
		if n.Rec.SkewKnown {
			skew[n.Rec.Name] = n.Rec.Skew.Seconds()
		}
	}
	for n := range s.facts.Nodes {
		if left := n.LeftOut().Records + n.LeftOut().Wire + n.Excess(); left > 0 {
			leftOut[n.Rec.Name] = float64(left)
		}
	}
	s.facts.RUnlock()

	incomplete := slices.SortedFunc(maps.Keys(leftOut), func(a, b string) int { return cmp.Or(-cmp.Compare(leftOut[a], leftOut[b]), cmp.Compare(a, b)) })
	for _, name := range incomplete[:min(len(incomplete), maxNodeSeries)] {
		out <- prometheus.MustNewConstMetric(m.leftOut, prometheus.GaugeValue, leftOut[name], name)
	}

	for state, n := range map[string]int{"live": len(a.heard), "unheard": unheard, "absent": len(a.absent)} {
		out <- prometheus.MustNewConstMetric(m.nodes, prometheus.GaugeValue, float64(n), state)
	}
	names := slices.SortedFunc(maps.Keys(up), func(a, b string) int { return cmp.Or(cmp.Compare(up[a], up[b]), cmp.Compare(a, b)) })
	for _, name := range names[:min(len(names), maxNodeSeries)] {
		out <- prometheus.MustNewConstMetric(m.nodeUp, prometheus.GaugeValue, up[name], name)
		if ahead, known := skew[name]; known {
			out <- prometheus.MustNewConstMetric(m.skew, prometheus.GaugeValue, ahead, name)
		}
	}
}

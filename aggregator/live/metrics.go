package live

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/export"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The maximum numbers of conflicts, findings and nodes with their own series.
const (
	maxConflictInfo  = 1000
	maxFindingSeries = 1000
	maxNodeSeries    = 5000
	// maxNamed is the maximum number of owners or nodes in one label.
	maxNamedMetrics = 4
)

// MetricsConfig contains the sources of the metrics. All fields but Journal are required.
type MetricsConfig struct {
	Facts            *facts.Facts
	Shards           *judge.Shards
	Findings         *judge.Findings
	Acknowledgements *Acknowledgements
	Coverage         *Coverage
	// Journal is the journal; nil if none is kept.
	Journal *journal.Journal
	// Exports are the exporters.
	Exports *export.Exporters
	// Stream is the publisher of transitions; nil if NATS is not used.
	Stream *stream.Publisher
	// Watches returns the number of watches by type.
	Watches func() map[string]int
	// Problems returns descriptions of the problems of the aggregator itself.
	Problems func() []string
}

// Metrics are the Prometheus metrics of the aggregator. Values that follow from the current state
// are computed when they are scraped. Use New.
type Metrics struct {
	MetricsConfig
	counters
	descriptions
	ipam    ipamMetrics
	exports exportMetrics
}

// descriptions describe the series that are created at each scrape.
type descriptions struct {
	conflicts, acknowledged, info, since, findings, finding, owners, nodes, nodeUp, skew, watches, problems, leftOut, charged, budget,
	journaled, gaps, lost, size, oldest *prometheus.Desc
}

// NewMetrics returns unregistered metrics.
func NewMetrics(cfg MetricsConfig) *Metrics {
	return &Metrics{MetricsConfig: cfg, counters: newCounters(), ipam: newIPAMMetrics(), exports: newExportMetrics(), descriptions: descriptions{
		watches: prometheus.NewDesc("ipwitness_aggregator_watches", "Open watches of clients.", []string{"of"}, nil),
		problems: prometheus.NewDesc("ipwitness_aggregator_problems",
			"Problems of the aggregator itself, such as an unusable data directory. `ipwitness nodes` describes them.", nil, nil),
		leftOut: prometheus.NewDesc("ipwitness_node_left_out_records",
			fmt.Sprintf("Records of a node that the aggregator dropped for lack of memory. Duplicates of their addresses go undetected. Only for incomplete nodes, at most %d.", maxNodeSeries),
			[]string{"node"}, nil),
		charged:   prometheus.NewDesc("ipwitness_aggregator_budget_used_bytes", "Memory used for the reports of agents.", nil, nil),
		journaled: prometheus.NewDesc("ipwitness_journal_records_total", "Changes that the journal has recorded.", nil, nil),
		gaps:      prometheus.NewDesc("ipwitness_journal_gaps_total", "Periods of which the journal has no records, for example because the disk was full.", nil, nil),
		lost:      prometheus.NewDesc("ipwitness_journal_lost_changes_total", "Changes that are known to be missing in gaps of the journal.", nil, nil),
		size:      prometheus.NewDesc("ipwitness_journal_bytes", "Size of the journal.", nil, nil),
		oldest:    prometheus.NewDesc("ipwitness_journal_oldest_timestamp_seconds", "Time that the journal reaches back to; 0 if it is empty.", nil, nil),
		budget:    prometheus.NewDesc("ipwitness_aggregator_budget_bytes", "Memory limit for the reports of agents; 0 for no limit.", nil, nil),
		conflicts: prometheus.NewDesc("ipwitness_conflicts", "Active conflicts, including acknowledged ones.", []string{"state", "cause"}, nil),
		acknowledged: prometheus.NewDesc("ipwitness_conflicts_acknowledged",
			"Active conflicts that are acknowledged. The labels are the same as for ipwitness_conflicts, so that this can be subtracted from it.",
			[]string{"state", "cause"}, nil),
		info: prometheus.NewDesc("ipwitness_conflict_info",
			fmt.Sprintf("One series for each active conflict that is not acknowledged, at most %d, confirmed ones first.", maxConflictInfo),
			[]string{"address", "scope", "cause", "id", "state", "owners"}, nil),
		since: prometheus.NewDesc("ipwitness_conflict_detected_timestamp_seconds",
			"Time of detection of each conflict in ipwitness_conflict_info.", []string{"address", "id"}, nil),
		findings: prometheus.NewDesc("ipwitness_findings", "Problems that are not yet conflicts.", []string{"kind"}, nil),
		finding: prometheus.NewDesc("ipwitness_finding_detected_timestamp_seconds",
			fmt.Sprintf("Time of detection of a finding. One series for each, at most %d, critical ones first.", maxFindingSeries),
			[]string{"kind", "severity", "address", "node", "holder", "pool", "id"}, nil),
		owners: prometheus.NewDesc("ipwitness_owners", "Owners of addresses, by the widest scope in which they are compared.",
			[]string{"scope_kind"}, nil),
		nodes: prometheus.NewDesc("ipwitness_nodes",
			"Nodes by the state of their agent: live, disconnected, or absent (nodes of Kubernetes that should have an agent but none has connected).", []string{"state"}, nil),
		nodeUp: prometheus.NewDesc("ipwitness_node_up",
			fmt.Sprintf("1 for a node whose agent is connected; 0 for a node whose agent is disconnected, or that should have an agent in Kubernetes but none has connected. A disconnected node has no series if its machine was rebooted or replaced, if it was removed from Kubernetes, or if it should have no agent. At most %d, nodes with 0 first.", maxNodeSeries),
			[]string{"node"}, nil),
		skew: prometheus.NewDesc("ipwitness_node_clock_skew_seconds",
			fmt.Sprintf("How far a node's wall clock is ahead of the aggregator's, negative if it is behind; for at most %d nodes. Verdicts do not depend on it.", maxNodeSeries),
			[]string{"node"}, nil),
	}}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.describe(out)
	for _, d := range []*prometheus.Desc{m.conflicts, m.acknowledged, m.info, m.since, m.findings, m.finding, m.owners, m.nodes, m.nodeUp, m.skew, m.watches, m.problems, m.leftOut, m.charged, m.budget, m.journaled, m.gaps, m.lost, m.size, m.oldest} {
		out <- d
	}
	m.ipam.describe(out)
	m.exports.describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.collect(out)
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}

	if m.Journal != nil {
		m.collectJournal(out)
	}
	m.exports.collect(out, m.exported())

	type class struct{ state, cause string }
	type count struct{ all, acknowledged int }
	// The two series that alerts use exist even without conflicts.
	conflicts := map[class]count{
		{phaseWords[verdict.Suspected], verdict.CauseUnknown}: {},
		{phaseWords[verdict.Confirmed], verdict.CauseUnknown}: {},
	}
	var shown []conflictPlace

	for _, c := range m.Shards.Conflicts.All() {
		if !c.Active() {
			continue
		}
		of := class{phaseWords[c.Phase], c.Cause}
		n := conflicts[of]
		n.all++
		if m.Acknowledgements.Of(c.ID) != nil {
			n.acknowledged++
		} else {
			shown = append(shown, conflictPlace{c.Phase, c.ID})
		}
		conflicts[of] = n
	}
	kinds, owners := m.Findings.Count(), m.Shards.Counts()
	m.Facts.RLock()
	charged, limit := m.Facts.Budget()
	m.Facts.RUnlock()

	for c, n := range conflicts {
		gauge(m.conflicts, n.all, c.state, c.cause)
		gauge(m.acknowledged, n.acknowledged, c.state, c.cause)
	}
	gauge(m.charged, int(charged))
	gauge(m.budget, int(limit))
	m.collectConflicts(shown, out)
	m.collectFindings(out)
	m.collectNodes(out)
	for kind, n := range kinds {
		gauge(m.findings, n, kind)
	}
	for kind, name := range []string{"none", "link", "node", "network"} {
		gauge(m.owners, owners[kind], name)
	}
	for of, n := range m.Watches() {
		gauge(m.watches, n, of)
	}
	gauge(m.problems, len(m.Problems()))
	m.ipam.collect(m.Facts, m.Findings.Pools, out)
}

// conflictPlace is the position of a conflict among the conflicts with series.
type conflictPlace struct {
	phase verdict.Phase
	id    string
}

// collectConflicts sends the series of individual conflicts: the same ones at each scrape, and
// confirmed ones first.
func (m *Metrics) collectConflicts(shown []conflictPlace, out chan<- prometheus.Metric) {
	slices.SortFunc(shown, func(a, b conflictPlace) int {
		return cmp.Or(-cmp.Compare(a.phase, b.phase), cmp.Compare(a.id, b.id))
	})
	for _, at := range shown[:min(len(shown), maxConflictInfo)] {
		c := m.Shards.Conflicts.Get(at.id)
		if c == nil || !c.Active() {
			continue
		}
		var owners []string
		for i := range c.Owners {
			o := &c.Owners[i]
			owners = append(owners, m.callWithNode(o))
		}
		out <- prometheus.MustNewConstMetric(m.info, prometheus.GaugeValue, 1,
			c.Address.String(), c.Scope, c.Cause, c.ID, phaseWords[c.Phase], several(owners, " | "))
		out <- prometheus.MustNewConstMetric(m.since, prometheus.GaugeValue, seconds(c.DetectedAt), c.Address.String(), c.ID)
	}
}

// callWithNode returns the name of an owner with its node.
func (m *Metrics) callWithNode(o *verdict.Owner) string {
	m.Facts.RLock()
	defer m.Facts.RUnlock()
	return fmt.Sprintf("%s (%s)", explain.OwnerName(o), o.Node.Name)
}

// collectFindings sends the series of individual findings: the same ones at each scrape, and the
// more severe ones first.
func (m *Metrics) collectFindings(out chan<- prometheus.Metric) {
	type ranked struct {
		severity verdict.Severity
		judge.FindingPlace
	}
	var shown []ranked
	for _, f := range m.Findings.All() {
		shown = append(shown, ranked{f.Severity, f.Place})
	}
	slices.SortFunc(shown, func(a, b ranked) int {
		return cmp.Or(-cmp.Compare(a.severity, b.severity), a.Compare(b.FindingPlace))
	})
	m.Facts.RLock()
	defer m.Facts.RUnlock()
	for _, at := range shown[:min(len(shown), maxFindingSeries)] {
		f := m.Findings.Get(at.ID)
		if f == nil {
			continue
		}
		nodes, holders, pool := who(f)
		address := at.Address
		if f.Stock != nil && len(f.Stock.AtRisk) > 0 {
			address = f.Stock.AtRisk[0].Address.String()
			if more := len(f.Stock.AtRisk) - 1; more > 0 {
				address += fmt.Sprintf(" and %d more", more)
			}
		}
		out <- prometheus.MustNewConstMetric(m.finding, prometheus.GaugeValue, seconds(f.Since), at.Kind,
			strings.ToLower(pb.Finding_Severity(at.severity).String()), address, several(nodes, ", "), several(holders, " | "), pool, at.ID)
	}
}

// who returns the nodes, the holders and the pool that a finding is about.
func who(f *judge.Found) (nodes, holders []string, pool string) {
	for i := range f.Owners {
		holders = append(holders, explain.OwnerName(&f.Owners[i]))
	}
	if f.Pool != nil {
		pool = f.Pool.Name
	}
	return audit.Nodes(f.Finding), holders, pool
}

// several joins the first maxNamed names, and adds the number of the remaining ones.
func several(names []string, between string) string {
	if more := len(names) - maxNamedMetrics; more > 0 {
		return strings.Join(names[:maxNamedMetrics], between) + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, between)
}

func seconds(at verdict.Stamp) float64 { return float64(at.Time().UnixMilli()) / 1000 }

// collectNodes sends the state of nodes. If several nodes have the same name, it counts as
// connected when one of them is.
func (m *Metrics) collectNodes(out chan<- prometheus.Metric) {
	m.Facts.RLock()
	a := m.Coverage.Attend()
	disconnected := m.Facts.NodeCount() - len(a.Heard)
	up, skew, leftOut := make(map[string]float64), make(map[string]float64), make(map[string]float64)
	for _, name := range a.Absent {
		up[name] = 0
	}
	for _, n := range a.Silent {
		up[n.Rec.Name] = 0
	}
	for _, n := range a.Heard {
		up[n.Rec.Name] = 1
		if n.Rec.SkewKnown {
			skew[n.Rec.Name] = n.Rec.Skew.Seconds()
		}
	}
	for n := range m.Facts.Nodes {
		if left := n.LeftOut().Records + n.LeftOut().Wire + n.Excess(); left > 0 {
			leftOut[n.Rec.Name] = float64(left)
		}
	}
	m.Facts.RUnlock()

	incomplete := slices.SortedFunc(maps.Keys(leftOut), func(a, b string) int { return cmp.Or(-cmp.Compare(leftOut[a], leftOut[b]), cmp.Compare(a, b)) })
	for _, name := range incomplete[:min(len(incomplete), maxNodeSeries)] {
		out <- prometheus.MustNewConstMetric(m.leftOut, prometheus.GaugeValue, leftOut[name], name)
	}

	for state, n := range map[string]int{"live": len(a.Heard), "disconnected": disconnected, "absent": len(a.Absent)} {
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

// phaseWords are the states of a conflict in metrics.
var phaseWords = map[verdict.Phase]string{
	verdict.Suspected: "suspected", verdict.Confirmed: "confirmed", verdict.Resolved: "resolved",
}

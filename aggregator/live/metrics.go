package live

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/export"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/incident"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The maximum numbers of conflicts, findings, nodes and pools with their own series.
const (
	maxConflictInfo  = 1000
	maxFindingSeries = 1000
	maxNodeSeries    = 5000
	maxPoolSeries    = 1000
	// maxNamedMetrics is the maximum number of owners or nodes in one label.
	maxNamedMetrics = 4
)

// MetricsConfig contains the sources of the metrics. All fields but Journal are required.
type MetricsConfig struct {
	Facts            *facts.Facts
	Shards           *judge.Shards
	Findings         *judge.Findings
	Incidents        *incident.Index
	Acknowledgements *Acknowledgements
	Coverage         *Coverage
	// Journal is the journal; nil if none is kept.
	Journal *journal.Journal
	Exports *export.Exporters
	// Stream is the publisher of transitions; nil if NATS is not used.
	Stream *stream.Publisher
	// Watches returns the number of watches by type.
	Watches func() map[string]int
	// Problems returns descriptions of the problems of the aggregator itself.
	Problems func() []string
}

// Metrics are the Prometheus metrics of the aggregator. Values that follow from the current state
// are computed when they are scraped. Use NewMetrics.
type Metrics struct {
	MetricsConfig
	Counters
	byName map[string]*metric
}

// Counters count events that the facts and the shards report.
type Counters struct {
	detection          prometheus.Histogram
	dropped, refused   *prometheus.CounterVec
	judgementsPanicked prometheus.Counter
}

// metric describes a metric that is computed when it is scraped, without its prefix.
type metric struct {
	name string
	typ  prometheus.ValueType
	desc *prometheus.Desc
}

func metrics() []*metric {
	counter := func(name, help string, labels ...string) *metric {
		return &metric{name, prometheus.CounterValue, prometheus.NewDesc("ipwitness_"+name, help, labels, nil)}
	}
	gauge := func(name, help string, labels ...string) *metric {
		m := counter(name, help, labels...)
		m.typ = prometheus.GaugeValue
		return m
	}
	pool := func(name, help string) *metric {
		return gauge("ipam_pool_"+name, help+fmt.Sprintf(" One series for each pool, at most %d.", maxPoolSeries), "ipam", "node", "pool", "network")
	}
	return []*metric{
		gauge("conflicts", "Active conflicts, including acknowledged ones.", "state", "cause"),
		gauge("conflicts_acknowledged", "Active conflicts that are acknowledged. The labels are the same as for ipwitness_conflicts, "+
			"so that this can be subtracted from it.", "state", "cause"),
		gauge("conflict_info", fmt.Sprintf("One series for each active conflict that is not acknowledged, at most %d, confirmed ones first.", maxConflictInfo),
			"address", "scope", "cause", "id", "incident", "state", "owners"),
		gauge("conflict_detected_timestamp_seconds", "Time of detection of each conflict in ipwitness_conflict_info.", "address", "id"),
		gauge("incidents", "Incidents: active conflicts and findings, grouped by cause, by their severity.", "severity"),
		gauge("findings", "Problems that are not yet conflicts.", "kind"),
		gauge("finding_detected_timestamp_seconds",
			fmt.Sprintf("Time of detection of a finding. One series for each, at most %d, critical ones first.", maxFindingSeries),
			"kind", "severity", "address", "node", "holder", "pool", "id"),
		gauge("owners", "Owners of addresses, by the widest scope in which they are compared.", "scope_kind"),
		gauge("awaited", "What is awaited before the absence of conflicts and findings proves anything: report (of a node), records (of an IPAM on a node or in the Kubernetes API), "+
			"judgement (of problems that may pass by themselves) or journal. Meanwhile, series of conflicts and findings that would be 0 are missing.", "what"),
		gauge("nodes", "Nodes by the state of their agent: live, disconnected, or absent "+
			"(nodes of Kubernetes that should have an agent but none has connected).", "state"),
		gauge("node_up", fmt.Sprintf("1 for a node whose agent is connected; 0 for a node whose agent is disconnected, or that should have an agent in "+
			"Kubernetes but none has connected. A disconnected node has no series if its machine was rebooted or replaced, if it was removed from Kubernetes, "+
			"or if it should have no agent. At most %d, nodes with 0 first.", maxNodeSeries), "node"),
		gauge("node_clock_skew_seconds", fmt.Sprintf("How far a node's wall clock is ahead of the aggregator's, negative if it is behind; "+
			"for at most %d nodes. Verdicts do not depend on it.", maxNodeSeries), "node"),
		gauge("node_left_out_records", fmt.Sprintf("Records of a node that the aggregator dropped for lack of memory. "+
			"Duplicates of their addresses go undetected. Only for incomplete nodes, at most %d.", maxNodeSeries), "node"),
		gauge("aggregator_watches", "Open watches of clients.", "of"),
		gauge("aggregator_problems", "Problems of the aggregator itself, such as an unusable data directory. `ipwitness nodes` describes them."),
		gauge("aggregator_budget_used_bytes", "Memory used for the reports of agents."),
		gauge("aggregator_budget_bytes", "Memory limit for the reports of agents; 0 for no limit."),
		counter("journal_records_total", "Changes that the journal has recorded."),
		counter("journal_gaps_total", "Periods of which the journal has no records, for example because the disk was full."),
		counter("journal_lost_changes_total", "Changes that are known to be missing in gaps of the journal."),
		gauge("journal_bytes", "Size of the journal."),
		gauge("journal_oldest_timestamp_seconds", "Time that the journal reaches back to; 0 if it is empty."),
		gauge("ipam_pools", "Audited address pools, by the state of their records.", "ipam", "state"),
		gauge("ipam_allocations", "Addresses that IPAM has allocated.", "ipam"),
		pool("size", "Number of addresses in a pool."),
		pool("allocated", "Number of allocated addresses of a pool."),
		pool("leaked", "Number of leaked addresses of a pool, which are allocated but have no holder."),
		counter("export_transitions_total", "Transitions that a receiver has accepted.", "exporter", "receiver"),
		counter("export_refused_transitions_total", "Transitions of which a receiver does not accept the content, and which it does not get.",
			"exporter", "receiver"),
		counter("export_failures_total", "Attempts to deliver transitions that failed. Each is repeated.", "exporter", "receiver"),
		counter("export_lost_periods_total", "Periods of which a receiver does not get all transitions, because the journal lost or dropped them "+
			"before they were delivered.", "exporter", "receiver"),
		gauge("export_lag_seconds", "Age of the oldest transition that is to be delivered, or of an outage of NATS; 0 if there is none.", "exporter", "receiver"),
	}
}

// NewMetrics returns metrics that are registered with reg.
func NewMetrics(cfg MetricsConfig, reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{MetricsConfig: cfg, byName: make(map[string]*metric)}
	for _, one := range metrics() {
		m.byName[one.name] = one
	}
	m.detection = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "ipwitness_detection_seconds",
		Help:    "Time from the agent's receipt of a change to the verdict that suspects a conflict.",
		Buckets: []float64{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10},
	})
	m.dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ipwitness_aggregator_dropped_records_total",
		Help: "Invalid records of agents: of an unknown kind, or on an interface or namespace that was not reported.",
	}, []string{"record"})
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ipwitness_aggregator_refused_records_total",
		Help: "Records of agents that were dropped for lack of memory. Their nodes are incomplete until there is enough memory.",
	}, []string{"record"})
	m.judgementsPanicked = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ipwitness_aggregator_judgement_failures_total",
		Help: "Addresses that could not be judged because of a bug. They are not judged until something about them changes; the log has details.",
	})
	for _, record := range facts.RecordKinds {
		m.dropped.WithLabelValues(record)
		m.refused.WithLabelValues(record)
	}
	m.refused.WithLabelValues("status")
	for _, c := range []prometheus.Collector{m.detection, m.dropped, m.refused, m.judgementsPanicked, m} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// Detected observes how long it took to suspect a conflict.
func (c *Counters) Detected(took time.Duration) { c.detection.Observe(took.Seconds()) }

// Changed counts the records that are not among the facts.
func (c *Counters) Changed(what *facts.Changes) {
	for record, n := range what.Dropped {
		c.dropped.WithLabelValues(record).Add(float64(n))
	}
	for record, n := range what.Refused {
		c.refused.WithLabelValues(record).Add(float64(n))
	}
}

// Panicked counts an address whose judgement panicked.
func (c *Counters) Panicked() { c.judgementsPanicked.Inc() }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, one := range m.byName {
		out <- one.desc
	}
}

type scrape func(name string, value float64, labels ...string)

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	set := func(name string, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(m.byName[name].desc, m.byName[name].typ, value, labels...)
	}
	awaited := make(map[pb.Awaited_What]int)
	coverage := m.Coverage.Current()
	for _, a := range coverage.GetAwaited() {
		awaited[a.GetWhat()]++
	}
	for _, what := range []pb.Awaited_What{pb.Awaited_REPORT, pb.Awaited_RECORDS, pb.Awaited_JUDGEMENT, pb.Awaited_JOURNAL} {
		set("awaited", float64(awaited[what]), word(what))
	}
	known := !Starting(coverage)
	m.collectConflicts(set, known)
	m.collectFindings(set)
	m.collectNodes(set)
	m.collectPools(set)
	for kind, n := range m.Findings.Count() {
		if n > 0 || known {
			set("findings", float64(n), kind)
		}
	}
	owners := m.Shards.Counts()
	for kind, name := range []string{"none", "link", "node", "network"} {
		set("owners", float64(owners[kind]), name)
	}
	for of, n := range m.Watches() {
		set("aggregator_watches", float64(n), of)
	}
	set("aggregator_problems", float64(len(m.Problems())))
	m.Facts.RLock()
	charged, limit := m.Facts.Budget()
	m.Facts.RUnlock()
	set("aggregator_budget_used_bytes", float64(charged))
	set("aggregator_budget_bytes", float64(limit))
	if m.Journal != nil {
		j := m.Journal.Stats()
		set("journal_records_total", float64(j.Records))
		set("journal_gaps_total", float64(j.Gaps))
		set("journal_lost_changes_total", float64(j.Lost))
		set("journal_bytes", float64(j.Bytes))
		oldest := 0.0
		if !j.Oldest.IsZero() {
			oldest = float64(j.Oldest.UnixMicro()) / 1e6
		}
		set("journal_oldest_timestamp_seconds", oldest)
	}
	exporters := m.Exports.Stats()
	if s := m.Stream.Stats(); s != nil {
		exporters = append(exporters, export.Stats{Exporter: "nats", Receiver: m.Stream.Hosts(), DeliveryStats: *s})
	}
	for _, s := range exporters {
		set("export_transitions_total", float64(s.Sent), s.Exporter, s.Receiver)
		set("export_refused_transitions_total", float64(s.Refused), s.Exporter, s.Receiver)
		set("export_failures_total", float64(s.Failures), s.Exporter, s.Receiver)
		set("export_lost_periods_total", float64(s.Lost), s.Exporter, s.Receiver)
		set("export_lag_seconds", s.Lag.Seconds(), s.Exporter, s.Receiver)
	}
}

// collectConflicts counts the conflicts, and sends the series of individual ones: the same ones at
// each scrape, and confirmed ones first.
func (m *Metrics) collectConflicts(set scrape, known bool) {
	type class struct{ state, cause string }
	type count struct{ all, acknowledged int }
	// The two series that alerts use exist even without conflicts, as soon as that is known.
	conflicts := map[class]count{
		{word(pb.Conflict_SUSPECTED), verdict.CauseUnknown}: {},
		{word(pb.Conflict_CONFIRMED), verdict.CauseUnknown}: {},
	}
	var shown []*verdict.Conflict
	for _, c := range m.Shards.Conflicts.All() {
		if !c.Active() {
			continue
		}
		of := class{word(pb.Conflict_State(c.Phase)), c.Cause}
		n := conflicts[of]
		n.all++
		if m.Acknowledgements.Of(c.ID) != nil {
			n.acknowledged++
		} else {
			shown = append(shown, c)
		}
		conflicts[of] = n
	}
	incidents := m.Incidents.Count()
	for _, s := range []pb.Finding_Severity{pb.Finding_INFO, pb.Finding_WARNING, pb.Finding_CRITICAL} {
		if incidents[s] > 0 || known {
			set("incidents", float64(incidents[s]), word(s))
		}
	}
	for c, n := range conflicts {
		if n.all == 0 && !known {
			continue // it is not known that there are none
		}
		set("conflicts", float64(n.all), c.state, c.cause)
		set("conflicts_acknowledged", float64(n.acknowledged), c.state, c.cause)
	}
	slices.SortFunc(shown, func(a, b *verdict.Conflict) int {
		return cmp.Or(-cmp.Compare(a.Phase, b.Phase), cmp.Compare(a.ID, b.ID))
	})
	for _, c := range shown[:min(len(shown), maxConflictInfo)] {
		var owners []string
		m.Facts.RLock()
		for i := range c.Owners {
			owners = append(owners, fmt.Sprintf("%s (%s)", explain.OwnerName(&c.Owners[i]), c.Owners[i].Node.Name))
		}
		m.Facts.RUnlock()
		set("conflict_info", 1, c.Address.String(), c.Scope, c.Cause, c.ID, m.Incidents.Of(c.ID), word(pb.Conflict_State(c.Phase)), several(owners, " | "))
		set("conflict_detected_timestamp_seconds", seconds(c.DetectedAt), c.Address.String(), c.ID)
	}
}

// collectFindings sends the series of individual findings: the same ones at each scrape, and the
// more severe ones first.
func (m *Metrics) collectFindings(set scrape) {
	shown := m.Findings.All()
	slices.SortFunc(shown, func(a, b *judge.Found) int {
		return cmp.Or(-cmp.Compare(a.Severity, b.Severity), a.Place.Compare(b.Place))
	})
	m.Facts.RLock()
	defer m.Facts.RUnlock()
	for _, f := range shown[:min(len(shown), maxFindingSeries)] {
		address, pool := f.Place.Address, ""
		if f.Pool != nil {
			pool = f.Pool.Name
		}
		var holders []string
		for i := range f.Owners {
			holders = append(holders, explain.OwnerName(&f.Owners[i]))
		}
		if f.Stock != nil && len(f.Stock.AtRisk) > 0 {
			address = f.Stock.AtRisk[0].Address.String()
			if more := len(f.Stock.AtRisk) - 1; more > 0 {
				address += fmt.Sprintf(" and %d more", more)
			}
		}
		set("finding_detected_timestamp_seconds", seconds(f.Since), f.Kind, word(pb.Finding_Severity(f.Severity)),
			address, several(audit.Nodes(f.Finding), ", "), several(holders, " | "), pool, f.ID)
	}
}

// several joins the first maxNamedMetrics names, and adds the number of the remaining ones.
func several(names []string, between string) string {
	if more := len(names) - maxNamedMetrics; more > 0 {
		return strings.Join(names[:maxNamedMetrics], between) + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, between)
}

func seconds(at verdict.Stamp) float64 { return float64(at.Time().UnixMilli()) / 1000 }

// collectNodes sends the state of nodes. If several nodes have the same name, it counts as
// connected when one of them is.
func (m *Metrics) collectNodes(set scrape) {
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
		if left := n.LeftOut.Records + n.LeftOut.Wire + n.Excess; left > 0 {
			leftOut[n.Rec.Name] = -float64(left)
		}
	}
	m.Facts.RUnlock()

	first := func(of map[string]float64) []string { // the ones with the smallest values
		names := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[a], of[b]), cmp.Compare(a, b)) })
		return names[:min(len(names), maxNodeSeries)]
	}
	for _, name := range first(leftOut) {
		set("node_left_out_records", -leftOut[name], name)
	}
	set("nodes", float64(len(a.Heard)), "live")
	set("nodes", float64(disconnected), "disconnected")
	set("nodes", float64(len(a.Absent)), "absent")
	for _, name := range first(up) {
		set("node_up", up[name], name)
		if ahead, known := skew[name]; known {
			set("node_clock_skew_seconds", ahead, name)
		}
	}
}

// collectPools sends the state of pools. The fullest pools have series of their own: the same ones at each
// scrape, and those that alerts need.
func (m *Metrics) collectPools(set scrape) {
	type kind struct{ ipam, state string }
	type one struct {
		judge.PoolPlace
		network string
		verdict.PoolUse
	}
	kinds, allocations := make(map[kind]int), make(map[string]int)
	var pools []one
	m.Facts.RLock()
	for p := range m.Facts.Pools {
		kinds[kind{p.Rec.IPAM, word(pb.Pool_State(p.Rec.State))}]++
		allocations[p.Rec.IPAM] += p.Allocated.Of(audit.Both)
		pools = append(pools, one{judge.PoolPlaceOf(p), p.Rec.Network, m.Findings.Use(p)})
	}
	m.Facts.RUnlock()
	slices.SortFunc(pools, func(a, b one) int {
		return cmp.Or(cmp.Compare(filled(b.PoolUse), filled(a.PoolUse)), a.Compare(b.PoolPlace))
	})
	for k, n := range kinds {
		set("ipam_pools", float64(n), k.ipam, k.state)
	}
	for ipam, n := range allocations {
		set("ipam_allocations", float64(n), ipam)
	}
	for _, p := range pools[:min(len(pools), maxPoolSeries)] {
		if p.Size > 0 {
			set("ipam_pool_size", float64(p.Size), p.IPAM, p.Node, p.Name, p.network)
		}
		set("ipam_pool_allocated", float64(p.Allocated), p.IPAM, p.Node, p.Name, p.network)
		set("ipam_pool_leaked", float64(p.Leaked), p.IPAM, p.Node, p.Name, p.network)
	}
}

// filled returns the usage of a pool as one of a few steps that rarely change: less than half,
// half, nearly full (90 %), and full.
func filled(use verdict.PoolUse) (step int) {
	for _, part := range []float64{0.5, 0.9, 1} {
		if use.Size > 0 && float64(use.Allocated) >= part*float64(use.Size) {
			step++
		}
	}
	return step
}

// word returns a value of the API in the form that labels have.
func word(value fmt.Stringer) string { return strings.ToLower(value.String()) }

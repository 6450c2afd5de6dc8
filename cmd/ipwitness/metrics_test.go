package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/ipwitness/ipwitness/agent"
	"github.com/ipwitness/ipwitness/aggregator"
	transitions "github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/secure"
	"github.com/ipwitness/ipwitness/tests/golden"
)

// registered is a registry that records the collectors that were registered.
type registered struct {
	*prometheus.Registry
	descs []*prometheus.Desc
}

func (r *registered) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() { c.Describe(descs); close(descs) }()
	for d := range descs {
		r.descs = append(r.descs, d)
	}
	return r.Registry.Register(c)
}

func (r *registered) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// values describes the values of labels: a list, or a description. A key is a label, or a metric
// with a label if that label differs there.
var values = map[string]string{
	"address": "the address, or range of addresses", "id": "the id of the conflict or finding", "incident": "the id of the incident that the conflict belongs to", "node": "the node's name",
	"scope":  "the name of the scope: the network's, the node's, or NODE/IFACE[.VLAN]",
	"owners": "who they are, four at most, with their nodes", "holder": "who holds the address, four at most",
	"pool": "the name of the pool: a directory on the node, or the object's name", "network": "the CNI network that the pool is of",
	"version": "of the program", "revision": "the commit", "goversion": "of Go",
	"cause":      oneOf(verdict.CauseIPAMStateLost, verdict.CauseIPAMAllocatedTwice, verdict.CauseIPAMBookedElsewhere, verdict.CausePodCIDROverlap, verdict.CauseOverlappingNetworks, verdict.CauseStaticAddress, verdict.CauseTunnelAddress, verdict.CauseOrphanedSandbox, verdict.CauseReplacedNamespace, verdict.CauseLeftoverNamespace, verdict.CauseDHCPClientIdentity, verdict.CauseTwoDHCPServers, verdict.CauseSplitBrain, verdict.CauseClonedMachine, verdict.CauseTakenAlong, verdict.CauseExternalDevice, verdict.CauseUnknown),
	"what":       oneOf("report", "records", "judgement", "journal"),
	"kind":       oneOf(verdict.FindingKinds()...),
	"severity":   oneOf("info", "warning", "critical"),
	"scope_kind": oneOf("none", "link", "node", "network"),
	"ipam":       oneOf(ipamNames()...),
	"method":     oneOf("Version", "ListPodSandbox", "PodSandboxStatus"),
	"of":         oneOf("owners", "incidents", "conflicts", "findings", "events", "nodes"),
	"mode":       oneOf("tcx", "clsact"),
	"protocol":   oneOf("arp", "ndp"),
	"resource":   oneOf("pods", "nodes", "services", "leases", "events"),
	"reason":     oneOf("unauthenticated", "forbidden", "too_many"),
	"record":     oneOf("namespace", "interface", "link", "claim", "pool", "allocation", "belief", "status"),
	"exporter":   oneOf("otlp", "alertmanager", "webhook", "nats"), "receiver": "the host of the receiver's URL",
	"ipwitness_agent_aggregators/state":        oneOf("connected", "disconnected"),
	"ipwitness_agent_source_up/source":         oneOf("wire", "addresses"),
	"ipwitness_agent_lost_events_total/source": oneOf("netlink", "neighbours", "netlink_malformed", "inotify", "ringbuf", "port_full"),
	"ipwitness_agent_frames_total/result":      oneOf("event", "known", "probe", "malformed", "invalid", "other", "lost", "limited", "unparsed_tags", "unparsed_extensions", "unparsed_options"),
	"ipwitness_agent_cri_calls_total/result":   oneOf("ok", "error", "timeout", "unimplemented"),
	"ipwitness_kubernetes_events_total/result": oneOf("written", "repeated", "known", "limited", "dropped", "forbidden", "failed"),
	"ipwitness_conflicts/state":                oneOf("suspected", "confirmed"),
	"ipwitness_conflicts_acknowledged/state":   oneOf("suspected", "confirmed"),
	"ipwitness_conflict_info/state":            oneOf("suspected", "confirmed"),
	"cluster":                                  "the name of the cluster",
	"ipwitness_fleet_clusters/state":           oneOf("live", "disconnected", "waiting"),
	"ipwitness_fleet_conflicts/state":          oneOf("suspected", "confirmed"),
	"ipwitness_nodes/state":                    oneOf("live", "disconnected", "absent"),
	"ipwitness_ipam_pools/state":               oneOf("known", "reading", "missing", "unreadable", "stale"),
}

func ipamNames() (names []string) {
	for _, m := range registry.All {
		names = append(names, m.Name)
	}
	return names
}

func oneOf(all ...string) string { return "`" + strings.Join(all, "`, `") + "`" }

// metric is a metric of ipwitness.
type metric struct {
	name, kind, help string
	labels           []string
}

const reference = "../../docs/metrics.md"

// describe returns what a Desc says, by collecting a metric of it. The values of its labels are a, b and so on.
func describe(t *testing.T, d *prometheus.Desc) metric {
	t.Helper()
	var made prometheus.Metric
	var letters []string
	for err := error(errors.ErrUnsupported); err != nil; {
		if made, err = prometheus.NewConstMetric(d, prometheus.GaugeValue, 1, letters...); err != nil {
			letters = append(letters, string(rune('a'+len(letters))))
		}
		if len(letters) > 20 {
			t.Fatalf("make a metric of %s: %v", d, err)
		}
	}
	r := prometheus.NewRegistry()
	r.MustRegister(constant{d, made})
	families, err := r.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("got %d families, %v", len(families), err)
	}
	one := metric{name: families[0].GetName(), help: families[0].GetHelp()}
	pairs := families[0].GetMetric()[0].GetLabel()
	slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetValue(), b.GetValue()) })
	for _, p := range pairs {
		one.labels = append(one.labels, p.GetName())
	}
	return one
}

// constant collects one metric.
type constant struct {
	desc   *prometheus.Desc
	metric prometheus.Metric
}

func (c constant) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

func (c constant) Collect(to chan<- prometheus.Metric) { to <- c.metric }

// allMetrics returns the metrics that agent and aggregator register, by name.
func allMetrics(t *testing.T) []metric {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r := &registered{Registry: cli.NewRegistry(cli.Build{})}
	if _, err := agent.New(agent.Config{Node: "node1"}, log, r); err != nil {
		t.Fatal(err)
	}
	if _, err := aggregator.New(aggregator.Config{Kubeconfig: kubeconfig}, log, r); err != nil {
		t.Fatal(err)
	}
	r.MustRegister(secure.Files{})
	fleet := &registered{Registry: prometheus.NewRegistry()}
	if _, err := aggregator.NewFleet(aggregator.Config{DataDir: t.TempDir(), NATS: transitions.Settings{Servers: []string{"nats://192.0.2.1"}}}, log, fleet); err != nil {
		t.Fatal(err)
	}
	r.descs = append(r.descs, fleet.descs...)
	all := map[string]metric{"ipwitness_build_info": {labels: []string{"version", "revision", "goversion"}}}
	for _, d := range r.descs {
		one := describe(t, d)
		all[one.name] = one
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if one, ours := all[f.GetName()]; ours {
			one.kind, one.help = strings.ToLower(f.GetType().String()), f.GetHelp()
			all[f.GetName()] = one
		}
	}
	var out []metric
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		m.name = name
		if m.kind == "" { // no series yet
			m.kind = "gauge"
			if strings.HasSuffix(name, "_total") {
				m.kind = "counter"
			}
		}
		out = append(out, m)
	}
	return out
}

// TestMetricsReferenceIsUpToDate checks that docs/metrics.md lists all metrics. -update writes it.
func TestMetricsReferenceIsUpToDate(t *testing.T) {
	var page strings.Builder
	page.WriteString(`# Metrics

Generated from the program by ` + "`go test ./cmd/ipwitness -run MetricsReference -update`" + `; do not edit. [observability.md](observability.md) says how they are scraped, and what to alert on.

An agent has ` + "`ipwitness_agent_…`" + `, an aggregator the others, ` + "`ipwitness run`" + ` both, a [fleet](fleet.md) ` + "`ipwitness_fleet_…`" + `; each has ` + "`ipwitness_build_info`" + `, and the standard metrics of Go's client (` + "`go_…`, `process_…`" + `). ` +
		"`ipwitness_kubernetes_…`" + ` exists if a Kubernetes API is used.

| Metric | Type | Labels | Meaning |
|---|---|---|---|
`)
	used := map[string][]string{}
	for _, m := range allMetrics(t) {
		fmt.Fprintf(&page, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(m.labels, ", "), strings.ReplaceAll(m.help, "|", `\|`))
		for _, l := range m.labels {
			key := m.name + "/" + l
			if _, special := values[key]; !special {
				key = l
			}
			used[key] = append(used[key], m.name)
		}
	}
	page.WriteString("\n## Labels\n\n| Label | Of | Values |\n|---|---|---|\n")
	for _, key := range slices.SortedFunc(maps.Keys(used), func(a, b string) int {
		return strings.Compare(a[strings.Index(a, "/")+1:]+a, b[strings.Index(b, "/")+1:]+b)
	}) {
		if values[key] == "" {
			t.Errorf("the values of label %s are not defined", key)
		}
		fmt.Fprintf(&page, "| %s | `%s` | %s |\n", key[strings.Index(key, "/")+1:], strings.Join(used[key], "`, `"), values[key])
	}
	for key := range values {
		if used[key] == nil {
			t.Errorf("no metric has the label %s", key)
		}
	}
	page.WriteString(bounds)
	golden.Compare(t, reference, page.String(), "make generate-observability writes it")
}

const bounds = `
## How many series

No metric has a series for each pod or address. Metrics with a series for each item have a limit, and return the same items at each scrape:

| Of each | At most | Which |
|---|---|---|
| conflict that is not acknowledged | 1000, with 2 series each | confirmed ones first |
| finding | 1000 | critical ones first |
| pool | 1000, with 3 series each | full pools first, then pools that are 90 % and 50 % full; by name |
| node | 5000, with 2 series each | disconnected nodes first |
| cluster of a fleet | with 4 series each, no limit | all |

An agent has about 30 series of its own, regardless of the events on its node, and an aggregator about 65. Go's client library adds about 45 to each. ` + "`TestSeriesAreBounded`" + ` (aggregator, agent) starts and stops 10,000 pods, with conflicts and findings.
`

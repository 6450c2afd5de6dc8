package prometheus

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ipwitness/ipwitness/tests/golden"
)

// TestDashboardsAreUpToDate compares the dashboards in the chart with dashboards.go. -update writes
// them.
func TestDashboardsAreUpToDate(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range Dashboards() {
		var want bytes.Buffer
		encode := json.NewEncoder(&want)
		encode.SetEscapeHTML(false)
		encode.SetIndent("", "  ")
		if err := encode.Encode(d); err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, filepath.Join(files, "dashboards", name), want.String(), "make generate-observability writes it")
	}
	read, err := ReadDashboards()
	if err != nil {
		t.Fatal(err)
	}
	for name := range read {
		if _, ours := Dashboards()[name]; !ours {
			t.Errorf("%s is made by nothing", name)
		}
	}
}

// TestDashboardsKeepTheRules is our linter, because Grafana's own is not available.
func TestDashboardsKeepTheRules(t *testing.T) {
	all, err := ReadDashboards()
	if err != nil {
		t.Fatal(err)
	}
	metrics := documented(t)
	fixed := regexp.MustCompile(`\b(job|instance|cluster|namespace)\s*(=|!=|=~|!~)\s*"[^$]`)
	selector := regexp.MustCompile(`\bipwitness_\w+(\{cluster=~"\$cluster"[,}])?`)
	acrossClusters := regexp.MustCompile(`\b(max|min|on) (by )?\(([^()]+)\)`)
	uids := map[string]bool{}
	for file, d := range all {
		bad := func(format string, args ...any) { t.Helper(); t.Errorf(file+": "+format, args...) }
		if want := "ipwitness-" + strings.TrimSuffix(file, ".json"); d.UID != want || uids[d.UID] {
			bad("got uid %q, want %q, once", d.UID, want)
		}
		uids[d.UID] = true
		if !strings.HasPrefix(d.Title, "ipwitness / ") || !sentence(d.Description) || !slices.Contains(d.Tags, "ipwitness") {
			bad("want a title that begins with ipwitness, a description and the tag ipwitness: got %q, %q, %q", d.Title, d.Description, d.Tags)
		}
		if d.SchemaVersion < 36 || d.SchemaVersion > 37 {
			bad("got schemaVersion %d, want that of Grafana 9", d.SchemaVersion)
		}
		for i, v := range d.Templating.List {
			if i == 0 && (v.Name != "datasource" || v.Type != "datasource" || v.Query != "prometheus") {
				bad("the first variable must be the data source: got %v", v)
			}
			if i == 1 && (v.Name != "cluster" || !strings.Contains(v.Query, "cluster)")) {
				bad("the second variable must be the cluster: got %v", v)
			}
			if i > 0 && (v.Datasource == nil || *v.Datasource != *chosen || !v.IncludeAll || v.AllValue != ".*") {
				bad("variable %s must be of the chosen data source, and have All, which matches also what has no such label: got %v", v.Name, v)
			}
		}
		ids, titles, used := map[int]bool{}, map[string]bool{}, map[Grid]string{}
		for _, p := range d.Panels {
			bad := func(format string, args ...any) { t.Helper(); bad(p.Title+": "+format, args...) }
			if p.ID == 0 || ids[p.ID] {
				bad("got id %d, want one of its own", p.ID)
			}
			if p.Title == "" || titles[p.Title+p.Type] || !sentence(p.Description) {
				bad("want a title of its own, and a description: got %q", p.Description)
			}
			ids[p.ID], titles[p.Title+p.Type] = true, true
			if !slices.Contains([]string{"stat", "table", "timeseries"}, p.Type) {
				bad("got type %s: it may be a plugin that is not there", p.Type)
			}
			if p.Datasource == nil || *p.Datasource != *chosen {
				bad("got data source %v, want %v", p.Datasource, chosen)
			}
			if p.FieldConfig == nil || p.FieldConfig.Defaults["unit"] == nil || p.FieldConfig.Defaults["unit"] == "" {
				bad("has no unit")
			}
			if g := p.GridPos; g.W < 4 || g.H < 4 || g.X < 0 || g.X+g.W > 24 {
				bad("got place %v, want one in 24 columns", g)
			}
			for g, other := range used {
				if p.GridPos.X < g.X+g.W && g.X < p.GridPos.X+p.GridPos.W && p.GridPos.Y < g.Y+g.H && g.Y < p.GridPos.Y+p.GridPos.H {
					bad("lies on %s", other)
				}
			}
			used[p.GridPos] = p.Title
			if len(p.Targets) == 0 {
				bad("has no query")
			}
			refs := map[string]bool{}
			for _, q := range p.Targets {
				if q.Expr == "" || refs[q.RefID] || q.Datasource == nil || *q.Datasource != *chosen || q.Instant == q.Range || q.LegendFormat == "" {
					bad("query %s: want an expression, the chosen data source, instant or range, a legend: got %v", q.RefID, q)
				}
				refs[q.RefID] = true
				if fixed.MatchString(q.Expr) {
					bad("query %s is of one job or instance: %s", q.RefID, q.Expr)
				}
				if strings.Contains(q.Expr, "rate(") && !strings.Contains(q.Expr, "[$__rate_interval]") {
					bad("query %s: want [$__rate_interval] in %s", q.RefID, q.Expr)
				}
				for _, m := range selector.FindAllStringSubmatch(q.Expr, -1) {
					if m[1] == "" {
						bad("query %s is not of the clusters that are chosen: %s", q.RefID, q.Expr)
					}
				}
				// Values about several clusters must be summed and joined per cluster.
				for _, m := range acrossClusters.FindAllStringSubmatch(q.Expr, -1) {
					if !strings.Contains(m[3], "cluster") {
						bad("query %s takes clusters for one in %s: %s", q.RefID, m[0], q.Expr)
					}
				}
				ours := metricName.FindAllString(q.Expr, -1)
				if len(ours) == 0 {
					bad("query %s is about nothing of ours: %s", q.RefID, q.Expr)
				}
				for _, m := range ours {
					if !metrics[m] {
						bad("docs/metrics.md has no metric %s", m)
					}
				}
			}
		}
	}
}

// TestDashboardsOfSeveralClusters evaluates queries with promtool for two clusters, one of which
// has two aggregators that report the same. Aggregators must not be summed, clusters must be, and
// nodes with equal names in two clusters must stay separate.
func TestDashboardsOfSeveralClusters(t *testing.T) {
	type sample struct {
		Labels string  `yaml:"labels"`
		Value  float64 `yaml:"value"`
	}
	type question struct {
		Expr    string   `yaml:"expr"`
		Time    string   `yaml:"eval_time"`
		Samples []sample `yaml:"exp_samples"`
	}
	type series struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	type play struct {
		Interval  string     `yaml:"interval"`
		Series    []series   `yaml:"input_series"`
		Questions []question `yaml:"promql_expr_test"`
	}
	one := play{Interval: "1m"}
	for target, tells := range map[string]string{
		`cluster="a", instance="a1"`: "2", `cluster="a", instance="a2"`: "2", `cluster="b", instance="b1"`: "3",
	} {
		for name, value := range map[string]string{
			`ipwitness_conflicts{state="confirmed", cause="unknown", `:              tells,
			`ipwitness_conflicts_acknowledged{state="confirmed", cause="unknown", `: "1",
			`ipwitness_nodes{state="live", `:                                        tells,
			`ipwitness_node_up{node="node-1", `:                                     "0",
			`ipwitness_findings{kind="leaked", `:                                    tells,
		} {
			one.Series = append(one.Series, series{name + target + "}", value + "x5"})
		}
	}
	chosen := func(d Dashboard, title, cluster string) string {
		for _, p := range d.Panels {
			if p.Title == title {
				return Expr(strings.ReplaceAll(p.Targets[0].Expr, "$cluster", cluster), "5m")
			}
		}
		t.Fatalf("no panel %s", title)
		return ""
	}
	for _, want := range []struct {
		d      Dashboard
		title  string
		all, b float64
	}{
		{overview(), "Confirmed conflicts", 3, 2},
		{overview(), "Acknowledged", 2, 1},
		{overview(), "Findings", 5, 3},
		{overview(), "Disconnected nodes", 2, 1},
		{aggregator(), "Connected nodes", 5, 3},
	} {
		one.Questions = append(one.Questions,
			question{chosen(want.d, want.title, ".*"), "1m", []sample{{"{}", want.all}}},
			question{chosen(want.d, want.title, "b"), "1m", []sample{{"{}", want.b}}})
	}
	file := filepath.Join(t.TempDir(), "dashboards.test.yaml")
	text, err := yaml.Marshal(map[string]any{"tests": []play{one}})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", file)
}

// sentence reports whether a text is a sentence.
func sentence(text string) bool {
	return len(text) > 10 && strings.HasSuffix(text, ".")
}

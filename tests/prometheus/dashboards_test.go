package prometheus

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the dashboards anew")

// TestDashboardsAreUpToDate wants the chart to have what dashboards.go says; -update
// writes it.
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
		file := filepath.Join(files, "dashboards", name)
		if *update {
			if err := os.WriteFile(file, want.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s is not what dashboards.go makes: go test ./tests/prometheus -run Dashboards -update (%v)", file, err)
		}
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

// TestDashboardsKeepTheRules is our linter: Grafana's own is not to be had.
func TestDashboardsKeepTheRules(t *testing.T) {
	all, err := ReadDashboards()
	if err != nil {
		t.Fatal(err)
	}
	metrics := documented(t)
	fixed := regexp.MustCompile(`\b(job|instance|cluster|namespace)\s*(=|!=|=~|!~)\s*"`)
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

// sentence tells whether a text says something.
func sentence(text string) bool {
	return len(text) > 10 && strings.HasSuffix(text, ".")
}

package prometheus

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// promtool runs Debian's promtool, which make test installs, and returns its output.
func promtool(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		if os.Getenv("IPWITNESS_ROOT_TESTS") != "" {
			t.Fatal("IPWITNESS_ROOT_TESTS is set: ", err)
		}
		t.Skip(err, ": run make test")
	}
	out, err := exec.Command("promtool", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// rule is a rule of rules.yaml.
type rule struct {
	Alert       string
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

func readRules(t *testing.T) (rules []rule, file string) {
	t.Helper()
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(files, "rules.yaml")
	var groups struct {
		Groups []struct{ Rules []rule }
	}
	readYAML(t, file, &groups)
	for _, g := range groups.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules, file
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestEachAlertHasACaseThatFiresAndOneThatDoesNot runs the cases of rules.test.yaml with promtool. Each alert must
// have a case in which it fires, and one in which it does not.
func TestEachAlertHasACaseThatFiresAndOneThatDoesNot(t *testing.T) {
	t.Parallel()
	const file = "rules.test.yaml"
	var cases struct {
		Tests []struct {
			Rules []struct {
				Alert  string `yaml:"alertname"`
				Alerts []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	readYAML(t, file, &cases)
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, one := range cases.Tests {
		for _, r := range one.Rules {
			fires[r.Alert] = fires[r.Alert] || len(r.Alerts) > 0
			quiet[r.Alert] = quiet[r.Alert] || len(r.Alerts) == 0
		}
	}
	rules, _ := readRules(t)
	for _, r := range rules {
		if !fires[r.Alert] || !quiet[r.Alert] {
			t.Errorf("%s has a case that fires: %t, and one that does not: %t; want both", r.Alert, fires[r.Alert], quiet[r.Alert])
		}
	}
	promtool(t, "test", "rules", file)
}

// TestAlertsHaveTheRequiredFields checks the required parts of each alert. aggregator/verdict
// checks that its runbook exists.
func TestAlertsHaveTheRequiredFields(t *testing.T) {
	t.Parallel()
	rules, file := readRules(t)
	promtool(t, "check", "rules", file)
	var names []string
	for _, r := range rules {
		if !strings.HasPrefix(r.Alert, "Ipwitness") || slices.Contains(names, r.Alert) {
			t.Errorf("alert %q: want a unique name that begins with Ipwitness", r.Alert)
		}
		names = append(names, r.Alert)
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s: got severity %q, want critical, warning or info", r.Alert, r.Labels["severity"])
		}
		for _, what := range []string{"summary", "description", "runbook_url"} {
			if r.Annotations[what] == "" {
				t.Errorf("%s has no %s", r.Alert, what)
			}
		}
	}
	// A Prometheus of several clusters has a label cluster: joins of an alert, and queries in its
	// annotations, must be restricted to its own cluster.
	for _, r := range rules {
		if regexp.MustCompile(`\bon ?\(\)`).MatchString(r.Expr) {
			t.Errorf("%s joins all clusters: %s", r.Alert, r.Expr)
		}
		for what, text := range r.Annotations {
			if all, own := strings.Count(text, "query"), len(ofItsCluster.FindAllString(text, -1)); all != own {
				t.Errorf("%s: %s has %d queries, %d of them for its own cluster; want all to be like %s", r.Alert, what, all, own, ofItsCluster)
			}
		}
	}
	metrics := documented(t)
	for _, r := range rules {
		for _, m := range metricName.FindAllString(r.Expr, -1) {
			if !metrics[m] {
				t.Errorf("%s: docs/metrics.md has no metric %s", r.Alert, m)
			}
		}
	}
	observability, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if !regexp.MustCompile("`" + r.Alert + "`.*" + r.Labels["severity"]).Match(observability) {
			t.Errorf("docs/observability.md has no row for %s with severity %s", r.Alert, r.Labels["severity"])
		}
	}
}

// ofItsCluster matches a query in an annotation that is restricted to the alert's own cluster.
var ofItsCluster = regexp.MustCompile(`printf "[^{}]*\{cluster=%q, [^{}]*\}\)*" \$labels\.cluster[^|{}]* \| query`)

// metricName matches the metrics of ipwitness in an expression.
var metricName = regexp.MustCompile(`\bipwitness_\w+`)

// documented returns the metrics in docs/metrics.md, including the series of histograms.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) ").FindAllStringSubmatch(string(raw), -1) {
		names[row[1]] = true
		if row[2] == "histogram" {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				names[row[1]+part] = true
			}
		}
	}
	if len(names) < 20 {
		t.Fatalf("got %d metrics in docs/metrics.md, want more", len(names))
	}
	return names
}

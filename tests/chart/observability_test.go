package main

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
)

// Their text is not evaluated as a template.
func TestDashboardsAndRulesAreWhatTheFilesSay(t *testing.T) {
	all := template(t, "ipwitness", "monitoring.dashboards.enabled=true,monitoring.rules.enabled=true")
	var m corev1.ConfigMap
	the(t, all, "ConfigMap", "ipwitness-dashboards", &m)
	files, err := filepath.Glob(filepath.Join(chart, "files/dashboards/*.json"))
	if err != nil || len(files) == 0 || len(files) != len(m.Data) {
		t.Fatalf("got %d dashboards of %d files (%v)", len(m.Data), len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var want, got any
		if err := errors.Join(json.Unmarshal(text, &want), json.Unmarshal([]byte(m.Data[filepath.Base(file)]), &got)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if a, b := mustJSON(t, want), mustJSON(t, got); a != b {
			t.Errorf("%s differs from the dashboard in the ConfigMap", file)
		}
	}
	text, err := os.ReadFile(filepath.Join(chart, "files/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want any
	var got struct{ Spec any }
	if err := yaml.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	the(t, all, "PrometheusRule", "ipwitness", &got)
	if a, b := mustJSON(t, want), mustJSON(t, got.Spec); a != b {
		t.Errorf("got\n%s\nwant\n%s", b, a)
	}
}

// An alert is left out by its name, and the other alerts stay unchanged.
func TestAlertsAreLeftOut(t *testing.T) {
	type rule struct {
		Spec struct {
			Groups []struct {
				Name  string
				Rules []map[string]any
			}
		}
	}
	rules := func(more string) (all map[string]string) {
		var r rule
		the(t, template(t, "ipwitness", "monitoring.rules.enabled=true"+more), "PrometheusRule", "ipwitness", &r)
		all = map[string]string{}
		for _, g := range r.Spec.Groups {
			for _, one := range g.Rules {
				all[g.Name+" "+one["alert"].(string)] = mustJSON(t, one)
			}
		}
		return all
	}
	want := rules("")
	for _, name := range []string{"ipwitness-agents IpwitnessAgentsAbsent", "ipwitness-agents IpwitnessAgentDown"} {
		if want[name] == "" {
			t.Fatalf("there is no %s", name)
		}
		delete(want, name)
	}
	if got := rules(",monitoring.rules.disabled={IpwitnessAgentsAbsent,IpwitnessAgentDown}"); !maps.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

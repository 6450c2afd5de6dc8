package main

import (
	"os"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

func TestTheChartKnowsEachIPAM(t *testing.T) {
	files, err := withIPAMs(registry.All)
	if err != nil || len(files) != 3 {
		t.Fatalf("got %d files (%v), want 3", len(files), err)
	}
	for path, want := range files {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is out of date (%v): run 'make generate'", path, err)
		}
	}
}

func TestRulesOfAnIPAM(t *testing.T) {
	one := &ipam.IPAM{Name: "one", Title: "One", Objects: func(ipam.Publisher) *ipam.Objects {
		return &ipam.Objects{Resources: []*ipam.Resource{
			{Kind: ipam.Kind{Group: "a", Resource: "x"}, Alternative: ipam.Kind{Group: "b", Resource: "x"}},
			{Kind: ipam.Kind{Group: "c", Resource: "z"}},
			{Kind: ipam.Kind{Group: "a", Resource: "y"}, Alternative: ipam.Kind{Group: "b", Resource: "y"}},
		}}
	}}
	got := ipamRules([]*ipam.IPAM{one, {Name: "files", Title: "Files"}})
	want := `  {{- if has "one" .Values.rbac.ipam }}
  # IPAM records: One.
  - apiGroups: [a, b]
    resources: [x, y]
    verbs: [list, watch]
  - apiGroups: [c]
    resources: [z]
    verbs: [list, watch]
  {{- end }}
`
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if names := strings.Join(namesOf([]*ipam.IPAM{{Name: "files"}, one}), ","); names != "one" {
		t.Errorf("got names %s, want one", names)
	}
}

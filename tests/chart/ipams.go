package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// ofIPAMs are the texts in the chart that concern the IPAMs of the cluster. Each is the group of
// its regular expression.
var ofIPAMs = []struct {
	path string
	at   *regexp.Regexp
	text func([]*ipam.IPAM) string
}{
	{"templates/rbac.yaml", regexp.MustCompile("(?s)  \\{\\{- /\\* ipam: generated from package ipam by `make generate` \\*/}}\n(.*?)  \\{\\{- /\\* end of ipam \\*/}}\n"), ipamRules},
	{"values.yaml", regexp.MustCompile(`(?m)^rbac:\n(?:(?:  .*)?\n)*?  ipam: \[(.*)\]$`), func(all []*ipam.IPAM) string { return strings.Join(namesOf(all), ", ") }},
	{"values.schema.json", regexp.MustCompile(`(?s)"ipam": \{\s+"type": "array",\s+"uniqueItems": true,\s+"items": \{\s+"enum": \[(.*?)\]`), ipamEnum},
}

// writeIPAMs writes the permissions and the names of the IPAMs of the cluster into the chart.
func writeIPAMs() error {
	files, err := withIPAMs(registry.All)
	for path, text := range files {
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
	}
	return err
}

// withIPAMs returns the files of the chart that concern the IPAMs of the cluster, by path.
func withIPAMs(all []*ipam.IPAM) (map[string]string, error) {
	files := map[string]string{}
	var faults []error
	for _, f := range ofIPAMs {
		path := filepath.Join(chart, f.path)
		was, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		places := f.at.FindAllSubmatchIndex(was, -1)
		if len(places) != 1 {
			faults = append(faults, fmt.Errorf("%s: got %d places for the IPAMs, want one", path, len(places)))
			continue
		}
		files[path] = string(was[:places[0][2]]) + f.text(all) + string(was[places[0][3]:])
	}
	return files, errors.Join(faults...)
}

// ipamRules returns the rules of the ClusterRole that allow reading the records of IPAMs. Groups
// with the same resources share a rule.
func ipamRules(all []*ipam.IPAM) string {
	var b strings.Builder
	for _, m := range all {
		var groups []string
		resources := map[string][]string{} // by group
		for _, k := range m.Kinds() {
			if resources[k.Group] == nil {
				groups = append(groups, k.Group)
			}
			if !slices.Contains(resources[k.Group], k.Resource) { // in another version
				resources[k.Group] = append(resources[k.Group], k.Resource)
			}
		}
		if len(groups) == 0 {
			continue
		}
		fmt.Fprintf(&b, "  {{- if has %q .Values.rbac.ipam }}\n  # IPAM records: %s.\n", m.Name, m.Title)
		for len(groups) > 0 {
			first := resources[groups[0]]
			other := func(group string) bool { return !slices.Equal(resources[group], first) }
			same := slices.DeleteFunc(slices.Clone(groups), other)
			groups = slices.DeleteFunc(groups, func(group string) bool { return !other(group) })
			fmt.Fprintf(&b, "  - apiGroups: [%s]\n    resources: [%s]\n    verbs: [list, watch]\n", strings.Join(same, ", "), strings.Join(first, ", "))
		}
		b.WriteString("  {{- end }}\n")
	}
	return b.String()
}

// namesOf returns the names of the IPAMs of the cluster, sorted.
func namesOf(all []*ipam.IPAM) (names []string) {
	for _, m := range all {
		if len(m.Kinds()) > 0 {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}

// ipamEnum returns the values that the schema allows.
func ipamEnum(all []*ipam.IPAM) string {
	const indent = "\n              "
	return indent + `"` + strings.Join(namesOf(all), `",`+indent+`"`) + `"` + "\n            "
}

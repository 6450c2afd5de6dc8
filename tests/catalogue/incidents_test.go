package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPageOfIncidentsHasOnlyWhatTestsShow(t *testing.T) {
	const (
		plays  = "package tests\nfunc TestX(t *testing.T) { l.incident(7) }\n"
		record = "test: TestX\ndetected: CONFIRMED x\ncause: y\n\n$ ipwitness explain\nz\n"
	)
	for name, c := range map[string]struct{ source, file, record, want string }{
		"a record of a test":           {plays, "07-TestX", record, ""},
		"a test without a record":      {plays, "", "", "has no file of it"},
		"a record without a test":      {"package tests\n", "07-TestX", record, "no test TestX plays incident 7"},
		"a record of another incident": {plays, "08-TestX", record, "no test TestX plays incident 8"},
		"a record of another test":     {plays, "07-TestY", record, "of no incident and test"},
		"a number that is too large":   {plays, "41-TestX", record, "of no incident and test"},
		"an incident that is said to be unknowable": {
			"package tests\nfunc TestX(t *testing.T) { l.incident(40) }\n", "40-TestX", record, "said to be unknowable",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			files := map[string]string{"tests/x_test.go": c.source, incidentPage: "", incidentTexts + "/none": ""}
			if c.file != "" {
				files[incidentTexts+"/"+c.file+".txt"] = c.record
			}
			for file, text := range files {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cat := catalogue{tests: map[string]string{}, plays: map[played]bool{}}
			if err := cat.readTests("tests"); err != nil {
				t.Fatal(err)
			}
			err := cat.incidentTable()
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want an error that says %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			page, err := os.ReadFile(incidentPage)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				"| [7](#7) | " + incidents[6].what + " | `CONFIRMED x` | `y` |  |  |\n",
				"| | **Sum** | **1 of 40** | **1 of 40** | **0 of 40** | **0 of 40** |\n",
				"Played by `TestX` ([tests/x_test.go](../tests/x_test.go)):\n\n```\n$ ipwitness explain\nz\n```\n",
				"*Not yet: no test plays it.*",
			} {
				if !strings.Contains(string(page), want) {
					t.Errorf("got\n%s\nwant it to have\n%s", page, want)
				}
			}
		})
	}
}

package main

import (
	"encoding/csv"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// withItems returns a server with two owners of one address, two conflicts and a finding.
func withItems(c *pb.Coverage) handler {
	h := covered(c, true)
	held := timestamppb.New(now)
	h["/v1/owners"] = ok(&pb.ListOwnersResponse{Coverage: c, Owners: []*pb.Owner{
		{Address: "10.0.0.7", Node: "n1", FirstSeen: held, Workload: &pb.Workload{Kind: pb.Workload_CONTAINER, Name: "a,\x1b\"b"}},
		{Address: "10.0.0.7", Node: "n2"},
		{Address: "10.0.0.8", Node: "n1"},
	}})
	one, two := conflict("abc", pb.Conflict_CONFIRMED), conflict("def", pb.Conflict_SUSPECTED)
	one.Episode = 1000000
	h["/v1/conflicts"] = ok(&pb.ListConflictsResponse{Coverage: c, Conflicts: []*pb.Conflict{one, two}})
	return h
}

func TestOutputFormats(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"owners", "-o", "name"}, "10.0.0.7\n10.0.0.8\n"},
		{[]string{"conflicts", "-o", "name"}, "abc\ndef\n"},
		{[]string{"conflicts", "abc", "-o", "name"}, "abc\n"},
		{[]string{"audit", "-o", "name"}, "abc\n"},
		{[]string{"owners", "-o", "jsonpath={.owners[*].node}"}, "n1 n2 n1"},
		{[]string{"owners", "-o", `jsonpath={range .owners[*]}{.node}{"\t"}{.workload.name}{"\n"}{end}`}, "n1\ta,\ufffd\"b\nn2\t\nn1\t\n"},
		{[]string{"conflicts", "-o", "jsonpath={.conflicts[0].episode} {.coverage.heard}"}, "1000000 1"},
		{[]string{"conflicts", "abc", "-o", "jsonpath={.state}"}, "CONFIRMED"},
		{[]string{"owners", "-o", "jsonpath={.nothing}"}, ""},
	} {
		c := serve(t, withItems(everything))
		c.run(t, 0, test.args...)
		if got := c.stdout.String(); got != test.want {
			t.Errorf("%q: got %q, want %q", test.args, got, test.want)
		}
	}
}

func TestCSVHasAllColumnsAndTimes(t *testing.T) {
	for args, want := range map[string]map[string]string{
		"owners -o csv":        {"address": "10.0.0.7", "workload": "container/a,\ufffd\"b", "node": "n1", "since": "2026-03-14T15:09:26Z", "mac": ""},
		"conflicts -o csv":     {"id": "abc", "state": "CONFIRMED", "since": "2026-03-14T15:08:26Z", "resolved": "", "episode": "1000000"},
		"conflicts abc -o csv": {"id": "abc"},
		"audit -o csv":         {"id": "abc", "kind": "in-use-unallocated", "since": "2026-03-14T15:08:26Z"},
	} {
		c := serve(t, withItems(everything))
		c.run(t, 0, strings.Fields(args)...)
		rows, err := csv.NewReader(&c.stdout).ReadAll()
		if err != nil || len(rows) < 2 {
			t.Errorf("%s: got %d rows and %v, want a header and items", args, len(rows), err)
			continue
		}
		for name, value := range want {
			if at := slices.Index(rows[0], name); at < 0 || rows[1][at] != value {
				t.Errorf("%s: got %q under %q, want %q as %s", args, rows[1], rows[0], value, name)
			}
		}
	}
}

func TestCSVHasNoFormulas(t *testing.T) {
	for name, want := range map[string]string{
		"=cmd|'/C calc'!A0": "'=cmd|'/C calc'!A0",
		"+1":                "'+1",
		"-2":                "'-2",
		"@SUM(A1)":          "'@SUM(A1)",
		"＝1":                "'＝1",
		"\t=1":              "\ufffd=1", // it is not printable
		"a; =1;-2":          "a; '=1;'-2",
		"a=b-c@d+e;f":       "a=b-c@d+e;f",
		"'":                 "'",
	} {
		owner := &pb.Owner{Address: "10.0.0.7", Workload: &pb.Workload{Process: name}}
		c := serve(t, handler{"/v1/owners": ok(&pb.ListOwnersResponse{Owners: []*pb.Owner{owner}, Coverage: everything})})
		c.run(t, 0, "owners", "-o", "csv")
		rows, err := csv.NewReader(&c.stdout).ReadAll()
		if err != nil || len(rows) != 2 {
			t.Fatalf("got %q and %v, want a header and an owner", rows, err)
		}
		if got := rows[1][slices.Index(rows[0], "process")]; got != want {
			t.Errorf("process %q: got %q, want %q", name, got, want)
		}
	}
}

func TestFormatsWithoutTheCoverageWarnOnStderr(t *testing.T) {
	for _, format := range []string{"name", "csv", "jsonpath={.owners[*].node}", "json"} {
		c := serve(t, withItems(oneSilent))
		c.run(t, 0, "owners", "-o", format)
		if got, want := strings.Contains(c.stderr.String(), "node-3"), format != "json"; got != want {
			t.Errorf("-o %s: got on stderr %q, want a warning: %t", format, &c.stderr, want)
		}
	}
}

func TestOutputFormatsThatAreRefused(t *testing.T) {
	for args, want := range map[string]string{
		"owners -o jsonpath={.owners": `--output: "{.owners" is not a JSONPath template: `,
		"conflicts -o names":          `--output: "names" is not one of table, wide, json, yaml, name, csv, jsonpath=TEMPLATE`,
		"owners -w -o csv":            "--output csv and --watch cannot be combined, because CSV has no events: remove one of them",
		"conflicts -w -o csv":         "--output csv and --watch cannot be combined, because CSV has no events: remove one of them",
		"audit -w -o csv":             "--output csv and --watch cannot be combined, because CSV has no events: remove one of them",
	} {
		c := newConsole()
		c.run(t, 1, strings.Fields(args)...)
		if got := c.stderr.String(); !strings.HasPrefix(got, "ipwitness: "+want) {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
}

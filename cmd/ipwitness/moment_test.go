package main

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ago returns the time that long before now.
func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }

// recorded returns an event about an owner in a container.
func recorded(before time.Duration, name string) *pb.Event {
	return &pb.Event{Time: ago(before), Type: pb.Watch_ADDED, Kind: pb.Event_OWNER, Owner: &pb.Owner{
		Address: "10.0.0.7", Node: "node-1", State: pb.Owner_LIVE, Workload: &pb.Workload{Kind: pb.Workload_CONTAINER, Name: name},
	}}
}

// past returns a server that records what it is asked for, and whose state has a gap.
func past(asked *url.Values, gap *pb.Gap, conflicts ...*pb.Conflict) handler {
	record := func(m proto.Message) func(*http.Request) (int, string) {
		return func(r *http.Request) (int, string) {
			*asked = r.URL.Query()
			return ok(m)(r)
		}
	}
	owner := recorded(0, "web").GetOwner()
	owner.AssignedAt = ago(3 * time.Hour)
	f := finding("abc", "in-use-unallocated", "10.0.0.7", pb.Finding_CRITICAL)
	f.Remedy = []*pb.Action{{Text: "Write it.", Command: "echo remedy"}}
	return handler{
		"/v1/owners":    record(&pb.ListOwnersResponse{Owners: []*pb.Owner{owner}, Coverage: everything, Gap: gap}),
		"/v1/conflicts": record(&pb.ListConflictsResponse{Conflicts: conflicts, Coverage: everything, Gap: gap}),
		"/v1/explain": record(&pb.ExplainResponse{
			Address: "10.0.0.7", Summary: "10.0.0.7 had one owner at that time.", Owners: []*pb.Owner{owner}, Conflicts: conflicts, Findings: []*pb.Finding{f}, Coverage: everything, Gap: gap,
		}),
		"/v1/findings": record(&pb.ListFindingsResponse{Findings: []*pb.Finding{f}, Coverage: everything, Gap: gap}),
	}
}

func TestAtIsATimeOfThePast(t *testing.T) {
	for _, command := range []string{"owners", "conflicts", "audit", "explain"} {
		for _, test := range []struct {
			args []string
			want string
		}{
			{[]string{"--at", "-2h"}, "2026-03-14T13:09:26Z"},
			{[]string{"--at=-2h"}, "2026-03-14T13:09:26Z"},
			{[]string{"--at", "2h ago"}, "2026-03-14T13:09:26Z"},
			{[]string{"--at", "14:03"}, "2026-03-14T14:03:00Z"},
			{[]string{"--at", "15:10"}, "2026-03-13T15:10:00Z"},
			{[]string{"--at", "2026-03-14T14:03:00.000000001+01:00"}, "2026-03-14T13:03:00.000000001Z"},
			{[]string{"--at", "now"}, "2026-03-14T15:09:26Z"},
			{nil, ""},
		} {
			var asked url.Values
			c := serve(t, past(&asked, nil))
			if command == "audit" && test.args == nil {
				continue // lists pools, too
			}
			args := append([]string{command}, test.args...)
			if command == "explain" {
				args = append(args, "10.0.0.7")
			}
			c.run(t, 0, args...)
			if got := asked.Get("at"); got != test.want {
				t.Errorf("%s %q: got the state at %q, want %q", command, test.args, got, test.want)
			}
		}
		for args, want := range map[string]string{
			"--at -2h --watch":      "--at and --watch cannot be combined, because the past does not change: remove one of them\n",
			"--at 2026-03-15":       "--at: \"2026-03-15\" is in the future: it is 2026-03-14 15:09:26 UTC now\nRun 'ipwitness " + command + " --help' for usage.\n",
			"--at -2h --watch -o x": "--output: \"x\" is not one of table, wide, json, yaml, name, csv, jsonpath=TEMPLATE\nRun 'ipwitness " + command + " --help' for usage.\n",
		} {
			if command == "explain" {
				if strings.Contains(args, "--watch") {
					continue // it has no such flag
				}
				args += " 10.0.0.7"
			}
			c := newConsole()
			c.run(t, 1, append([]string{command}, strings.Fields(args)...)...)
			c.wantStderr(t, "ipwitness: "+want)
		}
	}
	c := newConsole()
	c.run(t, 1, "explain", "10.0.0.7", "-o", "case", "--at", "-2h")
	c.wantStderr(t, "ipwitness: --at and -o case cannot be combined, because cases are not recorded: remove one of them\n")
	c = newConsole()
	c.run(t, 1, "audit", "--fix-plan", "--at", "-2h")
	c.wantStderr(t, "ipwitness: --fix-plan and --at cannot be combined, because a plan repairs the current state: remove one of them\n")
}

func TestTheStateOfThePastNamesItsTimeAndGap(t *testing.T) {
	const state = "The state at 2026-03-14 13:09:26 UTC, 2h ago:\n"
	const lost = "Warning: nothing was recorded from 2026-03-14 12:00:00 UTC to 2026-03-14 14:00:00 UTC (the journal could not be written, and 12 changes were lost): changes in this period may be missing.\n"
	gap := &pb.Gap{
		From: timestamppb.New(time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)), Until: timestamppb.New(time.Date(2026, 3, 14, 14, 0, 0, 0, time.UTC)),
		Reason: pb.Gap_NOT_WRITTEN, Lost: 12,
	}
	before := conflict("abc", pb.Conflict_CONFIRMED)
	before.DetectedAt = ago(2*time.Hour + 5*time.Minute)
	before.Remedy = []*pb.Action{{Text: "Delete it.", Command: "kubectl delete pod x"}}
	for _, test := range []struct {
		args      string
		conflicts []*pb.Conflict
		want, not string // on stdout
		note      string
		code      int
	}{
		{args: "owners", want: "  1h", not: "EVIDENCE"}, // the age at that time
		{args: "conflicts", conflicts: []*pb.Conflict{before}, want: "5m ago"},
		{args: "explain 10.0.0.7", conflicts: []*pb.Conflict{before}, want: "CONFIRMED, for 5m", not: "kubectl delete"},
		{args: "explain abc", conflicts: []*pb.Conflict{before}, want: "10.0.0.7 had one owner", not: "kubectl delete"},
		{args: "conflicts 10.0.0.7", conflicts: []*pb.Conflict{before}, want: "CONFIRMED, for 5m", not: "kubectl delete"},
		{args: "conflicts abc", conflicts: []*pb.Conflict{before}, want: "CONFIRMED, for 5m", not: "kubectl delete"},
		{args: "conflicts --exit-code", conflicts: []*pb.Conflict{before}, want: "5m ago", code: 2},
		{args: "conflicts --exit-code", note: "No conflicts are known.\n", code: 3},
		{args: "conflicts 10.0.0.7", note: "No conflict about 10.0.0.7 is known.\n"},
		{args: "audit", want: "in-use-unallocated", not: "IPAM  "}, // without pools
		{args: "audit abc", want: "IPAM is wrong", not: "echo "},
		{args: "audit node-1", want: "in-use-unallocated"},
		{args: "audit --exit-code", want: "in-use-unallocated", code: 2},
		{args: "audit node-2 --exit-code", note: "No finding about node-2 is known.\n", code: 3},
		{args: "audit --kind leaked --exit-code", note: "No finding of kind leaked is known.\n", code: 3},
	} {
		var asked url.Values
		c := serve(t, past(&asked, gap, test.conflicts...))
		c.run(t, test.code, append(strings.Fields(test.args), "--at", "-2h")...)
		c.wantStderr(t, state+lost+test.note)
		if out := c.stdout.String(); !strings.Contains(out, test.want) || test.not != "" && strings.Contains(out, test.not) {
			t.Errorf("%s: got\n%s\nwant %q and not %q", test.args, out, test.want, test.not)
		}
	}
	for command, list := range map[string]proto.Message{
		"owners": &pb.ListOwnersResponse{}, "conflicts": &pb.ListConflictsResponse{}, "audit": &pb.ListFindingsResponse{},
	} {
		var asked url.Values
		c := serve(t, past(&asked, gap))
		c.run(t, 0, command, "--at", "-2h", "-o", "json")
		c.wantStderr(t, "")
		var at struct{ At time.Time }
		if err := json.Unmarshal(c.stdout.Bytes(), &at); err != nil || !at.At.Equal(now.Add(-2*time.Hour)) {
			t.Errorf("%s: got the time %s, %v, want two hours ago", command, at.At, err)
		}
		err := decode(c.stdout.Bytes(), list)
		if got := list.(interface{ GetGap() *pb.Gap }).GetGap(); err != nil || !proto.Equal(got, gap) {
			t.Errorf("%s: got gap %v, %v, want %v", command, got, err, gap)
		}
	}
	var asked url.Values
	c := serve(t, past(&asked, gap))
	c.run(t, 0, "conflicts", "abc", "--at", "-2h")
	c.wantStderr(t, state+lost+"No conflict about abc is known.\n")
	c = serve(t, past(&asked, gap, before))
	c.run(t, 0, "conflicts", "abc", "--at", "-2h", "-o", "json")
	c.wantStderr(t, lost) // a conflict does not contain the gap
}

// A time before the journal is an error, and with --exit-code "cannot tell".
func TestAtIsBeforeTheJournal(t *testing.T) {
	const message = "at is 2026-03-12T00:00:00Z, before the journal begins (2026-03-13T00:00:00Z)"
	early := func(*http.Request) (int, string) { return 400, `{"code":11,"message":"` + message + `"}` }
	server := handler{"/v1/owners": early, "/v1/conflicts": early, "/v1/findings": early}
	for _, args := range []string{"owners", "conflicts", "conflicts abc", "audit", "audit abc"} {
		args := append(strings.Fields(args), "--at", "2026-03-12")
		c := serve(t, server)
		c.run(t, 1, args...)
		c.wantStderr(t, "ipwitness: "+message+"\n")
		if args[0] == "owners" {
			continue
		}
		c = serve(t, server)
		c.run(t, 3, append(args, "--exit-code")...)
		c.wantStderr(t, "Cannot tell: "+message+"\n")
	}
}

package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// An incident with one member opens as the member; others list their members.
func TestAnIncidentOpensItsMembers(t *testing.T) {
	asked := ""
	server := covered(everything, true)
	server["/v1/incidents/abcd"] = ok(&pb.Incident{Id: "abcd", Summary: "Several.", AddressCount: 2, Remedy: []*pb.Action{{Text: "Do it."}}})
	members := server["/v1/conflicts"]
	server["/v1/conflicts"] = func(r *http.Request) (int, string) {
		if of := r.URL.Query().Get("incident"); of != "" {
			asked = of
		}
		return members(r)
	}
	c := serve(t, server)
	c.run(t, 0, "incidents", "abcd")
	if got := c.stdout.String(); asked != "abcd" || !strings.HasPrefix(got, "Several.") || !strings.Contains(got, "1. Do it.") ||
		!strings.Contains(got, "\nConflicts:\n") || !strings.Contains(got, "\nFindings:\n") {
		t.Errorf("asked for the members of %q, got\n%s", asked, got)
	}
	server["/v1/findings"] = ok(&pb.ListFindingsResponse{Coverage: everything})
	c = serve(t, server)
	c.run(t, 0, "incidents", "abcd")
	if got := c.stdout.String(); !strings.Contains(got, "Conflict:  abc\n") {
		t.Errorf("got\n%s\nwant the only conflict", got)
	}
	for _, command := range []string{"conflicts", "audit"} {
		c = serve(t, server)
		c.run(t, 0, command, "--incident", "abcd")
	}
}

func TestIncidentsAreListed(t *testing.T) {
	for _, test := range []struct {
		args, want string
		code       int
	}{
		{"incidents --exit-code", "abcd", 2},
		{"incidents -o name", "abcd\n", 0},
		{"incidents -o csv --sort-by twice", "id,severity,cause", 0},
		{"incidents -o json", `"incidents"`, 0},
		{"incidents -o jsonpath={.incidents[*].id}", "abcd", 0},
	} {
		c := serve(t, covered(everything, true))
		c.run(t, test.code, strings.Fields(test.args)...)
		if got := c.stdout.String(); !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q in it", test.args, got, test.want)
		}
	}
	c := serve(t, covered(oneSilent, false))
	c.run(t, 3, "incidents", "--exit-code")
	if !strings.Contains(c.stderr.String(), "No incidents are known.") {
		t.Errorf("got %q, want that none is known", &c.stderr)
	}
}

func TestIncidentsAreFollowed(t *testing.T) {
	for _, args := range [][]string{{"incidents", "-w"}, {"incidents", "abcd", "-w", "-o", "json"}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			one := `{"result":{"type":"ADDED","incident":{"id":"abcd","severity":"CRITICAL","summary":"Several.","addressCount":7}}}` + "\n"
			s := &script{cancel: cancel, tries: []try{{status: 200, body: one + line("BOOKMARK", "") + strings.Replace(one, "ADDED", "REMOVED", 1)}}}
			c := newConsole()
			c.transport = s
			if code := execute(ctx, c.system, args); code != 0 {
				t.Errorf("%v: got exit code %d, want 0", args, code)
			}
			if got := c.stdout.String(); !strings.Contains(got, "ADDED") || !strings.Contains(got, "REMOVED") || !strings.Contains(got, "Several.") {
				t.Errorf("%v: got\n%s\nwant the incident and its end", args, got)
			}
		})
	}
	c := newConsole()
	c.run(t, 1, "incidents", "-w", "--exit-code")
}

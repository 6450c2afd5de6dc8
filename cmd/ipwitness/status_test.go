package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A status exits with what is known, and says so in its first line.
func TestStatus(t *testing.T) {
	quiet := covered(everything, false)
	quiet["/v1/incidents"] = ok(&pb.ListIncidentsResponse{Coverage: everything, Incidents: []*pb.Incident{{Id: "a", Severity: pb.Finding_INFO, Findings: 1}}})
	known := covered(everything, false)
	known["/v1/incidents"] = ok(&pb.ListIncidentsResponse{Coverage: everything, Incidents: []*pb.Incident{{Id: "a", Severity: pb.Finding_INFO, Acknowledged: 1}}})
	for _, test := range []struct {
		name   string
		server handler
		code   int
		first  string
	}{
		{"a conflict", covered(everything, true), 2, "1 address has more than one owner."},
		{"a conflict, where not everything is seen", covered(oneSilent, true), 2, "1 address has more than one owner."},
		{"one silent", covered(oneSilent, false), 3, "Nothing is known to be wrong, but not everything is seen."},
		{"just started", covered(starting, false), 3, "Nothing is known to be wrong, but not everything is seen."},
		{"a finding below WARNING", quiet, 0, "No address has two owners, and nothing needs attention."},
		{"a conflict that is acknowledged", known, 0, "No address has two owners, and nothing needs attention."},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, history := range []bool{true, false} {
				test.server["/v1/events"] = ok(&pb.ListEventsResponse{ReachesBackTo: ago(48 * time.Hour)})
				want := "since "
				if !history {
					test.server["/v1/events"] = func(*http.Request) (int, string) {
						return http.StatusBadRequest, `{"code":9,"message":"the aggregator records no history"}`
					}
					want = "none is kept"
				}
				c := serve(t, test.server)
				c.run(t, test.code, "status")
				if first, rest, _ := strings.Cut(c.stdout.String(), "\n"); first != test.first || !strings.Contains(rest, "History:   "+want) {
					t.Errorf("got\n%s\nwant %q first, and a history: %q", &c.stdout, test.first, want)
				}
			}
		})
	}
}

// What cannot be asked is an error, not an all-clear.
func TestAStatusWithoutAnAnswer(t *testing.T) {
	for path := range covered(everything, false) {
		if path != "/v1/nodes" && path != "/v1/incidents" {
			continue
		}
		server := covered(everything, false)
		server["/v1/events"] = ok(&pb.ListEventsResponse{})
		server[path] = func(*http.Request) (int, string) { return http.StatusForbidden, `{"code":7,"message":"no"}` }
		c := serve(t, server)
		c.run(t, 1, "status")
		if c.stdout.Len() > 0 || c.stderr.Len() == 0 {
			t.Errorf("%s is refused: got %q, and on stderr %q", path, &c.stdout, &c.stderr)
		}
	}
}

// A status for programs has all incidents, and exits as the screen does.
func TestAStatusForPrograms(t *testing.T) {
	server := covered(everything, true)
	server["/v1/events"] = ok(&pb.ListEventsResponse{ReachesBackTo: ago(time.Hour)})
	c := serve(t, server)
	c.run(t, 2, "status", "-o", "json")
	var got struct {
		Incidents     []struct{ ID string }
		Nodes         struct{ Nodes []struct{ Name string } }
		Coverage      *struct{}
		ReachesBackTo time.Time
	}
	if err := json.Unmarshal(c.stdout.Bytes(), &got); err != nil || len(got.Incidents) != 1 || len(got.Nodes.Nodes) != 1 || got.Coverage == nil || !got.ReachesBackTo.Equal(now.Add(-time.Hour)) {
		t.Errorf("got %v, %v from\n%s", got, err, &c.stdout)
	}
}

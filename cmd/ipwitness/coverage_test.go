package main

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// everything is the coverage of a server with all nodes connected. The others are coverages of
// servers with missing nodes.
var (
	everything = &pb.Coverage{Expected: 1, Heard: 1}
	noAgent    = &pb.Coverage{Incomplete: true}
	oneSilent  = &pb.Coverage{Expected: 3, Heard: 2, SilentNodes: []string{"node-3"}, Incomplete: true}
	starting   = &pb.Coverage{Expected: 1, Heard: 1, Unknown: pb.Coverage_STARTING, Incomplete: true}
	frameless  = &pb.Coverage{Expected: 2, Heard: 2, WithoutFrames: 1, NodesWithoutFrames: []string{"node-2"}}
)

// covered returns a server with the given coverage, which has one conflict and one
// finding if found is set.
func covered(c *pb.Coverage, found bool) handler {
	conflicts, findings, incidents := &pb.ListConflictsResponse{Coverage: c}, &pb.ListFindingsResponse{Coverage: c}, &pb.ListIncidentsResponse{Coverage: c}
	if found {
		conflicts.Conflicts = []*pb.Conflict{conflict("abc", pb.Conflict_CONFIRMED)}
		incidents.Incidents = []*pb.Incident{{Id: "abcd", Severity: pb.Finding_CRITICAL, Confirmed: 1, Findings: 1, AddressCount: 1, Summary: "It is held twice."}}
		findings.Findings = []*pb.Finding{finding("abc", "in-use-unallocated", "10.0.0.7", pb.Finding_CRITICAL)}
	}
	return handler{
		"/v1/owners":    ok(&pb.ListOwnersResponse{Coverage: c}),
		"/v1/conflicts": ok(conflicts),
		"/v1/findings":  ok(findings),
		"/v1/incidents": ok(incidents),
		"/v1/pools":     ok(&pb.ListPoolsResponse{Coverage: c, Pools: []*pb.Pool{{Ipam: "host-local", Name: "cbr0", State: pb.Pool_KNOWN}}}),
		"/v1/nodes":     ok(&pb.ListNodesResponse{Coverage: c, Nodes: []*pb.Node{{Name: "node-1", State: pb.Node_LIVE}}}),
		"/v1/explain":   ok(&pb.ExplainResponse{Coverage: c, Summary: "Because."}),
	}
}

func TestExitCodesWhereNotEverythingIsSeen(t *testing.T) {
	unaudited := covered(everything, false)
	unaudited["/v1/pools"] = ok(&pb.ListPoolsResponse{Coverage: everything})
	fleet := aFleet()
	for _, test := range []struct {
		name   string
		server handler
		args   string
		want   int
	}{
		{"no agent", covered(noAgent, false), "conflicts --exit-code", 3},
		{"no agent", covered(noAgent, false), "conflicts --exit-code -o json", 3},
		{"no agent", covered(noAgent, false), "conflicts 10.0.0.7 --exit-code", 3},
		{"no agent", covered(noAgent, false), "conflicts old --exit-code", 3},
		{"no agent, not asked", covered(noAgent, false), "conflicts", 0},
		{"no agent", covered(noAgent, false), "audit --exit-code", 3},
		{"no agent", covered(noAgent, false), "audit --exit-code -o yaml", 3},
		{"no agent", covered(noAgent, false), "audit --fix-plan", 3},
		{"no agent, an id or node", covered(noAgent, false), "audit typo --exit-code", 3},
		{"one silent", covered(oneSilent, false), "conflicts --exit-code", 3},
		{"one silent, and a conflict", covered(oneSilent, true), "conflicts --exit-code", 2},
		{"one silent", covered(oneSilent, false), "audit --exit-code", 3},
		{"one silent, and a finding", covered(oneSilent, true), "audit --exit-code", 2},
		{"one silent, and a finding", covered(oneSilent, true), "audit --fix-plan --exit-code", 2},
		{"one silent, a plan", covered(oneSilent, true), "audit --fix-plan", 3},
		{"one silent, which was asked for", covered(oneSilent, false), "audit node-3 --exit-code", 3},
		{"one silent, a typo", covered(oneSilent, false), "audit node-33", 1},
		{"just started", covered(starting, false), "conflicts --exit-code", 3},
		{"no frames on one", covered(frameless, false), "conflicts --exit-code", 0},
		{"nothing is audited", unaudited, "audit --exit-code", 3},
		{"nothing is audited", unaudited, "audit --exit-code -o json", 3},
		{"nothing is audited", unaudited, "audit --fix-plan", 3},
		{"a fleet", fleet, "audit --exit-code", 0},
		{"a fleet", fleet, "audit --exit-code -o json", 0},
		{"nothing is audited, nor need be", unaudited, "audit --exit-code --kind duplicate-node-name", 0},
		{"a server that does not say", covered(nil, false), "conflicts --exit-code", 3},
		{"all is seen", covered(everything, false), "conflicts --exit-code", 0},
		{"all is seen", covered(everything, false), "audit --exit-code", 0},
		{"all is seen, a plan", covered(everything, true), "audit --fix-plan", 0},
	} {
		t.Run(test.name+", "+test.args, func(t *testing.T) {
			c := serve(t, test.server)
			c.run(t, test.want, strings.Fields(test.args)...)
			if test.want == 3 && c.stderr.Len() == 0 {
				t.Error("got nothing on stderr, want the reason why the result is unknown")
			}
		})
	}
}

func TestEveryListSaysWhatIsNotSeen(t *testing.T) {
	const warning = "Warning: 1 of 3 nodes is disconnected (node-3): what happens there is not observed.\n"
	for _, args := range []string{"owners", "conflicts", "conflicts 10.0.0.7", "explain 10.0.0.7", "audit", "audit --fix-plan", "nodes"} {
		for _, found := range []bool{false, true} {
			c := serve(t, covered(oneSilent, found))
			code := 0
			if strings.Contains(args, "--fix-plan") {
				code = 3
			}
			c.run(t, code, strings.Fields(args)...)
			if got := c.stderr.String(); strings.Count(got, warning) != 1 {
				t.Errorf("%s: got on stderr %q, want %q in it, once", args, got, warning)
			}
			if strings.Contains(c.stdout.String(), "Warning: ") {
				t.Errorf("%s: got a warning on stdout:\n%s", args, &c.stdout)
			}
		}
	}
	for args, list := range map[string]proto.Message{
		"owners": &pb.ListOwnersResponse{}, "conflicts": &pb.ListConflictsResponse{}, "audit": &pb.ListFindingsResponse{},
		"nodes": &pb.ListNodesResponse{}, "explain 10.0.0.7": &pb.ExplainResponse{},
	} {
		c := serve(t, covered(oneSilent, false))
		c.run(t, 0, append(strings.Fields(args), "-o", "json")...)
		err := protojson.Unmarshal(c.stdout.Bytes(), list)
		if got := list.(interface{ GetCoverage() *pb.Coverage }).GetCoverage(); err != nil || !proto.Equal(got, oneSilent) {
			t.Errorf("%s: got coverage %v, %v, want %v in\n%s", args, got, err, oneSilent, &c.stdout)
		}
		c.wantStderr(t, "")
	}
}

func TestAFixPlanSaysWhatIsNotSeen(t *testing.T) {
	for _, found := range []bool{false, true} {
		c := serve(t, covered(oneSilent, found))
		c.run(t, 3, "audit", "--fix-plan")
		if !strings.Contains(c.stdout.String(), "\n# NOT SEEN: 1 of 3 nodes is disconnected (node-3)") {
			t.Errorf("got\n%s\nwant a comment on the coverage at its head", &c.stdout)
		}
		out, err := exec.Command("sh", "-c", c.stdout.String(), "plan.sh").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "1 of 3 nodes is disconnected (node-3)") || strings.Contains(string(out), "There is nothing to put right") {
			t.Errorf("got %q, %v from the script, want it to report what is not seen", out, err)
		}
	}
}

func TestUnknownIDsAndNodesAreErrors(t *testing.T) {
	for _, args := range []string{"audit typo", "audit typo --exit-code", "audit typo -o json", "audit typo --fix-plan"} {
		c := serve(t, covered(everything, true))
		c.run(t, 1, strings.Fields(args)...)
		c.wantStderr(t, "ipwitness: nothing has the ID or name \"typo\": 'ipwitness owners', 'ipwitness nodes' and 'ipwitness incidents' list what is known\n")
		if c.stdout.Len() > 0 {
			t.Errorf("%s: got %q on stdout, want nothing", args, &c.stdout)
		}
	}
	c := serve(t, covered(everything, true))
	c.run(t, 0, "audit", "abc", "--kind", "leaked", "--exit-code") // the finding is of another kind
	c.wantStderr(t, "No finding of kind leaked about abc. Audited: 1 pool with 0 allocations (host-local).\n")
}

// routes is a transport that answers one watch from watch and sends all other requests
// to a server.
type routes struct {
	*script
	server handler
}

func (r routes) RoundTrip(q *http.Request) (*http.Response, error) {
	if strings.HasSuffix(q.URL.Path, ":watch") {
		return r.script.RoundTrip(q)
	}
	answer := about(q, r.server.of(q.URL.Path))
	if answer == nil {
		return nil, fmt.Errorf("%s is not served", q.URL.Path)
	}
	status, body := answer(q)
	one := &script{begin: time.Now(), tries: []try{{status: status, body: body}}}
	return one.RoundTrip(q)
}

func marked(c *pb.Coverage) string {
	raw, err := protojson.MarshalOptions{}.Marshal(c)
	if err != nil {
		panic(err)
	}
	return `{"result":{"type":"BOOKMARK","coverage":` + string(raw) + "}}\n"
}

func TestWatchesSayWhatIsNotSeen(t *testing.T) {
	const silent = "Warning: 1 of 3 nodes is disconnected (node-3): what happens there is not observed.\n"
	unaudited := covered(everything, false)
	unaudited["/v1/pools"] = ok(&pb.ListPoolsResponse{Coverage: everything})
	all := &pb.Coverage{Expected: 3, Heard: 3}
	for _, test := range []struct {
		args           string
		server         handler
		events         string
		stderr, stdout string
		code           int
	}{
		{args: "conflicts -w", events: marked(everything)},
		{args: "conflicts -w", events: marked(oneSilent) + marked(oneSilent) + marked(all), stderr: silent + "Everything is seen now: 3 nodes.\n"},
		{args: "owners -w", events: marked(all) + marked(oneSilent), stderr: silent},
		{args: "nodes -w", events: marked(oneSilent), stderr: silent},
		{args: "audit -w", events: marked(oneSilent), stderr: silent},
		{args: "conflicts -w -o json", events: marked(oneSilent), stdout: `{"type":"BOOKMARK","coverage":{"expected":3,"heard":2,`},
		{args: "audit -w", server: aFleet(), events: marked(&pb.Coverage{Clusters: 2})},
		{
			args: "audit -w", server: unaudited, events: marked(everything),
			stderr: "No records of IPAM are audited: no agent has found records of " + registry.Titles("or", registry.OfNodes) + ", and no Kubernetes API is configured to read the records of " + registry.Titles("and", registry.OfCluster) + " (--kubeconfig). Findings appear here as soon as something is audited.\n",
		},
		{
			args: "audit -w typo", events: marked(everything), code: 1,
			stderr: "ipwitness: nothing has the ID or name \"typo\": 'ipwitness owners', 'ipwitness nodes' and 'ipwitness incidents' list what is known\n",
		},
	} {
		t.Run(test.args, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				server := test.server
				if server == nil {
					server = covered(everything, false)
				}
				c := newConsole()
				c.transport = routes{&script{cancel: cancel, begin: time.Now(), tries: []try{{status: 200, body: test.events}}}, server}
				code := execute(ctx, c.system, strings.Fields(test.args))
				printed, _, _ := strings.Cut(c.stderr.String(), "The watch of ") // the watch is interrupted, and then the command ends
				if code != test.code || printed != test.stderr {
					t.Errorf("got exit code %d and on stderr\n%s\nwant %d and\n%s", code, printed, test.code, test.stderr)
				}
				if !strings.HasPrefix(c.stdout.String(), test.stdout) {
					t.Errorf("got on stdout %q, want it to begin with %q", &c.stdout, test.stdout)
				}
			})
		})
	}
}

func TestAResolvedConflictIsShownByItsAddress(t *testing.T) {
	old, now := conflict("old", pb.Conflict_RESOLVED), conflict("now", pb.Conflict_SUSPECTED)
	old.Summary, now.Summary = "It is over.", "It is suspected."
	server := func(all ...*pb.Conflict) handler {
		return handler{"/v1/conflicts": func(r *http.Request) (int, string) {
			list := &pb.ListConflictsResponse{Coverage: everything}
			for _, c := range all {
				if c.GetState() != pb.Conflict_RESOLVED || r.URL.Query().Get("all") == "true" {
					list.Conflicts = append(list.Conflicts, c)
				}
			}
			return ok(list)(r)
		}}
	}
	for _, test := range []struct {
		server      handler
		args        string
		shown, left string
		stderr      string
	}{
		{server(old), "conflicts 10.0.0.7", "It is over.", "It is suspected.", ""},
		{server(old), "conflicts 10.0.0.7 --exit-code", "RESOLVED", "It is suspected.", ""},
		{server(old, now), "conflicts 10.0.0.7", "It is suspected.", "It is over.", ""},
		{server(old, now), "conflicts 10.0.0.7 --all", "It is over.", "nothing", ""},
		{server(old), "conflicts", "", "It is over.", "No conflicts.\n"},
	} {
		c := serve(t, test.server)
		c.run(t, 0, strings.Fields(test.args)...)
		if got := c.stdout.String(); !strings.Contains(got, test.shown) || strings.Contains(got, test.left) {
			t.Errorf("%s: got\n%s\nwant %q and not %q", test.args, got, test.shown, test.left)
		}
		c.wantStderr(t, test.stderr)
	}
}

// aFleet returns the answers of a fleet, which sees all of its clusters and has no findings.
func aFleet() handler {
	seen := &pb.Coverage{Clusters: 2, Expected: 3, Heard: 3}
	h := covered(seen, false)
	h["/v1/pools"] = func(*http.Request) (int, string) {
		return http.StatusNotImplemented, `{"code":12,"message":"a fleet does not know pools: ask the aggregators of the clusters"}`
	}
	return h
}

func TestTheAuditOfAFleetDoesNotSayThatNothingIsAudited(t *testing.T) {
	c := serve(t, aFleet())
	c.run(t, 0, "audit")
	if got := c.stderr.String(); !strings.Contains(got, "No finding.") || strings.Contains(got, "audited") {
		t.Errorf("got %q, want only that there is no finding", got)
	}
}

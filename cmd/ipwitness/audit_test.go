package main

import (
	"context"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func finding(id, kind, address string, severity pb.Finding_Severity) *pb.Finding {
	return &pb.Finding{
		Id: id, Kind: kind, Address: address, Severity: severity, Summary: "IPAM is wrong about " + address + ".", Nodes: []string{"node-1"},
		DetectedAt: timestamppb.New(now.Add(-time.Minute)),
		Owners:     []*pb.Owner{{Address: address, Node: "node-1", Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: "web"}}},
		Pool:       &pb.Pool{Ipam: "host-local", Name: "/var/lib/cni/networks/cbr0", Network: "cbr0", Node: "node-1"},
		Fixes:      []*pb.Fix{{Node: "node-1", What: "Reserve " + address + ".", Command: "echo " + address}},
	}
}

// audited returns a server with findings and one pool.
func audited(findings ...*pb.Finding) handler {
	return handler{
		"/v1/findings": func(r *http.Request) (int, string) {
			out := pb.ListFindingsResponse{Coverage: everything}
			for _, f := range findings {
				if kind := r.URL.Query().Get("kind"); kind == "" || kind == f.GetKind() {
					out.Findings = append(out.Findings, f)
				}
			}
			return ok(&out)(r)
		},
		"/v1/conflicts": ok(&pb.ListConflictsResponse{Coverage: everything}),
		"/v1/explain":   ok(&pb.ExplainResponse{}),
		"/v1/pools":     ok(&pb.ListPoolsResponse{Pools: []*pb.Pool{{Ipam: "host-local", Name: "/var/lib/cni/networks/cbr0", Node: "node-1", State: pb.Pool_KNOWN, Size: 253, Allocated: 12}}}),
		"/v1/nodes":     ok(&pb.ListNodesResponse{Nodes: []*pb.Node{{Name: "node-1", State: pb.Node_LIVE, BootId: "b00t", Netns: "1"}, {Name: "node-2", State: pb.Node_DISCONNECTED}}, Kubernetes: &pb.Kubernetes{State: pb.Kubernetes_OFF}}),
	}
}

func TestAuditExitCodes(t *testing.T) {
	critical := finding("abc", "in-use-unallocated", "10.0.0.7", pb.Finding_CRITICAL)
	warning := finding("bcd", "leaked", "10.0.0.8", pb.Finding_WARNING)
	info := finding("cde", "shared-address-answered", "10.0.0.9", pb.Finding_INFO)
	tests := map[string]struct {
		server handler
		args   string
		want   int
	}{
		"none":                       {audited(), "audit --exit-code", 0},
		"critical":                   {audited(critical), "audit --exit-code", 2},
		"critical, not asked":        {audited(critical), "audit", 0},
		"critical, as JSON":          {audited(critical), "audit --exit-code -o json", 2},
		"critical, of another kind":  {audited(critical), "audit --exit-code --kind leaked", 0},
		"critical, on a silent node": {audited(critical), "audit --exit-code node-2", 3},
		"no such id or node":         {audited(critical), "audit --exit-code node-3", 1},
		"critical, on this node":     {audited(critical), "audit --exit-code node-1", 2},
		"critical, by id":            {audited(critical), "audit --exit-code abc", 2},
		"critical, by address":       {audited(critical), "audit --exit-code 10.0.0.7", 2},
		"critical, other address":    {audited(critical), "audit --exit-code 10.0.0.8", 0},
		"critical, with its plan":    {audited(critical), "audit --exit-code --fix-plan", 2},
		"a plan":                     {audited(critical), "audit --fix-plan", 0},
		"a plan of nothing":          {audited(), "audit --fix-plan --exit-code", 0},
		"warning":                    {audited(warning), "audit --exit-code", 2},
		"good to know":               {audited(info), "audit --exit-code", 0},
		"no server of ours":          {handler{}, "audit --exit-code", 1},
		"no such kind":               {audited(), "audit --kind leak", 1},
		"neither id nor address":     {audited(), "audit ../x", 1},
		"watch and exit code":        {audited(), "audit -w --exit-code", 1},
		"watch and plan":             {audited(), "audit -w --fix-plan", 1},
		"plan as JSON":               {audited(), "audit --fix-plan -o json", 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { serve(t, test.server).run(t, test.want, strings.Fields(test.args)...) })
	}
}

func TestAuditShowsTablesOrPages(t *testing.T) {
	server := audited(
		finding("bcd", "leaked", "10.0.0.8", pb.Finding_WARNING),
		finding("abc", "in-use-unallocated", "10.0.0.7", pb.Finding_CRITICAL),
	)
	for args, want := range map[string]string{
		"audit": `SEVERITY  KIND                ADDRESS   HOLDER    NODE    POOL             SINCE   ID
CRITICAL  in-use-unallocated  10.0.0.7  shop/web  node-1  host-local cbr0  1m ago  abc
WARNING   leaked              10.0.0.8  shop/web  node-1  host-local cbr0  1m ago  bcd

IPAM        POOL                        NODE    STATE  ALLOCATED    LEAKED  FULL IN
host-local  /var/lib/cni/networks/cbr0  node-1  KNOWN  12/253 (4%)  0       -
`,
		"audit --kind leaked node-1": `SEVERITY  KIND    ADDRESS   HOLDER    NODE    POOL             SINCE   ID
WARNING   leaked  10.0.0.8  shop/web  node-1  host-local cbr0  1m ago  bcd

IPAM        POOL                        NODE    STATE  ALLOCATED    LEAKED  FULL IN
host-local  /var/lib/cni/networks/cbr0  node-1  KNOWN  12/253 (4%)  0       -
`,
	} {
		c := serve(t, server)
		c.run(t, 0, strings.Fields(args)...)
		if got := c.stdout.String(); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", args, got, want)
		}
		c.wantStderr(t, "")
	}
	for _, args := range []string{"audit abc", "audit 10.0.0.7"} {
		c := serve(t, server)
		c.run(t, 0, strings.Fields(args)...)
		if got := c.stdout.String(); !strings.HasPrefix(got, "IPAM is wrong about 10.0.0.7.\n\nFinding:   abc\n") || strings.Contains(got, "10.0.0.8") {
			t.Errorf("%s: got\n%s\nwant only the page of abc", args, got)
		}
	}
	c := serve(t, server)
	c.run(t, 0, "audit", "-o", "json")
	if got := c.stdout.String(); !strings.HasPrefix(got, "{\n  \"findings\": [\n    {\n      \"kind\": \"in-use-unallocated\"") {
		t.Errorf("got %s, want the findings in the format of the API", got)
	}
}

func TestAuditWithoutFindingsListsWhatWasAudited(t *testing.T) {
	nothing := audited()
	nothing["/v1/pools"] = ok(&pb.ListPoolsResponse{})
	alone := audited()
	alone["/v1/pools"] = ok(&pb.ListPoolsResponse{})
	alone["/v1/nodes"] = ok(&pb.ListNodesResponse{Kubernetes: &pb.Kubernetes{State: pb.Kubernetes_LIVE}})
	unread := audited()
	unread["/v1/explain"] = ok(&pb.ExplainResponse{Unseen: []*pb.Senders_Unseen{
		{Reason: pb.Senders_Unseen_NO_ANSWER, Nodes: []string{"node-1"}, Count: 1}, {Reason: pb.Senders_Unseen_TRANSLATIONS_NOT_PERMITTED, Nodes: []string{"node-2"}, Count: 1},
	}})
	const one = "Audited: 1 pool with 12 allocations (host-local).\n"
	tests := []struct {
		server       handler
		args, stderr string
	}{
		{audited(), "audit", "No finding. " + one},
		{audited(), "audit --kind leaked", "No finding of kind leaked. " + one},
		{audited(), "audit 10.0.0.7", "No finding about 10.0.0.7. " + one},
		{unread, "audit 10.0.0.9", "Warning: not all connection tracking was looked at: not that of node node-1 (the agent did not answer within a second), node node-2 (connection tracking: the agent lacks CAP_NET_ADMIN).\nNo finding about 10.0.0.9. " + one},
		{audited(), "audit node-1", "No finding about node-1. " + one},
		{audited(), "audit node-2", "Cannot tell: no finding about node-2 is known, and node node-2 is disconnected.\n"},
		{audited(), "audit -o json", ""},
		{nothing, "audit", "No finding, but no records of IPAM are audited: no agent has found records of " + registry.Titles("or", registry.OfNodes) + ", and no Kubernetes API is configured to read the records of " + registry.Titles("and", registry.OfCluster) + " (--kubeconfig).\n"},
		{alone, "audit", "No finding, but no records of IPAM are audited: no agent has connected yet, and the Kubernetes API has no records of " + registry.Titles("or", registry.OfCluster) + ".\n"},
	}
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			c := serve(t, test.server)
			c.run(t, 0, strings.Fields(test.args)...)
			c.wantStderr(t, test.stderr)
		})
	}
}

func TestAuditWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		event := func(kind, id, address string) string {
			return `{"result":{"type":"` + kind + `","finding":{"id":"` + id + `","kind":"leaked","severity":"WARNING","address":"` + address + `"}}}` + "\n"
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &script{cancel: cancel, begin: time.Now(), tries: []try{
			{status: 200, body: `{"pools":[{"ipam":"host-local"}]}`},
			{status: 200, body: event("ADDED", "a", "10.0.0.1") + `{"result":{"type":"BOOKMARK"}}` + "\n" + event("REMOVED", "a", "10.0.0.1")},
		}}
		c := newConsole()
		c.transport = s
		if code := execute(ctx, c.system, []string{"audit", "-w", "10.0.0.1", "-o", "json"}); code != 0 {
			t.Errorf("got exit code %d, want 0: %s", code, &c.stderr)
		}
		lines := strings.Split(strings.TrimSpace(c.stdout.String()), "\n")
		if len(lines) != 2 || !strings.HasPrefix(lines[0], `{"type":"ADDED","finding":{"kind":"leaked","address":"10.0.0.1"`) || !strings.HasPrefix(lines[1], `{"type":"REMOVED"`) {
			t.Errorf("got %q, want the events of 10.0.0.1", lines)
		}
	})
}

func TestFixPlanIsAScript(t *testing.T) {
	c := serve(t, audited(finding("abc", "in-use-unallocated", "10.0.0.7", pb.Finding_CRITICAL)))
	c.run(t, 0, "audit", "--fix-plan")
	out, err := exec.Command("sh", "-c", c.stdout.String(), "plan.sh").CombinedOutput()
	if want := "Run this script for the rest, in this order:\n  sh plan.sh node node-1    (1 step, on that node, as root)\n      Reserve 10.0.0.7.\n"; err != nil || string(out) != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

func TestCompletionOffersFindings(t *testing.T) {
	c := serve(t, audited(finding("abc", "in-use-unallocated", "10.0.0.7", pb.Finding_CRITICAL)))
	c.run(t, 0, "__complete", "audit", "")
	if want := "abc\tCRITICAL in-use-unallocated: 10.0.0.7 shop/web host-local cbr0\n"; !strings.HasPrefix(c.stdout.String(), want) {
		t.Errorf("got %q, want it to begin with %q", &c.stdout, want)
	}
	c.stdout.Reset()
	c.run(t, 0, "__complete", "audit", "--kind", "pool")
	if want := "pool-exhaustion\n:4\n"; !strings.Contains(c.stdout.String(), want) {
		t.Errorf("got %q, want %q in it", &c.stdout, want)
	}
}

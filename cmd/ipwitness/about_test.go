package main

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/api"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// about returns the answer of a server to a request: the items of a list that are about what the request is about. Lists
// that the server does not have are empty.
func about(r *http.Request, answer func(*http.Request) (int, string)) func(*http.Request) (int, string) {
	lists := map[string]proto.Message{
		"/v1/owners": &pb.ListOwnersResponse{}, "/v1/conflicts": &pb.ListConflictsResponse{}, "/v1/findings": &pb.ListFindingsResponse{}, "/v1/incidents": &pb.ListIncidentsResponse{},
	}
	list, what := lists[r.URL.Path], r.URL.Query().Get("about")
	if list == nil || answer == nil && what == "" && r.URL.Query().Get("page_size") == "" {
		return answer
	}
	if answer == nil {
		answer = ok(list)
	}
	return func(r *http.Request) (int, string) {
		status, body := answer(r)
		if status != http.StatusOK || what+r.URL.Query().Get("kind") == "" || protojson.Unmarshal([]byte(body), list) != nil {
			return status, body
		}
		var sel api.Selection
		var err error
		keep := func(e *pb.Event, addresses ...string) bool {
			in := !sel.Span.First.IsValid() || slices.ContainsFunc(addresses, func(a string) bool { return sel.Span.Contains(netip.MustParseAddr(a)) })
			return in && sel.Matches(e)
		}
		switch list := list.(type) {
		case *pb.ListOwnersResponse:
			sel, err = api.SelectOwners(&pb.ListOwnersRequest{About: what})
			list.Owners = slices.DeleteFunc(list.Owners, func(o *pb.Owner) bool { return err == nil && !keep(&pb.Event{Owner: o}, o.GetAddress()) })
		case *pb.ListConflictsResponse:
			sel, err = api.SelectConflicts(&pb.ListConflictsRequest{About: what}, true)
			list.Conflicts = slices.DeleteFunc(list.Conflicts, func(c *pb.Conflict) bool { return err == nil && !keep(&pb.Event{Conflict: c}, c.GetAddress()) })
		case *pb.ListFindingsResponse:
			kind := r.URL.Query().Get("kind")
			sel, err = api.SelectFindings(&pb.ListFindingsRequest{About: what, Kind: kind})
			list.Findings = slices.DeleteFunc(list.Findings, func(f *pb.Finding) bool { return err == nil && !keep(&pb.Event{Finding: f}) })
		case *pb.ListIncidentsResponse:
			list.Incidents = slices.DeleteFunc(list.Incidents, func(i *pb.Incident) bool { return i.GetId() != what && !slices.Contains(i.GetAddresses(), what) })
		}
		if err != nil {
			return http.StatusBadRequest, `{"code":3,"message":"` + strings.ReplaceAll(strings.TrimPrefix(err.Error(), "rpc error: code = InvalidArgument desc = "), `"`, `\"`) + `"}`
		}
		return http.StatusOK, protojson.Format(list)
	}
}

func TestEveryCommandTakesEveryName(t *testing.T) {
	for _, what := range []string{"10.0.0.7", "10.0.0.0/8", "02:00:00:00:00:07", "shop/web-1", "web-1", "web", "node-1", "c0nf"} {
		for _, command := range []string{"owners", "conflicts", "audit", "explain", "nodes"} {
			owner := &pb.Owner{Address: "10.0.0.7", Node: "node-1", Mac: "02:00:00:00:00:07", Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: "web-1"}}
			other := &pb.Owner{Address: "11.0.0.8", Node: "node-10", Mac: "02:00:00:00:00:08", Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "red", Name: "db-10"}}
			h := covered(everything, false)
			h["/v1/owners"] = ok(&pb.ListOwnersResponse{Owners: []*pb.Owner{owner, other}})
			h["/v1/conflicts"] = ok(&pb.ListConflictsResponse{Conflicts: []*pb.Conflict{
				{Id: "c0nf", Address: "10.0.0.7", State: pb.Conflict_CONFIRMED, Summary: "It is 10.0.0.7.", Owners: []*pb.Owner{owner}}, {Id: "c1", Address: "11.0.0.8", Owners: []*pb.Owner{other}},
			}})
			h["/v1/findings"] = ok(&pb.ListFindingsResponse{Findings: []*pb.Finding{
				{Id: "c0nf", Address: "10.0.0.7", Addresses: []string{"10.0.0.7"}, Nodes: []string{"node-1"}, Owners: []*pb.Owner{owner}},
				{Id: "f1", Address: "11.0.0.8", Nodes: []string{"node-10"}, Owners: []*pb.Owner{other}},
			}})
			h["/v1/nodes"] = ok(&pb.ListNodesResponse{Nodes: []*pb.Node{{Name: "node-1", State: pb.Node_LIVE}, {Name: "node-10", State: pb.Node_LIVE}}})
			h["/v1/explain"] = func(r *http.Request) (int, string) {
				return ok(&pb.ExplainResponse{Summary: "It is " + r.URL.Query().Get("address") + "."})(r)
			}
			if what == "c0nf" && (command == "owners" || command == "nodes") {
				continue // the real server knows the conflict
			}
			c := serve(t, h)
			c.run(t, 0, command, what)
			got := c.stdout.String()
			if want := map[bool]string{true: "node-1", false: "10.0.0.7"}[command == "nodes"]; !strings.Contains(got, want) || strings.Contains(got, "11.0.0.8") || strings.Contains(got, "node-10") {
				t.Errorf("%s %s: got\n%s\nwant only %s", command, what, got, want)
			}
		}
	}
}

func TestAnUnknownNameHasSimilarOnes(t *testing.T) {
	for args, want := range map[string]string{
		"owners wep-1":    `ipwitness: nothing has the ID or name "wep-1": did you mean default/web-1?`,
		"explain nod-1":   `ipwitness: nothing has the ID or name "nod-1": did you mean node-1?`,
		"conflicts abd":   `ipwitness: nothing has the ID or name "abd": did you mean abcd or abc?`,
		"audit node-1xyz": `ipwitness: nothing has the ID or name "node-1xyz": 'ipwitness owners'`,
		"nodes crat":      `ipwitness: nothing has the ID or name "crat": `,
	} {
		c := serve(t, known())
		c.run(t, 1, strings.Fields(args)...)
		if got := c.stderr.String(); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
	c := serve(t, known())
	c.run(t, 1, "explain", "web")
	if got := c.stderr.String(); !strings.Contains(got, "web has 2 addresses: select one:\n  10.244.0.7  default/web-1\n  10.244.0.8  default/web-2") {
		t.Errorf("got %q, want the addresses", got)
	}
}

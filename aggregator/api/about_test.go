package api

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/incident"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestANameMeansTheSameEverywhere(t *testing.T) {
	pod := &pb.Owner{Address: "10.0.0.7", Node: "node-1", Mac: "0a:58:0a:f4:00:07", Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: "web-1"}}
	named := &pb.Owner{Address: "10.0.0.7", Node: "node-2", Netns: "4026532000", Workload: &pb.Workload{Kind: pb.Workload_CONTAINER, Source: "netns", Name: "a"}}
	host := &pb.Owner{Address: "10.0.0.7", Node: "node-10", Workload: &pb.Workload{Kind: pb.Workload_HOST, Name: "node-10"}}
	conflict := &pb.Conflict{Id: "c0nf", Incident: "1nc1", Address: "10.0.0.7", State: pb.Conflict_CONFIRMED, Owners: []*pb.Owner{pod, named, host}}
	for _, test := range []struct {
		about string
		want  [3]bool // pod, named, host
	}{
		{"web-1", [3]bool{true, false, false}},
		{"we", [3]bool{true, false, false}},
		{"web", [3]bool{true, false, false}},
		{"shop", [3]bool{true, false, false}},
		{"web-10", [3]bool{}},
		{"node-1", [3]bool{true, false, false}}, // not part of node-10
		{"node-10", [3]bool{false, false, true}},
		{"0", [3]bool{}}, // a part of a number is none of the name
		{"shop/web-1", [3]bool{true, false, false}},
		{"shop/web", [3]bool{}},
		{"netns/a", [3]bool{false, true, false}},
		{"container/a", [3]bool{}},
		{"host/node-10", [3]bool{false, false, true}},
		{"shop/web-1@node-1", [3]bool{true, false, false}},
		{"shop/web-1@node-2", [3]bool{}},
		{"netns/a (netns 4026532000)", [3]bool{false, true, false}},
		{"0A-58-0a-f4-00-07", [3]bool{true, false, false}},
		{"external/0a:58:0a:f4:00:07", [3]bool{true, false, false}},
	} {
		sel, err := SelectOwners(&pb.ListOwnersRequest{About: test.about})
		if err != nil {
			t.Errorf("%s: %v", test.about, err)
			continue
		}
		for i, o := range []*pb.Owner{pod, named, host} {
			if got := sel.Matches(&pb.Event{Kind: pb.Event_OWNER, Owner: o}); got != test.want[i] {
				t.Errorf("%s: got %v for %s, want %v", test.about, got, pb.OwnerName(o), test.want[i])
			}
		}
		sel, err = SelectConflicts(&pb.ListConflictsRequest{About: test.about}, false)
		if got, want := err == nil && sel.Matches(&pb.Event{Kind: pb.Event_CONFLICT, Conflict: conflict}), test.want != [3]bool{}; got != want {
			t.Errorf("%s: got %v for the conflict, want %v", test.about, got, want)
		}
	}
	index := incident.NewIndex()
	index.PutConflict(conflict, "")
	for about, want := range map[string]bool{"c0nf": true, "1nc1": true, "web-1": true, "10.0.0.7": true, "10.0.0.0/8": true, "node-2": true, "10.0.0.8": false, "db": false} {
		sel, err := SelectConflicts(&pb.ListConflictsRequest{About: about}, false)
		span := sel.Span
		in := !span.First.IsValid() || span.Contains(netip.MustParseAddr("10.0.0.7"))
		if got := err == nil && in && sel.Matches(&pb.Event{Kind: pb.Event_CONFLICT, Conflict: conflict}); got != want {
			t.Errorf("%s: got %v for the conflict, want %v", about, got, want)
		}
		finding, err := SelectFindings(&pb.ListFindingsRequest{About: about})
		f := &pb.Finding{Id: "c0nf", Incident: "1nc1", Addresses: []string{"10.0.0.7"}, Nodes: []string{"node-2"}, Allocations: []*pb.Allocation{{Namespace: "shop", Pod: "web-1"}}}
		if got := err == nil && finding.Matches(&pb.Event{Kind: pb.Event_FINDING, Finding: f}); got != want {
			t.Errorf("%s: got %v for the finding, want %v", about, got, want)
		}
		page, err := PageOfIncidents(&pb.ListIncidentsRequest{About: about}, index)
		if got := len(page.GetIncidents()) == 1; err != nil || got != want {
			t.Errorf("%s: got %v and error %v for the incident, want %v", about, got, err, want)
		}
	}
}

func TestANameThatMeansNothingIsRefused(t *testing.T) {
	for _, q := range []*pb.ListOwnersRequest{
		{About: "10.244.0.0/33"},
		{About: "10.244.0.0/"},
		{About: "/web"},
		{About: "default/"},
		{About: "a/b/c"},
		{About: "container/"},
		{About: "::ffff:10.0.0.1"},
		{About: "web db"},
		{About: "10.244.0"},
		{About: "02:42:ac:11:00"},
		{About: "../x"},
		{About: "10.0.0.1", Address: "10.0.0.2"},
		{About: "shop/web", Namespace: "other"},
	} {
		if _, err := SelectOwners(q); err == nil {
			t.Errorf("%v: got no error, want one", q)
		}
	}
}

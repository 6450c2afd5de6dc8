package show

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Tables of a fleet begin with the cluster of each item, also those of a watch that begins without items;
// other tables have no such column.
func TestTablesOfAFleetHaveTheCluster(t *testing.T) {
	owner := func(cluster string) *pb.Owner {
		return &pb.Owner{Address: "10.0.0.1", Node: "n1", Netns: "1", State: pb.Owner_LIVE, Cluster: cluster}
	}
	conflict := &pb.Conflict{Id: "c", Address: "10.0.0.1", State: pb.Conflict_SUSPECTED, Clusters: []string{"east", "west"}, Owners: []*pb.Owner{owner("east"), owner("west")}}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	table := func(write func(*bytes.Buffer) error) (first []string, rest string) {
		t.Helper()
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		header, rest, _ := strings.Cut(b.String(), "\n")
		return strings.Fields(header), rest
	}
	watch := func(c *pb.Coverage, items ...*pb.Conflict) func(*bytes.Buffer) error {
		return func(b *bytes.Buffer) error {
			w := NewWatch(b, ConflictKind, piped)
			w.Begin()
			for _, item := range items {
				if err := w.Event(pb.Watch_ADDED, item, now); err != nil {
					return err
				}
			}
			w.Of(c)
			return w.Event(pb.Watch_BOOKMARK, nil, now)
		}
	}
	for name, test := range map[string]struct {
		write func(*bytes.Buffer) error
		at    int // of the column; -1 for none
		has   string
	}{
		"owners":                 {func(b *bytes.Buffer) error { return Owners(b, []*pb.Owner{owner("east")}, nil, piped, now) }, 0, "east"},
		"owners of one cluster":  {func(b *bytes.Buffer) error { return Owners(b, []*pb.Owner{owner("")}, nil, piped, now) }, -1, "10.0.0.1"},
		"a watch":                {watch(&pb.Coverage{Clusters: 2}, conflict), 2, "east, west"},
		"a watch without items":  {watch(&pb.Coverage{Clusters: 2}), 2, ""},
		"a watch of one cluster": {watch(&pb.Coverage{}), -1, ""},
		"owners of several":      {watch(&pb.Coverage{Clusters: 2}, conflict), 2, "netns/1 in east | netns/1 in west"},
		"findings": {func(b *bytes.Buffer) error {
			return Findings(b, []*pb.Finding{{Kind: "leaked", Cluster: "east"}}, piped, now)
		}, 0, "east"},
		"nodes": {func(b *bytes.Buffer) error {
			return Nodes(b, &pb.ListNodesResponse{Nodes: []*pb.Node{{Name: "n1", Cluster: "east"}}}, piped, now)
		}, 0, "east"},
		"conflicts": {func(b *bytes.Buffer) error { _, err := Conflicts(b, []*pb.Conflict{conflict}, piped, now); return err }, 0, "east, west"},
		"clusters have names only": {func(b *bytes.Buffer) error {
			return Clusters(b, &pb.ListClustersResponse{Clusters: []*pb.Cluster{{Name: "east", State: pb.Cluster_DISCONNECTED, LastHeard: timestamppb.New(now.Add(-time.Minute)), Problems: []string{"it is away"}}}}, piped, now)
		}, -1, "east: it is away"},
	} {
		header, rest := table(test.write)
		at := -1
		for i, word := range header {
			if word == clusterHeader {
				at = i
			}
		}
		if at != test.at || !strings.Contains(rest, test.has) {
			t.Errorf("%s: got the header %q and\n%s\nwant %s at %d, and %q", name, header, rest, clusterHeader, test.at, test.has)
		}
	}
}

// The coverage of a fleet says which clusters are not seen.
func TestClustersThatAreNotSeen(t *testing.T) {
	for _, test := range []struct {
		coverage *pb.Coverage
		want     []string
	}{
		{&pb.Coverage{Clusters: 2, Expected: 2, Heard: 2}, nil},
		{
			&pb.Coverage{Clusters: 2, Expected: 2, Heard: 2, Incomplete: true, SilentClusters: []string{"east"}},
			[]string{"1 of 2 clusters (east) cannot be seen now, so what is known of them may be outdated."},
		},
		{
			&pb.Coverage{Clusters: 2, Expected: 2, Heard: 2, Awaited: []*pb.Awaited{
				{What: pb.Awaited_JOURNAL, Node: "east/"}, {What: pb.Awaited_JOURNAL, Node: "west/"}, {What: pb.Awaited_REPORT, Node: "west/n1"},
			}},
			[]string{"Cannot tell yet: waiting for the journals of clusters east, west; the report of node west/n1."},
		},
		{
			&pb.Coverage{Clusters: 2, Expected: 2, Heard: 2, Awaited: []*pb.Awaited{{What: pb.Awaited_JOURNAL, Node: "east/"}}},
			[]string{"Cannot tell yet: waiting for the journal of cluster east."},
		},
		{
			&pb.Coverage{Expected: 2, Heard: 2, Awaited: []*pb.Awaited{{What: pb.Awaited_JOURNAL}}},
			[]string{"Cannot tell yet: waiting for the journal, which is being read."},
		},
		{&pb.Coverage{Incomplete: true, Unknown: pb.Coverage_HUB}, []string{"The fleet does not know which clusters there are, because the hub does not say it, or has none."}},
	} {
		if got := Unseen(test.coverage); strings.Join(got, "\n") != strings.Join(test.want, "\n") {
			t.Errorf("%v: got %q, want %q", test.coverage, got, test.want)
		}
	}
}

package show

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// clusterHeader is the header of the column that only answers of a fleet have.
const clusterHeader = "CLUSTER"

// clusterOf returns the cluster of an item, or the clusters of a conflict between clusters; empty if the
// answer is not that of a fleet.
func clusterOf(item any) string {
	switch one := item.(type) {
	case *record:
		return clusterOf(one.event)
	case *pb.Event:
		return first(one.GetCluster(), strings.Join(one.GetConflict().GetClusters(), ", "))
	case interface{ GetClusters() []string }:
		return strings.Join(one.GetClusters(), ", ")
	case interface{ GetCluster() string }:
		return one.GetCluster()
	}
	return ""
}

// withClusters returns columns with that of the cluster in front of them.
func withClusters[T any](columns []Column[T]) []Column[T] {
	return append([]Column[T]{{Header: clusterHeader, room: 12, cell: func(item T, _ time.Time) string { return clusterOf(item) }}}, columns...)
}

// clustered returns columns with that of the cluster in front of them if an item has one.
func clustered[T any](columns []Column[T], items []T) []Column[T] {
	if !slices.ContainsFunc(items, func(item T) bool { return clusterOf(item) != "" }) {
		return columns
	}
	return withClusters(columns)
}

// clusterColumns returns the columns of a table of clusters.
func clusterColumns() []Column[*pb.Cluster] {
	return []Column[*pb.Cluster]{
		{Header: "NAME", cell: func(c *pb.Cluster, _ time.Time) string { return c.GetName() }},
		{Header: "STATE", Tone: func(c *pb.Cluster) Tone { return unless(c.GetState() == pb.Cluster_LIVE, BadTone) }, cell: func(c *pb.Cluster, _ time.Time) string { return c.GetState().String() }},
		{Header: "NODES", cell: func(c *pb.Cluster, _ time.Time) string { return connected(c.GetCoverage()) }},
		{Header: "LAST HEARD", trait: trait{rank: 1}, cell: func(c *pb.Cluster, now time.Time) string { return ago(c.GetLastHeard(), now) }},
		{Header: "LAST CHANGE", trait: trait{rank: 2}, cell: func(c *pb.Cluster, now time.Time) string { return ago(c.GetUntil(), now) }},
		{Header: "REACHES BACK", trait: trait{rank: 3}, cell: func(c *pb.Cluster, now time.Time) string { return ago(c.GetReachesBackTo(), now) }},
	}
}

// connected returns how many of the expected nodes are connected.
func connected(c *pb.Coverage) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%d of %d", c.GetHeard(), c.GetExpected())
}

// Clusters writes clusters as a table, followed by their problems and those of the fleet.
func Clusters(w io.Writer, answer *pb.ListClustersResponse, layout Layout, now time.Time) error {
	p := &page{layout: layout, now: now}
	var problems [][2]string
	if clusters := answer.GetClusters(); len(clusters) > 0 {
		_ = list(p, layout, narrow(clusterColumns(), layout.Wide), clusters, now) // writing to a page cannot fail
		for _, c := range clusters {
			for _, problem := range c.GetProblems() {
				problems = append(problems, [2]string{c.GetName() + ": ", problem})
			}
		}
	}
	p.problems("Problems:", problems)
	p.aggregator(answer.GetProblems())
	return p.write(w)
}

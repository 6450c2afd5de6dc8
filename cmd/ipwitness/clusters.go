package main

import (
	"context"
	"errors"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// errPlanOfFleet is the error for a plan that a fleet cannot make.
var errPlanOfFleet = errors.New("a fleet knows no steps to repair IPAM: run --fix-plan with the aggregator of the cluster (--server)")

func newClusters(sys system) *cobra.Command {
	q := &query{sys: sys}
	cmd := &cobra.Command{
		Use:   "clusters [flags]",
		Short: "List the clusters of a fleet, and how current they are",
		Long: `List the clusters that a fleet ('ipwitness aggregator --fleet') follows. Other aggregators
have one cluster.

A cluster is LIVE if the fleet knows its complete state and messages arrive. It is DISCONNECTED
if no message has arrived for 30 s, and WAITING if messages are missing, so that the fleet
waits for the next complete state. What is known of a cluster that is not LIVE may be
outdated. NODES is how many nodes are connected, of those that should be.`,
		Example: `
  ipwitness clusters
  ipwitness clusters --cluster prod -o json`,
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list pb.ListClustersResponse
			if err := q.client().get(cmd.Context(), "/v1/clusters", q.within(nil), &list); err != nil {
				return err
			}
			if q.format.ForPrograms() {
				return show.Message(sys.stdout, q.format, &list)
			}
			q.warn(list.GetCoverage())
			var err error
			if len(list.GetClusters()) == 0 {
				q.note("No clusters.")
			} else {
				err = show.Clusters(sys.stdout, list.GetClusters(), q.layout(), sys.now())
			}
			return errors.Join(err, show.Aggregator(sys.stdout, list.GetProblems(), q.layout()))
		},
	}
	q.addFlags(cmd)
	q.addClusterFlag(cmd, "clusters")
	return cmd
}

// addClusterFlag adds --cluster. It is only taken from the command line, because variables and files name the
// cluster of an aggregator.
func (q *query) addClusterFlag(cmd *cobra.Command, of string) {
	what := of + " in the cluster with this name"
	if of == "clusters" {
		what = "the cluster with this name"
	}
	cmd.Flags().Var(cli.NewList(&q.clusters, "NAME", ",", cli.ParseName), "cluster", what+", of a fleet; repeatable")
	cli.CompleteFlagWith(cmd, "cluster", q.complete(nil, clusterNames))
	cli.OnlyOnCommandLine(cmd, "cluster")
}

// within returns the parameters of a request, with the selected clusters.
func (q *query) within(ask url.Values) url.Values {
	if len(q.clusters) == 0 {
		return ask
	}
	if ask == nil {
		ask = url.Values{}
	}
	ask["cluster"] = q.clusters
	return ask
}

// clusterNames adds the names of the clusters.
func clusterNames(ctx context.Context, c *candidates) {
	var list pb.ListClustersResponse
	if c.client().get(ctx, "/v1/clusters", nil, &list) != nil {
		return
	}
	for _, one := range list.GetClusters() {
		if !c.add(one.GetName(), one.GetState().String()) {
			return
		}
	}
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newNodes(sys system) *cobra.Command {
	q := &query{sys: sys}
	cmd := &cobra.Command{
		Use:               "nodes [NODE] [flags]",
		Short:             "List the nodes and the health of their agents",
		Args:              argument("the name of a node", ""),
		ValidArgsFunction: q.completeArgument(nodeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			switch {
			case q.watch:
				return q.watchNodes(cmd.Context(), name)
			case name != "":
				n := &pb.Node{}
				err := q.client().get(cmd.Context(), "/v1/nodes/"+url.PathEscape(name), q.within(nil), n)
				switch {
				case unknown(err):
					return cmp.Or(q.checkNode(cmd.Context(), name), fmt.Errorf("no agent has reported from node %q yet", name))
				case err != nil:
					return err
				case q.format.ForPrograms():
					return show.Message(sys.stdout, q.format, n)
				}
				return show.Node(sys.stdout, n, q.layout(), sys.now())
			}
			list, err := q.nodes(cmd.Context())
			if err != nil {
				return err
			}
			if q.format.ForPrograms() {
				return show.Message(sys.stdout, q.format, list)
			}
			q.warn(list.GetCoverage())
			if len(list.GetNodes()) == 0 {
				q.note("No nodes: no agent has connected yet.")
			}
			return show.Nodes(sys.stdout, list, q.layout(), sys.now())
		},
	}
	q.addFlags(cmd)
	q.addClusterFlag(cmd, "nodes in the cluster")
	q.addWatchFlag(cmd)
	return cmd
}

// watchNodes follows the nodes, or the node with a name.
func (q *query) watchNodes(ctx context.Context, name string) error {
	ask := url.Values{}
	if name != "" {
		if err := q.checkNode(ctx, name); err != nil {
			return err
		}
		ask.Set("name", name)
	}
	known := map[string]*pb.Node{} // as shown
	var problems []string          // of the aggregator
	return tableWatch[*pb.WatchNodesResponse, *pb.Node]{
		kind: show.NodeKind, ask: ask, item: (*pb.WatchNodesResponse).GetNode,
		changed: func(kind pb.Watch_Type, n *pb.Node) bool {
			key := show.NodeKind.Key(n)
			if kind == pb.Watch_REMOVED {
				delete(known, key)
				return true
			}
			n = proto.CloneOf(n)
			n.LastHeard, n.Lag, n.Skew = nil, nil, nil // they change all the time
			same := proto.Equal(known[key], n)
			known[key] = n
			return !same
		},
		mark: func(e *pb.WatchNodesResponse) error {
			if slices.Equal(problems, e.GetProblems()) {
				return nil
			}
			problems = e.GetProblems()
			if q.format.ForPrograms() {
				return show.Event(q.sys.stdout, q.format, e.GetType().String(), show.Field{Name: "problems", Value: append([]string{}, problems...)})
			}
			for _, problem := range problems {
				q.note("Problem of the aggregator: %s", problem)
			}
			if len(problems) == 0 {
				q.note("The aggregator no longer has problems.")
			}
			return nil
		},
	}.run(ctx, q)
}

// unknown reports whether the server answered that what the request names does not exist.
func unknown(err error) bool { return isCode(err, codes.NotFound) }

func newClusters(sys system) *cobra.Command {
	q := &query{sys: sys}
	cmd := &cobra.Command{
		Use:               "clusters [flags]",
		Short:             "List the clusters of a fleet, and how current they are",
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
			if len(list.GetClusters()) == 0 {
				q.note("No clusters.")
			}
			return show.Clusters(sys.stdout, &list, q.layout(), sys.now())
		},
	}
	q.addFlags(cmd)
	q.addClusterFlag(cmd, "the cluster")
	return cmd
}

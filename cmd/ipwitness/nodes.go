package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newNodes(sys system) *cobra.Command {
	q := &query{sys: sys}
	cmd := &cobra.Command{
		Use:               "nodes [THING] [flags]",
		Short:             "List the nodes and the health of their agents",
		Args:              argument(thing, ""),
		ValidArgsFunction: q.completeThing(nodeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return q.showNodes(cmd.Context(), strings.Join(args, ""))
		},
	}
	q.addListFlags(cmd)
	q.addTableFlags(cmd, "nodes", show.NodeKind.Orders)
	q.addClusterFlag(cmd, "nodes in the cluster")
	q.addWatchFlag(cmd)
	q.addExitCodeFlag(cmd, "a disconnected node or one with problems")
	return cmd
}

// showNodes lists or follows the nodes of a thing: the node of that name, or those of its owners; all if it is empty.
func (q *query) showNodes(ctx context.Context, about string) error {
	if err := q.checkWatch(); err != nil {
		return err
	}
	if q.watch {
		return q.watchNodes(ctx, about)
	}
	answer, err := q.nodes(ctx)
	if err != nil {
		return err
	}
	named := func(n *pb.Node) bool { return n.GetName() == about }
	one := slices.ContainsFunc(answer.GetNodes(), named)
	switch {
	case slices.Contains(answer.GetCoverage().GetSilentNodes(), about) && !one:
		return fmt.Errorf("no agent has reported from node %q yet", about)
	case about != "" && !one:
		owners, _, err := list(ctx, q, "/v1/owners", url.Values{"about": {about}}, (*pb.ListOwnersResponse).GetOwners)
		if err != nil {
			return err
		}
		if len(owners) == 0 {
			return cmp.Or(q.checkThing(ctx, about, answer.GetCoverage()), fmt.Errorf("no node has an owner of %s: %s", about, show.KnownNodes(knownNodes(answer))))
		}
		named = func(n *pb.Node) bool {
			return slices.ContainsFunc(owners, func(o *pb.Owner) bool { return o.GetNode() == n.GetName() && o.GetCluster() == n.GetCluster() })
		}
	}
	if about != "" {
		answer.Nodes = slices.DeleteFunc(answer.GetNodes(), func(n *pb.Node) bool { return !named(n) })
	}
	show.NodeKind.Sort(answer.GetNodes(), q.sortBy)
	switch one = one && len(answer.GetNodes()) == 1; {
	case q.format == show.FormatName, q.format == show.FormatCSV:
		err = show.List(q.sys.stdout, q.format, show.NodeKind, answer.GetNodes())
	case q.format.ForPrograms() && one:
		err = show.Message(q.sys.stdout, q.format, answer.GetNodes()[0])
	case q.format.ForPrograms():
		err = show.Message(q.sys.stdout, q.format, answer)
	case one:
		err = show.Node(q.sys.stdout, answer.GetNodes()[0], q.layout(), q.sys.now())
	default:
		q.warn(answer.GetCoverage())
		if len(answer.GetNodes()) == 0 {
			q.note("No nodes: no agent has connected yet.")
		}
		err = show.Nodes(q.sys.stdout, answer, q.layout(), q.sys.now())
	}
	if !q.exitCode {
		return err
	}
	return errors.Join(err, q.conclude(slices.ContainsFunc(answer.GetNodes(), func(n *pb.Node) bool {
		return n.GetState() != pb.Node_LIVE || len(n.GetProblems()) > 0
	}), answer.GetCoverage()))
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

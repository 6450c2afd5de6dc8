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
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newNodes(sys system) *cobra.Command {
	q := &query{sys: sys}
	var watch bool
	cmd := &cobra.Command{
		Use:   "nodes [NODE] [flags]",
		Short: "List the nodes and the health of their agents",
		Long: `List the nodes and the health of their agents, and the state of the server's connection
to the Kubernetes API. With the name of a NODE, show all details of that node.

LAG is the delay between agent and server. SKEW is how far the node's clock is ahead
of the server's clock; it is for information only. LOST counts events that were lost
in the kernel; the agent lists the affected state again where possible.

With --watch, a node that connects, disconnects or reconnects is shown immediately.
Other changes (such as the watching method, lost events and problems) are shown
within 5 seconds. Problems of the server are shown on stderr, or with -o json as
{"type":"BOOKMARK","problems":[…]}.`,
		Example: `
  ipwitness nodes
  ipwitness nodes node-1
  ipwitness nodes --watch
  ipwitness nodes -o json`,
		Args:              atMostOne("the name of a node"),
		ValidArgsFunction: q.completeArgument(&narrowing{}, nodeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			switch {
			case watch:
				return q.watchNodes(cmd.Context(), name)
			case name != "":
				return q.showNode(cmd.Context(), name)
			}
			var list pb.ListNodesResponse
			if err := q.client().get(cmd.Context(), "/v1/nodes", q.within(nil), &list); err != nil {
				return err
			}
			if q.format.ForPrograms() {
				return show.Message(sys.stdout, q.format, &list)
			}
			q.warn(list.GetCoverage())
			if len(list.GetNodes()) == 0 {
				q.note("No nodes: no agent has connected yet.")
				return errors.Join(show.Kubernetes(sys.stdout, list.GetKubernetes(), q.layout(), sys.now()), show.Election(sys.stdout, list.GetElection()), show.Aggregator(sys.stdout, list.GetProblems(), q.layout()))
			}
			return errors.Join(show.Nodes(sys.stdout, list.GetNodes(), list.GetKubernetes(), q.layout(), sys.now()),
				show.Election(sys.stdout, list.GetElection()), show.Aggregator(sys.stdout, list.GetProblems(), q.layout()))
		},
	}
	q.addFlags(cmd)
	q.addClusterFlag(cmd, "nodes")
	watchFlag(cmd, &watch)
	return cmd
}

// showNode shows the details of a node.
func (q *query) showNode(ctx context.Context, name string) error {
	n := &pb.Node{}
	err := q.client().get(ctx, "/v1/nodes/"+url.PathEscape(name), q.within(nil), n)
	switch {
	case unknown(err):
		return cmp.Or(q.checkNode(ctx, name), fmt.Errorf("no agent has reported from node %q yet", name))
	case err != nil:
		return err
	case q.format.ForPrograms():
		return show.Message(q.sys.stdout, q.format, n)
	}
	return show.Node(q.sys.stdout, n, q.layout(), q.sys.now())
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
	known, table := show.NewChanges(show.NodeKey), show.NewNodeWatch(q.sys.stdout, q.layout())
	seen := coverageWatch{query: q}
	var problems []string // problems of the aggregator
	showEvent := func(kind pb.Watch_Type, n *pb.Node) error {
		if q.format.ForPrograms() {
			return show.Event(q.sys.stdout, q.format, kind.String(), "node", n)
		}
		return table.Event(kind, n, q.sys.now())
	}
	put := func(n *pb.Node) error {
		before, had := known.Put(n)
		switch {
		case !had:
			return showEvent(pb.Watch_ADDED, n)
		case !proto.Equal(steady(before), steady(n)):
			return showEvent(pb.Watch_UPDATED, n)
		default:
			return nil
		}
	}
	mark := func(e *pb.WatchNodesResponse) error {
		for _, gone := range known.Complete() {
			if err := showEvent(pb.Watch_REMOVED, gone); err != nil {
				return err
			}
		}
		changed := !slices.Equal(problems, e.GetProblems())
		problems = e.GetProblems()
		if q.format.ForPrograms() {
			if !changed {
				return nil
			}
			list := &structpb.ListValue{}
			for _, problem := range problems {
				list.Values = append(list.Values, structpb.NewStringValue(problem))
			}
			return show.Event(q.sys.stdout, q.format, pb.Watch_BOOKMARK.String(), "problems", list)
		}
		if err := table.Event(pb.Watch_BOOKMARK, nil, q.sys.now()); err != nil || !changed {
			return err
		}
		for _, problem := range problems {
			q.note("Problem of the aggregator: %s", problem)
		}
		if len(problems) == 0 {
			q.note("The aggregator no longer has problems.")
		}
		return nil
	}
	w := &watcher[*pb.WatchNodesResponse]{
		client: q.client(),
		notice: q.sys.stderr,
		path:   "/v1/nodes:watch",
		query:  q.within(ask),
		begin:  known.Begin,
		event: func(e *pb.WatchNodesResponse) error {
			if err := seen.follow(e); err != nil {
				return err
			}
			table.Of(e.GetCoverage())
			switch e.GetType() {
			case pb.Watch_ADDED, pb.Watch_UPDATED:
				return put(e.GetNode())
			case pb.Watch_REMOVED:
				if before, had := known.Drop(e.GetNode()); had {
					return showEvent(pb.Watch_REMOVED, before)
				}
			case pb.Watch_LOST:
				known.Begin()
			case pb.Watch_BOOKMARK:
				return mark(e)
			default:
			}
			return nil
		},
	}
	return w.run(ctx)
}

// steady returns a node without the fields that change all the time.
func steady(n *pb.Node) *pb.Node {
	n = proto.CloneOf(n)
	n.LastHeard, n.Lag, n.Skew = nil, nil, nil
	return n
}

package main

import (
	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newNodes(sys system) *cobra.Command {
	q := &query{sys: sys}
	cmd := &cobra.Command{
		Use:   "nodes [flags]",
		Short: "Show the agents and their health",
		Long: `Show the agents and their health, and whether the server hears the Kubernetes API.

LAG is how far the server is behind the agent, SKEW how much the node's clock is
ahead of the server's: it is shown, and decides nothing. LOST counts events that
were lost in the kernel; they are listed again where that is possible.`,
		Example: `
  ipwitness nodes
  ipwitness nodes -o json`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list pb.ListNodesResponse
			if err := q.client().get(cmd.Context(), "/v1/nodes", nil, &list); err != nil {
				return err
			}
			if q.format.ForPrograms() {
				return show.Message(sys.stdout, q.format, &list)
			}
			if len(list.GetNodes()) == 0 {
				q.tell("No nodes: no agent has connected yet.")
				return show.Kubernetes(sys.stdout, list.GetKubernetes(), sys.now())
			}
			return show.Nodes(sys.stdout, list.GetNodes(), list.GetKubernetes(), q.wide(), sys.now())
		},
	}
	q.addFlags(cmd)
	return cmd
}

package main

import (
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newExplain(sys system) *cobra.Command {
	q := &query{sys: sys}
	cmd := &cobra.Command{
		Use:   "explain ID|ADDRESS [flags]",
		Short: "Say why an address is, or is not, in conflict",
		Long: `Say why an address is, or is not, in conflict: who holds it and how that was
witnessed, which rules applied, and which did not and why.`,
		Example: `
  ipwitness explain 10.244.0.7
  ipwitness explain fd00:10::7 -o yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("explain needs an ADDRESS, or the ID of a conflict: '%[1]s owners' and '%[1]s conflicts' show them", sys.program)
			}
			if err := atMostOne("an ADDRESS or the ID of a conflict")(cmd, args); err != nil {
				return err
			}
			_, _, err := idOrAddress(args[0])
			return err
		},
		ValidArgsFunction: q.completeConflicts,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, address, err := idOrAddress(args[0])
			if err != nil {
				return err
			}
			if id != "" {
				conflict, err := q.get(cmd.Context(), id)
				if err != nil {
					return err
				}
				address = conflict.GetAddress()
			}
			explained := &pb.ExplainResponse{}
			if err := q.client().get(cmd.Context(), "/v1/explain", url.Values{"address": {address}}, explained); err != nil {
				return err
			}
			if q.format.ForPrograms() {
				return show.Message(sys.stdout, q.format, explained)
			}
			q.warn(explained.GetCoverage())
			return show.Explain(sys.stdout, explained, sys.now())
		},
	}
	q.addFlags(cmd)
	return cmd
}

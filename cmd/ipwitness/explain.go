package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/aggregator/casefile"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// formatCase is the format of explain that `ipwitness judge` reads.
const formatCase show.Format = "case"

type explainCommand struct {
	query
}

func newExplain(sys system) *cobra.Command {
	c := &explainCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:   "explain ID|ADDRESS [flags]",
		Short: "Explain why an address is, or is not, in conflict",
		Long: `Explain why an address is, or is not, in conflict: its owners and the evidence for
them, the rules that applied, and the reasons why other rules did not apply.

With --at, show the owners, conflicts and findings of the address at a time in the
past, with the names of that time, as they were recorded. Rules, evidence and steps to
take are not recorded.
` + timesHelp + `

With -o case, write all data that the address was judged by, as a file for
'` + sys.program + ` judge' or a bug report.`,
		Example: `
  ipwitness explain 10.244.0.7
  ipwitness explain fd00:10::7 -o yaml
  ipwitness explain 10.244.0.7 --at "yesterday 14:03"
  ipwitness explain 10.244.0.7 -o case > case.json`,
		Args: cobra.MatchAll(oneArgument("an ADDRESS or the ID of a conflict", fmt.Sprintf(
			"explain needs an ADDRESS or the ID of a conflict: '%[1]s owners' and '%[1]s conflicts' list them", sys.program)), checkIDOrAddress),
		ValidArgsFunction: c.completeArgument(conflictIDs, conflictAddresses, ownerAddresses),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := exclusive(!c.at.IsZero() && c.format == formatCase, "--at", "-o case", "cases are not recorded"); err != nil {
				return err
			}
			return c.explain(cmd.Context(), args[0])
		},
	}
	c.addFlags(cmd, formatCase)
	c.addClusterFlag(cmd, "what is known in the cluster")
	c.addAtFlag(cmd)
	return cmd
}

// explain explains an address, or the address of the conflict with an id.
func (c *explainCommand) explain(ctx context.Context, what string) error {
	id, address, err := idOrAddress(what)
	if err != nil {
		return err
	}
	if id != "" {
		conflict, _, err := c.conflict(ctx, id)
		if err != nil {
			return err
		}
		address = conflict.GetAddress()
	}
	ask := url.Values{"address": {address}}
	if c.format == formatCase {
		ask.Set("case", "true")
	}
	explained := &pb.ExplainResponse{}
	if err := c.client().get(ctx, "/v1/explain", c.within(ask), explained); err != nil {
		return err
	}
	switch {
	case c.format == formatCase:
		return c.writeCase(explained)
	case c.format.ForPrograms():
		return show.Message(c.sys.stdout, c.format, explained)
	}
	c.gap = explained.GetGap()
	c.warn(explained.GetCoverage())
	switch {
	case !c.at.IsZero():
		return show.ExplainRecorded(c.sys.stdout, explained, c.layout(), c.at, show.PastLacks)
	case explained.GetCoverage().GetClusters() > 0:
		return show.ExplainRecorded(c.sys.stdout, explained, c.layout(), c.sys.now(), show.FleetLacks)
	}
	return show.Explain(c.sys.stdout, explained, c.layout(), c.sys.now())
}

// writeCase writes the case of an explanation as a file.
func (c *explainCommand) writeCase(explained *pb.ExplainResponse) error {
	if explained.GetCase() == nil {
		return errors.New("the server does not support cases, because it is older than this program: upgrade the aggregator")
	}
	raw, err := explained.GetCase().MarshalJSON()
	if err != nil {
		return err
	}
	f, err := casefile.Decode(raw)
	if err != nil {
		return err
	}
	file, err := casefile.Encode(f)
	if err != nil {
		return err
	}
	_, err = c.sys.stdout.Write(file)
	return err
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/casefile"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// formatCase is the format of explain that `ipwitness judge` reads.
const formatCase show.Format = "case"

func newExplain(sys system) *cobra.Command {
	c := &query{sys: sys}
	cmd := &cobra.Command{
		Use:   "explain ID|ADDRESS [flags]",
		Short: "Explain why an address is, or is not, in conflict",
		Args: argument("an ADDRESS or the ID of a conflict", fmt.Sprintf(
			"explain needs an ADDRESS or the ID of a conflict: '%[1]s owners' and '%[1]s conflicts' list them", sys.program)),
		ValidArgsFunction: c.completeArgument(conflictItems, ownerAddresses),
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
func (q *query) explain(ctx context.Context, what string) error {
	id, address, err := idOrAddress(what)
	if err != nil {
		return err
	}
	if id != "" {
		conflict, _, err := q.conflict(ctx, id)
		if err != nil {
			return err
		}
		address = conflict.GetAddress()
	} else if a, err := netip.ParseAddr(what); err == nil && a.Is4In6() {
		address = a.WithZone("").String() // an address of its own
	}
	ask := url.Values{"address": {address}}
	if q.format == formatCase {
		ask.Set("case", "true")
	} else if q.at.IsZero() {
		ask.Set("senders", "true")
	}
	explained := &pb.ExplainResponse{}
	if err := q.client().get(ctx, "/v1/explain", q.within(ask), explained); err != nil {
		return err
	}
	switch {
	case q.format == formatCase:
		var file bytes.Buffer
		if err := show.Message(&file, show.FormatJSON, explained.GetCase()); err != nil {
			return err
		}
		if _, err := casefile.Decode(file.Bytes()); err != nil { // judge would refuse it
			return err
		}
		_, err := file.WriteTo(q.sys.stdout)
		return err
	case q.format.ForPrograms():
		return show.Message(q.sys.stdout, q.format, explained)
	}
	q.gap = explained.GetGap()
	q.warn(explained.GetCoverage())
	switch {
	case !q.at.IsZero():
		return show.ExplainRecorded(q.sys.stdout, explained, q.layout(), q.at, show.PastLacks)
	case explained.GetCoverage().GetClusters() > 0:
		return show.ExplainRecorded(q.sys.stdout, explained, q.layout(), q.sys.now(), show.FleetLacks)
	}
	return show.Explain(q.sys.stdout, explained, q.layout(), q.sys.now())
}

func newJudge(sys system) *cobra.Command {
	c := &query{sys: sys}
	cmd := &cobra.Command{
		Use:   "judge FILE|- [flags]",
		Short: "Re-evaluate a saved case, offline",
		Args:  argument("a FILE or -", "judge needs a FILE that '"+sys.program+" explain ADDRESS -o case' wrote, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "-" {
				f, err := casefile.Read(cmd.InOrStdin())
				if err != nil {
					return err
				}
				return c.judge(f)
			}
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // opened for reading only
			f, err := casefile.Read(file)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return c.judge(f)
		},
	}
	outputFlag(cmd, &c.format)
	colorFlag(cmd, &c.color)
	cmd.Flags().BoolVar(&c.exitCode, "exit-code", false, "exit 2 on a confirmed conflict, 0 if none, 3 if not all nodes were seen, 1 on error")
	return cmd
}

// judge judges a case and shows the result.
func (q *query) judge(f *casefile.File) error {
	explained, changes := api.Judge(f)
	for _, change := range changes {
		q.note("Warning: ipwitness %s, which wrote the case, judged differently: %s.", f.Version, change)
	}
	incomplete := explained.GetCoverage().GetIncomplete()
	var err error
	if q.format.ForPrograms() {
		err = show.Message(q.sys.stdout, q.format, explained)
	} else {
		if incomplete {
			q.note("Warning: not all nodes were seen when the case was written.")
		}
		err = show.Explain(q.sys.stdout, explained, q.layout(), f.Case.Now.Time())
	}
	switch {
	case !q.exitCode:
	case slices.ContainsFunc(explained.GetConflicts(), func(c *pb.Conflict) bool { return c.GetState() == pb.Conflict_CONFIRMED }):
		return errors.Join(err, exitFound)
	case incomplete:
		return errors.Join(err, exitCannotTell)
	}
	return err
}

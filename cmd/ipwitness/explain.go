package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

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
		Use:   "explain THING [flags]",
		Short: "Explain why an address is, or is not, in conflict",
		Args: argument(thing, fmt.Sprintf(
			"explain needs an ADDRESS, or another THING that has one: '%[1]s owners' and '%[1]s conflicts' list them", sys.program)),
		ValidArgsFunction: c.completeThing(conflictItems),
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

// addressOf returns the address of a thing. It is an error that lists the addresses if there are several.
func (q *query) addressOf(ctx context.Context, about string) (string, error) {
	if a, err := netip.ParseAddr(about); err == nil {
		return a.WithZone("").String(), nil
	}
	ask := url.Values{"about": {about}, "all": {"true"}}
	conflicts, coverage, err := q.conflicts(ctx, ask)
	if err != nil {
		return "", err
	}
	ask.Del("all")
	owners, _, err := list(ctx, q, "/v1/owners", ask, (*pb.ListOwnersResponse).GetOwners)
	if err != nil {
		return "", err
	}
	findings, _, err := list(ctx, q, "/v1/findings", ask, (*pb.ListFindingsResponse).GetFindings)
	if err != nil {
		return "", err
	}
	what := map[string]string{}
	for _, f := range findings {
		what[f.GetAddress()] = show.FindingLine(f)
	}
	for _, o := range owners {
		what[o.GetAddress()] = o.GetAddress() + "  " + pb.OwnerName(o)
	}
	for _, c := range conflicts {
		what[c.GetAddress()] = show.ConflictLine(c)
	}
	delete(what, "") // of a finding about none
	all := slices.SortedFunc(maps.Keys(what), show.CompareAddresses)
	switch {
	case len(all) == 0:
		return "", cmp.Or(q.checkThing(ctx, about, coverage), fmt.Errorf("no address of %s is known: '%s owners' lists all", about, q.sys.program))
	case len(all) == 1:
		return all[0], nil
	}
	lines := []string{fmt.Sprintf("%s has %d addresses: select one:", about, len(all))}
	for _, address := range all[:min(len(all), mostListed)] {
		lines = append(lines, what[address])
	}
	return "", errors.New(strings.Join(lines, "\n  "))
}

// mostListed is the largest number of things in an error that a name could mean.
const mostListed = 20

// explain explains the address of a thing.
func (q *query) explain(ctx context.Context, about string) error {
	address, err := q.addressOf(ctx, about)
	if err != nil {
		return err
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

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// incidentsCommand has the flags of incidents.
type incidentsCommand struct {
	query
	cause string
}

func newIncidents(sys system) *cobra.Command {
	c := &incidentsCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:               "incidents [ID] [flags]",
		Short:             "List what is wrong, grouped by cause, and the steps to take",
		Args:              argument("the ID of an incident", ""),
		ValidArgsFunction: c.completeArgument(incidentIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := strings.Join(args, "")
			switch err := c.checkWatch(); {
			case err != nil:
				return err
			case c.watch:
				return c.follow(cmd.Context(), id)
			case id == "":
				return c.list(cmd.Context())
			}
			return c.one(cmd.Context(), id)
		},
	}
	c.addListFlags(cmd)
	c.addTableFlags(cmd, "incidents", show.IncidentKind.Orders)
	c.addClusterFlag(cmd, "incidents in the cluster")
	c.addFilters(cmd, "incidents", nil, "node")
	c.addWatchFlag(cmd)
	c.addAtFlag(cmd)
	wordFlag(cmd, &c.cause, "cause", "CAUSE", "incidents of this cause or kind, like "+verdict.CauseIPAMStateLost, "a cause", append(verdict.Causes(), verdict.FindingKinds()...))
	c.addExitCodeFlag(cmd, "an incident above INFO")
	return cmd
}

// incidents requests the incidents, the most urgent first.
func (q *query) incidents(ctx context.Context, ask url.Values) ([]*pb.Incident, *pb.Coverage, error) {
	all, coverage, err := list(ctx, q, "/v1/incidents", ask, (*pb.ListIncidentsResponse).GetIncidents)
	show.SortIncidents(all)
	return all, coverage, err
}

// ask returns the parameters of a request for incidents.
func (c *incidentsCommand) ask() (url.Values, error) {
	ask := url.Values{}
	if c.cause != "" {
		ask.Set("cause", c.cause)
	}
	return ask, c.filters.ask(ask)
}

// follow shows incidents, or the one with an ID, as they appear, change and end.
func (c *incidentsCommand) follow(ctx context.Context, id string) error {
	ask, err := c.ask()
	if err != nil {
		return err
	}
	return tableWatch[*pb.WatchIncidentsResponse, *pb.Incident]{
		kind: show.IncidentKind, ask: ask, item: (*pb.WatchIncidentsResponse).GetIncident,
		keep: func(one *pb.Incident) bool { return id == "" || one.GetId() == id },
	}.run(ctx, &c.query)
}

// list shows a table of incidents.
func (c *incidentsCommand) list(ctx context.Context) error {
	ask, err := c.ask()
	if err != nil {
		return err
	}
	incidents, coverage, err := c.incidents(ctx, ask)
	if err != nil {
		return c.unknownAt(err)
	}
	if len(incidents) == 0 {
		if err := c.checkNode(ctx, c.filters.get("node")); err != nil {
			return err
		}
	}
	show.IncidentKind.Sort(incidents, c.sortBy)
	c.warn(coverage)
	switch {
	case c.format.ForPrograms():
		err = show.List(c.sys.stdout, c.format, show.IncidentKind, incidents, c.basis(coverage)...)
	case len(incidents) > 0:
		err = show.Incidents(c.sys.stdout, incidents, c.layout(), c.now())
	case coverage.GetIncomplete() || c.gap != nil:
		c.note("No incidents are known.")
	case c.filtered() || c.cause != "":
		c.note("No incident matches these filters.")
	default:
		c.note("No incidents.")
	}
	return errors.Join(err, c.found(coverage, incidents...))
}

// found returns the exit code for incidents.
func (c *incidentsCommand) found(coverage *pb.Coverage, incidents ...*pb.Incident) error {
	if !c.exitCode {
		return nil
	}
	return c.conclude(slices.ContainsFunc(incidents, urgent), coverage)
}

// urgent reports whether somebody has to act on an incident.
func urgent(i *pb.Incident) bool { return i.GetSeverity() > pb.Finding_INFO }

// one shows the details of one incident. If it has only one member, these are the details of the member.
func (c *incidentsCommand) one(ctx context.Context, id string) error {
	if filters := c.filters.given(); len(filters) > 0 || c.cause != "" {
		return errors.New("an ID selects one incident and cannot be combined with filters: remove one of them")
	}
	i, coverage, err := c.incident(ctx, id)
	if err != nil {
		return c.unknownAt(err)
	}
	c.warn(coverage)
	if c.format == show.FormatName || c.format == show.FormatCSV {
		err = show.List(c.sys.stdout, c.format, show.IncidentKind, []*pb.Incident{i})
		return errors.Join(err, c.found(coverage, i))
	}
	if c.format.ForPrograms() {
		err = show.Message(c.sys.stdout, c.format, i)
		return errors.Join(err, c.found(coverage, i))
	}
	of := url.Values{"incident": {id}}
	conflicts, _, err := c.conflicts(ctx, of)
	if err != nil {
		return err
	}
	findings, _, err := list(ctx, &c.query, "/v1/findings", of, (*pb.ListFindingsResponse).GetFindings)
	if err != nil {
		return err
	}
	show.SortFindings(findings)
	if !c.at.IsZero() { // steps of the past are not safe to follow now
		i.Remedy = nil
		for _, one := range conflicts {
			one.Remedy = nil
		}
		for _, one := range findings {
			one.Remedy, one.Fixes = nil, nil
		}
	}
	switch {
	case len(conflicts) == 1 && len(findings) == 0:
		err = show.Conflict(c.sys.stdout, conflicts[0], c.layout(), c.now())
	case len(conflicts) == 0 && len(findings) == 1:
		err = show.Finding(c.sys.stdout, findings[0], c.layout(), c.now())
	default:
		err = show.Incident(c.sys.stdout, i, conflicts, findings, c.layout(), c.now())
	}
	return errors.Join(err, c.found(coverage, i))
}

// incident requests one incident.
func (c *incidentsCommand) incident(ctx context.Context, id string) (*pb.Incident, *pb.Coverage, error) {
	if c.at.IsZero() {
		i := &pb.Incident{}
		if err := c.client().get(ctx, "/v1/incidents/"+url.PathEscape(id), nil, i); err != nil {
			return nil, nil, err
		}
		coverage, err := c.coverage(ctx)
		return i, coverage, err
	}
	all, coverage, err := c.incidents(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, i := range all {
		if i.GetId() == id {
			return i, coverage, nil
		}
	}
	c.noteGap()
	return nil, nil, fmt.Errorf("there was no incident %s at %s: '%s incidents --at TIME' lists those of another time", id, utc(c.at), c.sys.program)
}

package main

import (
	"context"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newIncidents(sys system) *cobra.Command {
	q := &query{sys: sys}
	var cause string
	l := &listing[*pb.ListIncidentsResponse, *pb.WatchIncidentsResponse, *pb.Incident]{
		query: q, kind: show.IncidentKind, items: (*pb.ListIncidentsResponse).GetIncidents, item: (*pb.WatchIncidentsResponse).GetIncident,
		prepare: func(_ context.Context, _ url.Values, all []*pb.Incident) []*pb.Incident {
			show.SortIncidents(all)
			return all
		},
		counts: urgent, page: q.incident, paged: true,
		more: func(ask url.Values) {
			if cause != "" {
				ask.Set("cause", cause)
			}
		},
		table: func(_ context.Context, all []*pb.Incident) error {
			return show.Incidents(sys.stdout, all, q.layout(), q.now())
		},
	}
	cmd := l.command("incidents [THING] [flags]", "List what is wrong, grouped by cause, and the steps to take", incidentIDs)
	l.add(cmd, "an incident above INFO", nil, "node")
	wordFlag(cmd, &cause, "cause", "CAUSE", "incidents of this cause or kind, like "+verdict.CauseIPAMStateLost, "a cause", append(verdict.Causes(), verdict.FindingKinds()...))
	return cmd
}

// incidents requests the incidents, the most urgent first.
func (q *query) incidents(ctx context.Context, ask url.Values) ([]*pb.Incident, *pb.Coverage, error) {
	all, coverage, err := list(ctx, q, "/v1/incidents", ask, (*pb.ListIncidentsResponse).GetIncidents)
	show.SortIncidents(all)
	return all, coverage, err
}

// urgent reports whether somebody has to act on an incident.
func urgent(i *pb.Incident) bool { return i.GetSeverity() > pb.Finding_INFO }

// incident shows the details of an incident. If it has only one member, these are the details of the member.
func (q *query) incident(ctx context.Context, i *pb.Incident) error {
	if q.at.IsZero() { // the list has no plans
		if err := q.client().get(ctx, "/v1/incidents/"+url.PathEscape(i.GetId()), nil, i); err != nil {
			return err
		}
	}
	of := url.Values{"incident": {i.GetId()}}
	conflicts, _, err := q.conflicts(ctx, of)
	if err != nil {
		return err
	}
	findings, _, err := list(ctx, q, "/v1/findings", of, (*pb.ListFindingsResponse).GetFindings)
	if err != nil {
		return err
	}
	show.SortFindings(findings)
	if !q.at.IsZero() { // steps of the past are not safe to follow now
		for _, one := range conflicts {
			one.Remedy = nil
		}
		for _, one := range findings {
			one.Remedy, one.Fixes = nil, nil
		}
	}
	switch {
	case len(conflicts) == 1 && len(findings) == 0:
		return show.Conflict(q.sys.stdout, conflicts[0], q.layout(), q.now())
	case len(conflicts) == 0 && len(findings) == 1:
		return show.Finding(q.sys.stdout, findings[0], q.layout(), q.now())
	}
	return show.Incident(q.sys.stdout, i, conflicts, findings, q.layout(), q.now())
}

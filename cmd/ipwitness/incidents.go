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

// incident shows the details of an incident.
func (q *query) incident(ctx context.Context, i *pb.Incident) error {
	conflicts, findings, err := q.members(ctx, i)
	if err != nil {
		return err
	}
	if !q.at.IsZero() { // steps of the past are not safe to follow now
		for _, one := range conflicts {
			one.Remedy = nil
		}
		for _, one := range findings {
			one.Remedy, one.Fixes = nil, nil
		}
	}
	return show.Incident(q.sys.stdout, i, conflicts, findings, q.layout(), q.now())
}

// members requests the details of an incident, which the list lacks, and its members.
func (q *query) members(ctx context.Context, i *pb.Incident) (conflicts []*pb.Conflict, findings []*pb.Finding, err error) {
	if q.at.IsZero() {
		if err := q.client().get(ctx, "/v1/incidents/"+url.PathEscape(i.GetId()), nil, i); err != nil {
			return nil, nil, err
		}
	}
	of := url.Values{"incident": {i.GetId()}}
	if conflicts, _, err = q.conflicts(ctx, of); err != nil {
		return nil, nil, err
	}
	findings, _, err = list(ctx, q, "/v1/findings", of, (*pb.ListFindingsResponse).GetFindings)
	show.SortFindings(findings)
	return conflicts, findings, err
}

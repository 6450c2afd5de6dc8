package main

import (
	"context"
	"errors"
	"net/url"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newStatus(sys system) *cobra.Command {
	q := &query{sys: sys}
	cmd := &cobra.Command{
		Use:               "status [flags]",
		Short:             "Show on one screen what needs attention",
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return q.status(cmd.Context()) },
	}
	q.addFlags(cmd)
	q.addClusterFlag(cmd, "the state of the cluster")
	return cmd
}

// status shows what needs attention.
func (q *query) status(ctx context.Context) error {
	var s show.Status
	var err error
	// The nodes come first: what was incomplete when they were listed may be missing in the lists.
	if s.Nodes, err = q.nodes(ctx); err != nil {
		return err
	}
	if s.Incidents, s.Coverage, err = q.incidents(ctx, nil); err != nil {
		return err
	}
	if s.Nodes.GetCoverage().GetIncomplete() {
		s.Coverage = s.Nodes.GetCoverage()
	}
	var events pb.ListEventsResponse
	switch err := q.client().get(ctx, "/v1/events", q.within(url.Values{"page_size": {"1"}}), &events); {
	case err == nil:
		s.ReachesBackTo = events.GetReachesBackTo()
	case !isCode(err, codes.Unimplemented, codes.FailedPrecondition): // there is no history
		return err
	}
	if q.format.ForPrograms() {
		err = show.List(q.sys.stdout, q.format, show.IncidentKind, s.Incidents, append(q.basis(s.Coverage),
			show.Field{Name: "nodes", Value: s.Nodes}, show.Field{Name: "reachesBackTo", Value: s.ReachesBackTo})...)
	} else {
		err = show.WriteStatus(q.sys.stdout, &s, q.layout(), q.sys.now())
	}
	switch {
	case err != nil:
		return err
	case len(s.Urgent()) > 0:
		return exitFound
	case s.Coverage == nil || s.Coverage.GetIncomplete():
		return exitCannotTell
	}
	return nil
}

// isCode reports whether the server refused a request with one of some codes.
func isCode(err error, some ...codes.Code) bool {
	refused, ok := errors.AsType[*serverError](err)
	return ok && slices.Contains(some, refused.code)
}

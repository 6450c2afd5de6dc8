package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newConflicts(sys system) *cobra.Command {
	q := &query{sys: sys}
	var all, ungrouped bool
	l := &listing[*pb.ListConflictsResponse, *pb.WatchConflictsResponse, *pb.Conflict]{
		query: q, kind: show.ConflictKind, items: (*pb.ListConflictsResponse).GetConflicts, item: (*pb.WatchConflictsResponse).GetConflict,
		paged: true,
		counts: func(c *pb.Conflict) bool {
			return c.GetState() == pb.Conflict_CONFIRMED && c.GetAcknowledgement() == nil
		},
		page: func(_ context.Context, conflict *pb.Conflict) error {
			if !q.at.IsZero() {
				conflict.Remedy = nil // steps of the past are not safe to follow now
			}
			return show.Conflict(sys.stdout, conflict, q.layout(), q.now())
		},
		table: func(_ context.Context, conflicts []*pb.Conflict) error {
			layout := q.layout()
			layout.Ungrouped = ungrouped
			notes, err := show.Conflicts(sys.stdout, conflicts, layout, q.now())
			for _, note := range notes {
				q.note("%s", note)
			}
			return err
		},
	}
	l.more = func(ask url.Values) {
		if all || ask.Has("about") && !q.watch {
			ask.Set("all", "true")
		}
	}
	l.prepare = func(_ context.Context, _ url.Values, conflicts []*pb.Conflict) []*pb.Conflict { // of a thing: the resolved ones only if no others are
		if !all && slices.ContainsFunc(conflicts, show.Active) {
			conflicts = slices.DeleteFunc(conflicts, func(c *pb.Conflict) bool { return !show.Active(c) })
		}
		return conflicts
	}
	cmd := l.command("conflicts [THING] [flags]", "List the addresses that more than one owner holds", conflictItems)
	l.add(cmd, "a confirmed, unacknowledged conflict", pb.Conflict_State_value, "node", "namespace", "workload", "cidr", "mac", "scope", "cause", "state", "incident")
	cmd.Flags().BoolVar(&ungrouped, "ungrouped", false, "a line for each conflict, also if many have the same owners")
	cmd.Flags().BoolVar(&all, "all", false, "include resolved conflicts")
	return cmd
}

// acknowledgeCommand contains the flags of acknowledge.
type acknowledgeCommand struct {
	query
	reason   string
	period   time.Duration
	withdraw bool
}

func newAcknowledge(sys system) *cobra.Command {
	c := &acknowledgeCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:     "acknowledge THING --reason TEXT --for DURATION [flags]",
		Aliases: []string{"ack"},
		Short:   "Silence a known conflict for a limited time",
		Args: argument(thing,
			"acknowledge needs the ID or the ADDRESS of a conflict, or another THING that is in conflict: '"+sys.program+" conflicts' lists them"),
		ValidArgsFunction: c.completeThing(conflictItems),
		RunE: func(cmd *cobra.Command, args []string) error {
			ask := &pb.AcknowledgeConflictRequest{Withdraw: c.withdraw}
			switch {
			case c.withdraw && (c.reason != "" || c.period != 0):
				return errors.New("--withdraw cannot be combined with --reason or --for: remove --withdraw, or both of the others")
			case c.withdraw:
			case strings.TrimSpace(c.reason) == "":
				return errors.New(`--reason is missing: give a reason, like --reason "NET-42: moves on Friday"`)
			case c.period == 0:
				return errors.New("--for is missing: give a duration, like --for 24h")
			default:
				ask.Reason, ask.ExpiresAt = c.reason, timestamppb.New(sys.now().Add(c.period))
			}
			id, err := c.onlyConflict(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			conflict := &pb.Conflict{}
			if err := c.client().call(cmd.Context(), http.MethodPost, "/v1/conflicts/"+url.PathEscape(id)+":acknowledge", nil, ask, conflict); err != nil {
				return err
			}
			if c.format.ForPrograms() {
				return show.Message(sys.stdout, c.format, conflict)
			}
			return show.Acknowledged(sys.stdout, conflict, c.layout(), sys.now())
		},
	}
	c.addFlags(cmd)
	fs := cmd.Flags()
	fs.StringVar(&c.reason, "reason", "", "reason, as `TEXT`, shown with the conflict")
	fs.Var(cli.NewValue(&c.period, "DURATION", parsePeriod), "for", "duration, like 30m, 24h or 7d; at most a year")
	fs.Lookup("for").DefValue = "" // no default
	fs.BoolVar(&c.withdraw, "withdraw", false, "withdraw the acknowledgement")
	return cmd
}

// onlyConflict returns the id of the active conflict about a thing, if there is exactly one.
func (q *query) onlyConflict(ctx context.Context, about string) (id string, err error) {
	conflicts, coverage, err := q.conflicts(ctx, url.Values{"about": {about}})
	switch {
	case err != nil:
		return "", err
	case len(conflicts) == 0:
		return "", cmp.Or(q.checkThing(ctx, about, coverage), fmt.Errorf("no conflict of %s: '%s explain %s' shows why", about, q.sys.program, about))
	case len(conflicts) == 1:
		return conflicts[0].GetId(), nil
	}
	lines := []string{fmt.Sprintf("%s is in %d conflicts: select one by its id:", about, len(conflicts))}
	for _, c := range conflicts {
		lines = append(lines, show.ConflictLine(c))
	}
	return "", errors.New(strings.Join(lines, "\n  "))
}

package main

import (
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

// conflictsCommand has the flags of conflicts.
type conflictsCommand struct {
	query
	all, ungrouped bool
}

func newConflicts(sys system) *cobra.Command {
	c := &conflictsCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:               "conflicts [ID|ADDRESS] [flags]",
		Short:             "List the addresses that more than one owner holds",
		Args:              argument("the ID or the ADDRESS of a conflict", ""),
		ValidArgsFunction: c.completeArgument(conflictItems),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.checkWatch(); err != nil {
				return err
			}
			var id, address string
			if len(args) > 0 {
				var err error
				if id, address, err = idOrAddress(args[0]); err != nil {
					return err
				}
			}
			if filters := c.filters.given(); id != "" && len(filters) > 0 {
				return fmt.Errorf("an ID selects one conflict and cannot be combined with %s: remove one of them", strings.Join(filters, " or "))
			}
			switch {
			case c.watch:
				return c.follow(cmd.Context(), id, address)
			case id != "":
				return c.one(cmd.Context(), id)
			default:
				return c.list(cmd.Context(), address)
			}
		},
	}
	c.addListFlags(cmd)
	c.addTableFlags(cmd, "conflicts", show.ConflictKind.Orders)
	c.addClusterFlag(cmd, "conflicts in the cluster")
	c.addFilters(cmd, "conflicts", pb.Conflict_State_value, "node", "namespace", "workload", "cidr", "mac", "scope", "cause", "state", "incident")
	c.addWatchFlag(cmd)
	c.addAtFlag(cmd)
	cmd.Flags().BoolVar(&c.ungrouped, "ungrouped", false, "a line for each conflict, also if many have the same owners")
	cmd.Flags().BoolVar(&c.all, "all", false, "include resolved conflicts")
	c.addExitCodeFlag(cmd, "a confirmed, unacknowledged conflict")
	return cmd
}

// one shows the details of one conflict.
func (c *conflictsCommand) one(ctx context.Context, id string) error {
	conflict, coverage, err := c.conflict(ctx, id)
	if err == nil && coverage == nil {
		coverage, err = c.coverage(ctx)
	}
	if err != nil {
		return c.unknownAt(err)
	}
	c.warn(coverage)
	switch {
	case c.format == show.FormatName, c.format == show.FormatCSV:
		err = show.List(c.sys.stdout, c.format, show.ConflictKind, []*pb.Conflict{conflict})
	case c.format.ForPrograms():
		if c.format.Whole() {
			c.noteGap() // which the conflict does not contain
		}
		err = show.Message(c.sys.stdout, c.format, conflict)
	default:
		err = c.page(conflict)
	}
	return errors.Join(err, c.found(coverage, conflict))
}

// conflict requests one conflict. The coverage is nil if the answer has none.
func (q *query) conflict(ctx context.Context, id string) (*pb.Conflict, *pb.Coverage, error) {
	if q.at.IsZero() {
		conflict := &pb.Conflict{}
		return conflict, nil, q.client().get(ctx, "/v1/conflicts/"+url.PathEscape(id), nil, conflict)
	}
	all, coverage, err := q.conflicts(ctx, url.Values{"all": {"true"}})
	if err != nil {
		return nil, nil, err
	}
	for _, conflict := range all {
		if conflict.GetId() == id {
			return conflict, coverage, nil
		}
	}
	q.noteGap()
	return nil, nil, fmt.Errorf("there was no conflict %[1]s at %[2]s: '%[3]s history --kind conflict' lists the conflicts of the past",
		id, utc(q.at), q.sys.program)
}

// list shows a table of all conflicts, or the details of the conflicts of one address.
func (c *conflictsCommand) list(ctx context.Context, address string) error {
	ask := url.Values{}
	if address != "" {
		ask.Set("address", address)
	}
	if c.all || address != "" {
		ask.Set("all", "true")
	}
	if err := c.filters.ask(ask); err != nil {
		return err
	}
	conflicts, coverage, err := c.conflicts(ctx, ask)
	if err != nil {
		return c.unknownAt(err)
	}
	if !c.all && slices.ContainsFunc(conflicts, show.Active) {
		conflicts = slices.DeleteFunc(conflicts, func(c *pb.Conflict) bool { return !show.Active(c) })
	}
	if len(conflicts) == 0 {
		if err := c.checkNode(ctx, c.filters.get("node")); err != nil {
			return err
		}
	}
	show.ConflictKind.Sort(conflicts, c.sortBy)
	c.warn(coverage)
	switch {
	case c.format.ForPrograms():
		err = show.List(c.sys.stdout, c.format, show.ConflictKind, conflicts, c.basis(coverage)...)
	case len(conflicts) == 0 && (coverage.GetIncomplete() || c.gap != nil) && address != "":
		c.note("%s is in no known conflict.", address)
	case len(conflicts) == 0 && (coverage.GetIncomplete() || c.gap != nil):
		c.note("No conflicts are known.")
	case len(conflicts) == 0 && !c.at.IsZero() && address != "":
		c.note("%s is not in conflict.", address)
	case len(conflicts) == 0 && address != "":
		c.note("%s is not in conflict. '%s explain %s' shows why.", address, c.sys.program, address)
	case len(conflicts) == 0 && c.filtered():
		c.note("No conflict matches these filters.")
	case len(conflicts) == 0:
		c.note("No conflicts.")
	case address != "":
		err = inFull(&c.query, conflicts, c.page)
	default:
		layout := c.layout()
		layout.Ungrouped = c.ungrouped
		var notes []string
		notes, err = show.Conflicts(c.sys.stdout, conflicts, layout, c.now())
		for _, note := range notes {
			c.note("%s", note)
		}
	}
	return errors.Join(err, c.found(coverage, conflicts...))
}

// page shows the details of a conflict.
func (c *conflictsCommand) page(conflict *pb.Conflict) error {
	if !c.at.IsZero() {
		conflict.Remedy = nil // steps of the past are not safe to follow now
	}
	return show.Conflict(c.sys.stdout, conflict, c.layout(), c.now())
}

// found returns the exit code for conflicts. A conflict counts if it is confirmed and not
// acknowledged.
func (c *conflictsCommand) found(coverage *pb.Coverage, conflicts ...*pb.Conflict) error {
	if !c.exitCode {
		return nil
	}
	return c.conclude(slices.ContainsFunc(conflicts, func(c *pb.Conflict) bool {
		return c.GetState() == pb.Conflict_CONFIRMED && c.GetAcknowledgement() == nil
	}), coverage)
}

// follow shows conflicts as they appear, change and end.
func (c *conflictsCommand) follow(ctx context.Context, id, address string) error {
	ask := url.Values{}
	if id != "" {
		conflict, _, err := c.conflict(ctx, id)
		if err != nil {
			return err
		}
		address = conflict.GetAddress()
	}
	if address != "" {
		ask.Set("address", address)
	}
	if err := c.filters.ask(ask); err != nil {
		return err
	}
	return tableWatch[*pb.WatchConflictsResponse, *pb.Conflict]{
		kind: show.ConflictKind, ask: ask, item: (*pb.WatchConflictsResponse).GetConflict,
		keep: func(one *pb.Conflict) bool { return id == "" || one.GetId() == id },
	}.run(ctx, &c.query)
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
		Use:     "acknowledge ID|ADDRESS --reason TEXT --for DURATION [flags]",
		Aliases: []string{"ack"},
		Short:   "Silence a known conflict for a limited time",
		Args: argument("the ID or the ADDRESS of a conflict",
			"acknowledge needs the ID or the ADDRESS of a conflict: '"+sys.program+" conflicts' lists them"),
		ValidArgsFunction: c.completeArgument(conflictItems),
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
			id, address, err := idOrAddress(args[0])
			if err != nil {
				return err
			}
			if address != "" {
				if id, err = c.onlyConflict(cmd.Context(), address); err != nil {
					return err
				}
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

// onlyConflict returns the id of the active conflict of an address, if there is exactly one.
func (q *query) onlyConflict(ctx context.Context, address string) (id string, err error) {
	conflicts, _, err := q.conflicts(ctx, url.Values{"address": {address}})
	switch {
	case err != nil:
		return "", err
	case len(conflicts) == 0:
		return "", fmt.Errorf("no conflict of %s: '%s explain %s' shows why", address, q.sys.program, address)
	case len(conflicts) == 1:
		return conflicts[0].GetId(), nil
	}
	lines := []string{fmt.Sprintf("%s has %d conflicts: select one by its id:", address, len(conflicts))}
	for _, c := range conflicts {
		lines = append(lines, show.ConflictLine(c))
	}
	return "", errors.New(strings.Join(lines, "\n  "))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// conflictsCommand has the flags of conflicts.
type conflictsCommand struct {
	query
	narrowing
	at                   moment
	all, exitCode, watch bool
	ungrouped            bool
}

func newConflicts(sys system) *cobra.Command {
	c := &conflictsCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:   "conflicts [ID|ADDRESS] [flags]",
		Short: "List the addresses that more than one owner holds",
		Long: `List the addresses that more than one owner holds at the same time.

A conflict is SUSPECTED when it is detected, CONFIRMED when both owners still hold
the address after the settle time, and RESOLVED when it has ended; (ack) marks an
acknowledged conflict. Many conflicts between the same owners share a line, unless
--ungrouped or -o wide is set. With an ID or an ADDRESS, show all details: the owners, the
timeline, the cause and the steps to take. For an ADDRESS without an active conflict,
show the conflicts that were resolved in the last day.

The filters can be combined: a conflict must match all of them, and --node, --namespace,
--workload and --mac must match the same owner.

With --at, list the conflicts at a time in the past, without the steps to take.
` + timesHelp + `

Nodes that are not seen are listed on stderr, and with -o json under "coverage".`,
		Example: `
  ipwitness conflicts
  ipwitness conflicts 10.244.0.7
  ipwitness conflicts -n shop --cause ipam-state-lost
  ipwitness conflicts --scope network/pods --sort-by since
  ipwitness conflicts --all -o csv
  ipwitness conflicts --watch
  ipwitness conflicts --at -2h
  ipwitness conflicts --exit-code || echo "duplicate addresses, or not everything is seen"`,
		Args:              atMostOne("the ID or the ADDRESS of a conflict"),
		ValidArgsFunction: c.completeArgument(nil, conflictIDs, conflictAddresses),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.watch && c.exitCode {
				return errExitCodeWatch
			}
			if c.watch && c.format == show.FormatCSV {
				return errCSVWatch
			}
			if c.watch && c.sortBy != "" {
				return errSortWatch
			}
			if c.watch && c.at.set() {
				return errWatchAt
			}
			var id, address string
			if len(args) > 0 {
				var err error
				if id, address, err = idOrAddress(args[0]); err != nil {
					return err
				}
			}
			if filters := c.given(cmd); id != "" && len(filters) > 0 {
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
	c.addTableFlags(cmd, "conflicts", show.ConflictOrders())
	c.addClusterFlag(cmd, "conflicts")
	c.narrowing.addFlags(cmd, "conflicts", "node", "namespace", "workload", "cidr", "mac", "scope", "cause")
	c.conflictState(cmd)
	c.completeFilters(cmd, &c.narrowing)
	watchFlag(cmd, &c.watch)
	c.at.addFlag(cmd, sys)
	cmd.Flags().BoolVar(&c.ungrouped, "ungrouped", false, "a line for each conflict, also if many have the same owners")
	cmd.Flags().BoolVar(&c.all, "all", false, "include resolved conflicts")
	cmd.Flags().BoolVar(&c.exitCode, "exit-code", false, exitCodeHelp("a confirmed, unacknowledged conflict"))
	return cmd
}

var errExitCodeWatch = errors.New("--exit-code and --watch cannot be combined, because a watch does not end: remove one of them")

// one shows the details of one conflict.
func (c *conflictsCommand) one(ctx context.Context, id string) error {
	conflict, coverage, err := c.conflict(ctx, id)
	if err != nil {
		return c.unknownAt(&c.at, c.exitCode, err)
	}
	c.warn(coverage)
	c.noteMoment(&c.at)
	if c.format.ForPrograms() {
		if c.format.Whole() {
			c.noteGap(&c.at) // which the conflict does not contain
		}
		err = show.Message(c.sys.stdout, c.format, conflict)
	} else {
		err = c.inFull([]*pb.Conflict{conflict})
	}
	return errors.Join(err, c.found(coverage, conflict))
}

// conflict requests one conflict and the coverage.
func (c *conflictsCommand) conflict(ctx context.Context, id string) (conflict *pb.Conflict, coverage *pb.Coverage, err error) {
	if !c.at.set() {
		if conflict, err = c.get(ctx, id); err == nil {
			coverage, err = c.coverage(ctx)
		}
		return conflict, coverage, err
	}
	all, coverage, err := c.conflicts(ctx, url.Values{"all": {"true"}})
	for _, conflict := range all {
		if conflict.GetId() == id {
			return conflict, coverage, err
		}
	}
	if err == nil {
		c.noteGap(&c.at)
		err = fmt.Errorf("there was no conflict %[1]s at %[2]s: '%[3]s history --kind conflict' lists the conflicts of the past", id, utc(c.at.at), c.sys.program)
	}
	return nil, nil, err
}

// conflicts requests the conflicts that the parameters select.
func (c *conflictsCommand) conflicts(ctx context.Context, ask url.Values) (conflicts []*pb.Conflict, coverage *pb.Coverage, err error) {
	c.at.ask(c.within(ask))
	coverage, err = pages(ctx, c.client(), "/v1/conflicts", ask, (*pb.ListConflictsResponse)(nil), func(page *pb.ListConflictsResponse) {
		c.at.read(page)
		conflicts = append(conflicts, page.GetConflicts()...)
	})
	return conflicts, coverage, err
}

// get requests one conflict.
func (q *query) get(ctx context.Context, id string) (*pb.Conflict, error) {
	conflict := &pb.Conflict{}
	return conflict, q.client().get(ctx, "/v1/conflicts/"+url.PathEscape(id), nil, conflict)
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
	if err := c.ask(ask); err != nil {
		return err
	}
	conflicts, coverage, err := c.conflicts(ctx, ask)
	if err != nil {
		return c.unknownAt(&c.at, c.exitCode, err)
	}
	if !c.all && slices.ContainsFunc(conflicts, active) {
		conflicts = slices.DeleteFunc(conflicts, func(c *pb.Conflict) bool { return !active(c) })
	}
	if len(conflicts) == 0 && !c.at.set() {
		if err := c.checkNode(ctx, c.node); err != nil {
			return err
		}
	}
	show.SortConflicts(conflicts, c.sortBy)
	c.warn(coverage)
	c.noteMoment(&c.at)
	switch {
	case c.format.ForPrograms():
		err = show.List(c.sys.stdout, c.format, "conflicts", conflicts, c.at.basis(coverage))
	case len(conflicts) == 0 && c.at.set() && address != "":
		c.note("No conflict of %s.", address)
	case len(conflicts) == 0 && address != "":
		c.note("No conflict of %s. '%s explain %s' shows why.", address, c.sys.program, address)
	case len(conflicts) == 0 && (coverage.GetIncomplete() || c.at.gap != nil):
		c.note("No conflicts are known.")
	case len(conflicts) == 0 && (c.narrowing != (narrowing{}) || len(c.clusters) > 0):
		c.note("No conflict matches.")
	case len(conflicts) == 0:
		c.note("No conflicts.")
	case address != "":
		err = c.inFull(conflicts)
	default:
		err = c.table(conflicts)
	}
	return errors.Join(err, c.found(coverage, conflicts...))
}

// table shows a table of conflicts.
func (c *conflictsCommand) table(conflicts []*pb.Conflict) error {
	layout := c.layout()
	layout.Ungrouped = c.ungrouped
	groups, err := show.Conflicts(c.sys.stdout, conflicts, layout, c.at.now(c.sys))
	for _, g := range groups {
		c.note("%s of %s share a line: --ungrouped lists each.", show.Count(g.Addresses, "address", "addresses"), g.Owners)
	}
	return err
}

// active reports whether a conflict is not resolved.
func active(c *pb.Conflict) bool { return c.GetState() != pb.Conflict_RESOLVED }

// inFull shows the details of conflicts, one after the other.
func (c *conflictsCommand) inFull(conflicts []*pb.Conflict) error {
	for i, conflict := range conflicts {
		if i > 0 {
			if _, err := fmt.Fprint(c.sys.stdout, "\n\n"); err != nil {
				return err
			}
		}
		if c.at.set() {
			conflict.Remedy = nil // steps of the past are not safe to follow now
		}
		if err := show.Conflict(c.sys.stdout, conflict, c.layout(), c.at.now(c.sys)); err != nil {
			return err
		}
	}
	return nil
}

// found returns the exit code for conflicts. A conflict counts if it is confirmed and not
// acknowledged.
func (c *conflictsCommand) found(coverage *pb.Coverage, conflicts ...*pb.Conflict) error {
	if !c.exitCode {
		return nil
	}
	return c.concludeAt(&c.at, slices.ContainsFunc(conflicts, func(c *pb.Conflict) bool {
		return c.GetState() == pb.Conflict_CONFIRMED && c.GetAcknowledgement() == nil
	}), coverage)
}

// follow shows conflicts as they appear, change and end.
func (c *conflictsCommand) follow(ctx context.Context, id, address string) error {
	ask := url.Values{}
	if id != "" {
		conflict, err := c.get(ctx, id)
		if err != nil {
			return err
		}
		address = conflict.GetAddress()
	}
	if address != "" {
		ask.Set("address", address)
	}
	if err := c.ask(ask); err != nil {
		return err
	}
	keep := func(one *pb.Conflict) bool { return id == "" || one.GetId() == id }
	return followTable(ctx, &c.query, "/v1/conflicts:watch", c.within(ask), show.NewConflictWatch(c.sys.stdout, c.layout()), "conflict",
		(*pb.WatchConflictsResponse).GetConflict, keep, nil)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// conflictsCommand has the flags of conflicts.
type conflictsCommand struct {
	query
	narrowing
	all, exitCode, watch bool
}

func newConflicts(sys system) *cobra.Command {
	c := &conflictsCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:   "conflicts [ID|ADDRESS] [flags]",
		Short: "List the addresses that more than one owner holds",
		Long: `List the addresses that more than one owner holds at the same time.

A conflict is SUSPECTED when it is detected, CONFIRMED when both owners still hold
the address after the settle time, and RESOLVED when it has ended; (ack) marks an
acknowledged conflict. With an ID or an ADDRESS, show all details: the owners, the
timeline, the cause and the steps to take. For an ADDRESS without an active conflict,
show the conflicts that were resolved in the last day.

Nodes that are not seen are listed on stderr, and with -o json under "coverage".`,
		Example: `
  ipwitness conflicts
  ipwitness conflicts 10.244.0.7
  ipwitness conflicts --watch
  ipwitness conflicts --exit-code || echo "duplicate addresses, or not everything is seen"`,
		Args:              atMostOne("the ID or the ADDRESS of a conflict"),
		ValidArgsFunction: c.completeConflicts,
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.watch && c.exitCode {
				return errors.New("--exit-code and --watch cannot be combined, because a watch does not end: remove one of them")
			}
			var id, address string
			if len(args) > 0 {
				var err error
				if id, address, err = idOrAddress(args[0]); err != nil {
					return err
				}
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
	c.query.addFlags(cmd)
	c.narrowing.addFlags(cmd, "conflicts", "node", "cidr", "mac", "workload", "cause")
	c.conflictState(cmd)
	watchFlag(cmd, &c.watch)
	cmd.Flags().BoolVar(&c.all, "all", false, "include resolved conflicts")
	cmd.Flags().BoolVar(&c.exitCode, "exit-code", false, exitCodeHelp("a confirmed, unacknowledged conflict"))
	return cmd
}

// one shows the details of one conflict.
func (c *conflictsCommand) one(ctx context.Context, id string) error {
	conflict, err := c.get(ctx, id)
	if err != nil {
		return err
	}
	coverage, err := c.coverage(ctx)
	if err != nil {
		return err
	}
	c.warn(coverage)
	if c.format.ForPrograms() {
		err = show.Message(c.sys.stdout, c.format, conflict)
	} else {
		err = show.Conflict(c.sys.stdout, conflict, c.sys.now())
	}
	return errors.Join(err, c.found(coverage, conflict))
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
	c.ask(ask)
	var conflicts []*pb.Conflict
	coverage, err := pages(ctx, c.client(), "/v1/conflicts", ask, (*pb.ListConflictsResponse)(nil), func(page *pb.ListConflictsResponse) {
		conflicts = append(conflicts, page.GetConflicts()...)
	})
	if err != nil {
		return err
	}
	if !c.all && slices.ContainsFunc(conflicts, active) {
		conflicts = slices.DeleteFunc(conflicts, func(c *pb.Conflict) bool { return !active(c) })
	}
	c.warn(coverage)
	switch {
	case c.format.ForPrograms():
		err = show.List(c.sys.stdout, c.format, "conflicts", conflicts, coverage)
	case len(conflicts) == 0 && address != "":
		c.note("No conflict of %s. '%s explain %s' shows why.", address, c.sys.program, address)
	case len(conflicts) == 0 && coverage.GetIncomplete():
		c.note("No conflicts are known.")
	case len(conflicts) == 0 && c.narrowing != (narrowing{}):
		c.note("No conflict matches.")
	case len(conflicts) == 0:
		c.note("No conflicts.")
	case address != "":
		err = c.inFull(conflicts)
	default:
		err = show.Conflicts(c.sys.stdout, conflicts, c.wide(), c.sys.now())
	}
	return errors.Join(err, c.found(coverage, conflicts...))
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
		if err := show.Conflict(c.sys.stdout, conflict, c.sys.now()); err != nil {
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
	return c.conclude(slices.ContainsFunc(conflicts, func(c *pb.Conflict) bool {
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
	c.ask(ask)
	table, seen := show.NewConflictWatch(c.sys.stdout, c.wide()), coverageWatch{query: &c.query}
	w := &watcher[*pb.WatchConflictsResponse]{
		client: c.client(),
		notice: c.sys.stderr,
		path:   "/v1/conflicts:watch",
		query:  ask,
		begin:  table.Begin,
		event: func(e *pb.WatchConflictsResponse) error {
			if err := seen.follow(e); err != nil {
				return err
			}
			if e.GetConflict() != nil && id != "" && e.GetConflict().GetId() != id {
				return nil
			}
			if c.format.ForPrograms() {
				return c.encodeEvent(e, "conflict", e.GetConflict())
			}
			c.noteLost(e)
			return table.Event(e.GetType(), e.GetConflict(), c.sys.now())
		},
	}
	return w.run(ctx)
}

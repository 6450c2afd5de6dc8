package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// conflictsCommand has the flags of conflicts.
type conflictsCommand struct {
	query
	all, exitCode, watch bool
}

func newConflicts(sys system) *cobra.Command {
	c := &conflictsCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:   "conflicts [ID|ADDRESS] [flags]",
		Short: "Show the addresses that more than one owner holds",
		Long: `Show the addresses that more than one owner holds at once.

A conflict is SUSPECTED when it is seen, CONFIRMED when both owners are still
there after the settle time, RESOLVED when it is over; (ack) marks one that
somebody has acknowledged. With an ID or an ADDRESS, say all that is known: who,
since when, why it is one, and what to do.`,
		Example: `
  ipwitness conflicts
  ipwitness conflicts 10.244.0.7
  ipwitness conflicts --watch
  ipwitness conflicts --exit-code || echo "duplicate addresses"`,
		Args:              atMostOne("the ID or the ADDRESS of a conflict"),
		ValidArgsFunction: c.completeConflicts,
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.watch && c.exitCode {
				return errors.New("--exit-code needs an end, and --watch has none: leave out one of them")
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
	c.addFlags(cmd)
	watchFlag(cmd, &c.watch)
	cmd.Flags().BoolVar(&c.all, "all", false, "resolved ones, too")
	cmd.Flags().BoolVar(&c.exitCode, "exit-code", false, "exit with 2 if a conflict is confirmed and not acknowledged, 0 if none is, 1 on an error")
	return cmd
}

// one shows one conflict in full.
func (c *conflictsCommand) one(ctx context.Context, id string) error {
	conflict, err := c.get(ctx, id)
	if err != nil {
		return err
	}
	if c.format.ForPrograms() {
		err = show.Message(c.sys.stdout, c.format, conflict)
	} else {
		err = show.Conflict(c.sys.stdout, conflict, c.sys.now())
	}
	return errors.Join(err, c.found(conflict))
}

// get asks for one conflict.
func (q *query) get(ctx context.Context, id string) (*pb.Conflict, error) {
	conflict := &pb.Conflict{}
	return conflict, q.client().get(ctx, "/v1/conflicts/"+url.PathEscape(id), nil, conflict)
}

// list shows a table of all conflicts or, in full, those of one address.
func (c *conflictsCommand) list(ctx context.Context, address string) error {
	ask := url.Values{}
	if address != "" {
		ask.Set("address", address)
	}
	if c.all {
		ask.Set("all", "true")
	}
	var conflicts []*pb.Conflict
	err := pages(ctx, c.client(), "/v1/conflicts", ask, (*pb.ListConflictsResponse)(nil), func(page *pb.ListConflictsResponse) {
		conflicts = append(conflicts, page.GetConflicts()...)
	})
	if err != nil {
		return err
	}
	switch {
	case c.format.ForPrograms():
		err = show.List(c.sys.stdout, c.format, "conflicts", conflicts)
	case len(conflicts) == 0 && address != "":
		c.tell("No conflict of %s. To see why: %s explain %s", address, c.sys.program, address)
	case len(conflicts) == 0:
		c.tell("No conflicts.")
	case address != "":
		err = c.inFull(conflicts)
	default:
		err = show.Conflicts(c.sys.stdout, conflicts, c.wide(), c.sys.now())
	}
	return errors.Join(err, c.found(conflicts...))
}

// inFull shows one conflict after the other.
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

// found gives the exit code for conflicts: those count that are confirmed and
// not acknowledged.
func (c *conflictsCommand) found(conflicts ...*pb.Conflict) error {
	for _, conflict := range conflicts {
		if c.exitCode && conflict.GetState() == pb.Conflict_CONFIRMED && conflict.GetAcknowledgement() == nil {
			return exitFound
		}
	}
	return nil
}

// follow shows conflicts as they come, change and go.
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
	table := show.NewConflictWatch(c.sys.stdout, c.wide())
	w := &watcher[*pb.WatchConflictsResponse]{
		client: c.client(),
		notice: c.sys.stderr,
		path:   "/v1/conflicts:watch",
		query:  ask,
		begin:  table.Begin,
		event: func(e *pb.WatchConflictsResponse) error {
			if e.GetConflict() != nil && id != "" && e.GetConflict().GetId() != id {
				return nil
			}
			if c.format.ForPrograms() {
				return c.encodeEvent(e, "conflict", e.GetConflict())
			}
			c.tellLost(e)
			return table.Event(e.GetType(), e.GetConflict(), c.sys.now())
		},
	}
	return w.run(ctx)
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// historyCommand has the flags of history.
type historyCommand struct {
	query
	since, until time.Time
	untilText    string // of --until, which depends on --since
	kind         string
}

func newHistory(sys system) *cobra.Command {
	c := &historyCommand{query: query{sys: sys}}
	var at time.Time
	cmd := &cobra.Command{
		Use:               "history [THING] [flags]",
		Short:             "Show what happened to an address, pod, MAC or node",
		Args:              argument(thing, ""),
		ValidArgsFunction: c.completeThing(workloadNames, nodeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			about, ask := strings.Join(args, ""), url.Values{}
			if about != "" {
				ask.Set("about", about)
			}
			if c.untilText != "" {
				var err error
				if c.until, err = parseTime(c.untilText, sys.now(), c.since); err != nil {
					return err
				}
			}
			if !at.IsZero() {
				if err := cmp.Or(exclusive(c.untilText != "", "--at", "--until", "both end the period"),
					exclusive(c.watch, "--at", "--watch", "a watch does not end")); err != nil {
					return err
				}
				c.until = at.Add(1)
			}
			if !c.since.IsZero() && !c.until.IsZero() && !c.since.Before(c.until) {
				return fmt.Errorf("--since is %s and --until is %s: --since must be before --until", utc(c.since), utc(c.until))
			}
			if err := cmp.Or(c.filters.ask(ask), exclusive(c.watch && !c.until.IsZero(), "--until", "--watch", "a watch does not end"),
				c.checkWatch()); err != nil {
				return err
			}
			if c.watch {
				return c.follow(cmd.Context(), c.request(ask))
			}
			return c.list(cmd.Context(), about, c.request(ask))
		},
	}
	c.addFlags(cmd)
	c.addClusterFlag(cmd, "changes in the cluster")
	c.addFilters(cmd, "changes", nil, "node", "namespace", "workload", "cidr", "mac")
	timeFlag(cmd, sys, &c.since, "since", "changes at or after this time (default: all that are recorded)")
	cmd.Flags().Var(cli.NewValue(&c.untilText, "TIME", func(s string) (string, error) {
		_, err := parseTime(s, sys.now(), time.Time{})
		return s, err
	}), "until", "changes before this time (default: now); a time of day is the first one after --since")
	cli.CompleteFlagWith(cmd, "until", cobra.NoFileCompletions)
	timeFlag(cmd, sys, &at, "at", "changes until this time, and those at it")
	kinds := lowerWords(pb.Event_Kind_value, pb.Event_UNSPECIFIED.String())
	wordFlag(cmd, &c.kind, "kind", strings.Join(kinds, "|"), "changes of this kind of item", "a kind of item", kinds)
	c.addWatchFlag(cmd)
	cmd.Flags().BoolVar(&c.exitCode, "exit-code", false, "exit 2 if there is a change, 0 if none, 3 if none and records are missing, 1 on error")
	return cmd
}

// request returns the parameters of the request.
func (c *historyCommand) request(ask url.Values) url.Values {
	if c.kind != "" {
		ask.Set("kind", strings.ToUpper(c.kind))
	}
	for name, t := range map[string]time.Time{"since": c.since, "until": c.until} {
		if !t.IsZero() {
			ask.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return c.within(ask)
}

// list shows the recorded events, page by page.
func (c *historyCommand) list(ctx context.Context, about string, ask url.Values) error {
	out := show.NewHistory(c.sys.stdout, c.format, c.layout(), c.sys.now())
	var reach *timestamppb.Timestamp
	var failed error
	first, found, gaps := true, 0, 0
	coverage, err := pages(ctx, c.client(), "/v1/events", ask, func(page *pb.ListEventsResponse) bool {
		if first {
			first, reach, gaps = false, page.GetReachesBackTo(), len(page.GetGaps())
			out.Gaps(page.GetGaps())
		}
		found += len(page.GetEvents())
		failed = out.Events(page.GetEvents())
		return failed == nil // otherwise, the output is closed
	})
	if err := cmp.Or(failed, err); err != nil {
		return err
	}
	if err := out.End(); err != nil {
		return err
	}
	if c.until.IsZero() { // the coverage is the current one
		c.warn(coverage)
	}
	if !c.format.ForPrograms() {
		c.noteReach(about, found > 0, reach)
	} else if err := out.Bookmark(reach, coverage); err != nil {
		return err
	}
	missing := gaps > 0 || reach == nil || c.beyond(reach)
	switch {
	case !c.exitCode:
		return nil
	case found == 0 && missing: // finding no change is a result only if no records are missing
		if c.format.ForPrograms() {
			c.note("Cannot tell: the journal does not have all records of this period.")
		}
		return exitCannotTell
	case found == 0 && !c.until.IsZero():
		return nil // the coverage is not that of this period
	}
	return c.conclude(found > 0, coverage)
}

// pastAtOnce is the number of recorded events that a watch lays out at once.
const pastAtOnce = 1000

// follow shows the recorded events since a time, then every event as it is recorded.
func (c *historyCommand) follow(ctx context.Context, ask url.Values) error {
	out, seen := show.NewHistory(c.sys.stdout, c.format, c.layout(), c.sys.now()), coverageWatch{query: &c.query}
	var past []*pb.Event
	live := false
	write := func() error {
		events := past
		past = nil
		return out.Events(events)
	}
	w := &watcher[*pb.WatchEventsResponse]{
		client: c.client(), notice: c.sys.stderr, path: "/v1/events:watch", query: ask, event: func(m *pb.WatchEventsResponse) error {
			if e := m.GetEvent(); e != nil {
				past = append(past, e)
				if live || len(past) >= pastAtOnce {
					return write()
				}
				return nil
			}
			if err := write(); err != nil {
				return err
			}
			switch m.GetType() {
			case pb.Watch_GAP:
				out.Gaps([]*pb.Gap{m.GetGap()})
				return out.End()
			case pb.Watch_LOST:
				if c.format.ForPrograms() {
					return show.Event(c.sys.stdout, c.format, m.GetType().String(), show.Field{Name: "lost", Value: 0})
				}
				c.note("The journal no longer has all events since the last one. Some are missing here.")
			case pb.Watch_BOOKMARK:
				if reach := m.GetReachesBackTo(); !live && reach != nil && c.beyond(reach) && !c.format.ForPrograms() {
					c.note("The journal begins at %s.", utc(reach.AsTime()))
				}
				live = true
				return seen.follow(m.GetCoverage())
			}
			return nil
		},
	}
	err := w.run(ctx)
	return errors.Join(err, write())
}

// beyond reports whether the command asks for changes before the start of the journal.
func (c *historyCommand) beyond(reach *timestamppb.Timestamp) bool {
	return !c.since.IsZero() && c.since.Before(reach.AsTime())
}

// noteReach prints that nothing was found, and how far back the journal reaches.
func (c *historyCommand) noteReach(about string, found bool, reach *timestamppb.Timestamp) {
	reaches := "The journal is empty."
	if reach != nil {
		reaches = "The journal begins at " + utc(reach.AsTime()) + "."
	}
	if found {
		if c.since.IsZero() || c.beyond(reach) {
			c.note("%s", reaches)
		}
		return
	}
	what := strings.TrimSpace(c.kind + " events")
	if about != "" {
		what += " for " + about
	}
	if len(c.filters.given()) > 0 {
		what += " that match the filters"
	}
	period := ""
	switch {
	case !c.since.IsZero() && !c.until.IsZero():
		period = " between " + utc(c.since) + " and " + utc(c.until)
	case !c.since.IsZero():
		period = " since " + utc(c.since)
	case !c.until.IsZero():
		period = " before " + utc(c.until)
	}
	c.note("No %s%s. %s", what, period, reaches)
}

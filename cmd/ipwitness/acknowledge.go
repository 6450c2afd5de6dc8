package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

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
		Long: `Silence a known conflict for a limited time. It is still shown, marked (ack), but --exit-code
and alerts ignore it.

The acknowledgement ends when its time is up, when the conflict is resolved, when
another owner joins, with --withdraw, and when an aggregator without --data-dir
restarts. Acknowledging the conflict again replaces the reason and the time.`,
		Example: `
  ipwitness acknowledge 10.244.0.7 --reason "NET-42: moves on Friday" --for 3d
  ipwitness acknowledge 6frtk3pjavxaruax --withdraw`,
		Args: cobra.MatchAll(oneArgument("the ID or the ADDRESS of a conflict",
			"acknowledge needs the ID or the ADDRESS of a conflict: '"+sys.program+" conflicts' lists them"), checkIDOrAddress),
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

// parsePeriod parses a duration that can be in days.
func parsePeriod(s string) (time.Duration, error) {
	const year = 366 * 24 * time.Hour
	d, err := parseDays(s)
	switch {
	case err != nil || d <= 0:
		return 0, fmt.Errorf("%q is not a duration: write it like 30m, 24h or 7d", s)
	case d > year:
		return 0, fmt.Errorf("%s is more than the maximum of a year: acknowledge the conflict again when it ends", s)
	}
	return d, nil
}

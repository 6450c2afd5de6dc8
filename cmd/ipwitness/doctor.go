//go:build linux

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/agent"

	"github.com/ipwitness/ipwitness/aggregator/form"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
)

func newDoctor(sys system) *cobra.Command {
	var cfg agent.Config
	var format show.Format
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check whether this host can run the agent",
		Long: `Check whether this host can run the agent. For every kernel feature and capability that
is missing, show what is used instead, what is lost, and what to do.

Run this command in the same way as the agent: with the same user, container and
capabilities. It exits with 1 only if the agent cannot work at all.`,
		Example: `
  ipwitness doctor
  ipwitness doctor -o json`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := agent.Doctor(cfg)
			usable := agent.Usable(checks)
			if format.ForPrograms() {
				if err := show.Value(sys.stdout, format, map[string]any{"usable": usable == nil, "checks": checks}); err != nil {
					return err
				}
				return usable
			}
			layout := sys.terminalLayout(colorNever)
			layout.Wide = format == show.FormatWide
			t := show.NewTable(sys.stdout, layout, "FEATURE", "STATUS", "FOUND")
			for _, c := range checks {
				t.Row(c.Feature, c.Status, c.Detail)
			}
			if err := t.Flush(); err != nil {
				return err
			}
			if _, err := fmt.Fprint(sys.stdout, form.VisibleLines(lacks(checks, layout))); err != nil {
				return err
			}
			if usable != nil {
				return usable
			}
			_, err := fmt.Fprintf(sys.stdout, "\n%s\n", show.Hanging("", "This host can run the agent: "+ways(cfg, checks)+".", layout))
			return err
		},
	}
	agentFlags(cmd, &cfg)
	outputFlag(cmd, &format)
	return cmd
}

// lacks describes the consequences of each check that is not ok.
func lacks(checks []agent.Check, layout show.Layout) string {
	var b strings.Builder
	for _, c := range checks {
		if c.Status == agent.StatusOK {
			continue
		}
		fmt.Fprintf(&b, "\n%s\n", show.Hanging("", c.Feature+" is "+c.Status+": "+c.Detail, layout))
		for _, fact := range [][2]string{{"used instead", c.Used}, {"lost", c.Lost}, {"what to do", c.Fix}} {
			if fact[1] != "" {
				b.WriteString(show.Hanging(fmt.Sprintf("  %-13s ", fact[0]+":"), fact[1], layout) + "\n")
			}
		}
	}
	return b.String()
}

// ways summarizes the methods that the agent would use.
func ways(cfg agent.Config, checks []agent.Check) string {
	found := map[string]agent.Check{}
	for _, c := range checks {
		found[c.Feature] = c
	}
	ok := func(feature string) bool { return found[feature].Status == agent.StatusOK }

	wire := "frames with clsact"
	switch {
	case cfg.Wire == agent.WireOff:
		wire = "no frames (--wire off)"
	case !ok("observer"):
		wire = "no frames"
	case cfg.Wire != agent.WireClsact && ok("TCX"):
		wire = "frames with TCX"
	}
	addresses := "addresses with netlink"
	switch {
	case !ok("namespaces"):
		addresses = "addresses of the host only"
	case !ok("events of all namespaces"):
		addresses += " (" + found["events of all namespaces"].Used + ")"
	}
	return wire + ", " + addresses
}

//go:build linux

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/agent"
	"github.com/ipwitness/ipwitness/proto/form"
)

// NewDoctor returns the command agent.
func NewDoctor(stdout io.Writer) *cobra.Command {
	var cfg agent.Config
	var format string
	cmd := &cobra.Command{
		Use:               "doctor [flags]",
		Short:             "Check whether this host can run the agent",
		Args:              NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			checks := agent.Doctor(cfg)
			usable := agent.Usable(checks)
			if format == "json" {
				out := json.NewEncoder(stdout)
				out.SetIndent("", "  ")
				if err := out.Encode(map[string]any{"usable": usable == nil, "checks": checks}); err != nil {
					return err
				}
				return usable
			}
			if _, err := io.WriteString(stdout, form.VisibleLines(report(checks))); err != nil {
				return err
			}
			if usable != nil {
				return usable
			}
			_, err := fmt.Fprintln(stdout, "\nThis host can run the agent.")
			return err
		},
	}
	Describe(cmd, help)
	AgentFlags(cmd, &cfg)
	ChoiceFlag(cmd, &format, "output", "o", "output format", "table", "json")
	return cmd
}

// report lists all checks, and the consequences of those that are not ok.
func report(checks []agent.Check) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "FEATURE\tSTATUS\tFOUND") // a builder returns no errors
	for _, c := range checks {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\n", c.Feature, c.Status, strings.Join(strings.Fields(c.Detail), " "))
	}
	_ = t.Flush()
	for _, c := range checks {
		if c.Status == agent.StatusOK {
			continue
		}
		fmt.Fprintf(&b, "\n%s is %s: %s\n", c.Feature, c.Status, c.Detail)
		for _, fact := range [][2]string{{"used instead", c.Used}, {"lost", c.Lost}, {"what to do", c.Fix}} {
			if fact[1] != "" {
				fmt.Fprintf(&b, "  %-13s %s\n", fact[0]+":", fact[1])
			}
		}
	}
	return b.String()
}

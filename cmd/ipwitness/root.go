package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// exitFound is the exit code if a command with --exit-code found something.
const exitFound cli.ExitCode = 2

// exitCannotTell is the exit code if nothing was found but not everything was seen.
const exitCannotTell cli.ExitCode = 3

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, sys system, args []string) int {
	return cli.Execute(ctx, newRoot(sys), args, func(c *cobra.Command) error { return settle(c, sys.getenv) })
}

// help has the pages of the commands: their descriptions and examples, as they are printed for a program of the name ipwitness.
//
//go:embed help
var help embed.FS

// newRoot returns the tree of commands.
func newRoot(sys system) *cobra.Command {
	root := &cobra.Command{
		Use:           "ipwitness",
		Short:         "Find the real holder of each IP address, and detect duplicates",
		Version:       cli.ReadBuild().Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: sys.program},
	}
	root.SetIn(sys.stdin)
	root.SetOut(sys.stdout)
	root.SetErr(sys.stderr)
	root.SetFlagErrorFunc(cli.FlagError)
	root.PersistentFlags().String("config", "", "YAML `FILE` of flag names and values")

	serving, judging, checks := local(sys)
	if len(serving) > 0 {
		root.AddGroup(&cobra.Group{ID: "serve", Title: "Watch:"})
	}
	root.AddGroup(
		&cobra.Group{ID: "ask", Title: "Ask:"},
		&cobra.Group{ID: "act", Title: "Act:"},
		&cobra.Group{ID: "other", Title: "Other:"},
	)
	root.SetHelpCommandGroupID("other")
	root.SetCompletionCommandGroupID("other")
	times, _ := help.ReadFile("help/times.txt") // it is in the program
	things, _ := help.ReadFile("help/thing.txt")
	ipams := show.Hanging("", "Supported IPAMs are "+registry.Titles("and", registry.Any)+".", show.Layout{Width: 88})
	describe := func(c *cobra.Command) {
		cli.Describe(c, help, "{times}", strings.TrimSuffix(string(times), "\n"), "{thing}", strings.TrimSuffix(string(things), "\n"), "{ipams}", ipams)
		c.Example = strings.ReplaceAll(c.Example, "ipwitness", sys.program)
		c.Long = strings.ReplaceAll(c.Long, "'ipwitness ", "'"+sys.program+" ")
	}
	describe(root)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			c.DisableFlagsInUseLine = true
			describe(c)
			if group != "serve" {
				cli.CompleteNoFiles(c)
			}
			root.AddCommand(c)
		}
	}
	add("serve", serving...)
	add("ask", newOwners(sys), newIncidents(sys), newConflicts(sys), newExplain(sys), newHistory(sys), newResolve(sys), newJudge(sys), newAudit(sys), newStatus(sys), newNodes(sys), newClusters(sys), newTop(sys), newUI(sys))
	add("ask", judging...)
	add("act", newAcknowledge(sys), newBackup(sys))
	add("other", append(checks, newVersion(sys))...)
	cli.AddTopics(root,
		"connection", "Which server is asked, and how it is reached: --server, -P for Kubernetes, TLS, token",
		"access", "Who may report, read and acknowledge",
		"export", "Where transitions are sent: Alertmanager, webhook, OpenTelemetry, NATS",
		"kubernetes", "What is written to the Kubernetes API",
		"storage", "How much of the history is kept",
		"timing", "When conflicts, findings and lost owners are reported")
	return root
}

// argument returns a check for one argument; what describes it. missing is the error without it, or empty if it may be
// left out.
func argument(what, missing string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 1:
			return fmt.Errorf("%s takes one argument, %s, not %d: %s", cmd.Name(), what, len(args), strings.Join(args, " "))
		case len(args) == 0 && missing != "":
			return errors.New(missing)
		}
		return nil
	}
}

func newVersion(sys system) *cobra.Command {
	var format show.Format
	cmd := &cobra.Command{
		Use:               "version [flags]",
		Short:             "Show the version of this program",
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			b := cli.ReadBuild()
			if format.ForPrograms() {
				return show.Message(sys.stdout, format, b)
			}
			_, err := fmt.Fprintf(sys.stdout, "ipwitness %s\ncommit    %s\ngo        %s\nplatform  %s\n",
				b.Version, b.Commit, b.Go, b.Platform)
			return err
		},
	}
	outputFlag(cmd, &format)
	return cmd
}

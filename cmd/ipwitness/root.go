package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ipwitness/ipwitness/aggregator/form"
)

// exitCode ends the program with a code of its own and without a message.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit with code %d", int(e)) }

// exitFound says that --exit-code found what it was asked for.
const exitFound exitCode = 2

// exitCannotTell is the exit code if nothing was found but not everything was
// seen.
const exitCannotTell exitCode = 3

// exitInterrupted is what a shell gives a command that Ctrl-C ended.
const exitInterrupted = 130

// execute runs one command line and gives its exit code.
func execute(ctx context.Context, sys system, args []string) int {
	started := false // errors before are about the command line
	root := newRoot(sys, func() { started = true })
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var code exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	fmt.Fprintf(sys.stderr, "ipwitness: %s\n", form.VisibleLines(strings.TrimSpace(err.Error())))
	if !started {
		fmt.Fprintf(sys.stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
	return 1
}

// newRoot makes the tree of commands. It calls started when one begins to run.
func newRoot(sys system, started func()) *cobra.Command {
	root := &cobra.Command{
		Use:   "ipwitness",
		Short: "Who really holds this address, right now, and does anybody else?",
		Long: `Who really holds this address, right now, and does anybody else?

ipwitness believes what the kernel and the wire show: it follows the addresses
of every network namespace and the ARP and NDP on every port, and reports each
address that two owners hold at once.

Begin with '` + sys.program + ` run' on a host with containers, then ask it from
another terminal.`,
		Version:       readBuild(version).Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: sys.program},
	}
	root.SetIn(sys.stdin)
	root.SetOut(sys.stdout)
	root.SetErr(sys.stderr)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().String("config", "", "read flags from a YAML `FILE` of flag names and values")

	root.AddGroup(
		&cobra.Group{ID: "serve", Title: "Watch:"},
		&cobra.Group{ID: "ask", Title: "Ask:"},
		&cobra.Group{ID: "act", Title: "Act:"},
		&cobra.Group{ID: "other", Title: "Other:"},
	)
	root.SetHelpCommandGroupID("other")
	root.SetCompletionCommandGroupID("other")
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			c.DisableFlagsInUseLine = true
			c.Example = strings.ReplaceAll(strings.Trim(c.Example, "\n"), "ipwitness", sys.program)
			c.PreRunE = func(c *cobra.Command, _ []string) error {
				if err := placed(c, func() error { return applySettings(c, sys.getenv) }); err != nil {
					return err
				}
				started()
				return nil
			}
			root.AddCommand(c)
		}
	}
	add("serve", newRun(sys), newAgent(sys), newAggregator(sys))
	add("ask", newOwners(sys), newConflicts(sys), newExplain(sys), newJudge(sys), newAudit(sys), newNodes(sys))
	add("act", newAcknowledge(sys))
	add("other", newDoctor(sys), newVersion(sys))
	return root
}

// atMostOne refuses more than one argument, and says what the one can be.
func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fmt.Errorf("%s takes one argument, %s, not %d: %s", cmd.Name(), what, len(args), strings.Join(args, " "))
		}
		return nil
	}
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no argument, but has %q", cmd.Name(), args[0])
	}
	return nil
}

// flagError makes sentences of pflag's errors.
func flagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return valueError("--"+invalid.GetFlag().Name, invalid.GetFlag(), invalid.GetValue(), invalid.Unwrap())
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("--%s needs a value", missing.GetFlag().Name)
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		return fmt.Errorf("unknown flag --%s%s", unknown.GetSpecifiedName(), similarFlags(cmd, unknown.GetSpecifiedName()))
	}
	return err
}

// similarFlags asks whether one of the command's flags was meant. It lets cobra
// compare the names, as it does for commands.
func similarFlags(cmd *cobra.Command, name string) string {
	flags := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	similar := flags.SuggestionsFor(name)
	if len(similar) == 0 {
		return ""
	}
	return ": did you mean --" + strings.Join(similar, " or --") + "?"
}

// valueError says what is wrong with a value; source says where it is from.
func valueError(source string, f *pflag.Flag, value string, err error) error {
	if f.Value.Type() == "bool" {
		return fmt.Errorf("%s: %q is neither true nor false", source, value)
	}
	return fmt.Errorf("%s: %w", source, err)
}

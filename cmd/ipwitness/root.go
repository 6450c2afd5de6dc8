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

// exitCode is an error that ends the program with a specific code and without a message.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit with code %d", int(e)) }

// exitFound is the exit code if a command with --exit-code found something.
const exitFound exitCode = 2

// exitCannotTell is the exit code if nothing was found but not everything was seen.
const exitCannotTell exitCode = 3

// exitInterrupted is the exit code that shells report for a command ended by Ctrl-C.
const exitInterrupted = 130

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, sys system, args []string) int {
	started := false // earlier errors are about the command line
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

// newRoot returns the tree of commands. It calls started when a command begins to run.
func newRoot(sys system, started func()) *cobra.Command {
	root := &cobra.Command{
		Use:   "ipwitness",
		Short: "Find the real holder of each IP address, and detect duplicates",
		Long: `Find the real holder of each IP address, and detect duplicates.

ipwitness trusts the kernel and the wire: it follows the addresses of every
network namespace and the ARP and NDP frames on every port, and reports each
address that two owners hold at the same time.

To begin, start '` + sys.program + ` run' on a host with containers, and query it
from another terminal.`,
		Version:       readBuild(version).Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: sys.program},
	}
	root.SetIn(sys.stdin)
	root.SetOut(sys.stdout)
	root.SetErr(sys.stderr)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().String("config", "", "YAML `FILE` of flag names and values")

	serving, checks := local(sys)
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
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			c.DisableFlagsInUseLine = true
			c.Example = strings.ReplaceAll(strings.Trim(c.Example, "\n"), "ipwitness", sys.program)
			c.Long = strings.ReplaceAll(c.Long, "'ipwitness ", "'"+sys.program+" ")
			if group != "serve" {
				completeNoFiles(c)
			}
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
	add("serve", serving...)
	add("ask", newOwners(sys), newConflicts(sys), newExplain(sys), newHistory(sys), newJudge(sys), newAudit(sys), newNodes(sys), newClusters(sys), newTop(sys), newUI(sys))
	add("act", newAcknowledge(sys), newBackup(sys))
	add("other", append(checks, newVersion(sys))...)
	return root
}

// atMostOne returns a check that rejects more than one argument; what describes the argument.
func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fmt.Errorf("%s takes one argument, %s, not %d: %s", cmd.Name(), what, len(args), strings.Join(args, " "))
		}
		return nil
	}
}

// noArgs rejects arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, but got %q", cmd.Name(), args[0])
	}
	return nil
}

// flagError makes pflag's errors readable.
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

// similarFlags suggests flags with a similar name. It uses cobra's comparison of command names.
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

// valueError returns an error about an invalid value from a source, such as a flag or a variable.
func valueError(source string, f *pflag.Flag, value string, err error) error {
	if f.Value.Type() == "bool" {
		return fmt.Errorf("%s: %q is neither true nor false", source, value)
	}
	return fmt.Errorf("%s: %w", source, err)
}

// fold breaks a text into lines of at most helpWidth bytes.
func fold(text string) string {
	var b strings.Builder
	width := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case width == 0:
		case width+1+len(word) > helpWidth:
			b.WriteByte('\n')
			width = 0
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += len(word)
	}
	return b.String()
}

// helpWidth is the width of the texts of help.
const helpWidth = 88

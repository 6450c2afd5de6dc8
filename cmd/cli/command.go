// Package cli contains what the commands of both programs share: values of flags, settings from the
// environment and from a file, the log, the HTTP server of health and metrics, and the flags and checks
// of an agent.
package cli

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ipwitness/ipwitness/proto/form"
)

// ExitCode is an error that ends the program with a specific code and without a message.
type ExitCode int

func (e ExitCode) Error() string { return fmt.Sprintf("exit with code %d", int(e)) }

// exitInterrupted is the exit code that shells report for a command ended by Ctrl-C.
const exitInterrupted = 130

// Context returns a context that ends with the first signal to stop. A second signal ends the process
// at once.
func Context() context.Context {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop)
	return ctx
}

// Execute runs a command line and returns its exit code. settle reads the settings of a command before it runs.
func Execute(ctx context.Context, root *cobra.Command, args []string, settle func(*cobra.Command) error) int {
	started := false // earlier errors are about the command line
	for _, c := range append(root.Commands(), root) {
		c.PreRunE = func(c *cobra.Command, _ []string) error {
			err := settle(c)
			started = err == nil
			return err
		}
	}
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var code ExitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	stderr := root.ErrOrStderr()
	_, _ = fmt.Fprintf(stderr, "%s: %s\n", root.Name(), form.VisibleLines(strings.TrimSpace(err.Error())))
	if !started {
		_, _ = fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
	return 1
}

//go:embed help
var help embed.FS

// Describe gives a command the description and the examples in help/NAME.txt, if there is such a file. words are the
// {words} in the description, each followed by the text that it stands for.
func Describe(cmd *cobra.Command, in fs.FS, words ...string) {
	page, err := fs.ReadFile(in, "help/"+cmd.Name()+".txt")
	if err != nil {
		return
	}
	settings, _ := fs.ReadFile(help, "help/settings.txt") // it is in the program
	text, examples, _ := strings.Cut(strings.TrimSuffix(string(page), "\n"), "\n\nExamples:\n")
	cmd.Long = strings.NewReplacer(append(words, "{settings}", strings.TrimSuffix(string(settings), "\n"))...).Replace(text)
	cmd.Example = examples
}

// NoArgs rejects arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, but got %q", cmd.Name(), args[0])
	}
	return nil
}

// FlagError makes pflag's errors readable.
func FlagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return valueError("--"+invalid.GetFlag().Name, invalid.GetFlag(), invalid.GetValue(), invalid.Unwrap())
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("--%s needs a value", missing.GetFlag().Name)
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		name := unknown.GetSpecifiedName()
		flags := &cobra.Command{SuggestionsMinimumDistance: 2} // cobra compares names of commands
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		})
		if similar := flags.SuggestionsFor(name); len(similar) > 0 {
			return fmt.Errorf("unknown flag --%s: did you mean --%s?", name, strings.Join(similar, " or --"))
		}
		return fmt.Errorf("unknown flag --%s", name)
	}
	return err
}

// valueError returns an error about an invalid value from a source, such as a flag or a variable.
func valueError(source string, f *pflag.Flag, value string, err error) error {
	if f.Value.Type() == "bool" {
		return fmt.Errorf("%s: %q is neither true nor false", source, value)
	}
	return fmt.Errorf("%s: %w", source, err)
}

//go:build linux

// Command ipwitness-agent observes the owners of addresses on one node, and reports them to aggregators.
// It contains the flags and the wiring; package agent does the work.
package main

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	// The fallback roots for --tls-ca system if the system has none, as in the container image.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/ipwitness/ipwitness/cmd/cli"
)

func main() {
	os.Exit(execute(cli.Context(), os.Stdout, os.Stderr, os.Getenv, os.Args[1:]))
}

// execute runs a command line and returns its exit code.
func execute(ctx context.Context, stdout, stderr io.Writer, getenv func(string) string, args []string) int {
	return cli.Execute(ctx, newRoot(stdout, stderr), args, func(c *cobra.Command) error { return cli.ApplySettings(c, getenv) })
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root, doctor := cli.NewAgent(stderr), cli.NewDoctor(stdout)
	root.Use = strings.Replace(root.Use, "agent", "ipwitness-agent", 1)
	root.Long = strings.ReplaceAll(root.Long, "'ipwitness doctor'", "'ipwitness-agent doctor'")
	root.Version = cli.ReadBuild().Version
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(cli.FlagError)
	root.PersistentFlags().String("config", "", "YAML `FILE` of flag names and values")
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(doctor)
	for _, c := range []*cobra.Command{root, doctor} {
		c.Example = strings.ReplaceAll(c.Example, "ipwitness agent", "ipwitness-agent")
		c.DisableFlagsInUseLine = true
		cli.CompleteNoFiles(c)
	}
	return root
}

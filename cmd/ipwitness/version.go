package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
)

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
				return show.Value(sys.stdout, format, b)
			}
			_, err := fmt.Fprintf(sys.stdout, "ipwitness %s\ncommit    %s\ngo        %s\nplatform  %s\n",
				b.Version, b.Commit, b.Go, b.Platform)
			return err
		},
	}
	outputFlag(cmd, &format)
	return cmd
}

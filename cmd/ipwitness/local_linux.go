package main

import (
	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/cli"
)

// local returns the commands that need Linux: those that watch, those that judge, and those that check a node.
func local(sys system) (serving, judging, checks []*cobra.Command) {
	return []*cobra.Command{newRun(sys), newAggregator(sys), cli.NewAgent(sys.stderr)}, []*cobra.Command{newReplay(sys)}, []*cobra.Command{cli.NewDoctor(sys.stdout)}
}

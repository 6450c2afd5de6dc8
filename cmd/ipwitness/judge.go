package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/casefile"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newJudge(sys system) *cobra.Command {
	c := &query{sys: sys}
	cmd := &cobra.Command{
		Use:   "judge FILE|- [flags]",
		Short: "Judge a case file again",
		Long: `Judge a case file again that '` + sys.program + ` explain ADDRESS -o case' wrote, and show the
result in the same form as explain. FILE is a file, or - for standard input. This
needs no aggregator, no agent and no privileges.

The rules of this program apply: another version may judge differently. Ages are
relative to the time of the case. The result lacks information that only an
aggregator has: acknowledgements, and Kubernetes objects that are not in the case.`,
		Example: `
  ipwitness judge case.json
  ipwitness explain 10.244.0.7 -o case | ipwitness judge -`,
		Args: oneArgument("a FILE or -", "judge needs a FILE that '"+sys.program+" explain ADDRESS -o case' wrote, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := readCase(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			return c.judge(f)
		},
	}
	outputFlag(cmd, &c.format)
	colorFlag(cmd, &c.color)
	cmd.Flags().BoolVar(&c.exitCode, "exit-code", false, "exit 2 on a confirmed conflict, 0 if none, 3 if not all nodes were seen, 1 on error")
	return cmd
}

// readCase reads the case in a file.
func readCase(name string, stdin io.Reader) (*casefile.File, error) {
	if name == "-" {
		return casefile.Read(stdin)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // opened for reading only
	f, err := casefile.Read(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// judge judges a case and shows the result.
func (q *query) judge(f *casefile.File) error {
	explained := api.Judge(f)
	incomplete := explained.GetCoverage().GetIncomplete()
	var err error
	if q.format.ForPrograms() {
		err = show.Message(q.sys.stdout, q.format, explained)
	} else {
		if incomplete {
			q.note("Warning: not all nodes were seen when the case was written.")
		}
		err = show.Explain(q.sys.stdout, explained, q.layout(), f.Case.Now.Time())
	}
	confirmed := slices.ContainsFunc(explained.GetConflicts(), func(c *pb.Conflict) bool { return c.GetState() == pb.Conflict_CONFIRMED })
	switch {
	case !q.exitCode:
		return err
	case confirmed:
		return errors.Join(err, exitFound)
	case incomplete:
		return errors.Join(err, exitCannotTell)
	}
	return err
}

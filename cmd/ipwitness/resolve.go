package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

type resolveCommand struct {
	query
	columns flowColumns
	// counts are the numbers of answers.
	known, ambiguous, unobserved, errors int
}

func newResolve(sys system) *cobra.Command {
	c := &resolveCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:   "resolve [FILE|-] [flags]",
		Short: "Add the owners of addresses to a file of flows",
		Args:  argument("a FILE or -", ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name := strings.Join(args, ""); name != "" && name != "-" {
				file, err := os.Open(name)
				if err != nil {
					return err
				}
				defer func() { _ = file.Close() }() // opened for reading only
				if err := c.resolve(cmd.Context(), file); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			} else if err := c.resolve(cmd.Context(), cmd.InOrStdin()); err != nil {
				return err
			}
			c.note("%s: %d known, %d ambiguous, %d not observed, %d with errors.",
				show.Count(c.known+c.ambiguous+c.unobserved+c.errors, "address", "addresses"), c.known, c.ambiguous, c.unobserved, c.errors)
			if c.exitCode && c.ambiguous+c.unobserved+c.errors > 0 {
				return exitCannotTell
			}
			return nil
		},
	}
	c.addServerFlags(cmd)
	c.addClusterFlag(cmd, "owners in the cluster")
	fs := cmd.Flags()
	fs.Var(cli.NewList(&c.columns.addresses, "NAME", "\n", parseText), "address-column", "column of addresses; repeatable (default: all with usual names)")
	fs.StringVar(&c.columns.time, "time-column", "", "column `NAME` of the time (default: a usual one)")
	fs.StringVar(&c.columns.node, "node-column", "", "column `NAME` of the node where the address was seen (default: a usual one)")
	fs.StringVar(&c.columns.network, "network-column", "", "column `NAME` of the network in which the address was seen, like pods (default: none)")
	fs.BoolVar(&c.exitCode, "exit-code", false, "exit 3 if an owner is ambiguous or not observed, or has an error; 1 on other errors")
	for _, name := range []string{"address-column", "time-column", "node-column", "network-column"} {
		cli.OnlyOnCommandLine(cmd, name)
	}
	return cmd
}

const (
	// questionsAtOnce is the number of questions in a request, and rowBytesAtOnce limits the size of their rows.
	questionsAtOnce, rowBytesAtOnce = 10_000, 2 << 20
	// maxName is the length of the longest name of a node or network.
	maxName = 253
)

// resolve copies the rows of a file, with their owners, a batch at a time.
func (c *resolveCommand) resolve(ctx context.Context, from io.Reader) error {
	format, names, err := openFlows(from)
	if err == nil {
		err = c.columns.settle(names)
	}
	if err != nil {
		return err
	}
	if c.columns.time == "" {
		c.note("There is no column of times: the current owners are added.")
	}
	out, per := bufio.NewWriter(c.sys.stdout), len(c.columns.addresses)
	if _, err := out.WriteString(format.header(c.columns.added())); err != nil {
		return err
	}
	var batch []*flow
	size := 0
	for {
		f, err := format.read()
		if errors.Is(err, io.EOF) {
			return errors.Join(c.answer(ctx, format, batch, out), out.Flush())
		}
		if err != nil {
			return err
		}
		if batch, size = append(batch, f), size+len(f.text); (len(batch)+1)*per > questionsAtOnce || size*per > rowBytesAtOnce {
			if err := c.answer(ctx, format, batch, out); err != nil {
				return err
			}
			batch, size = batch[:0], 0
		}
	}
}

// answer writes rows with their owners.
func (c *resolveCommand) answer(ctx context.Context, format flowFormat, rows []*flow, out *bufio.Writer) error {
	ask := &pb.ResolveOwnersRequest{Cluster: c.clusters}
	wrong := make(map[*flow]error)
	for _, f := range rows {
		questions, err := c.columns.questions(f)
		if err != nil {
			wrong[f] = err
		}
		ask.Questions = append(ask.Questions, questions...)
	}
	told := &pb.ResolveOwnersResponse{}
	if len(ask.Questions) > 0 {
		if err := c.client().call(ctx, http.MethodPost, "/v1/owners:resolve", nil, ask, told); err != nil {
			return err
		}
	}
	if len(told.GetAnswers()) != len(ask.Questions) {
		return fmt.Errorf("the server sent %d answers to %d questions: check --server", len(told.GetAnswers()), len(ask.Questions))
	}
	_, escaped := format.(*csvFlows)
	for _, f := range rows {
		var values []string
		for _, name := range c.columns.addresses {
			a := &pb.Resolution{}
			switch err := wrong[f]; {
			case err != nil:
				a.Error = err.Error()
			case f.cells == nil: // an empty line
				continue
			case f.cells[name] == "":
				a.Error = "there is no address"
			default:
				a, told.Answers = told.GetAnswers()[0], told.Answers[1:]
			}
			values = append(values, c.cells(a)...)
		}
		for i := range values {
			if escaped {
				values[i] = show.CSVCell(values[i])
			}
		}
		if _, err := out.WriteString(format.with(f, c.columns.added(), values)); err != nil {
			return err
		}
	}
	return nil
}

// questions returns the questions about a row, one for each address, or an error if it has none about any.
func (c *flowColumns) questions(f *flow) (all []*pb.ResolveOwnersRequest_Question, err error) {
	if f.err != nil || f.cells == nil {
		return nil, f.err
	}
	var at *timestamppb.Timestamp
	if c.time != "" {
		t, err := parseFlowTime(f.cells[c.time])
		if err != nil {
			return nil, err
		}
		at = timestamppb.New(t)
	}
	for _, name := range []string{c.node, c.network} {
		if len(f.cells[name]) > maxName {
			return nil, fmt.Errorf("%s is longer than a name may be", name)
		}
	}
	for _, name := range c.addresses {
		if text := f.cells[name]; text != "" {
			all = append(all, &pb.ResolveOwnersRequest_Question{
				Address: text[:min(len(text), maxName)], Time: at, Node: f.cells[c.node], Network: f.cells[c.network],
			})
		}
	}
	return all, nil
}

// cells returns the values of the columns for an answer, and counts it.
func (c *resolveCommand) cells(a *pb.Resolution) []string {
	kind := func(o *pb.ResolvedOwner) string { return strings.ToLower(o.GetKind().String()) }
	word := func(s fmt.Stringer) string { return strings.ToLower(strings.ReplaceAll(s.String(), "_", " ")) }
	switch {
	case a.GetError() != "":
		c.errors++
		return []string{"", "", "", "error: " + a.GetError()}
	case a.GetCertainty() == pb.Resolution_KNOWN && a.GetOwner() == nil:
		c.known++
		return []string{"none", "", "", word(a.GetCertainty())}
	case a.GetCertainty() == pb.Resolution_KNOWN:
		c.known++
		return []string{kind(a.GetOwner()), show.ResolvedName(a.GetOwner()), a.GetOwner().GetNode(), word(a.GetCertainty())}
	case a.GetCertainty() == pb.Resolution_AMBIGUOUS:
		c.ambiguous++
		var kinds, names, nodes []string
		for _, o := range a.GetCandidates() {
			kinds, names, nodes = append(kinds, kind(o)), append(names, show.ResolvedName(o)), append(nodes, o.GetNode())
		}
		certainty := word(a.GetCertainty())
		if n := a.GetCandidatesLeftOut(); n > 0 {
			certainty += fmt.Sprintf(": %d more", n)
		}
		return []string{strings.Join(slices.Compact(kinds), "; "), strings.Join(names, "; "), strings.Join(nodes, "; "), certainty}
	}
	c.unobserved++
	return []string{"", "", "", "not observed: " + word(a.GetReason())}
}

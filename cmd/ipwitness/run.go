//go:build linux

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/ipwitness/ipwitness/agent"
	agentreport "github.com/ipwitness/ipwitness/agent/report"
	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
)

// runCommand contains the flags of run: the flags of an agent and of an aggregator.
type runCommand struct {
	serving
	agent   agent.Config
	live    bool
	color   colorChoice
	account *show.Live // nil unless live is set
}

func newRun(sys system) *cobra.Command {
	r := &runCommand{serving: serving{sys: sys}}
	cmd := &cobra.Command{
		Use:   "run [flags]",
		Short: "Watch this host: agent and aggregator in one process",
		Long: `Watch this host: agent and aggregator in one process.

In a terminal, print a line for each owner that appears or disappears, the details
of each conflict, and warnings and errors from the log. Otherwise, log to stderr. In
both cases, the API serves the other commands. This command needs root, or
CAP_NET_ADMIN, CAP_NET_BROADCAST, CAP_BPF and CAP_PERFMON; 'ipwitness doctor' shows
what works without them.

` + cli.SettingsHelp,
		Example: `
  ipwitness run
  ipwitness run --wire off --exclude-interfaces 'docker*,virbr*'
  ipwitness run --shared 10.9.0.0/24=anycast --log-format json --live=false`,
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("live") {
				r.live = sys.terminal
			}
			if r.live && !cmd.Flags().Changed("log-level") {
				r.logging.Level = "warn"
			}
			if r.live {
				r.account = show.NewLive(sys.stdout, sys.terminalLayout(r.color))
			}
			return r.run(cmd.Context())
		},
	}
	cli.AgentFlags(cmd, &r.agent)
	r.addFlags(cmd, addresses{grpc: "127.0.0.1:9640", http: "127.0.0.1:9641"})
	colorFlag(cmd, &r.color)
	cmd.Flags().BoolVar(&r.live, "live", false, "human-readable live output (default: only in a terminal)")
	return cmd
}

// run runs until ctx ends.
func (r *runCommand) run(ctx context.Context) error {
	log := r.sys.stderr
	if r.live && r.sys.oneTerminal {
		log = r.account // otherwise its lines would mix with the log's lines
	}
	p, err := cli.NewProcess(log, r.logging)
	if err != nil {
		return err
	}
	r.aggregator.Alone = true
	r.aggregator.Memory = useMemory()
	agg, s, err := r.open(ctx, p)
	if err != nil {
		return err
	}
	defer s.listeners.close()
	r.agent.Version = p.Build.Version
	a, err := agent.New(r.agent, p.Log, p.Registry)
	if err != nil {
		return err
	}

	p.Log.With(s.listeners.logged()...).Info("starting", "version", p.Build.Version, "node", r.agent.Node, "wire", r.agent.Wire,
		"cluster", r.aggregator.Cluster)
	g, ctx := errgroup.WithContext(ctx)
	// The aggregator stops first, so that it does not report its own agent as disconnected.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		defer stop()
		return agg.Run(ctx)
	})
	g.Go(func() error { return s.run(serving) })
	g.Go(func() error { return a.Run(serving, agentreport.Fixed("in process", s.conn)) })
	if r.live {
		g.Go(func() error { return r.showLive(ctx, s, p.Build) })
	}
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil // a normal stop
	}
	p.Log.Info("stopped")
	return err
}

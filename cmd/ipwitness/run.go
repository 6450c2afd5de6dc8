//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/ipwitness/ipwitness/agent"
	agentreport "github.com/ipwitness/ipwitness/agent/report"
	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
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
		Use:               "run [flags]",
		Short:             "Watch this host: agent and aggregator in one process",
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
	p := cli.NewProcess(log, r.logging)
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
	kept := agg.(*aggregator.Aggregator).Kept() // run has no fleet
	p.Log.Info("stopped", "history", cmp.Or(kept, "not kept"))
	if r.live && err == nil {
		r.account.Stop(kept)
	}
	if errors.Is(err, agent.ErrBlind) && os.Geteuid() != 0 {
		return fmt.Errorf("run needs root: sudo %s run (%w)", r.sys.program, err)
	}
	return err
}

const (
	// firstLook is the interval at which the agent's counts are polled after its start until they
	// are stable, and firstLooks is the maximum number of polls.
	firstLook  = 100 * time.Millisecond
	firstLooks = 30
	// liveEvery is the interval at which bursts are summarized.
	liveEvery = time.Second / 4
)

// showLive prints the live output until ctx ends.
func (r *runCommand) showLive(ctx context.Context, s *server, b cli.Build) error {
	client := pb.NewWitnessServiceClient(s.conn)
	live := r.account
	node, err := r.started(ctx, client)
	if err != nil {
		return ended(ctx, err)
	}
	live.Start(b.Version, node, reachable(s.listeners.grpc.Addr()), reachable(s.listeners.http.Addr()))

	g, liveCtx := errgroup.WithContext(ctx)
	begun, begin := context.WithCancel(liveCtx) // the current owners come before the conflicts
	g.Go(func() error {
		defer begin()
		return follow(func(token string) (grpc.ServerStreamingClient[pb.WatchOwnersResponse], error) {
			return client.WatchOwners(liveCtx, &pb.WatchOwnersRequest{ResumeToken: token})
		}, func(e *pb.WatchOwnersResponse) error {
			live.Owner(e, r.sys.now())
			if e.GetType() == pb.Watch_BOOKMARK {
				begin()
			}
			return live.Err()
		})
	})
	g.Go(func() error {
		<-begun.Done()
		return follow(func(token string) (grpc.ServerStreamingClient[pb.WatchConflictsResponse], error) {
			return client.WatchConflicts(liveCtx, &pb.WatchConflictsRequest{ResumeToken: token})
		}, func(e *pb.WatchConflictsResponse) error {
			live.Conflict(e, r.sys.now())
			return live.Err()
		})
	})
	g.Go(func() error {
		tick := time.NewTicker(liveEvery)
		defer tick.Stop()
		for {
			select {
			case <-liveCtx.Done():
				return nil
			case <-tick.C:
				live.Tick(r.sys.now())
			}
		}
	})
	return ended(ctx, g.Wait())
}

// started waits until the agent has reported and its counts are stable, so that the live output
// begins with a summary of the existing owners instead of a line for each.
func (r *runCommand) started(ctx context.Context, client pb.WitnessServiceClient) (*pb.Node, error) {
	tick := time.NewTicker(firstLook)
	defer tick.Stop()
	before := &pb.Node{}
	for range firstLooks {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		list, err := client.ListNodes(ctx, &pb.ListNodesRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return nil, err
		}
		for _, n := range list.GetNodes() {
			if n.GetNamespaces() > 0 && n.GetPorts() == before.GetPorts() &&
				n.GetNamespaces() == before.GetNamespaces() && n.GetClaims() == before.GetClaims() {
				return n, nil
			}
			before = n
		}
	}
	if before.GetName() == "" {
		before.Name = r.agent.Node // the agent has not reported yet
	}
	return before, nil
}

// reachable returns the address of a listener for clients on this host.
func reachable(a net.Addr) string {
	at, err := netip.ParseAddrPort(a.String())
	if err == nil && at.Addr().IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", at.Port())
	}
	return a.String()
}

// follow passes the events of a watch to a function until one of them fails. It resumes a watch that was
// disconnected because the terminal did not read.
func follow[T any](watch func(token string) (grpc.ServerStreamingClient[T], error), take func(*T) error) error {
	events, err := watch("")
	for {
		var e *T
		if err == nil {
			e, err = events.Recv()
		}
		if token := api.ResumeToken(err); token != "" {
			events, err = watch(token)
			continue
		}
		if err != nil {
			return err
		}
		if err := take(e); err != nil {
			return fmt.Errorf("write live output: %w", err)
		}
	}
}

// ended returns nil for an error that only reports the end of ctx.
func ended(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return nil
	}
	return err
}

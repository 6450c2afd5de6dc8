//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/ipwitness/ipwitness/agent"
	agentreport "github.com/ipwitness/ipwitness/agent/report"
	"github.com/ipwitness/ipwitness/agent/workload"
	"github.com/ipwitness/ipwitness/aggregator/form"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/secure"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

const (
	// askAfter is the time without traffic after which the agent sends a keepalive ping to an
	// aggregator, and answerWithin is how long the answer may take. A server rejects pings that
	// are more frequent than keepaliveMin.
	askAfter     = keepaliveMin
	answerWithin = 5 * time.Second
	// connectWithin is the timeout of one attempt to connect.
	connectWithin = 5 * time.Second
)

// agentCommand contains the flags of agent.
type agentCommand struct {
	sys         system
	agent       agent.Config
	aggregators []string
	listen      string
	files       secure.Files
	logging     logging
}

func newAgent(sys system) *cobra.Command {
	a := &agentCommand{sys: sys}
	cmd := &cobra.Command{
		Use:   "agent --aggregator HOST:PORT [flags]",
		Short: "Watch this node and report to aggregators",
		Long: `Watch this node and report to one or more aggregators. Each of them gets everything.
If HOST has several addresses, there is an aggregator at each of them; the name is
looked up again every 10 seconds, so that replicas may come and go. While an
aggregator cannot be reached, the agent keeps its state and retries; after it has
reconnected, it sends its complete state.

Only one agent can run in a network namespace. It needs root, or CAP_NET_ADMIN,
CAP_NET_BROADCAST, CAP_BPF and CAP_PERFMON; 'ipwitness doctor' shows what works
without them.

` + settingsHelp,
		Example: `
  ipwitness agent --aggregator ipwitness.example.net:9640
  ipwitness agent --aggregator 192.0.2.1:9640 --aggregator 192.0.2.2:9640 --node worker-1`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return a.run(cmd.Context()) },
	}
	cmd.Flags().Var(&list[string]{to: &a.aggregators, kind: "HOST:PORT", separator: ",", parse: parseAggregator}, "aggregator",
		"gRPC address of an aggregator, or of several replicas; repeatable")
	agentFlags(cmd, &a.agent)
	listenFlag(cmd.Flags(), &a.listen, httpListen, ":9642", "listen address of health and metrics")
	clientTLSFlags(cmd.Flags(), &a.files)
	clientCAFlag(cmd.Flags(), &a.files, "CA bundle `FILE` used to verify readers of metrics, in PEM; enables TLS on --http-listen")
	a.logging.addFlags(cmd)
	return cmd
}

// run runs until ctx ends.
func (c *agentCommand) run(ctx context.Context) error {
	if len(c.aggregators) == 0 {
		return errors.New("no aggregator is configured: use --aggregator HOST:PORT, or 'ipwitness run' for agent and aggregator in one process")
	}
	for i, at := range c.aggregators {
		if slices.Contains(c.aggregators[:i], at) {
			return fmt.Errorf("the aggregator %s is configured twice: remove one", at)
		}
	}
	p, err := newProcess(c.sys, c.logging)
	if err != nil {
		return err
	}
	// The agent's own listener uses TLS only if client certificates are verified.
	var own *tls.Config
	if c.files.ClientCA != "" {
		if own, err = c.files.Server(p.log, "h2", "http/1.1"); err != nil {
			return err
		}
	}
	creds, err := c.credentials(p.log)
	if err != nil {
		return err
	}
	l, err := listenOn(ctx, c.listen, httpListen)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the server has already closed it if it ran
	p.registry.MustRegister(c.files)
	c.agent.Version = p.build.Version
	a, err := agent.New(c.agent, p.log, p.registry)
	if err != nil {
		return err
	}
	var to []agentreport.Target
	for _, at := range c.aggregators {
		to = append(to, target(at, creds))
	}

	p.log.Info("starting", "version", p.build.Version, "node", c.agent.Node, "wire", c.agent.Wire,
		"aggregators", c.aggregators, "http", l.Addr())
	if own == nil {
		warnOpen(p.log, l, httpListen, "read metrics", false, "authenticate callers with --tls-client-ca, or listen on 127.0.0.1")
	}
	s := newProbeServer(secure.Known(a.Handler(p.registry), own, "/metrics"), own, p.log)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serveHTTP(s, limit(l)) })
	g.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer cancel()
		stopHTTP(grace, s)
		return nil
	})
	g.Go(func() error { return a.Run(ctx, to...) })
	err = g.Wait()
	p.log.Info("stopped")
	return err
}

// credentials returns the agent's credentials for an aggregator, and how to verify the aggregator.
func (c *agentCommand) credentials(log *slog.Logger) ([]grpc.DialOption, error) {
	tls, err := c.files.ClientCredentials(log)
	switch {
	case err != nil:
		return nil, err
	case tls == nil:
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	case c.files.Token == "":
		return []grpc.DialOption{grpc.WithTransportCredentials(tls)}, nil
	}
	if _, err := secure.ReadToken(c.files.Token); err != nil {
		return nil, err
	}
	return []grpc.DialOption{grpc.WithTransportCredentials(tls), grpc.WithPerRPCCredentials(secure.Token(c.files.Token))}, nil
}

// target returns the aggregators at HOST:PORT: one for each address of the host.
func target(at string, creds []grpc.DialOption) agentreport.Target {
	host, port, _ := net.SplitHostPort(at) // parseAggregator has checked it
	return agentreport.Target{
		Name: at,
		Find: func(ctx context.Context) ([]string, error) {
			ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
			var all []string
			for _, ip := range ips {
				all = append(all, net.JoinHostPort(ip.Unmap().String(), port))
			}
			return all, err
		},
		Dial: func(address string) (agentreport.Conn, error) { return dial(at, address, creds) },
	}
}

// dial returns a connection to an address of the aggregator at HOST:PORT. It connects at its first use and
// reconnects by itself.
func dial(at, address string, creds []grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+address, append(slices.Clip(creds),
		grpc.WithAuthority(at),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: askAfter, Timeout: answerWithin}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: agentreport.FirstBackoff, Multiplier: backoff.DefaultConfig.Multiplier,
				Jitter: backoff.DefaultConfig.Jitter, MaxDelay: agentreport.LastBackoff,
			},
			MinConnectTimeout: connectWithin,
		}))...)
	if err != nil {
		return nil, fmt.Errorf("connect to the aggregator %s at %s: %w", at, address, err)
	}
	return conn, nil
}

// agentFlags adds the flags of an agent.
func agentFlags(cmd *cobra.Command, cfg *agent.Config) {
	fs := cmd.Flags()
	hostname, _ := os.Hostname() // without a hostname, the agent requires --node
	cfg.Node = form.Node.Correct(hostname)
	cfg.Node = strings.ReplaceAll(cfg.Node, string(advice.Replaced), "-")
	cfg.Node = strings.TrimLeft(cfg.Node, "-._")
	fs.Var(value[string]{&cfg.Node, "NAME", parseNode}, "node", "name of this node (default: the hostname)")
	choiceFlag(cmd, &cfg.Wire, "wire", "", "method to watch frames; auto is tcx if the kernel supports it (Linux 6.6)",
		agent.WireAuto, agent.WireTCX, agent.WireClsact, agent.WireOff)
	globsFlag(fs, &cfg.Interfaces, "interfaces", "interfaces to watch frames on, by name (default all)")
	fs.StringVar(&cfg.CRISocket, "cri-socket", workload.RuntimeAuto, "CRI socket of the container runtime: auto, off or a `PATH`")
	globsFlag(fs, &cfg.ExcludeInterfaces, "exclude-interfaces", "interfaces not to watch frames on, by name (default none)")
}

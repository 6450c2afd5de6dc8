//go:build linux

package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/ipwitness/ipwitness/agent"
	agentreport "github.com/ipwitness/ipwitness/agent/report"
	"github.com/ipwitness/ipwitness/agent/workload"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/proto/form"
	"github.com/ipwitness/ipwitness/secure"
)

type agentCommand struct {
	stderr      io.Writer
	agent       agent.Config
	aggregators []string
	listen      string
	files       secure.Files
	logging     Logging
}

// NewAgent returns the command agent. Its Use is a command below ipwitness.
func NewAgent(stderr io.Writer) *cobra.Command {
	a := &agentCommand{stderr: stderr}
	cmd := &cobra.Command{
		Use:               "agent --aggregator HOST:PORT [flags]",
		Short:             "Watch this node and report to aggregators",
		Args:              NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return a.run(cmd.Context()) },
	}
	cmd.Flags().Var(NewList(&a.aggregators, "HOST:PORT", ",", parseAggregator), "aggregator",
		"gRPC address of an aggregator, or of several replicas; repeatable")
	AgentFlags(cmd, &a.agent)
	ListenFlag(cmd.Flags(), &a.listen, HTTPListen, ":9642", "listen address of health and metrics")
	ClientTLSFlags(cmd.Flags(), &a.files)
	ClientCAFlag(cmd.Flags(), &a.files, "CA bundle `FILE` used to verify readers of metrics, in PEM; enables TLS on --http-listen")
	a.logging.AddFlags(cmd)
	Describe(cmd, help)
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
	p := NewProcess(c.stderr, c.logging)
	// The agent's own listener uses TLS only if client certificates are verified.
	var own *tls.Config
	var err error
	if c.files.ClientCA != "" {
		if own, err = c.files.Server(p.Log, "h2", "http/1.1"); err != nil {
			return err
		}
	}
	creds, err := c.files.DialOptions(p.Log)
	if err != nil {
		return err
	}
	l, err := Listen(ctx, c.listen, HTTPListen)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the server has already closed it if it ran
	p.Registry.MustRegister(c.files)
	c.agent.Version = p.Build.Version
	a, err := agent.New(c.agent, p.Log, p.Registry)
	if err != nil {
		return err
	}
	var to []agentreport.Target
	for _, at := range c.aggregators {
		to = append(to, agentreport.Replicas(at, creds))
	}

	p.Log.Info("starting", "version", p.Build.Version, "node", c.agent.Node, "wire", c.agent.Wire,
		"aggregators", c.aggregators, "http", l.Addr())
	if own == nil {
		WarnOpen(p.Log, l, HTTPListen, "read metrics", false, "authenticate callers with --tls-client-ca, or listen on 127.0.0.1")
	}
	s := NewProbeServer(secure.Known(a.Handler(p.Registry), own, "/metrics"), own, p.Log)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return RunHTTP(ctx, s, Limit(l)) })
	g.Go(func() error { return a.Run(ctx, to...) })
	err = g.Wait()
	p.Log.Info("stopped")
	return err
}

func parseAggregator(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.ContainsAny(host, "/@ ") {
		return "", fmt.Errorf("%q is not HOST:PORT: write it like ipwitness.example.net:9640, 192.0.2.1:9640 or [2001:db8::1]:9640", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("%q has no port from 1 to 65535 after the last colon", s)
	}
	return net.JoinHostPort(host, port), nil
}

// AgentFlags adds the flags of an agent.
func AgentFlags(cmd *cobra.Command, cfg *agent.Config) {
	fs := cmd.Flags()
	hostname, _ := os.Hostname() // without a hostname, the agent requires --node
	cfg.Node = strings.TrimLeft(strings.ReplaceAll(form.Node.Correct(hostname), string(advice.Replaced), "-"), "-._")
	fs.Var(NewValue(&cfg.Node, "NAME", func(s string) (string, error) {
		if s, err := ParseName(s); err != nil || form.Node.Has(s) {
			return s, err
		}
		return "", fmt.Errorf("%q is not a valid node name: use letters, digits, -, _ and ., and begin with a letter or digit", s)
	}), "node", "name of this node (default: the hostname)")
	ChoiceFlag(cmd, &cfg.Wire, "wire", "", "method to watch frames; auto is tcx if the kernel supports it (Linux 6.6)",
		agent.WireAuto, agent.WireTCX, agent.WireClsact, agent.WireOff)
	globsFlag(fs, &cfg.Interfaces, "interfaces", "interfaces to watch frames on, by name (default all)")
	fs.StringVar(&cfg.CRISocket, "cri-socket", workload.RuntimeAuto, "CRI socket of the container runtime: auto, off or a `PATH`")
	globsFlag(fs, &cfg.ExcludeInterfaces, "exclude-interfaces", "interfaces not to watch frames on, by name (default none)")
}

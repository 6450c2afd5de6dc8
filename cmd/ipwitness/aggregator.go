//go:build linux

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/secure"
)

// aggregatorCommand contains the flags of aggregator.
type aggregatorCommand struct {
	sys        system
	aggregator aggregator.Config
	listen     addresses
	files      secure.Files
	logging    logging
}

func newAggregator(sys system) *cobra.Command {
	a := &aggregatorCommand{sys: sys}
	cmd := &cobra.Command{
		Use:   "aggregator [flags]",
		Short: "Combine the reports of all agents and detect conflicts",
		Long: `Combine the reports of the agents of all nodes, and detect addresses that two owners
hold at the same time. Agents connect by gRPC; the other commands and Prometheus use
HTTP.

It needs no privileges. After a restart, the agents send their complete state again;
conflicts, acknowledgements and the history are in --data-dir.

A network is a set of addresses that must be unique in the whole cluster, on any node
and link. Declare it with --network.

` + settingsHelp,
		Example: `
  ipwitness aggregator
  ipwitness aggregator --cluster prod --network pods=10.244.0.0/16,fd00:244::/48 --network vms=10.50.0.0/16
  ipwitness aggregator --shared 10.9.0.0/24=anycast --log-format json`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return a.run(cmd.Context()) },
	}
	aggregatorFlags(cmd, &a.aggregator)
	exportFlags(cmd, &a.aggregator.Export)
	natsFlags(cmd, &a.aggregator.NATS)
	accessFlags(cmd, &a.files, &a.aggregator.Access)
	listenFlags(cmd, &a.listen, addresses{grpc: ":9640", http: ":9641"})
	a.logging.addFlags(cmd)
	return cmd
}

// run runs until ctx ends.
func (c *aggregatorCommand) run(ctx context.Context) error {
	p, err := newProcess(c.sys, c.logging)
	if err != nil {
		return err
	}
	c.aggregator.Export.Environment = c.sys.getenv
	c.aggregator.CollectEagerly = c.sys.getenv("GOGC") == ""
	c.aggregator.Memory = useMemory()
	agg, s, err := openAggregator(ctx, c.aggregator, c.listen, c.files, p)
	if err != nil {
		return err
	}
	p.log.With(s.listeners.logged()...).Info("starting", "version", p.build.Version, "cluster", c.aggregator.Cluster, "memory_bytes", c.aggregator.Memory)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return agg.Run(ctx) })
	g.Go(func() error { return s.run(ctx) })
	err = g.Wait()
	p.log.Info("stopped")
	return err
}

// openAggregator returns an aggregator and its server, which has opened its listeners. It starts
// nothing.
func openAggregator(ctx context.Context, cfg aggregator.Config, at addresses, files secure.Files, p process) (*aggregator.Aggregator, *server, error) {
	tls, err := files.Server(p.log, "h2", "http/1.1")
	if err != nil {
		return nil, nil, err
	}
	if (cfg.Access.Tokens != "" || cfg.Access.TokenReview) && tls == nil &&
		(!onlyHere(at.grpc) || !onlyHere(at.http) || at.metrics != "" && !onlyHere(at.metrics)) {
		return nil, nil, errors.New("tokens would be sent unencrypted: configure TLS with --tls-cert and --tls-key, or listen only on 127.0.0.1")
	}
	l, err := listen(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	p.registry.MustRegister(files)
	cfg.Version = p.build.Version
	if files.ClientCA != "" {
		cfg.Access.Certificates = secure.Verifier(tls)
	}
	agg, err := aggregator.New(cfg, p.log, p.registry)
	if err != nil {
		l.close()
		return nil, nil, err
	}
	s, err := newServer(l, agg, tls, p.registry, p.log)
	if err != nil {
		l.close()
		return nil, nil, err
	}
	if agg.Open() {
		const remedy = "authenticate callers with --tokens, --token-review or --tls-client-ca, or listen on 127.0.0.1"
		warnOpen(p.log, l.grpc, grpcListen, "report and read", tls != nil, remedy)
		warnOpen(p.log, l.http, httpListen, "read", tls != nil, remedy)
		warnOpen(p.log, l.metrics, metricsListen, "read metrics", tls != nil, remedy)
	}
	return agg, s, nil
}

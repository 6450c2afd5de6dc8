//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"

	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/secure"
)

// serving contains the flags of the commands that run an aggregator.
type serving struct {
	sys        system
	aggregator aggregator.Config
	listen     addresses
	files      secure.Files
	logging    cli.Logging
	fleet      bool // answer for several clusters
}

// addFlags adds the flags that the commands have in common.
func (c *serving) addFlags(cmd *cobra.Command, byDefault addresses) {
	aggregatorFlags(cmd, &c.aggregator)
	exportFlags(cmd, &c.aggregator.Export)
	natsFlags(cmd, &c.aggregator.NATS)
	accessFlags(cmd, &c.files, &c.aggregator.Access)
	listenFlags(cmd, &c.listen, byDefault)
	c.logging.AddFlags(cmd)
	cmd.Flags().Bool(cli.AllFlags, false, "with --help: all flags")
	cli.OnlyOnCommandLine(cmd, cli.AllFlags) // elsewhere, it is a filter of conflicts
	c.aggregator.Export.Environment = c.sys.getenv
}

func newAggregator(sys system) *cobra.Command {
	a := &serving{sys: sys}
	cmd := &cobra.Command{
		Use:               "aggregator [flags]",
		Short:             "Combine the reports of all agents and detect conflicts",
		Args:              cli.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.fleet {
				if err := onlyForFleet(cmd); err != nil {
					return err
				}
			}
			return a.run(cmd.Context())
		},
	}
	a.addFlags(cmd, addresses{grpc: ":9640", http: ":9641"})
	cmd.Flags().BoolVar(&a.fleet, "fleet", false, "answer for the clusters whose streams are at --nats, instead of for agents")
	return cmd
}

// run runs until ctx ends.
func (c *serving) run(ctx context.Context) error {
	p := cli.NewProcess(c.sys.stderr, c.logging)
	c.aggregator.CollectEagerly = c.sys.getenv("GOGC") == ""
	c.aggregator.Memory = useMemory()
	agg, s, err := c.open(ctx, p)
	if err != nil {
		return err
	}
	name := []any{"cluster", c.aggregator.Cluster}
	if c.fleet {
		name = []any{"hub", c.aggregator.NATS.Hosts()}
	}
	p.Log.With(s.listeners.logged()...).Info("starting", append(name, "version", p.Build.Version, "memory_bytes", c.aggregator.Memory)...)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return agg.Run(ctx) })
	g.Go(func() error { return s.run(ctx) })
	err = g.Wait()
	p.Log.Info("stopped")
	return err
}

// notForFleet are the flags of an aggregator that mean nothing for a fleet.
var notForFleet = []string{
	"cluster", "shared", "router", "lease", "kubeconfig", "settle", "stale-after", "node-timeout", "handover-grace", "leaked-after",
	"reused-within", "otlp-endpoint", "alertmanager", "alertmanager-token-file", "webhook", "webhook-secret-file", "export-ca",
	"nats-retention", "nats-size", "token-review", "token-audience", "agent-account",
}

// onlyForFleet returns an error if a flag is set that means nothing for a fleet.
func onlyForFleet(cmd *cobra.Command) error {
	for _, name := range notForFleet {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s and --fleet cannot be combined, because it is a setting of the aggregator of one cluster: remove one of them", name)
		}
	}
	return nil
}

// answering is an aggregator or a fleet.
type answering interface {
	Handlers(prometheus.Gatherer) (rest, probes http.Handler, err error)
	Guarded() []grpc.ServerOption
	Register(reflection.GRPCServer)
	Open() bool
	Run(ctx context.Context) error
}

// open returns the aggregator or the fleet, and its server, which has opened its listeners. It starts nothing.
func (c *serving) open(ctx context.Context, p cli.Process) (answering, *server, error) {
	cfg, at, files := c.aggregator, c.listen, c.files
	if c.fleet && len(cfg.Networks) > 0 {
		return nil, nil, fmt.Errorf("--network %[1]s: a fleet compares clusters: say which ones share the network, as in %[1]s=10.0.0.0/8,clusters=*", cfg.Networks[0].Name)
	}
	tls, err := files.Server(p.Log, "h2", "http/1.1")
	if err != nil {
		return nil, nil, err
	}
	if (cfg.Access.Tokens != "" || cfg.Access.TokenReview) && tls == nil &&
		(!cli.OnlyHere(at.grpc) || !cli.OnlyHere(at.http) || at.metrics != "" && !cli.OnlyHere(at.metrics)) {
		return nil, nil, errors.New("tokens would be sent unencrypted: configure TLS with --tls-cert and --tls-key, or listen only on 127.0.0.1")
	}
	l, err := listen(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	p.Registry.MustRegister(files)
	cfg.Version = p.Build.Version
	if files.ClientCA != "" {
		cfg.Access.Certificates = secure.Verifier(tls)
	}
	var agg answering
	if c.fleet {
		agg, err = aggregator.NewFleet(cfg, p.Log, p.Registry)
	} else {
		agg, err = aggregator.New(cfg, p.Log, p.Registry)
	}
	if err != nil {
		l.close()
		return nil, nil, err
	}
	s, err := newServer(l, agg, tls, p.Registry, p.Log)
	if err != nil {
		l.close()
		return nil, nil, err
	}
	if agg.Open() {
		const remedy = "authenticate callers with --tokens, --token-review or --tls-client-ca, or listen on 127.0.0.1"
		cli.WarnOpen(p.Log, l.grpc, grpcListen, "report and read", tls != nil, remedy)
		cli.WarnOpen(p.Log, l.http, cli.HTTPListen, "read", tls != nil, remedy)
		cli.WarnOpen(p.Log, l.metrics, metricsListen, "read metrics", tls != nil, remedy)
	}
	return agg, s, nil
}

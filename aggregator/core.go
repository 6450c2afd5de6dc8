package aggregator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/acknowledge"
	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/convert"
	"github.com/ipwitness/ipwitness/aggregator/coverage"
	"github.com/ipwitness/ipwitness/aggregator/events"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/export"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/findings"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/metrics"
	"github.com/ipwitness/ipwitness/aggregator/notify"
	"github.com/ipwitness/ipwitness/aggregator/recall"
	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/aggregator/shard"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// coreConfig is the configuration of a core.
type coreConfig struct {
	policy verdict.Policy
	log    *slog.Logger
	// registry is where metrics are registered.
	registry prometheus.Registerer
	// kubernetes is the Kubernetes API; nil if it is not used.
	kubernetes *kube.Cluster
	// memory is the number of bytes that the process may use; 0 means no limit.
	memory int64
	// eager is set if the tidier sets GOGC.
	eager bool
	// alone is set if the agent in this process is the only one that is expected.
	alone bool
	// dataDir is the directory where acknowledgements and the journal are kept, or DataDirAuto; empty
	// to keep acknowledgements in memory only, and no journal.
	dataDir string
	// retention is how long the journal is kept, and journalSize is the number of bytes that it may
	// take.
	retention   time.Duration
	journalSize int64
	// export are the systems that are told of transitions.
	export export.Settings
	// nats is where transitions are published.
	nats stream.Settings
	// version is the version of this program.
	version string
}

// newCore makes the rooms. It locks the data directory, and does nothing else before run.
func newCore(cfg coreConfig) (*core, error) {
	base := time.Now()
	// The wall clock at the start plus the monotonic time since then: it never jumps, even if the
	// wall clock is set.
	clock := func() verdict.Stamp { return verdict.At(base).Add(time.Since(base)) }
	workers := runtime.GOMAXPROCS(0)
	c := &core{log: cfg.log, kubernetes: cfg.kubernetes, tidier: newTidier(cfg.eager), stopped: make(chan struct{}), ended: make(chan struct{})}
	c.facts = facts.New(facts.Config{
		Policy: &cfg.policy, Log: cfg.log, Clock: clock, Listener: heard{c}, Kubernetes: cfg.kubernetes, Followed: cfg.kubernetes != nil,
		Queues: workers, Memory: cfg.memory, Stopped: c.stopped,
	})
	c.shards = shard.New(shard.Config{Policy: &cfg.policy, Log: cfg.log, Clock: clock, Facts: c.facts, Listener: judged{c}, Workers: workers})
	c.findings = findings.New(findings.Config{Facts: c.facts, Kubernetes: cfg.kubernetes, Waiting: c.shards.Waiting, Listener: found{c}})
	c.coverage = coverage.New(coverage.Config{Facts: c.facts, Shards: c.shards, Kubernetes: cfg.kubernetes, Alone: cfg.alone})
	dir, err := cfg.dataDir, error(nil)
	if cfg.dataDir == DataDirAuto {
		if dir, err = DefaultDataDir, journal.Writable(DefaultDataDir); err != nil {
			dir, c.unsaved = "", explain.NothingSaved(DefaultDataDir, err)
			cfg.log.Warn("history and acknowledgements are in memory only: make the directory writable, or set --data-dir",
				"directory", DefaultDataDir, "error", err)
		}
	}
	if c.acknowledgements, err = acknowledge.New(acknowledge.Config{
		Facts: c.facts, Conflicts: c.shards.Conflicts, Log: cfg.log, Judge: c.judge, DataDir: dir, Shared: cfg.kubernetes,
	}); err != nil {
		return nil, err
	}
	if cfg.dataDir != "" || cfg.export.Any() || cfg.nats.Used() {
		c.journal = journal.New(journal.Config{
			Dir: dir, Retention: cfg.retention, Size: cfg.journalSize, Instance: base.UnixNano(), Log: cfg.log,
			Clock: func() time.Time { return clock().Time() },
		})
	}
	if c.exports, err = export.New(export.Config{
		Settings: cfg.export, Journal: c.journal, Replicas: cfg.kubernetes.Election() != nil, Log: cfg.log, Clock: func() time.Time { return clock().Time() },
		Cluster: cfg.policy.Cluster, Version: cfg.version,
	}); err != nil {
		return nil, errors.Join(err, c.acknowledgements.Close())
	}
	if cfg.nats.Used() {
		c.stream, err = stream.New(stream.Config{
			Settings: cfg.nats, Cluster: cfg.policy.Cluster, Instance: base.UnixNano(), Journal: c.journal, Coverage: c.coverage.Current,
			Log: cfg.log, Clock: func() time.Time { return clock().Time() },
		})
	} else {
		err = cfg.nats.Check()
	}
	if err != nil {
		return nil, errors.Join(err, c.acknowledgements.Close())
	}
	converter := &convert.Converter{
		Facts: c.facts, Kubernetes: cfg.kubernetes, Findings: c.findings, Acknowledgements: c.acknowledgements, Recorded: convert.NewRecorded(),
	}
	if c.journal != nil {
		c.recall = recall.New(recall.Config{
			Facts: c.facts, Shards: c.shards, Findings: c.findings, Journal: c.journal, Recorded: converter.Recorded, Log: cfg.log, Judge: c.judge,
		})
	}
	c.events = events.New(converter)
	c.witness = &api.Service{
		Facts: c.facts, Shards: c.shards, Kubernetes: cfg.kubernetes, Findings: c.findings, Acknowledgements: c.acknowledgements,
		Coverage: c.coverage, Convert: converter, Events: c.events, Journal: c.journal, Instance: base.UnixNano(), Problems: c.problems, Version: cfg.version, Stopped: c.ended,
	}
	c.notifier = &notify.Notifier{
		Log: cfg.log, Clock: clock, Events: c.events, Kubernetes: cfg.kubernetes, NodeTimeout: cfg.policy.NodeTimeout,
	}
	c.metrics = metrics.New(metrics.Config{
		Facts: c.facts, Shards: c.shards, Findings: c.findings, Acknowledgements: c.acknowledgements, Coverage: c.coverage,
		Journal: c.journal, Exports: c.exports, Stream: c.stream, Watches: c.watches, Problems: c.problems,
	})
	c.reports, err = report.New(report.Config{
		Facts: c.facts, Log: cfg.log, Listener: taken{c}, Metrics: cfg.registry, Memory: cfg.memory, Stopped: c.ended,
	})
	if err != nil {
		return nil, errors.Join(err, c.acknowledgements.Close())
	}
	if err := cfg.registry.Register(c.metrics); err != nil {
		return nil, errors.Join(fmt.Errorf("register metrics: %w", err), c.acknowledgements.Close())
	}
	return c, nil
}

// lead does what only one of several replicas does, until ctx ends. Kubernetes Events are not among it,
// because the mirror of the Kubernetes API writes them.
func (c *core) lead(ctx context.Context) {
	if c.journal == nil {
		return
	}
	var group sync.WaitGroup
	group.Go(func() { c.exports.Run(ctx) })
	if c.stream != nil {
		group.Go(func() { c.stream.Run(ctx) })
	}
	group.Wait()
}

// standbyEvery is how often a replica looks whether another one leads.
const standbyEvery = 10 * time.Second

// standby tells the exporters while another replica leads, until ctx ends.
func (c *core) standby(ctx context.Context) {
	if c.kubernetes.Election() == nil || c.journal == nil {
		return
	}
	tick := time.NewTicker(standbyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e := c.kubernetes.Election()
		if e.GetLeads() || e.GetLeader() == "" || c.kubernetes.Status().GetState() != pb.Kubernetes_LIVE {
			continue // perhaps no replica leads
		}
		if err := c.exports.Standby(); err != nil {
			c.log.Error("cannot note that another replica exports: this one will repeat more when it leads", "error", err)
		}
	}
}

// run judges addresses and runs the work that is due, until ctx ends.
func (c *core) run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() {
		c.shards.Run(ctx)
		close(c.stopped)
	})
	group.Go(func() { findings.Repeat(ctx, c.facts.Clock, c.facts.Woken(), c.ring) })
	group.Go(func() { c.findings.Run(ctx) })
	group.Wait()
}

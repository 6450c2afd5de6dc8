// Package aggregator combines what all agents witness. It wires the rooms that do the work, and
// does nothing else. It shares only proto/ with the agents, and touches no kernel.
//
// How a change is processed:
//
//	report (one Report stream) -> facts -> judge -> verdict.Judge -> live -> api
//
// The goroutine that received a message changes the facts. The goroutine that owns the partition of
// a changed address judges it and publishes the outcome. Package live makes messages of the API, and
// explain provides their words.
package aggregator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/export"
	"github.com/ipwitness/ipwitness/aggregator/fleet"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Defaults of a Config.
const (
	DefaultCluster       = "default"
	DefaultSettle        = time.Second
	DefaultStaleAfter    = 5 * time.Minute
	DefaultNodeTimeout   = 5 * time.Minute
	DefaultHandoverGrace = 10 * time.Second
	DefaultLeakedAfter   = 5 * time.Minute
	DefaultKubeconfig    = kube.Auto
	DefaultRetention     = journal.DefaultRetention
	DefaultJournalSize   = journal.DefaultSize
	// DefaultDataDir is the data directory of DataDirAuto.
	DefaultDataDir = "/var/lib/ipwitness"
)

// DataDirAuto stands for DefaultDataDir. If this process may not write there, or the file system is
// read-only, acknowledgements and the journal are in memory, which is reported.
const DataDirAuto = "auto"

// migrationGrace is the settle time between two pods that run one virtual machine: by then, a live
// migration has ended or is stuck.
const migrationGrace = time.Minute

// Config is the configuration of an Aggregator. Fields that are zero have default values.
type Config struct {
	// Cluster is the name of the cluster. It distinguishes the conflict ids of clusters.
	Cluster string
	// Settle is how long two owners must exist at the same time before the
	// conflict is confirmed.
	Settle time.Duration
	// StaleAfter is how long an owner that only wire claims show counts as alive.
	StaleAfter time.Duration
	// NodeTimeout is how long the owners of a disconnected node count as alive.
	NodeTimeout time.Duration
	// HandoverGrace is what Settle is for two sandboxes of one pod.
	HandoverGrace time.Duration
	// LeakedAfter is how long an allocation may be unused before it is reported as leaked.
	LeakedAfter time.Duration
	// ReusedWithin is the time after its former owner left within which the reuse of an address is
	// reported; 0 for never.
	ReusedWithin time.Duration
	// Shared are addresses that several owners hold intentionally.
	Shared []verdict.Shared
	// Routers are the workloads that intentionally answer for addresses of others.
	Routers []verdict.Router
	// DataDir is the directory where acknowledgements and the journal are kept, or DataDirAuto; empty
	// to keep acknowledgements in memory only, and no journal.
	DataDir string
	// Retention is how long the journal keeps records, and JournalSize is the number of bytes that it
	// may take.
	Retention   time.Duration
	JournalSize int64
	// Export are the systems that are told of transitions.
	Export export.Settings
	// NATS is where transitions are published.
	NATS stream.Settings
	// Networks are the declared networks. Networks with the same name are combined.
	Networks []verdict.Network
	// SharedNetworks are the networks that clusters of a fleet share.
	SharedNetworks []fleet.Network
	// Kubeconfig says which Kubernetes cluster is asked about owners: auto for the one that runs
	// this process as a pod, if any, off for none, or the name of a kubeconfig file.
	Kubeconfig string
	// Lease is the Lease by which the replicas of an aggregator elect a leader, as NAMESPACE/NAME; empty
	// if there is one replica.
	Lease string
	// NodeCondition has the leader write the condition AddressConflict of Kubernetes' Nodes.
	NodeCondition bool
	// Access says how callers are identified and what they may do.
	Access access.Config
	// Memory is the number of bytes that the process may use; 0 means no limit. The nodes share
	// a part of it.
	Memory int64
	// CollectEagerly has the Go runtime of this process collect garbage earlier than usual, except
	// while agents send snapshots.
	CollectEagerly bool
	// Version is the version of this program, for the Kubernetes API and for cases.
	Version string
	// Alone says that the only agent is the one in this process: the aggregator does not wait
	// for other agents after its start.
	Alone bool
}

// Aggregator combines what all agents witness. Use New.
type Aggregator struct {
	server
	core *core
	// waits is set if a replica is not ready before it knows what the others know.
	waits bool
}

// A server is how an Aggregator or a Fleet is served.
type server struct {
	witness  pb.WitnessServiceServer
	guard    *access.Guard
	health   *health.Server
	codec    encoding.CodecV2
	services []string
	// complete is closed when requests can be served, and ended when all streams are to end.
	complete, ended chan struct{}
}

// Guarded returns the options of a gRPC server that others can reach: they check what each caller
// may do. An in-process server has none.
func (s *server) Guarded() []grpc.ServerOption { return s.guard.Outside(s.codec) }

// Open reports whether callers need not authenticate.
func (s *server) Open() bool { return s.guard.Open() }

// Register registers the WitnessService, with health and reflection. to need not be a gRPC server: a test
// can call the services that it is given.
func (s *server) Register(to reflection.GRPCServer) {
	pb.RegisterWitnessServiceServer(to, s.witness)
	healthpb.RegisterHealthServer(to, s.health)
	reflection.Register(to)
}

// Handlers returns the HTTP handlers. rest serves the whole API. probes serves only health,
// readiness and the metrics of gatherer, for a separate listener.
func (s *server) Handlers(gatherer prometheus.Gatherer) (rest, probes http.Handler, err error) {
	return api.Handlers(s.witness, gatherer, s.guard, s.ready)
}

func (s *server) healthy(status healthpb.HealthCheckResponse_ServingStatus) {
	for _, name := range append([]string{""}, s.services...) {
		s.health.SetServingStatus(name, status)
	}
}

func (s *server) ready() bool {
	select {
	case <-s.ended:
		return false
	default:
	}
	select {
	case <-s.complete:
		return true
	default:
		return false
	}
}

func (s *server) end() {
	s.health.Shutdown()
	close(s.ended)
}

const (
	// completeWithin is how long after its start a replica may be not ready, because agents of some nodes
	// have not reported. Agents look for new replicas every 5 to 15 s, and the answers of the cluster's DNS
	// are up to 30 s old.
	completeWithin = time.Minute
	// lookEvery is how often a replica that is not ready looks whether it is.
	lookEvery = 100 * time.Millisecond
)

// New makes an aggregator. It locks the data directory, and does nothing else before Run. Its
// metrics are registered with reg.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Aggregator, error) {
	return newAggregator(cfg, log, reg, nil)
}

func newAggregator(cfg Config, log *slog.Logger, reg prometheus.Registerer, replay *Replay) (*Aggregator, error) {
	policy := verdict.Policy{
		Cluster: cfg.Cluster, Settle: cfg.Settle, StaleAfter: cfg.StaleAfter, MigrationGrace: migrationGrace,
		NodeTimeout: cfg.NodeTimeout, HandoverGrace: cfg.HandoverGrace,
		LeakedAfter: cfg.LeakedAfter, ReusedWithin: cfg.ReusedWithin, Routers: cfg.Routers,
	}
	policy.Cluster = cmp.Or(policy.Cluster, DefaultCluster)
	for _, d := range []struct {
		name  string
		value *time.Duration
		unset time.Duration
	}{
		{"settle", &policy.Settle, DefaultSettle},
		{"stale-after", &policy.StaleAfter, DefaultStaleAfter},
		{"node-timeout", &policy.NodeTimeout, DefaultNodeTimeout},
		{"handover-grace", &policy.HandoverGrace, DefaultHandoverGrace},
		{"leaked-after", &policy.LeakedAfter, DefaultLeakedAfter},
		{"reused-within", &policy.ReusedWithin, 0},
		{"retention", &cfg.Retention, DefaultRetention},
	} {
		switch {
		case *d.value == 0:
			*d.value = d.unset
		case *d.value < 0:
			return nil, fmt.Errorf("--%s %s: it must not be negative", d.name, *d.value)
		}
	}
	cfg.JournalSize = cmp.Or(cfg.JournalSize, DefaultJournalSize)
	for _, n := range cfg.SharedNetworks {
		return nil, fmt.Errorf("--network %s: only a fleet knows networks of several clusters: remove clusters=, or use --fleet", n.Name)
	}
	for _, s := range cfg.Shared {
		policy.Shared = append(policy.Shared, verdict.Shared{Prefix: api.Unmap(s.Prefix).Masked(), Reason: s.Reason})
	}
	for _, n := range cfg.Networks {
		declared := verdict.Network{Name: n.Name}
		for _, p := range n.Prefixes {
			declared.Prefixes = append(declared.Prefixes, api.Unmap(p).Masked())
		}
		policy.Networks = append(policy.Networks, declared)
	}

	cluster, err := kube.Open(kube.Config{Kubeconfig: cfg.Kubeconfig, Log: log, Metrics: reg, Version: cfg.Version, AgentAccounts: cfg.Access.AgentAccounts, Lease: cfg.Lease})
	if err != nil {
		return nil, err
	}
	var reviewer access.Reviewer
	switch {
	case cluster != nil:
		reviewer = cluster
	case cfg.Lease != "":
		return nil, errors.New("--lease needs the Kubernetes API: see --kubeconfig")
	case cfg.NodeCondition:
		return nil, errors.New("--node-condition needs the Kubernetes API: see --kubeconfig")
	}
	guard, err := access.New(cfg.Access, reviewer, log, reg)
	if err != nil {
		return nil, err
	}
	c, err := newCore(coreConfig{cfg, policy, log, reg, cluster, replay})
	if err != nil {
		return nil, err
	}
	a := &Aggregator{core: c, waits: cfg.Lease != "", server: server{
		c.witness, guard, health.NewServer(), c.reports.Codec(),
		[]string{pb.WitnessService_ServiceDesc.ServiceName, pb.ReportService_ServiceDesc.ServiceName},
		make(chan struct{}), c.ended,
	}}
	a.healthy(healthpb.HealthCheckResponse_NOT_SERVING)
	cluster.Notify(c.kubernetesChanged)
	return a, nil
}

// Register registers the services of an aggregator.
func (a *Aggregator) Register(s reflection.GRPCServer) {
	pb.RegisterReportServiceServer(s, a.core.reports)
	a.server.Register(s)
}

// Kept returns the directory in which the history is kept; empty if it is in memory only.
func (a *Aggregator) Kept() string { return a.core.kept }

// Run judges what is due until ctx ends, and then ends all streams. It is called once.
func (a *Aggregator) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error {
		if a.await(ctx) {
			close(a.complete)
			a.healthy(healthpb.HealthCheckResponse_SERVING)
			fitness := &fitness{coverage: a.core.coverage, clock: a.core.facts.Clock}
			return a.core.kubernetes.Lead(ctx, fitness.fit, a.core.lead)
		}
		return nil
	})
	for _, run := range []func(context.Context){
		a.core.run, a.core.notifier.Run, a.core.acknowledgements.Run, a.core.reports.Run, a.core.tidier.run,
	} {
		group.Go(func() error { run(ctx); return nil })
	}
	if a.core.journal != nil {
		group.Go(func() error { a.core.journal.Run(ctx); return nil })
		group.Go(func() error { a.core.exports.Run(ctx); return nil })
		group.Go(func() error { a.core.recall.Run(ctx); return nil })
		group.Go(func() error { a.core.witness.Record(ctx, a.core.recall.Done()); return nil })
	}
	if a.core.kubernetes != nil {
		group.Go(func() error { return a.core.kubernetes.Run(ctx) })
	}
	err := group.Wait()
	a.end()
	return err
}

// await waits until the aggregator is ready to serve requests: until it knows what was recorded, and a replica also what
// the others know. It returns false if ctx ends first.
func (a *Aggregator) await(ctx context.Context) bool {
	limit := time.NewTimer(completeWithin)
	defer limit.Stop()
	if a.core.recall != nil {
		select {
		case <-a.core.recall.Known():
		case <-ctx.Done():
			return false
		case <-limit.C:
			a.core.log.Warn("ready, but the journal is not read yet: conflicts and findings from before the start are missing", "waited", completeWithin)
			return true
		}
	}
	if !a.waits {
		return true
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		_, acknowledged := a.core.kubernetes.Acknowledgements()
		complete := a.core.coverage.Complete()
		if acknowledged && complete {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-limit.C:
			a.core.log.Warn("ready, but something is missing: without reports of all agents, answers have an incomplete coverage; "+
				"without the acknowledgements, acknowledged conflicts are reported as if they were not",
				"waited", completeWithin, "all_agents_reported", complete, "acknowledgements_known", acknowledged)
			return true
		case <-look.C:
		}
	}
}

// listener passes on what the judges tell: most of it goes to the room that has a method for it.
type listener struct {
	*judge.Findings
	*live.Events
	*live.Metrics
	core *core
}

func (l *listener) Acknowledged(of *verdict.Conflict) (until verdict.Stamp, lapsed bool) {
	return l.core.acknowledgements.Lapse(of)
}

// A Fleet answers for several clusters, from their streams. It has no agents. Use NewFleet.
type Fleet struct {
	server
	fleet *fleet.Fleet
}

// NewFleet makes a fleet, which does nothing before Run. It uses the parts of cfg that are about the data
// directory, NATS and access. Its metrics are registered with reg.
func NewFleet(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Fleet, error) {
	if cfg.Access.TokenReview {
		return nil, errors.New("a fleet does not use the Kubernetes API, so it cannot review tokens: remove --token-review")
	}
	switch cfg.DataDir {
	case DataDirAuto:
		cfg.DataDir = DefaultDataDir
	case "":
		return nil, errors.New("a fleet keeps what it knows in its data directory: set --data-dir to a directory")
	}
	for _, n := range cfg.SharedNetworks {
		for i, p := range n.Prefixes {
			n.Prefixes[i] = api.Unmap(p).Masked()
		}
	}
	guard, err := access.New(cfg.Access, nil, log, reg)
	if err != nil {
		return nil, err
	}
	base := time.Now()
	f := &Fleet{server: server{
		guard: guard, health: health.NewServer(), codec: encoding.GetCodecV2("proto"), services: []string{pb.WitnessService_ServiceDesc.ServiceName},
		complete: make(chan struct{}), ended: make(chan struct{}),
	}}
	close(f.complete) // it answers with what it knows
	if f.fleet, err = fleet.New(fleet.Config{
		NATS: cfg.NATS, DataDir: cfg.DataDir, Networks: cfg.SharedNetworks, Retention: cfg.Retention, Size: cfg.JournalSize, Instance: base.UnixNano(), Log: log,
		Clock: func() time.Time { return base.Add(time.Since(base)) }, // which never jumps
	}); err != nil {
		return nil, err
	}
	if err := reg.Register(f.fleet.Metrics()); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	f.witness = &fleet.Service{Fleet: f.fleet, Stopped: f.ended}
	f.healthy(healthpb.HealthCheckResponse_NOT_SERVING)
	return f, nil
}

// Run follows the clusters until ctx ends, and then ends all streams. It is called once.
func (f *Fleet) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.fleet.Run(ctx) })
	f.healthy(healthpb.HealthCheckResponse_SERVING)
	err := group.Wait()
	f.end()
	return err
}

package aggregator

import (
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
	"github.com/ipwitness/ipwitness/aggregator/fleet"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Fleet answers for several clusters, from their streams. It has no agents. Use NewFleet.
type Fleet struct {
	fleet   *fleet.Fleet
	service *fleet.Service
	guard   *access.Guard
	health  *health.Server
	codec   encoding.CodecV2
	ended   chan struct{}
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
	f := &Fleet{guard: guard, health: health.NewServer(), codec: encoding.GetCodecV2("proto"), ended: make(chan struct{})}
	if f.fleet, err = fleet.New(fleet.Config{
		NATS: cfg.NATS, DataDir: cfg.DataDir, Networks: cfg.SharedNetworks, Retention: cfg.Retention, Size: cfg.JournalSize, Instance: base.UnixNano(), Log: log,
		Clock: func() time.Time { return base.Add(time.Since(base)) }, // which never jumps
	}); err != nil {
		return nil, err
	}
	if err := reg.Register(f.fleet.Metrics()); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	f.service = &fleet.Service{Fleet: f.fleet, Stopped: f.ended}
	f.healthy(healthpb.HealthCheckResponse_NOT_SERVING)
	return f, nil
}

// Guarded returns the options of a gRPC server that others can reach.
func (f *Fleet) Guarded() []grpc.ServerOption { return f.guard.Outside(f.codec) }

// Open reports whether callers need not authenticate.
func (f *Fleet) Open() bool { return f.guard.Open() }

// Register registers the services of a fleet, with health and reflection.
func (f *Fleet) Register(s reflection.GRPCServer) {
	pb.RegisterWitnessServiceServer(s, f.service)
	healthpb.RegisterHealthServer(s, f.health)
	reflection.Register(s)
}

// Run follows the clusters until ctx ends, and then ends all streams. It is called once.
func (f *Fleet) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.fleet.Run(ctx) })
	f.healthy(healthpb.HealthCheckResponse_SERVING)
	err := group.Wait()
	f.health.Shutdown()
	close(f.ended)
	return err
}

func (f *Fleet) healthy(status healthpb.HealthCheckResponse_ServingStatus) {
	for _, name := range []string{"", pb.WitnessService_ServiceDesc.ServiceName} {
		f.health.SetServingStatus(name, status)
	}
}

// ready reports whether the fleet is ready to serve requests.
func (f *Fleet) ready() bool {
	select {
	case <-f.ended:
		return false
	default:
		return true
	}
}

// Handlers returns the HTTP handlers, as those of an Aggregator.
func (f *Fleet) Handlers(gatherer prometheus.Gatherer) (rest, probes http.Handler, err error) {
	return api.Handlers(f.service, gatherer, f.guard, f.ready)
}

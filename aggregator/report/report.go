// Package report serves the ReportService, to which agents report. It checks the messages of each
// agent's stream, keeps a snapshot until it is complete, and applies changes to the facts. It knows
// the facts, but not owners.
package report

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Config is the configuration of a Service. All fields are required.
type Config struct {
	Facts *facts.Facts
	Log   *slog.Logger
	// Judge waits until every address affected by a change is judged.
	Judge func(b *facts.Batch)
	// Applied is called when the snapshot of a node has been applied, and Untidy when it has been judged, too:
	// it leaves unused memory behind.
	Applied func(n *facts.Node)
	Untidy  func()
	// Shared reports whether a node shares its name with another one. It is called while the facts
	// are held for writing.
	Shared func(n *facts.Node) bool
	// Metrics is the registry for the counters of reports.
	Metrics prometheus.Registerer
	// Memory is the memory limit of the process in bytes; 0 for no limit.
	Memory int64
	// Stopped is closed when streams must end.
	Stopped <-chan struct{}
}

// Service is the ReportService. Use New.
type Service struct {
	pb.UnimplementedReportServiceServer
	Config
	// arrivals limits the memory of messages that are being read.
	arrivals *arrivals
	// repeated limits the log lines with the same complaint about a host, and hosts those about a host.
	repeated, hosts *access.LogQuota
	counters        counters
	// snapshots limits the number of snapshots that are applied at a time, so that changes do not
	// wait for all of them.
	snapshots chan struct{}
	// sessions is the number of open report streams.
	sessions atomic.Int64
	// instance identifies this process.
	instance string
	// asking has the questions about addresses that are being answered.
	asking singleflight.Group
}

// New returns a service.
func New(cfg Config) (*Service, error) {
	s := &Service{
		Config: cfg, arrivals: newArrivals(cfg.Memory), snapshots: make(chan struct{}, runtime.GOMAXPROCS(0)), instance: rand.Text(),
		repeated: access.NewLogQuota(rate.Every(time.Minute), 1), hosts: access.NewLogQuota(rate.Every(time.Minute/complaintsOfHost), complaintsOfHost),
		counters: counters{
			received: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "ipwitness_aggregator_records_total",
				Help: "Records received from agents: additions, changes and ends.",
			}, []string{"record"}),
			corrected: prometheus.NewCounter(prometheus.CounterOpts{
				Name: "ipwitness_aggregator_corrected_texts_total",
				Help: "Malformed strings in reports of agents. Characters that are not allowed were replaced, or the string was dropped.",
			}),
		},
	}
	for _, record := range facts.RecordKinds {
		s.counters.received.WithLabelValues(record)
	}
	for _, c := range []prometheus.Collector{s.counters.received, s.counters.corrected} {
		if err := cfg.Metrics.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of reports: %w", err)
		}
	}
	return s, nil
}

// complaintsOfHost is the number of different complaints about one host that are logged at once and
// in each minute, because their text may contain strings that the peer chose.
const complaintsOfHost = 10

// shouldLog reports whether a complaint about a peer must be logged, so that a refused agent that
// reconnects every few seconds does not fill the log.
func (s *Service) shouldLog(peer, reason string, now verdict.Stamp) bool {
	host, _, err := net.SplitHostPort(peer)
	if err != nil {
		host = peer
	}
	return s.repeated.Allows(now.Time(), host+" "+reason) && s.hosts.Allows(now.Time(), host)
}

// Codec returns the codec with which a gRPC server must decode messages of agents. It limits their
// size in memory.
func (s *Service) Codec() encoding.CodecV2 { return bounded{encoding.GetCodecV2("proto"), s.arrivals} }

// errStopping ends the streams of agents when the aggregator stops.
var errStopping = status.Error(codes.Unavailable, "the aggregator is stopping")

// refillEvery is the interval at which incomplete nodes are asked for a snapshot.
const refillEvery = 5 * time.Second

// Run asks incomplete nodes for a snapshot when there is enough memory, until ctx is done.
func (s *Service) Run(ctx context.Context) {
	ticker := time.NewTicker(refillEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.Facts.Refill()
		}
	}
}

// snapshot replaces all records of a node at once by those in the kept messages and in the last one.
func (s *Service) snapshot(r *Session, last *pb.ReportRequest) error {
	select {
	case s.snapshots <- struct{}{}:
		defer func() { <-s.snapshots }()
	case <-s.Facts.Stopped:
		return errStopping
	}
	n := r.node
	in := &facts.Snapshot{
		Messages: r.pending.all(last), Excess: r.excess, LeftOut: r.pending.leftOut, Corrections: r.corrected, Checked: r.checked,
	}
	batches, err := s.Facts.Snapshot(r, n, in, func() { s.releasePending(r) })
	s.Applied(n)
	for _, b := range batches {
		s.Judge(b)
	}
	if err != nil {
		s.forgetPending(r)
		return err
	}
	s.Facts.Judged(r, n)
	s.logCorrected(n, r.corrected)
	s.Untidy()
	s.Facts.RLock()
	defer s.Facts.RUnlock()
	if n.Peer != r {
		return facts.ErrTakenOver
	}
	return nil
}

func (s *Service) logCorrected(n *facts.Node, some corrections) {
	if len(some) == 0 {
		return
	}
	for _, times := range some {
		s.counters.corrected.Add(float64(times))
	}
	if s.shouldLog(n.Name, "corrected", s.Facts.Clock()) {
		s.Log.Warn("an agent reported malformed strings", "node", n.Name, "fields", explain.Fields(some))
	}
}

// Session returns a session for a caller that has not sent anything yet. Report runs a session over
// a stream.
func (s *Service) Session(caller *access.Caller) *Session {
	return &Session{
		service: s, caller: caller, ended: make(chan struct{}),
		outbox: outbox{contests: make(map[netip.Addr]bool), reread: make(map[netip.Addr]struct{}), departed: make(map[departure]struct{}), checks: make(map[uint64][]index.Address), askers: make(map[uint64]asker)},
	}
}

// counters count the records that agents send.
type counters struct {
	received  *prometheus.CounterVec
	corrected prometheus.Counter
}

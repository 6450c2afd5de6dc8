// Package fleet answers for several clusters, from their streams in one hub (aggregator/stream). It keeps
// a journal of each cluster, and answers from the journals only: what a cluster is now is what its journal
// has at its end. It judges nothing within a cluster.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
)

const (
	// lookEvery is how often the hub is asked which clusters there are.
	lookEvery = 10 * time.Second
	// listedWithin is the age of the last answer above which the clusters may be incomplete.
	listedWithin = time.Minute
	// heardWithin is the age of the last message of a cluster above which it is disconnected. A cluster
	// publishes at least every 10 s.
	heardWithin = 30 * time.Second
	// againAfter is the pause after a stream could not be read.
	againAfter = time.Second
	// cached is the size of the cache of each journal in bytes.
	cached = 1 << 20
)

// Config is the configuration of a Fleet.
type Config struct {
	// NATS is the hub.
	NATS stream.Settings
	// DataDir is the data directory. The journals are in it.
	DataDir string
	// Networks are the networks that clusters share.
	Networks []Network
	// Retention is how long each journal keeps records. Size is the number of bytes that each may take.
	Retention time.Duration
	Size      int64
	// Instance identifies this process.
	Instance int64
	Log      *slog.Logger
	Clock    func() time.Time
}

// A Fleet follows the clusters. Use New.
type Fleet struct {
	Config
	link *stream.Link
	lock *os.File // of the data directory
	// between finds conflicts between clusters; nil if they share no network.
	between *between

	mu       sync.RWMutex
	clusters map[string]*cluster
	// changed is closed when a cluster is added.
	changed chan struct{}
	// listed is when the hub last said which clusters there are; zero for never. failing is why it does
	// not; nil if it does.
	listed  time.Time
	failing error
}

// New returns a fleet that does nothing before Run, but locks the data directory.
func New(cfg Config) (*Fleet, error) {
	if !cfg.NATS.Used() {
		return nil, errors.New("--fleet needs --nats")
	}
	if err := cfg.NATS.Check(); err != nil {
		return nil, err
	}
	if err := journal.Writable(cfg.DataDir); err != nil {
		return nil, fmt.Errorf("a fleet needs a data directory: %w: %s", err, journal.Remedy(cfg.DataDir, err))
	}
	secure.WarnExposed(cfg.Log, cfg.NATS.Secrets()...)
	lock, err := live.LockDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	f := &Fleet{Config: cfg, lock: lock, clusters: make(map[string]*cluster), changed: make(chan struct{})}
	if len(cfg.Networks) > 0 {
		f.between = &between{
			fleet: f, networks: cfg.Networks, log: f.Log, clock: f.Clock,
			where: make(map[netip.Addr][]string), dirty: make(map[netip.Addr]bool), contests: make(map[netip.Addr]*contest),
		}
		f.between.Journal = f.newJournal("between", f.Log, nil)
	}
	dirs, err := os.ReadDir(filepath.Join(f.DataDir, "clusters"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("read the journals of the clusters: %w", err), lock.Close())
	}
	for _, d := range dirs {
		if name, ok := stream.ClusterOf(d.Name()); ok && d.IsDir() {
			f.clusters[name] = f.newCluster(name)
		}
	}
	return f, nil
}

func (f *Fleet) newJournal(dir string, log *slog.Logger, reached func() time.Time) *journal.Journal {
	return journal.New(journal.Config{
		Dir: filepath.Join(f.DataDir, dir), Retention: f.Retention, Size: f.Size, Instance: f.Instance,
		Clock: f.Clock, Log: log, Reached: reached, Cache: cached,
	})
}

// Run follows the clusters until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	defer func() { _ = f.lock.Close() }() // which nothing was written to
	link, err := stream.Connect(f.NATS, "ipwitness fleet", f.Log, f.Clock)
	if err != nil {
		return err
	}
	defer link.Close()
	f.mu.Lock()
	f.link = link
	known := f.inOrder()
	f.mu.Unlock()
	var group sync.WaitGroup
	defer group.Wait()
	start := func(c *cluster) { group.Go(func() { c.run(ctx, link) }) }
	for _, c := range known {
		start(c)
	}
	if f.between != nil {
		group.Go(func() { f.between.run(ctx) })
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		names, err := link.Clusters(ctx)
		for _, c := range f.add(names, err) {
			f.Log.Info("following a cluster", "cluster", c.Name)
			start(c)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
	}
}

// add notes which clusters the hub has, and returns those that were not known.
func (f *Fleet) add(names []string, err error) (added []*cluster) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing = err; err != nil {
		return nil
	}
	f.listed = f.Clock()
	for _, name := range names {
		if f.clusters[name] == nil {
			f.clusters[name] = f.newCluster(name)
			added = append(added, f.clusters[name])
		}
	}
	if len(added) > 0 {
		close(f.changed)
		f.changed = make(chan struct{})
	}
	return added
}

// inOrder returns the clusters by name. The caller holds the lock.
func (f *Fleet) inOrder() []*cluster {
	return slices.SortedFunc(maps.Values(f.clusters), func(a, b *cluster) int { return strings.Compare(a.Name, b.Name) })
}

// named returns the clusters with some names, or all if there are none, by name. changed is closed when a
// cluster is added.
func (f *Fleet) named(names []string) (all []*cluster, changed <-chan struct{}, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	all = f.inOrder()
	for _, name := range names {
		if f.clusters[name] != nil {
			continue
		}
		const most = 20
		var known []string
		for _, c := range all[:min(len(all), most)] {
			known = append(known, c.Name)
		}
		switch {
		case len(known) == 0:
			return nil, nil, status.Errorf(codes.InvalidArgument, "the cluster %q is not known, nor is any other so far", name)
		case len(all) > most:
			known = append(known, "…")
		}
		return nil, nil, status.Errorf(codes.InvalidArgument, "the cluster %q is not known: known are %s", name, strings.Join(known, ", "))
	}
	if len(names) > 0 {
		all = slices.DeleteFunc(all, func(c *cluster) bool { return !slices.Contains(names, c.Name) })
	}
	return all, f.changed, nil
}

// Problems describes what is wrong with the connection to the hub.
func (f *Fleet) Problems() []string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var problems []string
	if f.link != nil {
		if since, err := f.link.Down(); err != nil {
			problems = append(problems, fmt.Sprintf("the hub at %s cannot be reached since %s, so nothing new is known of any cluster: %s",
				f.NATS.Hosts(), since.UTC().Format(time.RFC3339), err))
		}
	}
	if f.failing != nil && !errors.Is(f.failing, context.Canceled) {
		problems = append(problems, fmt.Sprintf("the hub at %s does not say which clusters there are: %s", f.NATS.Hosts(), f.failing))
	}
	if len(f.clusters) == 0 && !f.listed.IsZero() {
		problems = append(problems, fmt.Sprintf("the hub at %s has no stream of a cluster: its mirrors must be named ipwitness_CLUSTER", f.NATS.Hosts()))
	}
	return problems
}

// metrics are the metrics of a fleet. Values are read at scrape time.
type metrics struct {
	fleet                         *Fleet
	clusters, lag, messages, gaps *prometheus.Desc
	bytes, conflicts              *prometheus.Desc
}

// Metrics returns the metrics of the fleet.
func (f *Fleet) Metrics() prometheus.Collector {
	of := []string{"cluster"}
	return &metrics{
		fleet: f,
		clusters: prometheus.NewDesc("ipwitness_fleet_clusters",
			"Clusters of the fleet, by state: live, disconnected (no message has arrived for 30 s), or waiting (messages are missing, so the complete state is awaited).", []string{"state"}, nil),
		lag:       prometheus.NewDesc("ipwitness_fleet_lag_seconds", "Age of the last message of a cluster. A cluster publishes at least every 10 s.", of, nil),
		messages:  prometheus.NewDesc("ipwitness_fleet_messages_total", "Messages of a cluster that were received.", of, nil),
		gaps:      prometheus.NewDesc("ipwitness_fleet_gaps_total", "Gaps in the numbers of the messages of a cluster. After a gap, the complete state is awaited.", of, nil),
		bytes:     prometheus.NewDesc("ipwitness_fleet_journal_bytes", "Size of the records of a cluster.", of, nil),
		conflicts: prometheus.NewDesc("ipwitness_fleet_conflicts", "Active conflicts between clusters, in the networks that they share (--network).", []string{"state"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.clusters, m.lag, m.messages, m.gaps, m.bytes, m.conflicts} {
		to <- d
	}
}

func (m *metrics) Collect(to chan<- prometheus.Metric) {
	all, _, _ := m.fleet.named(nil) // no name is given that may not be known
	now := m.fleet.Clock()
	states := map[pb.Cluster_State]int{pb.Cluster_LIVE: 0, pb.Cluster_DISCONNECTED: 0, pb.Cluster_WAITING: 0}
	for _, c := range all {
		states[c.lives(now)]++
		bytes := c.Journal.Stats().Bytes
		c.mu.Lock()
		heard, messages, gaps := c.at.Heard, c.messages, c.gaps
		c.mu.Unlock()
		if !heard.IsZero() {
			to <- prometheus.MustNewConstMetric(m.lag, prometheus.GaugeValue, max(0, now.Sub(heard).Seconds()), c.Name)
		}
		to <- prometheus.MustNewConstMetric(m.messages, prometheus.CounterValue, float64(messages), c.Name)
		to <- prometheus.MustNewConstMetric(m.gaps, prometheus.CounterValue, float64(gaps), c.Name)
		to <- prometheus.MustNewConstMetric(m.bytes, prometheus.GaugeValue, float64(bytes), c.Name)
	}
	if b := m.fleet.between; b != nil {
		states := map[pb.Conflict_State]int{pb.Conflict_SUSPECTED: 0, pb.Conflict_CONFIRMED: 0}
		b.mu.Lock()
		for _, c := range b.contests {
			if c.active() {
				states[c.conflict.GetState()]++
			}
		}
		b.mu.Unlock()
		for state, n := range states {
			to <- prometheus.MustNewConstMetric(m.conflicts, prometheus.GaugeValue, float64(n), strings.ToLower(state.String()))
		}
	}
	for state, n := range states {
		to <- prometheus.MustNewConstMetric(m.clusters, prometheus.GaugeValue, float64(n), strings.ToLower(state.String()))
	}
}

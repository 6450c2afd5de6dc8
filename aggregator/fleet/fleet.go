// Package fleet answers for several clusters, from their streams in one hub (aggregator/stream). It keeps
// a journal of each cluster, and answers from the journals only: what a cluster is now is what its journal
// has at its end. It judges nothing within a cluster.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/stream"
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
	for _, name := range cfg.NATS.Exposed() {
		cfg.Log.Warn("every user of this host can read a secret: run 'chmod o=' on it, or set defaultMode 0440 for a Secret in Kubernetes", "file", name)
	}
	lock, err := live.LockDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	f := &Fleet{Config: cfg, lock: lock, clusters: make(map[string]*cluster), changed: make(chan struct{})}
	if len(cfg.Networks) > 0 {
		f.between = f.newBetween(cfg.Networks)
	}
	dirs, err := os.ReadDir(f.dir())
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

func (f *Fleet) dir() string { return filepath.Join(f.DataDir, "clusters") }

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
			f.Log.Info("following a cluster", "cluster", c.name)
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
	var all []*cluster
	for _, c := range f.clusters {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *cluster) int { return strings.Compare(a.name, b.name) })
	return all
}

// named returns the clusters with some names, or all if there are none, by name. changed is closed when a
// cluster is added.
func (f *Fleet) named(names []string) (all []*cluster, changed <-chan struct{}, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	all = f.inOrder()
	for _, name := range names {
		if f.clusters[name] == nil {
			return nil, nil, unknown(name, all)
		}
	}
	if len(names) > 0 {
		all = slices.DeleteFunc(all, func(c *cluster) bool { return !slices.Contains(names, c.name) })
	}
	return all, f.changed, nil
}

// unknown returns the error for a cluster that is not known.
func unknown(name string, all []*cluster) error {
	const most = 20
	var known []string
	for _, c := range all[:min(len(all), most)] {
		known = append(known, c.name)
	}
	if len(all) > most {
		known = append(known, "…")
	}
	if len(known) == 0 {
		return status.Errorf(codes.InvalidArgument, "the cluster %q is not known, nor is any other so far", name)
	}
	return status.Errorf(codes.InvalidArgument, "the cluster %q is not known: known are %s", name, strings.Join(known, ", "))
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

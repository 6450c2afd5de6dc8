package aggregator

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/gather"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/share"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// sharing is how replicas share the addresses; the zero value if they do not.
type sharing struct {
	on bool
	// replica is the name of this replica.
	replica string
	nats    stream.Settings
}

// sharingOf checks the settings.
func sharingOf(cfg *Config) (s sharing, err error) {
	if !cfg.Share {
		if cfg.Replica != "" {
			return s, errors.New("use replica: it is the name of a replica that shares the addresses with others: set --share, too")
		}
		return s, nil
	}
	s = sharing{true, cfg.Replica, cfg.NATS}
	switch {
	case !cfg.NATS.Used():
		return s, errors.New("use share: replicas find each other on NATS: set --nats")
	case cfg.DataDir == "":
		return s, errors.New("use share: each replica keeps the history of all: set --data-dir")
	}
	if s.replica == "" {
		s.replica, err = os.Hostname()
	}
	return s, err
}

// shareWith makes the room that shares the addresses with other replicas, and the service that answers for all.
func (c *core) shareWith(s sharing, cluster string, instance int64, log *slog.Logger, clock func() time.Time) (err error) {
	all := &gather.Service{Service: c.witness}
	c.share, err = share.New(share.Config{
		Settings: s.nats, Cluster: cluster, Replica: s.replica, Instance: instance, Facts: c.facts, Findings: c.findings, Judge: c.judge,
		Drop: func(lost facts.PartitionSet) {
			c.findings.Drop(lost)
			c.shards.Drop(lost)
		},
		Complete: c.allReport, Journal: c.journal, Heard: c.heardElsewhere, Gained: c.recall.Regain, Untidy: c.tidier.later, Handle: all.Handle, Log: log, Clock: clock,
	})
	all.Share = c.share
	c.answers = all
	return err
}

// allReport reports whether all nodes report that are known.
func (c *core) allReport() bool {
	select {
	case <-c.recall.Done():
	default:
		return false
	}
	c.facts.RLock()
	defer c.facts.RUnlock()
	a := c.coverage.Attend()
	return len(a.Silent)+len(a.Absent) == 0
}

// heardElsewhere announces what another replica has recorded, because the leader among the replicas
// writes the Events of all.
func (c *core) heardElsewhere(e *pb.Event) {
	switch {
	case e.GetConflict() != nil:
		c.kubernetes.Announce(e.GetConflict())
	case e.GetFinding() != nil:
		c.kubernetes.AnnounceFinding(e.GetFinding(), e.GetType() == pb.Watch_REMOVED)
	}
}

// feeds returns where changes are recorded.
func (c *core) feeds() (feed func(pb.Event_Kind) api.Feed, again <-chan struct{}) {
	if c.share == nil {
		return func(kind pb.Event_Kind) api.Feed { return c.journal.Feed(kind) }, c.journal.Replaced()
	}
	set, again := c.share.Recording()
	return func(kind pb.Event_Kind) api.Feed { return c.share.Feed(kind, set) }, again
}

var (
	_ api.Feed = journal.Feed{}
	_ api.Feed = share.Feed{}
)

// runShare shares the addresses until ctx ends.
func (c *core) runShare(ctx context.Context) {
	if c.share != nil {
		c.share.Run(ctx)
	}
}

// runRecall puts back what was known before the start. A replica that shares the addresses learns from the
// others first which nodes there are.
func (c *core) runRecall(ctx context.Context) {
	if c.share != nil {
		select {
		case <-c.share.CaughtUp():
		case <-ctx.Done():
			return
		}
	}
	c.recall.Run(ctx)
}

// served reports whether each partition is served completely by a replica.
func (c *core) served() bool {
	if c.share == nil {
		return true
	}
	state, _ := c.share.State()
	return state.Missing() == 0 && state.Complete == state.Served && state.Served != (facts.PartitionSet{})
}

// leadByShare does what one of several replicas does while this one serves the first partition.
func (c *core) leadByShare(ctx context.Context) error {
	for ctx.Err() == nil {
		state, changed := c.share.State()
		if !state.Complete[0] {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		leading, stop := context.WithCancel(ctx)
		go func() {
			for state.Served[0] && leading.Err() == nil {
				select {
				case <-changed:
					state, changed = c.share.State()
				case <-leading.Done():
				}
			}
			stop()
		}()
		c.lead(leading)
		stop()
	}
	return nil
}

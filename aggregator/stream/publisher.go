package stream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
)

const (
	// mostTransitions and mostBytes limit a message. A server accepts messages of 1 MiB unless it is
	// configured otherwise.
	mostTransitions = 512
	mostBytes       = 256 << 10
	// largest is the size of the largest transition that is published.
	largest = 900 << 10
	// coveredEvery is how often the coverage is published if nothing else is, so that readers know that
	// the cluster is alive. If the coverage changes, it is published after coverageEvery at the latest.
	coveredEvery  = 10 * time.Second
	coverageEvery = time.Second
	// lookAtStream is how often it is looked what the stream has.
	lookAtStream = 10 * time.Second
	// stateEvery is how often the complete state is published at the latest.
	stateEvery = 24 * time.Hour
	// againAfter is the pause after the stream or the journal could not be used.
	againAfter = time.Second
	// complainAfter is how long NATS may fail before that is a problem.
	complainAfter = time.Minute
	// mostContests is the number of times that another aggregator may publish to the same stream, as a new
	// leader does, before that is a problem for contestedFor.
	mostContests = 3
	contestedFor = 5 * time.Minute
	// smallWithin is the time within which a stream loses a state if it is too small for it.
	smallWithin = 5 * time.Minute
)

// Config is the configuration of a Publisher.
type Config struct {
	Settings
	Cluster string
	// Instance identifies this process in the journal.
	Instance int64
	Journal  *journal.Journal
	Coverage func() *pb.Coverage
	Log      *slog.Logger
	Clock    func() time.Time
}

// A Publisher publishes what the journal records. Use New.
type Publisher struct {
	Config
	journal.Delivery
	mu sync.Mutex
	// contests is the number of times that another aggregator published to the same stream, without a
	// pause of contestedFor, and contestedAt is the last of them.
	contests    int
	contestedAt time.Time
	// foreign are the messages that something else has published.
	foreign Foreign
	// small is set if the stream cannot keep the state.
	small bool
	// link is the connection; nil while this replica does not publish.
	link *Link
}

// New returns a publisher that does nothing before Run.
func New(cfg Config) (*Publisher, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg.Retention = cmp.Or(cfg.Retention, DefaultRetention)
	cfg.Size = cmp.Or(cfg.Size, DefaultSize)
	secure.WarnExposed(cfg.Log, cfg.Secrets()...)
	cfg.Log = cfg.Log.With("exporter", "nats", "receiver", cfg.Hosts(), "stream", Name(cfg.Cluster))
	return &Publisher{Config: cfg, Delivery: journal.Delivery{Log: cfg.Log, Clock: cfg.Clock}}, nil
}

// Run publishes until ctx ends. It may be called again after that: each time that this replica becomes
// the leader.
func (p *Publisher) Run(ctx context.Context) {
	select {
	case <-p.Journal.Opened():
	case <-ctx.Done():
		return
	}
	defer p.use(nil)
	link, err := Connect(p.Settings, "ipwitness aggregator "+p.Cluster, p.Delivery.Log, p.Delivery.Clock)
	for err != nil { // a file of the settings has changed
		p.fail(err)
		if journal.Sleep(ctx, againAfter) != nil {
			return
		}
		link, err = Connect(p.Settings, "ipwitness aggregator "+p.Cluster, p.Delivery.Log, p.Delivery.Clock)
	}
	defer link.Close()
	p.use(link)
	for attempts := 1; ctx.Err() == nil; attempts++ {
		began := p.Delivery.Clock()
		f := &following{Publisher: p, replaced: p.Journal.Replaced()}
		err := link.await(ctx)
		if err == nil {
			f.st, err = link.open(ctx, p.Cluster)
		}
		if err == nil {
			f.st.foreign = p.skip
		}
		if err == nil {
			err = f.begin(ctx)
		}
		if err == nil {
			err = f.run(ctx)
		}
		if ctx.Err() != nil || errors.Is(err, journal.ErrReplaced) {
			continue
		}
		p.fail(err)
		if p.Delivery.Clock().Sub(began) > lastPause {
			attempts = 1
		}
		_ = journal.Sleep(ctx, againAfter+pause(attempts))
	}
}

func (p *Publisher) use(link *Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link, p.small = link, false
	p.Reset()
}

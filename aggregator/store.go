package aggregator

import (
	"context"
	"log/slog"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/aggregator/shard"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// store is the live state: what is known, what was judged of it, and what is wrong and no conflict.
// Each of its parts has a lock of its own. The facts are taken first, for reading while something
// is told of them; no other lock is held while another one is taken.
type store struct {
	storeConfig
	base     time.Time
	told     told
	facts    *facts.Facts
	shards   *shard.Shards
	reports  *report.Service
	builders sync.Pool

	acknowledgements acknowledgements
	findings         findings
	pools            poolAudits
	overlaps         overlaps
	intended         intents
	clones           clones
	names            namesakes
	seen             seen
	work             work
}

// storeConfig is what a store needs.
type storeConfig struct {
	policy  verdict.Policy
	log     *slog.Logger
	metrics *metrics
	// registry is where the metrics of its parts are registered.
	registry prometheus.Registerer
	// kube is the Kubernetes API; nil where there is none to ask.
	kube *kube.Cluster
	// memory is the number of bytes that the process may use; 0 means no limit.
	memory int64
	// alone is set if no agent is expected but the one in this process.
	alone bool
	// archive is what outlives a restart.
	archive archive
}

// told are the events that subscribers hear of.
type told struct{ owners, conflicts *events }

// work is what is under way.
type work struct {
	// untidy holds one token after a snapshot.
	untidy chan struct{}
	// stopped is closed when nothing is judged any more, ended when all streams are to end.
	stopped, ended chan struct{}
}

func newStore(cfg storeConfig) (*store, error) {
	base := time.Now()
	workers := runtime.GOMAXPROCS(0)
	s := &store{
		storeConfig: cfg, base: base,
		told: told{newEvents(base.UnixNano()), newEvents(base.UnixNano())},
		work: work{make(chan struct{}, 1), make(chan struct{}), make(chan struct{})},
	}
	if s.archive.dir == nil {
		s.archive = newArchive(&dataDir{}, nil)
	}
	s.acknowledgements = newAcknowledgements(s.archive.recalled)
	s.findings = newFindings(base.UnixNano(), s.clock)
	s.pools, s.overlaps, s.intended, s.clones, s.names = newPoolAudits(), newOverlaps(), newIntents(), newClones(), newNamesakes()
	s.facts = facts.New(facts.Config{
		Policy: &s.policy, Log: cfg.log, Clock: s.clock, Listener: heard{s}, Kubernetes: cfg.kube, Followed: cfg.kube != nil,
		Queues: workers, Memory: cfg.memory, Stopped: s.work.stopped,
	})
	s.shards = shard.New(shard.Config{Policy: &s.policy, Log: cfg.log, Clock: s.clock, Facts: s.facts, Listener: judged{s}, Workers: workers})
	s.builders.New = func() any { return s.facts.Builder() }
	s.metrics.store = s
	var err error
	s.reports, err = report.New(report.Config{
		Facts: s.facts, Log: cfg.log, Listener: taken{s}, Metrics: cfg.registry, Memory: cfg.memory, Stopped: s.work.ended,
	})
	return s, err
}

// clock is the wall clock of the start, carried on by the monotonic clock: it
// never jumps, whatever is done to the wall clock.
func (s *store) clock() verdict.Stamp {
	return verdict.At(s.base).Add(time.Since(s.base))
}

// run does what is due until ctx ends.
func (s *store) run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() {
		s.shards.Run(ctx)
		close(s.work.stopped)
	})
	for _, one := range []struct {
		wake <-chan struct{}
		do   func() verdict.Stamp
	}{
		{s.facts.Woken(), s.ring},
		{s.pools.wake, s.ringPools},
		{s.clones.wake, s.endClones},
		{s.overlaps.wake, s.compareRanges},
		{s.intended.wake, s.intendAll},
	} {
		group.Go(func() { s.repeat(ctx, one.wake, one.do) })
	}
	group.Wait()
}

// repeat does something when it is woken, and when it says that it is due again, until ctx ends.
func (s *store) repeat(ctx context.Context, wake <-chan struct{}, do func() verdict.Stamp) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-wake:
		}
		wait := time.Hour
		if next := do(); next != 0 {
			wait = max(0, next.Sub(s.clock()))
		}
		timer.Reset(wait)
	}
}

// ring does what is due about nodes, links and conflicts that are over.
func (s *store) ring() verdict.Stamp {
	next := s.facts.Ring()
	if at := s.shards.Forget(); at != 0 && (next == 0 || at < next) {
		next = at
	}
	return next
}

// judgedBy waits until all that a change touched is judged, and what follows of pools and
// of what namespaces lack is told.
func (s *store) judgedBy(b *facts.Batch) {
	select {
	case <-b.Done():
		s.endClones()
		s.lookAtPools()
		s.intendAll()
	case <-s.work.stopped:
	}
}

// builder lends a maker of cases, which is to be given back.
func (s *store) builder() *facts.Builder { return s.builders.Get().(*facts.Builder) }

func (s *store) giveBack(b *facts.Builder) { s.builders.Put(b) }

// ownersOf returns the owners of an address as they were last told. The facts are held, and lent is
// all that is given.
func (s *store) ownersOf(b *facts.Builder, a index.Address) []verdict.Owner {
	if owners, kept := s.shards.Conflicts.Owners(a); kept {
		return owners
	}
	if owners, derived := s.facts.Before(a); derived {
		return owners
	}
	return s.policy.Judge(b.Case(a, false)).Owners
}

// tidyAfter is how long no snapshot came when what they left behind is given back.
const tidyAfter = 5 * time.Second

// untidy has the memory given back that a large change has left behind.
func (s *store) untidy() {
	select {
	case s.work.untidy <- struct{}{}:
	default:
	}
}

// tidy gives the memory back that snapshots took while they were under way, until
// ctx ends: the runtime would keep it for minutes, and a restart of many agents
// leaves more of it than what is known of them.
func (s *store) tidy(ctx context.Context) {
	quiet := time.NewTimer(tidyAfter)
	quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.work.untidy:
			quiet.Reset(tidyAfter)
		case <-quiet.C:
			// Each collection halves stacks that are not used, and pools give up what they hold
			// with the second one.
			runtime.GC()
			runtime.GC()
			debug.FreeOSMemory()
		}
	}
}

// taken hears how far a report is brought into the facts.
type taken struct{ *store }

// Applied has it looked at what waited for the snapshot of a node.
func (s taken) Applied(n *facts.Node) { s.intended.resume(n) }

// Judge waits until all that a change touched is judged.
func (s taken) Judge(b *facts.Batch) { s.judgedBy(b) }

// Untidy has memory given back.
func (s taken) Untidy() { s.untidy() }

// Shared reports whether a node shares its name.
func (s taken) Shared(n *facts.Node) bool { return s.names.found[n] }

// heard hears what changed of the facts, beside addresses.
type heard struct{ *store }

// NodeChanged makes the state of a node known in all watches.
func (s heard) NodeChanged(n *facts.Node) {
	s.coverageChanged()
	e := event{typ: nodeChanged, node: s.nodeProto(n)}
	s.told.owners.Offer(func() event { return e })
	s.told.conflicts.Publish(e)
}

// NamesChanged looks whether a node has its name for itself.
func (s heard) NamesChanged(n *facts.Node) {
	s.coverageChanged()
	s.checkNames(n)
}

// Answered looks whether a node that reports has its name for itself, if that is not known.
func (s heard) Answered(n *facts.Node) { s.answered(n) }

// RangesChanged has ranges compared again.
func (s heard) RangesChanged(n *facts.Node) { s.overlapped(n) }

// MayLack has it looked at whether a namespace lacks an address.
func (s heard) MayLack(n *facts.Node, record uint32) { s.lack(n, record) }

// PoolChanged has the pool's own findings made again.
func (s heard) PoolChanged(p *facts.Pool) { s.pools.changed(p, s.clock()) }

// PoolEnded drops the pool's own findings.
func (s heard) PoolEnded(p *facts.Pool) {
	s.pools.ended(p)
	s.dropPoolFindings(p)
}

// AtRisk returns the addresses in use that a pool takes for free.
func (s heard) AtRisk(p *facts.Pool) []netip.Addr { return s.atRisk(p) }

// CoverageChanged discards the cached coverage.
func (s heard) CoverageChanged() { s.coverageChanged() }

// OwnersWatched reports whether owners are watched.
func (s heard) OwnersWatched() bool { return s.told.owners.Wanted() }

// Contested yields the addresses that nodes look at more closely.
func (s heard) Contested(yield func(index.Address) bool) { s.shards.Conflicts.Contested(yield) }

// Dropped counts records that do not fit.
func (s heard) Dropped(record string, n int) {
	s.metrics.records.WithLabelValues(record).Add(float64(n))
}

// Refused counts a record that there is no memory for.
func (s heard) Refused(record string) { s.metrics.refused.WithLabelValues(record).Inc() }

// judged hears what was judged.
type judged struct{ *store }

// OwnersWatched reports whether owners are watched.
func (s judged) OwnersWatched() bool { return s.told.owners.Wanted() }

var watchTypes = [...]watchType{shard.Added: added, shard.Updated: updated, shard.Removed: removed}

// OwnerChanged makes an owner known.
func (s judged) OwnerChanged(what shard.OwnerChange, a index.Address, o, before *verdict.Owner, all []verdict.Owner) {
	s.told.owners.Offer(func() event {
		addr := a.Addr()
		out := event{typ: watchTypes[what], addr: addr, holder: holderOf(o), owner: s.ownerProto(addr, o, all)}
		if before != nil {
			out.before = holderOf(before)
		}
		return out
	})
}

// ConflictChanged makes a conflict known.
func (s judged) ConflictChanged(c, before *verdict.Conflict, opened bool) {
	typ := updated
	if opened {
		typ = added
	}
	s.told.conflicts.Publish(event{typ: typ, addr: c.Address, conflict: s.conflictProto(c), contest: contestOf(c), contested: contestOf(before)})
}

// Detected observes how long it took to suspect a conflict.
func (s judged) Detected(took time.Duration) { s.metrics.detection.Observe(took.Seconds()) }

// Acknowledged looks at the acknowledgement of a conflict.
func (s judged) Acknowledged(c *verdict.Conflict) (until verdict.Stamp, lapsed bool) {
	return s.lapse(c)
}

// Audited makes findings about an address known.
func (s judged) Audited(_ index.Address, owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	s.audited(owners, found, before, contested)
}

// Cloned makes cloned hardware addresses known.
func (s judged) Cloned(a index.Address, clones []verdict.Spoof) { s.noteClones(a, clones) }

// Spoke has it looked at whether the address was meant for the owner.
func (s judged) Spoke(o *verdict.Owner) {
	if n := s.facts.Node(o.Namespace.Node); n != nil {
		s.lack(n, o.Namespace.Record)
	}
}

// Rested has findings made that waited until all is judged.
func (s judged) Rested() {
	s.clones.rested()
	s.pools.rested()
}

// Panicked counts an address that could not be judged.
func (s judged) Panicked() { s.metrics.failed.Inc() }

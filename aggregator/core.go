package aggregator

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/export"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

type coreConfig struct {
	Config
	policy verdict.Policy
	log    *slog.Logger
	// registry is where metrics are registered.
	registry prometheus.Registerer
	// kubernetes is the Kubernetes API; nil if it is not used.
	kubernetes *kube.Cluster
	// replay has the clock of a replay; nil if the time is the real one.
	replay *Replay
}

// newCore makes the rooms. It locks the data directory, and does nothing else before run.
func newCore(cfg coreConfig) (*core, error) {
	base := time.Now()
	// The wall clock at the start plus the monotonic time since then: it never jumps, even if the
	// wall clock is set.
	clock := func() verdict.Stamp { return verdict.At(base).Add(time.Since(base)) }
	workers := runtime.GOMAXPROCS(0)
	if cfg.replay != nil {
		base, clock, workers = cfg.replay.now().Time(), cfg.replay.now, 1
	}
	c := &core{log: cfg.log, replay: cfg.replay, kubernetes: cfg.kubernetes, tidier: newTidier(cfg.CollectEagerly), stopped: make(chan struct{}), ended: make(chan struct{})}
	told := &listener{core: c}
	conflicts := judge.NewConflicts()
	c.facts = facts.New(facts.Config{
		Policy: &cfg.policy, Log: cfg.log, Clock: clock, Changed: c.factsChanged, Disputed: conflicts.Disputed,
		OwnersWatched: func() bool { return c.events.Owners.Wanted() },
		Kubernetes:    cfg.kubernetes, Followed: cfg.kubernetes != nil, Queues: workers, Memory: cfg.Memory, Stopped: c.stopped,
	})
	c.shards = judge.New(judge.Config{Policy: &cfg.policy, Log: cfg.log, Clock: clock, Facts: c.facts, Conflicts: conflicts, Listener: told, Workers: workers})
	c.findings = judge.NewFindings(judge.FindingsConfig{
		Facts: c.facts, Kubernetes: cfg.kubernetes, Waiting: c.shards.Waiting, Listener: told,
		Awaits: func(f *verdict.Finding) bool { return c.coverage.Awaits(f) },
	})
	recorded := cfg.DataDir != "" || cfg.Export.Any() || cfg.NATS.Used()
	c.coverage = live.NewCoverage(live.CoverageConfig{
		Facts: c.facts, Shards: c.shards, Findings: c.findings, Kubernetes: cfg.kubernetes, Alone: cfg.Alone, Recorded: recorded,
	})
	dir, err := cfg.DataDir, error(nil)
	if cfg.DataDir == DataDirAuto {
		if dir, err = DefaultDataDir, journal.Writable(DefaultDataDir); notForUs(err) {
			dir, c.unsaved = "", explain.Text("nothing-saved", "error", err, "remedy", journal.Remedy(DefaultDataDir, err))
			cfg.log.Warn("history and acknowledgements are in memory only",
				"directory", DefaultDataDir, "error", err, "remedy", journal.Remedy(DefaultDataDir, err))
		}
	}
	if c.acknowledgements, err = live.NewAcknowledgements(live.AcknowledgementsConfig{
		Facts: c.facts, Conflicts: c.shards.Conflicts, Log: cfg.log, Judge: c.judge, DataDir: dir, Shared: cfg.kubernetes,
	}); err != nil {
		return nil, err
	}
	c.kept = dir
	if recorded || cfg.replay != nil {
		c.journal = journal.New(journal.Config{
			Dir: dir, Retention: cfg.Retention, Size: cfg.JournalSize, Instance: base.UnixNano(), Log: cfg.log,
			Clock: func() time.Time { return clock().Time() }, AtOnce: cfg.replay != nil,
		})
	}
	if c.exports, err = export.New(export.Config{
		Settings: cfg.Export, Journal: c.journal, Replicas: cfg.kubernetes.Election() != nil, Log: cfg.log, Clock: func() time.Time { return clock().Time() },
		Cluster: cfg.policy.Cluster, Version: cfg.Version,
	}); err != nil {
		return nil, errors.Join(err, c.acknowledgements.Close())
	}
	if cfg.NATS.Used() {
		c.stream, err = stream.New(stream.Config{
			Settings: cfg.NATS, Cluster: cfg.policy.Cluster, Instance: base.UnixNano(), Journal: c.journal, Coverage: c.coverage.Current,
			Log: cfg.log, Clock: func() time.Time { return clock().Time() },
		})
	} else {
		err = cfg.NATS.Check()
	}
	if err != nil {
		return nil, errors.Join(err, c.acknowledgements.Close())
	}
	converter := &live.Converter{
		Facts: c.facts, Kubernetes: cfg.kubernetes, Findings: c.findings, Acknowledgements: c.acknowledgements, Recorded: live.NewRecorded(),
	}
	if recorded {
		c.recall = live.NewRecall(live.RecallConfig{
			Facts: c.facts, Shards: c.shards, Findings: c.findings, Journal: c.journal, Coverage: c.coverage, Recorded: converter.Recorded,
			Log: cfg.log, Judge: c.judge,
		})
	}
	c.events = live.NewEvents(converter)
	if c.reports, err = report.New(report.Config{
		Facts: c.facts, Log: cfg.log, Metrics: cfg.registry, Memory: cfg.Memory, Stopped: c.ended,
		Judge: c.judge, Applied: c.findings.Resume, Untidy: c.tidier.later, Shared: c.findings.Shared,
	}); err != nil {
		return nil, errors.Join(err, c.acknowledgements.Close())
	}
	c.witness = &api.Service{
		Facts: c.facts, Shards: c.shards, Kubernetes: cfg.kubernetes, Findings: c.findings, Acknowledgements: c.acknowledgements,
		Coverage: c.coverage, Convert: converter, Events: c.events, Journal: c.journal, Reports: c.reports, Instance: base.UnixNano(), Problems: c.problems, Version: cfg.Version, Stopped: c.ended,
	}
	c.notifier = &live.Notifier{
		Log: cfg.log, Clock: clock, Events: c.events, Kubernetes: cfg.kubernetes, NodeTimeout: cfg.policy.NodeTimeout,
	}
	if cfg.NodeCondition {
		c.conditions = &live.Conditions{Facts: c.facts, Shards: c.shards, Acknowledgements: c.acknowledgements, Coverage: c.coverage, Kubernetes: cfg.kubernetes}
	}
	if c.metrics, err = live.NewMetrics(live.MetricsConfig{
		Facts: c.facts, Shards: c.shards, Findings: c.findings, Incidents: c.events.Incidents, Acknowledgements: c.acknowledgements, Coverage: c.coverage,
		Journal: c.journal, Exports: c.exports, Stream: c.stream, Watches: c.watches, Problems: c.problems,
	}, cfg.registry); err != nil {
		return nil, errors.Join(err, c.acknowledgements.Close())
	}
	told.Findings, told.Events, told.Metrics = c.findings, c.events, c.metrics
	if cfg.kubernetes != nil {
		c.facts.RecordsChanged(kube.Unread())
	}
	return c, nil
}

// notForUs reports whether an error of the default data directory shows that this process may not use it, and not that it
// cannot at the moment.
func notForUs(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOTDIR)
}

// lead does what only one of several replicas does, until ctx ends. Kubernetes Events are not among it,
// because the mirror of the Kubernetes API writes them.
func (c *core) lead(ctx context.Context) {
	var group sync.WaitGroup
	if c.journal != nil {
		group.Go(func() { c.exports.Lead(ctx) })
	}
	if c.conditions != nil {
		group.Go(func() { c.conditions.Run(ctx) })
	}
	if c.journal != nil && c.stream != nil {
		group.Go(func() { c.stream.Run(ctx) })
	}
	group.Wait()
}

// run judges addresses and runs the work that is due, until ctx ends.
func (c *core) run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() {
		c.shards.Run(ctx)
		close(c.stopped)
	})
	group.Go(func() { judge.Repeat(ctx, c.facts.Clock, c.facts.Woken(), c.ring) })
	group.Go(func() { c.findings.Run(ctx) })
	group.Wait()
}

// core joins the rooms. Each has a lock of its own. The facts are locked first, for reading, while
// something about them is published; otherwise, no lock is taken while another one is held.
type core struct {
	log              *slog.Logger
	kubernetes       *kube.Cluster
	replay           *Replay // nil unless the time is that of a replay
	facts            *facts.Facts
	shards           *judge.Shards
	findings         *judge.Findings
	acknowledgements *live.Acknowledgements
	coverage         *live.Coverage
	events           *live.Events
	exports          *export.Exporters
	stream           *stream.Publisher // nil if NATS is not used
	journal          *journal.Journal  // nil if nothing is kept
	recall           *live.Recall      // nil if nothing is kept
	reports          *report.Service
	witness          *api.Service
	metrics          *live.Metrics
	notifier         *live.Notifier
	conditions       *live.Conditions // nil if no conditions of Nodes are written
	tidier           *tidier
	// unsaved describes why the default data directory cannot be used; empty if it can, or is not used.
	unsaved string
	// kept is the data directory; empty if everything is in memory only.
	kept string
	// stopped is closed when nothing is judged any more, ended when all streams are to end.
	stopped, ended chan struct{}
}

// ring runs the work that is due on nodes, links and resolved conflicts, and returns when more is due; 0
// for never.
func (c *core) ring() verdict.Stamp {
	next := c.facts.Ring()
	if at := c.shards.Forget(); at != 0 && (next == 0 || at < next) {
		next = at
	}
	return next
}

// judge waits until everything that a change touched is judged, and until the resulting findings
// about pools and missing addresses are published.
func (c *core) judge(b *facts.Batch) {
	if c.replay != nil {
		c.settle()
	}
	select {
	case <-b.Done():
		c.findings.Judged()
	case <-c.stopped:
	}
}

// problems describes what is wrong with the aggregator itself.
func (c *core) problems() []string {
	problems := c.acknowledgements.Problems()
	if c.unsaved != "" {
		problems = append(problems, c.unsaved)
	}
	if c.journal != nil {
		for _, p := range c.journal.Problems() {
			problems = append(problems, explain.Text("journal/"+string(p.Kind), "path", p.Path, "error", p.Err,
				"remedy", journal.Remedy(p.Path, p.Err), "at", p.At.UTC().Format(time.RFC3339)))
		}
	}
	problems = append(problems, c.exports.Problems()...)
	problems = append(problems, c.stream.Problems()...)
	if n := c.shards.Unjudged(); n > 0 {
		problems = append(problems, explain.Text("unjudged", "n", n))
	}
	return problems
}

// watches returns the number of watches, by type.
func (c *core) watches() map[string]int {
	return map[string]int{
		"owners": c.events.Owners.Subscribers(), "conflicts": c.events.Conflicts.Subscribers(), "findings": c.events.Findings.Subscribers(),
		"events": int(c.witness.EventWatches.Load()), "nodes": int(c.witness.NodeWatches.Load()), "incidents": int(c.witness.IncidentWatches.Load()),
	}
}

// manyPods is a number of changed pods that only a listing reaches. A listing leaves much more unused
// memory behind than it takes.
const manyPods = 1000

// factsChanged passes changes of the facts to the rooms that they concern. The facts are held.
func (c *core) factsChanged(what *facts.Changes) {
	if what.Coverage || len(what.Nodes)+len(what.Names) > 0 {
		c.coverage.Changed()
	}
	for _, n := range what.Nodes {
		c.events.NodeChanged(n)
	}
	c.findings.Changed(what)
	c.metrics.Changed(what)
}

// kubernetesChanged passes changes of the Kubernetes API to the rooms that they concern.
func (c *core) kubernetesChanged(what kube.Changes) {
	if what.State || len(what.Nodes) > 0 {
		c.coverage.Changed()
	}
	if len(what.Pods) > 0 {
		keys := make([]string, 0, 2*len(what.Pods))
		for _, p := range what.Pods {
			keys = append(keys, p.UID, p.Namespace+"/"+p.Name)
		}
		c.judge(c.facts.PodsChanged(keys))
	}
	if what.State || len(what.Nodes) > 0 {
		c.judge(c.facts.PodsOnChanged(func(node string) bool {
			_, moved := slices.BinarySearch(what.Nodes, node)
			return what.State || moved
		}))
	}
	if len(what.Networks) > 0 {
		var ranges []ipam.Range
		for _, p := range what.Networks {
			ranges = append(ranges, ipam.RangeOf(p))
		}
		c.judgeInside(ranges)
	}
	if len(what.Pods) >= manyPods {
		c.tidier.later()
	}
	if len(what.IPAM) > 0 {
		b, reach := c.facts.IPAMChanged(what.IPAM)
		c.judge(b)
		c.judgeInside(reach)
	}
	if len(what.Addresses) > 0 {
		addrs := make([]index.Address, len(what.Addresses))
		for i, a := range what.Addresses {
			addrs[i] = index.AddressOf(a)
		}
		c.judge(c.facts.Touch(addrs))
	}
	if len(what.Networks) > 0 || len(what.Nodes) > 0 {
		c.findings.RangesChanged(nil)
	}
	if what.Records != nil { // everything that they have changed is judged
		c.facts.RecordsChanged(what.Records)
	}
	if what.Records != nil || len(what.Related) > 0 {
		// Publish again the conflicts that have an owner on one of the nodes and, once everything is read, those whose
		// end waited for that.
		var addrs []index.Address
		c.facts.RLock()
		read := what.Records != nil && len(c.facts.Unread()) == 0
		for _, one := range c.shards.Conflicts.All() {
			if one.Active() && (read || slices.ContainsFunc(one.Owners, func(o verdict.Owner) bool {
				_, told := slices.BinarySearch(what.Related, o.Node.Name)
				return told
			})) {
				addrs = append(addrs, index.AddressOf(one.Address))
			}
		}
		c.facts.RUnlock()
		c.judge(c.facts.Republish(addrs))
	}
	if what.Acknowledgements {
		c.acknowledgements.Adopt()
	}
}

// judgeInside has the owners of the addresses in some ranges judged again.
func (c *core) judgeInside(ranges []ipam.Range) {
	for _, r := range ipam.Union(ranges) {
		var some []index.Address
		last := index.AddressOf(r.Last)
		for p := range c.shards.Places().From(judge.From(index.AddressOf(r.First))) { // as they are now
			if last.Less(p.Address()) {
				break
			}
			if some = append(some, p.Address()); len(some) == judgedTogether {
				c.judge(c.facts.Touch(some))
				some = some[:0]
			}
		}
		c.judge(c.facts.Touch(some))
	}
}

// judgedTogether is the number of addresses of a range that are judged at a time.
const judgedTogether = 4096

const (
	// unfitAfter is how long a replica has to lack its agents before another one should lead: agents that
	// reconnect are not gone.
	unfitAfter = 5 * time.Second
	// unfitFor is how long it leaves the lead to others then. If none takes it, they lack the agents, too.
	unfitFor = time.Minute
)

// fitness decides whether a replica should lead: a leader that is cut off from the agents would tell nobody what
// the other replicas see.
type fitness struct {
	coverage *live.Coverage
	clock    func() verdict.Stamp
	// lacking is since when most agents have been disconnected; 0 if they are not.
	lacking verdict.Stamp
}

// fit reports whether the replica should lead.
func (f *fitness) fit() bool {
	c := f.coverage.Current()
	if c.GetExpected() == 0 || 2*c.GetHeard() >= c.GetExpected() {
		f.lacking = 0
		return true
	}
	now := f.clock()
	if f.lacking == 0 {
		f.lacking = now
	}
	lacks := now.Sub(f.lacking)
	return lacks < unfitAfter || lacks >= unfitAfter+unfitFor
}

// tidyAfter is how long after the last large change unused memory is released.
const tidyAfter = 5 * time.Second

// How much the heap may grow before it is collected, in percent of the live heap (GOGC). When idle,
// it is a quarter of the default: most of the heap is long-lived tables without pointers, so a
// collection is cheap and rare. While snapshots arrive, collections would be so frequent that they
// take a quarter of the processor time.
const (
	garbageAtRest = 25
	garbageBusy   = 100
)

// tidier releases the memory that snapshots took while they were being applied. The runtime would
// keep it for minutes, and after a restart of many agents it is more than the facts take.
type tidier struct {
	// untidy holds one token after a large change.
	untidy chan struct{}
	// collect sets how much the heap may grow before it is collected.
	collect func(percent int)
}

// newTidier returns a tidier, which sets GOGC if eager is set.
func newTidier(eager bool) *tidier {
	t := &tidier{make(chan struct{}, 1), func(int) {}}
	if eager {
		t.collect = func(percent int) { debug.SetGCPercent(percent) }
	}
	return t
}

// later schedules a release of memory for when no large change has come for a while.
func (t *tidier) later() {
	select {
	case t.untidy <- struct{}{}:
	default:
	}
}

// run releases memory until ctx ends.
func (t *tidier) run(ctx context.Context) {
	quiet := time.NewTimer(tidyAfter)
	quiet.Stop()
	t.collect(garbageAtRest)
	for busy := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-t.untidy:
			if !busy { // each setting stops the world
				busy = true
				t.collect(garbageBusy)
			}
			quiet.Reset(tidyAfter)
		case <-quiet.C:
			busy = false
			t.collect(garbageAtRest)
			// Each collection halves stacks that are not used, and sync.Pools are only emptied
			// by the second one.
			runtime.GC()
			runtime.GC()
			debug.FreeOSMemory()
		}
	}
}

package judge

import (
	"context"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// FindingsConfig is the configuration of Findings.
type FindingsConfig struct {
	Facts *facts.Facts
	// Kubernetes is the Kubernetes API; nil if it is not used.
	Kubernetes *kube.Cluster
	// Waiting returns the number of addresses that are queued for judgement.
	Waiting func() int
	// Awaits reports whether facts are awaited without which a finding is not found. It is called with the facts
	// held.
	Awaits   func(*verdict.Finding) bool
	Listener FindingsListener
}

// Findings holds all findings, and the types that look for problems of more than one address. Use
// NewFindings.
type Findings struct {
	*Set
	*Pools
	*Clones
	*Overlaps
	*Intended
	*Names
}

// NewFindings returns a Findings without any finding.
func NewFindings(cfg FindingsConfig) *Findings {
	f := cfg.Facts
	pools := &Pools{
		facts: f, waiting: cfg.Waiting, wake: newSignal(), inOrder: index.NewSet(PoolPlace.Less),
		audits: make(map[*facts.Pool]*poolAudit), due: make(map[*facts.Pool]verdict.Stamp),
	}
	set := &Set{
		facts: f, pools: pools, listener: cfg.Listener, inOrder: index.NewSet((*Found).Less),
		byID: make(map[string]*Found), kinds: make(map[string]int), awaits: cfg.Awaits, wake: newSignal(),
		doubtful: make(map[string]struct{}), waiting: make(map[string][]string), parts: make(map[string][]verdict.Finding),
	}
	pools.set = set
	return &Findings{
		Set: set, Pools: pools,
		Clones: &Clones{
			facts: f, set: set, waiting: cfg.Waiting, wake: newSignal(),
			byKey: make(map[cloneKey]*clone), of: make(map[index.Address][]cloneKey),
		},
		Overlaps: &Overlaps{
			facts: f, kube: cfg.Kubernetes, set: set, wake: newSignal(),
			dirty: make(map[*facts.Node]struct{}), ranges: make(map[*facts.Node][]verdict.Side), macs: make(map[*facts.Node][]verdict.MAC), found: make(map[string]struct{}),
		},
		Intended: &Intended{
			facts: f, set: set, builders: sync.Pool{New: func() any { return f.Builder() }}, wake: newSignal(),
			due: make(map[intent]verdict.Stamp), waiting: make(map[*facts.Node][]intent), lacks: make(map[intent][]verdict.Finding),
		},
		Names: &Names{
			facts: f, set: set,
			byName: make(map[string][]*facts.Node), called: make(map[*facts.Node]string), found: make(map[*facts.Node]bool),
		},
	}
}

// Run runs the checks that are due until ctx ends.
func (f *Findings) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, one := range f.checks() {
		group.Go(func() { Repeat(ctx, f.Set.facts.Clock, one.wake, one.do) })
	}
	group.Wait()
}

// Settle runs the checks that are due, and returns when more will be; 0 for never. It is used in place of Run if the time is that of a
// replay.
func (f *Findings) Settle() (next verdict.Stamp) {
	for _, one := range f.checks() {
		next = Earlier(next, one.do())
	}
	return next
}

type check struct {
	wake signal
	do   func() verdict.Stamp
}

func (f *Findings) checks() [5]check {
	return [...]check{
		{f.Set.wake, f.decide},
		{f.Pools.wake, f.Pools.run},
		{f.Clones.wake, f.end},
		{f.Overlaps.wake, f.Overlaps.run},
		{f.Intended.wake, f.Intended.run},
	}
}

// Judged runs the checks that wait until every address affected by a change is judged.
func (f *Findings) Judged() {
	f.end()
	f.Pools.check()
	f.Intended.run()
}

// Rested wakes the checks that wait until the queue of addresses is empty.
func (f *Findings) Rested() {
	f.Clones.wakeIfWaiting()
	f.Pools.wakeIfWaiting()
}

// Changed schedules the checks that changes of the facts require. The caller holds the facts.
func (f *Findings) Changed(c *facts.Changes) {
	for _, p := range c.Ended { // first: one of the others may have its place
		f.ended(p)
	}
	for p := range c.Pools {
		f.changed(p)
	}
	for n := range c.Ranges {
		f.RangesChanged(n)
	}
	for _, n := range c.Names {
		f.namesChanged(n)
	}
	if c.Answered != nil {
		f.answered(c.Answered)
	}
	for _, of := range c.Former {
		f.formerly(of.Node, of.ID)
	}
	for of := range c.Lacking {
		f.mayLack(of.Node, of.Record)
	}
	if c.Coverage {
		f.Set.wake.set() // findings end as soon as the facts about them are complete
	}
}

// A signal wakes one goroutine.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Repeat calls do when wake is signalled, and at the time that do returned, until ctx ends.
func Repeat(ctx context.Context, clock func() verdict.Stamp, wake <-chan struct{}, do func() verdict.Stamp) {
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
			wait = max(0, next.Sub(clock()))
		}
		timer.Reset(wait)
	}
}

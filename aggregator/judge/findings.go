package judge

import (
	"context"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// FindingsConfig is the configuration of Findings.
type FindingsConfig struct {
	Facts *facts.Facts
	// Kubernetes is the Kubernetes API; nil if it is not used.
	Kubernetes *kube.Cluster
	// Waiting returns the number of addresses that are queued for judgement.
	Waiting  func() int
	Listener FindingsListener
}

// Findings holds all findings, and the types that look for problems of more than one address. Use
// New.
type Findings struct {
	*Publisher
	Pools    *Pools
	Clones   *Clones
	Overlaps *Overlaps
	Intended *Intended
	Names    *Names
}

// NewFindings returns a Findings without any finding.
func NewFindings(cfg FindingsConfig) *Findings {
	counts := newTally(cfg.Facts.Clock)
	publisher := &Publisher{newSet(cfg.Facts.Clock), cfg.Facts, counts, cfg.Listener}
	return &Findings{
		Publisher: publisher, Pools: &Pools{tally: counts, facts: cfg.Facts, publisher: publisher, waiting: cfg.Waiting}, Clones: newClones(cfg.Facts, publisher, cfg.Waiting),
		Overlaps: newOverlaps(cfg.Facts, cfg.Kubernetes, publisher), Intended: newIntended(cfg.Facts, publisher), Names: newNames(cfg.Facts, publisher),
	}
}

// Run runs the checks that are due until ctx ends.
func (f *Findings) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, one := range []struct {
		wake <-chan struct{}
		do   func() verdict.Stamp
	}{
		{f.Pools.wake, f.Pools.run},
		{f.Clones.wake, f.Clones.end},
		{f.Overlaps.wake, f.Overlaps.run},
		{f.Intended.wake, f.Intended.run},
	} {
		group.Go(func() { Repeat(ctx, f.facts.Clock, one.wake, one.do) })
	}
	group.Wait()
}

// Judged runs the checks that wait until every address affected by a change is judged.
func (f *Findings) Judged() {
	f.Clones.end()
	f.Pools.check()
	f.Intended.run()
}

// Rested wakes the checks that wait until the queue of addresses is empty.
func (f *Findings) Rested() {
	f.Clones.Rested()
	f.Pools.Rested()
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

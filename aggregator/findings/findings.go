// Package findings keeps what is wrong and not a conflict, and finds what is wrong of more than one
// address: of pools, of ranges, of names, of cloned hardware addresses, and of namespaces that lack an
// address. Each of those has a type of its own, which knows the facts and tells what package audit
// makes of them. Nothing here makes text.
package findings

import (
	"context"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Config is what findings need.
type Config struct {
	Facts *facts.Facts
	// Kubernetes is the Kubernetes API; nil where there is none to ask.
	Kubernetes *kube.Cluster
	// Waiting returns the number of addresses that wait to be judged.
	Waiting  func() int
	Listener Listener
}

// Findings are all findings, and those that make them of more than one address. Use New.
type Findings struct {
	*Teller
	Pools    *Pools
	Clones   *Clones
	Overlaps *Overlaps
	Intended *Intended
	Names    *Names
}

// New returns findings that nothing is known of yet.
func New(cfg Config) *Findings {
	counts := newTally(cfg.Facts.Clock)
	tell := &Teller{newSet(cfg.Facts.Clock), cfg.Facts, counts, cfg.Listener}
	return &Findings{
		Teller: tell, Pools: &Pools{tally: counts, facts: cfg.Facts, tell: tell, waiting: cfg.Waiting}, Clones: newClones(cfg.Facts, tell, cfg.Waiting),
		Overlaps: newOverlaps(cfg.Facts, cfg.Kubernetes, tell), Intended: newIntended(cfg.Facts, tell), Names: newNames(cfg.Facts, tell),
	}
}

// Run makes findings when they are due until ctx ends.
func (f *Findings) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, one := range []struct {
		wake <-chan struct{}
		do   func() verdict.Stamp
	}{
		{f.Pools.wake, f.Pools.ring},
		{f.Clones.wake, f.Clones.end},
		{f.Overlaps.wake, f.Overlaps.ring},
		{f.Intended.wake, f.Intended.ring},
	} {
		group.Go(func() { Repeat(ctx, f.facts.Clock, one.wake, one.do) })
	}
	group.Wait()
}

// Judged makes the findings that follow when all that a change touched is judged.
func (f *Findings) Judged() {
	f.Clones.end()
	f.Pools.look()
	f.Intended.ring()
}

// Rested has findings made that waited until all is judged.
func (f *Findings) Rested() {
	f.Clones.Rested()
	f.Pools.Rested()
}

// Repeat does something when it is woken, and when it says that it is due again, until ctx ends.
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

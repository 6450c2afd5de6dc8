package shard

import (
	"slices"
	"sync"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A drop is partitions that a goroutine has to forget.
type drop struct {
	lost facts.PartitionSet
	done *sync.WaitGroup
}

// Drop forgets the addresses of partitions that another replica serves now: their owners, conflicts and
// findings. Nobody is told that they are gone. It returns when they are forgotten, or when Run has
// ended.
func (s *Shards) Drop(lost facts.PartitionSet) {
	var done sync.WaitGroup
	for _, w := range s.workers {
		done.Add(1)
		w.lay(func(w *worker) { w.drops = append(w.drops, drop{lost, &done}) })
	}
	over := make(chan struct{})
	go func() {
		done.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-s.Facts.Stopped:
	}
}

// dropPartitions forgets the partitions that Drop was given.
func (w *worker) dropPartitions() {
	w.asideMu.Lock()
	all := w.drops
	w.drops = nil
	w.asideMu.Unlock()
	for _, one := range all {
		w.drop(&one.lost)
		one.done.Done()
	}
}

func (w *worker) drop(lost *facts.PartitionSet) {
	s := w.shards
	s.Facts.RLock()
	defer s.Facts.RUnlock()
	gone := func(a index.Address) bool { return lost[a.Partition()] && !s.Facts.Serves(a) }
	for a, e := range w.entries {
		if gone(a) {
			w.dropEntry(e)
		}
	}
	for p := range lost {
		if !lost[p] || s.workers[p%len(s.workers)] != w {
			continue
		}
		of := s.index.Partition(p)
		for place := range of.Snapshot().All() {
			if !gone(place.Address()) {
				continue
			}
			if place.kind != several {
				w.counts[place.kind].Add(-1)
			}
			of.Delete(place)
		}
	}
}

// dropEntry forgets an address that does not just have a single undisputed owner.
func (w *worker) dropEntry(e *entry) {
	s := w.shards
	if place, there := s.index.Partition(e.addr.Partition()).Get(From(e.addr)); there && place.kind == several {
		for i := range e.owners {
			w.counts[e.owners[i].Scope.Kind].Add(-1)
		}
	}
	w.disarm(e)
	if e.contesting != nil {
		w.contest(e, false)
	}
	w.withFormer -= min(1, len(e.former))
	if e.cloned {
		s.Listener.Cloned(e.addr, nil)
	}
	if len(e.found) > 0 {
		s.Listener.Forgot(slices.DeleteFunc(slices.Clone(e.found), func(f verdict.Finding) bool { return f.Waiting }))
	}
	s.Conflicts.forget(e.addr)
	delete(w.entries, e.addr)
}

// forget drops everything about an address.
func (c *Conflicts) forget(a index.Address) {
	for p := range c.order.Snapshot().From(conflictPlace{addr: a}) {
		if p.addr != a {
			break
		}
		c.drop(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.contested, a)
	delete(c.audited, a)
	delete(c.owners, a)
	c.resolved = slices.DeleteFunc(c.resolved, func(p conflictPlace) bool { return p.addr == a })
}

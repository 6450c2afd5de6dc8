package judge

import (
	"container/heap"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// arm schedules a judgement of an entry, unless an earlier one is scheduled. The earlier one
// changes nothing and schedules the next one. A claim that is seen again thus costs nothing here.
func (w *worker) arm(e *entry, at verdict.Stamp) {
	switch {
	case e.again == 0:
		e.again = at
		heap.Push(&w.timers, e)
	case at < e.again:
		e.again = at
		heap.Fix(&w.timers, e.place)
	}
}

func (w *worker) disarm(e *entry) {
	if e.again != 0 {
		heap.Remove(&w.timers, e.place)
		e.again = 0
	}
}

// settle drops the state of an address that can be derived from the facts.
func (w *worker) settle(e *entry) {
	if len(e.owners) == 1 && !e.disputed() {
		e.owners = nil
	}
	w.shards.Conflicts.keep(e.addr, e.owners)
	if e.idle() {
		delete(w.entries, e.addr)
	}
}

// dropForgotten drops the conflicts that need not be kept any longer.
func (w *worker) dropForgotten() {
	w.asideMu.Lock()
	all := w.forget
	w.forget = nil
	w.asideMu.Unlock()
	for _, p := range all {
		e := w.entries[p.addr]
		if e == nil {
			continue
		}
		at := e.conflict(p.id)
		if at < 0 || e.conflicts[at].Active() || e.conflicts[at].ResolvedAt != p.at {
			continue // it has become active again
		}
		e.conflicts = slices.Delete(e.conflicts, at, at+1)
		w.shards.Conflicts.drop(p)
		w.settle(e)
	}
}

// owning returns the worker of an address.
func (s *Shards) owning(a index.Address) *worker { return s.workers[a.Partition()%len(s.workers)] }

// lay calls add with asideMu locked, and wakes the goroutine of the worker.
func (w *worker) lay(add func(*worker)) {
	w.asideMu.Lock()
	add(w)
	w.asideMu.Unlock()
	select {
	case w.aside <- struct{}{}:
	default:
	}
}

// Forget drops conflicts that were resolved long ago, and returns when to call it again; 0 for
// never.
func (s *Shards) Forget() verdict.Stamp {
	for _, p := range s.Conflicts.takeOld(s.Clock()) {
		s.owning(p.addr).lay(func(w *worker) { w.forget = append(w.forget, p) })
	}
	s.Conflicts.mu.RLock()
	defer s.Conflicts.mu.RUnlock()
	if len(s.Conflicts.resolved) == 0 {
		return 0
	}
	return s.Conflicts.resolved[0].at.Add(keepResolvedFor)
}

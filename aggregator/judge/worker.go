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
	w.shards.Conflicts.keep(e)
	if e.idle() {
		delete(w.entries, e.addr)
	}
}

// owning returns the worker of an address.
func (s *Shards) owning(a index.Address) *worker { return s.workers[a.Partition()%len(s.workers)] }

// later has do called by the goroutine of the worker, while it holds the facts.
func (w *worker) later(do func()) {
	w.asideMu.Lock()
	w.aside = append(w.aside, do)
	w.asideMu.Unlock()
	w.wake.set()
}

// Forget drops conflicts that were resolved long ago, and returns when to call it again; 0 for
// never.
func (s *Shards) Forget() verdict.Stamp {
	for _, p := range s.Conflicts.takeOld(s.Clock()) {
		w := s.owning(p.addr)
		w.later(func() { w.forget(p) })
	}
	s.Conflicts.mu.RLock()
	defer s.Conflicts.mu.RUnlock()
	if len(s.Conflicts.resolved) == 0 {
		return 0
	}
	return s.Conflicts.resolved[0].at.Add(keepResolvedFor)
}

// forget drops a conflict that need not be kept any longer, unless it has become active again.
func (w *worker) forget(p conflictPlace) {
	e := w.entries[p.addr]
	if e == nil {
		return
	}
	at := e.conflict(p.id)
	if at < 0 || e.conflicts[at].Active() || e.conflicts[at].ResolvedAt != p.at {
		return
	}
	e.conflicts = slices.Delete(e.conflicts, at, at+1)
	w.shards.Conflicts.drop(p)
	w.settle(e)
}

// KeptSince returns the time since which resolved conflicts are kept.
func (s *Shards) KeptSince() verdict.Stamp { return s.Clock().Add(-keepResolvedFor) }

// Recall adds conflicts from before the start, or replaces those that were added and not judged since.
// A conflict that was detected again meanwhile continues its episode.
func (s *Shards) Recall(all []*verdict.Conflict) {
	for _, c := range all {
		w := s.owning(index.AddressOf(c.Address))
		w.later(func() { w.recall(c) })
	}
}

func (w *worker) recall(c *verdict.Conflict) {
	s, a := w.shards, index.AddressOf(c.Address)
	e := w.entries[a]
	if e == nil {
		e = &entry{addr: a, judgedAt: s.Clock()}
		w.entries[a] = e
	}
	kept, before, news := c, c, true
	switch at := e.conflict(c.ID); {
	case at < 0:
		e.conflicts = append(e.conflicts, c)
	case e.conflicts[at].Recalled:
		e.conflicts[at], news = c, false
	case !c.Awaited && c.Active():
		return // it was judged before it was released
	default:
		before = e.conflicts[at]
		kept = new(before.Continue(c))
		e.conflicts[at] = kept
	}
	s.Conflicts.put(a, kept)
	if !kept.Active() {
		if kept == c {
			s.Conflicts.addResolved(conflictPlace{a, c.ID, c.ResolvedAt})
		}
		return
	}
	if until, _ := s.Listener.Acknowledged(kept); until != 0 {
		w.arm(e, until)
	}
	if news {
		s.Listener.ConflictChanged(kept, before, false)
	}
}

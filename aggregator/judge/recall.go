package judge

import (
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Recall adds conflicts from before the start, or replaces those that were added and not judged since.
// A conflict that was detected again meanwhile continues its episode.
func (s *Shards) Recall(all []*verdict.Conflict) {
	for _, c := range all {
		s.owning(index.AddressOf(c.Address)).lay(func(w *worker) { w.recalled = append(w.recalled, c) })
	}
}

// KeptSince returns the time since which resolved conflicts are kept.
func (s *Shards) KeptSince() verdict.Stamp { return s.Clock().Add(-keepResolvedFor) }

// takeRecalled adds the conflicts that Recall was given. The caller holds the facts for reading.
func (w *worker) takeRecalled() {
	w.asideMu.Lock()
	all := w.recalled
	w.recalled = nil
	w.asideMu.Unlock()
	for _, c := range all {
		w.recall(c)
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

package judge

import (
	"container/heap"
	"slices"
	"sync/atomic"

	"github.com/ipwitness/ipwitness/aggregator/facts"
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
	if e.bare() && e.again == 0 {
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
	if at < 0 || !e.recalled.isEmpty() || e.conflicts[at].Active() || e.conflicts[at].ResolvedAt != p.at || e.conflicts[at].Explains(e.owners) {
		return
	}
	e.conflicts = slices.Delete(e.conflicts, at, at+1)
	w.shards.Conflicts.drop(p)
	w.settle(e)
}

// forgetOld drops the resolved conflicts of an address that explained something until now.
func (w *worker) forgetOld(e *entry) {
	for _, c := range slices.Clone(e.conflicts) {
		if !c.Active() && c.ResolvedAt <= w.shards.KeptSince() {
			w.forget(conflictPlace{e.addr, c.ID, c.ResolvedAt})
		}
	}
}

// KeptSince returns the time since which resolved conflicts are kept.
func (s *Shards) KeptSince() verdict.Stamp { return s.Clock().Add(-keepResolvedFor) }

// Recall adds conflicts from before the start, or replaces those that were added and not judged since.
// A conflict that was detected again meanwhile continues its episode. It returns a channel that is closed when all were added.
func (s *Shards) Recall(all []*verdict.Conflict) <-chan struct{} {
	for _, c := range all {
		w := s.owning(index.AddressOf(c.Address))
		w.later(func() { w.recall(c) })
	}
	added := make(chan struct{})
	var left atomic.Int64
	left.Store(int64(len(s.workers)))
	for _, w := range s.workers {
		w.later(func() {
			if left.Add(-1) == 0 {
				close(added)
			}
		})
	}
	return added
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
		w.arm(e, s.Clock())
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

// A Recollection is what is known about an address from before the start. The zero value is nothing.
type Recollection struct {
	// Past has earlier states of the records of the address.
	Past []verdict.Past
	// Orphans are the findings about orphaned sandboxes, which the Kubernetes API may not confirm for a while.
	Orphans []verdict.Finding
	// Former are the owners whose addresses were found to be used again too soon.
	Former []verdict.Former
	// Refused is set if a conflict that was resolved long ago may be why a kernel does not use the address.
	Refused bool
}

func (r Recollection) isEmpty() bool {
	return len(r.Past)+len(r.Orphans)+len(r.Former) == 0 && !r.Refused
}

// Recollect adds what is known about an address from before the start. Without anything, it forgets what concerns
// no owner.
func (s *Shards) Recollect(a index.Address, before Recollection) {
	w := s.owning(a)
	w.later(func() {
		e := w.entries[a]
		if e == nil {
			e = &entry{addr: a, judgedAt: s.Clock()}
			w.entries[a] = e
		}
		if e.recalled = before; before.isEmpty() {
			w.forgetOld(e)
			w.settle(e)
		}
	})
}

// pastOf returns the earlier states of the records of the address of a case.
func (e *entry) pastOf(in *verdict.Case) []verdict.Past {
	past := e.past
	for _, p := range e.recalled.Past {
		if slices.ContainsFunc(past, func(known verdict.Past) bool { return known.Owner == p.Owner && known.Kind == p.Kind }) {
			continue
		}
		if al := p.Allocation; al != nil {
			at := slices.IndexFunc(in.Pools, func(now *verdict.Pool) bool {
				return now.IPAM == al.Pool.IPAM && now.Name == al.Pool.Name && (now.Node == nil || now.Node.Name == al.Node)
			})
			if at < 0 {
				continue // its pool is not known yet
			}
			now := *al
			now.Pool, now.Address = in.Pools[at], in.Address
			if now.Pool.Node != nil {
				now.Node = ""
			}
			p.Allocation = &now
		}
		past = append(slices.Clip(past), p)
	}
	return past
}

// formerOwners returns the owners that have recently left the address.
func (e *entry) formerOwners() []verdict.Former {
	former := e.former
	for _, f := range e.recalled.Former {
		if !slices.ContainsFunc(former, func(known verdict.Former) bool { return known.Owner.ID == f.Owner.ID && known.Until >= f.Until }) {
			former = append(slices.Clip(former), f)
		}
	}
	return former
}

// An entry is the state of an address that does not just have a single undisputed owner.
type entry struct {
	addr index.Address
	kept
	// judgedAt is the time of the last judgement. If owners is nil, the owner at that time can be
	// derived.
	judgedAt verdict.Stamp
	// recalled is what is known from before the start.
	recalled Recollection
	// conflicts are the latest of each ID, active or resolved. They are immutable.
	conflicts []*verdict.Conflict
	// contesting has the streams of the nodes that were asked to watch the address more closely; nil if
	// there are none.
	contesting map[facts.Peer]struct{}
	// cloned is set if cloned hardware addresses were found.
	cloned bool
	// again is when the address is judged again even if nothing changes, 0 for never. place is the
	// index in the heap of timers.
	again verdict.Stamp
	place int
}

// kept is the part of an entry that others read.
type kept struct {
	// owners are the owners at the last judgement, in order; nil if there is a single undisputed
	// owner.
	owners []verdict.Owner
	// past has earlier states of the allocations. found has the findings of the last audit,
	// including waiting ones.
	past  []verdict.Past
	found []verdict.Finding
	// former are the owners that have recently left the address.
	former []verdict.Former
}

// disputed reports whether a conflict or a contest is remembered.
func (e *entry) disputed() bool { return len(e.conflicts) > 0 || e.contesting != nil }

// bare reports whether the entry has no state that cannot be derived from the facts, but perhaps a timer.
func (e *entry) bare() bool {
	return len(e.owners) == 0 && !e.disputed() && len(e.past) == 0 && e.recalled.isEmpty() && len(e.found) == 0 && len(e.former) == 0 && !e.cloned
}

// conflict returns the index of the conflict with an ID; -1 if there is none.
func (e *entry) conflict(id string) int {
	return slices.IndexFunc(e.conflicts, func(c *verdict.Conflict) bool { return c.ID == id })
}

// remembered returns the conflicts of an entry in the form that a case needs.
func (w *worker) remembered(e *entry) (all []verdict.Memory) {
	for _, c := range e.conflicts {
		m := c.Memory()
		for i := range m.Owners {
			o := &m.Owners[i]
			o.Awaited = m.Awaited && w.shards.Facts.Reported(c.Owners[i].Node) == nil
		}
		all = append(all, m)
	}
	return all
}

// timers is a heap of entries ordered by the time of their next judgement.
type timers []*entry

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, k int) bool { return t[i].again < t[k].again }

func (t timers) Swap(i, k int) {
	t[i], t[k] = t[k], t[i]
	t[i].place, t[k].place = i, k
}

// Push implements heap.Interface.
func (t *timers) Push(x any) {
	e := x.(*entry)
	e.place = len(*t)
	*t = append(*t, e)
}

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	last := len(*t) - 1
	e := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return e
}

package shard

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// entry is what is remembered of an address that has no owner, several owners, or something else to
// remember.
type entry struct {
	addr index.Address
	// owners are the owners when the address was last judged, in order; none if there is a single
	// undisputed one.
	owners []verdict.Owner
	// judgedAt is the time of the last judgement: an owner that is not kept is derived as of then.
	judgedAt verdict.Stamp
	// conflicts are the latest of each id: active, or resolved and kept. They never change.
	conflicts []*verdict.Conflict
	// told has the streams of the nodes that were asked to look at the address more closely; nil
	// for none.
	told map[facts.Peer]struct{}
	// past is what is remembered of allocations. found is what the last audit found, including
	// findings that are not reported yet.
	past  []verdict.Past
	found []verdict.Finding
	// cloned is set if cloned hardware addresses were found.
	cloned bool
	// again is when the address is judged again even if nothing changes, 0 for never; place is the
	// position of the entry among the timers.
	again verdict.Stamp
	place int
}

// disputed reports whether there is, or was, a conflict.
func (e *entry) disputed() bool { return len(e.conflicts) > 0 || e.told != nil }

// idle reports whether nothing needs to be remembered except that there is one owner, or none.
func (e *entry) idle() bool {
	return len(e.owners) == 0 && !e.disputed() && len(e.past) == 0 && len(e.found) == 0 && !e.cloned && e.again == 0
}

// conflict returns the position of the entry's conflict with an id; -1 for none.
func (e *entry) conflict(id string) int {
	return slices.IndexFunc(e.conflicts, func(c *verdict.Conflict) bool { return c.ID == id })
}

// remembered returns the conflicts for a case.
func (e *entry) remembered() (all []verdict.Memory) {
	for _, c := range e.conflicts {
		all = append(all, c.Memory())
	}
	return all
}

// timers is a heap of the entries that are judged again, the next one first.
type timers []*entry

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, k int) bool { return t[i].again < t[k].again }

func (t timers) Swap(i, k int) {
	t[i], t[k] = t[k], t[i]
	t[i].place, t[k].place = i, k
}

// Push is for container/heap.
func (t *timers) Push(x any) {
	e := x.(*entry)
	e.place = len(*t)
	*t = append(*t, e)
}

// Pop is for container/heap.
func (t *timers) Pop() any {
	last := len(*t) - 1
	e := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return e
}

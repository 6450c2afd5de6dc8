package judge

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// An entry is the state of an address that does not just have a single undisputed owner.
type entry struct {
	addr index.Address
	kept
	// judgedAt is the time of the last judgement. If owners is nil, the owner at that time can be
	// derived.
	judgedAt verdict.Stamp
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

// idle reports whether the entry has no state that cannot be derived from the facts.
func (e *entry) idle() bool {
	return len(e.owners) == 0 && !e.disputed() && len(e.past) == 0 && len(e.found) == 0 && len(e.former) == 0 && !e.cloned && e.again == 0
}

// conflict returns the index of the conflict with an ID; -1 if there is none.
func (e *entry) conflict(id string) int {
	return slices.IndexFunc(e.conflicts, func(c *verdict.Conflict) bool { return c.ID == id })
}

// remembered returns the conflicts in the form that a case needs.
func (e *entry) remembered() (all []verdict.Memory) {
	for _, c := range e.conflicts {
		all = append(all, c.Memory())
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

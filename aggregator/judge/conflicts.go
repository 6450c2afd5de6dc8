package judge

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const (
	// KeepResolved is the largest number of resolved conflicts that are kept, and keepResolvedFor
	// is how long they are kept.
	KeepResolved    = 10_000
	keepResolvedFor = 24 * time.Hour
)

// conflictPlace is the sort key of a conflict in lists.
type conflictPlace struct {
	addr index.Address
	id   string
	// at is when the conflict was resolved; it is set in the list of resolved conflicts only.
	at verdict.Stamp
}

func (p conflictPlace) less(other conflictPlace) bool {
	return cmp.Or(p.addr.Compare(other.addr), cmp.Compare(p.id, other.id)) < 0
}

// Conflicts has the active and recently resolved conflicts for concurrent readers. The conflicts in
// it are immutable and replaced when they change.
type Conflicts struct {
	order *index.Set[conflictPlace]

	mu   sync.RWMutex
	byID map[string]*verdict.Conflict
	// contested are the addresses that nodes watch more closely.
	contested map[index.Address]struct{}
	// kept has a copy of what the entries of addresses keep.
	kept     map[index.Address]kept
	resolved []conflictPlace
}

// NewConflicts returns a Conflicts without any.
func NewConflicts() *Conflicts {
	return &Conflicts{
		order: index.NewSet(conflictPlace.less), byID: make(map[string]*verdict.Conflict),
		contested: make(map[index.Address]struct{}), kept: make(map[index.Address]kept),
	}
}

// put adds or replaces a conflict.
func (c *Conflicts) put(a index.Address, now *verdict.Conflict) {
	c.mu.Lock()
	_, known := c.byID[now.ID]
	c.byID[now.ID] = now
	c.mu.Unlock()
	if !known {
		c.order.Put(conflictPlace{addr: a, id: now.ID})
	}
}

func (c *Conflicts) drop(p conflictPlace) {
	c.order.Delete(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, p.id)
}

// Get returns the conflict with an ID; nil if there is none.
func (c *Conflicts) Get(id string) *verdict.Conflict {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.byID[id]
}

// Len returns the number of conflicts.
func (c *Conflicts) Len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.byID)
}

// All returns all conflicts, in no order.
func (c *Conflicts) All() (all []*verdict.Conflict) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, one := range c.byID {
		all = append(all, one)
	}
	return all
}

// After yields the conflicts after a place, ordered by address and ID.
func (c *Conflicts) After(a index.Address, id string) func(yield func(*verdict.Conflict) bool) {
	return func(yield func(*verdict.Conflict) bool) {
		for p := range c.order.Snapshot().From(conflictPlace{addr: a, id: id}) {
			if p.addr == a && p.id == id {
				continue
			}
			if one := c.Get(p.id); one != nil && !yield(one) {
				return
			}
		}
	}
}

// keep makes what an entry keeps available to other goroutines.
func (c *Conflicts) keep(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(e.owners)+len(e.past)+len(e.found)+len(e.former) > 0 {
		c.kept[e.addr] = e.kept
	} else {
		delete(c.kept, e.addr)
	}
	if e.contesting != nil {
		c.contested[e.addr] = struct{}{}
	} else {
		delete(c.contested, e.addr)
	}
}

// Owners returns the owners at the last judgement of an address that has several owners or is
// disputed. For other addresses it returns false, and the owners must be derived from the facts.
func (c *Conflicts) Owners(a index.Address) (owners []verdict.Owner, kept bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	owners = c.kept[a].owners
	return owners, owners != nil
}

// Remembered returns the past of an address's allocations, the findings of the last audit, and the
// former owners.
func (c *Conflicts) Remembered(a index.Address) ([]verdict.Past, []verdict.Finding, []verdict.Former) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	one := c.kept[a]
	return one.past, one.found, one.former
}

// Of returns the conflicts of an address.
func (c *Conflicts) Of(a index.Address) (all []verdict.Conflict) {
	for p := range c.order.Snapshot().From(conflictPlace{addr: a}) {
		if p.addr != a {
			break
		}
		if one := c.Get(p.id); one != nil {
			all = append(all, *one)
		}
	}
	return all
}

// Disputed yields the addresses that nodes watch more closely, and those with several owners. An address may be yielded
// twice.
func (c *Conflicts) Disputed(yield func(index.Address) bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for a := range c.contested {
		if !yield(a) {
			return
		}
	}
	for a, k := range c.kept {
		if len(k.owners) > 1 && !yield(a) {
			return
		}
	}
}

// addResolved records a resolved conflict.
func (c *Conflicts) addResolved(p conflictPlace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := len(c.resolved) // of a conflict from before the start, the place is earlier
	for at > 0 && c.resolved[at-1].at > p.at {
		at--
	}
	c.resolved = slices.Insert(c.resolved, at, p)
}

// takeOld removes and returns the conflicts that need not be kept any longer.
func (c *Conflicts) takeOld(now verdict.Stamp) (old []conflictPlace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.resolved) > 0 && (len(c.resolved) > KeepResolved || c.resolved[0].at.Add(keepResolvedFor) <= now) {
		old = append(old, c.resolved[0])
		c.resolved[0] = conflictPlace{}
		c.resolved = c.resolved[1:]
	}
	return old
}

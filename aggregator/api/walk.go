package api

import (
	"cmp"
	"iter"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/live"
)

const (
	// listedKeys is the number of keys that a walk takes from an index at a time and keeps in
	// memory. listedAddresses is the same for addresses. It is larger because addresses are small,
	// and each time requires a search in all partitions.
	listedKeys      = 1024
	listedAddresses = 4 * listedKeys
	// lookedAt is the number of keys that a walk inspects while it holds the lock.
	lookedAt = 256
	// pageStep is the number of items of a page that are created while the lock is held.
	pageStep = 64
	// watchStep is the same for a watch: a subscriber that does not read keeps them in memory.
	watchStep = 16
)

// A walk reads items of the store a few at a time in the order of their keys. It takes keys from a
// snapshot of an index without the lock, and holds the lock for a few items only. Each time it
// takes keys, it continues after the last one in a new snapshot. It therefore needs little memory,
// regardless of the number of items and the duration of the walk.
type walk[K, T any] struct {
	facts *facts.Facts
	// events is the bus of the events that change the items, or nil if there is none.
	events *live.Bus
	// keys yields the keys from a key on, or all keys if from is nil. It may yield from again.
	keys func(from *K) iter.Seq[K]
	less func(a, b K) bool
	// read appends the items of a key, at most room of them. It reports whether there are more,
	// with which the next call continues. It is called with the facts locked.
	read func(key K, room int, into []item[T]) (items []item[T], more bool)

	// atOnce is the number of keys that are taken at a time; 0 means listedKeys. first, unless it
	// is 0, is a smaller number for the next time.
	atOnce, first int
	// rest contains the keys in listed that have not been read yet, and last is the last listed
	// key.
	listed, rest []K
	last         *K
	// bound is the last key up to which all changes must be sent, or nil if there is none.
	bound *K
	items []item[T]
}

// item is an item and its place in a list.
type item[T any] struct {
	at any
	it T
}

// part contains the items that a walk reads in one step.
type part[T any] struct {
	// items are valid until the next step.
	items []item[T]
	// revision is the revision at which the items were read: they reflect all events before it.
	revision uint64
	done     bool
}

// step takes the next keys or, if there are some, reads at most room items. It may read none even if there
// are more.
func (w *walk[K, T]) step(room int) (p part[T]) {
	w.bound = w.last
	if len(w.rest) == 0 {
		if p.revision = w.revision(); w.events != nil {
			w.facts.Await() // a judgement publishes its events before it updates the index
		}
		most := cmp.Or(w.atOnce, listedKeys)
		if w.first > 0 {
			most = min(most, w.first)
			w.first *= 2 // a filter may exclude nearly all of them
		}
		w.listed = w.listed[:0]
		for key := range w.keys(w.last) {
			if w.last != nil && !w.less(*w.last, key) {
				continue
			}
			if w.listed = append(w.listed, key); len(w.listed) == most {
				break
			}
		}
		w.rest = w.listed
		if p.done = len(w.rest) == 0; !p.done {
			w.last = new(w.rest[len(w.rest)-1])
		}
		return p
	}
	clear(w.items)
	w.items = w.items[:0]
	w.facts.RLock()
	defer w.facts.RUnlock()
	p.revision = w.revision()
	for range min(lookedAt, len(w.rest)) {
		if len(w.items) == room {
			break
		}
		var more bool
		if w.items, more = w.read(w.rest[0], room-len(w.items), w.items); more {
			break
		}
		w.rest = w.rest[1:]
	}
	p.items = w.items
	return p
}

func (w *walk[K, T]) revision() uint64 {
	if w.events == nil {
		return 0
	}
	return w.events.Revision()
}

// fill fills a page with the items of a walk.
func fill[K any, T proto.Message](p *Page[T], w *walk[K, T]) {
	var last any
	w.first = p.size + 1 // nearly every address has only one owner
	for {
		part := w.step(min(pageStep, p.size-len(p.Items)+1))
		for _, one := range part.items {
			if p.full() {
				p.Next = Token(last)
				return
			}
			p.add(one.it)
			last = one.at
		}
		if part.done {
			return
		}
	}
}

// Package index keeps addresses in a form without pointers, and items in order that are read by seek.
//
// Readers of a Set take a Snapshot, which never changes, costs a few nanoseconds and blocks a writer for no
// longer than that. The writer then copies the data that it changes, so a Snapshot that is kept for long keeps
// replaced items in memory. To walk many items, take a new Snapshot from time to time and continue after the
// last item.
//
// The package does not depend on the type of the items.
package index

import (
	"iter"
	"slices"
	"sort"
	"sync"
)

const (
	// most is the number of items of a full chunk.
	most = 64
	// spare is the additional capacity that a full chunk gets. It is small, because unused capacity
	// of the many chunks of an index is most of its overhead.
	spare = 8
)

// A chunk is a run of ordered items of a Set. It is never empty.
type chunk[T any] struct {
	items []T
	// age is the age of the set at the time when the items were last copied.
	age uint64
}

// A Set is an ordered set of items. Use NewSet.
//
// It is a list of chunks, which needs little more memory than the items themselves. B-trees in
// libraries double the capacity of their nodes, so they need twice as much.
type Set[T any] struct {
	less func(a, b T) bool
	// mu is held for one operation.
	mu     sync.Mutex
	chunks []chunk[T]
	// age is the number of snapshots. Snapshots may share all chunks that have a different age, and
	// the list of chunks if it has a different age.
	age, listAge uint64
}

// NewSet returns an empty set in the order of less. Two items are the same if neither is less
// than the other.
func NewSet[T any](less func(a, b T) bool) *Set[T] { return &Set[T]{less: less} }

// Put adds an item and replaces the same item, if there is one.
func (s *Set[T]) Put(item T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ownList()
	if len(s.chunks) == 0 {
		s.chunks = append(s.chunks, chunk[T]{age: s.age})
	}
	c, at, there := seek(s.chunks, item, s.less)
	if there {
		s.own(c)
		s.chunks[c].items[at] = item
		return
	}
	if len(s.chunks[c].items) == most {
		all := s.chunks[c].items
		s.chunks[c] = chunk[T]{slices.Clone(all[:most/2]), s.age}
		s.chunks = slices.Insert(s.chunks, c+1, chunk[T]{slices.Clone(all[most/2:]), s.age})
		if at > most/2 {
			c, at = c+1, at-most/2
		}
	}
	s.own(c)
	into := &s.chunks[c]
	if len(into.items) == cap(into.items) {
		into.items = withRoom(into.items)
	}
	into.items = slices.Insert(into.items, at, item)
}

// Delete removes an item and reports whether it existed.
func (s *Set[T]) Delete(item T) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, at, there := seek(s.chunks, item, s.less)
	if !there {
		return false
	}
	s.ownList()
	s.own(c)
	from := &s.chunks[c]
	from.items = slices.Delete(from.items, at, at+1)
	switch left := len(from.items); {
	case left == 0:
		s.chunks = slices.Delete(s.chunks, c, c+1)
	case c > 0 && len(s.chunks[c-1].items)+left <= most/2:
		s.join(c - 1)
	case c+1 < len(s.chunks) && left+len(s.chunks[c+1].items) <= most/2:
		s.join(c)
	case cap(from.items)-left > 2*spare:
		from.items = withRoom(from.items)
	}
	return true
}

// Get returns the stored item that is the same as item.
func (s *Set[T]) Get(item T) (found T, there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, at, there := seek(s.chunks, item, s.less)
	if there {
		found = s.chunks[c].items[at]
	}
	return found, there
}

// Snapshot returns the current items.
func (s *Set[T]) Snapshot() *Snapshot[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.age++
	return &Snapshot[T]{s.less, s.chunks}
}

// ownList copies the list of chunks if a snapshot shares it.
func (s *Set[T]) ownList() {
	if s.listAge != s.age {
		s.chunks, s.listAge = slices.Clone(s.chunks), s.age
	}
}

// own copies the items of a chunk if a snapshot shares them.
func (s *Set[T]) own(c int) {
	if one := &s.chunks[c]; one.age != s.age {
		one.items, one.age = withRoom(one.items), s.age
	}
}

// join appends a chunk to the one before it.
func (s *Set[T]) join(c int) {
	s.chunks[c] = chunk[T]{slices.Concat(s.chunks[c].items, s.chunks[c+1].items), s.age}
	s.chunks = slices.Delete(s.chunks, c+1, c+2)
}

// withRoom returns a copy of items with room for some more.
func withRoom[T any](items []T) []T {
	return append(slices.Grow([]T(nil), len(items)+spare), items...)
}

// seek returns the position where an item is or belongs, and whether it exists. In an empty set, the
// position is in a chunk that does not exist.
func seek[T any](chunks []chunk[T], item T, less func(a, b T) bool) (c, at int, there bool) {
	if len(chunks) == 0 {
		return 0, 0, false
	}
	c = sort.Search(len(chunks)-1, func(i int) bool { return less(item, chunks[i+1].items[0]) })
	items := chunks[c].items
	at = sort.Search(len(items), func(i int) bool { return !less(items[i], item) })
	return c, at, at < len(items) && !less(item, items[at])
}

// A Snapshot contains the items of a Set at one time. Any goroutine may read it.
type Snapshot[T any] struct {
	less   func(a, b T) bool
	chunks []chunk[T]
}

// From yields the items that are not before pivot in order. It finds the first one by a seek.
func (s *Snapshot[T]) From(pivot T) iter.Seq[T] {
	return func(yield func(T) bool) {
		c, at, _ := seek(s.chunks, pivot, s.less)
		for ; c < len(s.chunks); c, at = c+1, 0 {
			for _, item := range s.chunks[c].items[at:] {
				if !yield(item) {
					return
				}
			}
		}
	}
}

// Until yields the elements before the first one for which beyond returns true.
func Until[T any](all iter.Seq[T], beyond func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		for one := range all {
			if beyond(one) || !yield(one) {
				return
			}
		}
	}
}

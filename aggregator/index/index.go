// Package index keeps items in order and reads them by seek: a Set keeps one order, an Index
// keeps items by IP address in 256 partitions and merges them when it is read.
//
// Each Set, and thus each partition of an Index, has one writer at a time; the writers of different
// partitions do not wait for each other. Readers take a Snapshot, which never changes, costs a few
// nanoseconds for each partition and blocks a writer for no longer than that. The writer then
// copies what it changes, so a Snapshot that is kept for long keeps replaced items in memory. To
// walk many items, take a new Snapshot from time to time and continue after the last item.
//
// Nothing here knows what the items are.
package index

import (
	"iter"
	"sync"

	"github.com/tidwall/btree"
)

// degree is the degree of the trees: a node has at most 2*degree-1 items.
const degree = 32

// A Set is an ordered set of items. Use NewSet.
type Set[T any] struct {
	// mu is held for one operation on the tree.
	mu   sync.Mutex
	tree *btree.BTreeG[T]
	// shared is the last snapshot; nil if the tree has changed since.
	shared *btree.BTreeG[T]
}

// NewSet returns an empty set in the order of less. Two items are the same if neither is less
// than the other.
func NewSet[T any](less func(a, b T) bool) *Set[T] {
	return &Set[T]{tree: btree.NewBTreeGOptions(less, btree.Options{Degree: degree, NoLocks: true})}
}

// Put adds an item in the place of the same item, if there is one.
func (s *Set[T]) Put(item T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = nil
	s.tree.Set(item)
}

// Delete removes an item and reports whether it was there.
func (s *Set[T]) Delete(item T) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = nil
	_, there := s.tree.Delete(item)
	return there
}

// Get returns the item that is the same as item.
func (s *Set[T]) Get(item T) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tree.Get(item)
}

// Len returns the number of items.
func (s *Set[T]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tree.Len()
}

// Snapshot returns the items of now.
func (s *Set[T]) Snapshot() *Snapshot[T] { return &Snapshot[T]{trees: []*btree.BTreeG[T]{s.share()}} }

// share returns a copy of the tree that never changes.
func (s *Set[T]) share() *btree.BTreeG[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared == nil {
		s.shared = s.tree.IsoCopy()
	}
	return s.shared
}

// An Index is a set of items that each belong to an address, in one order, which must begin with
// the address. Use New.
type Index[T any] struct {
	address    func(T) Address
	partitions [Partitions]*Set[T]
}

// New returns an empty index of items in the order of less. The address of an item, by which less
// compares first, never changes.
func New[T any](address func(T) Address, less func(a, b T) bool) *Index[T] {
	x := &Index[T]{address: address}
	for i := range x.partitions {
		x.partitions[i] = NewSet(less)
	}
	return x
}

// Partition returns a partition, which has the items of all addresses whose Partition is number.
func (x *Index[T]) Partition(number int) *Set[T] { return x.partitions[number] }

// Put adds an item to its partition in the place of the same item, if there is one. As with
// Delete, its caller is the one writer of that partition.
func (x *Index[T]) Put(item T) { x.of(item).Put(item) }

// Delete removes an item from its partition and reports whether it was there.
func (x *Index[T]) Delete(item T) bool { return x.of(item).Delete(item) }

// Get returns the item that is the same as item.
func (x *Index[T]) Get(item T) (T, bool) { return x.of(item).Get(item) }

func (x *Index[T]) of(item T) *Set[T] { return x.partitions[x.address(item).Partition()] }

// Len returns the number of items.
func (x *Index[T]) Len() (n int) {
	for _, p := range x.partitions {
		n += p.Len()
	}
	return n
}

// Snapshot returns the items of now. Each partition is one moment; what changes in several
// partitions while the snapshot is taken may be in it in one and not in another.
func (x *Index[T]) Snapshot() *Snapshot[T] {
	s := &Snapshot[T]{address: x.address, trees: make([]*btree.BTreeG[T], Partitions)}
	for i, p := range x.partitions {
		s.trees[i] = p.share()
	}
	return s
}

// A Snapshot has the items of a Set or an Index at one time. Any goroutine may read it.
type Snapshot[T any] struct {
	trees   []*btree.BTreeG[T]
	address func(T) Address // nil for one tree
}

// Len returns the number of items.
func (s *Snapshot[T]) Len() (n int) {
	for _, t := range s.trees {
		n += t.Len()
	}
	return n
}

// All yields all items in order.
func (s *Snapshot[T]) All() iter.Seq[T] {
	return s.walk(func(c *btree.IterG[T]) bool { return c.First() })
}

// From yields the items that are not before pivot in order. It finds the first one by a seek in
// each partition.
func (s *Snapshot[T]) From(pivot T) iter.Seq[T] {
	return s.walk(func(c *btree.IterG[T]) bool { return c.Seek(pivot) })
}

// walk yields the items from where start moves each cursor to.
func (s *Snapshot[T]) walk(start func(*btree.IterG[T]) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		m := merge[T]{less: s.trees[0].Less, address: s.address, cursors: make([]cursor[T], len(s.trees))}
		for i, t := range s.trees {
			c := &m.cursors[i]
			if c.Init(t, false); start(&c.IterG) {
				m.enter(c)
				m.heap = append(m.heap, c)
			}
		}
		m.order()
		for item, ok := m.first(); ok; item, ok = m.next() {
			if !yield(item) {
				return
			}
		}
	}
}

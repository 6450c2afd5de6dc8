// Package index keeps items in order and reads them by seek: a Set keeps one order, an Index
// keeps items by IP address in 256 partitions and merges them when it is read.
//
// Each Set, and thus each partition of an Index, has one writer at a time; the writers of different
// partitions do not wait for each other. Readers take a Snapshot, which never changes, costs a few
// nanoseconds for each partition and blocks a writer for no longer than that. The writer then
// copies the data that it changes, so a Snapshot that is kept for long keeps replaced items in memory. To
// walk many items, take a new Snapshot from time to time and continue after the last item.
//
// The package does not depend on the type of the items.
package index

import "iter"

// An Index is an ordered set of items that each belong to an address. The order must begin with the
// address. Use New.
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

// Put adds an item to its partition and replaces the same item, if there is one. The caller of Put
// and Delete must be the only writer of that partition.
func (x *Index[T]) Put(item T) { x.of(item).Put(item) }

// Delete removes an item from its partition and reports whether it was there.
func (x *Index[T]) Delete(item T) bool { return x.of(item).Delete(item) }

// Get returns the stored item that is the same as item.
func (x *Index[T]) Get(item T) (T, bool) { return x.of(item).Get(item) }

func (x *Index[T]) of(item T) *Set[T] { return x.partitions[x.address(item).Partition()] }

// Len returns the number of items.
func (x *Index[T]) Len() (n int) {
	for _, p := range x.partitions {
		n += p.Len()
	}
	return n
}

// Snapshot returns the current items. Each partition is consistent, but a change of several
// partitions while the snapshot is taken may be visible in only some of them.
func (x *Index[T]) Snapshot() *Snapshot[T] {
	s := &Snapshot[T]{less: x.partitions[0].less, address: x.address, parts: make([][]chunk[T], Partitions)}
	for i, p := range x.partitions {
		chunks, count := p.share()
		s.parts[i] = chunks
		s.count += count
	}
	return s
}

// A Snapshot contains the items of a Set or an Index at one time. Any goroutine may read it.
type Snapshot[T any] struct {
	less    func(a, b T) bool
	parts   [][]chunk[T]
	count   int
	address func(T) Address // nil for a single partition
}

// Len returns the number of items.
func (s *Snapshot[T]) Len() int { return s.count }

// From yields the items that are not before pivot in order. It finds the first one by a seek in
// each partition.
func (s *Snapshot[T]) From(pivot T) iter.Seq[T] {
	return s.walk(func(p *position[T]) bool { return p.seek(pivot, s.less) })
}

// walk yields the items from where start moves each cursor to.
func (s *Snapshot[T]) walk(start func(*position[T]) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		m := merge[T]{less: s.less, address: s.address, cursors: make([]cursor[T], len(s.parts))}
		for i, chunks := range s.parts {
			c := &m.cursors[i]
			if c.chunks = chunks; start(&c.position) {
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

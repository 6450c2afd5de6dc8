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

// cursor is a position in one partition and the item there.
type cursor[T any] struct {
	position[T]
	item T
	addr Address // of the item
}

// walk yields the items from where start moves each cursor to. It merges the partitions by a heap of cursors,
// of which the one with the first item is on top.
func (s *Snapshot[T]) walk(start func(*position[T]) bool) iter.Seq[T] {
	enter := func(c *cursor[T]) {
		if c.item = c.here(); s.address != nil {
			c.addr = s.address(c.item)
		}
	}
	before := func(a, b *cursor[T]) bool {
		if a.addr != b.addr {
			return a.addr.Less(b.addr)
		}
		return s.less(a.item, b.item)
	}
	return func(yield func(T) bool) {
		cursors := make([]cursor[T], len(s.parts))
		var heap []*cursor[T] // without the cursors at the end
		for i, chunks := range s.parts {
			c := &cursors[i]
			if c.chunks = chunks; start(&c.position) {
				enter(c)
				heap = append(heap, c)
			}
		}
		down := func(at int) { // moves a cursor below those with an earlier item
			for {
				least := at
				for child := 2*at + 1; child <= 2*at+2 && child < len(heap); child++ {
					if before(heap[child], heap[least]) {
						least = child
					}
				}
				if least == at {
					return
				}
				heap[at], heap[least] = heap[least], heap[at]
				at = least
			}
		}
		for i := len(heap)/2 - 1; i >= 0; i-- {
			down(i)
		}
		for len(heap) > 0 {
			top := heap[0]
			if !yield(top.item) {
				return
			}
			if top.next() {
				enter(top)
			} else {
				heap[0] = heap[len(heap)-1]
				heap = heap[:len(heap)-1]
			}
			down(0)
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

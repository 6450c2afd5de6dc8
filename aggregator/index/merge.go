package index

import "iter"

// cursor is a position in one partition and the item there.
type cursor[T any] struct {
	position[T]
	item T
	addr Address // of the item
}

// merge reads the items of several partitions in one order.
type merge[T any] struct {
	less func(a, b T) bool
	// address returns the address of an item, by which less compares first; nil for one partition.
	address func(T) Address
	cursors []cursor[T]
	// heap contains the cursors that are not at the end. The cursor with the first item is on top.
	heap []*cursor[T]
}

// enter records the current item of a cursor.
func (m *merge[T]) enter(c *cursor[T]) {
	if c.item = c.here(); m.address != nil {
		c.addr = m.address(c.item)
	}
}

// before reports whether the item of a cursor comes before that of another one.
func (m *merge[T]) before(a, b *cursor[T]) bool {
	if a.addr != b.addr {
		return a.addr.Less(b.addr)
	}
	return m.less(a.item, b.item)
}

// order makes a heap of the cursors.
func (m *merge[T]) order() {
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
}

// first returns the first item, if there is one.
func (m *merge[T]) first() (item T, ok bool) {
	if len(m.heap) == 0 {
		return item, false
	}
	return m.heap[0].item, true
}

// next skips the first item and returns the following one, if there is one.
func (m *merge[T]) next() (item T, ok bool) {
	top := m.heap[0]
	if top.next() {
		m.enter(top)
	} else {
		last := len(m.heap) - 1
		m.heap[0], m.heap[last] = m.heap[last], nil
		m.heap = m.heap[:last]
	}
	m.down(0)
	return m.first()
}

// down moves a cursor of the heap below those with an earlier item.
func (m *merge[T]) down(at int) {
	for {
		least := at
		for child := 2*at + 1; child <= 2*at+2 && child < len(m.heap); child++ {
			if m.before(m.heap[child], m.heap[least]) {
				least = child
			}
		}
		if least == at {
			return
		}
		m.heap[at], m.heap[least] = m.heap[least], m.heap[at]
		at = least
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

package index

import "iter"

// All yields all items in order.
func (s *Snapshot[T]) All() iter.Seq[T] {
	return s.walk(func(p *position[T]) bool { return p.settle() })
}

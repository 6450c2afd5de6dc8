package facts

import "slices"

// A slab stores records of one type by index, without a pointer for each. Index 0 means no record.
// Records move when the slab grows, so pointers to them are only valid until then.
type slab[T any] struct {
	items []T // items[0] is never used
	free  []uint32
	live  []uint64 // a bit for each index
	count int
}

// add stores a record and returns its index.
func (s *slab[T]) add(item T) uint32 {
	var i uint32
	if last := len(s.free) - 1; last >= 0 {
		i = s.free[last]
		s.free = s.free[:last]
		s.items[i] = item
	} else {
		if len(s.items) == 0 {
			var none T
			s.items = append(s.items, none)
		}
		if len(s.items) == cap(s.items) { // by half: append would copy a large slab twice as often
			s.items = slices.Grow(s.items, 1+len(s.items)/2)
		}
		i = uint32(len(s.items)) //nolint:gosec // limits keep it below 2^32
		s.items = append(s.items, item)
	}
	for int(i/64) >= len(s.live) {
		s.live = append(s.live, 0)
	}
	s.live[i/64] |= 1 << (i % 64)
	s.count++
	return i
}

// at returns the record with an index.
func (s *slab[T]) at(i uint32) *T { return &s.items[i] }

// has reports whether an index has a record.
func (s *slab[T]) has(i uint32) bool {
	return int(i/64) < len(s.live) && s.live[i/64]&(1<<(i%64)) != 0
}

// remove frees the index of a record.
func (s *slab[T]) remove(i uint32) {
	s.live[i/64] &^= 1 << (i % 64)
	s.count--
	s.free = append(s.free, i)
	if s.count == 0 {
		*s = slab[T]{}
	}
}

// all yields the indexes of the records. Records may be added and removed during the iteration. An
// added record may be skipped.
func (s *slab[T]) all(yield func(uint32) bool) {
	for i := range uint32(len(s.items)) { //nolint:gosec // limits keep it below 2^32
		if s.has(i) && !yield(i) {
			return
		}
	}
}

// reserve makes room for a total number of records.
func (s *slab[T]) reserve(records int) {
	if more := records - s.count; more > len(s.free)+cap(s.items)-len(s.items) {
		s.items = slices.Grow(s.items, 1+more) // one more for index 0
	}
}

// trim releases unused capacity.
func (s *slab[T]) trim() {
	// Up to an eighth may be due to the size classes of the allocator, which a copy would have,
	// too.
	if spare := cap(s.items) - len(s.items); spare > 2 && spare > len(s.items)/8 {
		s.items = append(make([]T, 0, len(s.items)), s.items...)
	}
}

// some calls do for a piece of the records, starting at an index. It returns the index after the
// piece, and whether there may be more.
func (s *slab[T]) some(from uint32, do func(uint32)) (next uint32, more bool) {
	end := min(from+piece, uint32(len(s.items))) //nolint:gosec // limits keep it below 2^32
	for i := from; i < end; i++ {
		if s.has(i) {
			do(i)
		}
	}
	return end, int(end) < len(s.items)
}

// piece is the number of records that a writer processes before it releases the lock.
const piece = 256

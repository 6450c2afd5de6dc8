package facts

import "slices"

// A slab keeps records of one type by index, without a pointer for each. Index 0 is no record. A
// record moves when the slab grows: pointers to it are only valid until then.
type slab[T any] struct {
	items []T // items[0] is never used
	free  []uint32
	live  []uint64 // a bit for each index
	count int
}

// add puts a record and returns its index.
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
		i = uint32(len(s.items)) //nolint:gosec // limits keep it below 2^32
		if len(s.items) == cap(s.items) {
			s.items = slices.Grow(s.items, 1+len(s.items)/4)
		}
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

// has reports whether there is a record with an index.
func (s *slab[T]) has(i uint32) bool {
	return int(i/64) < len(s.live) && s.live[i/64]&(1<<(i%64)) != 0
}

// remove gives up the index of a record.
func (s *slab[T]) remove(i uint32) {
	var none T
	s.items[i] = none
	s.live[i/64] &^= 1 << (i % 64)
	s.count--
	s.free = append(s.free, i)
	if s.count == 0 {
		*s = slab[T]{}
	}
}

// all yields the indexes of the records. Records may be added and removed meanwhile: one that is
// added may be left out.
func (s *slab[T]) all(yield func(uint32) bool) {
	for i := 1; i < len(s.items); i++ {
		if s.has(uint32(i)) && !yield(uint32(i)) { //nolint:gosec // limits keep it below 2^32
			return
		}
	}
}

// reserve makes room for so many records in all.
func (s *slab[T]) reserve(records int) {
	if more := records - s.count; more > len(s.free)+cap(s.items)-len(s.items) {
		s.items = slices.Grow(s.items, 1+more) // and for index 0
	}
}

// trim gives back capacity that is not used.
func (s *slab[T]) trim() {
	// Up to an eighth may be what the allocator rounded the size up by: a copy would have it too.
	if spare := cap(s.items) - len(s.items); spare > 2 && spare > len(s.items)/8 {
		s.items = append(make([]T, 0, len(s.items)), s.items...)
	}
}

// some calls do for a piece of the records from an index on, and returns the index after them and
// whether there may be more.
func (s *slab[T]) some(from uint32, do func(uint32)) (next uint32, more bool) {
	end := min(from+piece, uint32(len(s.items))) //nolint:gosec // limits keep it below 2^32
	for i := from; i < end; i++ {
		if s.has(i) {
			do(i)
		}
	}
	return end, int(end) < len(s.items)
}

// piece is the number of records that a writer takes at a time.
const piece = 256

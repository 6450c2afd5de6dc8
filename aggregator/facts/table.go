package facts

import "math/bits"

// A table finds records of a slab by a key that each of them has in itself, at 4 bytes for a
// place. It is a hash table with linear probing; its callers know the keys.
type table struct {
	slots []uint32 // indexes; 0 is a free place
	used  int
}

func home(hash uint64, size int) int {
	high, _ := bits.Mul64(hash, uint64(size)) //nolint:gosec // not negative
	return int(high)                          //nolint:gosec // below size
}

// find returns the index of the record with a hash for which is returns true; 0 for none.
func (t *table) find(hash uint64, is func(uint32) bool) uint32 {
	if t.used == 0 {
		return 0
	}
	for at := home(hash, len(t.slots)); ; {
		i := t.slots[at]
		if i == 0 || is(i) {
			return i
		}
		if at++; at == len(t.slots) {
			at = 0
		}
	}
}

// put adds a record that is not there.
func (t *table) put(hash uint64, i uint32, hashOf func(uint32) uint64) {
	if 5*(t.used+1) > 4*len(t.slots) {
		t.resize(t.used+1+t.used/4, hashOf)
	}
	t.place(hash, i)
	t.used++
}

// resize makes room for so many records.
func (t *table) resize(records int, hashOf func(uint32) uint64) {
	old := t.slots
	t.slots = make([]uint32, max(4, records+records/4+1))
	for _, one := range old {
		if one != 0 {
			t.place(hashOf(one), one)
		}
	}
}

// reserve makes room for so many records in all.
func (t *table) reserve(records int, hashOf func(uint32) uint64) {
	if 5*records > 4*len(t.slots) {
		t.resize(records, hashOf)
	}
}

// trim gives back room that is not used.
func (t *table) trim(hashOf func(uint32) uint64) {
	if len(t.slots) > 8 && 4*len(t.slots) > 6*t.used {
		t.resize(t.used, hashOf)
	}
}

func (t *table) place(hash uint64, i uint32) {
	at := home(hash, len(t.slots))
	for t.slots[at] != 0 {
		if at++; at == len(t.slots) {
			at = 0
		}
	}
	t.slots[at] = i
}

// replace puts one record in the place of another one with the same key.
func (t *table) replace(hash uint64, old, now uint32) {
	at := home(hash, len(t.slots))
	for t.slots[at] != old {
		if at++; at == len(t.slots) {
			at = 0
		}
	}
	t.slots[at] = now
}

// remove removes a record that is there, and moves up those that it was in the way of.
func (t *table) remove(hash uint64, i uint32, hashOf func(uint32) uint64) {
	size := len(t.slots)
	free := home(hash, size)
	for t.slots[free] != i {
		if free++; free == size {
			free = 0
		}
	}
	distance := func(from, to int) int {
		if to < from {
			to += size
		}
		return to - from
	}
	for at := (free + 1) % size; t.slots[at] != 0; at = (at + 1) % size {
		if distance(home(hashOf(t.slots[at]), size), at) >= distance(free, at) {
			t.slots[free] = t.slots[at]
			free = at
		}
	}
	t.slots[free] = 0
	if t.used--; t.used == 0 {
		t.slots = nil
	}
}

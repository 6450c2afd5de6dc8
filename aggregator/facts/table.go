package facts

import (
	"math"
	"math/bits"
)

// A table finds records of a slab by a key that is stored in the records. It takes 2 bytes per
// slot, or 4 once an index is large. It is a hash table with linear probing. Callers provide the
// hashes and compare the keys.
type table struct {
	slots slots
	used  int
}

// slots are slots for indexes; 0 is a free slot. They are narrow until an index needs more.
type slots struct {
	narrow []uint16
	wide   []uint32
}

func newSlots(size int, wide bool) slots {
	if wide {
		return slots{wide: make([]uint32, size)}
	}
	return slots{narrow: make([]uint16, size)}
}

// size returns the number of slots.
func (s *slots) size() int { return len(s.narrow) + len(s.wide) }

func (s *slots) at(place int) uint32 {
	if s.wide != nil {
		return s.wide[place]
	}
	return uint32(s.narrow[place])
}

func (s *slots) set(place int, i uint32) {
	if s.wide != nil {
		s.wide[place] = i
	} else {
		s.narrow[place] = uint16(i) //nolint:gosec // fits, because the slots are narrow
	}
}

// fits reports whether an index fits into the slots.
func (s *slots) fits(i uint32) bool { return s.wide != nil || i <= math.MaxUint16 }

func home(hash uint64, size int) int {
	high, _ := bits.Mul64(hash, uint64(size)) //nolint:gosec // not negative
	return int(high)                          //nolint:gosec // below size
}

// find returns the index of the record with a hash for which is returns true; 0 if there is none.
func (t *table) find(hash uint64, is func(uint32) bool) uint32 {
	if t.used == 0 {
		return 0
	}
	size := t.slots.size()
	for at := home(hash, size); ; {
		i := t.slots.at(at)
		if i == 0 || is(i) {
			return i
		}
		if at++; at == size {
			at = 0
		}
	}
}

// put adds a record that is not in the table.
func (t *table) put(hash uint64, i uint32, hashOf func(uint32) uint64) {
	full := 5*(t.used+1) > 4*t.slots.size()
	if fits := t.slots.fits(i); full || !fits {
		t.resize(t.used+1+t.used/4, !fits, hashOf)
	}
	t.place(hash, i)
	t.used++
}

// resize resizes the table for a number of records. If wide is set, it makes the slots wide.
func (t *table) resize(records int, wide bool, hashOf func(uint32) uint64) {
	old := t.slots
	t.slots = newSlots(max(4, records+records/4+1), wide || old.wide != nil)
	for at := range old.size() {
		if one := old.at(at); one != 0 {
			t.place(hashOf(one), one)
		}
	}
}

// reserve makes room for a total number of records.
func (t *table) reserve(records int, hashOf func(uint32) uint64) {
	if 5*records > 4*t.slots.size() {
		t.resize(records, false, hashOf)
	}
}

// trim releases unused memory.
func (t *table) trim(hashOf func(uint32) uint64) {
	if size := t.slots.size(); size > 8 && 4*size > 6*t.used {
		t.resize(t.used, false, hashOf)
	}
}

// placeOf returns the slot with an index; for index 0, the first free slot for the hash.
func (t *table) placeOf(hash uint64, i uint32) int {
	size := t.slots.size()
	at := home(hash, size)
	for t.slots.at(at) != i {
		if at++; at == size {
			at = 0
		}
	}
	return at
}

func (t *table) place(hash uint64, i uint32) { t.slots.set(t.placeOf(hash, 0), i) }

// replace replaces a record by another one with the same key.
func (t *table) replace(hash uint64, old, now uint32, hashOf func(uint32) uint64) {
	if !t.slots.fits(now) {
		t.resize(t.used, true, hashOf)
	}
	t.slots.set(t.placeOf(hash, old), now)
}

// remove removes a record that is in the table, and moves the records that it had displaced.
func (t *table) remove(hash uint64, i uint32, hashOf func(uint32) uint64) {
	size := t.slots.size()
	free := t.placeOf(hash, i)
	distance := func(from, to int) int {
		if to < from {
			to += size
		}
		return to - from
	}
	for at := (free + 1) % size; t.slots.at(at) != 0; at = (at + 1) % size {
		one := t.slots.at(at)
		if distance(home(hashOf(one), size), at) >= distance(free, at) {
			t.slots.set(free, one)
			free = at
		}
	}
	t.slots.set(free, 0)
	if t.used--; t.used == 0 {
		t.slots = slots{}
	}
}

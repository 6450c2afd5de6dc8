package aggregator

import (
	"hash/maphash"
	"iter"
	"math/bits"
)

// lookup finds records by a key that each of them has in itself. It takes nine
// bytes for a place, of which two thirds or more are taken; a map that repeats the key
// takes three times that, and most of what is known is small records.
//
// It is a hash table with linear probing. A place has a tag, by which most of
// what is not looked for is passed by, and a record.
type lookup[K comparable, V comparable] struct {
	key     func(V) K
	tags    []uint8 // 0 for a free place
	records []V
	used    int
}

var lookupSeed = maphash.MakeSeed()

func newLookup[K comparable, V comparable](key func(V) K) lookup[K, V] {
	return lookup[K, V]{key: key}
}

// home is where a key is looked for first, and its tag.
func (x *lookup[K, V]) home(k K) (at int, tag uint8) {
	hash := maphash.Comparable(lookupSeed, k)
	high, _ := bits.Mul64(hash, uint64(len(x.tags)))
	return int(high), uint8(hash) | 1
}

// find is the place of a key; where there is none, it is a free one.
func (x *lookup[K, V]) find(k K) (at int, tag uint8) {
	at, tag = x.home(k)
	for x.tags[at] != 0 && (x.tags[at] != tag || x.key(x.records[at]) != k) {
		at = x.after(at)
	}
	return at, tag
}

// after is the next place, the first one after the last.
func (x *lookup[K, V]) after(at int) int {
	if at++; at < len(x.tags) {
		return at
	}
	return 0
}

// get is the record of a key, the zero one where there is none.
func (x *lookup[K, V]) get(k K) (v V) {
	if x.used == 0 {
		return v
	}
	at, _ := x.find(k)
	return x.records[at]
}

// put enters a record in the place of any other one of its key.
func (x *lookup[K, V]) put(v V) {
	if 8*(x.used+1) > 7*len(x.tags) {
		x.grow()
	}
	at, tag := x.find(x.key(v))
	if x.tags[at] == 0 {
		x.used++
	}
	x.tags[at], x.records[at] = tag, v
}

func (x *lookup[K, V]) grow() {
	old := x.records
	size := max(4, len(old)+len(old)/2)
	x.tags, x.records, x.used = make([]uint8, size), make([]V, size), 0
	var none V
	for _, v := range old {
		if v != none {
			x.put(v)
		}
	}
}

// remove takes out the record of a key, and moves those up that it was in the way of.
func (x *lookup[K, V]) remove(k K) {
	if x.used == 0 {
		return
	}
	free, _ := x.find(k)
	if x.tags[free] == 0 {
		return
	}
	distance := func(from, to int) int {
		if to < from {
			to += len(x.tags)
		}
		return to - from
	}
	for at := x.after(free); x.tags[at] != 0; at = x.after(at) {
		home, tag := x.home(x.key(x.records[at]))
		if distance(home, at) >= distance(free, at) {
			x.tags[free], x.records[free] = tag, x.records[at]
			free = at
		}
	}
	var none V
	x.tags[free], x.records[free] = 0, none
	x.used--
}

func (x *lookup[K, V]) len() int { return x.used }

// all yields the records, as long as none is entered or taken out meanwhile.
func (x *lookup[K, V]) all() iter.Seq[V] {
	return func(yield func(V) bool) {
		for at, tag := range x.tags {
			if tag != 0 && !yield(x.records[at]) {
				return
			}
		}
	}
}

// chains finds all records that have one key, of which each has the next one in
// itself: next is where.
type chains[K comparable, V comparable] struct {
	lookup[K, V]
	next func(V) *V
}

func newChains[K comparable, V comparable](key func(V) K, next func(V) *V) chains[K, V] {
	return chains[K, V]{newLookup(key), next}
}

// enter puts a record first of those that have its key.
func (x *chains[K, V]) enter(v V) {
	*x.next(v) = x.get(x.key(v))
	x.put(v)
}

// leave takes a record out, which must be in.
func (x *chains[K, V]) leave(v V) {
	var none V
	k := x.key(v)
	after := x.next(v)
	switch at := x.get(k); {
	case at != v:
		for *x.next(at) != v {
			at = *x.next(at)
		}
		*x.next(at) = *after
	case *after != none:
		x.put(*after)
	default:
		x.remove(k)
	}
	*after = none
}

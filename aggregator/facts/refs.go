package facts

import (
	"hash/maphash"
	"slices"
)

var seed = maphash.MakeSeed()

func hashText(s string) uint64 { return maphash.String(seed, s) }

func hashNumbers(a, b uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15
	h := (a ^ a>>32) * odd
	h = (h ^ h>>29 ^ b) * odd
	return (h ^ h>>32) * odd
}

// A Ref is a claim, as a Builder tells it.
type Ref = ref

// A ref is a record of a node: the number of the node and the index of the record.
type ref uint64

func refOf(node, i uint32) ref { return ref(node)<<32 | ref(i) }

func (r ref) node() uint32  { return uint32(r >> 32) } //nolint:gosec // the upper half
func (r ref) index() uint32 { return uint32(r) }       //nolint:gosec // the lower half

// refs find the records of all nodes that have a key: at most one of each node, which leads to
// the others on that node. Most keys have one, in a hash table of 8 bytes for a place. The others
// of a key that records of several nodes have are in a list.
type refs[K comparable] struct {
	parts [refParts]refPart
	more  map[K][]ref
	hash  func(K) uint64
	key   func(ref) K
}

// refParts is the number of hash tables: each grows on its own, so that no change waits for all.
const refParts = 256

type refPart struct {
	slots []ref
	used  int
}

func newRefs[K comparable](hash func(K) uint64, key func(ref) K) *refs[K] {
	return &refs[K]{more: make(map[K][]ref), hash: hash, key: key}
}

// part returns the table of a hash, and the hash within it.
func (x *refs[K]) part(hash uint64) (*refPart, uint64) {
	return &x.parts[hash%refParts], hashNumbers(hash, 0)
}

// find returns the place of a key's first record; the slot is 0 if there is none.
func (x *refs[K]) find(k K) (p *refPart, at int) {
	p, hash := x.part(x.hash(k))
	if p.used == 0 {
		return p, -1
	}
	for at = home(hash, len(p.slots)); p.slots[at] != 0 && x.key(p.slots[at]) != k; {
		if at++; at == len(p.slots) {
			at = 0
		}
	}
	return p, at
}

// len returns the number of keys.
func (x *refs[K]) len() (n int) {
	for i := range x.parts {
		n += x.parts[i].used
	}
	return n
}

// first returns a record with a key and the others on other nodes; 0 if there is none.
func (x *refs[K]) first(k K) (r ref, others []ref) {
	p, at := x.find(k)
	if at < 0 || p.slots[at] == 0 {
		return 0, nil
	}
	if len(x.more) > 0 {
		others = x.more[k]
	}
	return p.slots[at], others
}

// all yields the records with a key, one of each node.
func (x *refs[K]) all(k K) func(yield func(ref) bool) {
	return func(yield func(ref) bool) {
		r, others := x.first(k)
		if r == 0 || !yield(r) {
			return
		}
		for _, r := range others {
			if !yield(r) {
				return
			}
		}
	}
}

// of returns the record of a node with a key; 0 if there is none.
func (x *refs[K]) of(k K, node uint32) uint32 {
	r, others := x.first(k)
	if r.node() == node {
		return r.index()
	}
	for _, r := range others {
		if r.node() == node {
			return r.index()
		}
	}
	return 0
}

// set enters a record in the place of the one of its node, if there is one.
func (x *refs[K]) set(k K, r ref) {
	p, at := x.find(k)
	switch {
	case at < 0 || p.slots[at] == 0:
		x.put(p, k, r)
	case p.slots[at].node() == r.node():
		p.slots[at] = r
	default:
		others := x.more[k]
		for i := range others {
			if others[i].node() == r.node() {
				others[i] = r
				return
			}
		}
		x.more[k] = append(others, r)
	}
}

func (x *refs[K]) put(p *refPart, k K, r ref) {
	if 5*(p.used+1) > 4*len(p.slots) {
		old := p.slots
		p.slots = make([]ref, max(4, len(old)+len(old)/4+1))
		for _, one := range old {
			if one != 0 {
				x.place(p, x.key(one), one)
			}
		}
	}
	x.place(p, k, r)
	p.used++
}

func (x *refs[K]) place(p *refPart, k K, r ref) {
	_, hash := x.part(x.hash(k))
	at := home(hash, len(p.slots))
	for p.slots[at] != 0 {
		if at++; at == len(p.slots) {
			at = 0
		}
	}
	p.slots[at] = r
}

// remove takes out the record of a node.
func (x *refs[K]) remove(k K, node uint32) {
	p, at := x.find(k)
	if at < 0 || p.slots[at] == 0 {
		return
	}
	others := x.more[k]
	if p.slots[at].node() != node {
		others = slices.DeleteFunc(others, func(r ref) bool { return r.node() == node })
	} else if len(others) > 0 {
		p.slots[at] = others[len(others)-1]
		others = others[:len(others)-1]
	} else {
		x.clear(p, at)
		return
	}
	if len(others) == 0 {
		delete(x.more, k)
	} else {
		x.more[k] = others
	}
}

// clear frees a place and moves up those that it was in the way of.
func (x *refs[K]) clear(p *refPart, free int) {
	size := len(p.slots)
	distance := func(from, to int) int {
		if to < from {
			to += size
		}
		return to - from
	}
	for at := (free + 1) % size; p.slots[at] != 0; at = (at + 1) % size {
		_, hash := x.part(x.hash(x.key(p.slots[at])))
		if distance(home(hash, size), at) >= distance(free, at) {
			p.slots[free] = p.slots[at]
			free = at
		}
	}
	p.slots[free] = 0
	if p.used--; p.used == 0 {
		p.slots = nil
	}
}

func maphashBytes(b []byte) uint64 { return maphash.Bytes(seed, b) }

func maphashComparable[K comparable](k K) uint64 { return maphash.Comparable(seed, k) }

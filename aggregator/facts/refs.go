package facts

import (
	"hash/maphash"
	"slices"
)

var seed = maphash.MakeSeed()

func hashText(s string) uint64 { return maphash.String(seed, s) }

func hashNumbers(a, b uint64) uint64 {
	const multiplier = 0x9e3779b97f4a7c15
	h := (a ^ a>>32) * multiplier
	h = (h ^ h>>29 ^ b) * multiplier
	return (h ^ h>>32) * multiplier
}

// A Ref is a claim, as Builder.Refs returns it.
type Ref = ref

// A ref identifies a record: the number of its node and the index of the record.
type ref uint64

const (
	indexBits = 28
	nodeBits  = 20
)

func refOf(node, i uint32) ref { return ref(node)<<indexBits | ref(i) }

func (r ref) node() uint32  { return uint32(r >> indexBits) }         //nolint:gosec // nodeBits
func (r ref) index() uint32 { return uint32(r) & (1<<indexBits - 1) } //nolint:gosec // indexBits

// refs finds the records with a key: at most one of each node, which leads to the others on that
// node. Most keys have a single record, which is stored in a hash table with 8 bytes per slot. If
// several nodes have records with a key, the others are in a list.
type refs[K comparable] struct {
	parts [refParts]refPart
	more  map[K][]ref
	hash  func(K) uint64
	key   func(ref) K
}

// refParts is the number of hash tables. Each grows separately, so that no change has to wait for
// all of them to be resized.
const refParts = 256

type refPart struct {
	slots []slot
	used  int
}

// A slot is a ref and some bits of the hash of its key. With these bits, most other slots are
// skipped, and slots are moved, without looking at their keys. 0 is a free slot, because there is
// no node 0.
type slot uint64

const refBits = indexBits + nodeBits

func slotOf(hash uint64, r ref) slot { return slot(hash>>refBits<<refBits) | slot(r) }

func (s slot) ref() ref { return ref(s & (1<<refBits - 1)) }

// same reports whether a slot has the bits of a hash.
func (s slot) same(hash uint64) bool { return uint64(s)>>refBits == hash>>refBits }

// home returns the position at which the search for a slot begins.
func (s slot) home(size int) int {
	return int(uint64(s) >> refBits * uint64(size) >> (64 - refBits)) //nolint:gosec // below size
}

func newRefs[K comparable](hash func(K) uint64, key func(ref) K) *refs[K] {
	return &refs[K]{more: make(map[K][]ref), hash: hash, key: key}
}

// find returns the position of a key's first record; the slot there is 0 if there is none.
func (x *refs[K]) find(k K) (p *refPart, hash uint64, at int) {
	hash = x.hash(k)
	p = &x.parts[hash%refParts]
	if p.used == 0 {
		return p, hash, -1
	}
	for at = slotOf(hash, 0).home(len(p.slots)); p.slots[at] != 0 && (!p.slots[at].same(hash) || x.key(p.slots[at].ref()) != k); {
		if at++; at == len(p.slots) {
			at = 0
		}
	}
	return p, hash, at
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
	p, _, at := x.find(k)
	if at < 0 || p.slots[at] == 0 {
		return 0, nil
	}
	if len(x.more) > 0 {
		others = x.more[k]
	}
	return p.slots[at].ref(), others
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

// set adds a record, or replaces the one of the same node.
func (x *refs[K]) set(k K, r ref) {
	p, hash, at := x.find(k)
	switch {
	case at < 0 || p.slots[at] == 0:
		p.put(slotOf(hash, r))
	case p.slots[at].ref().node() == r.node():
		p.slots[at] = slotOf(hash, r)
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

func (p *refPart) put(s slot) {
	if 5*(p.used+1) > 4*len(p.slots) {
		old := p.slots
		p.slots = make([]slot, max(4, len(old)+len(old)/4+1))
		for _, one := range old {
			if one != 0 {
				p.place(one)
			}
		}
	}
	p.place(s)
	p.used++
}

func (p *refPart) place(s slot) {
	at := s.home(len(p.slots))
	for p.slots[at] != 0 {
		if at++; at == len(p.slots) {
			at = 0
		}
	}
	p.slots[at] = s
}

// remove removes the record of a node.
func (x *refs[K]) remove(k K, node uint32) {
	p, hash, at := x.find(k)
	if at < 0 || p.slots[at] == 0 {
		return
	}
	others := x.more[k]
	if p.slots[at].ref().node() != node {
		others = slices.DeleteFunc(others, func(r ref) bool { return r.node() == node })
	} else if len(others) > 0 {
		p.slots[at] = slotOf(hash, others[len(others)-1])
		others = others[:len(others)-1]
	} else {
		p.clear(at)
		return
	}
	if len(others) == 0 {
		delete(x.more, k)
	} else {
		x.more[k] = others
	}
}

// clear frees a position and moves the slots that it had displaced.
func (p *refPart) clear(free int) {
	size := len(p.slots)
	distance := func(from, to int) int {
		if to < from {
			to += size
		}
		return to - from
	}
	for at := (free + 1) % size; p.slots[at] != 0; at = (at + 1) % size {
		if distance(p.slots[at].home(size), at) >= distance(free, at) {
			p.slots[free] = p.slots[at]
			free = at
		}
	}
	p.slots[free] = 0
	if p.used--; p.used == 0 {
		p.slots = nil
	}
}

package ipam

import (
	"cmp"
	"reflect"
	"strings"
	"unique"
)

// Key identifies an object among those of its kind.
type Key struct{ Namespace, Name string }

// Compare orders keys by namespace and name.
func (k Key) Compare(other Key) int {
	return cmp.Or(strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Name, other.Name))
}

// A Store holds what is kept of the objects of one resource. Its driver calls Reduce without a
// lock, and the other methods under the lock that guards all stores. Only one feed writes a store.
type Store interface {
	// Reduce returns the part of an object that the other methods need.
	Reduce(object any) any
	// Put stores a new or changed object, and Drop removes one.
	Put(reduced any)
	Drop(reduced any)
	// Replace replaces the contents with the objects of a complete listing. It calls pause for each
	// object, which may release the lock for a moment.
	Replace(reduced []any, pause func())
}

// A Mirror is a store that holds one record of each object of type O. Records never change.
type Mirror[O, R any] struct {
	// Read returns the record of an object, or nil for an object of no interest. It is called
	// without the lock.
	Read func(O) (Key, *R)
	// Parse takes the place of Read for objects that may be malformed. It also returns what of the object
	// cannot be read, as text for people. With a problem and no record, the last record stays.
	Parse func(O) (at Key, record *R, problem string)
	// Unread publishes the problems that Parse returns.
	Unread *Unread
	// Same reports whether two records are equal; nil for reflect.DeepEqual.
	Same func(a, b *R) bool
	// Changed is called with the records of an object before and after a change; nil if nothing has
	// to be done. A record is nil if the object did not exist before, or does not exist afterwards.
	Changed func(at Key, before, after *R)
	// Settled is called after one change or a whole listing; nil if nothing has to be done.
	Settled func()
	// Limit is the maximum number of records of a listing; 0 for no limit.
	Limit   int
	Records map[Key]*R
}

type entry[R any] struct {
	at      Key
	record  *R // nil for an object of no interest
	problem string
}

// Reduce implements Store.
func (m *Mirror[O, R]) Reduce(object any) any {
	e := &entry[R]{}
	switch o, ok := object.(O); {
	case ok && m.Parse != nil:
		e.at, e.record, e.problem = m.Parse(o)
	case ok:
		e.at, e.record = m.Read(o)
	}
	return e
}

// Put implements Store.
func (m *Mirror[O, R]) Put(reduced any) {
	m.put(reduced.(*entry[R]))
	m.settle()
}

// Drop implements Store.
func (m *Mirror[O, R]) Drop(reduced any) {
	m.put(&entry[R]{at: reduced.(*entry[R]).at})
	m.settle()
}

// Replace implements Store.
func (m *Mirror[O, R]) Replace(reduced []any, pause func()) {
	listed := make(map[Key]*entry[R], len(reduced))
	for _, r := range reduced {
		if e := r.(*entry[R]); (e.record != nil || e.problem != "") && (m.Limit == 0 || len(listed) < m.Limit) {
			listed[e.at] = e
		}
		pause()
	}
	if m.Unread != nil {
		m.Unread.Keep(func(at Key) bool { return listed[at] != nil })
	}
	for at := range m.Records {
		if listed[at] == nil {
			m.put(&entry[R]{at: at})
		}
		pause()
	}
	for _, e := range listed {
		m.put(e)
		pause()
	}
	m.settle()
}

// put stores the problem and the record of an object.
func (m *Mirror[O, R]) put(e *entry[R]) {
	if m.Unread != nil {
		m.Unread.Set(e.at, e.problem)
	}
	if e.record != nil || e.problem == "" {
		m.Set(e.at, e.record)
	}
}

// Set replaces the record of an object: nil for none.
func (m *Mirror[O, R]) Set(at Key, after *R) {
	before, same := m.Records[at], m.Same
	if same == nil {
		same = func(a, b *R) bool { return reflect.DeepEqual(a, b) }
	}
	switch {
	case before == nil && after == nil, before != nil && after != nil && same(before, after):
		return
	case after == nil:
		delete(m.Records, at)
	default:
		if m.Records == nil {
			m.Records = make(map[Key]*R)
		}
		m.Records[at] = after // with the strings of this key, so that those of the first record are not kept alive
	}
	if m.Changed != nil {
		m.Changed(at, before, after)
	}
}

func (m *Mirror[O, R]) settle() {
	if m.Settled != nil {
		m.Settled()
	}
}

// Interned returns the only copy of a string that many records have.
func Interned(s string) string { return unique.Make(s).Value() }

// Differences calls put for each element of after that is new or differs from its predecessor in
// before, and then gone for each element of before that has no successor. Both are sorted by compare,
// which returns 0 if one element replaces the other.
func Differences[E comparable](before, after []E, compare func(a, b *E) int, put, gone func(*E)) {
	var removed []*E
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && compare(&before[0], &after[0]) < 0:
			removed = append(removed, &before[0])
			before = before[1:]
		case len(before) == 0 || compare(&before[0], &after[0]) > 0:
			put(&after[0])
			after = after[1:]
		default:
			if before[0] != after[0] {
				put(&after[0])
			}
			before, after = before[1:], after[1:]
		}
	}
	for _, e := range removed {
		gone(e)
	}
}

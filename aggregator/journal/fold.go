package journal

import (
	"bytes"
	"errors"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A folded is an item with the state that its last record has.
type folded struct {
	stored
	at stamp
}

// resolved reports whether the item is a conflict that is over.
func (f *folded) resolved() bool {
	c := new(pb.Conflict)
	return proto.Unmarshal(f.body, c) == nil && c.GetState() == pb.Conflict_RESOLVED
}

// record returns the record that says the same.
func (f *folded) record(kind pb.Event_Kind, p place) (r record, err error) {
	e, err := f.event(kind, p, f.at)
	if err != nil {
		return r, err
	}
	if r, err = newRecord(&Change{Type: f.typ, Owner: e.GetOwner(), Conflict: e.GetConflict(), Finding: e.GetFinding(), Node: e.GetNode()}); err != nil {
		return r, err
	}
	r.id, r.body = f.id, f.body
	return r, nil
}

// from returns the segments that are needed for the state at a time.
func from(list []segment, at stamp) []segment {
	end := len(list)
	for end > 0 && list[end-1].start > at {
		end--
	}
	start := max(0, end-1)
	for start > 0 && !list[start].complete {
		start--
	}
	return list[start:end]
}

// A fold reads the state of one kind of items at a time, ordered by place.
type fold struct {
	its   []*pebble.Iterator
	at    stamp
	items []folded
}

// newFold returns a fold over the places between first and last.
func (s *store) newFold(list []segment, kind pb.Event_Kind, at stamp, first, last place) (*fold, error) {
	f := &fold{at: at}
	for _, seg := range from(list, at) {
		it, err := s.db.NewIter(&pebble.IterOptions{
			LowerBound: itemPrefix(seg.number, kind, first), UpperBound: after(itemPrefix(seg.number, kind, last)),
		})
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		it.First()
		f.its = append(f.its, it)
	}
	return f, nil
}

func (f *fold) close() (err error) {
	for _, it := range f.its {
		err = errors.Join(err, it.Close())
	}
	f.its = nil
	return err
}

// next returns the next place with its items, which are valid until the next call. The place may have
// no items. ok is false at the end.
func (f *fold) next() (p place, items []folded, ok bool, err error) {
	for _, it := range f.its {
		if !it.Valid() {
			if err := it.Error(); err != nil {
				return p, nil, false, err
			}
			continue
		}
		if at, _ := parseItemKey(it.Key()); !ok || at.compare(p) < 0 {
			p, ok = at, true
		}
	}
	if !ok {
		return p, nil, false, nil
	}
	f.items = f.items[:0]
	for _, it := range f.its {
		for ; it.Valid(); it.Next() {
			here, at := parseItemKey(it.Key())
			if here != p {
				break
			}
			if at > f.at {
				continue
			}
			v, err := it.ValueAndErr()
			if err != nil {
				return p, nil, false, err
			}
			if err := f.apply(v, at); err != nil {
				return p, nil, false, err
			}
		}
	}
	return p, f.items, true, nil
}

// apply applies one record to the items of a place.
func (f *fold) apply(v []byte, at stamp) error {
	one, err := parseValue(v)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(f.items, func(known folded) bool { return known.id == one.id })
	switch {
	case one.typ == pb.Watch_REMOVED && i >= 0:
		f.items = slices.Delete(f.items, i, i+1)
		return nil
	case one.typ == pb.Watch_REMOVED:
		return nil
	case i < 0:
		i = len(f.items)
		f.items = append(f.items, folded{})
	}
	one.body = bytes.Clone(one.body)
	f.items[i] = folded{one, at}
	return nil
}

var lastPlace = place(bytes.Repeat([]byte{0xff}, placeSize))

// fold calls do with the items of each place at a time, ordered by place.
func (s *store) fold(list []segment, kind pb.Event_Kind, at stamp, first, last place, do func(place, []folded) error) error {
	f, err := s.newFold(list, kind, at, first, last)
	if err != nil {
		return err
	}
	for {
		p, items, ok, err := f.next()
		if err == nil && ok && len(items) > 0 {
			err = do(p, items)
		}
		if err != nil || !ok {
			return errors.Join(err, f.close())
		}
	}
}

// find returns the current state of one item.
func (s *store) find(kind pb.Event_Kind, p place, id uint32) (body []byte, found bool, err error) {
	err = s.fold(s.list(), kind, math.MaxInt64, p, p, func(_ place, items []folded) error {
		for i := range items {
			if items[i].id == id {
				body, found = items[i].body, true
			}
		}
		return nil
	})
	return body, found, err
}

// A folder reads the state at the end of some segments in steps.
type folder struct {
	store *store
	list  []segment
	kind  int
	fold  *fold
}

// some calls do with the items of some places, and reports whether there are no more.
func (f *folder) some(n int, do func(pb.Event_Kind, place, []folded) error) (done bool, err error) {
	for n > 0 {
		if f.kind == len(kinds) {
			return true, nil
		}
		if f.fold == nil {
			if f.fold, err = f.store.newFold(f.list, kinds[f.kind], math.MaxInt64, place{}, lastPlace); err != nil {
				return false, err
			}
		}
		p, items, ok, err := f.fold.next()
		if err != nil {
			return false, err
		}
		if !ok {
			if err := f.fold.close(); err != nil {
				return false, err
			}
			f.fold = nil
			f.kind++
			continue
		}
		if len(items) > 0 {
			if err := do(kinds[f.kind], p, items); err != nil {
				return false, err
			}
		}
		n -= 1 + len(items)
	}
	return false, nil
}

func (f *folder) close() {
	if f.fold != nil {
		_ = f.fold.close() // nothing more is read
		f.fold = nil
	}
}

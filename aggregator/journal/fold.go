package journal

import (
	"errors"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// resolved reports whether the item is a conflict that is over.
func (s *stored) resolved() bool {
	c := new(pb.Conflict)
	return proto.Unmarshal(s.item, c) == nil && c.GetState() == pb.Conflict_RESOLVED
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
	segs  []segment
	at    stamp
	items []stored
	// held has the items, whose values end when an iterator moves on.
	held []byte
}

// newFold returns a fold over the places between first and last.
func (s *store) newFold(list []segment, kind pb.Event_Kind, at stamp, first, last place) (*fold, error) {
	f := &fold{at: at, segs: from(list, at)}
	for _, seg := range f.segs {
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
func (f *fold) next() (p place, items []stored, ok bool, err error) {
	for i, it := range f.its {
		if !it.Valid() {
			if err := it.Error(); err != nil {
				return p, nil, false, err
			}
			continue
		}
		at, _, _, _, err := parseItemKey(f.segs[i], it.Key())
		if err != nil {
			return p, nil, false, err
		}
		if !ok || string(at) < string(p) {
			p, ok = place(at), true
		}
	}
	if !ok {
		return p, nil, false, nil
	}
	f.items, f.held = f.items[:0], f.held[:0]
	for i, it := range f.its {
		for ; it.Valid(); it.Next() {
			here, one, err := parseItem(f.segs[i], it)
			if err != nil {
				return p, nil, false, err
			}
			if string(here) != string(p) {
				break
			}
			if one.at <= f.at {
				f.apply(one)
			}
		}
	}
	return p, f.items, true, nil
}

// apply applies one record to the items of a place.
func (f *fold) apply(one stored) {
	i := slices.IndexFunc(f.items, func(known stored) bool { return known.id == one.id })
	switch {
	case one.typ == pb.Watch_REMOVED && i >= 0:
		f.items = slices.Delete(f.items, i, i+1)
		return
	case one.typ == pb.Watch_REMOVED:
		return
	case i >= 0:
		one.item = append(f.items[i].item[:0], one.item...)
		f.items[i] = one
		return
	case len(f.items) == 0:
		f.held = f.held[:0]
	}
	start := len(f.held)
	f.held = append(f.held, one.item...)
	one.item = f.held[start:len(f.held):len(f.held)]
	f.items = append(f.items, one)
}

// fold calls do with the items of each place at a time, ordered by place.
func (s *store) fold(list []segment, kind pb.Event_Kind, at stamp, first, last place, do func(place, []stored) error) error {
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
func (s *store) find(about subject, id uint32) (e *pb.Event, err error) {
	err = s.fold(s.list(), about.kind, math.MaxInt64, about.place, about.place, func(p place, items []stored) error {
		for i := range items {
			if items[i].id == id && p == about.place {
				e, err = s.event(&items[i], about, items[i].at)
				return err
			}
		}
		return nil
	})
	return e, err
}

// A folder reads the state at the end of some segments in steps.
type folder struct {
	store *store
	list  []segment
	kind  int
	fold  *fold
}

// some calls do with the items of some places, and reports whether there are no more.
func (f *folder) some(n int, do func(pb.Event_Kind, place, []stored) error) (done bool, err error) {
	for ; n > 0 && f.kind < len(kinds); n-- {
		if f.fold == nil {
			if f.fold, err = f.store.newFold(f.list, kinds[f.kind], math.MaxInt64, firstPlace, lastPlace); err != nil {
				return false, err
			}
		}
		p, items, ok, err := f.fold.next()
		if err == nil && len(items) > 0 {
			err = do(kinds[f.kind], p, items)
			n -= len(items)
		}
		if err == nil && !ok {
			err = f.close()
			f.kind++
		}
		if err != nil {
			return false, err
		}
	}
	return f.kind == len(kinds), nil
}

func (f *folder) close() (err error) {
	if f.fold != nil {
		err = f.fold.close()
		f.fold = nil
	}
	return err
}

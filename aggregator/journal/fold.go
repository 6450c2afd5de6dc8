package journal

import (
	"bytes"
	"iter"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

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

// A folded has the items of one kind at a place, perhaps none. They are valid until the next ones are read.
type folded struct {
	subject
	items []stored
}

// fold yields the items of some kinds at a time, ordered by place. It ends with the first error.
func (s *store) fold(list []segment, kinds []pb.Event_Kind, at stamp, first, last place) iter.Seq2[folded, error] {
	return func(yield func(folded, error) bool) {
		f := folding{at: at, segs: from(list, at)}
		defer func() {
			for _, it := range f.its {
				_ = it.Close() // next has returned its error
			}
		}()
		for range f.segs {
			it, err := s.db.NewIter(nil)
			if err != nil {
				yield(folded{}, err)
				return
			}
			f.its = append(f.its, it)
		}
		for _, kind := range kinds {
			for i, it := range f.its {
				number := f.segs[i].number
				it.SetBounds(itemPrefix(number, kind, first), after(itemPrefix(number, kind, last)))
				it.First()
			}
			for more := true; more; {
				var p place
				var err error
				p, more, err = f.next()
				if (more || err != nil) && !yield(folded{subject{kind, p}, f.items}, err) || err != nil {
					return
				}
			}
		}
	}
}

// A folding applies the records of some segments in order.
type folding struct {
	its   []*pebble.Iterator
	segs  []segment
	at    stamp
	items []stored
}

// next reads the items of the next place, which may have none. ok is false at the end.
func (f *folding) next() (p place, ok bool, err error) {
	f.items = f.items[:0]
	for i, it := range f.its {
		if !it.Valid() {
			if err := it.Error(); err != nil {
				return p, false, err
			}
			continue
		}
		at, _, _, _, err := parseItemKey(f.segs[i], it.Key())
		if err != nil {
			return p, false, err
		}
		if !ok || string(at) < string(p) {
			p, ok = place(at), true
		}
	}
	for i, it := range f.its {
		for ; it.Valid(); it.Next() {
			here, one, err := parseItem(f.segs[i], it)
			if err != nil {
				return p, false, err
			}
			if string(here) != string(p) {
				break
			}
			if one.at > f.at {
				continue
			}
			f.items = slices.DeleteFunc(f.items, func(known stored) bool { return known.id == one.id })
			if one.typ != pb.Watch_REMOVED {
				one.item = bytes.Clone(one.item) // it ends when the iterator moves on
				f.items = append(f.items, one)
			}
		}
	}
	return p, ok, nil
}

func (s *store) find(about subject, id uint32) (*pb.Event, error) {
	for f, err := range s.fold(s.list(), []pb.Event_Kind{about.kind}, math.MaxInt64, about.place, about.place) {
		if err != nil {
			return nil, err
		}
		for i := range f.items {
			if f.items[i].id == id && f.place == about.place {
				return s.event(&f.items[i], about, f.items[i].at)
			}
		}
	}
	return nil, nil
}

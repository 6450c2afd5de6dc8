package journal

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Succession is how an owner of an address followed another one.
type Succession struct {
	// Owner is the last other owner. Until is when it was found to have left; if NotBefore is not zero,
	// it left between the two times.
	Owner            *pb.Owner
	Until, NotBefore time.Time
	// Since is when the owner itself was found to have begun; zero if that is not known.
	Since time.Time
}

// mostRead is the largest number of records that Before reads.
const mostRead = 1000

// Before returns the last other owner that had an address before one of its owners, as far as it is
// recorded; nil if there is none. is reports whether a recorded owner is the owner itself, and other
// whether it is another one.
func (j *Journal) Before(a netip.Addr, is, other func(*pb.Owner) bool) (*Succession, error) {
	w := walkBack{about: subject{pb.Event_OWNER, placeOf(a)}, is: is, other: other, removed: make(map[uint32]stored)}
	err := j.view(func(s *store) error {
		for _, seg := range slices.Backward(s.list()) {
			prefix := itemPrefix(seg.number, w.about.kind, w.about.place)
			it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
			if err != nil {
				return err
			}
			for it.Last(); it.Valid() && !w.done(); it.Prev() {
				if err := w.read(s, seg, it); err != nil {
					return errors.Join(err, it.Close())
				}
			}
			if err := errors.Join(it.Error(), it.Close()); err != nil || w.done() {
				return err
			}
		}
		return nil
	})
	if err != nil || w.found.Owner == nil {
		return nil, err
	}
	return &w.found, nil
}

// A walkBack reads the records of an address, the latest first.
type walkBack struct {
	about     subject
	is, other func(*pb.Owner) bool
	// removed has the records of owners that left, until the walk comes to the record that says who they
	// were.
	removed map[uint32]stored
	records int
	found   Succession
}

// done reports whether no earlier record can change the result.
func (w *walkBack) done() bool {
	if w.records >= mostRead {
		return true
	}
	if w.found.Owner == nil {
		return false
	}
	for _, gone := range w.removed {
		if timeOf(gone.at).AsTime().After(w.found.Until) {
			return false
		}
	}
	return true
}

// read reads one record.
func (w *walkBack) read(s *store, seg segment, it *pebble.Iterator) error {
	w.records++
	_, one, err := parseItem(seg, it)
	if err != nil {
		return err
	}
	if one.typ == pb.Watch_REMOVED {
		one.item = nil // it ends when the iterator moves on
		w.removed[one.id] = one
		return nil
	}
	e, err := s.event(&one, w.about, one.at)
	if err != nil {
		return err
	}
	if one.typ == pb.Watch_ADDED && one.at >= seg.start && w.found.Since.IsZero() && one.notBefore == 0 && w.is(e.GetOwner()) {
		w.found.Since = timeOf(one.at).AsTime()
	}
	gone, left := w.removed[one.id]
	if !left {
		return nil
	}
	delete(w.removed, one.id)
	until := timeOf(gone.at).AsTime()
	if !w.other(e.GetOwner()) || w.found.Owner != nil && w.found.Until.After(until) {
		return nil
	}
	w.found.Owner, w.found.Until, w.found.NotBefore = e.GetOwner(), until, time.Time{}
	w.found.Owner.State = pb.Owner_GONE
	if gone.notBefore != 0 {
		w.found.NotBefore = timeOf(gone.notBefore).AsTime()
	}
	return nil
}

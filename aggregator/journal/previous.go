package journal

import (
	"net/netip"
	"slices"
	"time"

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
	about := subject{pb.Event_OWNER, placeOf(a)}
	var found Succession
	// removed has the records of owners that left, until the walk back comes to the record that says who they were.
	removed := make(map[uint32]stored)
	records := 0
	// done reports whether no earlier record can change the result.
	done := func() bool {
		if records >= mostRead || found.Owner == nil {
			return records >= mostRead
		}
		for _, gone := range removed {
			if timeOf(gone.at).AsTime().After(found.Until) {
				return false
			}
		}
		return true
	}
	err := j.view(func(s *store) error {
		it, err := s.db.NewIter(nil)
		if err != nil {
			return err
		}
		defer func() { _ = it.Close() }() // its error is returned below
		for _, seg := range slices.Backward(s.list()) {
			prefix := itemPrefix(seg.number, about.kind, about.place)
			it.SetBounds(prefix, after(prefix))
			for it.Last(); it.Valid() && !done(); it.Prev() {
				records++
				_, one, err := parseItem(seg, it)
				if err != nil {
					return err
				}
				if one.typ == pb.Watch_REMOVED {
					one.item = nil // it ends when the iterator moves on
					removed[one.id] = one
					continue
				}
				e, err := s.event(&one, about, one.at)
				if err != nil {
					return err
				}
				if one.typ == pb.Watch_ADDED && one.at >= seg.start && found.Since.IsZero() && one.notBefore == 0 && is(e.GetOwner()) {
					found.Since = timeOf(one.at).AsTime()
				}
				gone, left := removed[one.id]
				delete(removed, one.id)
				until := timeOf(gone.at).AsTime()
				if !left || !other(e.GetOwner()) || found.Owner != nil && found.Until.After(until) {
					continue
				}
				found.Owner, found.Until, found.NotBefore = e.GetOwner(), until, time.Time{}
				found.Owner.State = pb.Owner_GONE
				if gone.notBefore != 0 {
					found.NotBefore = timeOf(gone.notBefore).AsTime()
				}
			}
			if err := it.Error(); err != nil || done() {
				return err
			}
		}
		return nil
	})
	if err != nil || found.Owner == nil {
		return nil, err
	}
	return &found, nil
}

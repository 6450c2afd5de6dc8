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
func (j *Journal) Before(a netip.Addr, is, other func(*pb.Owner) bool) (found *Succession, err error) {
	out := &Succession{}
	n := 0
	err = j.view(func(s *store) error {
		for _, seg := range slices.Backward(s.list()) {
			prefix := itemPrefix(seg.number, pb.Event_OWNER, placeOf(a))
			it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
			if err != nil {
				return err
			}
			for it.Last(); it.Valid() && out.Owner == nil && n < mostRead; it.Prev() {
				n++
				if err := out.read(it, placeOf(a), is, other); err != nil {
					return errors.Join(err, it.Close())
				}
			}
			if err := errors.Join(it.Error(), it.Close()); err != nil || out.Owner != nil || n >= mostRead {
				return err
			}
		}
		return nil
	})
	if err != nil || out.Owner == nil {
		return nil, err
	}
	return out, nil
}

// read reads a record that is older than those before.
func (s *Succession) read(it *pebble.Iterator, p place, is, other func(*pb.Owner) bool) error {
	v, err := it.ValueAndErr()
	if err != nil {
		return err
	}
	one, err := parseValue(v)
	if err != nil || one.copied {
		return err
	}
	e, err := one.event(pb.Event_OWNER, p, stampOf(it.Key()))
	switch {
	case err != nil:
		return err
	case one.typ == pb.Watch_ADDED && s.Since.IsZero() && e.GetNotBefore() == nil && is(e.GetOwner()):
		s.Since = e.GetTime().AsTime()
	case one.typ == pb.Watch_REMOVED && other(e.GetOwner()):
		s.Owner, s.Until = e.GetOwner(), e.GetTime().AsTime()
		if e.GetNotBefore() != nil {
			s.NotBefore = e.GetNotBefore().AsTime()
		}
	}
	return nil
}

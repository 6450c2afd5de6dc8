package journal

import (
	"hash/maphash"
	"math"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A comparison finds what has changed in a gap: it compares the present state of each kind of items
// with the state that was recorded last.
type comparison struct {
	seed  maphash.Seed
	kinds map[pb.Event_Kind]*compared
}

// Compared is the comparison of one kind.
type compared struct {
	// begun is set while changes are recorded: since the present state began to arrive.
	begun bool
	// known has the items before the gap that have not been seen again, with a hash of their state. It
	// is nil if the present state is complete.
	known map[itemID]uint64
	// over has the conflicts that were resolved before the gap, with a hash of their state.
	over map[itemID]uint64
}

// An itemID identifies an item of a kind.
type itemID struct {
	place place
	id    uint32
}

// begin reads the state of a kind before the gap.
func (c *comparison) begin(s *store, kind pb.Event_Kind) error {
	state := &compared{known: make(map[itemID]uint64), over: make(map[itemID]uint64), begun: true}
	c.kinds[kind] = state
	for f, err := range s.fold(s.list(), []pb.Event_Kind{kind}, math.MaxInt64, firstPlace, lastPlace) {
		if err != nil {
			return err
		}
		for i := range f.items {
			e, err := s.event(&f.items[i], f.subject, f.items[i].at)
			if err != nil {
				return err
			}
			like, err := c.likenessOf(e)
			if err != nil {
				return err
			}
			if kind == pb.Event_CONFLICT && f.items[i].resolved() {
				state.over[itemID{f.place, f.items[i].id}] = like
			} else {
				state.known[itemID{f.place, f.items[i].id}] = like
			}
		}
	}
	return nil
}

// likenessOf returns the likeness of the item of a recorded event.
func (c *comparison) likenessOf(e *pb.Event) (uint64, error) {
	r, err := newRecord(change(e))
	if err != nil {
		return 0, err
	}
	return likeness(c.seed, r.item)
}

// begun reports whether changes of a kind are to be recorded; otherwise they are part of the present
// state, which follows.
func (c *comparison) begun(kind pb.Event_Kind) bool { return c.kinds[kind].begun }

// present compares an item of the present state with what is known, and reports whether it is to be
// recorded.
func (c *comparison) present(r *record) (differs bool, err error) {
	state := c.kinds[r.kind]
	id := itemID{r.place, r.id}
	before, known := state.known[id]
	over, ended := state.over[id]
	delete(state.known, id)
	like, err := likeness(c.seed, r.item)
	if r.typ = pb.Watch_ADDED; known { // or a resolved conflict that is active again
		r.typ = pb.Watch_UPDATED
	}
	same := known && before == like || ended && over == like
	return !same, err
}

// gone returns the items that are not in the present state, which is complete.
func (c *comparison) gone(kind pb.Event_Kind) map[itemID]uint64 {
	known := c.kinds[kind].known
	c.kinds[kind].known, c.kinds[kind].over = nil, nil
	return known
}

// complete reports whether the present state of all kinds is complete.
func (c *comparison) complete() bool {
	for _, state := range c.kinds {
		if !state.begun || state.known != nil {
			return false
		}
	}
	return true
}

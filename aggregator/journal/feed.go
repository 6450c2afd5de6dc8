package journal

import (
	"hash/maphash"
	"math"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Compared is the comparison of the present state of one kind of items with the state that was recorded last, which
// finds what has changed in a gap.
type compared struct {
	// begun is set while changes are recorded: since the present state began to arrive.
	begun bool
	// known has the items before the gap that have not been seen again. It is nil if the present state is complete.
	known map[itemID]formerItem
	// over has the conflicts that were resolved before the gap, with a hash of their state.
	over map[itemID]uint64
	// behind is the time of the change that was recorded last, if others may have happened since; 0 if not.
	behind stamp
}

// A formerItem is an item before the gap: a hash of its state, and the episode of a conflict.
type formerItem struct {
	like    uint64
	episode uint32
}

type itemID struct {
	place place
	id    uint32
}

// A Feed records the changes of one kind of items. Its methods wait while the queue is full: the
// caller loses events meanwhile, and then calls Lost. They are called by one goroutine, in this order:
// Begin, Present and Changed, Complete, Changed. After Lost, it starts again with Begin.
type Feed struct {
	j    *Journal
	kind pb.Event_Kind
}

// Feed returns the feed of a kind.
func (j *Journal) Feed(kind pb.Event_Kind) Feed { return Feed{j, kind} }

// Begin announces that the present state follows. It reads the state before the gap, with which that is compared. It
// does not keep the writer from recording other kinds: a store with millions of records takes seconds, in which
// these would lose changes, too, and begin again as well.
func (f Feed) Begin() error {
	var s *store
	var seed maphash.Seed
	begun, abandoned := make(chan struct{}), *f.j.abandoned.Load()
	err := f.j.put(func(w *writer) error {
		defer close(begun)
		s, seed = w.s, w.seed
		w.kinds[f.kind] = &compared{}
		w.j.progress.forget(f.kind)
		return w.commit()
	})
	if err != nil {
		return err
	}
	select {
	case <-begun:
	case <-abandoned: // the caller begins again
		return ErrReplaced
	case <-f.j.done:
		return errStopped
	}
	state := &compared{known: make(map[itemID]formerItem), over: make(map[itemID]uint64), begun: true}
	err = f.j.view(func(now *store) error {
		if now != s { // it was replaced, so that the caller begins again
			return nil
		}
		for at, err := range s.fold(s.list(), []pb.Event_Kind{f.kind}, math.MaxInt64, firstPlace, lastPlace) {
			if err != nil {
				return err
			}
			for i := range at.items {
				e, err := s.event(&at.items[i], at.subject, at.items[i].at)
				if err != nil {
					return err
				}
				like, err := likenessOf(seed, e)
				if err != nil {
					return err
				}
				if f.kind == pb.Event_CONFLICT && at.items[i].resolved() {
					state.over[itemID{at.place, at.items[i].id}] = like
				} else {
					state.known[itemID{at.place, at.items[i].id}] = formerItem{like, e.GetConflict().GetEpisode()}
				}
			}
		}
		return nil
	})
	return f.j.put(func(w *writer) error {
		switch {
		case w.s != s: // the error is not about this store
		case err != nil: // the writer opens the store again, or sets it aside
			return err
		default:
			w.kinds[f.kind] = state
		}
		return nil
	})
}

// Present records an item of the present state, if it is new or has changed since the last record.
func (f Feed) Present(c *Change) error {
	r, err := newRecord(c)
	if err != nil {
		return err
	}
	return f.j.put(func(w *writer) error {
		state, id := w.kinds[r.kind], itemID{r.place, r.id}
		before, known := state.known[id]
		over, ended := state.over[id]
		delete(state.known, id)
		like, err := likeness(w.seed, r.item)
		if r.typ = pb.Watch_ADDED; known { // or a resolved conflict that is active again
			r.typ = pb.Watch_UPDATED
		}
		if err != nil || known && before.like == like || ended && over == like {
			return err
		}
		r.notBefore = w.gapFrom()
		if err := w.endBefore(&r, before); err != nil {
			return err
		}
		return w.record(&r, w.fresh)
	})
}

// Changed records a change of an item. Between Begin and Complete, it is a change of an item that was
// present, or of one that will not be sent as present.
func (f Feed) Changed(c *Change) error {
	r, err := newRecord(c)
	if err != nil {
		return err
	}
	revision, note := c.Revision, c.Note
	return f.j.put(func(w *writer) error {
		if !w.kinds[r.kind].begun { // it is part of the present state, which follows
			return nil
		}
		w.kinds[r.kind].behind = r.at
		if news, err := w.news(&r); err != nil || !news {
			return err
		}
		id := itemID{r.place, r.id}
		if err := w.endBefore(&r, w.kinds[r.kind].known[id]); err != nil {
			return err
		}
		delete(w.kinds[r.kind].known, id) // it is not gone
		if err := w.record(&r, false); err != nil {
			return err
		}
		w.mark(r.kind, revision)
		return w.write(note)
	})
}

// Complete announces that the present state was sent. Other items are gone.
func (f Feed) Complete() error {
	return f.j.put(func(w *writer) error { return w.complete(f.kind) })
}

// Idle announces that everything that has happened was sent, until the next change.
func (f Feed) Idle() error {
	return f.j.put(func(w *writer) error { w.kinds[f.kind].behind = 0; return nil })
}

// Passed announces that all changes before a revision were sent, for Mark.
func (f Feed) Passed(revision uint64) error {
	return f.j.put(func(w *writer) error {
		if w.kinds[f.kind].begun {
			w.mark(f.kind, revision)
		}
		return nil
	})
}

// Lost announces that changes were lost; n may be 0 if their number is not known.
func (f Feed) Lost(n uint64) error {
	return f.j.put(func(w *writer) error { w.lose(f.kind, n, nil); return nil })
}

// Flush waits until everything before is written.
func (f Feed) Flush() error {
	written, abandoned := make(chan struct{}), *f.j.abandoned.Load()
	if err := f.j.put(func(w *writer) error { w.waiting = append(w.waiting, written); return nil }); err != nil {
		return err
	}
	select {
	case <-written:
		return nil
	case <-abandoned:
		return nil // what was not written is lost
	case <-f.j.done:
		return errStopped
	}
}

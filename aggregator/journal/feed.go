package journal

import (
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Feed records the changes of one kind of items. Its methods wait while the queue is full: the
// caller loses events meanwhile, and then calls Lost. They are called by one goroutine, in this order:
// Begin, Present and Changed, Complete, Changed. After Lost, it starts again with Begin.
type Feed struct {
	j    *Journal
	kind pb.Event_Kind
}

// Feed returns the feed of a kind.
func (j *Journal) Feed(kind pb.Event_Kind) Feed { return Feed{j, kind} }

// Begin announces that the present state follows.
func (f Feed) Begin() error {
	return f.j.put(func(w *writer) error {
		if err := w.commit(); err != nil {
			return err
		}
		w.j.progress.forget(f.kind)
		return w.comparison.begin(w.s, f.kind)
	})
}

// Present records an item of the present state, if it is new or has changed since the last record.
func (f Feed) Present(c *Change) error {
	r, err := newRecord(c)
	if err != nil {
		return err
	}
	return f.j.put(func(w *writer) error {
		differs, err := w.present(&r)
		if err != nil || !differs {
			return err
		}
		r.notBefore = w.gapFrom()
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
	return f.j.put(func(w *writer) error { return w.apply(&r, revision, note) })
}

// Complete announces that the present state was sent. Other items are gone.
func (f Feed) Complete() error {
	return f.j.put(func(w *writer) error { return w.complete(f.kind) })
}

// Passed announces that all changes before a revision were sent, for Mark.
func (f Feed) Passed(revision uint64) error {
	return f.j.put(func(w *writer) error {
		if w.begun(f.kind) {
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
	written := make(chan struct{})
	if err := f.j.put(func(w *writer) error { w.waiting = append(w.waiting, written); return nil }); err != nil {
		return err
	}
	select {
	case <-written:
		return nil
	case <-f.j.done:
		return errStopped
	}
}

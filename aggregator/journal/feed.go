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
func (f Feed) Begin() error { return f.put(op{what: begins}) }

// Present records an item of the present state, if it is new or has changed since the last record.
func (f Feed) Present(c *Change) error { return f.record(present, c) }

// Changed records a change of an item. Between Begin and Complete, it is a change of an item that was
// present, or of one that will not be sent as present.
func (f Feed) Changed(c *Change) error { return f.record(changed, c) }

// Complete announces that the present state was sent. Other items are gone.
func (f Feed) Complete() error { return f.put(op{what: complete}) }

// Passed announces that all changes before a revision were sent, for Mark.
func (f Feed) Passed(revision uint64) error { return f.put(op{what: passed, revision: revision}) }

// Lost announces that changes were lost; n may be 0 if their number is not known.
func (f Feed) Lost(n uint64) error { return f.put(op{what: lost, lost: n}) }

// Flush waits until everything before is written.
func (f Feed) Flush() error {
	written := make(chan struct{})
	if err := f.put(op{what: reached, reached: written}); err != nil {
		return err
	}
	select {
	case <-written:
		return nil
	case <-f.j.done:
		return errStopped
	}
}

func (f Feed) record(what what, c *Change) error {
	r, err := newRecord(c)
	if err != nil {
		return err
	}
	return f.put(op{what: what, record: r, revision: c.Revision, note: c.Note})
}

func (f Feed) put(o op) error {
	o.kind = f.kind
	select {
	case f.j.queue <- o:
		return nil
	case <-f.j.done:
		return errStopped
	}
}

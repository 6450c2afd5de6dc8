package journal

import (
	"bytes"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// metaNote is the key of the note in the meta segment: a value that the caller of the feeds chooses, such
// as its position in a stream. It is written with the changes that it belongs to, or not at all.
const metaNote = 'n'

// now is the time up to which the feeds have sent everything.
func (j *Journal) now() time.Time {
	if j.Reached != nil {
		return j.Reached()
	}
	return j.Clock()
}

// A Resumption is where the feeds of a stream continue.
type Resumption struct {
	// Note is the last note; nil if the store has none.
	Note []byte
	// Begun is set if the store has a complete state, so that changes can follow.
	Begun bool
	// Replaced is closed when the store is replaced, and has to be resumed again.
	Replaced <-chan struct{}
}

// Resumption returns where the feeds of a stream continue. It waits until the journal is open.
func (j *Journal) Resumption() (r Resumption, err error) {
	err = j.view(func(s *store) error { // which holds the lock
		r.Replaced = j.replaced
		_, alive, err := s.last()
		if err != nil {
			return err
		}
		r.Begun = alive != 0
		v, closer, err := s.db.Get(metaKey(metaNote, 0))
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		r.Note = bytes.Clone(v)
		return closer.Close()
	})
	return r, err
}

// Resume announces that the changes after a complete state follow, without another state. What was sent
// before does not count if the store has been replaced meanwhile.
func (j *Journal) Resume(r Resumption) error {
	return j.put(func(w *writer) error {
		if r.Replaced != j.replaced {
			return nil
		}
		for _, state := range w.kinds {
			state.begun, state.known, state.over = true, nil, nil
		}
		w.whole = true
		w.setGap(nil)
		return nil
	})
}

// Note writes a note after all changes that were sent before, unless the store has been replaced.
func (j *Journal) Note(r Resumption, note []byte) error {
	return j.put(func(w *writer) error {
		if r.Replaced != j.replaced {
			return nil
		}
		return w.write(note)
	})
}

// Missing records a gap of the journal that the changes are from, which has ended.
func (j *Journal) Missing(g *pb.Gap, note []byte) error {
	return j.put(func(w *writer) error {
		if !w.whole {
			return nil // it is in a gap itself
		}
		return errors.Join(w.end(g, g.GetUntil().AsTime()), w.write(note))
	})
}

// LoseSince announces that no changes since a time follow, until all kinds begin again.
func (j *Journal) LoseSince(from time.Time, reason pb.Gap_Reason) error {
	for _, kind := range kinds {
		g := &pb.Gap{Reason: reason}
		if !from.IsZero() {
			g.From = timestamppb.New(from)
		}
		if err := j.put(func(w *writer) error { w.lose(kind, 0, g); return nil }); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) write(note []byte) error {
	if note == nil {
		return nil
	}
	return w.pending().Set(metaKey(metaNote, 0), note, nil)
}

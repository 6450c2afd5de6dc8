package journal

import (
	"encoding/binary"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// marksKept is the number of marks of a feed that are kept.
const marksKept = 4096

// A mark connects a revision of the caller of a feed with the journal: exactly the changes before the
// revision are recorded up to the stamp.
type mark struct {
	kind     pb.Event_Kind
	revision uint64
	at       stamp
}

type marks struct {
	latest mark
	all    [marksKept]mark
}

// mark notes that the changes of a feed before a revision are in the batch. An unknown revision is 0.
func (w *writer) mark(kind pb.Event_Kind, revision uint64) {
	if revision != 0 {
		w.marks = append(w.marks, mark{kind, revision, w.last})
	}
}

// forget forgets the marks of a feed that has lost changes, or begins.
func (p *progress) forget(kind pb.Event_Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.marks, kind)
}

// A Mark is a revision, and the time in the journal up to which exactly the changes before it are
// recorded.
type Mark struct {
	Revision uint64
	At       time.Time
}

// Mark returns the latest mark of a kind that is on the disk. known is set if there is one and the
// journal has the complete state at that time. more is closed when that changes.
func (j *Journal) Mark(kind pb.Event_Kind) (m Mark, known bool, more <-chan struct{}) {
	_, whole, more := j.Written()
	p := &j.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.marks[kind]
	if of == nil || !whole || !p.whole {
		return Mark{}, false, more
	}
	return Mark{of.latest.revision, time.UnixMicro(of.latest.at)}, true, more
}

// MarkOf returns the mark of a revision if it is one of the latest ones.
func (j *Journal) MarkOf(kind pb.Event_Kind, revision uint64) (m Mark, known bool) {
	p := &j.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.marks[kind]
	if of == nil || !p.whole {
		return Mark{}, false
	}
	one := of.all[revision%marksKept]
	return Mark{revision, time.UnixMicro(one.at)}, revision != 0 && one.revision == revision
}

// Writer returns the instance of the process that wrote the journal at a time. known is not set if the
// journal was begun later.
func (j *Journal) Writer(at time.Time) (instance int64, known bool, err error) {
	err = j.view(func(s *store) error {
		return s.scan(tablePrefix(0, metaInstance), metaKey(metaInstance, uint64(micro(at))+1), func(_, v []byte) error {
			if len(v) != 8 {
				return errDamagedRecord
			}
			instance, known = int64(binary.BigEndian.Uint64(v)), true
			return nil
		})
	})
	return instance, known, err
}

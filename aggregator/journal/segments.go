package journal

import (
	"encoding/binary"
	"errors"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// copiedAtOnce is the number of items that are copied into a new segment between two writes.
	copiedAtOnce = 4096
	// segmentRecords is the largest number of records in a segment.
	segmentRecords = 2_000_000
	// resolvedKept is how long resolved conflicts are copied into new segments, so that the next episode
	// of a conflict is known as such.
	resolvedKept = 24 * time.Hour
)

// Segments add records to the current segment of a store. They begin new segments, copy the state into
// them, and drop old ones. The writer uses them.
type segments struct {
	s       *store
	current segment
	records int   // in the current segment
	last    stamp // of the last record
	copied  stamp // number of copies in the current segment
	batch   *pebble.Batch
	// copying reads the state at the end of the previous segment, to be copied, and stop ends it; nil if there is
	// nothing to copy.
	copying func() (folded, error, bool)
	stop    func()
}

// open continues the last segment of a store, and returns the stamp at which the journal was last
// complete; 0 if it was never.
func (g *segments) open(s *store) (alive stamp, err error) {
	*g = segments{s: s}
	if g.last, alive, err = s.last(); err != nil {
		return 0, err
	}
	if list := s.list(); len(list) > 0 {
		g.current = list[len(list)-1]
		g.last = max(g.last, g.current.start)
	}
	switch {
	case g.current.number == 0:
	case !g.current.complete:
		g.copy()
	case alive == 0:
		n, _, err := s.number(metaKey(metaCopied, 0))
		g.copied = stamp(n)
		return 0, err
	}
	return alive, nil
}

func (g *segments) close() {
	if g.copying != nil {
		g.stop()
		g.copying, g.stop = nil, nil
	}
}

func (g *segments) pending() *pebble.Batch {
	if g.batch == nil {
		g.batch = g.s.db.NewBatch()
	}
	return g.batch
}

func (g *segments) commit() error {
	if g.batch == nil {
		return nil
	}
	b := g.batch
	g.batch = nil
	return errors.Join(
		b.Set(metaKey(metaLast, 0), binary.BigEndian.AppendUint64(nil, uint64(g.last)), nil),
		b.Set(metaKey(metaCopied, 0), binary.BigEndian.AppendUint64(nil, uint64(g.copied)), nil),
		b.Commit(pebble.Sync), b.Close(),
	)
}

// add adds a record to the batch. first is set if it is not known since when the item is like this,
// because the journal has just begun: the record is then a copy of a state that was not recorded.
func (g *segments) add(r *record, first bool) error {
	if err := g.roll(r.at); err != nil {
		return err
	}
	g.records++
	if first {
		return g.addCopy(r)
	}
	r.at = min(max(r.at, g.last+1), g.current.limit()-1)
	g.last = r.at
	if err := g.pending().Set(timeKey(g.current.number, r.at, r.subject), nil, nil); err != nil {
		return err
	}
	return g.put(r)
}

func (g *segments) addCopy(r *record) error {
	r.at = min(g.current.base()+g.copied, g.current.start-1)
	g.copied++
	return g.put(r)
}

func (g *segments) put(r *record) error {
	b := g.pending()
	v, err := r.value()
	if err != nil {
		return err
	}
	key := itemKey(g.current, r.kind, r.place, r.at)
	if r.notBefore == 0 {
		key[len(key)-1] |= byte(r.typ)
	}
	if len(v) <= maxInKey {
		key, v = append(key, v...), nil
	}
	err = b.Set(key, v, nil)
	if r.typ == pb.Watch_REMOVED && g.copying == nil {
		return err // the segment has the terms of the item
	}
	for _, one := range r.terms {
		err = errors.Join(err, b.Set(r.append(termPrefix(g.current.number, one)), nil, nil))
	}
	return err
}

// roll begins a new segment if a record needs one.
func (g *segments) roll(at stamp) error {
	for g.copying != nil && at >= g.current.limit() { // the clock was set ahead
		if err := g.copySome(); err != nil {
			return err
		}
	}
	if g.current.number != 0 && g.records < segmentRecords && day(at) <= day(g.current.start) || g.copying != nil {
		return nil
	}
	list := g.s.list()
	// No record has the stamp of the start, so that the state at that stamp is that of the copies.
	next := segment{number: g.current.number + 1, start: max(at-1, g.last+1), complete: len(list) == 0}
	if err := errors.Join(g.commit(), g.s.setSegment(g.pending(), next), g.commit()); err != nil {
		return err
	}
	g.last = next.start
	g.s.setList(append(slices.Clip(list), next))
	g.current, g.records, g.copied = next, 0, 0
	if !next.complete {
		g.copy()
	}
	return nil
}

func day(at stamp) int64 { return at / (24 * 60 * 60 * 1e6) }

// copy begins to copy the state at the end of the previous segment into the current one.
func (g *segments) copy() {
	list := g.s.list()
	g.copying, g.stop = iter.Pull2(g.s.fold(list[:len(list)-1], kinds[:], math.MaxInt64, firstPlace, lastPlace))
}

func (g *segments) copySome() error {
	if g.copying == nil {
		return nil
	}
	for n := 0; ; {
		if n >= copiedAtOnce {
			return nil
		}
		f, err, more := g.copying()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		n += 1 + len(f.items)
		for i := range f.items {
			one := &f.items[i]
			if f.kind == pb.Event_CONFLICT && one.resolved() && one.at < g.current.start-resolvedKept.Microseconds() {
				continue
			}
			e, err := g.s.event(one, f.subject, one.at)
			if err != nil {
				return err
			}
			r, err := newRecord(change(e))
			if err != nil {
				return err
			}
			r.id = one.id
			if err := g.addCopy(&r); err != nil {
				return err
			}
		}
	}
	g.close()
	g.current.complete = true
	if err := errors.Join(g.s.setSegment(g.pending(), g.current), g.commit()); err != nil {
		return err
	}
	list := g.s.list()
	g.s.setList(append(list[:len(list)-1:len(list)-1], g.current))
	// Nothing is added to the segment before: in one level, it takes less space and is read faster.
	g.s.compact(tablePrefix(list[len(list)-2].number, 0), tablePrefix(g.current.number, 0))
	return nil
}

package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// metaCursor is the table of cursors in the meta segment:
//
//	0 metaCursor NAME                         -> STAMP up to which the reader has processed all records
const metaCursor = 'c'

// progress is how far the journal has been written.
type progress struct {
	mu    sync.Mutex
	until stamp
	whole bool
	// more is closed when more is written.
	more chan struct{}
	// marks are those of each feed.
	marks map[pb.Event_Kind]*marks
}

// written announces that all records up to a stamp are written, and which marks belong to them. whole
// is set if the present state was recorded, and all changes since then.
func (p *progress) written(until stamp, whole bool, more []mark) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == until && p.whole == whole && len(more) == 0 {
		return
	}
	p.until, p.whole = until, whole
	for _, m := range more {
		of := p.marks[m.kind]
		if of == nil {
			of = &marks{}
			p.marks[m.kind] = of
		}
		of.all[m.revision%marksKept], of.latest = m, m
	}
	if p.more != nil {
		close(p.more)
		p.more = nil
	}
}

// Written returns the time of the last record on the disk; no event with an earlier time follows. whole is set if the state at that time is the complete present state. more is closed when either
// changes.
func (j *Journal) Written() (until time.Time, whole bool, more <-chan struct{}) {
	p := &j.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.more == nil {
		p.more = make(chan struct{})
	}
	return time.UnixMicro(p.until), p.whole, p.more
}

// Whole waits until the journal has the complete present state, and returns the time until which it is written. replaced
// is that of Replaced.
func (j *Journal) Whole(ctx context.Context, replaced <-chan struct{}) (until time.Time, err error) {
	for {
		until, whole, more := j.Written()
		if whole {
			return until, nil
		}
		select {
		case <-more:
		case <-replaced:
			return until, ErrReplaced
		case <-ctx.Done():
			return until, ctx.Err()
		}
	}
}

// ErrReplaced is the error of a cursor in a store that is not in use any more.
var ErrReplaced = errors.New("the journal has started again")

// A Cursor is how far a reader has processed the events. It survives restarts with the journal.
type Cursor struct {
	j     *Journal
	store *store
	key   []byte
	at    time.Time
}

// Cursor returns the cursor of a reader.
func (j *Journal) Cursor(name string) (*Cursor, error) {
	c := &Cursor{j: j, key: append(tablePrefix(0, metaCursor), name...)}
	return c, j.view(func(s *store) error {
		c.store = s
		at, known, err := s.number(c.key)
		if known {
			c.at = time.UnixMicro(stamp(at))
		}
		return err
	})
}

// At returns the time up to which the reader has processed all events; zero if it has not begun.
func (c *Cursor) At() time.Time { return c.at }

// Move moves the cursor. It is on the disk with the next record that is written.
func (c *Cursor) Move(to time.Time) error {
	return c.set(to, func(db *pebble.DB) error {
		return db.Set(c.key, binary.BigEndian.AppendUint64(nil, uint64(micro(to))), pebble.NoSync)
	})
}

// Clear removes the cursor, as if its reader had not begun.
func (c *Cursor) Clear() error {
	return c.set(time.Time{}, func(db *pebble.DB) error { return db.Delete(c.key, pebble.NoSync) })
}

func (c *Cursor) set(at time.Time, write func(*pebble.DB) error) error {
	err := c.j.view(func(s *store) error {
		if s != c.store {
			return ErrReplaced
		}
		return write(s.db)
	})
	if err == nil {
		c.at = at
	}
	return err
}

// A Loss is a period of which a reader does not get all events.
type Loss struct {
	From, Until time.Time
	// Events is the number of missing events; 0 if it is not known.
	Events uint64
	// Pruned is set if the journal had the events and dropped them, because of their age or size.
	Pruned bool
}

// Dropped reports whether the journal has dropped records after a time, because of their age or its size.
func (j *Journal) Dropped(since time.Time) bool {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.store == nil {
		return false
	}
	list := j.store.list()
	return len(list) > 0 && list[0].number > 1 && list[0].start > micro(since)+1
}

// Lost returns the periods between two times of which events are missing, and the time from which on
// the journal has all other events. Events are not missing of the time in which the aggregator did not
// run: the state after it is recorded.
func (j *Journal) Lost(since, until time.Time) (lost []Loss, from time.Time, err error) {
	from = since
	if j.Dropped(since) {
		from = j.Oldest()
		lost = append(lost, Loss{From: since, Until: from, Pruned: true})
	}
	gaps, err := j.Gaps(from, until)
	for _, g := range gaps {
		end := g.GetUntil().AsTime()
		if g.GetUntil() == nil || g.GetReason() == pb.Gap_NOT_RUNNING || !end.After(from) || end.After(until) {
			continue
		}
		lost = append(lost, Loss{From: g.GetFrom().AsTime(), Until: end, Events: g.GetLost()})
	}
	return lost, from, err
}

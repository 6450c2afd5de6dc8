package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"math"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// queueSize is the number of operations that may wait for the writer.
	queueSize = 8192
	// gatherFor is how long the writer collects operations before it writes them, and writtenAtOnce
	// is how many it writes at once.
	gatherFor     = 20 * time.Millisecond
	writtenAtOnce = 4096
	// copiedAtOnce is the number of items that are copied into a new segment between two writes.
	copiedAtOnce = 4096
	// copiesBefore is the number of stamps before the start of a segment that its copies have.
	copiesBefore = 1 << 16
	// segmentRecords is the largest number of records in a segment.
	segmentRecords = 2_000_000
	// aliveEvery is how often the journal notes that it is complete.
	aliveEvery = 10 * time.Second
	// pruneEvery is how often old segments are dropped.
	pruneEvery = time.Minute
)

// kinds are the kinds of items.
var kinds = [...]pb.Event_Kind{pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING, pb.Event_NODE}

// An op is an operation of the writer.
type op struct {
	what what
	kind pb.Event_Kind
	// record is the record of a change, or of an item that is present.
	record record
	// lost is the number of lost changes.
	lost uint64
	// reached is closed when the operations before this one are written.
	reached chan<- struct{}
}

type what uint8

const (
	// changed: the record is to be written.
	changed what = iota
	// begins: the present state follows.
	begins
	// present: the record is an item of the present state.
	present
	// complete: the whole present state was sent.
	complete
	// lost: changes were lost. The present state follows.
	lost
	// reached: notify the caller.
	reached
)

// A writer is the state of the goroutine that writes.
type writer struct {
	j        *Journal
	s        *store
	segment  segment
	records  int // in the segment
	last     stamp
	batch    *pebble.Batch
	copying  *folder // copies the previous segment; nil if there is nothing to copy
	gap      stamp   // start of the gap; 0 if there is no gap
	reason   pb.Gap_Reason
	lost     uint64
	fresh    bool // nothing was recorded before
	states   map[pb.Event_Kind]*comparison
	seed     maphash.Seed
	waiting  []chan<- struct{}
	aliveAt  time.Time
	prunedAt time.Time
	triedAt  time.Time // when it last looked whether the data directory can be used
}

// A comparison finds what has changed in a gap.
type comparison struct {
	// known has the items before the gap that have not been seen again, with a hash of their state.
	known map[itemID]uint64
	// over has the conflicts that were resolved before the gap, with a hash of their state.
	over  map[itemID]uint64
	begun bool
}

// An itemID identifies an item of a kind.
type itemID struct {
	place place
	id    uint32
}

// begin prepares the writer for a store.
func (w *writer) begin(j *Journal, reason pb.Gap_Reason) error {
	*w = writer{j: j, s: j.store, reason: reason, triedAt: j.Clock(), states: make(map[pb.Event_Kind]*comparison), seed: maphash.MakeSeed()}
	for _, kind := range kinds {
		w.states[kind] = &comparison{}
	}
	j.whole.Store(false)
	var err error
	if w.last, w.gap, err = w.s.last(); err != nil {
		return err
	}
	list := w.s.list()
	w.fresh = w.gap == 0
	if len(list) > 0 {
		w.segment = list[len(list)-1]
		if !w.segment.complete {
			w.copy()
		}
	}
	w.openGap()
	return nil
}

// gapped reports whether changes before now may not have been recorded.
func (w *writer) gapped() bool { return w.gap != 0 || w.reason == pb.Gap_DAMAGED }

// openGap publishes the gap that has not ended.
func (w *writer) openGap() {
	if !w.gapped() {
		w.j.gap.Store(nil)
		return
	}
	w.j.gap.Store(&pb.Gap{From: timeOf(w.gap), Reason: w.reason, Lost: w.lost})
}

// end releases what the writer holds.
func (w *writer) end() {
	if w.copying != nil {
		w.copying.close()
		w.copying = nil
	}
}

// write writes what is recorded until ctx ends.
func (j *Journal) write(ctx context.Context) {
	w := &j.writer
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var first op
		copying := make(chan struct{})
		if w.copying != nil {
			close(copying)
		}
		select {
		case first = <-j.queue:
		case <-copying:
			first.what = reached
		case <-tick.C:
			first.what = reached
		case <-ctx.Done():
			w.drain()
			return
		}
		err := w.apply(first)
		if first.what != reached {
			err = errors.Join(err, w.gather(ctx))
		}
		err = errors.Join(err, w.copySome(), w.note(), w.prune(), w.commit())
		if err == nil && w.returned() {
			w.restart(pb.Gap_NOT_WRITTEN, func() { j.problem.Store(nil) })
			continue
		}
		if damaged := j.store.damaged.Load(); damaged != nil {
			err = errors.Join(err, *damaged)
		}
		if err != nil {
			w.replace(err)
		}
	}
}

// gather applies the operations that arrive within a short time.
func (w *writer) gather(ctx context.Context) (err error) {
	enough := time.NewTimer(gatherFor)
	defer enough.Stop()
	for range writtenAtOnce {
		select {
		case o := <-w.j.queue:
			err = errors.Join(err, w.apply(o))
		case <-enough.C:
			return err
		case <-ctx.Done():
			return err
		}
	}
	return err
}

// drain writes the operations that are in the queue at the end.
func (w *writer) drain() {
	for {
		select {
		case o := <-w.j.queue:
			if err := w.apply(o); err != nil {
				w.j.Log.Warn("journal: cannot record a change", "error", err)
			}
			continue
		default:
		}
		w.aliveAt = time.Time{}
		if err := errors.Join(w.note(), w.commit()); err != nil {
			w.j.Log.Warn("journal: cannot write the last changes", "error", err)
		}
		return
	}
}

// returned reports whether the journal is in memory, but the data directory can be used again.
func (w *writer) returned() bool {
	now := w.j.Clock()
	if !w.j.memory || w.j.Dir == "" || now.Sub(w.triedAt) < aliveEvery {
		return false
	}
	w.triedAt = now
	return Writable(w.j.Dir) == nil
}

// replace sets a damaged store aside and opens a new one.
func (w *writer) replace(cause error) {
	j := w.j
	w.restart(pb.Gap_DAMAGED, func() {
		if j.memory {
			return
		}
		to, err := setAside(storeDir(j.Dir), "damaged", j.Clock())
		if err != nil {
			to = storeDir(j.Dir)
		}
		j.Log.Error("the journal is damaged: starting a new one", "set_aside", to, "error", cause)
		j.say("the history before " + j.Clock().UTC().Format(time.RFC3339) + " is not available: the journal was damaged and is now " + to +
			": " + cause.Error() + ": check the disk; delete the directory, or keep it for a bug report")
	})
}

// restart closes the store, does something, and opens the store again.
func (w *writer) restart(reason pb.Gap_Reason, meanwhile func()) {
	j, waiting := w.j, w.waiting
	j.mu.Lock()
	w.end()
	_ = j.store.close() // the store is damaged, or in memory: there is nothing to save
	meanwhile()
	j.open(reason)
	close(j.replaced)
	j.replaced = make(chan struct{})
	j.mu.Unlock()
	for _, c := range waiting {
		close(c)
	}
}

// apply applies one operation.
func (w *writer) apply(o op) error {
	state := w.states[o.kind]
	switch o.what {
	case changed:
		if !state.begun {
			return nil // it is part of the present state, which follows
		}
		delete(state.known, itemID{o.record.place, o.record.id})
		return w.add(&o.record, false)
	case begins:
		return w.compare(o.kind)
	case present:
		return w.present(&o.record)
	case complete:
		return w.complete(o.kind)
	case lost:
		w.lost += o.lost
		w.j.lost.Add(o.lost)
		if !w.gapped() {
			w.gap, w.reason = w.last, pb.Gap_NOT_WRITTEN
		}
		state.begun = false
		w.j.whole.Store(false)
		w.openGap()
	case reached:
		if o.reached != nil {
			w.waiting = append(w.waiting, o.reached)
		}
	}
	return nil
}

// compare reads the state before the gap.
func (w *writer) compare(kind pb.Event_Kind) error {
	state := w.states[kind]
	*state = comparison{known: make(map[itemID]uint64), over: make(map[itemID]uint64), begun: true}
	if err := w.commit(); err != nil {
		return err
	}
	return w.s.fold(w.s.list(), kind, math.MaxInt64, place{}, lastPlace, func(p place, items []folded) error {
		for i := range items {
			like, err := likeness(w.seed, kind, items[i].body)
			if err != nil {
				return err
			}
			if kind == pb.Event_CONFLICT && items[i].resolved() {
				state.over[itemID{p, items[i].id}] = like
				continue
			}
			state.known[itemID{p, items[i].id}] = like
		}
		return nil
	})
}

// present compares an item of the present state with what is known.
func (w *writer) present(r *record) error {
	state := w.states[r.kind]
	id := itemID{r.place, r.id}
	before, known := state.known[id]
	over, ended := state.over[id]
	delete(state.known, id)
	like, err := likeness(w.seed, r.kind, r.body)
	switch {
	case err != nil:
		return err
	case known && before == like, ended && over == like:
		return nil
	case known:
		r.typ = pb.Watch_UPDATED
	default:
		r.typ = pb.Watch_ADDED // or a resolved conflict that is active again
	}
	r.notBefore = w.gap
	return w.add(r, w.fresh)
}

// complete records that the items that are not present any longer are gone, and ends the gap.
func (w *writer) complete(kind pb.Event_Kind) error {
	if err := w.commit(); err != nil {
		return err
	}
	state := w.states[kind]
	now := w.j.Clock()
	for id := range state.known {
		body, found, err := w.s.find(kind, id.place, id.id)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		r := record{kind: kind, place: id.place, id: id.id, at: now.UnixMicro(), typ: pb.Watch_REMOVED, body: body, notBefore: w.gap}
		if err := r.end(now); err != nil {
			return err
		}
		if err := w.add(&r, false); err != nil {
			return err
		}
	}
	state.known, state.over = nil, nil
	for _, kind := range kinds {
		if s := w.states[kind]; !s.begun || s.known != nil {
			return nil
		}
	}
	if w.gapped() {
		w.j.gaps.Add(1)
		g := &pb.Gap{From: timeOf(w.gap), Until: timestamppb.New(now), Reason: w.reason, Lost: w.lost}
		raw, err := proto.Marshal(g)
		if err != nil {
			return err
		}
		if err := w.pending().Set(metaKey(metaGap, uint64(now.UnixMicro())), append([]byte{valueVersion}, raw...), nil); err != nil {
			return err
		}
		if w.reason == pb.Gap_NOT_WRITTEN {
			w.j.Log.Warn("journal: changes were not recorded", "from", g.GetFrom().AsTime(), "until", now, "lost", w.lost)
		}
	}
	w.gap, w.lost, w.fresh, w.reason = 0, 0, false, pb.Gap_UNSPECIFIED
	w.j.whole.Store(true)
	w.aliveAt = time.Time{}
	w.openGap()
	return nil
}

// end makes a record of an item say that the item is gone.
func (r *record) end(now time.Time) (err error) {
	switch r.kind {
	case pb.Event_OWNER:
		o := new(pb.Owner)
		if err = proto.Unmarshal(r.body, o); err != nil {
			return errors.Join(errDamagedRecord, err)
		}
		o.State = pb.Owner_GONE
		r.body, err = proto.Marshal(o)
	case pb.Event_CONFLICT: // it is never gone
		c := new(pb.Conflict)
		if err = proto.Unmarshal(r.body, c); err != nil {
			return errors.Join(errDamagedRecord, err)
		}
		r.typ, c.State, c.ResolvedAt = pb.Watch_UPDATED, pb.Conflict_RESOLVED, timestamppb.New(now)
		r.body, err = proto.Marshal(c)
	default:
	}
	return err
}

func (w *writer) pending() *pebble.Batch {
	if w.batch == nil {
		w.batch = w.s.db.NewBatch()
	}
	return w.batch
}

// add adds a record to the batch. first is set if the journal does not know since when the item is
// like this, because it has just begun.
func (w *writer) add(r *record, first bool) error {
	if err := w.roll(r.at); err != nil {
		return err
	}
	r.at = max(r.at, w.last+1)
	w.last = r.at
	b := w.pending()
	err := b.Set(itemKey(w.segment.number, r.kind, r.place, r.at), r.value(first), nil)
	if !first {
		err = errors.Join(err, b.Set(timeKey(w.segment.number, r.at), append([]byte{byte(r.kind)}, r.place[:]...), nil))
	}
	for _, term := range r.terms {
		err = errors.Join(err, b.Set(termKey(w.segment.number, term, r.kind, r.place), nil, nil))
	}
	w.records++
	w.j.records.Add(1)
	return err
}

// roll starts a new segment if a record needs one.
func (w *writer) roll(at stamp) error {
	if w.segment.number != 0 && w.records < segmentRecords && day(at) <= day(w.segment.start) || w.copying != nil {
		return nil
	}
	if err := w.commit(); err != nil {
		return err
	}
	list := w.s.list()
	next := segment{number: w.segment.number + 1, start: max(at, w.last+1), complete: len(list) == 0}
	w.last = next.start - 1
	if err := w.s.setSegment(w.pending(), next); err != nil {
		return err
	}
	if err := w.commit(); err != nil {
		return err
	}
	w.s.setList(append(slices.Clip(list), next))
	w.segment, w.records = next, 0
	if !next.complete {
		w.copy()
	}
	return nil
}

func day(at stamp) int64 { return at / (24 * 60 * 60 * 1e6) }

// copy begins to copy the state at the end of the previous segment into the current one.
func (w *writer) copy() {
	list := w.s.list()
	w.copying = &folder{store: w.s, list: list[:len(list)-1]}
}

// copySome copies some items into the current segment.
func (w *writer) copySome() error {
	if w.copying == nil {
		return nil
	}
	b := w.pending()
	done, err := w.copying.some(copiedAtOnce, func(kind pb.Event_Kind, p place, items []folded) error {
		at := w.segment.start - copiesBefore
		for i := range items {
			if kind == pb.Event_CONFLICT && items[i].resolved() && items[i].at < w.segment.start-resolvedKept.Microseconds() {
				continue
			}
			if at++; at >= w.segment.start {
				return nil
			}
			r, err := items[i].record(kind, p)
			if err != nil {
				return err
			}
			if err := b.Set(itemKey(w.segment.number, kind, p, at), r.value(true), nil); err != nil {
				return err
			}
			for _, term := range r.terms {
				if err := b.Set(termKey(w.segment.number, term, kind, p), nil, nil); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil || !done {
		return err
	}
	w.copying.close()
	w.copying = nil
	w.segment.complete = true
	if err := w.s.setSegment(b, w.segment); err != nil {
		return err
	}
	list := w.s.list()
	list = append(list[:len(list)-1:len(list)-1], w.segment)
	if err := w.commit(); err != nil {
		return err
	}
	w.s.setList(list)
	return nil
}

// resolvedKept is how long resolved conflicts are copied into new segments, so that the next episode
// of a conflict is known as such.
const resolvedKept = 24 * time.Hour

// note notes that the journal is complete up to now.
func (w *writer) note() error {
	if !w.j.whole.Load() || w.j.Clock().Sub(w.aliveAt) < aliveEvery && w.batch == nil {
		return nil
	}
	w.aliveAt = w.j.Clock()
	at := max(w.aliveAt.UnixMicro(), w.last)
	return w.pending().Set(metaKey(metaAlive, 0), binary.BigEndian.AppendUint64(nil, uint64(at)), nil)
}

// commit writes the batch to the disk.
func (w *writer) commit() error {
	if w.batch != nil {
		b := w.batch
		w.batch = nil
		if err := errors.Join(b.Commit(pebble.Sync), b.Close()); err != nil {
			return err
		}
	}
	for _, c := range w.waiting {
		close(c)
	}
	w.waiting = nil
	return nil
}

// prune drops the segments that are too old or take too much space.
func (w *writer) prune() error {
	now := w.j.Clock()
	if now.Sub(w.prunedAt) < pruneEvery || w.copying != nil {
		return nil
	}
	w.prunedAt = now
	if err := w.commit(); err != nil {
		return err
	}
	size := w.j.Size
	if w.j.memory {
		size = min(size, memorySize)
	}
	list := w.s.list()
	used := int64(w.s.db.Metrics().DiskSpaceUsage())
	if len(list) == 1 && used > size/2 && w.records > segmentRecords/100 {
		w.records = segmentRecords // the next record begins a new segment, so that this one can be dropped
	}
	drop := 0
	for ; drop < len(list)-1; drop++ {
		old := list[drop+1].start < now.Add(-w.j.Retention).UnixMicro()
		if !old && used <= size {
			break
		}
		first, end := tablePrefix(list[drop].number, 0), tablePrefix(list[drop+1].number, 0)
		taken, err := w.s.db.EstimateDiskUsage(first, end)
		if err != nil {
			return err
		}
		used -= int64(taken)
	}
	if drop == 0 {
		return nil
	}
	b := w.pending()
	first, end := tablePrefix(list[0].number, 0), tablePrefix(list[drop].number, 0)
	err := errors.Join(
		b.DeleteRange(first, end, nil),
		b.DeleteRange(metaKey(metaSegment, 0), metaKey(metaSegment, uint64(list[drop].number)), nil),
		b.DeleteRange(metaKey(metaGap, 0), metaKey(metaGap, uint64(list[drop].start)), nil),
	)
	if err != nil {
		return err
	}
	w.s.setList(list[drop:])
	if err := w.commit(); err != nil {
		return err
	}
	return w.s.db.Compact(context.Background(), first, end, false)
}

package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// queueSize is the number of operations that may wait for the writer.
	queueSize = 8192
	// gatherFor is how long the writer collects operations before it writes them.
	gatherFor = 15 * time.Millisecond
	// aliveEvery is how often the journal notes that it is complete.
	aliveEvery = 10 * time.Second
	// pruneEvery is how often old segments are dropped.
	pruneEvery = time.Minute
)

var kinds = [...]pb.Event_Kind{pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING, pb.Event_NODE}

// An op is what the writer does in its goroutine.
type op func(*writer) error

// put passes an operation to the writer. It waits while the queue is full.
func (j *Journal) put(o op) error {
	select {
	case j.queue <- o:
		return nil
	case <-j.done:
		return errStopped
	}
}

// A writer is the state of the goroutine that writes.
type writer struct {
	j *Journal
	segments
	// seed is that of hashes, and kinds has the comparisons with the state before a gap.
	seed  maphash.Seed
	kinds map[pb.Event_Kind]*compared
	// latest has hashes of the states that were recorded last, of the items that were recorded latest.
	latest map[subjectItem]uint64
	// gap is the gap that has not ended; nil if there is none. It is published: its parts are replaced,
	// not changed.
	gap *pb.Gap
	// fresh is set if nothing was recorded before, and whole if the present state was recorded, and all
	// changes since then.
	fresh, whole bool
	waiting      []chan<- struct{}
	// marks are those of the batch.
	marks []mark
	// When the writer last noted that the journal is complete, dropped old segments, and looked whether
	// the data directory can be used.
	aliveAt, prunedAt, triedAt time.Time
	// noted is the stamp of the last record when the journal last noted that it is complete, in the batch, and
	// kept the one in reachedFile, since keptAt.
	noted, kept stamp
	keptAt      time.Time
}

// begin prepares the writer for a store. Changes since the last record are a gap for the given reason.
func (w *writer) begin(j *Journal, reason pb.Gap_Reason) error {
	*w = writer{
		j: j, latest: make(map[subjectItem]uint64), triedAt: j.Clock(), seed: maphash.MakeSeed(), kinds: make(map[pb.Event_Kind]*compared),
	}
	alive, err := w.open(j.store)
	if err != nil {
		return err
	}
	before := j.before
	if (alive < before.at || before.cut) && !j.memory && j.Reached == nil {
		err := fmt.Errorf("records up to %s had been written, and some are missing", timeOf(before.at).AsTime().Format(time.RFC3339))
		reason = pb.Gap_DAMAGED
		j.say(Problem{Missing, j.Dir, j.Clock(), err})
		j.Log.Warn("the journal has lost records", "directory", j.Dir, "error", err)
	}
	// This process writes from now on. Marks of earlier processes have earlier stamps.
	if j.Reached == nil { // records of a stream keep their times
		w.last++
	}
	if w.s.list() == nil {
		w.last = max(w.last, j.now().UnixMicro())
	}
	err = w.pending().Set(metaKey(metaInstance, uint64(w.last)), binary.BigEndian.AppendUint64(nil, uint64(j.Instance)), nil)
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		w.kinds[kind] = &compared{}
		j.progress.forget(kind)
	}
	j.progress.written(w.last, false, nil)
	w.fresh = alive == 0
	j.fresh.Store(w.fresh)
	var gap *pb.Gap
	if !w.fresh && j.Reached == nil || reason == pb.Gap_DAMAGED {
		gap = &pb.Gap{From: timeOf(alive), Reason: reason}
	}
	w.setGap(gap)
	return nil
}

func (w *writer) setGap(gap *pb.Gap) {
	w.gap = gap
	w.j.gap.Store(gap)
}

// write writes what is recorded until ctx ends.
func (j *Journal) write(ctx context.Context, w *writer) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var err error
		copying := make(chan struct{})
		if w.copying != nil {
			close(copying)
		}
		select {
		case first := <-j.queue:
			err = errors.Join(first(w), w.gather(ctx))
		case <-copying:
		case <-tick.C:
		case <-ctx.Done():
			w.drain()
			return
		}
		err = errors.Join(err, w.copySome(), w.note(), w.prune(), w.commit())
		if w.s.failure.Load() != nil {
			return // Run opens the store again, with another writer
		}
		// The data directory of a journal in memory may be usable again.
		returned := false
		if now := j.Clock(); j.memory && j.Dir != "" && j.stuck == nil && now.Sub(w.triedAt) >= aliveEvery {
			w.triedAt, returned = now, Writable(j.Dir) == nil
		}
		if err == nil && (returned || w.s.fs.manifestLost.Load()) { // a store that is opened has another manifest
			w.restart(nil)
			continue
		}
		if err == nil && w.s.fs.logLost.Swap(false) { // write what the log has to tables, and begin another log
			var written <-chan struct{}
			if written, err = w.s.db.AsyncFlush(); err == nil {
				select {
				case <-written:
				case <-w.s.failed:
				case <-w.s.fs.stopped:
				}
			}
			if w.s.failure.Load() != nil { // meanwhile
				return
			}
		}
		if damaged := w.s.damaged.Load(); damaged != nil {
			err = errors.Join(err, *damaged)
		}
		if err != nil {
			w.restart(err)
		}
	}
}

// gather applies the operations that arrive within a short time.
func (w *writer) gather(ctx context.Context) (err error) {
	if w.j.AtOnce {
		return nil
	}
	enough := time.NewTimer(gatherFor)
	defer enough.Stop()
	for range queueSize { // all that have arrived while a slow disk was written
		select {
		case o := <-w.j.queue:
			err = errors.Join(err, o(w))
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
			if err := o(w); err != nil {
				w.j.Log.Warn("journal: cannot record a change", "error", err)
			}
			continue
		default:
		}
		w.aliveAt, w.keptAt = time.Time{}, time.Time{}
		if err := errors.Join(w.note(), w.commit()); err != nil {
			w.j.Log.Warn("journal: cannot write the last changes", "error", err)
		}
		return
	}
}

// restart closes the store and opens it again. A store that has caused an error is set aside if it is damaged. If its disk
// cannot be read, the journal continues in memory, until the data directory can be used again.
func (w *writer) restart(cause error) {
	j, waiting := w.j, w.waiting
	j.mu.Lock()
	w.close()
	if err := j.store.close(); errors.Is(err, errNoAnswer) {
		j.stuck = err
	} // other errors do not matter: the store is damaged, unreadable, or in memory
	j.problems = slices.DeleteFunc(j.problems, func(p Problem) bool { return p.Kind == InMemory })
	damaged := cause != nil && unusable(cause)
	if damaged && !j.memory {
		problem := Problem{Damaged, storeDir(j.Dir), j.Clock(), cause}
		if to, err := setAside(problem.Path, problem.At); err == nil {
			problem.Path = to
		}
		j.Log.Error("the journal is damaged: starting a new one", "set_aside", problem.Path, "error", cause)
		j.say(problem)
	}
	if damaged {
		j.open(pb.Gap_DAMAGED)
	} else {
		j.unreadable = cause
		j.open(pb.Gap_NOT_WRITTEN)
		j.unreadable = nil
	}
	close(j.replaced)
	j.replaced = make(chan struct{})
	j.mu.Unlock()
	for _, c := range waiting {
		close(c)
	}
}

// news reports whether a change has to be recorded: not if it leaves the item as it was recorded last,
// because owners are also updated when their evidence changes, and not if an item is removed that was
// never recorded, because it was gone before its turn came in the present state.
func (w *writer) news(r *record) (bool, error) {
	removed, id := r.item == nil, itemID{r.place, r.id}
	awaited := w.kinds[r.kind].known // not nil while the present state is arriving
	if _, present := awaited[id]; removed && (awaited == nil || present) || !removed && r.typ != pb.Watch_UPDATED {
		return true, nil
	}
	before, known := w.latest[subjectItem{r.kind, id}]
	if !known {
		e, err := w.s.find(r.subject, r.id)
		if err != nil || e == nil {
			return !removed, err
		}
		if before, err = likenessOf(w.seed, e); err != nil {
			return false, err
		}
	}
	if removed {
		return true, nil
	}
	like, err := likeness(w.seed, r.item)
	return before != like, err
}

func likenessOf(seed maphash.Seed, e *pb.Event) (uint64, error) {
	r, err := newRecord(change(e))
	if err != nil {
		return 0, err
	}
	return likeness(seed, r.item)
}

// lose begins a gap in a kind, or continues one. If there is none, gap is how it begins; nil for after the last
// record.
func (w *writer) lose(kind pb.Event_Kind, n uint64, gap *pb.Gap) {
	w.kinds[kind].begun = false
	w.marks = slices.DeleteFunc(w.marks, func(m mark) bool { return m.kind == kind })
	w.j.progress.forget(kind)
	w.j.lost.Add(n)
	w.whole = false
	switch {
	case w.gap != nil:
		gap = proto.CloneOf(w.gap)
	case gap == nil:
		gap = &pb.Gap{From: timeOf(w.last), Reason: pb.Gap_NOT_WRITTEN}
	}
	gap.Lost += n
	w.setGap(gap)
}

type subjectItem struct {
	kind pb.Event_Kind
	itemID
}

// latestItems is the largest number of items in latest.
const latestItems = 8192

func (w *writer) record(r *record, first bool) error {
	if id := (subjectItem{r.kind, itemID{r.place, r.id}}); r.item == nil {
		delete(w.latest, id)
	} else {
		if len(w.latest) >= latestItems {
			if err := w.commit(); err != nil { // the others are found in the store
				return err
			}
			clear(w.latest)
		}
		like, err := likeness(w.seed, r.item)
		if w.latest[id] = like; err != nil {
			return err
		}
	}
	w.j.records.Add(1)
	return w.add(r, first)
}

// gapFrom returns the start of the gap; 0 if it is not known or there is no gap.
func (w *writer) gapFrom() stamp {
	if w.gap.GetFrom() == nil {
		return 0
	}
	return w.gap.GetFrom().AsTime().UnixMicro()
}

// complete records that the items that are not present any longer are gone, and ends the gap if the
// present state of all kinds is complete.
func (w *writer) complete(kind pb.Event_Kind) error {
	if err := w.commit(); err != nil {
		return err
	}
	now := w.j.now()
	// Items that are not in the present state, which is complete, are gone.
	state := w.kinds[kind]
	gone := state.known
	state.known, state.over = nil, nil
	for id := range gone {
		r := record{subject: subject{kind, id.place}, id: id.id, at: now.UnixMicro(), typ: pb.Watch_REMOVED, notBefore: w.gapFrom()}
		if kind == pb.Event_CONFLICT { // it is resolved instead
			c, err := w.conflict(&r)
			if err != nil {
				return err
			}
			if c == nil {
				continue
			}
			if r, err = w.resolved(c, now, timestamppb.New(now)); err != nil {
				return err
			}
		}
		if err := w.record(&r, false); err != nil {
			return err
		}
	}
	for _, state := range w.kinds {
		if !state.begun || state.known != nil {
			return nil
		}
	}
	if w.gap != nil {
		g := proto.CloneOf(w.gap)
		if err := w.end(g, now); err != nil {
			return err
		}
		if g.GetReason() == pb.Gap_NOT_WRITTEN {
			w.j.Log.Warn("journal: changes were not recorded", "from", g.GetFrom().AsTime(), "until", g.GetUntil().AsTime(), "lost", g.GetLost())
		}
	}
	w.fresh, w.whole, w.aliveAt, w.gap = false, true, time.Time{}, nil
	return nil
}

// conflict returns the last state of the conflict of a record; nil if there is none.
func (w *writer) conflict(of *record) (*pb.Conflict, error) {
	e, err := w.s.find(of.subject, of.id)
	return e.GetConflict(), err
}

// endBefore records that the conflict that a record is about ended in the gap, if it was active before and the record has another
// episode.
func (w *writer) endBefore(r *record, before formerItem) error {
	now, is := r.item.(*pb.Conflict)
	if !is || before.episode == 0 || before.episode == now.GetEpisode() {
		return nil
	}
	if err := w.commit(); err != nil {
		return err
	}
	c, err := w.conflict(r)
	if c == nil || err != nil {
		return err
	}
	end, err := w.resolved(c, w.j.now(), now.GetDetectedAt())
	if err != nil {
		return err
	}
	return w.record(&end, false)
}

func (w *writer) resolved(c *pb.Conflict, recorded time.Time, at *timestamppb.Timestamp) (record, error) {
	c.State, c.ResolvedAt = pb.Conflict_RESOLVED, at
	r, err := newRecord(&Change{At: recorded, Type: pb.Watch_UPDATED, Conflict: c})
	r.notBefore = w.gapFrom()
	return r, err
}

func (w *writer) end(g *pb.Gap, at time.Time) error {
	w.j.gaps.Add(1)
	w.last = max(w.last+1, at.UnixMicro()) // a stamp of its own, after all records that are known to be written
	g.Until = timeOf(w.last)
	raw, err := marshal.Marshal(g)
	if err != nil {
		return err
	}
	return w.pending().Set(metaKey(metaGap, uint64(w.last)), raw, nil)
}

// note notes up to when the journal is complete: now, or, while a feed is behind, the time of its last change.
func (w *writer) note() error {
	if !w.whole || w.j.now().Sub(w.aliveAt) < aliveEvery && w.batch == nil {
		return nil
	}
	w.aliveAt = w.j.now()
	at := w.aliveAt.UnixMicro()
	for _, state := range w.kinds {
		if state.behind != 0 {
			at = min(at, state.behind)
		}
	}
	at = max(at, w.last)
	if w.j.Reached != nil { // which may be after records that are not written yet
		at = max(w.last, 1)
	}
	w.noted = w.last // what is complete may end earlier after the next change, which may be late, but not before this record
	return w.pending().Set(metaKey(metaAlive, 0), binary.BigEndian.AppendUint64(nil, uint64(at)), nil)
}

// prune drops, now and then, the segments that ended before the retention, and the oldest ones if the store is too large.
// It waits for compactions, which may free space.
func (w *writer) prune() error {
	now := w.j.Clock()
	if now.Sub(w.prunedAt) < pruneEvery || w.copying != nil || w.s.compacting.Load() > 0 {
		return nil
	}
	w.prunedAt = now
	size := w.j.Size
	if w.j.memory {
		size = min(size, memorySize)
	}
	before := now.Add(-w.j.Retention).UnixMicro()
	if err := w.segments.commit(); err != nil {
		return err
	}
	list := w.s.list()
	used := int64(w.s.db.Metrics().DiskSpaceUsage())
	if len(list) == 1 && used > size/2 && w.records > segmentRecords/100 {
		w.records = segmentRecords // the next record begins a new segment, so that this one can be dropped
	}
	drop := 0
	for ; drop < len(list)-1 && (list[drop+1].start < before || used > size); drop++ {
		taken, err := w.s.db.EstimateDiskUsage(tablePrefix(list[drop].number, 0), tablePrefix(list[drop+1].number, 0))
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
	if err := w.segments.commit(); err != nil {
		return err
	}
	w.s.compact(first, end)
	return nil
}

// commit writes the batch to the disk, and tells those that wait for it.
func (w *writer) commit() error {
	if err := w.segments.commit(); err != nil {
		return err
	}
	w.reach()
	w.j.gap.Store(w.gap) // the one that has ended can be read now
	w.j.fresh.Store(w.fresh)
	w.j.progress.written(w.last, w.whole, w.marks)
	w.marks = w.marks[:0]
	for _, c := range w.waiting {
		close(c)
	}
	w.waiting = nil
	return nil
}

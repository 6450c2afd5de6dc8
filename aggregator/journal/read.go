package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ErrDamaged is the error of a question that needs damaged records.
var ErrDamaged = errors.New("the journal is damaged")

// view calls read with the store. It waits until the journal is open.
func (j *Journal) view(read func(*store) error) error {
	select {
	case <-j.opened:
	case <-j.done:
	}
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.store == nil {
		return errStopped
	}
	if err := j.store.failure.Load(); err != nil {
		return *err
	}
	err := read(j.store)
	if errors.Is(err, pebble.ErrCorruption) || errors.Is(err, errDamagedRecord) {
		j.store.damage(err)
		return errors.Join(ErrDamaged, err)
	}
	return err
}

// Oldest returns the time that the journal reaches back to; zero if it is empty.
func (j *Journal) Oldest() time.Time {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.store != nil {
		if list := j.store.list(); len(list) > 0 {
			return time.UnixMicro(list[0].start)
		}
	}
	return time.Time{}
}

// Gaps returns the gaps that overlap a period, the oldest first.
func (j *Journal) Gaps(since, until time.Time) (gaps []*pb.Gap, err error) {
	open := j.gap.Load() // before the others: it may end meanwhile
	err = j.view(func(s *store) error {
		return s.scan(metaKey(metaGap, uint64(micro(since))), after(tablePrefix(0, metaGap)), func(_, v []byte) error {
			g := new(pb.Gap)
			if proto.Unmarshal(v, g) != nil {
				return errDamagedRecord
			}
			if g.GetFrom() == nil || g.GetFrom().AsTime().Before(until) {
				gaps = append(gaps, g)
			}
			return nil
		})
	})
	ended := slices.ContainsFunc(gaps, func(g *pb.Gap) bool { return g.GetFrom() != nil && proto.Equal(g.GetFrom(), open.GetFrom()) })
	if err == nil && open != nil && !ended && (open.GetFrom() == nil || open.GetFrom().AsTime().Before(until)) {
		gaps = append(gaps, open)
	}
	return gaps, err
}

// GapAt returns the gap that contains a time; nil if there is none.
func (j *Journal) GapAt(at time.Time) (*pb.Gap, error) {
	gaps, err := j.Gaps(at, at)
	for _, g := range gaps {
		if g.GetUntil() == nil || g.GetUntil().AsTime().After(at) {
			return g, err
		}
	}
	return nil, err
}

func micro(t time.Time) stamp {
	if t.IsZero() {
		return 0
	}
	return max(0, t.UnixMicro())
}

// A Position is a position in a list of items.
type Position struct {
	place place
	id    uint32
}

// Item returns the number that distinguishes the item at the position from others of the same address.
func (p Position) Item() uint32 { return p.id }

// Token returns the text of the position.
func (p Position) Token() string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint32([]byte(p.place), p.id))
}

// ParsePosition parses the text of a position. An empty text is the position before all items.
func ParsePosition(token string) (p Position, err error) {
	if token == "" {
		return p, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	end := len(raw) - 4
	if err != nil || end < 1 || end != 1+addressSizes[raw[0]&0xf] {
		return p, errors.New("not a position")
	}
	return Position{place(raw[:end]), binary.BigEndian.Uint32(raw[end:])}, nil
}

// errEnough is the error of a reader that has read enough.
var errEnough = errors.New("enough")

// At calls do with the items of a kind at a time, ordered by address, and with the position of each. It
// begins after a position. If span is valid, it reads only the items with these addresses. do returns
// false to stop.
func (j *Journal) At(ctx context.Context, kind pb.Event_Kind, at time.Time, span ipam.Range, begin Position, do func(*pb.Event, Position) bool) error {
	low, high := placesOf(span)
	if low = max(low, begin.place); high < low {
		return nil
	}
	return j.view(func(s *store) error {
		for f, err := range s.fold(s.list(), []pb.Event_Kind{kind}, at.UnixMicro(), low, high) {
			if err = errors.Join(err, ctx.Err()); err != nil {
				return err
			}
			slices.SortFunc(f.items, func(a, b stored) int { return cmp.Compare(a.id, b.id) })
			for i := range f.items {
				if f.place == begin.place && f.items[i].id <= begin.id {
					continue
				}
				e, err := s.event(&f.items[i], f.subject, f.items[i].at)
				if err != nil {
					return err
				}
				if !do(e, Position{f.place, f.items[i].id}) {
					return nil
				}
			}
		}
		return nil
	})
}

// A Query selects events. Fields that are not set match everything.
type Query struct {
	// Since and Until are the period; Until does not belong to it.
	Since, Until time.Time
	// After is the time of the last event that was read.
	After time.Time
	Kind  pb.Event_Kind
	Kinds []pb.Event_Kind
	// Span is the range of addresses.
	Span ipam.Range
	// Node, Namespace, Pod and MAC find events quickly; Match decides.
	Node, Namespace, Pod, MAC string
	// Match reports whether an event matches, apart from its period, kind and address.
	Match func(*pb.Event) bool
	// Item is called before each event that matches, with the number that distinguishes the items of one
	// address; nil if that is not needed.
	Item func(uint32)
	// Compare does the same with the item as it was recorded before, which is not set unless the event
	// is UPDATED.
	Compare func(e, before *pb.Event) bool
}

// about reports whether the query is about something. It then also finds the state with which the
// journal begins.
func (q *Query) about() bool {
	return q.Span.First.IsValid() || q.Node+q.Namespace+q.Pod+q.MAC != ""
}

func (q *Query) alone() bool { return q.Span.First.IsValid() && q.Span.First == q.Span.Last }

func (q *Query) wants(kind pb.Event_Kind) bool {
	return (q.Kind == 0 || q.Kind == kind) && (q.Kinds == nil || slices.Contains(q.Kinds, kind))
}

// placesOf returns the first and the last place of a range; all places if the range is not valid.
func placesOf(span ipam.Range) (first, last place) {
	if !span.First.IsValid() {
		return firstPlace, lastPlace
	}
	return placeOf(span.First), placeOf(span.Last)
}

const (
	// quickPlaces is the number of places that are read one by one. More are found by time.
	quickPlaces = 512
	// quickKeys is the number of keys that are read of one place at a time.
	quickKeys = 512
)

// Events calls do with the matching events, the oldest first. do returns false to stop. A query for an
// address, a range of addresses, a workload, a node or a MAC also finds the state with which the
// journal begins.
func (j *Journal) Events(ctx context.Context, q *Query, do func(*pb.Event) bool) error {
	return j.view(func(s *store) error {
		until := int64(math.MaxInt64)
		if !q.Until.IsZero() {
			until = micro(q.Until)
		}
		since := micro(q.Since)
		if !q.After.IsZero() {
			since = max(since, micro(q.After)+1)
		}
		it, err := s.db.NewIter(nil)
		if err != nil {
			return err
		}
		more := true
		list := s.list()
		r := reading{ctx: ctx, s: s, q: q, items: it, do: do}
		for i, seg := range list {
			begin := max(since, seg.start)
			if i == 0 && q.about() {
				begin = max(since, seg.base())
			}
			end := until
			if i+1 < len(list) {
				end = min(end, list[i+1].start)
			}
			if end = min(end, seg.limit()); begin >= end || !more || err != nil {
				continue
			}
			r.list, r.seg, r.ended = list[:i+1], seg, i+1 < len(list)
			more, err = r.events(begin, end)
		}
		return errors.Join(err, it.Close())
	})
}

// Follow is Events for a reader that reads again and again what was recorded since the last time. It
// calls do with the matching events and with the gaps that ended in the same period, each at its end.
func (j *Journal) Follow(ctx context.Context, q *Query, do func(at time.Time, e *pb.Event, g *pb.Gap) bool) error {
	gaps, err := j.Gaps(q.After.Add(time.Microsecond), q.Until)
	if err != nil {
		return err
	}
	gaps = slices.DeleteFunc(gaps, func(g *pb.Gap) bool { return g.GetUntil() == nil || !g.GetUntil().AsTime().Before(q.Until) })
	more := true
	some := func(before time.Time) bool {
		for more && len(gaps) > 0 && !gaps[0].GetUntil().AsTime().After(before) {
			more = do(gaps[0].GetUntil().AsTime(), nil, gaps[0])
			gaps = gaps[1:]
		}
		return more
	}
	if err := j.Events(ctx, q, func(e *pb.Event) bool {
		at := e.GetTime().AsTime()
		more = some(at) && do(at, e, nil)
		return more
	}); err != nil {
		return err
	}
	some(q.Until)
	return nil
}

// OpenGap returns the gap that has not ended; nil if there is none.
func (j *Journal) OpenGap() *pb.Gap { return j.gap.Load() }

// Fresh reports whether the state with which the journal begins is still being recorded. The times of
// its items are before the start of the journal.
func (j *Journal) Fresh() bool { return j.fresh.Load() }

type reading struct {
	ctx context.Context
	s   *store
	q   *Query
	// list has the segments up to seg.
	list []segment
	seg  segment
	// ended is set if nothing is added to seg any more.
	ended bool
	// items is an iterator that read and before move.
	items *pebble.Iterator
	do    func(*pb.Event) bool
	// found has the records that bySubject reads at once.
	found []found
}

func (r *reading) events(since, until stamp) (more bool, err error) {
	q := r.q
	if !q.alone() && since >= r.seg.start && until-since < 1<<bucketBits {
		return r.byTime(nil, since, until) // has less to read than all places that can match
	}
	subjects, known, err := r.subjects()
	if err != nil {
		return false, err
	}
	if known && len(subjects) <= quickPlaces {
		return r.bySubject(subjects, since, until)
	}
	var wanted map[subject]bool
	if known {
		wanted = make(map[subject]bool, len(subjects))
		for _, one := range subjects {
			wanted[one] = true
		}
	}
	if since < r.seg.start {
		if more, err := r.present(wanted, since, min(until, r.seg.start)); err != nil || !more {
			return false, err
		}
	}
	return r.byTime(wanted, max(since, r.seg.start), until)
}

// subjects returns the places that can match, if they are known without reading the segment.
func (r *reading) subjects() (all []subject, known bool, err error) {
	q := r.q
	var t term
	switch {
	case q.alone():
		t = addressTerm(q.Span.First)
		p := placeOf(q.Span.First)
		for _, kind := range kinds {
			if kind == pb.Event_NODE || !q.wants(kind) {
				continue
			}
			may := true
			if kind != pb.Event_OWNER { // most addresses have had no conflict and no finding
				if may, err = r.may(tablePrefix(r.seg.number, byte(kind)), p); err != nil {
					return nil, false, err
				}
			}
			if may {
				all = append(all, subject{kind, p})
			}
		}
		if may, err := r.may(termPrefix(r.seg.number, t[:1]), p); err != nil || !may {
			return all, true, err
		}
	case q.Namespace != "" && q.Pod != "":
		t = podTerm(q.Namespace, q.Pod)
	case q.MAC != "":
		t = macTerm(q.MAC)
	case q.Node != "":
		t = nodeTerm(q.Node)
	case q.Namespace != "":
		t = namespaceTerm(q.Namespace)
	default:
		return nil, false, nil
	}
	seen := make(map[subject]bool)
	for _, one := range all {
		seen[one] = true
	}
	prefix := termPrefix(r.seg.number, t)
	err = r.scan(prefix, after(prefix), func() error {
		one, err := parseTermKey(t, r.items.Key())
		if err == nil && !seen[one] && q.wants(one.kind) {
			seen[one] = true
			all = append(all, one)
		}
		return err
	})
	return all, true, err
}

// may reports whether there may be keys with a prefix and a place after it. It avoids a read of the disk
// if the segment has ended and has few such places.
func (r *reading) may(prefix []byte, p place) (bool, error) {
	if !r.ended {
		return true, nil
	}
	few, err := r.s.fewPlaces(prefix)
	if err != nil || few == nil {
		return err == nil, err
	}
	_, found := slices.BinarySearch(few, p)
	return found, nil
}

// scan moves the iterator to each of the keys between two keys, and calls do, until it returns an error.
func (r *reading) scan(first, end []byte, do func() error) error {
	r.items.SetBounds(first, end)
	for r.items.First(); r.items.Valid(); r.items.Next() {
		if err := do(); err != nil {
			return err
		}
	}
	return r.items.Error()
}

// found is a record that may match.
type found struct {
	at      stamp
	subject subject
	stored  stored
}

// bySubject reads the events of some places. It reads some records of each, and sends those up to the
// time until which it has read all.
func (r *reading) bySubject(subjects []subject, since, until stamp) (more bool, err error) {
	for since < until {
		horizon := until
		r.found = r.found[:0]
		for _, one := range subjects {
			end, err := r.read(one, since, horizon)
			if err != nil {
				return false, err
			}
			horizon = min(horizon, end)
		}
		slices.SortFunc(r.found, func(a, b found) int { return cmp.Compare(a.at, b.at) })
		for i := range r.found {
			if r.found[i].at >= horizon {
				break
			}
			if more, err := r.send(&r.found[i]); err != nil || !more {
				return false, err
			}
		}
		if err := r.ctx.Err(); err != nil {
			return false, err
		}
		since = horizon
	}
	return true, nil
}

// read reads some records of a place, and returns the time until which it has read all.
func (r *reading) read(about subject, since, until stamp) (end stamp, err error) {
	begin := since
	if since == r.seg.start { // the copies are near, and have what is removed first
		begin = r.seg.base()
	}
	first, copies := len(r.found), 0
	end = until
	err = r.scan(itemKey(r.seg, about.kind, about.place, begin), itemKey(r.seg, about.kind, about.place, until), func() error {
		_, one, err := parseItem(r.seg, r.items)
		if len(r.found)-first-copies == quickKeys {
			end = one.at
			err = errors.Join(err, errEnough)
		}
		if err != nil {
			return err
		}
		if one.at < since {
			copies++
		}
		one.item = bytes.Clone(one.item) // it ends when the iterator moves on
		r.found = append(r.found, found{one.at, about, one})
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	// Removed items get the state before.
	all := r.found[first:]
	for i := 0; i < len(all) && err == nil; i++ {
		one := &all[i].stored
		if one.typ != pb.Watch_REMOVED {
			continue
		}
		var state stored
		for k := i - 1; k >= 0 && state.typ == 0; k-- {
			if all[k].stored.id == one.id && all[k].stored.typ != pb.Watch_REMOVED {
				state = all[k].stored
			}
		}
		if state.typ == 0 {
			state, err = r.before(about, one.id, all[i].at)
		}
		one.item, one.at = state.item, state.at
	}
	r.found = slices.Delete(r.found, first, first+copies)
	return end, err
}

// before returns the last record of an item before it was removed; an empty one if there is none.
func (r *reading) before(about subject, id uint32, at stamp) (stored, error) {
	for _, seg := range slices.Backward(r.list) {
		prefix := itemPrefix(seg.number, about.kind, about.place)
		r.items.SetBounds(prefix, after(prefix))
		for r.items.SeekLT(itemKey(seg, about.kind, about.place, at)); r.items.Valid(); r.items.Prev() {
			_, one, err := parseItem(seg, r.items)
			if err != nil {
				return stored{}, err
			}
			if one.id == id && one.typ != pb.Watch_REMOVED {
				one.item = bytes.Clone(one.item)
				return one, nil
			}
		}
		if err := r.items.Error(); err != nil || seg.complete {
			return stored{}, err
		}
	}
	return stored{}, nil
}

// byTime reads all events of a period, or the events of the wanted places.
func (r *reading) byTime(wanted map[subject]bool, since, until stamp) (more bool, err error) {
	first, end := timePrefix(r.seg.number, bucketOf(since)), after(timePrefix(r.seg.number, bucketOf(until-1)))
	it, err := r.s.db.NewIter(&pebble.IterOptions{LowerBound: first, UpperBound: end})
	if err != nil {
		return false, err
	}
	low, high := placesOf(r.q.Span)
	more = true
	it.First()
	for n := 1; it.Valid() && more && err == nil; {
		var subjects []subject
		var bucket uint32
		for ; it.Valid() && err == nil; it.Next() {
			if n++; n%1024 == 0 && r.ctx.Err() != nil {
				return false, errors.Join(r.ctx.Err(), it.Close())
			}
			var here uint32
			var one subject
			if here, one, err = parseTimeKey(it.Key()); len(subjects) > 0 && here != bucket {
				break
			}
			if r.q.wants(one.kind) && (wanted == nil || wanted[one]) && one.within(low, high) {
				bucket = here
				subjects = append(subjects, one)
			}
		}
		if err == nil && len(subjects) > 0 {
			start := stamp(bucket) << bucketBits
			more, err = r.bySubject(subjects, max(since, start), min(until, start+1<<bucketBits))
		}
	}
	return more && err == nil, errors.Join(err, it.Error(), it.Close())
}

// within reports whether the subject is in a range of addresses. Nodes are only in the range of all.
func (s subject) within(low, high place) bool {
	return low == firstPlace || s.kind != pb.Event_NODE && s.place >= low && s.place <= high
}

// present reads the state with which the segment begins, or that of the wanted places.
func (r *reading) present(wanted map[subject]bool, since, until stamp) (more bool, err error) {
	type copied struct {
		subject
		at stamp
	}
	var all []copied
	low, high := placesOf(r.q.Span)
	for _, kind := range kinds {
		if !r.q.wants(kind) {
			continue
		}
		err := r.scan(itemPrefix(r.seg.number, kind, low), after(itemPrefix(r.seg.number, kind, high)), func() error {
			p, _, at, _, err := parseItemKey(r.seg, r.items.Key())
			if err != nil || at < since || at >= until {
				return err
			}
			if one := (subject{kind, place(p)}); one.within(low, high) && (wanted == nil || wanted[one]) {
				all = append(all, copied{one, at})
			}
			return nil
		})
		if err == nil {
			err = r.ctx.Err()
		}
		if err != nil {
			return false, err
		}
	}
	slices.SortFunc(all, func(a, b copied) int { return cmp.Compare(a.at, b.at) })
	for _, one := range all {
		if more, err := r.bySubject([]subject{one.subject}, one.at, one.at+1); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// send sends a record if it matches.
func (r *reading) send(f *found) (more bool, err error) {
	e, err := r.s.event(&f.stored, f.subject, f.at)
	if err != nil {
		return false, err
	}
	e.Present = f.at < r.seg.start
	if r.q.Match != nil && !r.q.Match(e) {
		return true, nil
	}
	if r.q.Compare != nil {
		var before *pb.Event
		if e.GetType() == pb.Watch_UPDATED {
			one, err := r.before(f.subject, f.stored.id, f.at)
			if err == nil && one.typ != 0 {
				before, err = r.s.event(&one, f.subject, one.at)
			}
			if err != nil {
				return false, err
			}
		}
		if !r.q.Compare(e, before) {
			return true, nil
		}
	}
	if r.q.Item != nil {
		r.q.Item(f.stored.id)
	}
	return r.do(e), nil
}

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

// view calls read with the store.
func (j *Journal) view(read func(*store) error) error {
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
func (j *Journal) Oldest() time.Time { return j.Stats().Oldest }

// Gaps returns the gaps that overlap a period, the oldest first.
func (j *Journal) Gaps(since, until time.Time) (gaps []*pb.Gap, err error) {
	prefix := tablePrefix(0, metaGap)
	err = j.view(func(s *store) error {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: metaKey(metaGap, uint64(micro(since))), UpperBound: after(prefix)})
		if err != nil {
			return err
		}
		for it.First(); it.Valid(); it.Next() {
			v, err := it.ValueAndErr()
			g := new(pb.Gap)
			if err == nil && (len(v) == 0 || v[0] != valueVersion || proto.Unmarshal(v[1:], g) != nil) {
				err = errDamagedRecord
			}
			if err != nil {
				return errors.Join(err, it.Close())
			}
			if g.GetFrom() == nil || g.GetFrom().AsTime().Before(until) {
				gaps = append(gaps, g)
			}
		}
		return errors.Join(it.Error(), it.Close())
	})
	if g := j.gap.Load(); err == nil && g != nil && (g.GetFrom() == nil || g.GetFrom().AsTime().Before(until)) {
		gaps = append(gaps, g)
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

// Token returns the text of the position.
func (p Position) Token() string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint32(p.place[:], p.id))
}

// ParsePosition parses the text of a position. An empty text is the position before all items.
func ParsePosition(token string) (p Position, err error) {
	if token == "" {
		return p, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) != placeSize+4 {
		return p, errors.New("not a position")
	}
	copy(p.place[:], raw)
	p.id = binary.BigEndian.Uint32(raw[placeSize:])
	return p, nil
}

// errEnough is the error of a reader that has read enough.
var errEnough = errors.New("enough")

// At calls do with the items of a kind at a time, ordered by address, and with the position of each. It
// begins after a position. If span is valid, it reads only the items with these addresses. do returns
// false to stop.
func (j *Journal) At(ctx context.Context, kind pb.Event_Kind, at time.Time, span ipam.Range, begin Position, do func(*pb.Event, Position) bool) error {
	low, high := place{}, lastPlace
	if span.First.IsValid() {
		low, high = placeOf(span.First), placeOf(span.Last)
	}
	if low.compare(begin.place) < 0 {
		low = begin.place
	}
	if high.compare(low) < 0 {
		return nil
	}
	err := j.view(func(s *store) error {
		return s.fold(s.list(), kind, at.UnixMicro(), low, high, func(p place, items []folded) error {
			slices.SortFunc(items, func(a, b folded) int { return cmp.Compare(a.id, b.id) })
			for i := range items {
				if p == begin.place && items[i].id <= begin.id {
					continue
				}
				e, err := items[i].event(kind, p, items[i].at)
				if err != nil {
					return err
				}
				if !do(e, Position{p, items[i].id}) {
					return errEnough
				}
			}
			return ctx.Err()
		})
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// A Query selects events. Fields that are not set match everything.
type Query struct {
	// Since and Until are the period; Until does not belong to it.
	Since, Until time.Time
	// After is the time of the last event that was read.
	After time.Time
	Kind  pb.Event_Kind
	// Kinds are several kinds.
	Kinds []pb.Event_Kind
	// Span is the range of addresses.
	Span ipam.Range
	// Node, Namespace, Pod and MAC find events quickly; Match decides.
	Node, Namespace, Pod, MAC string
	// Match reports whether an event matches, apart from its period, kind and address.
	Match func(*pb.Event) bool
}

const (
	// quickPlaces is the number of places that are read one by one. More are found by time.
	quickPlaces = 512
	// quickKeys is the number of keys that are read of one place at a time.
	quickKeys = 512
)

// Events calls do with the matching events, the oldest first. do returns false to stop. A query for an
// address, a workload, a node or a MAC also finds the state with which the journal begins.
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
		list := s.list()
		for i, seg := range list {
			if seg.start >= until || i+1 < len(list) && list[i+1].start <= since {
				continue
			}
			r := reading{ctx: ctx, s: s, q: q, seg: seg, oldest: i == 0, since: since, until: until, do: do}
			if more, err := r.events(); err != nil || !more {
				return err
			}
		}
		return nil
	})
}

// A reading reads the events of one segment.
type reading struct {
	ctx          context.Context
	s            *store
	q            *Query
	seg          segment
	oldest       bool
	since, until stamp
	do           func(*pb.Event) bool
}

// subject is a place with items of one kind.
type subject struct {
	kind  pb.Event_Kind
	place place
}

func (r *reading) events() (more bool, err error) {
	subjects, known, err := r.subjects()
	switch {
	case err != nil:
		return false, err
	case !known:
		return r.byTime(nil)
	case len(subjects) > quickPlaces:
		wanted := make(map[subject]bool, len(subjects))
		for _, one := range subjects {
			wanted[one] = true
		}
		return r.byTime(wanted)
	}
	return r.bySubject(subjects)
}

// subjects returns the places that can match, if they are known without reading the segment.
func (r *reading) subjects() (all []subject, known bool, err error) {
	q := r.q
	var terms [][]byte
	switch {
	case q.Span.First.IsValid() && q.Span.First == q.Span.Last:
		for _, kind := range kinds[:3] {
			if r.wants(kind) {
				all = append(all, subject{kind, placeOf(q.Span.First)})
			}
		}
		terms = append(terms, termPrefix(r.seg.number, addressTerm(q.Span.First)))
	case q.Namespace != "" && q.Pod != "":
		terms = append(terms, termPrefix(r.seg.number, podTerm(q.Namespace, q.Pod)))
	case q.MAC != "":
		terms = append(terms, termPrefix(r.seg.number, macTerm(q.MAC)))
	case q.Node != "":
		terms = append(terms, termPrefix(r.seg.number, nodeTerm(q.Node)))
	case q.Namespace != "":
		terms = append(terms, append(tablePrefix(r.seg.number, byTerm), namespacePrefix(q.Namespace)...))
	default:
		return nil, false, nil
	}
	seen := make(map[subject]bool)
	for _, one := range all {
		seen[one] = true
	}
	for _, prefix := range terms {
		it, err := r.s.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
		if err != nil {
			return nil, false, err
		}
		for it.First(); it.Valid(); it.Next() {
			key := it.Key()
			tail := key[len(key)-1-placeSize:]
			one := subject{kind: pb.Event_Kind(tail[0])}
			copy(one.place[:], tail[1:])
			if !seen[one] && r.wants(one.kind) {
				seen[one] = true
				all = append(all, one)
			}
		}
		if err := errors.Join(it.Error(), it.Close()); err != nil {
			return nil, false, err
		}
	}
	return all, true, nil
}

func (r *reading) wants(kind pb.Event_Kind) bool {
	return (r.q.Kind == 0 || r.q.Kind == kind) && (r.q.Kinds == nil || slices.Contains(r.q.Kinds, kind))
}

// found is a record that may match.
type found struct {
	at      stamp
	subject subject
	value   []byte
}

// bySubject reads the events of some places. It reads some records of each, and sends those up to the
// time until which it has read all.
func (r *reading) bySubject(subjects []subject) (more bool, err error) {
	for since := r.since; since < r.until; {
		horizon := r.until
		var all []found
		for _, one := range subjects {
			end, err := r.read(one, since, horizon, &all)
			if err != nil {
				return false, err
			}
			horizon = min(horizon, end)
		}
		slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.at, b.at) })
		for i := range all {
			if all[i].at >= horizon {
				break
			}
			if more, err := r.send(&all[i]); err != nil || !more {
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
func (r *reading) read(one subject, since, until stamp, into *[]found) (end stamp, err error) {
	it, err := r.s.db.NewIter(&pebble.IterOptions{
		LowerBound: itemKey(r.seg.number, one.kind, one.place, since), UpperBound: itemKey(r.seg.number, one.kind, one.place, until),
	})
	if err != nil {
		return 0, err
	}
	end = until
	n := 0
	for it.First(); it.Valid(); it.Next() {
		at := stampOf(it.Key())
		if n == quickKeys {
			end = at
			break
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return 0, errors.Join(err, it.Close())
		}
		*into = append(*into, found{at, one, bytes.Clone(v)})
		n++
	}
	return end, errors.Join(it.Error(), it.Close())
}

// byTime reads all events of the period, or the events of the wanted places.
func (r *reading) byTime(wanted map[subject]bool) (more bool, err error) {
	it, err := r.s.db.NewIter(&pebble.IterOptions{LowerBound: timeKey(r.seg.number, r.since), UpperBound: timeKey(r.seg.number, r.until)})
	if err != nil {
		return false, err
	}
	low, high := place{}, lastPlace
	if r.q.Span.First.IsValid() {
		low, high = placeOf(r.q.Span.First), placeOf(r.q.Span.Last)
	}
	it.First()
	for n := 1; it.Valid(); it.Next() {
		if n++; n%1024 == 0 && r.ctx.Err() != nil {
			return false, errors.Join(r.ctx.Err(), it.Close())
		}
		v, err := it.ValueAndErr()
		if err == nil && len(v) != 1+placeSize {
			err = errDamagedRecord
		}
		if err != nil {
			return false, errors.Join(err, it.Close())
		}
		one := subject{kind: pb.Event_Kind(v[0])}
		copy(one.place[:], v[1:])
		if !r.wants(one.kind) || wanted != nil && !wanted[one] {
			continue
		}
		if r.q.Span.First.IsValid() && (one.kind == pb.Event_NODE || one.place.compare(low) < 0 || one.place.compare(high) > 0) {
			continue
		}
		f := found{at: stampOf(it.Key()), subject: one}
		value, closer, err := r.s.db.Get(itemKey(r.seg.number, one.kind, one.place, f.at))
		if err != nil {
			return false, errors.Join(err, it.Close())
		}
		f.value = bytes.Clone(value)
		if err := closer.Close(); err != nil {
			return false, errors.Join(err, it.Close())
		}
		if more, err := r.send(&f); err != nil || !more {
			return false, errors.Join(err, it.Close())
		}
	}
	return true, errors.Join(it.Error(), it.Close())
}

// send sends a record if it matches.
func (r *reading) send(f *found) (more bool, err error) {
	one, err := parseValue(f.value)
	if err != nil {
		return false, err
	}
	if one.copied && !r.oldest {
		return true, nil
	}
	e, err := one.event(f.subject.kind, f.subject.place, f.at)
	if err != nil {
		return false, err
	}
	if e.Present = one.copied; e.Present {
		e.Time = timeOf(max(f.at, r.seg.start))
	}
	if r.q.Match != nil && !r.q.Match(e) {
		return true, nil
	}
	return r.do(e), nil
}

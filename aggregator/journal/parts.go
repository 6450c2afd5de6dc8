package journal

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Several replicas may fill one journal, each with the items of some partitions. The state of the
// partitions of one replica may then arrive while changes of others are recorded.

// A PartFeed records the items of the partitions that one source has. Its methods are those of a Feed, but
// between Begin and Complete the changes of others are recorded, too. The feeds of all sources and kinds
// are used by one goroutine.
type PartFeed struct {
	Feed
	source string
}

// From returns the part of the feed that is from a source.
func (f Feed) From(source string) PartFeed { return PartFeed{f, source} }

// Begin announces that the present state of some partitions follows.
func (f PartFeed) Begin(covers func(partition int) bool) error {
	return f.put(op{what: begins, source: f.source, covers: covers})
}

// Present records an item of the present state, if it is new or has changed since the last record.
func (f PartFeed) Present(c *Change) error {
	r, err := newRecord(c)
	if err != nil {
		return err
	}
	return f.put(op{what: present, source: f.source, record: r, note: c.Note})
}

// Complete announces that the present state was sent. Other items of the partitions are gone, unless
// they are of partitions that another source has begun since.
func (f PartFeed) Complete(covers func(partition int) bool) error {
	return f.put(op{what: complete, source: f.source, covers: covers})
}

// ItemOf returns the number that distinguishes the owners of one address, from the identifier of an
// owner.
func ItemOf(id string) uint32 { return hashID(id) }

// Partition returns the partition of the item of a change: that of its address, or one that follows
// from its name.
func Partition(c *Change) (int, error) {
	r, err := newRecord(c)
	return r.place.partition(), err
}

func (p place) partition() int {
	if a := p.address(); a.IsValid() {
		return pb.Partition(a)
	}
	if len(p) < 2 {
		return 0
	}
	return int(p[1]) // of a hash
}

// A partID identifies the state of one kind that a source sends.
type partID struct {
	kind   pb.Event_Kind
	source string
}

// beginPart reads the recorded state of some partitions.
func (c *comparison) beginPart(s *store, id partID, covers func(int) bool) error {
	state, err := c.load(s, id.kind, func(p place) bool { return covers(p.partition()) })
	c.parts[id] = state
	return err
}

// anyPart reports whether a state of a kind is arriving.
func (c *comparison) anyPart(kind pb.Event_Kind) bool {
	for id := range c.parts {
		if id.kind == kind {
			return true
		}
	}
	return false
}

// completePart records that the items of a part that are not present any longer are gone.
func (w *writer) completePart(id partID, covers func(int) bool) error {
	if err := w.commit(); err != nil {
		return err
	}
	state := w.parts[id]
	if state == nil {
		return nil
	}
	delete(w.parts, id)
	now := w.j.now()
	for item := range state.known {
		if covers(item.place.partition()) {
			if err := w.endItem(id.kind, item, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// endItem records that an item is gone.
func (w *writer) endItem(kind pb.Event_Kind, id itemID, now time.Time) error {
	r := record{subject: subject{kind, id.place}, id: id.id, at: now.UnixMicro(), typ: pb.Watch_REMOVED, notBefore: w.gapFrom()}
	if kind == pb.Event_CONFLICT { // it is resolved instead
		e, err := w.s.find(r.subject, r.id)
		if err != nil {
			return err
		}
		c := e.GetConflict()
		if c == nil {
			return nil
		}
		c.State, c.ResolvedAt = pb.Conflict_RESOLVED, timestamppb.New(now)
		r.typ, r.item = pb.Watch_UPDATED, c
	}
	return w.record(&r, false)
}

package export

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// lookAgain is the time between two attempts to find the ends that the former leaders have not told.
	lookAgain = time.Second
	// completeFor is how long a replica has to know everything before what it does not know is over. Its
	// journal may be behind.
	completeFor = 10 * time.Second
)

// overdue returns when the ends that the former leaders have not told have to be looked for; zero for never.
func (x *exporter) overdue(now time.Time) time.Time {
	if x.handover == nil || x.handover.ended || x.to.stateful() {
		return time.Time{}
	}
	return now.Add(lookAgain)
}

// tellEnds tells the end of what the former leaders have told of and is over, although the journal has not
// recorded that since: this replica was itself away when it ended. at is the time up to which everything else
// was told. It waits until this replica has known everything for a while: what it does not know may not be over.
func (x *exporter) tellEnds(ctx context.Context, at time.Time) error {
	h, now := x.handover, x.Clock()
	switch {
	case x.overdue(now).IsZero():
		return nil
	case !x.Complete():
		h.complete = time.Time{}
		return nil
	case h.complete.IsZero():
		h.complete = now
	}
	if now.Sub(h.complete) < completeFor {
		return nil
	}
	open := maps.Clone(h.seen)
	maps.DeleteFunc(open, func(_ string, e entry) bool { return e.Rank == over })
	for _, kind := range endingKinds {
		if err := x.Journal.At(ctx, kind, at, ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
			if !ends(e) {
				delete(open, subjectOf(e))
			}
			return true
		}); err != nil {
			return err
		}
	}
	some, err := x.endsOf(ctx, open, at)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(some, x.batch()) {
		if err := x.tell(ctx, part); err != nil {
			return err
		}
		if err := x.told(ctx, at); err != nil {
			return err
		}
	}
	h.ended = true
	return nil
}

// endingKinds are the kinds of events about what begins and ends.
var endingKinds = []pb.Event_Kind{pb.Event_CONFLICT, pb.Event_FINDING}

// endsOf returns the ends of what was told of. One that the journal does not have is known only by its id and
// address.
func (x *exporter) endsOf(ctx context.Context, open map[string]entry, at time.Time) (some []transition, err error) {
	if len(open) == 0 {
		return nil, nil
	}
	found := make(map[string]*pb.Event)
	q := journal.Query{After: x.handover.from.Add(-overlap), Until: at.Add(time.Microsecond), Kinds: endingKinds}
	if err := x.Journal.Events(ctx, &q, func(e *pb.Event) bool {
		s := subjectOf(e)
		if told, missing := open[s]; missing && ends(e) && !e.GetTime().AsTime().Before(told.At.Add(-skew)) {
			found[s] = e
		}
		return true
	}); err != nil {
		return nil, err
	}
	for _, s := range slices.Sorted(maps.Keys(open)) {
		e := found[s]
		if e == nil {
			e = unseenEnd(s, open[s].Address, at)
		}
		if t := x.phases.transition(e, false); x.isNews(&t) {
			some = append(some, t)
		}
	}
	return some, nil
}

// unseenEnd returns the end of a conflict or finding that this replica has not seen.
func unseenEnd(subject, address string, at time.Time) *pb.Event {
	now := timestamppb.New(at)
	if id, is := strings.CutPrefix(subject, conflictSubject); is {
		return &pb.Event{
			Kind: pb.Event_CONFLICT, Type: pb.Watch_UPDATED, Time: now,
			Conflict: &pb.Conflict{Id: id, Address: address, State: pb.Conflict_RESOLVED, ResolvedAt: now},
		}
	}
	return &pb.Event{
		Kind: pb.Event_FINDING, Type: pb.Watch_REMOVED, Time: now,
		Finding: &pb.Finding{Id: strings.TrimPrefix(subject, findingSubject), Address: address},
	}
}

// ends reports whether an event is the end of its conflict or finding.
func ends(e *pb.Event) bool {
	return e.GetConflict().GetState() == pb.Conflict_RESOLVED || e.GetFinding() != nil && e.GetType() == pb.Watch_REMOVED
}

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
	// lookAgain is the time between two attempts to correct what the former leaders have told.
	lookAgain = time.Second
	// completeFor is how long a replica has to know everything before what it does not know is over. Its
	// journal may be behind.
	completeFor = 10 * time.Second
)

// overdue returns when what the former leaders have told has to be corrected; zero for never.
func (x *exporter) overdue(now time.Time) time.Time {
	if x.handover == nil || x.handover.corrected || x.to.stateful() {
		return time.Time{}
	}
	return now.Add(lookAgain)
}

// correct corrects what the receiver believes, once for each time that this replica becomes the leader: it tells
// the end of what is over, although the journal has not recorded that since, because this replica was itself away
// then, and what lasts, although a former leader told its end. at is the time up to which everything else was
// told. It waits until this replica has known everything for a while: what it does not know may not be over.
func (x *exporter) correct(ctx context.Context, at time.Time) error {
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
	some, err := x.corrections(ctx, at)
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
	h.corrected = true
	return nil
}

// corrections compares what was told with the state at a time.
func (x *exporter) corrections(ctx context.Context, at time.Time) (some []transition, err error) {
	open := x.handover.open()
	for _, kind := range []pb.Event_Kind{pb.Event_CONFLICT, pb.Event_FINDING} {
		if err := x.Journal.At(ctx, kind, at, ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
			if e.GetConflict().GetState() == pb.Conflict_RESOLVED {
				return true
			}
			delete(open, subjectOf(e))
			if told, known := x.handover.seen[subjectOf(e)]; !known || told.own || told.Rank != over {
				return true
			}
			e.Type = pb.Watch_ADDED
			if t := make(phases).transition(e, true); x.to.wants(&t) {
				x.handover.note(&t)
				some = append(some, t)
			}
			return true
		}); err != nil {
			return nil, err
		}
	}
	for _, s := range slices.Sorted(maps.Keys(open)) {
		some = append(some, x.handover.unseenEnd(s, open[s], at))
	}
	return some, nil
}

// unseenEnd returns the end of what was told, which this replica has not seen. Only its id and its address are
// known.
func (h *handover) unseenEnd(subject string, told entry, at time.Time) transition {
	now := timestamppb.New(at)
	e := &pb.Event{
		Kind: pb.Event_FINDING, Type: pb.Watch_REMOVED, Time: now,
		Finding: &pb.Finding{Id: strings.TrimPrefix(subject, findingSubject), Address: told.Address},
	}
	if id, is := strings.CutPrefix(subject, conflictSubject); is {
		e = &pb.Event{
			Kind: pb.Event_CONFLICT, Type: pb.Watch_UPDATED, Time: now,
			Conflict: &pb.Conflict{Id: id, Address: told.Address, State: pb.Conflict_RESOLVED, ResolvedAt: now},
		}
	}
	t := make(phases).transition(e, false)
	t.began = told.Began
	h.note(&t)
	return t
}

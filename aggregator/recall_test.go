package aggregator

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// recorded waits until the journal has a conflict in a state.
func (l *lab) recorded(state pb.Conflict_State) *pb.Conflict {
	l.Helper()
	return l.await("the conflict in the journal", &pb.ListEventsRequest{Kind: pb.Event_CONFLICT, Address: addr}, func(e *pb.Event) bool {
		return e.GetConflict().GetState() == state
	}).GetConflict()
}

// known waits until the aggregator lists a conflict in a state.
func (l *lab) known(state pb.Conflict_State) (found *pb.Conflict) {
	l.Helper()
	wait.Until(l, "a conflict that is "+state.String(), func() bool {
		for _, c := range l.list(&pb.ListConflictsRequest{State: state}) {
			found = c
		}
		return found != nil
	})
	return found
}

func (l *lab) list(q *pb.ListConflictsRequest) []*pb.Conflict {
	l.Helper()
	out, err := l.client.ListConflicts(l.ctx, q)
	if err != nil {
		l.Fatal(err)
	}
	return out.GetConflicts()
}

// settled waits until nothing from before the start is awaited, and the journal has compared the present
// state with the state before.
func (l *lab) settled() {
	l.Helper()
	wait.Until(l, "the present state in the journal", func() bool { _, whole, _ := l.core.journal.Written(); return whole })
	if err := l.core.journal.Feed(pb.Event_OWNER).Flush(); err != nil {
		l.Fatal(err)
	}
}

// conflictsRecorded returns the recorded events of conflicts.
func (l *lab) conflictsRecorded() []*pb.Event {
	l.Helper()
	return l.events(&pb.ListEventsRequest{Kind: pb.Event_CONFLICT, Address: addr}).GetEvents()
}

// identity is what a restart must not change.
func identity(c *pb.Conflict) string {
	return c.GetId() + " " + c.GetDetectedAt().AsTime().String() + " " + c.GetConfirmedAt().AsTime().String()
}

// A node that is not connected after a restart keeps the state before it: nothing has ended.
func TestAConflictIsKnownAfterARestart(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond}
	l := newLab(t, cfg)
	pods := twoPods()
	a := l.dial().send(pods).sync()
	a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
	before := l.recorded(pb.Conflict_CONFIRMED)
	l.settled()
	told := len(l.conflictsRecorded())
	l.stop()

	l = newLab(t, cfg)
	away := l.known(pb.Conflict_CONFIRMED)
	if identity(away) != identity(before) || away.GetEpisode() != 1 || len(away.GetOwners()) != 2 {
		t.Errorf("got %v before any node has reported, want %v", away, before)
	}
	for _, o := range away.GetOwners() {
		if o.GetState() != pb.Owner_DISCONNECTED {
			t.Errorf("got owner %v, want it DISCONNECTED", o)
		}
	}
	if len(away.GetRemedy()) != 0 {
		t.Errorf("got steps %v for a conflict that was not judged", away.GetRemedy())
	}
	w := l.watchConflicts()
	if c := w.next(added); identity(c) != identity(before) {
		t.Errorf("got %v, want the conflict in the present state", c)
	}
	l.dial().send(pods).sync()
	again := w.next(updated)
	if identity(again) != identity(before) || again.GetEpisode() != 1 || again.GetState() != pb.Conflict_CONFIRMED || len(again.GetRemedy()) == 0 {
		t.Errorf("got %v when the node had reported, want %v to continue", again, before)
	}
	l.settled()
	if got := l.conflictsRecorded(); len(got) != told {
		t.Errorf("got %d events of a conflict that lasted, want %d as before the restart: %v", len(got), told, got)
	}
}

// What ended while the aggregator was away has ended, with a reason; the next episode has its number.
func TestAConflictThatEndsDuringARestartIsResolved(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond}
	l := newLab(t, cfg)
	l.dial().send(twoPods()).sync()
	before := l.recorded(pb.Conflict_SUSPECTED)
	l.settled()
	l.stop()

	l = newLab(t, cfg)
	l.known(pb.Conflict_SUSPECTED)
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	over := l.known(pb.Conflict_RESOLVED)
	if over.GetId() != before.GetId() || !proto.Equal(over.GetDetectedAt(), before.GetDetectedAt()) || over.GetResolvedAt() == nil {
		t.Errorf("got %v, want %v to be resolved", over, before)
	}
	l.settled()
	events := l.conflictsRecorded()
	last := events[len(events)-1]
	if last.GetConflict().GetState() != pb.Conflict_RESOLVED || last.GetNotBefore() == nil {
		t.Errorf("got %v as the last event, want the end with the time before which it was not", last)
	}
	l.stop()

	l = newLab(t, cfg)
	if c := l.known(pb.Conflict_RESOLVED); !proto.Equal(c.GetResolvedAt(), over.GetResolvedAt()) || c.GetSummary() != over.GetSummary() {
		t.Errorf("got %v after the second restart, want %v", c, over)
	}
	a.cancel()
	l.dial().send(twoPods()).sync()
	if c := l.known(pb.Conflict_SUSPECTED); c.GetId() != before.GetId() || c.GetEpisode() != 2 {
		t.Errorf("got %v, want episode 2 of %s", c, before.GetId())
	}
	l.settled()
	if got := len(l.conflictsRecorded()); got != len(events)+1 {
		t.Errorf("got %d events, want one more than %d", got, len(events))
	}
}

// A node that does not come back in time has timed out.
func TestAConflictOfANodeThatDoesNotComeBackEnds(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond, NodeTimeout: 2 * time.Second}
	l := newLab(t, cfg)
	l.dial().send(twoPods()).sync()
	before := l.recorded(pb.Conflict_SUSPECTED)
	l.settled()
	l.stop()

	l = newLab(t, cfg)
	l.dial().send(snapshot(hello("n2", 1), podVeth(2, "c", "10.244.9.9"))).sync()
	l.known(pb.Conflict_SUSPECTED)
	over := l.known(pb.Conflict_RESOLVED)
	if over.GetId() != before.GetId() || len(over.GetOwners()) != 2 {
		t.Errorf("got %v, want %v to be resolved", over, before)
	}
	for _, o := range over.GetOwners() {
		if o.GetState() != pb.Owner_GONE || o.GetNode() != "n1" {
			t.Errorf("got owner %v, want it gone", o)
		}
	}
}

// A finding that lasts keeps the time at which it began.
func TestAFindingKeepsItsTimeAfterARestart(t *testing.T) {
	cfg := Config{DataDir: t.TempDir()}
	l := newLab(t, cfg)
	other := hello("same", 1)
	other.BootId = "another"
	two := func() {
		l.dial().send(snapshot(hello("same", 1), podVeth(2, "a", addr))).sync()
		l.dial().send(snapshot(other, podVeth(2, "b", "10.244.0.9"))).sync()
	}
	two()
	before := l.await("the finding in the journal", &pb.ListEventsRequest{Kind: pb.Event_FINDING, Node: "same"}, func(e *pb.Event) bool { return e.GetFinding() != nil }).GetFinding()
	l.settled()
	l.stop()
	l = newLab(t, cfg)
	two()
	wait.Until(t, "the finding with its time", func() bool {
		out, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{Kind: before.GetKind()})
		if err != nil {
			t.Fatal(err)
		}
		return len(out.GetFindings()) == 1 && proto.Equal(out.GetFindings()[0].GetDetectedAt(), before.GetDetectedAt())
	})
}

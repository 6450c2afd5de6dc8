package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// added returns the event of a conflict.
func added(c *pb.Conflict) *pb.WatchConflictsResponse {
	return &pb.WatchConflictsResponse{Type: pb.Watch_ADDED, Conflict: c}
}

func bookmark(c *pb.Coverage) *pb.WatchConflictsResponse {
	return &pb.WatchConflictsResponse{Type: pb.Watch_BOOKMARK, Coverage: c}
}

// A follower is a model that applies each change at once.
type follower struct {
	*model
	now time.Time
}

func follow(t *testing.T) *follower {
	f := &follower{now: noon}
	f.model = newModel(t.Context(), (&fake{}).server(), Config{Now: func() time.Time { return f.now }})
	return f
}

func (f *follower) send(c change) { f.Update(changesMsg{c}) }

// conflictIDs returns the ids of the conflicts, sorted.
func (f *follower) conflictIDs() (out []string) {
	for _, c := range f.lists.conflicts.all {
		out = append(out, c.GetId())
	}
	slices.Sort(out)
	return out
}

func TestTheListsFollowTheirWatches(t *testing.T) {
	f := follow(t)
	conflicts, findings := conflictStream(f.send), findingStream(f.send)
	state := func(want linkState) {
		t.Helper()
		if got := f.links[0].state; got != want {
			t.Errorf("got state %d, want %d", got, want)
		}
	}
	state(connecting)
	conflicts.Connected(true)
	state(catchingUp)
	conflicts.Event(added(conflictOf("a", "10.0.0.1", pb.Conflict_CONFIRMED, 0, "x", "y")))
	conflicts.Event(added(conflictOf("b", "10.0.0.2", pb.Conflict_CONFIRMED, 0, "x", "y")))
	conflicts.Event(bookmark(&pb.Coverage{Expected: 2, Heard: 1}))
	if got := f.conflictIDs(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got conflicts %v, want a and b", got)
	}
	if f.links[0].state != live || f.links[0].caughtUp != noon {
		t.Errorf("got %+v, want live since noon", f.links[0])
	}
	if f.health.coverage.GetHeard() != 1 {
		t.Errorf("got coverage %v, want one node", f.health.coverage)
	}
	findings.Event(&pb.WatchFindingsResponse{Type: pb.Watch_ADDED, Finding: &pb.Finding{Id: "f", Kind: "leaked", Address: "10.0.0.3"}})
	if got := f.lists.findings.all; len(got) != 1 {
		t.Errorf("got %d findings, want one", len(got))
	}
	conflicts.Event(&pb.WatchConflictsResponse{Type: pb.Watch_NODE, Node: &pb.Node{Name: "n1", BootId: "1"}})
	if got := f.lists.nodes.all; len(got) != 1 {
		t.Errorf("got %d nodes, want one", len(got))
	}
	f.Update(nodesMsg{list: &pb.ListNodesResponse{Nodes: []*pb.Node{{Name: "n2", BootId: "2"}}, Problems: []string{"disk full"}}})
	if got := f.lists.nodes.all; len(got) != 1 || got[0].GetName() != "n2" || len(f.health.problems) != 1 {
		t.Errorf("got nodes %v and problems %v, want n2 and one problem", got, f.health.problems)
	}
	f.Update(nodesMsg{err: errors.New("refused")})
	if f.health.nodesReason != "refused" || len(f.lists.nodes.all) != 1 {
		t.Errorf("got reason %q and nodes %v, want refused and the old list", f.health.nodesReason, f.lists.nodes.all)
	}

	f.now = noon.Add(time.Minute)
	conflicts.Disconnected(errors.New("connection \x1b[2Jrefused"))
	f.now = noon.Add(2 * time.Minute)
	conflicts.Disconnected(errors.New("connection refused"))
	if l := f.links[0]; l.state != disconnected || l.since != noon.Add(time.Minute) || l.caughtUp != noon.Add(time.Minute) || l.reason != "connection refused" {
		t.Errorf("got %+v, want disconnected and complete until 12:01", l)
	}
	conflicts.Connected(true)
	conflicts.Event(added(conflictOf("b", "10.0.0.2", pb.Conflict_CONFIRMED, 0, "x", "y")))
	if got := f.conflictIDs(); len(got) != 2 {
		t.Errorf("got %v while catching up, want both to stay until the state is complete", got)
	}
	conflicts.Event(bookmark(nil))
	if got := f.conflictIDs(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("got %v, want only b: a ended while the watch was disconnected", got)
	}
	conflicts.Event(&pb.WatchConflictsResponse{Type: pb.Watch_LOST, Lost: 3})
	state(catchingUp)
	conflicts.Event(bookmark(nil))
	if got := f.conflictIDs(); len(got) != 0 {
		t.Errorf("got %v, want an empty list", got)
	}
}

func TestAResolvedConflictStaysForAWhile(t *testing.T) {
	f := follow(t)
	stream := conflictStream(f.send)
	stream.Connected(true)
	over := conflictOf("a", "10.0.0.1", pb.Conflict_RESOLVED, time.Hour, "x", "y")
	over.ResolvedAt = timestamppb.New(noon)
	stream.Event(added(over))
	stream.Event(added(conflictOf("b", "10.0.0.2", pb.Conflict_CONFIRMED, 0, "x", "y")))
	if got := f.conflictIDs(); len(got) != 2 {
		t.Errorf("got %v, want both", got)
	}
	f.now = noon.Add(resolvedFor + time.Second)
	stream.Event(bookmark(nil))
	if got := f.conflictIDs(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("got %v, want b", got)
	}
}

func TestTheListsAreBounded(t *testing.T) {
	f := follow(t)
	var batch changesMsg
	stream := conflictStream(func(c change) { batch = append(batch, c) })
	apply := func() { f.Update(batch); batch = nil }
	stream.Connected(true)
	for i := range mostRows + 10 {
		stream.Event(added(conflictOf(fmt.Sprint("id", i), "10.0.0.1", pb.Conflict_CONFIRMED, 0)))
	}
	apply()
	if got := len(f.lists.conflicts.all); got != mostRows || !f.cut[0] {
		t.Errorf("got %d conflicts, cut %t, want %d, cut", got, f.cut[0], mostRows)
	}
	for i := range mostRows {
		stream.Event(&pb.WatchConflictsResponse{Type: pb.Watch_REMOVED, Conflict: &pb.Conflict{Id: fmt.Sprint("id", i)}})
	}
	stream.Event(added(conflictOf("later", "10.0.0.1", pb.Conflict_CONFIRMED, 0)))
	apply()
	if got := f.conflictIDs(); !slices.Equal(got, []string{"later"}) || !f.cut[0] {
		t.Errorf("got %v, cut %t, want later, and still cut because some are missing", got, f.cut[0])
	}
	stream.Connected(true)
	stream.Event(bookmark(nil))
	apply()
	if f.cut[0] {
		t.Error("the list is still cut after the whole state was sent")
	}
}

func TestChangesAreCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changes, sent := make(chan change), make(chan int)
		go collect(ctx, changes, func(c changesMsg) { sent <- len(c) })
		for range 3 {
			changes <- nil
		}
		if got := <-sent; got != 3 {
			t.Errorf("got %d changes at once, want 3", got)
		}
		changes <- nil
		if got := <-sent; got != 1 {
			t.Errorf("got %d changes, want the next one", got)
		}
		cancel()
		synctest.Wait()
	})
}

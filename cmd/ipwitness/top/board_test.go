package top

import (
	"errors"
	"fmt"
	"slices"
	"testing"
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

func snapshotIDs(s snapshot) (out []string) {
	for _, r := range s.conflicts {
		out = append(out, r.GetId())
	}
	slices.Sort(out)
	return out
}

func TestABoardFollowsItsWatches(t *testing.T) {
	now := noon
	b := newBoard(func() time.Time { return now })
	conflicts, findings := b.conflictStream(), b.findingStream()
	state := func(want linkState) {
		t.Helper()
		if got := b.snapshot().links[0].state; got != want {
			t.Errorf("got state %d, want %d", got, want)
		}
	}
	state(connecting)
	conflicts.Connected(true)
	state(catchingUp)
	conflicts.Event(added(conflictOf("a", "10.0.0.1", pb.Conflict_CONFIRMED, 0, "x", "y")))
	conflicts.Event(added(conflictOf("b", "10.0.0.2", pb.Conflict_CONFIRMED, 0, "x", "y")))
	conflicts.Event(bookmark(&pb.Coverage{Expected: 2, Heard: 1}))
	s := b.snapshot()
	if got := snapshotIDs(s); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got conflicts %v, want a and b", got)
	}
	if s.links[0].state != live || s.links[0].caughtUp != noon {
		t.Errorf("got %+v, want live since noon", s.links[0])
	}
	if s.health.coverage.GetHeard() != 1 {
		t.Errorf("got coverage %v, want one node", s.health.coverage)
	}
	if again := b.snapshot(); again.conflicts != nil {
		t.Errorf("got %v, want no list, because nothing has changed", again.conflicts)
	}
	findings.Event(&pb.WatchFindingsResponse{Type: pb.Watch_ADDED, Finding: &pb.Finding{Id: "f", Kind: "leaked", Address: "10.0.0.3"}})
	if s := b.snapshot(); len(s.findings) != 1 || s.conflicts != nil {
		t.Errorf("got %d findings and conflicts %v, want one finding only", len(s.findings), s.conflicts)
	}
	conflicts.Event(&pb.WatchConflictsResponse{Type: pb.Watch_NODE, Node: &pb.Node{Name: "n1", BootId: "1"}})
	if s := b.snapshot(); len(s.nodes) != 1 {
		t.Errorf("got %d nodes, want one", len(s.nodes))
	}
	b.listed(&pb.ListNodesResponse{Nodes: []*pb.Node{{Name: "n2", BootId: "2"}}, Problems: []string{"disk full"}}, nil)
	if s := b.snapshot(); len(s.nodes) != 1 || s.nodes[0].GetName() != "n2" || len(s.health.problems) != 1 {
		t.Errorf("got nodes %v and problems %v, want n2 and one problem", s.nodes, s.health.problems)
	}
	b.listed(nil, errors.New("refused"))
	if s := b.snapshot(); s.health.nodesReason != "refused" || s.nodes != nil {
		t.Errorf("got reason %q and nodes %v, want refused and no new list", s.health.nodesReason, s.nodes)
	}

	now = noon.Add(time.Minute)
	conflicts.Disconnected(errors.New("connection \x1b[2Jrefused"))
	now = noon.Add(2 * time.Minute)
	conflicts.Disconnected(errors.New("connection refused"))
	if l := b.snapshot().links[0]; l.state != disconnected || l.since != noon.Add(time.Minute) || l.caughtUp != noon.Add(time.Minute) || l.reason != "connection refused" {
		t.Errorf("got %+v, want disconnected and complete until 12:01", l)
	}
	conflicts.Connected(true)
	conflicts.Event(added(conflictOf("b", "10.0.0.2", pb.Conflict_CONFIRMED, 0, "x", "y")))
	if s := b.snapshot(); len(s.conflicts) != 2 {
		t.Errorf("got %v while catching up, want both to stay until the state is complete", snapshotIDs(s))
	}
	conflicts.Event(bookmark(nil))
	if s := b.snapshot(); !slices.Equal(snapshotIDs(s), []string{"b"}) {
		t.Errorf("got %v, want only b: a ended while the watch was disconnected", snapshotIDs(s))
	}
	conflicts.Event(&pb.WatchConflictsResponse{Type: pb.Watch_LOST, Lost: 3})
	state(catchingUp)
	conflicts.Event(bookmark(nil))
	if s := b.snapshot(); len(s.conflicts) != 0 || s.conflicts == nil {
		t.Errorf("got %v, want an empty list", s.conflicts)
	}
}

func TestAResolvedConflictStaysForAWhile(t *testing.T) {
	now := noon
	b := newBoard(func() time.Time { return now })
	stream := b.conflictStream()
	stream.Connected(true)
	over := conflictOf("a", "10.0.0.1", pb.Conflict_RESOLVED, time.Hour, "x", "y")
	over.ResolvedAt = timestamppb.New(noon)
	stream.Event(added(over))
	stream.Event(added(conflictOf("b", "10.0.0.2", pb.Conflict_CONFIRMED, 0, "x", "y")))
	if s := b.snapshot(); len(s.conflicts) != 2 {
		t.Errorf("got %d conflicts, want 2", len(s.conflicts))
	}
	now = noon.Add(resolvedFor + time.Second)
	if s := b.snapshot(); !slices.Equal(snapshotIDs(s), []string{"b"}) {
		t.Errorf("got %v, want b", snapshotIDs(s))
	}
}

func TestABoardIsBounded(t *testing.T) {
	b := newBoard(func() time.Time { return noon })
	stream := b.conflictStream()
	stream.Connected(true)
	for i := range mostRows + 10 {
		stream.Event(added(conflictOf(fmt.Sprint("id", i), "10.0.0.1", pb.Conflict_CONFIRMED, 0)))
	}
	s := b.snapshot()
	if len(s.conflicts) != mostRows || !s.cut[0] {
		t.Errorf("got %d conflicts, cut %t, want %d, cut", len(s.conflicts), s.cut[0], mostRows)
	}
	for i := range mostRows {
		stream.Event(&pb.WatchConflictsResponse{Type: pb.Watch_REMOVED, Conflict: &pb.Conflict{Id: fmt.Sprint("id", i)}})
	}
	stream.Event(added(conflictOf("later", "10.0.0.1", pb.Conflict_CONFIRMED, 0)))
	if s := b.snapshot(); !slices.Equal(snapshotIDs(s), []string{"later"}) || !s.cut[0] {
		t.Errorf("got %v, cut %t, want later, and still cut because some are missing", snapshotIDs(s), s.cut[0])
	}
	stream.Connected(true)
	stream.Event(bookmark(nil))
	if s := b.snapshot(); s.cut[0] {
		t.Error("the list is still cut after the whole state was sent")
	}
}

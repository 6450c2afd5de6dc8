package aggregator

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// events returns the recorded events that a request asks for.
func (l *lab) events(q *pb.ListEventsRequest) *pb.ListEventsResponse {
	l.Helper()
	if err := l.core.journal.Feed(pb.Event_OWNER).Flush(); err != nil {
		l.Fatal(err)
	}
	out, err := l.client.ListEvents(l.ctx, q)
	if err != nil {
		l.Fatal(err)
	}
	return out
}

// await waits until an event is recorded.
func (l *lab) await(what string, q *pb.ListEventsRequest, is func(*pb.Event) bool) *pb.Event {
	l.Helper()
	var found *pb.Event
	wait.Until(l, what, func() bool {
		for _, e := range l.events(q).GetEvents() {
			if is(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

func TestTheHistoryIsKnownAfterARestart(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{DataDir: dir, Settle: time.Millisecond}
	l := newLab(t, cfg)
	// What is present when the journal begins has a time before that.
	wait.Until(t, "the present state in the journal", func() bool { _, whole, _ := l.core.journal.Written(); return whole })
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "web", addr))).sync()
	web := l.await("web", &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool {
		return e.GetType() == pb.Watch_ADDED && e.GetOwner().GetWorkload().GetName() == "web"
	})
	a.send(podVeth(3, "new", addr)).sync()
	a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
	confirmed := l.await("the conflict", &pb.ListEventsRequest{Kind: pb.Event_CONFLICT}, func(e *pb.Event) bool {
		return e.GetConflict().GetState() == pb.Conflict_CONFIRMED
	})
	a.send(gone(assigned(2, addr))).sync()
	resolved := l.await("the end", &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool {
		return e.GetConflict().GetState() == pb.Conflict_RESOLVED
	})
	left := l.await("web to leave", &pb.ListEventsRequest{Namespace: "default", Pod: "web"}, func(e *pb.Event) bool {
		return e.GetType() == pb.Watch_REMOVED
	})
	l.stop()

	l = newLab(t, cfg)
	l.dial().send(snapshot(hello("n1", 2), podVeth(3, "new", addr))).sync()
	wait.Until(t, "the end of the gap", func() bool {
		gaps := l.events(&pb.ListEventsRequest{}).GetGaps()
		return len(gaps) == 1 && gaps[0].GetUntil() != nil && gaps[0].GetReason() == pb.Gap_NOT_RUNNING
	})
	all := l.events(&pb.ListEventsRequest{Address: addr}).GetEvents()
	at := map[string]bool{}
	for _, e := range all {
		at[e.GetTime().AsTime().String()+e.GetKind().String()] = true
	}
	for _, e := range []*pb.Event{web, confirmed, resolved, left} {
		if !at[e.GetTime().AsTime().String()+e.GetKind().String()] {
			t.Errorf("got %v after the restart, want %v in it", all, e)
		}
	}
	for _, one := range []struct {
		at     time.Time
		owners []string
		active int
	}{
		{web.GetTime().AsTime(), []string{"web"}, 0},
		{confirmed.GetTime().AsTime(), []string{"new", "web"}, 1},
		{time.UnixMicro(max(left.GetTime().AsTime().UnixMicro(), resolved.GetTime().AsTime().UnixMicro())), []string{"new"}, 0},
	} {
		owners, err := l.client.ListOwners(l.ctx, &pb.ListOwnersRequest{Address: addr, At: timestamppb.New(one.at)})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, o := range owners.GetOwners() {
			names = append(names, o.GetWorkload().GetName())
		}
		slices.Sort(names)
		if !slices.Equal(names, one.owners) {
			t.Errorf("got owners %v at %s, want %v", names, one.at, one.owners)
		}
		conflicts, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{At: timestamppb.New(one.at)})
		if err != nil || len(conflicts.GetConflicts()) != one.active {
			t.Errorf("got conflicts %v and %v at %s, want %d", conflicts.GetConflicts(), err, one.at, one.active)
		}
		if one.active > 0 && conflicts.GetConflicts()[0].GetId() != confirmed.GetConflict().GetId() {
			t.Errorf("got conflict %v", conflicts.GetConflicts()[0])
		}
	}
}

func TestQuestionsAboutThePastAreChecked(t *testing.T) {
	l := newLab(t, Config{DataDir: t.TempDir()})
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "web", addr))).sync()
	l.await("web", &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool { return e.GetOwner() != nil })
	for name, one := range map[string]struct {
		at   time.Time
		want codes.Code
	}{
		"future":             {time.Now().Add(time.Hour), codes.InvalidArgument},
		"before the journal": {time.Now().Add(-time.Hour), codes.OutOfRange},
	} {
		if _, err := l.client.ListOwners(l.ctx, &pb.ListOwnersRequest{At: timestamppb.New(one.at)}); status.Code(err) != one.want {
			t.Errorf("%s: got %v, want %s", name, err, one.want)
		}
	}
	for _, q := range []*pb.ListEventsRequest{
		{Kind: 9},
		{PageToken: "junk"},
		{Address: "junk"},
		{Since: timestamppb.Now(), Until: timestamppb.New(time.Now().Add(-time.Hour))},
	} {
		if _, err := l.client.ListEvents(l.ctx, q); status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v from %v, want INVALID_ARGUMENT", err, q)
		}
	}
	none := newLab(t, Config{})
	if _, err := none.client.ListEvents(none.ctx, &pb.ListEventsRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got %v without a data directory, want FAILED_PRECONDITION", err)
	}
}

func TestPagesOfEventsFitTogether(t *testing.T) {
	l := newLab(t, Config{DataDir: t.TempDir()})
	a := l.dial().send(snapshot(hello("n1", 1))).sync()
	l.await("the node", &pb.ListEventsRequest{Node: "n1"}, func(*pb.Event) bool { return true })
	for i := range uint32(40) {
		a.send(podVeth(2+i, "pod", netip.AddrFrom4([4]byte{10, 244, 0, byte(10 + i)}).String()))
	}
	a.sync()
	q := &pb.ListEventsRequest{Kind: pb.Event_OWNER}
	wait.Until(t, "40 owners", func() bool { return len(l.events(q).GetEvents()) == 40 })
	seen := map[string]bool{}
	for q.PageSize = 7; ; {
		p := l.events(q)
		for _, e := range p.GetEvents() {
			seen[e.GetOwner().GetAddress()] = true
		}
		if q.PageToken = p.GetNextPageToken(); q.PageToken == "" {
			break
		}
	}
	if len(seen) != 40 {
		t.Errorf("got %d owners on pages, want 40", len(seen))
	}
}

// An explanation of the past has everything, also if that is more than a page of a list.
func TestAnExplanationOfThePastHasAllPages(t *testing.T) {
	l := newLab(t, Config{DataDir: t.TempDir()})
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "web", addr))).sync()
	l.settled()
	const owners = 40
	feed := l.core.journal.Feed(pb.Event_OWNER)
	for i := range owners {
		if err := feed.Changed(&journal.Change{At: time.Now(), Type: pb.Watch_ADDED, ID: fmt.Sprint(i), Owner: &pb.Owner{
			Address: "192.0.2.1", Node: "n1", Netns: fmt.Sprint(i), Workload: &pb.Workload{Kind: pb.Workload_HOST, Process: strings.Repeat("x", 1<<16)},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := feed.Flush(); err != nil {
		t.Fatal(err)
	}
	at := timestamppb.Now()
	page, err := l.client.ListOwners(l.ctx, &pb.ListOwnersRequest{Address: "192.0.2.1", At: at, PageSize: 10_000})
	if err != nil || page.GetNextPageToken() == "" || len(page.GetOwners()) == owners {
		t.Fatalf("got %d owners and %v in the first page: the test has no effect", len(page.GetOwners()), err)
	}
	out, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: "192.0.2.1", At: at})
	if err != nil {
		t.Fatal(err)
	}
	netns := make(map[string]bool)
	for _, o := range out.GetOwners() {
		netns[o.GetNetns()] = true
	}
	if len(out.GetOwners()) != owners || len(netns) != owners || out.GetCoverage().GetExpected() != 1 {
		t.Errorf("got %d owners, %d of them different, and coverage %v, want %d of one node", len(out.GetOwners()), len(netns), out.GetCoverage(), owners)
	}
}

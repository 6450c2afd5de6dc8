package aggregator

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/live"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// outlives reports whether a resume token is known to the journal.
func outlives(token string) bool { return strings.Count(token, "-") == 2 }

// token begins a watch and returns the token of its first bookmark, as soon as it is known to the journal.
func (l *lab) token(q *pb.WatchOwnersRequest) (token string) {
	l.Helper()
	wait.Until(l, "a token with a time in the journal", func() bool {
		w := l.watchOwners(q)
		defer w.cancel()
		events := w.until(pb.Watch_BOOKMARK)
		token = events[len(events)-1].GetResumeToken()
		return outlives(token)
	})
	return token
}

// resumed resumes a watch, and returns what it sends until the events that follow are those of the present.
func (l *lab) resumed(q *pb.WatchOwnersRequest) (all []string, w *ownerWatch) {
	l.Helper()
	w = l.watchOwners(q)
	for {
		m := w.until(pb.Watch_BOOKMARK)
		for _, e := range m[:len(m)-1] {
			if e.GetNode() == nil {
				all = append(all, strings.TrimSpace(e.GetType().String()+" "+e.GetOwner().GetWorkload().GetName()))
			}
		}
		if !strings.Contains(m[len(m)-1].GetResumeToken(), "-0-") {
			return all, w
		}
	}
}

// historySince returns the recorded events of owners since a resume token, as resumed does.
func (l *lab) historySince(token string) (all []string) {
	l.Helper()
	if token == "" {
		return nil
	}
	at, err := strconv.ParseInt(token[strings.LastIndex(token, "-")+1:], 36, 64)
	if err != nil {
		l.Fatal(err)
	}
	for _, e := range l.events(&pb.ListEventsRequest{Kind: pb.Event_OWNER, Since: timestamppb.New(time.UnixMicro(at + 1))}).GetEvents() {
		all = append(all, e.GetType().String()+" "+e.GetOwner().GetWorkload().GetName())
	}
	return all
}

// A watch that resumes after a restart gets what has changed since: before it, and while the aggregator
// was away.
func TestAWatchContinuesAfterARestart(t *testing.T) {
	cfg := Config{DataDir: t.TempDir()}
	l := newLab(t, cfg)
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", "10.244.0.6"))).sync()
	l.settled()
	all, byPod := l.token(&pb.WatchOwnersRequest{}), l.token(&pb.WatchOwnersRequest{Pod: "b"})
	a.send(podVeth(4, "c", "10.244.0.7")).sync()
	a.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{podNamespace(3, "renamed")}}).sync()
	l.settled()
	last := l.token(&pb.WatchOwnersRequest{})
	l.stop()

	l = newLab(t, cfg)
	a = l.dial().send(snapshot(hello("n1", 1), podVeth(3, "renamed", "10.244.0.6"), podVeth(4, "c", "10.244.0.7"), podVeth(5, "d", "10.244.0.8"))).sync()
	for name, one := range map[string]struct {
		q     *pb.WatchOwnersRequest
		since string
		want  []string
	}{
		"all":         {&pb.WatchOwnersRequest{ResumeToken: all}, all, []string{"ADDED c", "UPDATED renamed", "ADDED d", "REMOVED a"}},
		"the last":    {&pb.WatchOwnersRequest{ResumeToken: last}, last, []string{"ADDED d", "REMOVED a"}},
		"an address":  {&pb.WatchOwnersRequest{ResumeToken: all, Address: addr}, "", []string{"REMOVED a"}},
		"a pod":       {&pb.WatchOwnersRequest{ResumeToken: byPod, Pod: "b"}, "", []string{"REMOVED renamed"}},
		"another pod": {&pb.WatchOwnersRequest{ResumeToken: byPod, Pod: "renamed"}, "", []string{"ADDED renamed"}},
	} {
		got, w := l.resumed(one.q)
		for _, want := range one.want {
			if !slices.Contains(got, want) {
				t.Errorf("%s: got %v, want %s in it", name, got, want)
			}
		}
		if history := l.historySince(one.since); one.since != "" && !slices.Equal(got, history) {
			t.Errorf("%s: got %v, want the history since the token: %v", name, got, history)
		}
		if slices.Contains(got, "LOST") || one.since == "" && got[0] != one.want[0] {
			t.Errorf("%s: got %v, want %v first", name, got, one.want)
		}
		w.cancel()
	}
	_, w := l.resumed(&pb.WatchOwnersRequest{ResumeToken: all})
	a.send(podVeth(6, "live", "10.244.0.9")).sync()
	if got := w.until(pb.Watch_ADDED); len(got) != 1 || got[0].GetOwner().GetWorkload().GetName() != "live" {
		t.Errorf("got %v, want the events that follow", got)
	}
}

// A token is valid for as long as the journal reaches back, not only as long as the events are in memory.
func TestAWatchContinuesFromEventsThatAreNotInMemory(t *testing.T) {
	l := newLab(t, Config{DataDir: t.TempDir()})
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	l.settled()
	token := l.token(&pb.WatchOwnersRequest{})
	want := make(map[string]int)
	for i := range uint32(live.BusSize + 200) {
		address := netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}).String()
		want[address] = 1
		if a.send(podVeth(3+i, "pod", address)); i%100 == 0 {
			a.sync()
		}
	}
	a.sync()
	w := l.watchOwners(&pb.WatchOwnersRequest{ResumeToken: token})
	got := make(map[string]int)
	for len(got) < len(want) {
		m, err := w.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		switch m.GetType() {
		case pb.Watch_ADDED:
			got[m.GetOwner().GetAddress()]++
		case pb.Watch_LOST:
			t.Fatalf("got LOST after %d events", len(got))
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("got other events than the %d wanted, each once", len(want))
	}
}

// A conflict and a finding continue, too.
func TestWatchesOfConflictsAndFindingsContinueAfterARestart(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond, NodeTimeout: 2 * time.Second}
	l := newLab(t, cfg)
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	l.settled()
	conflicts := func(token string) (all []string, last string) {
		t.Helper()
		w, err := l.client.WatchConflicts(l.ctx, &pb.WatchConflictsRequest{ResumeToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for {
			m, err := w.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if last = m.GetResumeToken(); m.GetType() == pb.Watch_BOOKMARK && !strings.Contains(last, "-0-") {
				return all, last
			}
			if m.GetConflict() != nil {
				all = append(all, m.GetType().String()+" "+m.GetConflict().GetState().String())
			}
		}
	}
	findings := func(token string) (all []string, last string) {
		t.Helper()
		w, err := l.client.WatchFindings(l.ctx, &pb.WatchFindingsRequest{ResumeToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for {
			m, err := w.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if last = m.GetResumeToken(); m.GetType() == pb.Watch_BOOKMARK && !strings.Contains(last, "-0-") {
				return all, last
			}
			if m.GetFinding() != nil {
				all = append(all, m.GetType().String()+" "+m.GetFinding().GetKind())
			}
		}
	}
	var conflict, finding string
	for !outlives(conflict) || !outlives(finding) { // until the journal is written
		_, conflict = conflicts("")
		_, finding = findings("")
	}
	a.send(podVeth(3, "b", addr)).sync()
	a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
	l.recorded(pb.Conflict_CONFIRMED)
	other := hello("n1", 1)
	other.BootId = "another"
	l.dial().send(snapshot(other, podVeth(2, "c", "10.244.0.9"))).sync()
	kind := l.await("the finding in the journal", &pb.ListEventsRequest{Kind: pb.Event_FINDING}, func(e *pb.Event) bool { return e.GetFinding() != nil }).GetFinding().GetKind()
	l.stop()

	l = newLab(t, cfg)
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	l.settled()
	l.recorded(pb.Conflict_RESOLVED)
	l.await("the finding's end in the journal", &pb.ListEventsRequest{Kind: pb.Event_FINDING}, func(e *pb.Event) bool { return e.GetType() == pb.Watch_REMOVED })
	if got, _ := conflicts(conflict); len(got) < 3 || got[0] != "ADDED SUSPECTED" || got[1] != "UPDATED CONFIRMED" || got[len(got)-1] != "UPDATED RESOLVED" {
		t.Errorf("got %v, want the whole conflict", got)
	}
	if got, _ := findings(finding); !slices.Contains(got, "ADDED "+kind) || got[len(got)-1] != "REMOVED "+kind {
		t.Errorf("got %v, want the whole finding %s", got, kind)
	}
}

// A token that the journal does not know leads to LOST and the present state, or to an error.
func TestTokensThatTheJournalDoesNotKnow(t *testing.T) {
	cfg := Config{DataDir: t.TempDir()}
	l := newLab(t, cfg)
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	l.settled()
	token := l.token(&pb.WatchOwnersRequest{})
	l.stop()

	other := newLab(t, Config{DataDir: t.TempDir()})
	other.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	other.settled()
	foreign := other.token(&pb.WatchOwnersRequest{})
	parts := strings.Split(token, "-")

	l = newLab(t, cfg)
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	l.settled()
	for name, one := range map[string]struct{ token, first string }{
		"of another data directory": {foreign, "LOST"},
		"older than the journal":    {parts[0] + "-0-1", "LOST"},
		"of the future":             {parts[0] + "-0-zzzzzzzzzzz", "LOST"},
		"without a time":            {parts[0] + "-1", "LOST"},
	} {
		got, w := l.resumed(&pb.WatchOwnersRequest{ResumeToken: one.token})
		if len(got) != 2 || got[0] != one.first || got[1] != "ADDED a" {
			t.Errorf("%s: got %v, want LOST and the present state", name, got)
		}
		w.cancel()
	}
	for _, junk := range []string{"junk", "1-", "-", "-1", "1-!", "1-1-", "1-1-!", "1-1-1-1", token + "-", "1-1--1", strings.Repeat("z", 100) + "-" + strings.Repeat("z", 100)} {
		w := l.watchOwners(&pb.WatchOwnersRequest{ResumeToken: junk})
		if _, err := w.stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v for %q, want INVALID_ARGUMENT", err, junk)
		}
	}
	if got, _ := l.resumed(&pb.WatchOwnersRequest{ResumeToken: token}); !slices.Equal(got, l.historySince(token)) {
		t.Errorf("got %v for a valid token, want the history since then", got)
	}
}

// Changes that were not written are a gap, over which no watch continues.
func TestAWatchDoesNotContinueOverAGap(t *testing.T) {
	l := newLab(t, Config{DataDir: t.TempDir()})
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	l.settled()
	token := l.token(&pb.WatchOwnersRequest{})
	parts := strings.Split(token, "-")
	old := parts[0] + "-0-" + parts[2] // not in memory
	if got, w := l.resumed(&pb.WatchOwnersRequest{ResumeToken: old}); len(got) != 0 {
		t.Fatalf("got %v, want nothing", got)
	} else {
		w.cancel()
	}
	for _, kind := range []pb.Event_Kind{pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING} {
		if err := l.core.journal.Feed(kind).Lost(3); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []pb.Event_Kind{pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING, pb.Event_NODE} {
		feed := l.core.journal.Feed(kind)
		if err := feed.Begin(); err != nil {
			t.Fatal(err)
		}
		if err := feed.Complete(); err != nil {
			t.Fatal(err)
		}
		if err := feed.Passed(l.core.events.Owners.Revision()); err != nil {
			t.Fatal(err)
		}
	}
	l.settled()
	if got, _ := l.resumed(&pb.WatchOwnersRequest{ResumeToken: old}); len(got) == 0 || got[0] != "LOST" {
		t.Errorf("got %v, want LOST after a gap", got)
	}
}

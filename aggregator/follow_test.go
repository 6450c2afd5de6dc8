package aggregator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// An eventStream is a watch of recorded events.
type eventStream struct {
	*lab
	stream pb.WitnessService_WatchEventsClient
	cancel func()
}

func (l *lab) follow(q *pb.WatchEventsRequest) *eventStream {
	l.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	l.Cleanup(cancel)
	stream, err := l.client.WatchEvents(ctx, q)
	if err != nil {
		l.Fatal(err)
	}
	return &eventStream{l, stream, cancel}
}

// until returns the messages up to the first one that is like this.
func (s *eventStream) until(what string, is func(*pb.WatchEventsResponse) bool) (all []*pb.WatchEventsResponse) {
	s.Helper()
	for {
		m, err := s.stream.Recv()
		if err != nil {
			s.Fatalf("after %d messages, waiting for %s: %v", len(all), what, err)
		}
		if all = append(all, m); is(m) {
			return all
		}
	}
}

func isBookmark(m *pb.WatchEventsResponse) bool { return m.GetType() == pb.Watch_BOOKMARK }

// eventsIn returns the events of messages.
func eventsIn(all []*pb.WatchEventsResponse) (events []*pb.Event) {
	for _, m := range all {
		if m.GetEvent() != nil {
			events = append(events, m.GetEvent())
		}
	}
	return events
}

// gapsIn returns the gaps that have ended.
func gapsIn(all []*pb.WatchEventsResponse) (gaps []*pb.Gap) {
	for _, m := range all {
		if m.GetGap().GetUntil() != nil {
			gaps = append(gaps, m.GetGap())
		}
	}
	return gaps
}

func wantSame[T proto.Message](t *testing.T, what string, got, want []T) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !proto.Equal(got[i], want[i]) {
			t.Errorf("%s: got %d, want %d, of which number %d differs:\ngot %v\nwant %v", what, len(got), len(want), i, got, want)
			return
		}
	}
}

// A watch of events with a time first sends what ListEvents lists, with gaps, and then what follows. From
// each of its tokens, it sends the rest, also after another restart.
func TestAWatchOfEventsSendsTheHistoryAndWhatFollows(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond}
	l := newLab(t, cfg)
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "web", addr), podVeth(3, "db", "10.244.0.6"))).sync()
	l.settled()
	a.send(podVeth(4, "new", addr)).sync()
	a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
	l.recorded(pb.Conflict_CONFIRMED)
	l.stop()
	l = newLab(t, cfg)
	a = l.dial().send(snapshot(hello("n1", 2), podVeth(4, "new", addr), podVeth(5, "later", "10.244.0.7"))).sync()
	l.settled()
	beginning := timestamppb.New(time.Unix(1, 0))
	for i := range uint32(100) { // more than are read at once
		a.send(podVeth(6, fmt.Sprintf("name%d", i), "10.244.0.9"))
	}
	a.sync()
	l.await("the last name in the journal", &pb.ListEventsRequest{Kind: pb.Event_OWNER, PageSize: 10_000}, func(e *pb.Event) bool {
		return e.GetOwner().GetWorkload().GetName() == "name99"
	})

	subjects := map[string]*pb.WatchEventsRequest{
		"all":          {},
		"an address":   {Address: addr},
		"a prefix":     {Cidr: "10.244.0.4/30"},
		"a pod":        {Namespace: "default", Pod: "db"},
		"a namespace":  {Namespace: "default"},
		"a node":       {Node: "n1"},
		"a MAC":        {Mac: "02:00:00:00:00:03"},
		"conflicts":    {Kind: pb.Event_CONFLICT},
		"nothing":      {Pod: "none"},
		"since a time": {Since: l.events(&pb.ListEventsRequest{}).GetEvents()[2].GetTime()},
	}
	watches := make(map[string]*eventStream)
	past := make(map[string][]*pb.WatchEventsResponse)
	list := func(q *pb.WatchEventsRequest) *pb.ListEventsResponse {
		t.Helper()
		return l.events(&pb.ListEventsRequest{
			Address: q.GetAddress(), Cidr: q.GetCidr(), Node: q.GetNode(), Namespace: q.GetNamespace(), Pod: q.GetPod(), Mac: q.GetMac(), Kind: q.GetKind(),
			Since: q.GetSince(), PageSize: 10_000,
		})
	}
	for name, q := range subjects {
		if q.GetSince() == nil {
			q.Since = beginning
		}
		watches[name] = l.follow(q)
		past[name] = watches[name].until("the end of the past", isBookmark)
		want := list(q)
		wantSame(t, name, eventsIn(past[name]), want.GetEvents())
		wantSame(t, name+": gaps", gapsIn(past[name]), want.GetGaps())
		if (len(want.GetEvents()) == 0) != (name == "nothing") || len(want.GetGaps()) != 1 {
			t.Errorf("%s: got %d events and %d gaps: the test has no effect", name, len(want.GetEvents()), len(want.GetGaps()))
		}
		last := past[name][len(past[name])-1]
		if reach := want.GetReachesBackTo(); !proto.Equal(last.GetReachesBackTo(), reach) || last.GetCoverage().GetHeard() != 1 {
			t.Errorf("%s: got bookmark %v, want that of a node, and of a journal that reaches back to %v", name, last, reach)
		}
	}
	present := l.follow(&pb.WatchEventsRequest{})
	if all := present.until("the first bookmark", isBookmark); len(all) != 1 {
		t.Errorf("got %v from now on, want nothing but a bookmark", all)
	}

	a.send(podVeth(7, "live", addr)).sync()
	live := func(m *pb.WatchEventsResponse) bool { return m.GetEvent().GetOwner().GetWorkload().GetName() == "live" }
	for name, w := range map[string]*eventStream{"all": watches["all"], "an address": watches["an address"], "from now on": present} {
		if all := w.until("the event that follows", live); name != "all" && len(eventsIn(all)) > 2 {
			t.Errorf("%s: got %v, want only what follows", name, all)
		}
	}

	for _, m := range past["an address"] {
		rest := l.follow(&pb.WatchEventsRequest{Address: addr, ResumeToken: m.GetResumeToken()})
		var want []*pb.Event
		for _, e := range list(subjects["an address"]).GetEvents() {
			if before := eventsIn(past["an address"][:1+indexOf(past["an address"], m)]); len(before) == 0 || e.GetTime().AsTime().After(before[len(before)-1].GetTime().AsTime()) {
				want = append(want, e)
			}
		}
		got := eventsIn(rest.until("the last event", live))
		wantSame(t, "after "+m.GetResumeToken(), got, want[:min(len(want), len(got))])
		rest.cancel()
	}

	token := past["all"][len(past["all"])-1].GetResumeToken()
	l.stop()
	l = newLab(t, cfg)
	w := l.follow(&pb.WatchEventsRequest{ResumeToken: token}) // before the node has reported
	l.dial().send(snapshot(hello("n1", 3), podVeth(7, "live", addr), podVeth(8, "last", "10.244.0.8"))).sync()
	got := w.until("the end of the gap", func(m *pb.WatchEventsResponse) bool { return m.GetGap().GetUntil() != nil })
	var want []*pb.Event
	lastSent := eventsIn(past["all"])
	for _, e := range list(subjects["all"]).GetEvents() {
		if e.GetTime().AsTime().After(lastSent[len(lastSent)-1].GetTime().AsTime()) && !e.GetTime().AsTime().After(got[len(got)-1].GetGap().GetUntil().AsTime()) {
			want = append(want, e)
		}
	}
	wantSame(t, "after a restart", eventsIn(got), want)
	if len(want) < 3 {
		t.Errorf("got %v after a restart: the test has no effect", want)
	}
}

func indexOf(all []*pb.WatchEventsResponse, m *pb.WatchEventsResponse) int {
	for i := range all {
		if all[i] == m {
			return i
		}
	}
	return -1
}

// A token that the journal does not know leads to LOST, and to the events that follow.
func TestAWatchOfEventsSaysWhatIsLost(t *testing.T) {
	other := newLab(t, Config{DataDir: t.TempDir()})
	other.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	other.settled()
	foreign := other.follow(&pb.WatchEventsRequest{}).until("the first bookmark", isBookmark)[0].GetResumeToken()

	l := newLab(t, Config{DataDir: t.TempDir()})
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	l.settled()
	known := l.follow(&pb.WatchEventsRequest{}).until("the first bookmark", isBookmark)[0].GetResumeToken()
	for n, token := range []string{foreign, "1-1", "1-0-zzzzzzzzzz", known} {
		w := l.follow(&pb.WatchEventsRequest{ResumeToken: token})
		all := w.until("a bookmark", isBookmark)
		if (all[0].GetType() == pb.Watch_LOST) != (token != known) {
			t.Errorf("%s: got %v, want LOST first unless the token is known", token, all)
		}
		name := fmt.Sprintf("after%d", n)
		a.send(podVeth(uint32(3+n), name, fmt.Sprintf("10.244.1.%d", n))).sync()
		w.until("the event that follows", func(m *pb.WatchEventsResponse) bool { return m.GetEvent().GetOwner().GetWorkload().GetName() == name })
		w.cancel()
	}
	for _, q := range []*pb.WatchEventsRequest{{ResumeToken: "junk"}, {Address: "x"}, {Kind: 99}, {Since: &timestamppb.Timestamp{Nanos: -1}}} {
		if _, err := l.follow(q).stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v for %v, want INVALID_ARGUMENT", err, q)
		}
	}
	if _, err := newLab(t, Config{}).follow(&pb.WatchEventsRequest{}).stream.Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got %v without a journal, want FAILED_PRECONDITION", err)
	}
}

package aggregator

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// previous returns the previous owner of the only owner of an address.
func (l *lab) previous(addr string) *pb.PreviousOwner {
	l.Helper()
	owners := l.owners(&pb.ListOwnersRequest{Address: addr})
	if len(owners) != 1 {
		l.Fatalf("got owners %v of %s, want one", owners, addr)
	}
	return owners[0].GetPrevious()
}

func TestThePreviousOwnerIsKnownFromTheJournal(t *testing.T) {
	cfg := Config{DataDir: t.TempDir()}
	l := newLab(t, cfg)
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "web", addr), podVeth(8, "other", "10.244.0.8"))).sync()
	of := func(name string, what pb.Watch_Type) *pb.Event {
		t.Helper()
		return l.await(name, &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool { return e.GetType() == what && e.GetOwner().GetWorkload().GetName() == name })
	}
	of("web", pb.Watch_ADDED)
	if p := l.previous(addr); p != nil {
		t.Errorf("got %v before web, want nothing", p)
	}
	a.send(ended(2)).sync()
	left := of("web", pb.Watch_REMOVED)
	a.send(podVeth(3, "db", addr)).sync()
	came := of("db", pb.Watch_ADDED)
	check := func(why string) {
		t.Helper()
		p := l.previous(addr)
		if p.GetWorkload().GetName() != "web" || p.GetNode() != "n1" || p.GetInterface() != "eth0" || p.GetMac() != "02:00:00:00:00:02" || p.GetNetns() != "4026532002" ||
			!p.GetUntil().AsTime().Equal(left.GetTime().AsTime()) || p.GetGap().AsDuration() != came.GetTime().AsTime().Sub(left.GetTime().AsTime()) {
			t.Errorf("%s: got %v, want web until %v", why, p, left.GetTime())
		}
	}
	check("db has it")
	out, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: addr})
	if err != nil || out.GetOwners()[0].GetPrevious().GetWorkload().GetName() != "web" {
		t.Errorf("got %v, %v, want web before db", out, err)
	}
	for _, o := range l.owners(&pb.ListOwnersRequest{}) {
		if o.GetPrevious() != nil {
			t.Errorf("got the previous owner of %v in a list, want none", o)
		}
	}

	a.send(ended(3)).sync()
	a.send(podVeth(4, "db", addr)).sync()
	l.await("the new sandbox", &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool {
		return e.GetType() == pb.Watch_ADDED && e.GetOwner().GetNetns() == "4026532004"
	})
	if p := l.previous(addr); p.GetWorkload().GetName() != "web" {
		t.Errorf("got %v before another sandbox of db, want web", p)
	}
	l.stop()
	l = newLab(t, cfg)
	l.dial().send(snapshot(hello("n1", 2), podVeth(4, "db", addr))).sync()
	wait.Until(t, "the end of the gap", func() bool {
		gaps := l.events(&pb.ListEventsRequest{}).GetGaps()
		return len(gaps) == 1 && gaps[0].GetUntil() != nil
	})
	if p := l.previous(addr); p.GetWorkload().GetName() != "web" || !p.GetUntil().AsTime().Equal(left.GetTime().AsTime()) {
		t.Errorf("got %v after a restart, want web", p)
	}
}

func TestThePastIsExplained(t *testing.T) {
	l := newLab(t, Config{DataDir: t.TempDir(), Settle: time.Millisecond})
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "web", addr))).sync()
	web := l.await("web", &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool { return e.GetOwner().GetWorkload().GetName() == "web" })
	a.send(podVeth(3, "new", addr)).sync()
	a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
	confirmed := l.await("the conflict", &pb.ListEventsRequest{Kind: pb.Event_CONFLICT}, func(e *pb.Event) bool {
		return e.GetConflict().GetState() == pb.Conflict_CONFIRMED
	})
	a.send(ended(2)).sync()
	resolved := l.await("the end", &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool {
		return e.GetConflict().GetState() == pb.Conflict_RESOLVED
	})
	last := l.await("the end of web", &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool {
		return e.GetType() == pb.Watch_REMOVED && !e.GetTime().AsTime().Before(resolved.GetTime().AsTime().Add(-time.Minute))
	})
	latest := max(last.GetTime().AsTime().UnixMicro(), resolved.GetTime().AsTime().UnixMicro())
	for _, test := range []struct {
		why       string
		at        time.Time
		owners    []string
		conflicts []pb.Conflict_State
	}{
		{"one owner", web.GetTime().AsTime(), []string{"web"}, nil},
		{"the conflict", confirmed.GetTime().AsTime(), []string{"web", "new"}, []pb.Conflict_State{pb.Conflict_CONFIRMED}},
		{"its end", time.UnixMicro(latest), []string{"new"}, []pb.Conflict_State{pb.Conflict_RESOLVED}},
	} {
		out, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: addr, At: timestamppb.New(test.at)})
		if err != nil {
			t.Fatalf("%s: %v", test.why, err)
		}
		var owners []string
		for _, o := range out.GetOwners() {
			owners = append(owners, o.GetWorkload().GetName())
		}
		var states []pb.Conflict_State
		for _, c := range out.GetConflicts() {
			states = append(states, c.GetState())
			if len(c.GetRemedy()) > 0 {
				t.Errorf("%s: got the remedy %v, want none", test.why, c.GetRemedy())
			}
		}
		if !sameSet(owners, test.owners) || !sameSet(states, test.conflicts) || out.GetSummary() == "" || len(out.GetSteps()) > 0 || out.GetAddress() != addr || out.GetCoverage() == nil {
			t.Errorf("%s: got %v, want owners %v and conflicts %v", test.why, out, test.owners, test.conflicts)
		}
	}
	for _, q := range []*pb.ExplainRequest{
		{Address: addr, At: timestamppb.Now(), Case: true},
		{Address: addr, At: timestamppb.New(time.Now().Add(time.Hour))},
	} {
		if _, err := l.client.Explain(l.ctx, q); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: got %v, want INVALID_ARGUMENT", q, err)
		}
	}
	if _, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: addr, At: timestamppb.New(time.Now().Add(-time.Hour))}); status.Code(err) != codes.OutOfRange {
		t.Errorf("got %v before the journal began, want OUT_OF_RANGE", err)
	}
}

// sameSet reports whether two lists have the same items.
func sameSet[T comparable](a, b []T) bool {
	count := map[T]int{}
	for _, one := range a {
		count[one]++
	}
	for _, one := range b {
		count[one]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

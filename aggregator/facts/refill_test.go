package facts

import (
	"slices"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestIncompleteNodesAreAskedAgainWhenThereIsRoom(t *testing.T) {
	s := newScene(t)
	s.small()
	a := s.joins("n1", "b1", 1, lan(1), flood(0, 16_000))
	s.after(firstRefill)
	if s.Refill(); a.p.asked != 0 {
		t.Error("got a request, but there is no room")
	}
	s.limit *= 4
	if s.Refill(); a.p.asked != 1 {
		t.Errorf("got %d requests, want one", a.p.asked)
	}
	if s.Refill(); a.p.asked != 1 {
		t.Errorf("got %d requests, want one before the pause is over", a.p.asked)
	}
	s.after(2*firstRefill - 1)
	if s.Refill(); a.p.asked != 1 {
		t.Errorf("got %d requests, want one before the pause is over", a.p.asked)
	}
	s.after(1)
	if s.Refill(); a.p.asked != 2 {
		t.Errorf("got %d requests, want two", a.p.asked)
	}
	s.notified.heard = nil
	a.snapshot(lan(1), flood(0, 16_000))
	if a.n.Incomplete() || !slices.Contains(s.notified.heard, "changed n1") {
		t.Errorf("got %+v left out, want nothing, and an event", a.n.LeftOut)
	}
	s.after(time.Hour)
	if s.Refill(); a.p.asked != 2 {
		t.Errorf("got %d requests, want no further one", a.p.asked)
	}
}

// The interval between requests to an incomplete node grows until the node is complete.
func TestHowOftenAnIncompleteNodeIsAsked(t *testing.T) {
	s := newScene(t)
	s.limit = LeastBudget
	a := s.joins("n1", "b1", 1)
	incomplete := func() {
		t.Helper()
		if _, err := s.Snapshot(a.p, a.n, &Snapshot{Messages: once(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}}), LeftOut: LeftOut{Records: 1}}, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(why string, backoff time.Duration) {
		t.Helper()
		asked := a.p.asked
		if s.Refill(); a.p.asked != asked {
			t.Errorf("%s: got a request at once", why)
		}
		s.after(backoff - 1)
		if s.Refill(); a.p.asked != asked {
			t.Errorf("%s: got a request before %s", why, backoff)
		}
		s.after(1)
		if s.Refill(); a.p.asked != asked+1 {
			t.Errorf("%s: got no request after %s", why, backoff)
		}
	}
	incomplete()
	want("the first time", firstRefill)
	incomplete()
	want("the second time", 4*firstRefill)
	for range 10 {
		incomplete()
	}
	want("much later", lastRefill)
	a.snapshot()
	incomplete()
	want("after it was complete", firstRefill)
}

// Of the nodes for which there is enough memory, the one that uses the least is asked first.
func TestWhichIncompleteNodeIsAsked(t *testing.T) {
	for _, test := range []struct {
		name string
		held int // held by another node, in quarters of the limit
		more int
		want []int
	}{
		{"there is room", 0, 0, []int{1, 0}},
		{"three quarters are used", 3, 0, []int{1, 0}},
		{"more is used, but they are within their shares", 3, 1, []int{1, 0}},
	} {
		s := newScene(t)
		s.limit = LeastBudget
		agents := []*agent{s.joins("n1", "b1", 1, pod(2, "10.0.0.2")), s.joins("n2", "b2", 1)}
		for _, a := range agents {
			a.n.LeftOut.Records = 1
		}
		other := s.joins("n3", "b3", 1)
		if test.held > 0 && !s.Hold(other.n, s.room(LeastBudget*int64(test.held)/4)+test.more) {
			t.Fatalf("%s: got no room", test.name)
		}
		for _, want := range test.want {
			before := []int{agents[0].p.asked, agents[1].p.asked}
			s.Refill()
			for i, a := range agents {
				if asked := a.p.asked > before[i]; asked != (i == want) {
					t.Errorf("%s: got node %d asked %t", test.name, i, asked)
				}
			}
		}
		if s.Refill(); agents[0].p.asked+agents[1].p.asked != 2 {
			t.Errorf("%s: got too many requests", test.name)
		}
	}
	// A node that uses most of its share is asked only if there is enough free memory.
	for _, test := range []struct {
		more  int
		share bool
		want  int
	}{{0, false, 1}, {1, false, 0}, {0, true, 1}, {1, true, 0}} {
		s := newScene(t)
		s.limit = LeastBudget
		a, other := s.joins("n1", "b1", 1), s.joins("n2", "b2", 1)
		a.n.LeftOut.Records = 1
		total := LeastBudget * 3 / 4
		if test.share { // all memory is in use, but not by the node
			if !s.Hold(a.n, int(s.share(a.n.account)*3/4-a.n.account.used)+test.more) || !s.Hold(other.n, int(s.share(other.n.account)-other.n.account.used)) {
				t.Fatal("got no room")
			}
		} else if !s.Hold(a.n, s.room(int64(total))+test.more) {
			t.Fatal("got no room")
		}
		if s.Refill(); a.p.asked != test.want {
			t.Errorf("%+v: got %d requests", test, a.p.asked)
		}
	}
}

// Whether claims above the limit and malformed texts are gone is known from another snapshot.
func TestDroppedClaimsAndMalformedTextsAreForgottenOnceTheyAreGone(t *testing.T) {
	for _, in := range []*Snapshot{{Excess: 1}, {Corrections: map[string]int{"name": 1}}} {
		s := newScene(t)
		a := s.joins("n1", "b1", 1)
		in.Messages = once(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}})
		if _, err := s.Snapshot(a.p, a.n, in, func() {}); err != nil {
			t.Fatal(err)
		}
		a.n.wireClaims = MaxClaims // there is no room for the claims that were dropped
		s.after(firstRefill)
		if s.Refill(); a.p.asked != len(in.Corrections) {
			t.Errorf("%+v: got %d requests while the limit is reached", in, a.p.asked)
		}
		a.n.wireClaims = 0
		s.after(lastRefill)
		if s.Refill(); a.p.asked != 1+len(in.Corrections) {
			t.Errorf("%+v: got %d requests, want one more", in, a.p.asked)
		}
		asked := a.p.asked
		s.notified.heard = nil
		a.snapshot()
		s.after(time.Hour)
		if s.Refill(); a.n.Incomplete() || len(a.n.Corrections) > 0 || a.p.asked != asked || !slices.Contains(s.notified.heard, "changed n1") {
			t.Errorf("%+v: got %d left out, %v corrected and %d requests, want that the problem has ended", in, a.n.Excess, a.n.Corrections, a.p.asked)
		}
	}
}

// A snapshot shows that malformed texts are gone, and then the node may report more of them.
func TestANodeThatReportsMalformedTextsAgainIsAskedLessOften(t *testing.T) {
	s := newScene(t)
	s.limit = LeastBudget
	a, full := s.joins("n1", "b1", 1), s.joins("n2", "b2", 1, pod(2, "10.0.0.2"))
	malformed := func() { a.n.Corrections = map[string]int{"name": 1} }
	for range 200 { // 1,000 s
		malformed()
		s.after(firstRefill)
		asked := a.p.asked
		if s.Refill(); a.p.asked > asked {
			a.snapshot()
		}
	}
	if a.p.asked != 8 { // after 0, 5, 15, 35 … 635 s
		t.Errorf("got %d requests in 1,000 s, want 8", a.p.asked)
	}
	// Look-alikes: a node with fewer records than it has, and one that was well for a while.
	full.n.LeftOut.Records = 1
	if s.after(lastRefill); a.p.asked != 8 {
		t.Errorf("got %d requests, want no further one", a.p.asked)
	}
	if s.Refill(); full.p.asked != 1 || a.p.asked != 8 {
		t.Errorf("got %d requests to the incomplete node and %d to the other one, want that to the incomplete one first", full.p.asked, a.p.asked)
	}
	full.snapshot()
	a.snapshot()
	s.after(2 * lastRefill)
	for range 2 {
		malformed()
		asked := a.p.asked
		if s.Refill(); a.p.asked != asked+1 {
			t.Errorf("got %d requests, want one more", a.p.asked-asked)
		}
		a.snapshot()
		s.after(firstRefill)
	}
}

// A node is published when its records begin to exceed the memory, and when all of them fit again.
func TestANodeIsPublishedWheneverItBecomesIncomplete(t *testing.T) {
	s := newScene(t)
	a := s.joins("n1", "b1", 1, pod(2, "10.0.0.2"))
	for range 2 {
		used, _ := s.Budget()
		s.fill(a.n)
		s.notified.heard = nil
		a.report(assignedMessage(2, "10.0.0.3"), assignedMessage(2, "10.0.0.4"))
		s.wantHeard("no memory", "changed n1", "refused claim")
		full, _ := s.Budget()
		s.Update(func() { s.Release(a.n, full-used) })
		s.limit = 0
		a.snapshot(pod(2, "10.0.0.2"))
		s.wantHeard("memory again", "changed n1")
	}
}

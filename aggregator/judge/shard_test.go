package judge_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// A panic in the judgement of one address affects no other address. It is recorded until the
// address can be judged.
func TestPanicAffectsOneAddressOnly(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		w.set(func() { w.broken = index.AddressOf(netip.MustParseAddr("10.0.0.66")) })
		n := w.connect("n1")
		n.report(pod(2, "10.0.0.66"), pod(3, "10.0.0.1"))
		if w.shards.Unjudged() != 1 || w.logged != 1 {
			t.Errorf("got %d addresses that are not judged, %d lines of log, want 1 of each", w.shards.Unjudged(), w.logged)
		}
		n.report(pod(3, "10.0.0.66"))
		if w.shards.Unjudged() != 1 || w.logged != 1 {
			t.Errorf("once more: got %d addresses that are not judged, %d lines of log, want 1 of each", w.shards.Unjudged(), w.logged)
		}
		delete(w.addrs, w.broken.Addr())
		w.wantHeard("an address cannot be judged", "panicked", "panicked", "added 10.0.0.1 p3 live of 1")
		w.set(func() { w.broken = index.Address{} })
		n.report(gone(assigned(3, "10.0.0.66")))
		if w.shards.Unjudged() != 0 {
			t.Errorf("got %d addresses that are not judged, want none", w.shards.Unjudged())
		}
		w.addrs[netip.MustParseAddr("10.0.0.66")] = true
		w.wantHeard("it can be judged", "added 10.0.0.66 p2 live of 1")
	})
}

// Each address that could not be judged counts until it can be judged.
func TestEachAddressThatPanickedIsCounted(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		addrs := []string{"10.0.0.66", "10.0.0.67", "10.0.0.68"}
		for _, addr := range addrs {
			w.set(func() { w.broken = index.AddressOf(netip.MustParseAddr(addr)) })
			n.report(pod(2, addr))
		}
		w.set(func() { w.broken = index.Address{} })
		for i, addr := range addrs {
			if got := w.shards.Unjudged(); got != len(addrs)-i {
				t.Errorf("got %d addresses that are not judged, want %d", got, len(addrs)-i)
			}
			n.report(gone(assigned(2, addr)))
		}
		if got := w.shards.Unjudged(); got != 0 {
			t.Errorf("got %d addresses that are not judged, want none", got)
		}
	})
}

// A reader returns the remembered owners of a disputed address, and derives those of others.
func TestOwnersThatAReaderReturns(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		w.connect("n1").report(pod(2, "10.0.0.1"), pod(3, "10.0.0.1"), pod(4, "10.0.0.4"))
		r := w.shards.Reader()
		w.shards.Facts.RLock()
		defer w.shards.Facts.RUnlock()
		for addr, want := range map[string]int{"10.0.0.1": 2, "10.0.0.4": 1, "10.0.0.9": 0} {
			if got := r.OwnersOf(index.AddressOf(netip.MustParseAddr(addr))); len(got) != want {
				t.Errorf("%s: got %d owners, want %d", addr, len(got), want)
			}
		}
	})
}

// Until a change is judged, a reader returns the owners that were published last.
func TestOwnersOfAnAddressThatIsNotJudgedYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		stop := w.run()
		n := w.connect("n1")
		n.report(pod(2, "10.0.0.1"))
		w.wantHeard("a pod comes", "added 10.0.0.1 p2 live of 1")
		stop()
		n.report(gone(assigned(2, "10.0.0.1")), pod(3, "10.0.0.1"))
		owner := func() string {
			w.shards.Facts.RLock()
			defer w.shards.Facts.RUnlock()
			owners := w.shards.Reader().OwnersOf(index.AddressOf(netip.MustParseAddr("10.0.0.1")))
			if len(owners) != 1 {
				t.Fatalf("got %d owners, want one", len(owners))
			}
			return nameOf(&owners[0])
		}
		if got := owner(); got != "p2" {
			t.Errorf("got owner %s before the judgement, want p2", got)
		}
		defer w.run()()
		w.wantHeard("another pod has the address", "removed 10.0.0.1 p2 gone was live of 1", "added 10.0.0.1 p3 live of 1")
		if got := owner(); got != "p3" {
			t.Errorf("got owner %s after the judgement, want p3", got)
		}
	})
}

func TestChangesOfOwnersArePublished(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		n.report(pod(2, "10.0.0.1", "10.0.0.2"))
		w.wantHeard("a pod comes", "added 10.0.0.1 p2 live of 1", "added 10.0.0.2 p2 live of 1")
		again := assigned(2, "10.0.0.1")
		again.Claims[0].Count++
		n.report(again)
		w.wantHeard("nothing changes")
		renamed := pod(2)
		renamed.Namespaces[0].Workload.Name = "new"
		n.report(renamed)
		w.wantHeard("its name changes", "updated 10.0.0.1 new live was live of 1", "updated 10.0.0.2 new live was live of 1")
		n.report(gone(assigned(2, "10.0.0.2")))
		w.wantHeard("one address goes", "removed 10.0.0.2 new gone was live of 1")
		w.set(func() { w.watched = false })
		n.report(pod(3, "10.0.0.3"), gone(assigned(2, "10.0.0.1")))
		w.wantHeard("there is no subscriber")
		w.set(func() { w.watched = true })
		n.report(gone(assigned(3, "10.0.0.3")))
		w.wantHeard("there is a subscriber again", "removed 10.0.0.3 p3 gone was live of 1")
	})
}

// A watch that begins between a change and its judgement does not find the address in the index.
func TestOwnersThatAreNotJudgedWhenAWatchBeginsAreAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.watched = false
		n := w.connect("n1")
		n.report(pod(2, "10.0.0.1", "10.0.0.2"))
		w.watched = true
		renamed := pod(2)
		renamed.Namespaces[0].Workload.Name = "new"
		n.report(renamed)
		w.heard = nil
		defer w.run()()
		w.wantHeard("they are judged", "added 10.0.0.1 new live of 1", "added 10.0.0.2 new live of 1")
	})
}

func TestOwnersThatOnlyFramesShowGoStale(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		n.report(uplink(), announced("10.0.0.1", records.MAC(7), 1))
		w.wantHeard("a frame", "added 10.0.0.1 02:00:00:00:00:07 live of 1")
		w.after(3 * time.Minute)
		n.report(announced("10.0.0.1", records.MAC(7), 2))
		w.after(4 * time.Minute)
		w.wantHeard("another frame keeps it")
		w.after(time.Minute)
		w.wantHeard("five minutes of silence", "updated 10.0.0.1 02:00:00:00:00:07 stale was live of 1")
		w.after(5 * time.Minute)
		w.wantHeard("five more", "removed 10.0.0.1 02:00:00:00:00:07 gone was stale of 1")
		n.report(announced("10.0.0.1", records.MAC(7), 1))
		w.wantHeard("it comes back", "added 10.0.0.1 02:00:00:00:00:07 live of 1")
		w.set(func() { w.watched = false })
		w.after(10 * time.Minute)
		w.wantHeard("there is no subscriber")
	})
}

// The previous owners are derived again if only the time has changed.
func TestSeveralOwnersGoStaleAtTheSameTime(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		n.report(uplink(), announced("10.0.0.1", records.MAC(7), 1), announced("10.0.0.2", records.MAC(8), 1))
		w.set(func() { w.heard = nil })
		w.after(5 * time.Minute)
		w.wantHeard("five minutes of silence", "updated 10.0.0.1 02:00:00:00:00:07 stale was live of 1", "updated 10.0.0.2 02:00:00:00:00:08 stale was live of 1")
		n.report(gone(announced("10.0.0.1", records.MAC(7), 1)), gone(announced("10.0.0.2", records.MAC(8), 1)))
		w.wantHeard("they are gone", "removed 10.0.0.1 02:00:00:00:00:07 gone was stale of 1", "removed 10.0.0.2 02:00:00:00:00:08 gone was stale of 1")
		w.wantKept("nothing is left to be judged later", 0, 0)
	})
}

// Only the owner that goes is published, not the one that takes its place in the list.
func TestTheFirstOfTwoOwnersGoes(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		n.report(pod(2, "10.0.0.1"), pod(3, "10.0.0.1"))
		w.set(func() { w.heard = nil })
		n.report(gone(assigned(2, "10.0.0.1")))
		w.wantHeard("the first pod goes", "removed 10.0.0.1 p2 gone was live of 2", "n1: contest 10.0.0.1 false",
			"conflict 10.0.0.1 resolved episode 1 was suspected of 2")
		n.report(assigned(2, "10.0.0.1"))
		w.wantHeard("it is back", "added 10.0.0.1 p2 live of 2", "detected in 5ms", "n1: contest 10.0.0.1 true",
			"opened 10.0.0.1 suspected episode 2 was resolved of 2")
	})
}

func TestPodsOnlySeenOnTheWireAreReported(t *testing.T) {
	frame := func(count uint32) *pb.ReportRequest {
		m := announced("10.0.0.1", records.MAC(2), count)
		m.Claims[0].Index, m.Claims[0].Link = 102, records.Port(2)
		return m
	}
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		n.report(pod(2), frame(1))
		w.wantHeard("a frame of a pod", "added 10.0.0.1 p2 live of 1", "spoke p2 live")
		n.report(assigned(2, "10.0.0.1"))
		w.wantHeard("its kernel has the address", "updated 10.0.0.1 p2 live was live of 1", "spoke p2 live")
		n.report(assigned(2, "10.0.0.2"))
		w.wantHeard("a kernel has an address", "added 10.0.0.2 p2 live of 1")
		meant := pod(2)
		meant.Namespaces[0].Intended = []*pb.Intended{{Address: "10.0.0.3", Source: "cni-result"}}
		n.report(meant)
		w.wantHeard("it is meant to have another address", "updated 10.0.0.1 p2 live was live of 1", "updated 10.0.0.2 p2 live was live of 1",
			"spoke p2 live", "spoke p2 live")
	})
}

func TestAConflictFromItsDetectionToItsEnd(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		n.report(pod(2, "10.0.0.1"))
		second := pod(3, "10.0.0.1")
		n.report(second)
		w.wantHeard("two pods", "added 10.0.0.1 p2 live of 1", "added 10.0.0.1 p3 live of 2", "detected in 5ms",
			"opened 10.0.0.1 suspected episode 1 was suspected of 2", "n1: contest 10.0.0.1 true")
		id := w.of("10.0.0.1").ID
		w.after(time.Second - 1)
		w.wantHeard("before the settle time is over")
		w.after(1)
		w.wantHeard("the settle time is over", "n1: check 10.0.0.1")
		w.after(time.Second)
		w.wantHeard("no answer", "n1: check 10.0.0.1")
		n.answer()
		w.wantHeard("the answer", "conflict 10.0.0.1 confirmed episode 1 was suspected of 2")
		w.after(time.Minute)
		w.wantHeard("time passes")
		n.report(pod(4, "10.0.0.1"))
		w.wantHeard("a third pod", "added 10.0.0.1 p4 live of 3", "conflict 10.0.0.1 confirmed episode 1 was confirmed of 3")
		n.report(gone(assigned(4, "10.0.0.1")))
		w.wantHeard("the third pod goes", "removed 10.0.0.1 p4 gone was live of 3", "conflict 10.0.0.1 confirmed episode 1 was confirmed of 2")
		n.report(gone(assigned(3, "10.0.0.1")))
		w.wantHeard("the second pod goes", "removed 10.0.0.1 p3 gone was live of 2", "n1: contest 10.0.0.1 false",
			"conflict 10.0.0.1 resolved episode 1 was confirmed of 2")
		if c := w.of("10.0.0.1"); c.ID != id || c.ResolvedAt != clock() {
			t.Errorf("got conflict %s, resolved at %d, want %s, now", c.ID, c.ResolvedAt, id)
		}
		w.after(time.Hour)
		n.report(assigned(3, "10.0.0.1"))
		w.wantHeard("the second pod is back", "added 10.0.0.1 p3 live of 2", "detected in 5ms", "n1: contest 10.0.0.1 true",
			"opened 10.0.0.1 suspected episode 2 was resolved of 2")
		n.report(gone(assigned(2, "10.0.0.1")), gone(assigned(3, "10.0.0.1")))
		w.wantHeard("both go", "removed 10.0.0.1 p2 gone was live of 2", "removed 10.0.0.1 p3 gone was live of 2", "n1: contest 10.0.0.1 false",
			"conflict 10.0.0.1 resolved episode 2 was suspected of 2")
	})
}

func TestDetectionTimeIncludesTheResidenceInTheAgent(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		n.report(pod(2, "10.0.0.1"))
		second := pod(3, "10.0.0.1")
		second.Claims[0].Residence = durationpb.New(30 * time.Millisecond)
		n.report(second)
		w.wantHeard("two pods", "added 10.0.0.1 p2 live of 1", "added 10.0.0.1 p3 live of 2", "detected in 35ms",
			"opened 10.0.0.1 suspected episode 1 was suspected of 2", "n1: contest 10.0.0.1 true")
		n.report(gone(assigned(3, "10.0.0.1")))
		n.snapshot(pod(2, "10.0.0.1"), pod(3, "10.0.0.1"))
		w.wantHeard("two pods in a snapshot", "removed 10.0.0.1 p3 gone was live of 2", "n1: contest 10.0.0.1 false",
			"conflict 10.0.0.1 resolved episode 1 was suspected of 2",
			"added 10.0.0.1 p3 live of 2", "opened 10.0.0.1 suspected episode 2 was resolved of 2", "n1: contest 10.0.0.1 true")
	})
}

func TestConflictsAreForgotten(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		if at := w.shards.Forget(); at != 0 {
			t.Errorf("got the next expiry at %d, want none", at)
		}
		dispute := func(addr string) {
			n.report(pod(2, addr), pod(3, addr))
			n.report(gone(assigned(3, addr)))
		}
		dispute("10.0.0.1")
		first := clock()
		w.after(time.Hour)
		dispute("10.0.0.2")
		dispute("10.0.0.3")
		w.set(func() { w.heard = nil })
		if at := w.shards.Forget(); at != first.Add(24*time.Hour) {
			t.Errorf("got the first expiry at %d, want a day after %d", at, first)
		}
		w.after(23*time.Hour - 1)
		w.shards.Forget()
		if w.wantHeard("a day is not over"); w.shards.Conflicts.Len() != 3 {
			t.Fatalf("got %d conflicts, want 3", w.shards.Conflicts.Len())
		}
		w.after(1)
		if at := w.shards.Forget(); at != clock().Add(time.Hour) {
			t.Errorf("got the next expiry at %d, want in an hour", at)
		}
		if w.wantHeard("a day is over"); w.shards.Conflicts.Len() != 2 {
			t.Fatalf("got %d conflicts, want 2", w.shards.Conflicts.Len())
		}
		n.report(assigned(3, "10.0.0.1"))
		if c := w.of("10.0.0.1"); c.Episode != 1 {
			t.Errorf("got episode %d of a conflict that was forgotten, want 1", c.Episode)
		}
		n.report(assigned(3, "10.0.0.2"), assigned(3, "10.0.0.3"))
		n.report(gone(assigned(3, "10.0.0.3")))
		w.after(time.Hour)
		w.set(func() { w.heard = nil })
		w.shards.Forget()
		w.wantHeard("one of the others is active again")
		if c := w.of("10.0.0.2"); w.shards.Conflicts.Len() != 3 || c.Episode != 2 || !c.Active() {
			t.Errorf("got %d conflicts, and episode %d, want the two active ones, and one that became active again", w.shards.Conflicts.Len(), c.Episode)
		}
		n.report(gone(pod(2, "10.0.0.1", "10.0.0.2", "10.0.0.3")), gone(pod(3, "10.0.0.1", "10.0.0.2")))
		w.after(25 * time.Hour)
		w.shards.Forget()
		w.wantKept("all are forgotten", 0, 0)
	})
}

// A conflict that ends makes the shards forget the conflicts that ended a day ago.
func TestTheEndOfAConflictForgetsOldOnes(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		dispute := func(addr string) {
			n.report(pod(2, addr), pod(3, addr))
			n.report(gone(assigned(3, addr)))
		}
		dispute("10.0.0.1")
		w.after(24 * time.Hour)
		if id := w.of("10.0.0.1").ID; w.shards.Conflicts.Get(id) == nil {
			t.Fatal("got the conflict forgotten before another one ended")
		}
		dispute("10.0.0.2")
		if _ = w.of("10.0.0.2"); w.shards.Conflicts.Len() != 1 {
			t.Errorf("got %d conflicts, want only the one that has just ended", w.shards.Conflicts.Len())
		}
		w.wantKept("the old one is forgotten", 1, 0)
	})
}

// A conflict that was resolved a day ago when it is put back after a start is forgotten, also if its address has no
// owners, but not while it may be why a kernel does not use the address.
func TestOldConflictsFromBeforeTheStartAreForgotten(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		recalled := func(addr string) *verdict.Conflict {
			return &verdict.Conflict{
				Address: netip.MustParseAddr(addr), Recalled: true, Identity: verdict.Identity{ID: addr, Episode: 1},
				Course: verdict.Course{Phase: verdict.Resolved, ResolvedAt: w.shards.KeptSince() - 1},
			}
		}
		a := index.AddressOf(netip.MustParseAddr("10.0.0.2"))
		w.shards.Recollect(a, judge.Recollection{Refused: true})
		<-w.shards.Recall([]*verdict.Conflict{recalled("10.0.0.1"), recalled("10.0.0.2")})
		w.shards.Forget()
		synctest.Wait()
		if w.shards.Conflicts.Get("10.0.0.1") != nil || w.shards.Conflicts.Get("10.0.0.2") == nil {
			t.Errorf("got conflicts %v, want only the one that may be why a kernel does not use its address", w.shards.Conflicts.All())
		}
		w.shards.Recollect(a, judge.Recollection{})
		w.wantKept("no kernel has the address", 0, 0)
		if n := w.shards.Conflicts.Len(); n != 0 {
			t.Errorf("got %d conflicts, want none", n)
		}
	})
}

// pods declares a network, so that the addresses of pods are compared in the whole cluster.
func (w *world) pods() {
	w.policy.Networks = []verdict.Network{{Name: "pods", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
}

func TestNodesAreAskedToWatchContestedAddresses(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		w.set(func() { w.watched = false })
		w.pods()
		one, two, three := w.connect("n1"), w.connect("n2"), w.connect("n3")
		one.report(pod(2, "10.0.0.1"))
		two.report(pod(3, "10.0.0.1"))
		w.wantHeard("two nodes", "detected in 5ms", "opened 10.0.0.1 suspected episode 1 was suspected of 2", "n1: contest 10.0.0.1 true", "n2: contest 10.0.0.1 true")
		three.report(pod(4, "10.0.0.1"))
		w.wantHeard("a third one", "conflict 10.0.0.1 suspected episode 1 was suspected of 3", "n3: contest 10.0.0.1 true")
		two.report(gone(assigned(3, "10.0.0.1")))
		w.wantHeard("the second no longer has it", "conflict 10.0.0.1 suspected episode 1 was suspected of 2")
		two.report(assigned(3, "10.0.0.1"))
		w.wantHeard("the second has it again", "conflict 10.0.0.1 suspected episode 1 was suspected of 3")
		three.silence()
		w.wantHeard("the third one is silent", "conflict 10.0.0.1 suspected episode 1 was suspected of 3")
		w.after(time.Second)
		w.wantHeard("the settle time is over", "n1: check 10.0.0.1", "n2: check 10.0.0.1")
		one.answer()
		two.answer()
		w.wantHeard("two answer", "conflict 10.0.0.1 confirmed episode 1 was suspected of 3")
		three.reconnect(pod(4, "10.0.0.1"))
		w.wantHeard("the third one is back", "conflict 10.0.0.1 confirmed episode 1 was confirmed of 3", "n3: contest 10.0.0.1 true")
		two.report(gone(assigned(3, "10.0.0.1")))
		w.set(func() { w.heard = nil })
		three.report(gone(assigned(4, "10.0.0.1")))
		w.wantHeard("one is left", "conflict 10.0.0.1 resolved episode 1 was confirmed of 2",
			"n1: contest 10.0.0.1 false", "n2: contest 10.0.0.1 false", "n3: contest 10.0.0.1 false", "n3: contest 10.0.0.1 false")
		two.report(assigned(3, "10.0.0.1"))
		w.wantHeard("two have it again", "detected in 5ms", "opened 10.0.0.1 suspected episode 2 was resolved of 2", "n1: contest 10.0.0.1 true", "n2: contest 10.0.0.1 true")
	})
}

func TestAnAcknowledgementLapses(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		w.set(func() { w.watched = false })
		n := w.connect("n1")
		n.report(pod(2, "10.0.0.1"), pod(3, "10.0.0.1"))
		w.after(time.Second)
		n.answer()
		w.set(func() { w.heard = nil })
		a, id := index.AddressOf(netip.MustParseAddr("10.0.0.1")), w.of("10.0.0.1").ID
		w.facts.Touch([]index.Address{a})
		w.wantHeard("it is judged again")
		w.set(func() { w.acknowledged[id] = clock().Add(time.Hour) })
		w.facts.Republish([]index.Address{a})
		w.wantHeard("it is acknowledged", "conflict 10.0.0.1 confirmed episode 1 was confirmed of 2")
		w.after(time.Hour - 1)
		w.set(func() {
			delete(w.acknowledged, id)
			w.lapsed[id] = true
		})
		w.wantHeard("it still holds")
		w.after(1)
		w.wantHeard("it lapses", "conflict 10.0.0.1 confirmed episode 1 was confirmed of 2")
		n.report(gone(assigned(3, "10.0.0.1")))
		w.set(func() { w.heard = nil })
		w.facts.Republish([]index.Address{a})
		w.wantHeard("a resolved conflict is not published again")
	})
}

func TestPodsArePublishedWhenTheKubernetesAPIChangesThem(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		host := uplink()
		host.Claims = append(host.Claims, &pb.ClaimRecord{Address: []byte{10, 0, 0, 1}, Kind: pb.Evidence_ASSIGNED, Namespace: 1, Index: 9, Count: 1, PrefixLength: 24})
		n.report(pod(2, "10.0.0.1"), pod(3, "10.0.0.3"), host)
		w.set(func() { w.heard = nil })
		w.facts.Touch([]index.Address{index.AddressOf(netip.MustParseAddr("10.0.0.3"))})
		w.wantHeard("an address is judged again")
		w.facts.PodsOnChanged(func(string) bool { return true })
		w.wantHeard("the API changes a pod", "updated 10.0.0.3 p3 live was live of 1")
	})
}

// A further frame of an undisputed owner does not trigger a judgement.
func TestFramesOfDisputedAddressesAreJudgedEachTime(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		n.report(uplink(), announced("10.0.0.1", records.MAC(7), 1))
		wantJudged := func(why string, want bool, m *pb.ReportRequest) {
			t.Helper()
			before := w.rests()
			if n.report(m); w.rests() > before != want {
				t.Errorf("%s: got judged %t, want %t", why, !want, want)
			}
		}
		wantJudged("a plain owner", false, announced("10.0.0.1", records.MAC(7), 2))
		wantJudged("another one", true, announced("10.0.0.1", records.MAC(8), 1))
		wantJudged("one of two", true, announced("10.0.0.1", records.MAC(7), 3))
		n.report(gone(announced("10.0.0.1", records.MAC(8), 1)))
		wantJudged("a plain owner again", false, announced("10.0.0.1", records.MAC(7), 4))
		n.report(announced("10.0.0.2", []byte{1, 0, 0, 0, 0, 1}, 1))
		wantJudged("an owner that is excluded", true, announced("10.0.0.2", []byte{1, 0, 0, 0, 0, 1}, 2))
		n.report(bridged(2), bridged(3), behind(3, "10.0.0.3", records.MAC(2), pb.Evidence_ANNOUNCED))
		w.after(time.Second)
		again := behind(3, "10.0.0.3", records.MAC(2), pb.Evidence_ANNOUNCED)
		again.Claims[0].Count = 2
		wantJudged("an address that is claimed with a cloned MAC", true, again)
		frame := func(count uint32) *pb.ReportRequest {
			m := announced("10.0.0.5", records.MAC(5), count)
			m.Claims[0].Index, m.Claims[0].Link = 105, records.Port(5)
			return m
		}
		known, lost := pool("10.0.0.5"), pool("10.0.0.5")
		known.Allocations[0].ContainerId, lost.Allocations[0].ContainerId = "c5", "c5"
		n.report(given(5, "10.0.0.5"), known, frame(1))
		wantJudged("a pod with an allocation", false, frame(2))
		lost.Pools, lost.Allocations[0].Gone = nil, true
		n.report(lost)
		wantJudged("a pod whose allocation is gone", true, frame(3))
	})
}

func TestQueuedAddressesAreJudgedOnceRunStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		n := w.connect("n1")
		stop := w.run()
		if synctest.Wait(); w.rests() != 0 || !w.running {
			t.Errorf("before any judgement: got %d idle calls, running %t, want none, true", w.rests(), w.running)
		}
		stop()
		for i := range 40 {
			n.report(pod(2, netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}).String()))
		}
		if got := w.shards.Waiting(); got != 40 || w.rests() != 0 {
			t.Errorf("got %d queued addresses, and %d idle calls, want 40 and none", got, w.rests())
		}
		stop = w.run()
		synctest.Wait()
		if got := w.shards.Waiting(); got != 0 || w.rests() != 3 {
			t.Errorf("got %d queued addresses, and %d idle calls, want none and one of each goroutine", got, w.rests())
		}
		w.set(func() { w.heard = nil })
		w.wantHeard("all are judged")
		n.report(pod(3, "10.0.0.50"))
		if w.rests() != 4 {
			t.Errorf("got %d idle calls, want one more", w.rests())
		}
		stop()
		n.report(pod(3, "10.0.0.51"))
		if got := w.shards.Waiting(); got != 1 {
			t.Errorf("got %d queued addresses, want one: Run has returned", got)
		}
	})
}

// An overdue node is timed out before its addresses are judged at the same time.
func TestNodesTimeOutBeforeDueJudgements(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		w.set(func() { w.watched = false })
		w.policy.NodeTimeout = time.Second
		w.pods()
		one, two := w.connect("n1"), w.connect("n2")
		two.report(pod(3, "10.0.0.1"))
		two.silence()
		one.report(pod(2, "10.0.0.1"))
		w.wantHeard("a pod of a node that is silent", "detected in 5ms", "opened 10.0.0.1 suspected episode 1 was suspected of 2", "n1: contest 10.0.0.1 true")
		w.after(time.Second) // the settle time is over, and the node times out
		w.wantHeard("the node times out", "conflict 10.0.0.1 resolved episode 1 was suspected of 2", "n1: contest 10.0.0.1 false")
		w.after(time.Hour)
		w.wantHeard("later")
	})
}

// After any sequence of changes, the stored state agrees with the facts.
func TestShardsAgreeWithTheFactsAfterEachChange(t *testing.T) {
	for seed := range uint64(8) {
		inWorld(t, 1+int(seed%3), func(w *world) {
			if seed%2 == 1 {
				w.pods()
			}
			r := rand.New(rand.NewPCG(seed, 1))
			w.set(func() { w.watched = seed%4 < 2 })
			nodes := []*node{w.connect("n1"), w.connect("n2")}
			for _, n := range nodes {
				n.report(uplink())
			}
			for step := range 200 {
				n := nodes[r.IntN(2)]
				record := 2 + r.Uint32N(3)
				addr := []string{"10.0.0.1", "10.0.0.2", "fd00::1"}[r.IntN(3)]
				switch r.IntN(12) {
				case 0:
					n.silence()
					n.reconnect(uplink(), pod(record, addr))
				case 1:
					n.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: record, Gone: true}}})
				case 2, 3:
					n.report(pod(record, addr))
				case 4, 5:
					n.report(pod(record), gone(assigned(record, addr)))
				case 6, 7:
					n.report(announced(addr, records.MAC(record), 1+r.Uint32N(3)))
				case 8:
					n.report(gone(announced(addr, records.MAC(record), 1)))
				case 9:
					n.answer()
				case 10:
					w.after(time.Duration(r.IntN(2000)) * time.Millisecond)
				case 11:
					w.after(time.Duration(r.IntN(400)) * time.Second)
				}
				if w.check(fmt.Sprint("seed ", seed, " step ", step)); w.Failed() {
					return
				}
			}
		})
	}
}

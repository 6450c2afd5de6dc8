package export

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// replicas returns two replicas with journals of their own that export to one webhook. The clock of the second
// is ahead. The first one leads.
func replicas(t *testing.T, h *hook, ahead time.Duration) (a, b *bench) {
	a, b = newReplica(t, Settings{Webhook: h.URL}), newReplica(t, Settings{Webhook: h.URL})
	b.now = a.now.Add(ahead)
	for _, r := range []*bench{a, b} {
		r.start()
		t.Cleanup(func() { r.stop() })
		r.state()
	}
	a.lead()
	return a, b
}

// distinct returns the events without duplicates.
func distinct(all []cloudEvent) (some []cloudEvent) {
	for _, e := range all {
		if !slices.ContainsFunc(some, func(other cloudEvent) bool { return other.ID == e.ID }) {
			some = append(some, e)
		}
	}
	return some
}

// awaitDistinct waits until a receiver that drops duplicates has some events.
func awaitDistinct(t *testing.T, h *hook, want ...string) {
	t.Helper()
	var got []string
	wait.Until(t, "the events", func() bool { got = types(distinct(h.accepted(t))); return len(got) >= len(want) })
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// detect records a conflict that begins now in all journals. Each replica detects it at another time, and the
// second owner got the address at a time that all of them know.
func detect(n int, all ...*bench) {
	began := all[0].add(time.Second)
	for i, r := range all {
		r.add(time.Duration(i) * 3 * time.Millisecond)
		c := r.conflict(n)
		second := proto.CloneOf(c.GetOwners()[0])
		second.AssignedAt = timestamppb.New(began)
		c.Owners = append(c.Owners, second)
		c.Owners[0].AssignedAt = timestamppb.New(began.Add(-time.Hour))
		r.changed(c)
	}
}

// end records the end of a conflict in all journals.
func end(n int, all ...*bench) {
	for _, r := range all {
		r.changed(resolved(r.last(n), r.clock()))
	}
}

// A leader that is killed after it has sent something and before it has noted that leaves it to the next one,
// which sends it with the same id. Nothing is missed, whatever the clocks say.
func TestANewLeaderRepeatsWithTheSameIDs(t *testing.T) {
	for _, ahead := range []time.Duration{0, 1500 * time.Millisecond, -1500 * time.Millisecond} {
		h := newHook(t)
		a, b := replicas(t, h, ahead)
		detect(1, a, b)
		detect(2, a, b)
		end(1, a, b)
		told := []string{"10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed", "10.0.0.1 conflict.resolved"}
		a.awaitTypes(h, told...)
		a.follow()
		end(2, a, b) // while no replica leads
		b.lead()
		told = append(told, "10.0.0.2 conflict.resolved")
		awaitDistinct(t, h, told...)
		wait.Until(t, "what the former leader had sent", func() bool { return len(h.accepted(t)) >= 2*len(told)-1 })

		// The first one leads again. It has followed meanwhile.
		a.add(2 * overlap)
		b.add(2 * overlap)
		detect(2, a, b)
		told = append(told, "10.0.0.2 conflict.confirmed")
		awaitDistinct(t, h, told...)
		a.must(a.Feed(pb.Event_OWNER).Flush())
		b.follow()
		n := len(h.accepted(t))
		a.lead()
		detect(3, a, b)
		told = append(told, "10.0.0.3 conflict.confirmed")
		awaitDistinct(t, h, told...)
		if got := types(distinct(h.accepted(t)[n:])); !slices.Equal(got, told[4:]) {
			t.Errorf("the next leader sent %q, want only what is recent: %q", got, told[4:])
		}
	}
}

// A new leader sends the conflicts that last, however long ago they began: the former one may not have sent
// them.
func TestANewLeaderSendsWhatLasts(t *testing.T) {
	h := newHook(t)
	h.answers(func(http.ResponseWriter, int) int { return http.StatusServiceUnavailable })
	a, b := replicas(t, h, 0)
	detect(1, a, b)
	wait.Until(t, "an attempt", func() bool { return len(h.all()) > 0 })
	a.follow()
	b.add(time.Hour)
	detect(2, b)
	b.must(b.Feed(pb.Event_OWNER).Flush())
	h.answers(nil)
	b.lead()
	awaitDistinct(t, h, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed")
}

// A replica that leads for the first time repeats what its journal has, even if it began only a moment before.
func TestALeaderThatBeganAMomentBefore(t *testing.T) {
	h := newHook(t)
	h.answers(func(http.ResponseWriter, int) int { return http.StatusServiceUnavailable })
	a, b := newReplica(t, Settings{Webhook: h.URL}), newReplica(t, Settings{Webhook: h.URL})
	for _, r := range []*bench{a, b} {
		r.start()
		t.Cleanup(func() { r.stop() })
		r.state()
	}
	a.lead()
	detect(1, a, b)
	end(1, a, b)
	wait.Until(t, "an attempt", func() bool { return len(h.all()) > 0 })
	a.follow()
	b.must(b.Feed(pb.Event_OWNER).Flush())
	h.answers(nil)
	b.lead()
	awaitDistinct(t, h, "10.0.0.1 conflict.confirmed", "10.0.0.1 conflict.resolved")
}

// A former leader delivers what only it has recorded, however long the receiver was away, also if it was killed
// meanwhile; and no more than that.
func TestAFormerLeaderDeliversWhatItRecorded(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		h := newHook(t)
		a, b := replicas(t, h, 0)
		detect(1, a, b)
		a.awaitTypes(h, "10.0.0.1 conflict.confirmed")
		h.answers(func(http.ResponseWriter, int) int { return http.StatusServiceUnavailable })
		detect(2, a)
		end(2, a)
		n := len(h.all())
		wait.Until(t, "an attempt", func() bool { return len(h.all()) > n })
		a.follow()
		a.add(time.Hour)
		b.add(time.Hour)
		if restarts {
			a.restart(a.last(1))
		}
		b.must(b.Feed(pb.Event_OWNER).Flush())
		b.lead()
		detect(3, a, b)
		h.answers(nil)
		wait.Until(t, "the events of both", func() bool { return len(distinct(h.accepted(t))) == 4 })
		for _, typ := range []string{"10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed", "10.0.0.2 conflict.resolved", "10.0.0.3 conflict.confirmed"} {
			if !slices.Contains(types(h.accepted(t)), typ) {
				t.Errorf("got %q, want %q, too", types(h.accepted(t)), typ)
			}
		}
		wait.Until(t, "the end of its work", func() bool {
			cursor, err := a.Cursor("webhook")
			return err == nil && cursor.At().IsZero()
		})
		n = len(h.accepted(t))
		detect(4, a, b)
		wait.Until(t, "the next one", func() bool { return len(h.accepted(t)) > n })
		if got := types(h.accepted(t)[n:]); !slices.Equal(got, []string{"10.0.0.4 conflict.confirmed"}) {
			t.Errorf("got %q, want it from the leader alone", got)
		}
	}
}

// A leader that restarts goes on where it stopped, even if the receiver was away for long.
func TestALeaderContinuesAfterItsRestart(t *testing.T) {
	h := newHook(t)
	a, _ := replicas(t, h, 0)
	detect(1, a)
	a.awaitTypes(h, "10.0.0.1 conflict.confirmed")
	h.answers(func(http.ResponseWriter, int) int { return http.StatusServiceUnavailable })
	detect(2, a)
	end(2, a)
	a.add(time.Hour)
	a.restart(a.last(1))
	a.lead()
	h.answers(nil)
	awaitDistinct(t, h, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed", "10.0.0.2 conflict.resolved")
}

// A conflict that comes again has another id, even if its owners got the address at the same time as before.
func TestAConflictThatComesAgainHasAnotherID(t *testing.T) {
	h := newHook(t)
	a, _ := replicas(t, h, 0)
	detect(1, a)
	end(1, a)
	again := a.last(1)
	again.Episode = 2
	for _, after := range []time.Duration{0, 2 * promptly} {
		now := timestamppb.New(a.add(after))
		again.DetectedAt, again.ConfirmedAt = now, now
		a.changed(again)
		a.changed(resolved(again, a.clock()))
		again.Episode++
	}
	wantDifferent(t, a.awaitTypes(h, slices.Repeat([]string{"10.0.0.1 conflict.confirmed", "10.0.0.1 conflict.resolved"}, 3)...))
}

// More may become known about a conflict that is over, which has ended only once.
func TestAConflictThatIsOverEndsOnce(t *testing.T) {
	h := newHook(t)
	a, _ := replicas(t, h, 0)
	detect(1, a)
	end(1, a)
	over := resolved(a.last(1), a.clock())
	over.Owners[1].State = pb.Owner_GONE
	a.changed(over)
	wantDifferent(t, a.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.1 conflict.resolved", "10.0.0.1 conflict.updated"))
}

// A replica that missed an end and the next beginning takes both for one conflict with other owners. It has the id
// and the type that other replicas have for the next one.
func TestOtherOwnersAreAnotherBeginning(t *testing.T) {
	h := newHook(t)
	a, b := replicas(t, h, 0)
	detect(1, a, b)
	first := b.last(1)
	end(1, a)
	detect(1, a)
	a.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.1 conflict.resolved", "10.0.0.1 conflict.confirmed")
	next := a.last(1)
	next.DetectedAt, next.ConfirmedAt = first.DetectedAt, first.ConfirmedAt
	next.Owners[1].Workload.Name = "another"
	b.changed(next)
	a.follow()
	b.lead()
	wait.Until(t, "what the next leader has recorded", func() bool { return len(h.accepted(t)) >= 5 }) // the former one may repeat its last event
	awaitDistinct(t, h, "10.0.0.1 conflict.confirmed", "10.0.0.1 conflict.resolved", "10.0.0.1 conflict.confirmed")
}

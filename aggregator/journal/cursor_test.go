package journal

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

func (b *bench) cursor(name string) *Cursor {
	b.Helper()
	c, err := b.Cursor(name)
	b.must(err)
	return c
}

// A reader that reads up to Written, and moves its cursor there, gets each event once, also after a
// restart.
func TestACursorContinuesAfterARestart(t *testing.T) {
	b := newBench(t, t.TempDir())
	if _, whole, _ := b.Written(); whole {
		t.Error("got the whole state before it was sent")
	}
	b.state(nil)
	if !b.cursor("a").At().IsZero() {
		t.Error("got a cursor, want none")
	}
	until, whole, more := b.Written()
	if !whole {
		t.Error("want the whole state")
	}
	b.must(b.cursor("a").Move(until))
	read := func() (names []string) {
		c := b.cursor("a")
		until, _, _ := b.Written()
		for _, e := range b.events(Query{After: c.At(), Until: until.Add(time.Microsecond), Kinds: []pb.Event_Kind{pb.Event_OWNER}}) {
			names = append(names, e.GetOwner().GetNetns())
		}
		b.must(c.Move(until))
		return names
	}
	b.add(time.Second)
	b.changed(pb.Watch_ADDED, "a", pod("10.0.0.1", "a", "n1"))
	b.flush()
	select {
	case <-more:
	default:
		t.Error("got no notice of a record")
	}
	if got := read(); len(got) != 1 || got[0] != "a" {
		t.Errorf("got %v, want a", got)
	}
	b.add(time.Second)
	b.changed(pb.Watch_ADDED, "b", pod("10.0.0.2", "b", "n1"))
	b.flush()
	b.restart()
	if got := read(); len(got) != 1 || got[0] != "b" {
		t.Errorf("got %v after a restart, want b", got)
	}
	if got := read(); len(got) != 0 {
		t.Errorf("got %v again", got)
	}
}

// A cursor of a store that was set aside is not written to the next one.
func TestACursorOfAReplacedStoreDoesNotMove(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(nil)
	c := b.cursor("a")
	b.must(c.Move(b.Now()))
	replaced := b.Replaced()
	b.store.damage(errors.New("a test"))
	b.changed(pb.Watch_ADDED, "a", pod("10.0.0.1", "a", "n1"))
	<-replaced
	if err := c.Move(b.Now()); !errors.Is(err, ErrReplaced) {
		t.Errorf("got %v, want %v", err, ErrReplaced)
	}
	if at := b.cursor("a").At(); !at.IsZero() {
		t.Errorf("got the cursor %v in a new store, want none", at)
	}
}

// What the journal has dropped or lost is reported, with its period. A restart loses nothing.
func TestLostPeriods(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(nil)
	b.changed(pb.Watch_ADDED, "a", pod("10.0.0.1", "a", "n1"))
	b.flush()
	begin, _, _ := b.Written()
	b.add(time.Hour)
	b.restart()
	b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")})
	lost := func(since time.Time) ([]Loss, time.Time) {
		b.Helper()
		until, _, _ := b.Written()
		all, from, err := b.Lost(since, until)
		b.must(err)
		return all, from
	}
	b.add(time.Second)
	b.changed(pb.Watch_UPDATED, "a", pod("10.0.0.1", "a", "n2"))
	b.flush()
	if got, from := lost(begin); len(got) != 0 || !from.Equal(begin) {
		t.Errorf("got %+v from %v after a restart, want nothing", got, from)
	}

	b.add(time.Second)
	b.must(b.Feed(pb.Event_OWNER).Lost(7))
	b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n2")})
	b.add(time.Second)
	b.changed(pb.Watch_UPDATED, "a", pod("10.0.0.1", "a", "n3"))
	b.flush()
	if got, _ := lost(begin); len(got) != 1 || got[0].Events != 7 || got[0].Pruned {
		t.Errorf("got %+v, want 7 lost events", got)
	}

	b.add(DefaultRetention + 48*time.Hour)
	for _, node := range []string{"n4", "n5", "n6"} { // a segment a day
		b.changed(pb.Watch_UPDATED, "a", pod("10.0.0.1", "a", node))
		b.flush()
		b.add(DefaultRetention)
	}
	wait.Until(b, "old segments to be dropped", func() bool {
		b.flush()
		return b.Oldest().After(begin.Add(48 * time.Hour))
	})
	got, from := lost(begin)
	if len(got) == 0 || !got[0].Pruned || !got[0].From.Equal(begin) || !got[0].Until.Equal(b.Oldest()) || !from.Equal(b.Oldest()) {
		t.Errorf("got %+v from %v, want all before %v", got, from, b.Oldest())
	}
}

// A reader meets a gap again until it is past its end, and counts it once.
func TestALostPeriodIsCountedOnce(t *testing.T) {
	d := Delivery{Log: slog.New(slog.DiscardHandler), Clock: time.Now}
	begin := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	first, second := Loss{From: begin, Until: begin.Add(time.Second)}, Loss{From: begin.Add(time.Second), Until: begin.Add(time.Minute)}
	d.Lose([]Loss{first})
	d.Lose([]Loss{first, second})
	d.Lose([]Loss{second})
	if got := d.Stats().Lost; got != 2 {
		t.Errorf("got %d lost periods, want 2", got)
	}
}

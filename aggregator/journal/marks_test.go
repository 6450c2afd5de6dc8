package journal

import (
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A mark separates the records of the changes before a revision from the later ones.
func TestMarksSeparateRecords(t *testing.T) {
	b := newBench(t, t.TempDir())
	if _, known, _ := b.Mark(pb.Event_OWNER); known {
		t.Error("got a mark before the present state was sent")
	}
	b.state(nil)
	if _, known, _ := b.Mark(pb.Event_OWNER); known {
		t.Error("got a mark, want none before a revision is known")
	}
	feed := b.Feed(pb.Event_OWNER)
	b.must(feed.Passed(7))
	for i, name := range []string{"a", "b", "c"} {
		b.must(feed.Changed(&Change{At: b.Now(), Type: pb.Watch_ADDED, ID: name, Owner: pod("10.0.0.1", name, "n1"), Revision: 8 + uint64(i)}))
	}
	b.must(feed.Passed(11))
	b.flush()
	if m, known, _ := b.Mark(pb.Event_OWNER); !known || m.Revision != 11 {
		t.Errorf("got the mark %v, want that of 11", m)
	}
	for revision, want := range map[uint64]int{7: 3, 8: 2, 9: 1, 10: 0, 11: 0} {
		m, known := b.MarkOf(pb.Event_OWNER, revision)
		if got := len(b.events(Query{After: m.At, Kind: pb.Event_OWNER})); !known || got != want {
			t.Errorf("got %d events after revision %d (%t), want %d", got, revision, known, want)
		}
	}
	for _, revision := range []uint64{0, 6, 12, 7 + marksKept} {
		if m, known := b.MarkOf(pb.Event_OWNER, revision); known {
			t.Errorf("got %v for revision %d, want nothing", m, revision)
		}
	}
	if _, known := b.MarkOf(pb.Event_CONFLICT, 7); known {
		t.Error("got a mark of another feed")
	}
	b.must(feed.Lost(1))
	b.flush()
	if _, known := b.MarkOf(pb.Event_OWNER, 11); known {
		t.Error("got a mark after changes were lost")
	}
}

// The journal knows which process wrote at a time, even if that process recorded nothing.
func TestTheWriterOfATimeIsKnown(t *testing.T) {
	b := &bench{TB: t, clock: &clock{now: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)}, dir: t.TempDir()}
	var marks []time.Time
	for instance := range int64(3) {
		b.instance = 100 + instance
		b.start()
		owners := map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")}
		b.state(owners)
		b.must(b.Feed(pb.Event_OWNER).Passed(1))
		b.flush()
		m, known := b.MarkOf(pb.Event_OWNER, 1)
		if !known {
			t.Fatal("got no mark")
		}
		marks = append(marks, m.At)
		if instance < 2 {
			b.stop()
		}
	}
	defer b.stop()
	for i, at := range marks {
		if instance, known, err := b.Writer(at); err != nil || !known || instance != 100+int64(i) {
			t.Errorf("got %d, %t and %v for %v, want %d", instance, known, err, at, 100+i)
		}
	}
	if instance, known, err := b.Writer(time.UnixMicro(0)); known || err != nil {
		t.Errorf("got %d and %v before the journal, want nothing", instance, err)
	}
}

// Compare gets the state before an UPDATED event, also from an earlier segment.
func TestEventsAreComparedWithTheStateBefore(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(nil)
	b.changed(pb.Watch_ADDED, "a", pod("10.0.0.1", "first", "n1"))
	b.flush()
	b.add(48 * time.Hour)
	b.changed(pb.Watch_UPDATED, "a", pod("10.0.0.1", "second", "n1"))
	b.flush()
	b.changed(pb.Watch_REMOVED, "a", pod("10.0.0.1", "second", "n1"))
	b.flush()
	var got []string
	b.events(Query{Kind: pb.Event_OWNER, Compare: func(e, before *pb.Event) bool {
		got = append(got, e.GetType().String()+" "+before.GetOwner().GetWorkload().GetName())
		return true
	}})
	if len(got) != 3 || got[0] != "ADDED " || got[1] != "UPDATED first" || got[2] != "REMOVED " {
		t.Errorf("got %q", got)
	}
}

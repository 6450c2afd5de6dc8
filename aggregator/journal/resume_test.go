package journal

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// streamed makes a journal that of a stream. The clock is how far the stream was sent.
func (b *bench) streamed() {
	b.Helper()
	b.stop()
	b.reached = b.Now
	b.start()
}

// resumption returns where the feeds continue.
func (b *bench) resumption() Resumption {
	b.Helper()
	r, err := b.Resumption()
	b.must(err)
	return r
}

// noted records a change at a time, with a note.
func (b *bench) noted(at time.Time, name, note string) {
	b.Helper()
	b.must(b.Feed(pb.Event_OWNER).Changed(&Change{
		At: at, Type: pb.Watch_ADDED, Item: 7, Owner: pod("10.0.0.1", name, "n1"), Note: []byte(note),
	}))
}

func (b *bench) gaps() []*pb.Gap {
	b.Helper()
	gaps, err := b.Gaps(time.Time{}, b.Now().Add(time.Hour))
	b.must(err)
	return gaps
}

// A journal of a stream continues after a restart with the note of its last record: without a gap, and the
// records keep their times, even if these follow each other without a pause.
func TestAStreamIsResumedWithItsLastNote(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.streamed()
	if r := b.resumption(); r.Begun || r.Note != nil {
		t.Fatalf("got %+v of an empty journal, want nothing", r)
	}
	b.noted(b.Now(), "a", "too early") // no state was sent
	b.state(nil)
	if r := b.resumption(); !r.Begun || r.Note != nil {
		t.Fatalf("got %+v after the state, want that it is complete, and no note", r)
	}
	begin := b.add(time.Minute)
	b.noted(begin, "a", "1")
	b.noted(begin.Add(time.Microsecond), "b", "2")
	b.flush()
	b.add(time.Hour) // the stream is ahead of what is written
	b.must(b.Note(b.resumption(), []byte("3")))
	b.flush()
	b.restart()
	if r := b.resumption(); string(r.Note) != "3" || !r.Begun {
		t.Fatalf("got the note %q after a restart, want 3", r.Note)
	}
	b.noted(begin.Add(2*time.Microsecond), "lost", "4") // before it is resumed
	b.must(b.Resume(b.resumption()))
	b.noted(begin.Add(2*time.Microsecond), "c", "5")
	b.flush()
	var got []string
	for i, e := range b.events(Query{}) {
		if at := begin.Add(time.Duration(i) * time.Microsecond); !e.GetTime().AsTime().Equal(at) {
			t.Errorf("got the time %s of event %d, want %s", e.GetTime().AsTime(), i, at)
		}
		got = append(got, e.GetOwner().GetWorkload().GetName())
	}
	if want := []string{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("got the events %q, want %q", got, want)
	}
	if gaps := b.gaps(); len(gaps) != 0 {
		t.Errorf("got the gaps %v, want none", gaps)
	}
	if r := b.resumption(); string(r.Note) != "5" {
		t.Errorf("got the note %q, want that of the last record", r.Note)
	}
}

// What was sent for a store that was replaced meanwhile is not recorded.
func TestAResumptionOfAReplacedStoreDoesNotCount(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.streamed()
	b.state(nil)
	old := b.resumption()
	b.Journal.mu.RLock()
	b.store.damage(nil)
	b.Journal.mu.RUnlock()
	<-old.Replaced
	b.must(b.Resume(old))
	b.must(b.Note(old, []byte("1")))
	b.noted(b.Now(), "a", "2")
	b.flush()
	if r := b.resumption(); r.Note != nil || r.Begun || len(b.events(Query{})) != 0 {
		t.Errorf("got %+v and %v, want an empty journal", r, b.events(Query{}))
	}
	b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")}) // a positive control
	b.must(b.Note(b.resumption(), []byte("3")))
	b.flush()
	if r := b.resumption(); string(r.Note) != "3" || !r.Begun {
		t.Errorf("got %+v after a state, want the note 3", r)
	}
}

// Changes that are lost are a gap of the given reason, until the next state. The gaps of the journal that
// the changes are from are recorded, too.
func TestGapsOfAStream(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.streamed()
	b.state(nil)
	from, until := b.add(time.Minute), b.add(time.Minute)
	b.must(b.Missing(&pb.Gap{From: timestamppb.New(from), Until: timestamppb.New(until), Reason: pb.Gap_NOT_WRITTEN, Lost: 3}, []byte("1")))
	since := b.add(time.Minute)
	b.must(b.LoseSince(since, pb.Gap_NOT_RECEIVED))
	b.noted(b.add(time.Second), "lost", "2")
	b.flush()
	if open := b.OpenGap(); open.GetReason() != pb.Gap_NOT_RECEIVED || !open.GetFrom().AsTime().Equal(since) {
		t.Errorf("got the open gap %v, want one of messages since %s", open, since)
	}
	b.add(time.Minute)
	b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")})
	gaps := b.gaps()
	if len(gaps) != 2 || gaps[0].GetLost() != 3 || !gaps[0].GetUntil().AsTime().Equal(until) || gaps[1].GetReason() != pb.Gap_NOT_RECEIVED || gaps[1].GetUntil() == nil {
		t.Errorf("got the gaps %v, want that of the other journal and one of messages", gaps)
	}
	if r := b.resumption(); string(r.Note) != "1" {
		t.Errorf("got the note %q, want that of the first gap", r.Note)
	}
}

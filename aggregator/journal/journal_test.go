package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// clock is a clock that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return c.now
}

// bench is a journal with its clock.
type bench struct {
	testing.TB
	*Journal
	*clock
	dir string
	// instance is that of the process.
	instance int64
	// reached is set if the journal is that of a stream.
	reached func() time.Time
	stop    func()
}

func newBench(t testing.TB, dir string) *bench {
	b := &bench{TB: t, clock: &clock{now: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)}, dir: dir}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *bench) start() { b.startOn(vfs.Default) }

func (b *bench) startOn(fs vfs.FS) {
	b.Helper()
	b.Journal = New(Config{Dir: b.dir, Retention: DefaultRetention, Size: DefaultSize, Instance: b.instance, Clock: b.Now, Reached: b.reached, Log: slog.New(slog.DiscardHandler)})
	b.fs = fs
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { b.Run(ctx); close(done) }()
	b.stop = func() { cancel(); <-done }
	<-b.Opened()
}

// restart ends the journal and starts another one.
func (b *bench) restart() {
	b.Helper()
	b.stop()
	b.start()
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// state sends the present state of all kinds; only owners are not empty.
func (b *bench) state(owners map[string]*pb.Owner) {
	b.Helper()
	for _, kind := range kinds {
		feed := b.Feed(kind)
		b.must(feed.Begin())
		if kind == pb.Event_OWNER {
			for _, id := range slices.Sorted(maps.Keys(owners)) {
				b.must(feed.Present(&Change{At: b.Now(), Type: pb.Watch_ADDED, ID: id, Owner: owners[id]}))
			}
		}
		b.must(feed.Complete())
	}
	b.flush()
}

func (b *bench) flush() {
	b.Helper()
	b.must(b.Feed(pb.Event_OWNER).Flush())
}

func (b *bench) changed(typ pb.Watch_Type, id string, o *pb.Owner) {
	b.Helper()
	b.must(b.Feed(pb.Event_OWNER).Changed(&Change{At: b.Now(), Type: typ, ID: id, Owner: o}))
}

func (b *bench) events(q Query) (all []*pb.Event) {
	b.Helper()
	b.must(b.Events(b.Context(), &q, func(e *pb.Event) bool { all = append(all, e); return true }))
	return all
}

// at returns the pods that have addresses at a time.
func (b *bench) at(t time.Time) map[string]string {
	b.Helper()
	all := map[string]string{}
	b.must(b.At(b.Context(), pb.Event_OWNER, t, ipam.Range{}, Position{}, func(e *pb.Event, _ Position) bool {
		all[e.GetOwner().GetAddress()+" "+e.GetOwner().GetNetns()] = e.GetOwner().GetWorkload().GetName()
		return true
	}))
	return all
}

func pod(address, name, node string) *pb.Owner {
	return &pb.Owner{
		Address: address, Node: node, Mac: "02:00:00:00:00:01", Netns: name, State: pb.Owner_LIVE,
		Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: name},
	}
}

func only(address string) ipam.Range {
	a := netip.MustParseAddr(address)
	return ipam.Range{First: a, Last: a}
}

func TestTheHistoryOfAnAddressIsFoundByAddressPodMACAndNode(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(nil)
	web := pod("10.0.0.1", "web", "n1")
	began := b.add(time.Second)
	b.changed(pb.Watch_ADDED, "web", web)
	ended := b.add(time.Minute)
	b.changed(pb.Watch_REMOVED, "web", web)
	b.add(time.Minute)
	b.changed(pb.Watch_ADDED, "db", pod("10.0.0.2", "db", "n2"))
	b.flush()
	b.restart()

	match := func(e *pb.Event) bool { return e.GetOwner().GetWorkload().GetName() == "web" }
	for _, q := range []Query{
		{Span: only("10.0.0.1")},
		{Namespace: "default", Pod: "web"},
		{Node: "n1"},
		{MAC: "02:00:00:00:00:01", Match: match},
		{Namespace: "default", Match: match},
		{Match: match},
		{Kind: pb.Event_OWNER, Match: match},
	} {
		got := b.events(q)
		if len(got) != 2 {
			t.Fatalf("got %d events from %+v, want 2: %v", len(got), q, got)
		}
		if got[0].GetType() != pb.Watch_ADDED || !got[0].GetTime().AsTime().Equal(began) || got[0].GetOwner().GetAddress() != "10.0.0.1" {
			t.Errorf("got first event %v", got[0])
		}
		if got[1].GetType() != pb.Watch_REMOVED || !got[1].GetTime().AsTime().Equal(ended) || got[1].GetOwner().GetWorkload().GetName() != "web" {
			t.Errorf("got second event %v", got[1])
		}
	}
	if got := b.events(Query{Span: only("10.0.0.1"), Since: began.Add(1000), Until: ended}); len(got) != 0 {
		t.Errorf("got %v between the events", got)
	}
	if got := b.events(Query{Node: "n3"}); len(got) != 0 {
		t.Errorf("got %v of another node", got)
	}
	if got := b.at(began); len(got) != 1 || got["10.0.0.1 web"] != "web" {
		t.Errorf("got owners %v at the beginning", got)
	}
	if got := b.at(ended); len(got) != 0 {
		t.Errorf("got owners %v at the end", got)
	}
}

func TestTheStateAtTheBeginningIsNoChange(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(map[string]*pb.Owner{"web": pod("10.0.0.1", "web", "n1")})
	if got := b.events(Query{Span: only("10.0.0.1")}); len(got) != 1 || !got[0].GetPresent() {
		t.Errorf("got %v, want the state at the beginning", got)
	}
	if got := b.events(Query{}); len(got) != 0 {
		t.Errorf("got changes %v, want none", got)
	}
	if gaps, err := b.Gaps(time.Time{}, b.Now()); err != nil || len(gaps) != 0 {
		t.Errorf("got gaps %v and %v, want none", gaps, err)
	}
}

func TestChangesInAGapAreRecordedAtItsEnd(t *testing.T) {
	b := newBench(t, t.TempDir())
	same, changes := pod("10.0.0.1", "same", "n1"), pod("10.0.0.2", "changes", "n1")
	b.state(map[string]*pb.Owner{"same": same, "changes": changes, "gone": pod("10.0.0.3", "gone", "n1")})
	last := b.add(aliveEvery * 2)
	b.changed(pb.Watch_ADDED, "late", pod("10.0.0.9", "late", "n1"))
	b.flush()
	b.restart()
	changed := pod("10.0.0.2", "changes", "n1")
	changed.Mac = "02:00:00:00:00:02"
	end := b.add(time.Hour)
	b.state(map[string]*pb.Owner{"same": same, "changes": changed, "new": pod("10.0.0.4", "new", "n1"), "late": pod("10.0.0.9", "late", "n1")})

	want := map[string]pb.Watch_Type{"changes": pb.Watch_UPDATED, "gone": pb.Watch_REMOVED, "new": pb.Watch_ADDED}
	got := b.events(Query{Since: last.Add(time.Second)})
	for _, e := range got {
		name := e.GetOwner().GetWorkload().GetName()
		if e.GetType() != want[name] || e.GetNotBefore() == nil || e.GetNotBefore().AsTime().Before(last) || e.GetNotBefore().AsTime().After(end) {
			t.Errorf("got %v", e)
		}
		delete(want, name)
	}
	if len(want) != 0 {
		t.Errorf("got %v, no event of %v", got, want)
	}
	gaps, err := b.Gaps(last, end)
	if err != nil || len(gaps) != 1 || gaps[0].GetReason() != pb.Gap_NOT_RUNNING || gaps[0].GetUntil().AsTime().Sub(end).Abs() >= time.Millisecond { // its stamp follows those of the records
		t.Errorf("got gaps %v and %v", gaps, err)
	}
	if g, err := b.GapAt(last.Add(time.Minute)); err != nil || g == nil {
		t.Errorf("got no gap and %v within the gap", err)
	}
	if g, err := b.GapAt(end.Add(time.Minute)); err != nil || g != nil {
		t.Errorf("got gap %v and %v after the gap", g, err)
	}
}

// While a feed reads the state before its gap, which takes seconds in a large store, the other feeds are recorded, and
// its caller waits, so that the present state that follows is that of afterwards.
func TestAFeedThatBeginsDoesNotDelayTheOthers(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(nil)
	b.Journal.mu.Lock() // so that the store cannot be read
	begun := make(chan error, 1)
	go func() { begun <- b.Feed(pb.Event_NODE).Begin() }()
	b.changed(pb.Watch_ADDED, "a", pod("10.0.0.1", "a", "n1"))
	b.flush()
	select {
	case err := <-begun:
		t.Errorf("got %v, although the state before was not read", err)
	default:
	}
	b.Journal.mu.Unlock()
	b.must(<-begun)
	b.must(b.Feed(pb.Event_NODE).Complete())
	b.flush()
	if got := b.events(Query{Span: only("10.0.0.1")}); len(got) != 1 {
		t.Errorf("got %v, want the change", got)
	}
}

// A gap begins where the records end, also if the feed was behind when the process was killed.
func TestAGapBeginsWithTheFirstChangeThatIsMissing(t *testing.T) {
	for _, idle := range []bool{false, true} {
		b := newBench(t, t.TempDir())
		b.state(nil)
		changed := b.add(time.Second)
		killed := b.add(5 * time.Second)
		feed := b.Feed(pb.Event_OWNER)
		b.must(feed.Changed(&Change{At: changed, Type: pb.Watch_ADDED, ID: "a", Owner: pod("10.0.0.1", "a", "n1")}))
		want := changed
		if idle {
			b.must(feed.Idle())
			want = killed
		}
		b.flush()
		b.restart()
		b.add(time.Minute)
		b.state(nil)
		gaps, err := b.Gaps(time.Time{}, b.Now())
		if err != nil || len(gaps) != 1 || gaps[0].GetFrom().AsTime().Sub(want).Abs() >= time.Millisecond { // its stamp follows those of the records
			t.Errorf("idle %v: got gaps %v and %v, want one from %v", idle, gaps, err, want)
		}
	}
}

func TestLostChangesAreAGap(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(nil)
	b.changed(pb.Watch_ADDED, "a", pod("10.0.0.1", "a", "n1"))
	b.flush()
	begun := b.add(time.Second)
	feed := b.Feed(pb.Event_OWNER)
	b.must(feed.Lost(7))
	b.flush()
	if g := b.gap.Load(); g.GetReason() != pb.Gap_NOT_WRITTEN || g.GetUntil() != nil {
		t.Errorf("got gap %v, want one that has not ended", g)
	}
	b.add(time.Second)
	b.must(feed.Begin())
	b.must(feed.Present(&Change{At: b.Now(), Type: pb.Watch_ADDED, ID: "b", Owner: pod("10.0.0.2", "b", "n1")}))
	b.must(feed.Complete())
	b.flush()
	gaps, err := b.Gaps(begun, b.Now())
	if err != nil || len(gaps) != 1 || gaps[0].GetLost() != 7 || gaps[0].GetReason() != pb.Gap_NOT_WRITTEN || gaps[0].GetUntil() == nil {
		t.Errorf("got gaps %v and %v", gaps, err)
	}
	if got := b.at(b.Now().Add(time.Second)); !maps.Equal(got, map[string]string{"10.0.0.2 b": "b"}) {
		t.Errorf("got owners %v", got)
	}
}

func TestADamagedStoreIsSetAside(t *testing.T) {
	for _, how := range []struct {
		name   string
		kind   ProblemKind
		damage func(dir string) error
	}{
		{"manifest", Unreadable, func(dir string) error { return overwrite(dir, "MANIFEST-*") }},
		{"no manifest", Unreadable, func(dir string) error {
			all, err := filepath.Glob(filepath.Join(dir, "MANIFEST-*"))
			return errors.Join(err, os.Remove(all[0]))
		}},
		{"other version", Unreadable, func(dir string) error { return nil }},
	} {
		t.Run(how.name, func(t *testing.T) {
			b := newBench(t, t.TempDir())
			b.state(nil)
			b.changed(pb.Watch_ADDED, "a", pod("10.0.0.1", "a", "n1"))
			b.flush()
			if how.name == "other version" {
				b.must(b.store.db.Set(metaKey(metaVersion, 0), []byte{0, 0, 0, 0, 0, 0, 0, 1}, nil))
			}
			b.stop()
			b.must(how.damage(storeDir(b.dir)))
			b.start()
			aside, err := filepath.Glob(storeDir(b.dir) + ".*")
			if err != nil || len(aside) != 1 {
				t.Fatalf("got %v and %v, want one store that is set aside", aside, err)
			}
			if got := b.Problems(); len(got) != 1 || got[0].Kind != how.kind || got[0].Path != aside[0] || !got[0].At.Equal(b.Now()) || got[0].Err == nil {
				t.Errorf("got problems %+v, want kind %s and path %s", got, how.kind, aside[0])
			}
			b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")})
			if gaps, err := b.Gaps(time.Time{}, b.Now()); err != nil || len(gaps) != 1 || gaps[0].GetReason() != pb.Gap_DAMAGED {
				t.Errorf("got gaps %v and %v", gaps, err)
			}
			if got := b.at(b.Now().Add(time.Second)); len(got) != 1 {
				t.Errorf("got owners %v", got)
			}
			b.must(os.RemoveAll(aside[0]))
			if got := b.Problems(); len(got) > 0 {
				t.Errorf("got problems %+v of a store that was deleted", got)
			}
		})
	}
}

func overwrite(dir, pattern string) error {
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		return fmt.Errorf("no file %s: %w", pattern, err)
	}
	for _, name := range names {
		if err := os.WriteFile(name, []byte("junk junk junk junk junk"), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func TestWithoutADirectoryTheJournalIsInMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, file)
	if got := b.Problems(); len(got) != 1 || got[0].Kind != InMemory || got[0].Path != file || !b.Stats().Memory {
		t.Errorf("got problems %v and stats %+v", b.Problems(), b.Stats())
	}
	b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")})
	if got := b.at(b.Now().Add(time.Second)); len(got) != 1 {
		t.Errorf("got owners %v", got)
	}
}

func TestOldSegmentsAreDropped(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(map[string]*pb.Owner{"old": pod("10.0.0.1", "old", "n1")})
	first := b.Now()
	for day := range 33 {
		b.add(24 * time.Hour)
		o := pod("10.0.0.2", "new", "n1")
		o.Routed = day%2 > 0
		b.changed(pb.Watch_UPDATED, "new", o)
		b.flush()
		b.wholeSegments()
	}
	wait.Until(b, "old segments to be dropped", func() bool { return b.Oldest().After(first.Add(24 * time.Hour)) })
	if age := b.Now().Sub(b.Oldest()); age < 30*24*time.Hour || age > 32*24*time.Hour {
		t.Errorf("got %s, want about 30 days", age)
	}
	// The state does not depend on dropped segments.
	if got := b.at(b.Now().Add(time.Second)); len(got) != 2 {
		t.Errorf("got owners %v", got)
	}
	if got := b.events(Query{Span: only("10.0.0.1")}); len(got) != 1 || !got[0].GetPresent() {
		t.Errorf("got %v, want the state at the beginning", got)
	}
}

// wholeSegments waits until the copy of the current segment is written.
func (b *bench) wholeSegments() {
	b.Helper()
	wait.Until(b, "the copy of the segment", func() bool {
		list := b.store.list()
		return list[len(list)-1].complete
	})
}

// A record of an owner that is gone has no owner: it is in an earlier record.
func TestAnOwnerThatIsGoneIsNamed(t *testing.T) {
	b := newBench(t, t.TempDir())
	old := pod("10.0.0.1", "old", "n1")
	b.state(map[string]*pb.Owner{"old": old})
	b.changed(pb.Watch_ADDED, "web", pod("10.0.0.1", "web", "n1"))
	renamed := pod("10.0.0.1", "web-renamed", "n1")
	b.add(time.Minute)
	b.changed(pb.Watch_UPDATED, "web", renamed)
	next := b.add(25 * time.Hour) // in the next segment, their states are copies
	b.changed(pb.Watch_ADDED, "other", pod("10.0.0.1", "other", "n1"))
	b.changed(pb.Watch_REMOVED, "other", pod("10.0.0.1", "other", "n1")) // while they are copied
	b.flush()
	b.wholeSegments()
	first := b.add(time.Minute)
	b.changed(pb.Watch_REMOVED, "web", renamed)
	second := b.add(time.Minute)
	b.changed(pb.Watch_REMOVED, "old", old)
	b.flush()
	b.restart()

	named := func(e *pb.Event) string { return e.GetOwner().GetWorkload().GetName() }
	for _, one := range []struct {
		q    Query
		want []string
	}{
		{Query{Span: only("10.0.0.1"), Since: next}, []string{"other", "other", "web-renamed", "old"}},
		{Query{Span: only("10.0.0.1"), Since: first}, []string{"web-renamed", "old"}},
		{Query{Span: only("10.0.0.1"), After: first}, []string{"old"}},
		{Query{Since: second}, []string{"old"}},
		{Query{Namespace: "default", Pod: "old", Since: next, Match: func(e *pb.Event) bool { return named(e) == "old" }}, []string{"old"}},
		{Query{Node: "n1", Since: first}, []string{"web-renamed", "old"}},
	} {
		got := b.events(one.q)
		var names []string
		for _, e := range got {
			names = append(names, named(e))
			if gone := e.GetType() == pb.Watch_REMOVED; gone != (e.GetOwner().GetState() == pb.Owner_GONE) {
				t.Errorf("got %v", e)
			}
		}
		if !slices.Equal(names, one.want) {
			t.Errorf("got %v from %+v, want %v", names, one.q, one.want)
		}
	}
}

// The journal is restarted while the first state arrives, and many items share a node and an address.
func TestTheStateAtTheBeginningIsPagedAndHasTimesOfItsOwn(t *testing.T) {
	b := newBench(t, t.TempDir())
	owners := map[string]*pb.Owner{}
	feed := b.Feed(pb.Event_OWNER)
	b.must(feed.Begin())
	for i := range 2 * quickPlaces {
		name := fmt.Sprintf("p%d", i)
		owners[name] = pod(fmt.Sprintf("10.0.%d.%d", i/200, i%200), name, "n1")
		if i%2 == 0 {
			b.must(feed.Present(&Change{At: b.Now(), Type: pb.Watch_ADDED, ID: name, Owner: owners[name]}))
		}
	}
	b.flush()
	b.restart()
	b.state(owners)
	check := func(changes int) {
		t.Helper()
		for name, q := range map[string]Query{
			"node":      {Node: "n1"},
			"namespace": {Namespace: "default"},
			"range":     {Span: ipam.Range{First: netip.MustParseAddr("10.0.0.0"), Last: netip.MustParseAddr("10.0.255.255")}},
		} {
			seen := map[string]bool{}
			changed := 0
			for more := true; more; {
				more = false
				n := 0
				b.must(b.Events(t.Context(), &q, func(e *pb.Event) bool {
					if n++; n > 100 {
						more = true
						return false
					}
					at := e.GetTime().AsTime()
					if !at.After(q.After) || e.GetPresent() != at.Before(b.Oldest()) {
						t.Fatalf("%s: got %v after %s", name, e, q.After)
					}
					if q.After = at; e.GetPresent() {
						seen[e.GetOwner().GetWorkload().GetName()] = true
					} else {
						changed++
					}
					return true
				}))
			}
			if len(seen) != len(owners) || changed != changes {
				t.Errorf("%s: got %d owners and %d changes, want %d and %d", name, len(seen), changed, len(owners), changes)
			}
		}
		if got := b.events(Query{}); len(got) != changes {
			t.Errorf("got changes %v, want %d", got, changes)
		}
	}
	check(0)
	// The same is true of the copies with which the journal begins after its first segment was dropped.
	b.add(31 * 24 * time.Hour)
	owners["p0"].Routed = true
	b.changed(pb.Watch_UPDATED, "p0", owners["p0"])
	b.flush()
	b.wholeSegments()
	b.add(31 * 24 * time.Hour)
	wait.Until(t, "the first segment to be dropped", func() bool { return len(b.store.list()) == 1 })
	check(1)
}

// The journal is compared with a model, while it is restarted and starts new segments.
func TestTheJournalEqualsAModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	b := newBench(t, t.TempDir())
	now := map[string]*pb.Owner{}
	type moment struct {
		at    time.Time
		state map[string]string
	}
	var past []moment
	note := func() {
		state := map[string]string{}
		for _, o := range now {
			state[o.GetAddress()+" "+o.GetNetns()] = o.GetWorkload().GetName()
		}
		past = append(past, moment{b.Now().Add(time.Millisecond / 2), state}) // changes at one time have different stamps
	}
	var changes, versions int
	change := func(recorded bool) {
		id := fmt.Sprintf("p%d", random.IntN(30))
		o, typ := now[id], pb.Watch_UPDATED
		switch {
		case o == nil:
			o, typ = pod(fmt.Sprintf("10.0.0.%d", random.IntN(10)), id, fmt.Sprintf("n%d", random.IntN(3))), pb.Watch_ADDED
			now[id] = o
		case random.IntN(2) == 0:
			typ = pb.Watch_REMOVED
			delete(now, id)
		default:
			o = pod(o.GetAddress(), id, o.GetNode())
			versions++
			o.Mac = fmt.Sprintf("02:00:00:01:%02x:%02x", versions/256, versions%256)
			now[id] = o
		}
		if recorded {
			changes++
			b.changed(typ, id, o)
		}
	}
	b.state(now)
	for range 400 {
		b.add(time.Duration(1+random.IntN(1000)) * time.Millisecond)
		switch random.IntN(40) {
		case 0:
			b.restart()
			for range random.IntN(5) {
				change(false)
			}
			b.add(time.Second)
			b.state(now)
		case 1:
			b.add(25 * time.Hour)
			change(true)
		default:
			change(true)
		}
		note()
	}
	b.flush()
	for _, m := range past {
		if got := b.at(m.at); !maps.Equal(got, m.state) {
			t.Fatalf("got owners %v at %s, want %v", got, m.at, m.state)
		}
	}
	got := b.events(Query{})
	if n := len(slices.DeleteFunc(slices.Clone(got), func(e *pb.Event) bool { return e.GetNotBefore() != nil })); n != changes {
		t.Errorf("got %d changes, want %d", n, changes)
	}
	if !slices.IsSortedFunc(got, func(a, b *pb.Event) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) }) {
		t.Error("events are not in order")
	}
	// Every way to find events finds the same.
	for _, q := range []Query{{Span: only("10.0.0.3")}, {Namespace: "default", Pod: "p7"}, {Node: "n1"}} {
		q.Match = func(e *pb.Event) bool {
			return !e.GetPresent() && (q.Pod == "" || e.GetOwner().GetWorkload().GetName() == q.Pod) && (q.Node == "" || e.GetOwner().GetNode() == q.Node)
		}
		quick := b.events(q)
		slow := b.events(Query{Match: func(e *pb.Event) bool {
			return q.Match(e) && (!q.Span.First.IsValid() || e.GetOwner().GetAddress() == q.Span.First.String())
		}})
		if len(quick) == 0 || !slices.EqualFunc(quick, slow, func(a, b *pb.Event) bool { return a.GetTime().AsTime().Equal(b.GetTime().AsTime()) }) {
			t.Errorf("got %d events, want %d", len(quick), len(slow))
		}
	}
}

func TestAPageContinuesAfterItsLastItem(t *testing.T) {
	b := newBench(t, t.TempDir())
	owners := map[string]*pb.Owner{}
	for i := range 50 {
		id := fmt.Sprintf("p%d", i)
		owners[id] = pod(fmt.Sprintf("10.0.0.%d", i%7), id, "n1")
	}
	b.state(owners)
	seen := map[string]bool{}
	var p Position
	for more := true; more; {
		more = false
		n := 0
		b.must(b.At(t.Context(), pb.Event_OWNER, b.Now().Add(time.Second), ipam.Range{}, p, func(e *pb.Event, at Position) bool {
			if n++; n > 3 {
				more = true
				return false
			}
			if id := e.GetOwner().GetNetns(); seen[id] {
				t.Errorf("got %s twice", id)
			} else {
				seen[id] = true
			}
			p = at
			return true
		}))
		var err error
		if p, err = ParsePosition(p.Token()); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 50 {
		t.Errorf("got %d owners, want 50", len(seen))
	}
}

func TestAResolvedConflictIsNotActiveAfterAGap(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(nil)
	c := &pb.Conflict{Id: "c1", Episode: 1, Address: "10.0.0.1", State: pb.Conflict_CONFIRMED, DetectedAt: timestamppb.New(b.Now())}
	b.must(b.Feed(pb.Event_CONFLICT).Changed(&Change{At: b.Now(), Type: pb.Watch_ADDED, Conflict: c}))
	b.flush()
	b.restart()
	b.add(time.Hour)
	b.state(nil)
	got := b.events(Query{Kind: pb.Event_CONFLICT})
	if len(got) != 2 || got[1].GetConflict().GetState() != pb.Conflict_RESOLVED || got[1].GetType() != pb.Watch_UPDATED || got[1].GetNotBefore() == nil {
		t.Errorf("got %v, want that the conflict was resolved in the gap", got)
	}
}

// If a conflict is active again after a gap, in another episode, the former one has ended in it, whether the conflict was present
// when the state was sent or changed meanwhile.
func TestAnEpisodeEndsInAGap(t *testing.T) {
	for _, test := range []struct {
		send func(Feed, *Change) error
		next string
	}{{Feed.Present, "5 CONFIRMED true"}, {Feed.Changed, "5 CONFIRMED false"}} {
		b := newBench(t, t.TempDir())
		b.state(nil)
		feed := b.Feed(pb.Event_CONFLICT)
		conflict := func(episode uint32) *Change {
			return &Change{At: b.Now(), Type: pb.Watch_UPDATED, Conflict: &pb.Conflict{Id: "c1", Episode: episode, Address: "10.0.0.1", State: pb.Conflict_CONFIRMED, DetectedAt: timestamppb.New(b.Now())}}
		}
		b.must(feed.Changed(conflict(3)))
		for _, episode := range []uint32{3, 5} {
			b.flush()
			b.restart()
			b.add(time.Hour)
			feed = b.Feed(pb.Event_CONFLICT)
			b.must(feed.Begin())
			b.must(test.send(feed, conflict(episode)))
			b.must(feed.Complete())
		}
		b.flush()
		var got []string
		for _, e := range b.events(Query{Kind: pb.Event_CONFLICT}) {
			got = append(got, fmt.Sprint(e.GetConflict().GetEpisode(), " ", e.GetConflict().GetState(), " ", e.GetNotBefore() != nil))
		}
		if want := []string{"3 CONFIRMED false", "3 RESOLVED true", test.next}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The history of an address has its conflicts and findings, whether few or many addresses of the day had
// any, and whether the day is over or not.
func TestTheHistoryHasTheConflictsOfDaysWithFewAndWithMany(t *testing.T) {
	for _, n := range []int{1, maxFew, maxFew + 1} {
		b := newBench(t, t.TempDir())
		b.state(map[string]*pb.Owner{"other": pod("10.9.0.1", "other", "n1")})
		address := func(i int) string { return fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250) }
		want := func(when string) {
			for _, i := range []int{0, n - 1} {
				got := b.events(Query{Span: only(address(i)), Match: func(e *pb.Event) bool {
					return slices.Contains(append(e.GetFinding().GetAddresses(), e.GetFinding().GetAddress(), e.GetConflict().GetAddress()), address(i))
				}})
				if len(got) != 3 || got[0].GetConflict() == nil || got[1].GetFinding() == nil || got[2].GetFinding().GetId() != fmt.Sprint("of two ", i) {
					t.Errorf("%d conflicts, %s: got %v about %s, want a conflict, its finding, and that of two addresses", n, when, got, address(i))
				}
			}
			if got := b.events(Query{Span: only("10.9.0.1")}); len(got) != 1 || !got[0].GetPresent() {
				t.Errorf("%d conflicts, %s: got %v about another address, want its owner", n, when, got)
			}
		}
		for i := range n {
			b.add(time.Second)
			b.must(b.Feed(pb.Event_CONFLICT).Changed(&Change{At: b.Now(), Type: pb.Watch_ADDED, Conflict: &pb.Conflict{Id: fmt.Sprint(i), Address: address(i)}}))
			findings := b.Feed(pb.Event_FINDING)
			b.must(findings.Changed(&Change{At: b.Now(), Type: pb.Watch_ADDED, Finding: &pb.Finding{Id: fmt.Sprint(i), Address: address(i)}}))
			b.must(findings.Changed(&Change{At: b.Now(), Type: pb.Watch_ADDED, Finding: &pb.Finding{
				Id: fmt.Sprint("of two ", i), Address: "10.8.0.0/16", Addresses: []string{address(i), "10.8.0.1"},
			}}))
		}
		b.flush()
		want("today")
		b.add(24 * time.Hour)
		b.changed(pb.Watch_ADDED, "next", pod("10.9.0.2", "next", "n1"))
		b.flush()
		b.wholeSegments()
		want("the next day") // without the copies, which are no changes
		want("asked again")
	}
}

// fullFS is a file system that is full while it is set.
type fullFS struct {
	vfs.FS
	full atomic.Bool
}

func (f *fullFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, category)
	return fullFile{file, f}, err
}

func (f *fullFS) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(from, to, category)
	return fullFile{file, f}, err
}

type fullFile struct {
	vfs.File
	fs *fullFS
}

func (f fullFile) Write(p []byte) (int, error) {
	if f.fs.full.Load() {
		n, _ := f.File.Write(p[:len(p)/2]) // as much as fits
		return n, syscall.ENOSPC
	}
	return f.File.Write(p)
}

func (f fullFile) Sync() error {
	if f.fs.full.Load() {
		return syscall.EIO
	}
	return f.File.Sync()
}

func TestAFullDiskDelaysTheJournalOnly(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.stop()
	fs := &fullFS{FS: vfs.Default}
	b.startOn(fs)
	b.state(nil)
	fs.full.Store(true)
	b.changed(pb.Watch_ADDED, "a", pod("10.0.0.1", "a", "n1"))
	wait.Until(t, "a problem", func() bool { return len(b.Problems()) == 1 && b.Problems()[0].Kind == NotWritten })
	fs.full.Store(false)
	b.flush()
	if got := b.at(b.Now().Add(time.Second)); len(got) != 1 {
		t.Errorf("got owners %v after the disk had space again", got)
	}
	if len(b.Problems()) != 0 {
		t.Errorf("got problems %v", b.Problems())
	}
	b.stop()
	b.startOn(vfs.Default)
	if got := b.at(b.Now().Add(time.Second)); len(got) != 1 {
		t.Errorf("got owners %v after a restart", got)
	}
}

func TestAJournalStopsOnAFullDisk(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.stop()
	fs := &fullFS{FS: vfs.Default}
	b.startOn(fs)
	b.state(nil)
	fs.full.Store(true)
	b.changed(pb.Watch_ADDED, "a", pod("10.0.0.1", "a", "n1"))
	wait.Until(t, "a problem", func() bool { return len(b.Problems()) == 1 && b.Problems()[0].Kind == NotWritten })
	b.stop() // returns
	fs.full.Store(false)
}

func TestDamageThatIsReadIsSetAside(t *testing.T) {
	b := newBench(t, t.TempDir())
	for n := range 2 {
		b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")})
		b.must(b.store.db.Set(itemKey(b.store.list()[0], pb.Event_OWNER, placeOf(netip.MustParseAddr("10.0.0.1")), b.Now().UnixMicro()), []byte("junk"), nil))
		replaced := b.Replaced()
		b.add(time.Second)
		if err := b.At(t.Context(), pb.Event_OWNER, b.Now(), ipam.Range{}, Position{}, func(*pb.Event, Position) bool { return true }); !errors.Is(err, ErrDamaged) {
			t.Errorf("got %v, want ErrDamaged", err)
		}
		<-replaced
		b.state(map[string]*pb.Owner{"a": pod("10.0.0.1", "a", "n1")})
		if got := b.at(b.Now().Add(time.Second)); len(got) != 1 {
			t.Errorf("got owners %v", got)
		}
		// Both stores that were set aside are named.
		problems := b.Problems()
		if len(problems) != n+1 || problems[n].Kind != Damaged || !problems[n].At.Equal(b.Now()) || n > 0 && problems[0].Path == problems[n].Path {
			t.Errorf("got problems %+v", problems)
		}
		for _, p := range problems {
			if _, err := os.Stat(p.Path); err != nil {
				t.Error(err)
			}
		}
	}
	gaps, err := b.Gaps(time.Time{}, b.Now())
	if err != nil || len(gaps) != 1 || gaps[0].GetReason() != pb.Gap_DAMAGED {
		t.Errorf("got gaps %v and %v", gaps, err)
	}
}

// Owners are updated whenever their evidence changes, which is not recorded.
func TestAnUpdateThatChangesNothingIsNotRecorded(t *testing.T) {
	b := newBench(t, t.TempDir())
	o := pod("10.0.0.1", "a", "n1")
	o.AssignedAt = timestamppb.New(b.Now())
	b.state(nil)
	b.changed(pb.Watch_ADDED, "a", o)
	update := func(change func(*pb.Owner)) {
		b.add(time.Second)
		o = proto.CloneOf(o)
		change(o)
		b.changed(pb.Watch_UPDATED, "a", o)
		b.flush()
	}
	update(func(o *pb.Owner) { o.Evidence = []*pb.Evidence{{Kind: pb.Evidence_ASSIGNED}} })
	want := []string{"ADDED"}
	check := func(what string) {
		t.Helper()
		var got []string
		for _, e := range b.events(Query{Span: only("10.0.0.1")}) {
			got = append(got, e.GetType().String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	check("other evidence")
	// An agent that has restarted computes other times. The last record is in the store only.
	b.restart()
	o.AssignedAt = timestamppb.New(b.Now().Add(-time.Millisecond))
	b.state(map[string]*pb.Owner{"a": o})
	update(func(o *pb.Owner) { o.AssignedAt = timestamppb.New(b.Now()) })
	check("another time")
	update(func(o *pb.Owner) { o.Routed = true })
	want = append(want, "UPDATED")
	check("a route")
	b.restart()
	b.state(map[string]*pb.Owner{"a": o})
	update(func(o *pb.Owner) { o.Routed = false })
	want = append(want, "UPDATED")
	check("no route")
	update(func(o *pb.Owner) { o.AssignedAt = nil })
	want = append(want, "UPDATED")
	check("not assigned")
	b.changed(pb.Watch_REMOVED, "a", o)
	b.changed(pb.Watch_ADDED, "a", o)
	b.flush()
	want = append(want, "REMOVED", "ADDED")
	check("the same owner again")
}

// While the present state arrives, changes of items come whose turn in it is past.
func TestAnItemThatWasNeverRecordedIsNotRemoved(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(map[string]*pb.Owner{"old": pod("10.0.0.1", "old", "n1")})
	b.restart()
	b.add(time.Second)
	for _, kind := range kinds {
		feed := b.Feed(kind)
		b.must(feed.Begin())
		if kind == pb.Event_OWNER {
			b.must(feed.Present(&Change{At: b.Now(), Type: pb.Watch_ADDED, ID: "new", Owner: pod("10.0.0.3", "new", "n1")}))
			for i, id := range []string{"old", "never", "new"} {
				b.changed(pb.Watch_REMOVED, id, pod(fmt.Sprintf("10.0.0.%d", 1+i), id, "n1"))
			}
		}
		b.must(feed.Complete())
	}
	b.flush()
	var got []string
	for _, e := range b.events(Query{}) {
		got = append(got, e.GetType().String()+" "+e.GetOwner().GetWorkload().GetName())
	}
	if want := []string{"ADDED new", "REMOVED old", "REMOVED new"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Package stream tests how replicas publish to a real NATS server, one after the other.
package stream

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/nats"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// lab is a real NATS server with a stream.
type lab struct {
	testing.TB
	server  *nats.Server
	cluster string
	url     string
	conn    *natsclient.Conn
}

func newLab(t testing.TB) *lab { return newLabWith(t, "") }

// newLabWith returns a server with more in its configuration.
func newLabWith(t testing.TB, more string, options ...natsclient.Option) *lab {
	t.Helper()
	return newLabOf(t, "a.b", nats.Config{Name: "one", Port: -1, More: more}, options...)
}

// newLabOf returns a server for a cluster.
func newLabOf(t testing.TB, cluster string, cfg nats.Config, options ...natsclient.Option) *lab {
	t.Helper()
	bin, err := nats.Binary("../..")
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{TB: t, cluster: cluster}
	if l.server, err = nats.Start(nil, bin, t.TempDir(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.server.Kill)
	if l.url, err = l.server.URL(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.conn, err = nats.Connect(nil, l.url, options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.conn.Close)
	return l
}

// messages returns the messages of the stream.
func (l *lab) messages() []*pb.TransitionBatch {
	l.Helper()
	all, err := nats.Read(l.Context(), l.conn, l.server.Domain, stream.Name(l.cluster))
	if err != nil {
		return nil // the stream does not exist yet
	}
	return all
}

// changes returns the changes in the stream, as text, in order.
func (l *lab) changes() (all []string) {
	for _, b := range l.messages() {
		for _, t := range b.GetTransitions() {
			if b.GetPart() == pb.TransitionBatch_UNSPECIFIED && t.GetEvent() != nil {
				all = append(all, fmt.Sprintf("%s %s", t.GetEvent().GetType(), t.GetEvent().GetOwner().GetAddress()))
			}
		}
	}
	return all
}

// await waits until the stream has exactly some changes in order, and nothing follows them.
func (l *lab) await(want ...string) {
	l.Helper()
	var got []string
	defer func() {
		if l.Failed() {
			l.Logf("got %q, want %q", got, want)
		}
	}()
	wait.Until(l, "the changes in the stream", func() bool {
		got = l.changes()
		if len(got) > len(want) {
			l.Fatalf("got %q, want %q", got, want)
		}
		return fmt.Sprint(got) == fmt.Sprint(want)
	})
}

// replica is an aggregator of a cluster: a journal, and a publisher while it is the leader.
type replica struct {
	*lab
	*journal.Journal
	ahead atomic.Int64 // of its clock, in nanoseconds
	dir   string
	stop  func()
}

// replica starts a replica. Its clock is ahead by some time.
func (l *lab) replica(ahead time.Duration) *replica {
	r := &replica{lab: l, dir: filepath.Join(l.TempDir(), "data")}
	r.ahead.Store(int64(ahead))
	r.start()
	l.Cleanup(func() { r.stop() })
	return r
}

func (r *replica) now() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }

// start starts the journal, with no items.
func (r *replica) start() {
	r.Helper()
	r.Journal = journal.New(journal.Config{
		Dir: r.dir, Retention: journal.DefaultRetention, Size: journal.DefaultSize, Instance: time.Now().UnixNano(), Clock: r.now, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { r.Run(ctx) })
	r.stop = sync.OnceFunc(func() { cancel(); group.Wait() })
}

var kinds = []pb.Event_Kind{pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING, pb.Event_NODE}

// present records the present state, which has some addresses.
func (r *replica) present(addrs ...string) {
	r.Helper()
	for _, kind := range kinds {
		feed := r.Feed(kind)
		r.must(feed.Begin())
		for _, a := range addrs {
			if kind == pb.Event_OWNER {
				r.must(feed.Present(&journal.Change{At: r.now(), Type: pb.Watch_ADDED, ID: "owner", Owner: owner(a)}))
			}
		}
		r.must(feed.Complete())
	}
	r.must(r.Feed(pb.Event_OWNER).Flush())
}

func owner(a string) *pb.Owner {
	return &pb.Owner{Address: a, Node: "n1", Netns: "1", State: pb.Owner_LIVE, Scope: &pb.Scope{Kind: pb.Scope_NODE, Name: "n1"}}
}

func (r *replica) record(typ pb.Watch_Type, a string) {
	r.Helper()
	r.must(r.Feed(pb.Event_OWNER).Changed(&journal.Change{At: r.now(), Type: typ, ID: "owner", Owner: owner(a)}))
}

func (r *replica) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// settings are those of a client without credentials.
func (l *lab) settings() stream.Settings { return stream.Settings{Servers: []string{l.url}} }

// lead makes the replica the leader until the returned function is called. What is recorded before the
// stream has a state belongs to that.
func (r *replica) lead() (publisher *stream.Publisher, end func()) {
	r.Helper()
	publisher, end = r.publish(r.settings())
	wait.Until(r.lab, "the state in the stream", func() bool { return r.states() > 0 })
	return publisher, end
}

// publish starts a publisher, which runs until the returned function is called.
func (r *replica) publish(settings stream.Settings) (publisher *stream.Publisher, end func()) {
	r.Helper()
	p, err := stream.New(stream.Config{
		Settings: settings, Cluster: r.cluster, Instance: r.Instance, Journal: r.Journal,
		Coverage: func() *pb.Coverage { return &pb.Coverage{Expected: 1, Heard: 1} }, Log: slog.New(slog.DiscardHandler), Clock: r.now,
	})
	r.must(err)
	ctx, cancel := context.WithCancel(r.Context())
	var group sync.WaitGroup
	group.Go(func() { p.Run(ctx) })
	return p, func() { cancel(); group.Wait() }
}

func both(a, b *replica, typ pb.Watch_Type, addr string) {
	a.record(typ, addr)
	b.record(typ, addr)
}

func TestTheStreamBeginsWithTheState(t *testing.T) {
	l := newLab(t)
	r := l.replica(0)
	r.present("10.0.0.1", "10.0.0.2")
	_, end := r.lead()
	defer end()
	r.record(pb.Watch_ADDED, "10.0.0.3")
	l.await("ADDED 10.0.0.3")
	all := l.messages()
	var addrs []string
	for _, b := range all {
		if b.GetPart() != pb.TransitionBatch_UNSPECIFIED {
			for _, one := range b.GetTransitions() {
				addrs = append(addrs, one.GetEvent().GetOwner().GetAddress())
				if !one.GetEvent().GetPresent() || one.GetItem() == 0 {
					t.Errorf("got %v, want a present event with an item", one)
				}
			}
		}
	}
	if fmt.Sprint(addrs) != "[10.0.0.1 10.0.0.2]" {
		t.Errorf("got state %v, want 10.0.0.1 and 10.0.0.2", addrs)
	}
	if first, second := all[0].GetPart(), all[1].GetPart(); first != pb.TransitionBatch_STATE_BEGINS || second != pb.TransitionBatch_STATE_ENDS {
		t.Errorf("got parts %s and %s, want STATE_BEGINS and STATE_ENDS", first, second)
	}
}

func TestALargeStateHasSeveralParts(t *testing.T) {
	const owners = 2000
	l := newLab(t)
	r := l.replica(0)
	addrs := many(owners)
	r.present(addrs...)
	_, end := r.lead()
	defer end()
	r.record(pb.Watch_REMOVED, addrs[0])
	l.await("REMOVED " + addrs[0])
	seen := make(map[string]bool)
	parts := make(map[pb.TransitionBatch_Part]int)
	for _, b := range l.messages() {
		for _, one := range b.GetTransitions() {
			if one.GetEvent().GetPresent() {
				seen[one.GetEvent().GetOwner().GetAddress()] = true
				parts[b.GetPart()]++
			}
		}
	}
	if len(seen) != owners || parts[pb.TransitionBatch_STATE_BEGINS] != 512 || parts[pb.TransitionBatch_STATE] != 1024 || parts[pb.TransitionBatch_STATE_ENDS] != owners-3*512 {
		t.Errorf("got %d owners in parts %v, want %d", len(seen), parts, owners)
	}
}

func TestAStreamThatLosesTheStateGetsItAgain(t *testing.T) {
	l := newLab(t)
	r := l.replica(-longAgo)
	r.present("10.0.0.1")
	_, end := r.lead()
	defer end()
	r.record(pb.Watch_ADDED, "10.0.0.2")
	l.await("ADDED 10.0.0.2")         // so the publisher has noted when it published the state
	r.ahead.Store(int64(2 * longAgo)) // long after the state
	js, err := l.conn.JetStream()
	r.must(err)
	r.must(js.PurgeStream(stream.Name(l.cluster)))
	wait.Until(t, "the state", func() bool { return l.states() > 0 })
}

func TestARestartRepeatsNothing(t *testing.T) {
	l := newLab(t)
	r := l.replica(0)
	r.present("10.0.0.1")
	_, end := r.lead()
	r.record(pb.Watch_ADDED, "10.0.0.2")
	l.await("ADDED 10.0.0.2")
	end()
	r.record(pb.Watch_ADDED, "10.0.0.3") // while it does not lead
	r.must(r.Feed(pb.Event_OWNER).Flush())
	r.stop()
	r.start()
	r.present("10.0.0.1", "10.0.0.2") // 10.0.0.3 ended in the gap
	_, end = r.lead()
	defer end()
	l.await("ADDED 10.0.0.2", "ADDED 10.0.0.3", "REMOVED 10.0.0.3")
	if n := l.states(); n != 1 {
		t.Errorf("got %d states, want 1: the journal has everything since then", n)
	}
}

// states returns the number of states in the stream.
func (l *lab) states() (n int) {
	for _, b := range l.messages() {
		if b.GetPart() == pb.TransitionBatch_STATE_BEGINS {
			n++
		}
	}
	return n
}

// longAgo is how long before a test the journals of replicas begin that have run for some time.
const longAgo = 2 * time.Minute

// A new leader omits nothing, may repeat what has just happened, and publishes the state.
func TestANewLeaderOmitsNothing(t *testing.T) {
	l := newLab(t)
	a, b := l.replica(-longAgo), l.replica(-longAgo)
	a.present("10.0.0.1")
	b.present("10.0.0.1")
	a.ahead.Store(0)
	b.ahead.Store(int64(300 * time.Millisecond))
	awaitEach := func(want ...string) {
		t.Helper()
		wait.Until(t, fmt.Sprintf("the changes %q", want), func() bool {
			got := l.changes()
			return !slices.ContainsFunc(want, func(one string) bool { return !slices.Contains(got, one) })
		})
	}
	_, end := a.lead()
	both(a, b, pb.Watch_ADDED, "10.0.1.1")
	both(a, b, pb.Watch_REMOVED, "10.0.1.1")
	l.await("ADDED 10.0.1.1", "REMOVED 10.0.1.1")
	end()
	both(a, b, pb.Watch_ADDED, "10.0.2.1") // while nobody leads
	_, end = b.lead()
	awaitEach("ADDED 10.0.2.1")
	both(a, b, pb.Watch_ADDED, "10.0.2.2")
	awaitEach("ADDED 10.0.2.2")
	end()
	_, end = a.lead()
	defer end()
	both(a, b, pb.Watch_ADDED, "10.0.2.3")
	awaitEach("ADDED 10.0.2.3")
	if n := l.states(); n != 3 {
		t.Errorf("got %d states, want one of each leader", n)
	}
	for i, m := range l.messages() {
		if m.GetSequence() != uint64(i+1) {
			t.Errorf("got message %d with number %d", i+1, m.GetSequence())
		}
	}
}

func TestALeaderThatHasNotRecordedTheLastChangesPublishesTheState(t *testing.T) {
	l := newLab(t)
	a := l.replica(-longAgo)
	a.present("10.0.0.1")
	a.ahead.Store(0)
	_, end := a.lead()
	a.record(pb.Watch_ADDED, "10.0.0.2")
	l.await("ADDED 10.0.0.2")
	end()
	b := l.replica(0) // it begins only now
	b.present("10.0.0.1", "10.0.0.3")
	_, end = b.lead()
	defer end()
	wait.Until(t, "another state", func() bool { return l.states() == 2 })
	b.record(pb.Watch_ADDED, "10.0.0.4")
	l.await("ADDED 10.0.0.2", "ADDED 10.0.0.4")
}

func TestTwoPublishersOfOneStreamAreAProblem(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.replica(0), l.replica(0)
	a.present("10.0.0.1")
	b.present("10.0.0.1")
	first, end := a.lead()
	defer end()
	second, end := b.lead()
	defer end()
	wait.Until(t, "a problem", func() bool {
		both(a, b, pb.Watch_ADDED, "10.0.0.2")
		both(a, b, pb.Watch_REMOVED, "10.0.0.2")
		return len(first.Problems())+len(second.Problems()) > 0
	})
}

func TestAStreamThatWasRemovedBeginsAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	r := l.replica(0)
	r.present("10.0.0.1")
	_, end := r.lead()
	defer end()
	r.record(pb.Watch_ADDED, "10.0.0.2")
	l.await("ADDED 10.0.0.2")
	js, err := l.conn.JetStream()
	r.must(err)
	r.must(js.DeleteStream(stream.Name(l.cluster)))
	wait.Until(t, "a new stream with the state", func() bool {
		all := l.messages()
		if len(all) == 0 {
			r.record(pb.Watch_ADDED, "10.0.0.3")
			r.record(pb.Watch_REMOVED, "10.0.0.3")
			return false
		}
		return all[0].GetPart() == pb.TransitionBatch_STATE_BEGINS && proto.Size(all[0]) > 0
	})
}

// inMemory returns a replica whose journal is in memory, until reopen is called.
func (l *lab) inMemory() (r *replica, reopen func()) {
	l.Helper()
	r = &replica{lab: l, dir: filepath.Join(l.TempDir(), "data")}
	r.must(os.WriteFile(r.dir, nil, 0o600)) // where the directory should be
	r.start()
	l.Cleanup(func() { r.stop() })
	<-r.Opened()
	return r, func() {
		r.must(os.Remove(r.dir))
		r.ahead.Add(int64(longAgo)) // the journal tries again only after some time
	}
}

// many returns some addresses in order.
func many(count int) (addrs []string) {
	for n := range count {
		addrs = append(addrs, fmt.Sprintf("10.1.%d.%d", n/200, 1+n%200))
	}
	return addrs
}

// complete returns the addresses of the last state in the stream; ok is false if it is not complete.
func (l *lab) complete() (addrs []string, ok bool) {
	for _, b := range l.messages() {
		switch b.GetPart() {
		case pb.TransitionBatch_UNSPECIFIED:
			continue
		case pb.TransitionBatch_STATE_BEGINS:
			addrs, ok = nil, false
		case pb.TransitionBatch_STATE_ENDS:
			ok = true
		default:
		}
		for _, one := range b.GetTransitions() {
			addrs = append(addrs, one.GetEvent().GetOwner().GetAddress())
		}
	}
	return addrs, ok
}

// ends returns the number of complete states in the stream.
func (l *lab) ends() (n int) {
	for _, b := range l.messages() {
		if b.GetPart() == pb.TransitionBatch_STATE_ENDS {
			n++
		}
	}
	return n
}

// A stream that refuses the second message of a state stops the publisher, but not the journal.
func TestAStateThatNATSRefusesDoesNotBlockTheJournal(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	js, err := jetstream.New(l.conn)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{
		Name: stream.Name(l.cluster), Subjects: []string{stream.Subjects(l.cluster)}, MaxMsgs: 1, Discard: jetstream.DiscardNew,
	}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	r, reopen := l.inMemory()
	addrs := many(2000)
	r.present(addrs...)
	p, end := r.publish(r.settings())
	defer end()
	refused := func() bool { return p.Stats().Failures > 0 && len(l.messages()) == 1 }
	wait.Until(t, "the stream to refuse a part of the state", refused)

	r.record(pb.Watch_ADDED, "10.2.0.1")
	wait.Until(t, "a change in the journal", func() bool {
		found := false
		r.must(r.Events(t.Context(), &journal.Query{Since: r.now().Add(-longAgo)}, func(e *pb.Event) bool {
			found = found || e.GetOwner().GetAddress() == "10.2.0.1"
			return true
		}))
		return found
	})
	replaced := r.Replaced()
	reopen()
	select {
	case <-replaced:
	case <-time.After(wait.Patience()):
		t.Fatal("the journal cannot be replaced while a state is published")
	}
	if !refused() {
		t.Fatal("got another message, want a state that is still refused")
	}
	r.present(addrs[:3]...)

	cfg.MaxMsgs = -1
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	var got []string
	wait.Until(t, "the state of the new journal", func() (ok bool) {
		got, ok = l.complete()
		return ok
	})
	if n := l.ends(); n != 1 || fmt.Sprint(got) != fmt.Sprint(addrs[:3]) {
		t.Errorf("got %d complete states, the last one %v; want only that of the new journal, %v", n, got, addrs[:3])
	}
}

// The rest of a state is read after the stream has accepted the first part, and is that of the same time.
func TestAStateThatNATSRefusesIsContinued(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	js, err := jetstream.New(l.conn)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{
		Name: stream.Name(l.cluster), Subjects: []string{stream.Subjects(l.cluster)}, MaxMsgs: 2, Discard: jetstream.DiscardNew,
	}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	r := l.replica(0)
	addrs := many(2000)
	r.present(addrs...)
	p, end := r.publish(r.settings())
	defer end()
	wait.Until(t, "the stream to refuse a part of the state", func() bool { return p.Stats().Failures > 0 && len(l.messages()) == 2 })
	r.record(pb.Watch_REMOVED, addrs[len(addrs)-1]) // after the time of the state
	r.must(r.Feed(pb.Event_OWNER).Flush())
	cfg.MaxMsgs = -1
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	l.await("REMOVED " + addrs[len(addrs)-1])
	got, _ := l.complete()
	if fmt.Sprint(got) != fmt.Sprint(addrs) {
		t.Errorf("got a state of %d owners, want the %d at its time, each once and in order", len(got), len(addrs))
	}
}

// A state of a time that the journal has dropped cannot be completed: another one follows.
func TestAStateThatTheJournalDropsIsNotCompleted(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	js, err := jetstream.New(l.conn)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{
		Name: stream.Name(l.cluster), Subjects: []string{stream.Subjects(l.cluster)}, MaxMsgs: 1, Discard: jetstream.DiscardNew,
	}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	r := l.replica(0)
	addrs := many(2000)
	r.present(addrs...)
	at := r.now()
	p, end := r.publish(r.settings())
	defer end()
	wait.Until(t, "the stream to refuse a part of the state", func() bool { return p.Stats().Failures > 0 && len(l.messages()) == 1 })
	wait.Until(t, "the journal to drop the time of the state", func() bool {
		if r.now().Before(at.Add(3 * journal.DefaultRetention)) {
			r.ahead.Add(int64(journal.DefaultRetention / 2))
		} else {
			r.ahead.Add(int64(longAgo)) // old segments are dropped only once a minute
		}
		r.record(pb.Watch_REMOVED, addrs[0])
		r.record(pb.Watch_ADDED, addrs[0])
		r.must(r.Feed(pb.Event_OWNER).Flush())
		return r.Oldest().After(at)
	})
	cfg.MaxMsgs = -1
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	var got []string
	wait.Until(t, "a complete state", func() (ok bool) {
		got, ok = l.complete()
		return ok
	})
	if n := l.ends(); n != 1 || l.states() != 2 || fmt.Sprint(got) != fmt.Sprint(addrs) {
		t.Errorf("got %d complete states, the last one with %d owners; want only the second one, with %d owners", n, len(got), len(addrs))
	}
}

func TestAnOutageBeforeTheFirstMessageIsALag(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.server.Kill()
	r := l.replica(0)
	r.present("10.0.0.1")
	p, end := r.publish(r.settings())
	wait.Until(t, "a lag", func() bool { return p.Stats().Lag > 0 })
	r.ahead.Store(int64(longAgo))
	if lag := p.Stats().Lag; lag < longAgo {
		t.Errorf("got a lag of %s, want at least %s", lag, longAgo)
	}
	r.must(l.server.Restart(l.url))
	wait.Until(t, "no lag", func() bool { return l.states() > 0 && p.Stats().Lag == 0 })
	l.server.Kill()
	wait.Until(t, "a lag again", func() bool { return p.Stats().Lag > 0 })
	end()
	if lag := p.Stats().Lag; lag != 0 {
		t.Errorf("got a lag of %s of a replica that does not lead, want none", lag)
	}
}

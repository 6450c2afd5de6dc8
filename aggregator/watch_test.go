package aggregator

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/live"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// ownerWatch reads a watch of owners.
type ownerWatch struct {
	testing.TB
	stream pb.WitnessService_WatchOwnersClient
	cancel func()
}

func (l *lab) watchOwners(q *pb.WatchOwnersRequest) *ownerWatch {
	l.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	stream, err := l.client.WatchOwners(ctx, q)
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(cancel)
	return &ownerWatch{l.TB, stream, cancel}
}

// until reads events up to the first of a type.
func (w *ownerWatch) until(typ pb.Watch_Type) (events []*pb.WatchOwnersResponse) {
	w.Helper()
	for {
		m, err := w.stream.Recv()
		if err != nil {
			w.Fatalf("after %v: %v", events, err)
		}
		events = append(events, m)
		if m.GetType() == typ {
			return events
		}
	}
}

func types(events []*pb.WatchOwnersResponse) (types []pb.Watch_Type) {
	for _, m := range events {
		types = append(types, m.GetType())
	}
	return types
}

func TestWatchOwnersBeginsWithThePresentState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", "10.244.0.6"))).sync()
		w := l.watchOwners(&pb.WatchOwnersRequest{})
		if got := w.until(pb.Watch_BOOKMARK); len(got) != 3 || got[2].GetResumeToken() == "" {
			t.Fatalf("got %v, want two owners and a bookmark", types(got))
		}
		a.send(podVeth(4, "c", "10.244.0.7")).sync()
		if got := w.until(pb.Watch_ADDED); got[0].GetOwner().GetWorkload().GetName() != "c" {
			t.Errorf("got %v, want c", got)
		}
		a.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{podNamespace(4, "renamed")}}).sync()
		if got := w.until(pb.Watch_UPDATED); got[0].GetOwner().GetWorkload().GetName() != "renamed" {
			t.Errorf("got %v, want renamed", got)
		}
		a.send(gone(assigned(4, "10.244.0.7"))).sync()
		if got := w.until(pb.Watch_REMOVED); got[0].GetOwner().GetState() != pb.Owner_GONE {
			t.Errorf("got %v, want GONE", got)
		}
		began := time.Now()
		if w.until(pb.Watch_BOOKMARK); time.Since(began) > bookmarkEvery {
			t.Errorf("got a bookmark after %s", time.Since(began))
		}
		a.cancel()
		if got := w.until(pb.Watch_NODE); got[len(got)-1].GetNode().GetState() != pb.Node_DISCONNECTED {
			t.Errorf("got %v, want the node DISCONNECTED", got)
		}
	})
}

func TestWatchResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
		w := l.watchOwners(&pb.WatchOwnersRequest{})
		token := w.until(pb.Watch_BOOKMARK)[1].GetResumeToken()
		w.cancel()
		synctest.Wait()
		a.send(podVeth(3, "b", "10.244.0.6")).sync()
		w = l.watchOwners(&pb.WatchOwnersRequest{ResumeToken: token})
		w.until(pb.Watch_BOOKMARK)
		if got := w.until(pb.Watch_ADDED); len(got) != 1 || got[0].GetOwner().GetWorkload().GetName() != "b" {
			t.Errorf("got %v, want only the missed events", got)
		}
		w.cancel()
		synctest.Wait()
		time.Sleep(2 * live.LingerFor)
		a.send(podVeth(4, "c", "10.244.0.7")).sync()
		w = l.watchOwners(&pb.WatchOwnersRequest{ResumeToken: token})
		if got := w.until(pb.Watch_BOOKMARK); len(got) != 5 || got[0].GetType() != pb.Watch_LOST {
			t.Errorf("got %v, want LOST and the present state for a token that is too old", types(got))
		}
		w = l.watchOwners(&pb.WatchOwnersRequest{ResumeToken: "junk"})
		if _, err := w.stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v, want INVALID_ARGUMENT", err)
		}
		w = l.watchOwners(&pb.WatchOwnersRequest{ResumeToken: "otherinstance-1"})
		if got := w.until(pb.Watch_BOOKMARK); len(got) != 5 || got[0].GetType() != pb.Watch_LOST {
			t.Errorf("got %v, want LOST and the present state for another instance's token", types(got))
		}
	})
}

func TestASlowWatcherLosesEventsAndDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newIdleCore(t, slog.New(slog.DiscardHandler))
		h := s.events.Conflicts
		one := live.Event{Type: updated, Node: &pb.Node{}}
		gate, sent := make(chan struct{}), 0
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- s.witness.WatchConflicts(&pb.WatchConflictsRequest{}, &streamOf[pb.WatchConflictsResponse]{ctx: ctx, send: func(m *pb.WatchConflictsResponse) error {
				switch m.GetType() {
				case pb.Watch_LOST:
					if m.GetLost() == 0 {
						t.Error("got 0 lost")
					}
					got = append(got, "lost")
				case pb.Watch_BOOKMARK:
					got = append(got, "present")
				default:
					<-gate
					sent++
				}
				return nil
			}})
		}()
		synctest.Wait()
		h.Publish(one)
		synctest.Wait()
		for range 3 * live.BusSize {
			h.Publish(one) // does not wait for the watcher
		}
		close(gate)
		synctest.Wait()
		if want := []string{"present", "lost", "present"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		before := sent
		h.Publish(one)
		synctest.Wait()
		if sent != before+1 {
			t.Errorf("got %d events after that, want 1", sent-before)
		}
		cancel()
		if err := <-done; status.Code(err) != codes.Canceled {
			t.Errorf("got %v, want CANCELED", err)
		}
	})
}

// Events of new nodes are sent to watchers, but not kept without any: with thousands of nodes, each
// would allocate a ring that the next owner discards.
func TestWatchesSeeNodesThatTimedOut(t *testing.T) {
	s := newIdleCore(t, slog.New(slog.DiscardHandler))
	come := func(name string) {
		m := snapshot(hello(name, 1))
		m.Sequence = 1
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		s.report(t, raw)
	}
	before := s.events.Owners.Revision()
	come("n1")
	if _, _, lost, _ := s.events.Owners.Since(before, live.Latest, nil); lost == 0 {
		t.Error("nobody watches, and it is kept")
	}
	before = s.events.Owners.Revision()
	s.events.Owners.Join()
	come("n2")
	published, _, _, _ := s.events.Owners.Since(before, live.Latest, nil)
	if len(published) != 1 || published[0].Type != nodeChanged || published[0].Node.GetName() != "n2" {
		t.Errorf("the watch got %v, want node n2", published)
	}
}

func TestAFilteredWatchSeesOwnersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
		one := l.watchOwners(&pb.WatchOwnersRequest{Pod: "a"})
		two := l.watchOwners(&pb.WatchOwnersRequest{Pod: "b"})
		one.until(pb.Watch_BOOKMARK)
		two.until(pb.Watch_BOOKMARK)
		a.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{podNamespace(2, "b")}}).sync()
		if got := one.until(pb.Watch_REMOVED); len(got) != 1 {
			t.Errorf("got %v, want it removed", types(got))
		}
		if got := two.until(pb.Watch_ADDED); len(got) != 1 {
			t.Errorf("got %v, want it added", types(got))
		}
		change := podVeth(2, "b", addr).Interfaces[0]
		change.Mac = records.MAC(9)
		a.send(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{change}}).sync()
		if got := two.until(pb.Watch_UPDATED); len(got) != 1 {
			t.Errorf("got %v, want it updated", types(got))
		}
	})
}

func TestWatchesEndWhenTheAggregatorStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1))).sync()
		w := l.watchOwners(&pb.WatchOwnersRequest{})
		w.until(pb.Watch_BOOKMARK)
		l.stop()
		var err error
		for err == nil { // the watch may still receive the node, whose stream ends too
			_, err = w.stream.Recv()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("got %v, want UNAVAILABLE", err)
		}
		if err := a.ended(); status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "token") {
			t.Errorf("got %v, want UNAVAILABLE without a resume token: an agent has none", err)
		}
	})
}

// Watchers that do not read take little memory each, however many items there are to read.
func TestWatchersThatDoNotReadTakeLittleMemory(t *testing.T) {
	const watchers, owners, each = 50, 4000, 500 << 10
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		m := snapshot(hello("n1", 1), podVeth(2, "a", "192.0.2.1"), podVeth(3, "b", "192.0.2.2"))
		for i := range owners {
			m.Claims = append(m.Claims, kernelClaim(2, i), kernelClaim(3, i))
		}
		l.dial().send(m).sync()
		for what, watch := range map[string]func(context.Context) error{
			"owners": func(ctx context.Context) error {
				_, err := l.client.WatchOwners(ctx, &pb.WatchOwnersRequest{})
				return err
			},
			"conflicts": func(ctx context.Context) error {
				_, err := l.client.WatchConflicts(ctx, &pb.WatchConflictsRequest{})
				return err
			},
		} {
			ctx, cancel := context.WithCancel(l.ctx)
			before := liveHeap()
			for range watchers {
				if err := watch(ctx); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait() // everything that can be sent without a reading client has been sent
			took := (liveHeap() - before) / watchers
			t.Logf("a watcher of %s that does not read uses %d bytes", what, took)
			if took > each {
				t.Errorf("a watcher of %s that does not read uses %d bytes, want %d at most", what, took, each)
			}
			cancel()
			synctest.Wait()
		}
	})
}

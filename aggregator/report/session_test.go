package report

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A snapshot that never ends must not use up the memory, even if its contents do not count as
// records.
func TestSnapshotsAreLimited(t *testing.T) {
	r := newService(t).Session(nil)
	hello := &pb.Hello{Node: "n1", BootId: "boot", Netns: "4026531840", Epoch: 1}
	if err := r.Accept(&pb.ReportRequest{Sequence: 1, Hello: hello, SnapshotBegin: true}, 1); err != nil {
		t.Fatal(err)
	}
	m := &pb.ReportRequest{}
	m.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 3<<20)))
	var err error
	taken := 0
	for ; err == nil && taken < 200; taken++ {
		err = r.apply(m, 0)
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v after %d messages of 3 MiB, want ResourceExhausted", err, taken)
	}
}

func TestAnswersAreLimited(t *testing.T) {
	answer := func(entries, holders int) *pb.BeliefAnswer {
		a := &pb.BeliefAnswer{}
		for range entries {
			a.Beliefs = append(a.Beliefs, &pb.BeliefRecord{Address: make([]byte, 4), Holders: make([]*pb.BeliefRecord_Holder, holders)})
		}
		return a
	}
	for _, test := range []struct {
		answers []*pb.BeliefAnswer
		want    codes.Code
	}{
		{[]*pb.BeliefAnswer{answer(maxEntries, maxSenders)}, codes.OK},
		{[]*pb.BeliefAnswer{answer(maxEntries+1, 1)}, codes.InvalidArgument},
		{[]*pb.BeliefAnswer{answer(1, maxSenders+1)}, codes.InvalidArgument},
		{make([]*pb.BeliefAnswer, maxAnswers+1), codes.InvalidArgument},
	} {
		if got := status.Code(validate(&pb.ReportRequest{Answers: test.answers})); got != test.want {
			t.Errorf("%d answers: got %s, want %s", len(test.answers), got, test.want)
		}
	}
}

// One of thousands of agents is pinged less often, but is still disconnected soon after it stops
// answering.
func TestPingsOfManyAgentsAreBounded(t *testing.T) {
	for _, test := range []struct {
		agents int64
		pings  uint64
	}{{1, 20}, {750, 20}, {5000, 3}} {
		t.Run(strconv.FormatInt(test.agents, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				s.sessions.Add(test.agents - 1)
				ctx, end := context.WithCancel(t.Context())
				a := &agent{ctx: ctx, says: make(chan *pb.ReportRequest, 1)}
				a.says <- &pb.ReportRequest{Sequence: 1, Hello: &pb.Hello{Node: "n1", BootId: "boot", Netns: "4026531840", Epoch: 1}, SnapshotBegin: true, SnapshotEnd: true}
				ended := make(chan error, 1)
				go func() {
					ended <- s.Report(a)
					end()
				}()
				time.Sleep(59 * time.Second)
				synctest.Wait()
				if got := a.pings.Load(); got != test.pings {
					t.Errorf("got %d pings in a minute, want %d", got, test.pings)
				}
				a.mute.Store(true)
				for before := a.pings.Load(); a.pings.Load() == before; {
					time.Sleep(100 * time.Millisecond)
				}
				asked := time.Now()
				if err := <-ended; status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("got %v, want DeadlineExceeded", err)
				}
				if took := time.Since(asked); took > silentAfter+pingEvery {
					t.Errorf("it took %s to notice that the agent is silent", took)
				}
				synctest.Wait()
			})
		})
	}
}

// Several goroutines may call Ping at once, but only one ping is sent.
func TestAnUnansweredPingIsNotRepeated(t *testing.T) {
	r := newService(t).Session(nil)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() { r.Ping(1) })
	}
	group.Wait()
	if got := r.Take().GetPing(); got != 1 {
		t.Errorf("got ping %d, want 1", got)
	}
	r.pong(&pb.Pong{Id: 1}, 2)
	r.Ping(3)
	if got := r.Take().GetPing(); got != 2 {
		t.Errorf("got ping %d after the answer, want 2", got)
	}
}

// What comes with the answer to a ping may take long to apply. That says nothing about the clock of the agent's node.
func TestAnAnswerShowsTheClockWhenItWasReceived(t *testing.T) {
	s := newService(t)
	r := s.Session(nil)
	if err := r.Accept(&pb.ReportRequest{Sequence: 1, Hello: &pb.Hello{Node: "n1", BootId: "boot", Netns: "4026531840", Epoch: 1}, SnapshotBegin: true, SnapshotEnd: true}, 1); err != nil {
		t.Fatal(err)
	}
	const ahead = time.Hour
	asked := verdict.At(time.Now()).Add(-time.Minute)
	for _, took := range []time.Duration{2 * time.Second, time.Second} {
		r.Ping(asked)
		r.Take()
		r.pong(&pb.Pong{Id: r.last, SentAt: timestamppb.New(asked.Add(ahead + took/2).Time())}, asked.Add(took))
		if n := r.node.Rec; n.Skew != ahead || n.SkewWithin != took/2 || n.ClockSet != 0 {
			t.Errorf("got skew %s within %s, set at %d, want %s within %s and never set", n.Skew, n.SkewWithin, n.ClockSet, ahead, took/2)
		}
	}
}

// A session without anything to send has no sending goroutine. A new one is started when needed.
func TestASenderEndsWhenThereIsNothingToSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		a := &agent{ctx: ctx, says: make(chan *pb.ReportRequest, 1)}
		r := newService(t).Session(nil)
		r.stream = a
		for want := range uint64(3) {
			r.Ping(verdict.At(time.Now()))
			synctest.Wait()
			if got := a.pings.Load(); got != want+1 || r.sending {
				t.Errorf("got %d pings, sending %t, want %d and false", got, r.sending, want+1)
			}
			r.pong((<-a.says).GetPong(), verdict.At(time.Now()))
		}
		end()
	})
}

// An agent whose snapshot waits for memory is not silent, however long it waits. If it were
// disconnected, it would begin again and delay others even more.
func TestWaitingSnapshotIsNotLate(t *testing.T) {
	for _, received := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			a := &agent{ctx: ctx, says: make(chan *pb.ReportRequest, 1), waits: 10 * snapshotWithin, unread: !received}
			a.says <- &pb.ReportRequest{Sequence: 1, Hello: &pb.Hello{Node: "n1", BootId: "boot", Netns: "4026531840", Epoch: 1}, SnapshotBegin: true, SnapshotEnd: true}
			s := newService(t)
			ended := make(chan error, 1)
			go func() { ended <- s.Report(a) }()
			time.Sleep(11 * snapshotWithin)
			synctest.Wait()
			select {
			case err := <-ended:
				if received || status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("the message is received %t: the stream ended with %v", received, err)
				}
			default:
				if !received {
					t.Error("nothing is received: the stream goes on")
				}
			}
			end()
			synctest.Wait()
		})
	}
}

// agent is the stream of an agent that may or may not answer pings.
type agent struct {
	grpc.ServerStream
	ctx   context.Context
	says  chan *pb.ReportRequest
	mute  atomic.Bool
	pings atomic.Uint64
	// waits is how long the first message waits for memory. unread is set if it arrives completely
	// only after that.
	waits  time.Duration
	unread bool
}

func (a *agent) Context() context.Context { return a.ctx }

func (a *agent) Recv() (*pb.ReportRequest, error) { return nil, errors.New("use RecvMsg") }

func (a *agent) RecvMsg(m any) error {
	select {
	case message := <-a.says:
		if !a.unread {
			m.(*arrival).received()
		}
		time.Sleep(a.waits)
		a.waits = 0
		proto.Merge(&m.(*arrival).ReportRequest, message)
		return nil
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
}

func (a *agent) Send(m *pb.ReportResponse) error {
	if m.GetPing() != 0 {
		a.pings.Add(1)
		if !a.mute.Load() {
			a.says <- &pb.ReportRequest{Sequence: 1, Pong: &pb.Pong{Id: m.GetPing()}}
		}
	}
	return nil
}

// newService returns a service whose facts are not judged.
func newService(t *testing.T) *Service {
	t.Helper()
	f := facts.New(facts.Config{
		Policy: &verdict.Policy{Cluster: "c"}, Log: slog.New(slog.DiscardHandler), Clock: func() verdict.Stamp { return verdict.At(time.Now()) },
		Changed: func(*facts.Changes) {}, OwnersWatched: func() bool { return false }, Disputed: func(func(index.Address) bool) {}, Queues: 1,
	})
	s, err := New(Config{
		Facts: f, Log: f.Log, Metrics: prometheus.NewRegistry(), Stopped: make(chan struct{}), Untidy: func() {},
		Judge: func(*facts.Batch) {}, Applied: func(*facts.Node) {}, Shared: func(*facts.Node) bool { return false },
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

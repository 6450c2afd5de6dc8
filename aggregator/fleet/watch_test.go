package fleet

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// incidentStream is the stream of a subscriber.
type incidentStream struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan *pb.WatchIncidentsResponse
}

func (s incidentStream) Context() context.Context { return s.ctx }

func (s incidentStream) Send(m *pb.WatchIncidentsResponse) error {
	s.sent <- m
	return nil
}

func TestAFleetWatchesIncidents(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	j := journal.New(journal.Config{Retention: time.Hour, Size: 1 << 30, Clock: time.Now, Log: slog.New(slog.DiscardHandler)})
	stopped, served := make(chan struct{}), make(chan struct{})
	go func() { j.Run(ctx); close(stopped) }()
	defer func() { stop(); <-stopped; <-served }()
	<-j.Opened()
	f := &Fleet{Config: Config{Clock: time.Now}, clusters: map[string]*cluster{"west": {Records: api.Records{Name: "west", Journal: j}, clock: time.Now}}}
	kinds := []pb.Event_Kind{pb.Event_NODE, pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range kinds {
		feed := j.Feed(kind)
		must(feed.Begin())
		if kind == pb.Event_FINDING {
			must(feed.Present(&journal.Change{At: time.Now(), Type: pb.Watch_ADDED, ID: "f1", Finding: &pb.Finding{
				Id: "f1", Kind: "leaked", Severity: pb.Finding_WARNING, Address: "10.0.0.7", Nodes: []string{"n1"}, Incident: "1nc1", Summary: "It leaks.",
			}}))
		}
		must(feed.Complete())
	}
	wait.Until(t, "the state", func() bool { return !j.Fresh() })
	s := &Service{Fleet: f, Stopped: make(chan struct{})}
	stream := incidentStream{ctx: ctx, sent: make(chan *pb.WatchIncidentsResponse, 100)}
	go func() {
		defer close(served)
		if err := s.WatchIncidents(&pb.WatchIncidentsRequest{About: "n1"}, stream); ctx.Err() == nil {
			t.Errorf("got %v while the subscriber waits", err)
		}
	}()
	next := func(want pb.Watch_Type) {
		t.Helper()
		wait.Until(t, want.String(), func() bool {
			select {
			case m := <-stream.sent:
				return m.GetType() == want && m.GetIncident().GetId() == "1nc1" && m.GetIncident().GetCluster() == "west"
			default:
				return false
			}
		})
	}
	next(pb.Watch_ADDED)
	must(j.Feed(pb.Event_FINDING).Changed(&journal.Change{At: time.Now(), Type: pb.Watch_REMOVED, ID: "f1", Finding: &pb.Finding{Id: "f1", Kind: "leaked", Address: "10.0.0.7"}}))
	for _, kind := range kinds {
		must(j.Feed(kind).Idle())
	}
	next(pb.Watch_REMOVED)
}

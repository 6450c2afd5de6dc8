// Package sim has agents of nodes that do not exist: they speak the Report
// protocol over real connections, and what they report is made up. With them one
// machine is a cluster, for the benchmarks and for tests.
package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Waits between two streams, as of the real agent.
const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 3 * time.Second
)

// agent is one agent.
type agent struct {
	hello *pb.Hello
	// table is all that it knows, which never changes.
	table *pb.ReportRequest
	made  time.Time
	// news are changes that are told once, and not kept.
	news chan *pb.ReportRequest
}

// run reports until ctx ends.
func (a *agent) run(ctx context.Context, conn grpc.ClientConnInterface) {
	backoff := firstBackoff
	for {
		begin := time.Now()
		_ = a.stream(ctx, pb.NewReportServiceClient(conn)) // whatever it was: again
		if time.Since(begin) > lastBackoff {
			backoff = firstBackoff
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

// stream is one stream, from hello to its end.
func (a *agent) stream(ctx context.Context, client pb.ReportServiceClient) error {
	g, ctx := errgroup.WithContext(ctx)
	stream, err := client.Report(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	asked := make(chan *pb.ReportResponse)
	g.Go(func() error {
		for {
			m, err := stream.Recv()
			if err != nil {
				return err
			}
			select {
			case asked <- m:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	g.Go(func() error {
		first := a.snapshot()
		first.Sequence, first.Hello = 1, a.hello
		if err := stream.Send(first); err != nil {
			return err
		}
		for sequence := uint64(2); ; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case m := <-asked:
				answer := a.answer(m)
				if answer == nil {
					continue
				}
				answer.Sequence = sequence
				if err := stream.Send(answer); err != nil {
					return err
				}
				sequence++
			case m := <-a.news:
				m.Sequence = sequence
				if err := stream.Send(m); err != nil {
					return err
				}
				sequence++
			}
		}
	})
	return g.Wait()
}

// answer is what the aggregator asked for; nil for nothing.
func (a *agent) answer(m *pb.ReportResponse) *pb.ReportRequest {
	answer := &pb.ReportRequest{}
	if m.GetResync() {
		answer = a.snapshot()
	}
	if m.GetCheck() != nil {
		answer.Checked = []uint64{m.GetCheck().GetId()}
	}
	if m.GetPing() != 0 {
		answer.Pong = &pb.Pong{Id: m.GetPing(), SentAt: timestamppb.Now()}
	}
	if !m.GetResync() && m.GetCheck() == nil && m.GetPing() == 0 {
		return nil
	}
	return answer
}

// snapshot is the table in one message, as a real agent sends one of this size.
func (a *agent) snapshot() *pb.ReportRequest {
	for _, c := range a.table.GetClaims() {
		c.Age = durationpb.New(time.Since(a.made))
	}
	return &pb.ReportRequest{
		SnapshotBegin: true, SnapshotEnd: true,
		Namespaces: a.table.GetNamespaces(), Links: a.table.GetLinks(), Interfaces: a.table.GetInterfaces(),
		Claims: a.table.GetClaims(), Status: a.table.GetStatus(),
		Pools: a.table.GetPools(), Allocations: a.table.GetAllocations(),
	}
}

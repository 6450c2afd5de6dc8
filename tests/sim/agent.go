// Package sim simulates the agents of nodes that do not exist: they speak the Report protocol over
// real connections and report invented data. With them, benchmarks and tests can simulate a cluster
// on one machine.
package sim

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Delays between two streams, as in the real agent.
const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 3 * time.Second
)

// agent is a simulated agent.
type agent struct {
	hello *pb.Hello
	made  time.Time
	// table is the state that the agent reports. It never changes, and is nil once it has been
	// encoded as snapshot.
	table    *pb.ReportRequest
	snapshot []byte
	// news are changes that are reported once and not kept.
	news chan message
}

// encode encodes the table as a snapshot in one message, as a real agent sends a table of
// this size, and releases the table.
func (a *agent) encode() (err error) {
	a.table.SnapshotBegin, a.table.SnapshotEnd = true, true
	a.snapshot, err = proto.Marshal(a.table)
	a.table = nil
	return err
}

// run reports until ctx ends.
func (a *agent) run(ctx context.Context, conn grpc.ClientConnInterface) {
	backoff := firstBackoff
	for {
		begin := time.Now()
		_ = a.stream(ctx, pb.NewReportServiceClient(conn)) // reconnect after every error
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

// stream runs one stream, from hello to its end.
func (a *agent) stream(ctx context.Context, client pb.ReportServiceClient) error {
	g, ctx := errgroup.WithContext(ctx)
	stream, err := a.report(ctx, client)
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
		for sequence := uint64(2); ; {
			var m message
			select {
			case <-ctx.Done():
				return ctx.Err()
			case r := <-asked:
				answer, ok := a.answer(r)
				if !ok {
					continue
				}
				m = answer
			case m = <-a.news:
			}
			m.head.Sequence = sequence
			if err := stream.SendMsg(m); err != nil {
				return err
			}
			sequence++
		}
	})
	return g.Wait()
}

// report opens a stream and sends the snapshot.
func (a *agent) report(ctx context.Context, client pb.ReportServiceClient) (pb.ReportService_ReportClient, error) {
	if err := opens.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	stream, err := client.Report(ctx, grpc.WaitForReady(true), encoded)
	opens.Release(1)
	if err != nil {
		return nil, err
	}
	return stream, stream.SendMsg(message{&pb.ReportRequest{Sequence: 1, Hello: a.hello}, a.snapshot})
}

// deliver reports the snapshot and ends the stream when the aggregator has acknowledged it.
func (a *agent) deliver(ctx context.Context, conn grpc.ClientConnInterface) error {
	stream, err := a.report(ctx, pb.NewReportServiceClient(conn))
	if err != nil {
		return err
	}
	for acknowledged := false; ; {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && acknowledged:
			return nil
		case err != nil:
			return err
		case m.GetAcknowledged() > 0 && !acknowledged:
			acknowledged = true
			if err := stream.CloseSend(); err != nil {
				return err
			}
		}
	}
}

// answer returns the answer to a request of the aggregator, if one is needed.
func (a *agent) answer(r *pb.ReportResponse) (m message, ok bool) {
	m.head = &pb.ReportRequest{}
	if r.GetResync() {
		m.records = a.snapshot
	}
	if r.GetCheck() != nil {
		m.head.Checked = []uint64{r.GetCheck().GetId()}
	}
	if r.GetPing() != 0 {
		m.head.Pong = &pb.Pong{Id: r.GetPing(), SentAt: timestamppb.Now()}
	}
	return m, r.GetResync() || r.GetCheck() != nil || r.GetPing() != 0
}

package sim

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// sent counts the bytes of the messages that were sent over connections, with their gRPC headers.
type sent struct{ bytes atomic.Int64 }

// TagRPC implements stats.Handler.
func (*sent) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (s *sent) HandleRPC(_ context.Context, m stats.RPCStats) {
	if out, is := m.(*stats.OutPayload); is {
		s.bytes.Add(int64(out.WireLength))
	}
}

// TagConn implements stats.Handler.
func (*sent) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*sent) HandleConn(context.Context, stats.ConnStats) {}

// Sent returns the number of bytes that the agents that Connect has started have sent, without the overhead of
// HTTP/2 and TCP.
func (f *Fleet) Sent() int64 { return f.sent.bytes.Load() }

package api

import (
	"context"
	"io"
	"path"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ipwitness/ipwitness/aggregator/access"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// direct is the connection through which REST calls the service. It calls the methods themselves, so
// that messages are neither encoded nor copied between the two. The guard checks each call.
type direct struct {
	service pb.WitnessServiceServer
	guard   *access.Guard
}

// Invoke implements grpc.ClientConnInterface.
func (d direct) Invoke(ctx context.Context, method string, q, reply any, _ ...grpc.CallOption) error {
	ctx, end, err := d.guard.EnterREST(ctx, method)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, end) // like that of a request: the response stays in memory until then
	methods := pb.WitnessService_ServiceDesc.Methods
	i := slices.IndexFunc(methods, func(m grpc.MethodDesc) bool { return m.MethodName == path.Base(method) })
	response, err := methods[i].Handler(d.service, ctx, func(into any) error { return share(into, q) }, nil)
	if err != nil {
		return err
	}
	return share(reply, response)
}

// share gives a message the fields of another one of its type.
func share(to, from any) error {
	into := to.(proto.Message).ProtoReflect()
	from.(proto.Message).ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		into.Set(field, v)
		return true
	})
	return nil
}

// NewStream implements grpc.ClientConnInterface.
func (d direct) NewStream(ctx context.Context, stream *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, end, err := d.guard.EnterREST(ctx, method)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, end)
	lines, ok := ctx.Value(linesKey{}).(*linesWriter)
	if !ok {
		return nil, status.Errorf(codes.Internal, "%s is not called by a request", method)
	}
	return served{serve: func(q any) error { return stream.Handler(d.service, lineServer{ctx: ctx, lines: lines, q: q}) }, lines: lines}, nil
}

// served is the gateway's end of a stream. It has only the methods that the gateway calls.
type served struct {
	grpc.ClientStream
	serve func(q any) error
	lines *linesWriter
}

// SendMsg serves the stream that a request asks for to its end. The service writes the messages itself, so
// that no other goroutine has to wake up for each message, and the gateway receives none. Only an error
// before the first message is left to the gateway.
func (s served) SendMsg(q any) error {
	err := s.serve(q)
	if s.lines.end(err) { // the stream had begun
		return nil
	}
	return err
}

// CloseSend implements grpc.ClientStream.
func (served) CloseSend() error { return nil }

// Header implements grpc.ClientStream.
func (served) Header() (metadata.MD, error) { return nil, nil }

// RecvMsg implements grpc.ClientStream.
func (served) RecvMsg(any) error { return io.EOF }

// lineServer is the service's end of a stream. It has only the methods that a service calls.
type lineServer struct {
	grpc.ServerStream
	ctx   context.Context // of the call
	lines *linesWriter
	q     any
}

// Context implements grpc.ServerStream.
func (s lineServer) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s lineServer) RecvMsg(q any) error { return share(q, s.q) }

// SendMsg implements grpc.ServerStream. The line is written together with later ones, or when the service
// has nothing more to send for now.
func (s lineServer) SendMsg(m any) error { return s.lines.send(m.(proto.Message)) }

package api

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/access"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// direct is the client of the API that serves REST. It calls the service without a connection, so
// that messages are neither encoded nor copied between the two. The guard checks each call.
type direct struct {
	service pb.WitnessServiceServer
	guard   *access.Guard
}

// call makes a unary call of d.
func call[Q, R any](ctx context.Context, d direct, method string, q *Q, do func(context.Context, *Q) (*R, error)) (*R, error) {
	ctx, end, err := d.guard.EnterREST(ctx, method)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, end) // like that of a request: the response stays in memory until then
	return do(ctx, q)
}

// follow serves a stream of d to its end. The service writes the messages itself, so that no other
// goroutine has to wake up for each message, and the gateway receives none. Only an error before the
// first message is left to the gateway.
func follow[Q, M any](ctx context.Context, d direct, method string, q *Q, do func(*Q, grpc.ServerStreamingServer[M]) error) (grpc.ServerStreamingClient[M], error) {
	ctx, end, err := d.guard.EnterREST(ctx, method)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, end)
	lines, ok := ctx.Value(linesKey{}).(*linesWriter)
	if !ok {
		return nil, status.Errorf(codes.Internal, "%s is not called by a request", method)
	}
	err = do(q, lineServer[M]{ctx: ctx, lines: lines})
	if begun := lines.end(err); !begun && err != nil {
		return nil, err
	}
	return served[M]{}, nil
}

// served is the gateway's end of a stream that has ended. It has only the methods that the gateway calls.
type served[M any] struct{ grpc.ClientStream }

// Header implements grpc.ClientStream.
func (served[M]) Header() (metadata.MD, error) { return nil, nil }

// Recv implements grpc.ServerStreamingClient.
func (served[M]) Recv() (*M, error) { return nil, io.EOF }

// The methods of pb.WitnessServiceClient follow.

func (d direct) ListOwners(ctx context.Context, q *pb.ListOwnersRequest, _ ...grpc.CallOption) (*pb.ListOwnersResponse, error) {
	return call(ctx, d, pb.WitnessService_ListOwners_FullMethodName, q, d.service.ListOwners)
}

func (d direct) ListConflicts(ctx context.Context, q *pb.ListConflictsRequest, _ ...grpc.CallOption) (*pb.ListConflictsResponse, error) {
	return call(ctx, d, pb.WitnessService_ListConflicts_FullMethodName, q, d.service.ListConflicts)
}

func (d direct) GetConflict(ctx context.Context, q *pb.GetConflictRequest, _ ...grpc.CallOption) (*pb.GetConflictResponse, error) {
	return call(ctx, d, pb.WitnessService_GetConflict_FullMethodName, q, d.service.GetConflict)
}

func (d direct) AcknowledgeConflict(ctx context.Context, q *pb.AcknowledgeConflictRequest, _ ...grpc.CallOption) (*pb.AcknowledgeConflictResponse, error) {
	return call(ctx, d, pb.WitnessService_AcknowledgeConflict_FullMethodName, q, d.service.AcknowledgeConflict)
}

func (d direct) Explain(ctx context.Context, q *pb.ExplainRequest, _ ...grpc.CallOption) (*pb.ExplainResponse, error) {
	return call(ctx, d, pb.WitnessService_Explain_FullMethodName, q, d.service.Explain)
}

func (d direct) ListFindings(ctx context.Context, q *pb.ListFindingsRequest, _ ...grpc.CallOption) (*pb.ListFindingsResponse, error) {
	return call(ctx, d, pb.WitnessService_ListFindings_FullMethodName, q, d.service.ListFindings)
}

func (d direct) ListPools(ctx context.Context, q *pb.ListPoolsRequest, _ ...grpc.CallOption) (*pb.ListPoolsResponse, error) {
	return call(ctx, d, pb.WitnessService_ListPools_FullMethodName, q, d.service.ListPools)
}

func (d direct) ListClusters(ctx context.Context, q *pb.ListClustersRequest, _ ...grpc.CallOption) (*pb.ListClustersResponse, error) {
	return call(ctx, d, pb.WitnessService_ListClusters_FullMethodName, q, d.service.ListClusters)
}

func (d direct) ListEvents(ctx context.Context, q *pb.ListEventsRequest, _ ...grpc.CallOption) (*pb.ListEventsResponse, error) {
	return call(ctx, d, pb.WitnessService_ListEvents_FullMethodName, q, d.service.ListEvents)
}

func (d direct) ListNodes(ctx context.Context, q *pb.ListNodesRequest, _ ...grpc.CallOption) (*pb.ListNodesResponse, error) {
	return call(ctx, d, pb.WitnessService_ListNodes_FullMethodName, q, d.service.ListNodes)
}

func (d direct) GetFinding(ctx context.Context, q *pb.GetFindingRequest, _ ...grpc.CallOption) (*pb.GetFindingResponse, error) {
	return call(ctx, d, pb.WitnessService_GetFinding_FullMethodName, q, d.service.GetFinding)
}

func (d direct) GetNode(ctx context.Context, q *pb.GetNodeRequest, _ ...grpc.CallOption) (*pb.GetNodeResponse, error) {
	return call(ctx, d, pb.WitnessService_GetNode_FullMethodName, q, d.service.GetNode)
}

func (d direct) WatchNodes(ctx context.Context, q *pb.WatchNodesRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.WatchNodesResponse], error) {
	return follow(ctx, d, pb.WitnessService_WatchNodes_FullMethodName, q, d.service.WatchNodes)
}

func (d direct) Backup(ctx context.Context, q *pb.BackupRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.BackupResponse], error) {
	return follow(ctx, d, pb.WitnessService_Backup_FullMethodName, q, d.service.Backup)
}

func (d direct) WatchOwners(ctx context.Context, q *pb.WatchOwnersRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.WatchOwnersResponse], error) {
	return follow(ctx, d, pb.WitnessService_WatchOwners_FullMethodName, q, d.service.WatchOwners)
}

func (d direct) WatchConflicts(ctx context.Context, q *pb.WatchConflictsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.WatchConflictsResponse], error) {
	return follow(ctx, d, pb.WitnessService_WatchConflicts_FullMethodName, q, d.service.WatchConflicts)
}

func (d direct) WatchFindings(ctx context.Context, q *pb.WatchFindingsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.WatchFindingsResponse], error) {
	return follow(ctx, d, pb.WitnessService_WatchFindings_FullMethodName, q, d.service.WatchFindings)
}

func (d direct) WatchEvents(ctx context.Context, q *pb.WatchEventsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.WatchEventsResponse], error) {
	return follow(ctx, d, pb.WitnessService_WatchEvents_FullMethodName, q, d.service.WatchEvents)
}

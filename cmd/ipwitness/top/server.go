package top

import (
	"context"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Server is the aggregator that is shown. Its functions are called from several goroutines.
type Server struct {
	// Name is the URL of the server, for the title.
	Name string
	// WatchConflicts and WatchFindings follow a watch until ctx ends. They reconnect when the watch is
	// disconnected, and return an error only if the server rejects the watch.
	WatchConflicts func(ctx context.Context, to Stream[*pb.WatchConflictsResponse]) error
	WatchFindings  func(ctx context.Context, to Stream[*pb.WatchFindingsResponse]) error
	// Nodes lists the nodes.
	Nodes func(ctx context.Context) (*pb.ListNodesResponse, error)
	// CheckFilter returns an error if Owners does not accept a filter.
	CheckFilter func(filter string) error
	// Owners returns one page of the owners that match a filter; the token of the first page is empty.
	Owners func(ctx context.Context, filter, token string) (*pb.ListOwnersResponse, error)
	// Conflict, Finding and Explain return the details of one item.
	Conflict func(ctx context.Context, id string) (*pb.Conflict, error)
	Finding  func(ctx context.Context, id string) (*pb.Finding, error)
	Explain  func(ctx context.Context, address string) (*pb.ExplainResponse, error)
}

// A Stream is what a watch tells its receiver.
type Stream[E any] struct {
	// Connected is called when the server begins to send. whole reports whether it sends the whole
	// state, or what has changed since the last event.
	Connected func(whole bool)
	// Disconnected is called with the reason.
	Disconnected func(error)
	Event        func(E)
}

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// firstLook is how often the agent's start is looked at until it stands still,
	// and firstLooks how many times at most.
	firstLook  = 100 * time.Millisecond
	firstLooks = 30
	// tellEvery is how often bursts are summed up.
	tellEvery = time.Second / 4
)

// tell gives the live account until ctx ends.
func (r *runCommand) tell(ctx context.Context, s *server, b build) error {
	client := pb.NewWitnessServiceClient(s.conn)
	live := r.account
	node, err := r.started(ctx, client)
	if err != nil {
		return ended(ctx, err)
	}
	live.Start(b.Version, show.Watching{
		Node: node,
		GRPC: reachable(s.listeners.grpc.Addr()),
		HTTP: reachable(s.listeners.http.Addr()),
	})

	g, telling := errgroup.WithContext(ctx)
	owners := make(chan *pb.WatchOwnersResponse)
	conflicts := make(chan *pb.WatchConflictsResponse)
	g.Go(func() error {
		return passOn(telling, owners, func(token string) (grpc.ServerStreamingClient[pb.WatchOwnersResponse], error) {
			return client.WatchOwners(telling, &pb.WatchOwnersRequest{ResumeToken: token})
		})
	})
	g.Go(func() error {
		return passOn(telling, conflicts, func(token string) (grpc.ServerStreamingClient[pb.WatchConflictsResponse], error) {
			return client.WatchConflicts(telling, &pb.WatchConflictsRequest{ResumeToken: token})
		})
	})
	g.Go(func() error {
		tick := time.NewTicker(tellEvery)
		defer tick.Stop()
		var begun <-chan *pb.WatchConflictsResponse
		for {
			select {
			case <-telling.Done():
				return nil
			case e := <-owners:
				live.Owner(e, r.sys.now())
				if e.GetType() == pb.Watch_BOOKMARK {
					begun = conflicts // who is there comes first
				}
			case e := <-begun:
				live.Conflict(e, r.sys.now())
			case <-tick.C:
				live.Tick(r.sys.now())
			}
			if err := live.Err(); err != nil {
				return fmt.Errorf("tell what happens: %w", err)
			}
		}
	})
	return ended(ctx, g.Wait())
}

// started waits until the agent has reported and stands still, so that the
// account begins with what there was and not with a flood.
func (r *runCommand) started(ctx context.Context, client pb.WitnessServiceClient) (*pb.Node, error) {
	tick := time.NewTicker(firstLook)
	defer tick.Stop()
	before := &pb.Node{}
	for range firstLooks {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		list, err := client.ListNodes(ctx, &pb.ListNodesRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return nil, err
		}
		for _, n := range list.GetNodes() {
			if n.GetNamespaces() > 0 && n.GetPorts() == before.GetPorts() &&
				n.GetNamespaces() == before.GetNamespaces() && n.GetClaims() == before.GetClaims() {
				return n, nil
			}
			before = n
		}
	}
	if before.GetName() == "" {
		before.Name = r.agent.Node // nothing was heard, but it may yet come
	}
	return before, nil
}

// reachable gives the address of a listener as somebody on this host asks it.
func reachable(a net.Addr) string {
	at, err := netip.ParseAddrPort(a.String())
	if err == nil && at.Addr().IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", at.Port())
	}
	return a.String()
}

// color tells whether the terminal wants colours (https://no-color.org).
func (r *runCommand) color() bool {
	return r.sys.terminal && r.sys.getenv("NO_COLOR") == "" && r.sys.getenv("TERM") != "dumb"
}

// passOn sends the events of a watch to a channel until the watch ends. One that
// was cut off, because the terminal stood still, goes on where it was.
func passOn[T any](ctx context.Context, to chan<- *T, watch func(token string) (grpc.ServerStreamingClient[T], error)) error {
	events, err := watch("")
	for {
		var e *T
		if err == nil {
			e, err = events.Recv()
		}
		if token := api.ResumeToken(err); token != "" {
			events, err = watch(token)
			continue
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case to <- e:
		}
	}
}

// ended gives nil for an error that only says that ctx has ended.
func ended(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return nil
	}
	return err
}

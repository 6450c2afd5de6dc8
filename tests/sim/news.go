package sim

import (
	"context"
	"net/netip"

	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Address returns the address of a pod.
func (f *Fleet) Address(node, pod int) string { return podAddress(f.size.First+node, pod).String() }

// Assign makes the agent of a node report that its first pod has additional addresses, or,
// if gone is set, that the pod has lost them.
func (f *Fleet) Assign(ctx context.Context, node int, gone bool, addrs ...netip.Addr) error {
	records, err := f.Assignment(node, gone, addrs...)
	if err != nil {
		return err
	}
	return f.Send(ctx, node, records)
}

// Assignment returns the encoded records of Assign. Send may send them more than once.
func (f *Fleet) Assignment(node int, gone bool, addrs ...netip.Addr) ([]byte, error) {
	a := &agent{made: f.all[node].made, table: &pb.ReportRequest{}}
	for _, addr := range addrs {
		a.assigned(ownNamespace+1, inside, addr, uint32(addr.BitLen()))
	}
	for _, c := range a.table.Claims {
		c.Gone = gone
	}
	return proto.Marshal(a.table)
}

// Send makes the agent of a node report encoded records. It returns when the agent has
// accepted them: a blocked stream blocks Send.
func (f *Fleet) Send(ctx context.Context, node int, records []byte) error {
	return f.news(ctx, node, message{&pb.ReportRequest{}, records})
}

func (f *Fleet) report(ctx context.Context, node int, m *pb.ReportRequest) error {
	return f.news(ctx, node, message{head: m})
}

func (f *Fleet) news(ctx context.Context, node int, m message) error {
	select {
	case f.all[node].news <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

package sim

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	hostLocal = "host-local"
	directory = "/var/lib/cni/networks/cbr0"
	network   = "cbr0"
)

// allocate adds a host-local that has allocated the addresses of all pods.
func (a *agent) allocate(node, pods int) {
	a.table.Pools = []*pb.PoolRecord{pool(node, pb.Pool_KNOWN)}
	for pod := range pods {
		a.table.Allocations = append(a.table.Allocations, a.allocation(node, pod))
	}
	for _, c := range a.table.Claims {
		if c.GetKind() == pb.Evidence_ASSIGNED && c.GetNamespace() != ownNamespace {
			c.Network = network
		}
	}
}

func pool(node int, state pb.Pool_State) *pb.PoolRecord {
	return &pb.PoolRecord{
		Name: directory, Ipam: hostLocal, Network: network, State: state, Plugin: "ptp", Routed: true,
		Config:   "/etc/cni/net.d/10-cbr0.conflist",
		Ranges:   []*pb.AddressRange{{First: podAddress(node, -1).AsSlice(), Last: podAddress(node, perNode-4).AsSlice()}},
		Gateways: [][]byte{podAddress(node, -1).AsSlice()},
	}
}

func (a *agent) allocation(node, pod int) *pb.AllocationRecord {
	return &pb.AllocationRecord{
		Ipam: hostLocal, Pool: directory, Address: podAddress(node, pod).AsSlice(),
		ContainerId: fmt.Sprintf("%064x", node<<16|pod), Interface: "eth0", AllocatedAt: timestamppb.New(a.made),
	}
}

// Free removes the allocation of one pod from a node's host-local.
func (f *Fleet) Free(ctx context.Context, node, pod int) error {
	al := f.all[node].allocation(f.size.First+node, pod)
	al.Gone = true
	return f.report(ctx, node, &pb.ReportRequest{Allocations: []*pb.AllocationRecord{al}})
}

// Wipe removes all allocations from a node's host-local.
func (f *Fleet) Wipe(ctx context.Context, node int) error {
	lost := pool(f.size.First+node, pb.Pool_MISSING)
	lost.LostAt, lost.Lost = timestamppb.Now(), uint32(f.size.Owners-1)
	m := &pb.ReportRequest{Pools: []*pb.PoolRecord{lost}}
	for pod := range f.size.Owners - 1 {
		al := f.all[node].allocation(f.size.First+node, pod)
		al.Gone = true
		m.Allocations = append(m.Allocations, al)
	}
	return f.report(ctx, node, m)
}

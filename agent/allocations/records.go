package allocations

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/ipam"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// poolRecord returns the record of a pool.
func poolRecord(p *ipam.FilePool) *ipwitnessv1.PoolRecord {
	r := &ipwitnessv1.PoolRecord{
		Name: p.Name, Ipam: p.IPAM, Network: p.Network,
		State: ipwitnessv1.Pool_State(p.State), Problem: table.Printable(p.Problem), Lost: uint32(p.Lost),
		Plugin: p.Plugin, Device: p.Device, Routed: p.Routed, Config: table.Printable(p.Config),
	}
	if !p.LostAt.IsZero() {
		r.LostAt = timestamppb.New(p.LostAt)
	}
	for _, g := range p.Gateways {
		r.Gateways = append(r.Gateways, g.AsSlice())
	}
	for _, a := range p.Ranges {
		r.Ranges = append(r.Ranges, &ipwitnessv1.AddressRange{First: a.First.AsSlice(), Last: a.Last.AsSlice()})
	}
	return r
}

// allocationRecord returns the record of an allocation. It omits texts that are too long, because
// an aggregator would reject the whole message.
func allocationRecord(pool table.PoolKey, addr netip.Addr, a *ipam.FileAllocation) *ipwitnessv1.AllocationRecord {
	r := &ipwitnessv1.AllocationRecord{
		Ipam: pool.IPAM, Pool: pool.Name, Address: addr.AsSlice(),
		ContainerId: table.Printable(a.ContainerID), Interface: table.Printable(a.Interface), AllocatedAt: timestamppb.New(a.AllocatedAt),
		Namespace: table.Printable(a.Namespace), Pod: table.Printable(a.Pod), Hostname: table.Printable(a.Hostname),
	}
	if mac, err := net.ParseMAC(a.MAC); err == nil {
		r.Mac = mac
	}
	for _, text := range []*string{&r.ContainerId, &r.Namespace, &r.Pod, &r.Hostname} {
		if len(*text) > table.MaxLength {
			*text = ""
		}
	}
	if len(r.Interface) >= unix.IFNAMSIZ {
		r.Interface = ""
	}
	return r
}

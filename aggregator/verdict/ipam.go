package verdict

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
)

// IPAM records are never evidence of who holds an address. The audit compares them with what
// kernels have, and they help to find the cause of a conflict.

// A Pool is the set of addresses that one IPAM allocates for one network, as the aggregator knows
// it. Its Key is its identity.
type Pool struct {
	ipam.Pool
	// Node is the node that the pool belongs to; nil for a pool of the whole cluster.
	Node *Node
	Loss
}

// Loss is when a pool lost all of its allocations at once.
type Loss struct {
	// LostAt is the time of the loss by the clock of the node; 0 for never. Lost is the number of
	// allocations.
	LostAt Stamp
	Lost   uint32
	// LostHeard is when the aggregator learned of the loss.
	LostHeard Stamp
}

// Allocation is the record that an IPAM has of one address. It is immutable.
type Allocation struct {
	Pool *Pool
	ipam.Allocation
	// AllocatedAt is when the allocation was made, by the clock of the writer; 0 if the IPAM does
	// not record it.
	AllocatedAt Stamp
	// KeptUntil is when a DHCP server stops to keep the address back, because a client or the server itself found it in
	// use, by the clock of the writer; 0 for other allocations.
	KeptUntil Stamp
	// Expires is when the lease of a DHCP client ends, unless it renews it, by the clock of the server; 0 for never, and
	// for other allocations.
	Expires Stamp
	// Heard is when the aggregator learned of the allocation.
	Heard Stamp
}

// Past is an earlier state of IPAM's records of an address. It is kept while the owner that it is
// about lives, and helps to find the cause of a conflict.
type Past struct {
	// Owner is the ID of the owner.
	Owner string
	// Kind is the finding of that time: FindingInUseUnallocated or FindingBookedElsewhere. For an owner to
	// which a controller assigned the address, it is FindingVIPHeldElsewhere.
	Kind string
	// Allocation is the allocation of that time: one for another owner, or the owner's own
	// allocation before it vanished; nil if there was none.
	Allocation *Allocation
	// Ended is when the owner's own allocation ended, a DHCP lease that its client did not renew, by the clock of the
	// server; 0 for allocations that vanished otherwise.
	Ended Stamp
	// Since is when that state began, as far as it is known; for FindingVIPHeldElsewhere, the last time.
	Since Stamp
}

// Alternates reports whether a controller has assigned an address to several owners by turns since a time.
func Alternates(past []Past, since Stamp) bool {
	n := 0 // note keeps one for each owner
	for _, p := range past {
		if p.Kind == FindingVIPHeldElsewhere && p.Since >= since {
			n++
		}
	}
	return n > 1
}

// A Subnet is an address of a node itself, with its prefix.
type Subnet struct {
	Prefix    netip.Prefix
	Interface *Interface
	// LAN is set if the interface is a bridge with a port that leads out of the node. Other nodes
	// may then have addresses of the prefix.
	LAN bool
	// Leased is set if a DHCP server has leased the address to the MAC of the interface.
	Leased bool
}

// Inside reports whether the subnet is that of a bridge or of one end of a veth that leads to nothing outside of the node.
func (s *Subnet) Inside() bool {
	l := s.Interface.Link
	return !s.LAN && !s.Interface.Uplink && l != nil && l.Domain == nil && (l.Kind == Bridge && s.Interface.isBridge() || l.Kind == PointToPoint)
}

// Outside reports whether the subnet is that of a LAN.
func (s *Subnet) Outside() bool { return (s.LAN || s.Interface.Uplink) && s.Interface.Link != nil }

// MadeFor reports whether the CNI plugin bridge made the interface for a pool of its node, and makes it again after it
// was deleted. The device of another plugin belongs to the node, and so does a bridge that leads out of the node.
func (s *Subnet) MadeFor(p *Pool) bool {
	i := s.Interface
	return p.Plugin == "bridge" && p.Device == i.Name && i.isBridge() && !s.LAN && (i.Link == nil || i.Link.Domain == nil)
}

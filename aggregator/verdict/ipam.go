package verdict

import (
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// IPAM records are never evidence of who holds an address. The audit compares them with what
// kernels have, and they help to find the cause of a conflict.

// The supported IPAMs.
const (
	HostLocal   = "host-local"
	Whereabouts = "whereabouts"
	Calico      = "calico"
	Cilium      = "cilium"
	// KubernetesAPI is not an IPAM. Its allocations are addresses in Pod.status.podIPs that several
	// running pods share.
	KubernetesAPI = "kubernetes"
)

// PoolState is how far the allocations of a pool are known. The numbers are those of the API.
type PoolState uint8

// The states of a pool.
const (
	PoolKnown      PoolState = iota + 1 // all allocations are known, and changes are followed
	PoolReading                         // the allocations are being read
	PoolMissing                         // the records are gone or never existed
	PoolUnreadable                      // the records cannot be read
	PoolStale                           // the source is disconnected
)

// A Range is all addresses from First to Last.
type Range struct{ First, Last netip.Addr }

// Contains reports whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Overlaps reports whether two ranges have an address in common.
func (r Range) Overlaps(other Range) bool {
	return r.First.BitLen() == other.First.BitLen() && r.First.Compare(other.Last) <= 0 && other.First.Compare(r.Last) <= 0
}

// Common returns the addresses that two overlapping ranges have in common.
func (r Range) Common(other Range) Range {
	if r.First.Less(other.First) {
		r.First = other.First
	}
	if other.Last.Less(r.Last) {
		r.Last = other.Last
	}
	return r
}

// Size returns the number of addresses in the range; the largest uint64 if there are more.
func (r Range) Size() uint64 {
	first, last := r.First.As16(), r.Last.As16()
	var low, high, borrow uint64
	low, borrow = bits.Sub64(bigEndian(last[8:]), bigEndian(first[8:]), 0)
	high, _ = bits.Sub64(bigEndian(last[:8]), bigEndian(first[:8]), borrow)
	if high != 0 || low == ^uint64(0) {
		return ^uint64(0)
	}
	return low + 1
}

func bigEndian(bytes []byte) (n uint64) {
	for _, b := range bytes {
		n = n<<8 | uint64(b)
	}
	return n
}

// A Pool is the set of addresses that one IPAM allocates for one network. Its Key is its identity.
type Pool struct {
	// IPAM, Name and Node are the identity. Name is the directory of host-local, NAMESPACE/NAME of
	// a whereabouts IPPool, the name of a Calico IPPool, or the name of a CiliumNode.
	IPAM, Name string
	// Node is the node that the pool belongs to; nil for a pool of the whole cluster.
	Node *Node
	Served
	// Ranges are the addresses that the pool allocates, without reserved ones.
	Ranges []Range
	// Gateways are addresses in the ranges that belong to the node or to a router.
	Gateways []netip.Addr
	State    PoolState
	// Problem says why the records are not known. It is text for people.
	Problem string
	Loss
	Wiring
	// Asked is set if the pool serves only pods that request it by name. Nodes with addresses in
	// its range then do not share a scope with it.
	Asked bool
	// Grows is set if the pool gets more addresses when few are left.
	Grows bool
	// Config is where the pool is configured: a file or an object.
	Config string
	// Base is the address that offsets in the records count from (whereabouts).
	Base netip.Addr
}

// Served are the CNI networks that a pool serves.
type Served struct {
	// Network is the network that the pool serves; empty if it is not known or if Networks lists
	// several.
	Network  string
	Networks []string
	// Realm is the network_name of whereabouts. Pools with different realms may allocate the same
	// address because their networks never meet.
	Realm string
}

// Serves reports whether the pool serves a CNI network. It returns unknown if it is not known which
// networks the pool serves.
func (s *Served) Serves(network string) (serves, unknown bool) {
	if slices.Contains(s.Networks, network) {
		return true, false
	}
	return s.Network == network && network != "", s.Network == "" && len(s.Networks) == 0
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

// Wiring is how the interfaces with a pool's addresses are connected.
type Wiring struct {
	// Plugin is the CNI plugin that uses the pool. Device is the bridge of its ports or the master
	// of its devices.
	Plugin, Device string
	// Routed is set if the node routes between the pool's addresses and its other networks, so that
	// they share a scope.
	Routed bool
}

// meets reports whether the addresses of two pools of one node share a scope.
func (w Wiring) meets(other Wiring) bool {
	return w.Routed && other.Routed || w.Device != "" && w.Device == other.Device
}

// Contains reports whether the pool may allocate an address.
func (p *Pool) Contains(a netip.Addr) bool {
	for _, r := range p.Ranges {
		if r.Contains(a) {
			return !slices.Contains(p.Gateways, a)
		}
	}
	return false
}

// Size returns the number of addresses that the pool can allocate; 0 if it is not known or can
// grow.
func (p *Pool) Size() uint64 {
	return p.size(func(netip.Addr) bool { return true })
}

// SizeOf returns the number of addresses of one family that the pool can allocate.
func (p *Pool) SizeOf(v4 bool) uint64 {
	return p.size(func(a netip.Addr) bool { return a.Is4() == v4 })
}

func (p *Pool) size(counts func(netip.Addr) bool) (size uint64) {
	if p.Grows {
		return 0
	}
	for _, r := range p.Ranges {
		if !counts(r.First) {
			continue
		}
		sum, carry := bits.Add64(size, r.Size(), 0)
		if carry != 0 {
			return ^uint64(0)
		}
		size = sum
	}
	for _, g := range p.Gateways {
		for _, r := range p.Ranges {
			if counts(g) && r.Contains(g) && size > 0 && size < ^uint64(0) {
				size--
				break
			}
		}
	}
	return size
}

// Allocation is the record that an IPAM has of one address. It is immutable.
type Allocation struct {
	Pool    *Pool
	Address netip.Addr
	// Node is the name of the node that the address is allocated for, as Kubernetes or the IPAM
	// calls it; empty if the IPAM does not record it. host-local allocates for the node that it
	// runs on.
	Node string
	// Namespace and Pod are the pod that the address is allocated for. ContainerID and Interface
	// are the sandbox and its interface. All are as the IPAM records them.
	Namespace, Pod, ContainerID, Interface string
	// Purpose is set if the address is not for a pod, such as the tunnel or router address of a
	// node. It is text for people: "VXLAN tunnel".
	Purpose string
	// Location is where the allocation is recorded: a file, or "KIND NAMESPACE/NAME" and a path in
	// the object, such as /spec/allocations/3.
	Location string
	// AllocatedAt is when the allocation was made, by the clock of the writer; 0 if the IPAM does
	// not record it.
	AllocatedAt Stamp
	// Heard is when the aggregator learned of the allocation.
	Heard Stamp
}

// Past is an earlier state of IPAM's records of an address. It is kept while the owner that it is
// about lives, and helps to find the cause of a conflict.
type Past struct {
	// Owner is the ID of the owner.
	Owner string
	// Kind is the finding of that time: FindingInUseUnallocated or FindingBookedElsewhere.
	Kind string
	// Allocation is the allocation of that time: one for another owner, or the owner's own
	// allocation before it vanished; nil if there was none.
	Allocation *Allocation
	// Since is when that state began, as far as it is known.
	Since Stamp
}

// A Subnet is an address of a node itself, with its prefix.
type Subnet struct {
	Prefix    netip.Prefix
	Interface *Interface
	// LAN is set if the interface is a bridge with a port that leads out of the node. Other nodes
	// may then have addresses of the prefix.
	LAN bool
}

// String returns the range as a prefix if it is one, or as FIRST-LAST.
func (r Range) String() string {
	if p := r.Prefix(); RangeOf(p) == r {
		return p.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// RangeOf returns the range of all addresses of a prefix.
func RangeOf(p netip.Prefix) Range {
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 1 << (7 - bit%8)
	}
	end, _ := netip.AddrFromSlice(last)
	return Range{First: p.Masked().Addr(), Last: end}
}

// Prefix returns the smallest prefix that contains the range.
func (r Range) Prefix() netip.Prefix {
	first, last := r.First.AsSlice(), r.Last.AsSlice()
	same := 0
	for i := range first {
		if x := first[i] ^ last[i]; x != 0 {
			same += bits.LeadingZeros8(x)
			break
		}
		same += 8
	}
	return netip.PrefixFrom(r.First, same).Masked()
}

// Competes reports whether two pools of one node serve different networks, allocate the same
// addresses, and have addresses that share a scope.
func (p *Pool) Competes(other *Pool) bool {
	if p.Network == other.Network || p.Config == "" || other.Config == "" {
		return false
	}
	a, _ := p.Overlap(other)
	return p.meets(other.Wiring) && a.First.IsValid()
}

// Overlap returns the first two ranges of two pools that overlap; invalid ranges if there are none.
func (p *Pool) Overlap(other *Pool) (a, b Range) {
	for _, a := range p.Ranges {
		for _, b := range other.Ranges {
			if a.Overlaps(b) {
				return a, b
			}
		}
	}
	return Range{}, Range{}
}

// OffsetOf returns the distance of an address from the base in decimal, because IPv6 offsets may
// exceed 64 bits. It returns false if the address is below the base or of another family.
func OffsetOf(base, a netip.Addr) (offset string, ok bool) {
	if base.BitLen() != a.BitLen() || !a.IsValid() || a.Less(base) {
		return "", false
	}
	from, to := base.As16(), a.As16()
	low, borrow := bits.Sub64(bigEndian(to[8:]), bigEndian(from[8:]), 0)
	high, _ := bits.Sub64(bigEndian(to[:8]), bigEndian(from[:8]), borrow)
	return decimal(high, low), true
}

// decimal returns a 128-bit number in decimal.
func decimal(high, low uint64) string {
	if high == 0 {
		return strconv.FormatUint(low, 10)
	}
	const digits = 1e19 // the largest power of ten that fits into 64 bits
	quotient, rest := bits.Div64(high%digits, low, digits)
	tail := strconv.FormatUint(rest, 10)
	return decimal(high/digits, quotient) + strings.Repeat("0", 19-len(tail)) + tail
}

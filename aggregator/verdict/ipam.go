package verdict

import (
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// What IPAM believes is never evidence of who holds an address. It is compared with
// what the kernels have: that is the audit, and tells why a conflict came about.

// The IPAMs that are read.
const (
	HostLocal   = "host-local"
	Whereabouts = "whereabouts"
	Calico      = "calico"
	Cilium      = "cilium"
	// KubernetesAPI is no IPAM: its allocations are Pod.status.podIPs that several
	// running pods have.
	KubernetesAPI = "kubernetes"
)

// PoolState is how far the allocations of a pool are known. The numbers are the
// contract's.
type PoolState uint8

// The states of a pool.
const (
	PoolKnown      PoolState = iota + 1 // all are known, and changes are heard
	PoolReading                         // they are being read
	PoolMissing                         // its records are gone, or were never there
	PoolUnreadable                      // it cannot be read
	PoolStale                           // its source is not heard from
)

// Range is all addresses from First to Last.
type Range struct{ First, Last netip.Addr }

// Contains tells whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Overlaps tells whether two ranges have an address in common.
func (r Range) Overlaps(other Range) bool {
	return r.First.BitLen() == other.First.BitLen() && r.First.Compare(other.Last) <= 0 && other.First.Compare(r.Last) <= 0
}

// Common are the addresses of two ranges that overlap.
func (r Range) Common(other Range) Range {
	if r.First.Less(other.First) {
		r.First = other.First
	}
	if other.Last.Less(r.Last) {
		r.Last = other.Last
	}
	return r
}

// Size is how many addresses the range has; the largest number for more than that
// has room for.
func (r Range) Size() uint64 {
	first, last := r.First.As16(), r.Last.As16()
	var low, high, borrow uint64
	low, borrow = bits.Sub64(number(last[8:]), number(first[8:]), 0)
	high, _ = bits.Sub64(number(last[:8]), number(first[:8]), borrow)
	if high != 0 || low == ^uint64(0) {
		return ^uint64(0)
	}
	return low + 1
}

func number(bytes []byte) (n uint64) {
	for _, b := range bytes {
		n = n<<8 | uint64(b)
	}
	return n
}

// Pool is what one IPAM gives addresses of one network from. Its Key is its identity.
type Pool struct {
	// IPAM and Name, with Node, are what it is known by. Name is a directory of
	// host-local, NAMESPACE/NAME of a whereabouts IPPool, the name of a Calico
	// IPPool, or the name of a CiliumNode.
	IPAM, Name string
	// Node is the one that it is of; nil where it is the whole cluster's.
	Node *Node
	Served
	// Ranges are what it gives, without what it never gives to anybody.
	Ranges []Range
	// Gateways are in its ranges, and the node's own or a router's.
	Gateways []netip.Addr
	State    PoolState
	// Problem says why it is not known, in words.
	Problem string
	Loss
	Wiring
	// Asked tells that it gives addresses only to pods that ask for it by its name:
	// nodes, whose addresses it may have in its range, meet nobody.
	Asked bool
	// Grows tells that it gets more addresses as soon as it has few left.
	Grows bool
	// Config is where it is configured: a file, or an object.
	Config string
	// Base is what offsets in its records count from (whereabouts).
	Base netip.Addr
}

// Served are the CNI networks that a pool gives addresses for.
type Served struct {
	// Network is the one that it is for; empty where that is not known, or Networks
	// has several.
	Network  string
	Networks []string
	// Realm is whereabouts' network_name: it may give an address of each to somebody
	// else, for networks that never meet.
	Realm string
}

// Serves tells whether the pool is for a CNI network; unknown says that nobody knows
// which networks it is for.
func (s *Served) Serves(network string) (serves, unknown bool) {
	if slices.Contains(s.Networks, network) {
		return true, false
	}
	return s.Network == network && network != "", s.Network == "" && len(s.Networks) == 0
}

// Loss is when a pool lost all of its allocations at once, as far as we know.
type Loss struct {
	// LostAt is the time by the clock of its node, 0 for never; Lost is how many.
	LostAt Stamp
	Lost   uint32
	// LostHeard is when we heard of that, by our clock.
	LostHeard Stamp
}

// Wiring is how the interfaces with a pool's addresses are connected.
type Wiring struct {
	// Plugin is the CNI plugin that it serves, Device the bridge that its ports are
	// on or the master of its devices.
	Plugin, Device string
	// Routed tells that the node routes for what has its addresses, so that they
	// meet all else that the node has.
	Routed bool
}

// meets reports whether addresses of two pools of one node meet.
func (w Wiring) meets(other Wiring) bool {
	return w.Routed && other.Routed || w.Device != "" && w.Device == other.Device
}

// Contains tells whether the pool may give an address to somebody.
func (p *Pool) Contains(a netip.Addr) bool {
	for _, r := range p.Ranges {
		if r.Contains(a) {
			return !slices.Contains(p.Gateways, a)
		}
	}
	return false
}

// Size is how many addresses the pool can give; 0 where that is not known, or grows.
func (p *Pool) Size() uint64 {
	return p.size(func(netip.Addr) bool { return true })
}

// SizeOf is how many addresses of IPv4, or of IPv6, the pool can give.
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

// Allocation is what an IPAM says of one address. It never changes.
type Allocation struct {
	Pool    *Pool
	Address netip.Addr
	// Node is the name of the one that it is booked for: of the node as Kubernetes or
	// the IPAM calls it; empty where IPAM does not say. host-local books for its own.
	Node string
	// Namespace and Pod are the pod that it is booked for, ContainerID and Interface
	// the sandbox and its interface: what IPAM says of them.
	Namespace, Pod, ContainerID, Interface string
	// Purpose is set where it is for no pod: a tunnel's or router's address of the
	// node. It is in words: "VXLAN tunnel".
	Purpose string
	// Location is where it is written: a file, or KIND NAMESPACE/NAME and a path in
	// it, as /spec/allocations/3.
	Location string
	// AllocatedAt is when it was made, by whose clock ever; 0 where IPAM does not say.
	AllocatedAt Stamp
	// Heard is since when we know it, by our clock.
	Heard Stamp
}

// Past is what is remembered of an address while an owner of that time lives: what
// IPAM said of it before it said what it does now. It tells causes.
type Past struct {
	// Owner is the id of the owner that it is about.
	Owner string
	// Kind is FindingInUseUnallocated or FindingBookedElsewhere: what was wrong.
	Kind string
	// Allocation is the one that was there: of somebody else's name, or the owner's
	// before it vanished; nil where there was none.
	Allocation *Allocation
	// Since is when it began, as far as we know.
	Since Stamp
}

// Subnet is an address of a node itself, with the prefix that it is in.
type Subnet struct {
	Prefix    netip.Prefix
	Interface *Interface
	// LAN tells that the interface is a bridge with a port that leads out of the node:
	// other nodes may have addresses of the prefix, too.
	LAN bool
}

// String is the range as a prefix, where it is one, or as FIRST-LAST.
func (r Range) String() string {
	if p := r.Prefix(); RangeOf(p) == r {
		return p.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// RangeOf is all addresses of a prefix.
func RangeOf(p netip.Prefix) Range {
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 1 << (7 - bit%8)
	}
	end, _ := netip.AddrFromSlice(last)
	return Range{First: p.Masked().Addr(), Last: end}
}

// Prefix is the smallest prefix that has all of the range.
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

// Competes tells whether two pools of one node are of different networks, give the
// same addresses, and who has them meets.
func (p *Pool) Competes(other *Pool) bool {
	if p.Network == other.Network || p.Config == "" || other.Config == "" {
		return false
	}
	a, _ := p.Overlap(other)
	return p.meets(other.Wiring) && a.First.IsValid()
}

// Overlap gives the first two ranges of two pools that have addresses in common; no
// valid ones where there are none.
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

// OffsetOf is how many addresses an address is after the base, in decimal: of IPv6 that
// may be more than fits into 64 bits. There is none before the base, nor of another family.
func OffsetOf(base, a netip.Addr) (offset string, ok bool) {
	if base.BitLen() != a.BitLen() || !a.IsValid() || a.Less(base) {
		return "", false
	}
	from, to := base.As16(), a.As16()
	low, borrow := bits.Sub64(number(to[8:]), number(from[8:]), 0)
	high, _ := bits.Sub64(number(to[:8]), number(from[:8]), borrow)
	return decimal(high, low), true
}

// decimal is a number of 128 bits as people write it.
func decimal(high, low uint64) string {
	if high == 0 {
		return strconv.FormatUint(low, 10)
	}
	const digits = 1e19 // the most that fit into 64 bits
	quotient, rest := bits.Div64(high%digits, low, digits)
	tail := strconv.FormatUint(rest, 10)
	return decimal(high/digits, quotient) + strings.Repeat("0", 19-len(tail)) + tail
}

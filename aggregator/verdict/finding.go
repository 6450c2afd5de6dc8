package verdict

import "net/netip"

// The kinds of findings.
const (
	// FindingInUseUnallocated: an owner has an address that its IPAM takes for free
	// and will give to somebody else.
	FindingInUseUnallocated = "in-use-unallocated"
	// FindingBookedElsewhere: IPAM has the address for another node or pod than the
	// one that holds it.
	FindingBookedElsewhere = "booked-elsewhere"
	// FindingLeaked: IPAM has given the address to somebody, and nobody alive holds it.
	FindingLeaked = "leaked"
	// FindingPodCIDROverlap: two nodes give pods addresses of one range.
	FindingPodCIDROverlap = "pod-cidr-overlap"
	// FindingRangesOverlap: two CNI networks of one node give addresses of one range.
	FindingRangesOverlap = "ranges-overlap"
	// FindingDoubleAllocated: IPAM has given one address twice.
	FindingDoubleAllocated = "double-allocated"
	// FindingIntendedNotObserved: an owner does not have the address that it was meant
	// to have.
	FindingIntendedNotObserved = "intended-not-observed"
	// FindingIPAMStateLost: all records of a pool are gone while addresses of it are
	// in use.
	FindingIPAMStateLost = "ipam-state-lost"
	// FindingIPAMUnreadable: the records of a pool cannot be read, or look otherwise
	// than we know them.
	FindingIPAMUnreadable = "ipam-unreadable"
	// FindingPoolExhaustion: a pool has few addresses left, or will have none soon.
	FindingPoolExhaustion = "pool-exhaustion"
	// FindingSharedAddressAnswered: an address on loopback or dummy devices is
	// answered for on a wire by several nodes.
	FindingSharedAddressAnswered = "shared-address-answered"
	// FindingAddressSpoofed: frames from the port of one namespace claim an address that the
	// kernel of another namespace has.
	FindingAddressSpoofed = "address-spoofed"
	// FindingMACCloned: frames from the port of one namespace have the hardware address of
	// another namespace.
	FindingMACCloned = "mac-cloned"
	// FindingDuplicateNodeName: two nodes call themselves the same.
	FindingDuplicateNodeName = "duplicate-node-name"
)

// Severity is how much a finding matters. The numbers are the contract's.
type Severity uint8

// The severities.
const (
	Info     Severity = iota + 1 // good to know
	Warning                      // it will hurt in time
	Critical                     // the next duplicate
)

// Finding is wrong, and not yet a conflict: what the audit of one address finds.
type Finding struct {
	ID, Kind string
	Severity Severity
	Address  netip.Addr
	// Owners are who holds the address.
	Owners []Owner
	// Allocations are what IPAM says of it.
	Allocations []*Allocation
	// Pool is the one that will give it out, or has.
	Pool *Pool
	// Past is what IPAM said before, as far as it is remembered.
	Past []Past
	// Spoof has the false claims and their sender; nil for other findings.
	Spoof *Spoof
	// Source is who meant the owner to have the address: cri, cni-result or kubernetes.
	Source string
	// Since is from when on it has been so, by our clock.
	Since Stamp
	// Waiting tells that it may be over in a moment: it is not told.
	Waiting bool
}

// PoolUse is how full a pool is.
type PoolUse struct {
	Size, Allocated, Leaked uint64
	// Family is IPv4 or IPv6 where the pool gives addresses of both: the one that it
	// has given more of, of those that it has.
	Family string
	// ExhaustedIn is in how many seconds it will have none left, at the rate of the
	// last hour; 0 where it does not grow.
	ExhaustedIn float64
}

// FindingID is the id of a finding of a kind about a subject: the same wherever
// and whenever it is computed.
func FindingID(cluster, kind, subject string) string {
	return hashed(cluster, kind, subject)
}

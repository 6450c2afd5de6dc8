package verdict

import (
	"net/netip"
	"slices"
)

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

// A Finding is what is wrong and not yet a conflict. Its operands depend on its kind; those that
// do not apply are empty. It never changes.
type Finding struct {
	ID, Kind string
	Severity Severity
	// Address is the one that it is about; invalid for a finding about more than one.
	Address netip.Addr
	// Owners are who holds the address.
	Owners []Owner
	// Allocations are what IPAM says of it.
	Allocations []*Allocation
	// Pool is the one that will give the address out, or has, or that the finding is about.
	Pool *Pool
	// Past is what IPAM said before, as far as it is remembered.
	Past []Past
	// Spoof has the false claims and their sender (address-spoofed, mac-cloned).
	Spoof *Spoof
	// Source is who meant the owner to have the address: cri, cni-result or kubernetes.
	Source string
	// Stock is what the pool has given (ipam-state-lost, ipam-unreadable, pool-exhaustion).
	Stock *Stock
	// Overlap are the two that give the same addresses (pod-cidr-overlap, ranges-overlap).
	Overlap *Overlap
	// Namesakes are the nodes of one name (duplicate-node-name).
	Namesakes *Namesakes
	// Since is from when on it has been so, by our clock.
	Since Stamp
	// Waiting tells that it may be over in a moment: it is not told.
	Waiting bool
}

// Stock is what a pool has given.
type Stock struct {
	Use PoolUse
	// AtRisk are the addresses in use that the pool takes for free, in order
	// (ipam-state-lost).
	AtRisk []Held
}

// Held is an address and its holder, nil if that is not known.
type Held struct {
	Address netip.Addr
	Owner   *Owner
}

// Overlap is a pair of sides that give the same addresses.
type Overlap struct {
	// Range is the first that both give.
	Range Range
	Sides [2]Side
	// Nodes are all nodes that have addresses in common with another one of them.
	Nodes []string
}

// SideSource is what tells the range of a side.
type SideSource uint8

// The sources, in the order in which a finding prefers them.
const (
	// SideNodeSpec: Node.spec.podCIDRs.
	SideNodeSpec SideSource = iota + 1
	// SideCiliumNode: spec.ipam.podCIDRs of a CiliumNode.
	SideCiliumNode
	// SideAddress: an interface of the node has an address of it, and pods are behind that.
	SideAddress
	// SidePool: an IPAM of the node is configured to give it.
	SidePool
)

// Side is a node, or a network of a node, that gives its pods addresses of a range.
type Side struct {
	// Node is the name of the node; Agent is nil for a node as Kubernetes names it.
	Node  string
	Agent *Node
	// Range is the one that is compared.
	Range   Range
	Network string
	// Config is where it is configured, Device the bridge or the like that it serves.
	Config, Device string
	// Ranges or Prefixes are all that it gives.
	Ranges   []Range
	Prefixes []netip.Prefix
	// Source is what tells the range, of the IPAM for SidePool.
	Source SideSource
	IPAM   string
}

// Namesakes are nodes that call themselves the same.
type Namesakes struct {
	Name     string
	Machines []Machine
}

// Machine is one of several nodes of a name.
type Machine struct {
	// Name is how it is shown, to tell it from the others.
	Name        string
	Boot, Netns string
	// Kernel is the version of Linux, Version that of the agent.
	Kernel, Version string
	// Since is when its agent connected.
	Since Stamp
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

// A Spoof is a set of claims in frames that enter by the port of one namespace, and
// that are for the address of another owner (address-spoofed), or carry the hardware
// address of another one (mac-cloned).
type Spoof struct {
	// Port is the interface that the frames enter by; Sender is the namespace behind it.
	Port   *Interface
	Sender *Namespace
	// Link is the broadcast domain that the frames are seen on.
	Link *Link
	// MACs are the hardware addresses that the frames claim the address for, or the one
	// hardware address that is cloned.
	MACs []MAC
	// Victims are the owners of the address, or the owner of the hardware address.
	Victims []Owner
	// Owner is the sender as an owner.
	Owner Owner
	// Addresses are some of the addresses that are claimed with a cloned hardware address.
	Addresses []netip.Addr
	// First and Last are by the agent's clock, for display only; Count is the number of frames.
	First, Last Stamp
	Count       uint32
	// Exposed are the other namespaces on the link: their neighbour tables may be poisoned.
	// Judge leaves them out, because only people need to know them.
	Exposed []*Namespace
}

// see adds a claim.
func (s *Spoof) see(c *Claim, mac MAC) {
	if !slices.Contains(s.MACs, mac) {
		s.MACs = append(s.MACs, mac)
		slices.Sort(s.MACs)
	}
	s.seen(c.First, c.Last, c.Count)
}

func (s *Spoof) seen(first, last Stamp, count uint32) {
	if s.First == 0 || first != 0 && first < s.First {
		s.First = first
	}
	s.Last = max(s.Last, last)
	s.Count += count
}

// Merge adds the claims to another address with the same cloned hardware address.
func (s *Spoof) Merge(other *Spoof) {
	const mostAddresses = 16
	s.seen(other.First, other.Last, other.Count)
	for _, a := range other.Addresses {
		if at, found := slices.BinarySearchFunc(s.Addresses, a, netip.Addr.Compare); !found {
			s.Addresses = slices.Insert(s.Addresses, at, a)
		}
	}
	s.Addresses = s.Addresses[:min(len(s.Addresses), mostAddresses)]
}

// FindingKinds are all kinds of findings, those that matter most first.
func FindingKinds() []string {
	return []string{
		FindingAddressSpoofed, FindingMACCloned, FindingIPAMStateLost, FindingInUseUnallocated, FindingBookedElsewhere, FindingDoubleAllocated, FindingPodCIDROverlap,
		FindingRangesOverlap, FindingIPAMUnreadable, FindingIntendedNotObserved, FindingPoolExhaustion, FindingLeaked,
		FindingSharedAddressAnswered, FindingDuplicateNodeName,
	}
}

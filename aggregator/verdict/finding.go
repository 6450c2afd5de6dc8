package verdict

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// The kinds of findings.
const (
	// FindingInUseUnallocated: an owner has an address that its IPAM considers free and may
	// allocate again.
	FindingInUseUnallocated = "in-use-unallocated"
	// FindingBookedElsewhere: IPAM has the address for a node or pod other than the one that holds
	// it.
	FindingBookedElsewhere = "booked-elsewhere"
	// FindingLeaked: IPAM has allocated the address, but no live owner holds it.
	FindingLeaked = "leaked"
	// FindingPodCIDROverlap: two nodes give pods addresses from overlapping ranges.
	FindingPodCIDROverlap = "pod-cidr-overlap"
	// FindingRangesOverlap: two CNI networks of one node allocate from overlapping ranges.
	FindingRangesOverlap = "ranges-overlap"
	// FindingDoubleAllocated: IPAM has allocated one address twice.
	FindingDoubleAllocated = "double-allocated"
	// FindingIntendedNotObserved: an owner does not have an address that it was meant to have.
	FindingIntendedNotObserved = "intended-not-observed"
	// FindingIPAMStateLost: all records of a pool are gone while its addresses are in use.
	FindingIPAMStateLost = "ipam-state-lost"
	// FindingIPAMUnreadable: the records of a pool cannot be read or have an unknown format.
	FindingIPAMUnreadable = "ipam-unreadable"
	// FindingPoolExhaustion: a pool has few addresses left or will run out soon.
	FindingPoolExhaustion = "pool-exhaustion"
	// FindingSharedAddressAnswered: several owners answer for the address on a link on which none of them
	// has it.
	FindingSharedAddressAnswered = "shared-address-answered"
	// FindingAddressSpoofed: frames from the port of one namespace claim an address that the kernel
	// of another namespace has.
	FindingAddressSpoofed = "address-spoofed"
	// FindingMACCloned: frames from the port of one namespace have the hardware address of
	// another namespace.
	FindingMACCloned = "mac-cloned"
	// FindingVIPHeldElsewhere: a node holds a virtual address that its controller assigns to another
	// node.
	FindingVIPHeldElsewhere = "vip-held-elsewhere"
	// FindingAnsweredByAnother: a node answers for an address that another owner on the link has, or keeps
	// its packets.
	FindingAnsweredByAnother = "answered-by-another"
	// FindingOrphanedSandbox: a sandbox has the address although its pod has ended or no longer exists.
	FindingOrphanedSandbox = "orphaned-sandbox"
	// FindingReusedTooSoon: an owner has an address that another owner had a moment before.
	FindingReusedTooSoon = "reused-too-soon"
	// FindingStaleBelief: namespaces send packets for the address to a hardware address that no owner of it has.
	FindingStaleBelief = "stale-belief"
	// FindingEndpointOfFormerOwner: a Service sends packets for a pod that no longer has the address to another pod, which has it.
	FindingEndpointOfFormerOwner = "endpoint-of-former-owner"
	// FindingIdentityMismatch: the network enforces the policies of another pod for the address of a pod.
	FindingIdentityMismatch = "identity-mismatch"
	// FindingNATToFormerOwner: nodes send connections that were made for a former owner of the address to the one that has it
	// now. It is found when somebody asks about the address, and is not in FindingKinds.
	FindingNATToFormerOwner = "nat-to-former-owner"
	// FindingDuplicateNodeName: two nodes have the same name.
	FindingDuplicateNodeName = "duplicate-node-name"
)

// Severity is the urgency of a finding. The numbers are those of the API.
type Severity uint8

// The severities.
const (
	Info     Severity = iota + 1 // no action is needed
	Warning                      // it will cause problems later
	Critical                     // it will cause a duplicate
)

// A Finding is a problem that is not a conflict yet. The kind determines which operands are set. It
// is immutable.
type Finding struct {
	ID, Kind string
	Severity Severity
	// Address is the address that the finding is about; invalid for a finding about several
	// addresses.
	Address netip.Addr
	// Addresses are all addresses, in order, if the finding is about several addresses of an interface. Address is
	// the first of them.
	Addresses []netip.Addr
	// Owners are the owners of the address.
	Owners []Owner
	// Allocations are the IPAM records of the address.
	Allocations []*Allocation
	// Pool is the pool that has allocated or will allocate the address, or that the finding is
	// about.
	Pool *Pool
	// Past has earlier states of the IPAM records, as far as they are remembered.
	Past []Past
	// Spoof has the false claims and their sender (address-spoofed, mac-cloned).
	Spoof *Spoof
	// Source is the source that meant the owner to have the address: cri, cni-result or kubernetes.
	Source string
	// Stock is the use of the pool (ipam-state-lost, ipam-unreadable, pool-exhaustion).
	Stock *Stock
	// Overlap is the pair with overlapping ranges (pod-cidr-overlap, ranges-overlap).
	Overlap *Overlap
	// Former is the owner that had the address before (reused-too-soon, nat-to-former-owner).
	Former *Former
	// Beliefs are those of the namespaces that send packets elsewhere (stale-belief).
	Beliefs []Belief
	// Endpoints are those of Services for the pod that had the address before (endpoint-of-former-owner).
	Endpoints []ipam.Endpoint
	// Translations are the connections that nodes send to the address (nat-to-former-owner).
	Translations []Translation
	// Namesakes are the nodes with the same name (duplicate-node-name).
	Namesakes *Namesakes
	// Since is when the problem began, by the aggregator's clock.
	Since Stamp
	// Waiting is set if the problem may disappear by itself in a moment. The finding is then not
	// published.
	Waiting bool
}

// Stock is the use of a pool.
type Stock struct {
	Use PoolUse
	// AtRisk are the addresses in use that the pool considers free, in order (ipam-state-lost).
	AtRisk []Held
}

// Held is an address and its owner; the owner is nil if it is not known.
type Held struct {
	Address netip.Addr
	Owner   *Owner
}

// Overlap is a pair of sides that allocate the same addresses.
type Overlap struct {
	// Range is the first range that both sides allocate from.
	Range ipam.Range
	Sides [2]Side
	// Nodes are all nodes whose ranges overlap with those of another one.
	Nodes []string
}

// Held reports whether one of the sides is an address in use and not a range.
func (o *Overlap) Held() bool {
	return o.Sides[0].Source == SideHeld || o.Sides[1].Source == SideHeld
}

// SideSource is the source of a side's range.
type SideSource uint8

// The sources, in the order of preference.
const (
	// SideNodeSpec: Node.spec.podCIDRs.
	SideNodeSpec SideSource = iota + 1
	// SideNodeObject: an object in which an IPAM assigns ranges to the node, such as a CiliumNode.
	SideNodeObject
	// SideAddress: an address on an interface of the node that pods are behind.
	SideAddress
	// SidePool: the configuration of an IPAM on the node.
	SidePool
	// SideDivided: a pool of the cluster that gives parts of its ranges to nodes. The side has no node.
	SideDivided
	// SideHeld: an address in use, outside of the ranges of its node: of the node itself if Device is
	// set or no agent reports from it, otherwise of a pod in Network.
	SideHeld
)

// A Side is a node or a network of a node that assigns addresses from a range to its pods, or a pool
// that assigns parts of a range to nodes.
type Side struct {
	// Node is the name of the node. Agent is nil for a node that is known from Kubernetes only.
	Node  string
	Agent *Node
	// Range is the range that is compared.
	Range   ipam.Range
	Network string
	// Pool is the name of the pool; set for SideDivided.
	Pool string
	// Config is where the range is configured. Device is the bridge or other device that it serves.
	Config, Device string
	// LAN is the domain that Device shares with other nodes, if the addresses are those of a LAN and not routed.
	LAN LinkKey
	// MadeByPlugin is set if a CNI plugin made Device, and makes it again after it was deleted.
	MadeByPlugin bool
	// Ranges or Prefixes are all ranges of the side.
	Ranges   []ipam.Range
	Prefixes []netip.Prefix
	// Source is the source of the range; IPAM is set for SideNodeObject, SidePool and SideDivided. Grows is set if
	// the IPAM assigns the node more ranges when it needs them.
	Source SideSource
	IPAM   string
	Grows  bool
	// Unused is set for a pool that a node without pods will use for its first one, and for one that has
	// not allocated any address of a LAN.
	Unused bool
}

// A Translation is a connection whose packets a node sends to the address, although it is not their destination (DNAT).
type Translation struct {
	Node     *Node
	Protocol string // tcp or udp
	// From and To are the source and the destination of its first packet, and Port is the port of the address.
	From, To netip.AddrPort
	Port     uint16
	// Zone is that of the connection tracking.
	Zone uint16
	// Existed is a time at which it existed, by the clock of the node; 0 if none is known.
	Existed Stamp
	// Sender is the owner of the address in From; nil if it is not known.
	Sender *Owner
}

// Namesakes are nodes with the same name.
type Namesakes struct {
	Name     string
	Machines []Machine
}

// A Machine is one of several nodes with the same name.
type Machine struct {
	// Name is a name for display that differs from those of the other machines.
	Name        string
	Boot, Netns string
	// Kernel is the version of Linux; Version is the version of the agent.
	Kernel, Version string
	// Since is when the agent connected.
	Since Stamp
}

// PoolUse is how full a pool is.
type PoolUse struct {
	Size, Allocated, Leaked uint64
	// Family is IPv4 or IPv6 if the pool has addresses of both families. It is the family with the
	// larger part in use; the numbers are of that family.
	Family string
	// ExhaustedIn is the number of seconds until the pool is full at the rate of the last hour; 0
	// if its use does not grow.
	ExhaustedIn float64
}

// FindingID returns the ID of a finding of a kind about a subject. Equal arguments always give the
// same ID.
func FindingID(cluster, kind, subject string) string {
	return hashID(cluster, kind, subject)
}

// A Spoof is a set of claims in frames that enter through the port of one namespace. They claim the
// address of another owner (address-spoofed) or carry the hardware address of another namespace
// (mac-cloned).
type Spoof struct {
	// Port is the interface through which the frames enter; Sender is the namespace behind it, nil if a machine outside
	// sends them (mac-cloned).
	Port   *Interface
	Sender *Namespace
	// Link is the broadcast domain that the frames are seen on.
	Link *Link
	// MACs are the hardware addresses in the claims to the address, or the one hardware address
	// that is cloned.
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
	// Exposed are the other namespaces on the link, whose neighbour tables may be poisoned. Judge
	// does not set it because it is only displayed.
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

// FindingKinds returns all kinds of findings that are looked for at any time, the most important first.
func FindingKinds() []string {
	return []string{
		FindingAddressSpoofed, FindingMACCloned, FindingIPAMStateLost, FindingInUseUnallocated, FindingBookedElsewhere, FindingDoubleAllocated, FindingVIPHeldElsewhere,
		FindingAnsweredByAnother, FindingStaleBelief, FindingEndpointOfFormerOwner, FindingIdentityMismatch, FindingPodCIDROverlap,
		FindingRangesOverlap, FindingIPAMUnreadable, FindingIntendedNotObserved, FindingOrphanedSandbox, FindingPoolExhaustion, FindingLeaked,
		FindingReusedTooSoon, FindingSharedAddressAnswered, FindingDuplicateNodeName,
	}
}

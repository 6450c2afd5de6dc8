package verdict

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// FactKind is the kind of a Fact. It determines which operands are set.
type FactKind string

// The facts that a cause follows from.
const (
	// FactSandboxLeft: the sandbox of Owners[0] exists although its pod does not. Text is the phase
	// in which the pod ended; it is empty if the Kubernetes API has no such pod.
	FactSandboxLeft FactKind = "sandbox-left"
	// FactNamespaceReplaced: the container of Owners[0] got another network namespace, Owners[1], which
	// has had the address since At.
	FactNamespaceReplaced FactKind = "namespace-replaced"
	// FactNamespaceUsed: the process Text runs in the network namespace Owners[0], or ran there last.
	FactNamespaceUsed FactKind = "namespace-used"
	// FactOneMachine: the owners run one virtual machine and had the address for longer than a
	// migration may take.
	FactOneMachine FactKind = "one-virtual-machine"
	// FactController: the controller Pool assigns the address to the holder in Records[0].
	FactController FactKind = "assigned-by-controller"
	// FactProgram: the program Text, which moves virtual addresses, runs on the node or in the
	// namespace of Owners[0]. FactProgramEnded: it ran there and has ended.
	FactProgram      FactKind = "program-runs"
	FactProgramEnded FactKind = "program-ended"
	// FactVirtualMAC: the hardware address of Owners[0] is that of a virtual router.
	FactVirtualMAC FactKind = "virtual-mac"
	// FactAlternates: the controller Pool has assigned the address to the nodes by turns.
	FactAlternates FactKind = "assignment-alternates"
	// FactHandedOver: Nodes[0] had the address until At.
	FactHandedOver FactKind = "handed-over-before"
	// FactGotAgain: Owners[0] had the address before all others, lost it, and got it again.
	FactGotAgain FactKind = "got-again"
	// FactSilent: no frame of Owners[0] with the address was seen since At.
	FactSilent FactKind = "silent"
	// FactIdle: Owners[0] has had no process for some seconds.
	FactIdle FactKind = "no-process"
	// FactBusy: processes run in Owners[0], of which Text is one; it is empty for a node.
	FactBusy FactKind = "has-processes"
	// FactTakenAlong: Owners[0] took the address along with a device of its node, by Network.
	FactTakenAlong FactKind = "taken-along"
	// FactLeasedToOneMAC: Pool has leased the address to a hardware address that all Owners have.
	FactLeasedToOneMAC FactKind = "leased-to-one-mac"
	// FactLeaseTaken: Pool had leased the address to the hardware address of Owners[0], and then to
	// that of Owners[1], because both sent one client identifier.
	FactLeaseTaken FactKind = "lease-taken"
	// FactLeasedToBoth: DHCP clients of both Owners have recorded leases of the address for the client identifier Text.
	FactLeasedToBoth FactKind = "leased-to-both"
	// FactLeased: the DHCP server of Pool has leased the address to Owners[0]; or the server Addresses[0] has, according
	// to the client of Pool.
	FactLeased FactKind = "leased"
	// FactOneContainer: Owners have one container id, Text, on several Nodes.
	FactOneContainer FactKind = "one-container"
	// FactOneMAC: Owners have one hardware address. FactOneName: their nodes have one name, Text.
	FactOneMAC  FactKind = "one-mac"
	FactOneName FactKind = "one-name"
	// FactOneLink: the owners are nodes on one link.
	FactOneLink FactKind = "one-link"
	// FactBeyondGrace: the owners had the address for longer than a hand-over may take.
	FactBeyondGrace FactKind = "beyond-handover-grace"
	// FactFromOutside: frames of Owners[0] enter nodes through the uplinks Devices.
	FactFromOutside FactKind = "from-outside"
	// FactForeignMAC: no node with an agent has the hardware address on this link.
	FactForeignMAC FactKind = "mac-of-no-node"
	// FactCopiedMAC: Nodes[0] has the hardware address, too, and its LAN returns none of its own frames.
	FactCopiedMAC FactKind = "mac-of-a-node"
	// FactHolds: Owners[0] has the address.
	FactHolds FactKind = "holds"
	// FactUncovered: it is not known whether every node has an agent.
	FactUncovered FactKind = "nodes-uncovered"
	// FactTunnel: the node Owners[0] has the address on the tunnel Device of kind Text; Owners[1]
	// has the address as well.
	FactTunnel FactKind = "tunnel-has-address"
	// FactPurpose: Pool has the address in Records[0], which is not for a pod.
	FactPurpose FactKind = "allocated-for-purpose"
	// FactBridgeOfPods: the node Owners[0] has the address on the bridge Device, which connects
	// pods.
	FactBridgeOfPods FactKind = "on-bridge-of-pods"

	// FactGivenByNetwork: according to a CNI result, Network assigned the address to Owners[0].
	FactGivenByNetwork FactKind = "given-by-network"
	// FactGivenByRuntime: according to the container runtime, Owners[0] was given the address.
	FactGivenByRuntime FactKind = "given-by-runtime"
	// FactMeant: according to the source Text, Owners[0] was meant to have the address.
	FactMeant FactKind = "meant-for"
	// FactAllocated: Pool has the address for Owners[0].
	FactAllocated FactKind = "allocated"
	// FactWasAllocated: Pool had the address for Owners[0].
	FactWasAllocated FactKind = "was-allocated"

	// FactGuest: Owners[0] is behind a port, and no CNI network assigns addresses to guests.
	FactGuest FactKind = "guest-behind-port"
	// FactGuestOfOther: Owners[0] claims the address from behind its port, but was given other
	// addresses.
	FactGuestOfOther FactKind = "guest-of-owner-with-other-addresses"
	// FactNodeDevice: the node Owners[0] has the address on Device, to which no CNI network assigns
	// addresses.
	FactNodeDevice FactKind = "on-device-of-node"
	// FactNotListed: the Kubernetes API lists only Addresses for the pod Owners[0].
	FactNotListed FactKind = "not-among-pod-addresses"
	// FactNotInResult: the CNI result of Owners[0] does not contain the address.
	FactNotInResult FactKind = "not-in-cni-result"
	// FactAllocatedToOther: IPAM has the address for Owners[1] and not for Owners[0].
	FactAllocatedToOther FactKind = "allocated-to-other-owner"

	// FactPoolRange: Pool allocates addresses from Ranges.
	FactPoolRange FactKind = "range-of-pool"
	// FactInPodCIDR: the address is in the pod range of a node.
	FactInPodCIDR FactKind = "in-pod-cidr"
	// FactAllocatedElsewhere: since At, while Owners[0] had the address, Pool had it for another
	// owner in Records[0].
	FactAllocatedElsewhere FactKind = "was-allocated-elsewhere"
	// FactWrongNodeName: the IPAM with its own names for nodes uses NodeName on the node of Owners[0],
	// which is the name of another node.
	FactWrongNodeName FactKind = "wrong-node-name"
	// FactRecord: the records of the address in Pool. State says how far they are known, Text is
	// the problem, Records are the allocations.
	FactRecord FactKind = "record"
	// FactInPodCIDRs: the address is in the pod ranges of all Nodes.
	FactInPodCIDRs FactKind = "in-pod-cidr-of-several-nodes"
	// FactBridgeRange: pods on the bridge Device of Nodes[0] have addresses of Ranges.
	FactBridgeRange FactKind = "range-of-bridge"
	// FactOnNetwork: Owners[0] is on Network, or on the bridge Device if it is empty.
	FactOnNetwork FactKind = "on-network"
	// FactNetworkRange: Network, or the bridge Device if it is empty, has addresses of Ranges.
	FactNetworkRange FactKind = "range-of-network"
	// FactMeetOnNode: Nodes[0] has both networks.
	FactMeetOnNode FactKind = "networks-meet-on-node"
	// FactMeetOnLink: both networks are on the link Device, as NODE/LINK.
	FactMeetOnLink FactKind = "networks-meet-on-link"
	// FactNeverTwice: Pool never allocates an address of a network twice while its records are
	// complete.
	FactNeverTwice FactKind = "pool-never-gives-twice"
	// FactRecordsLost: all records of Pool were lost at At; Count is their number if it is known.
	FactRecordsLost FactKind = "records-lost"
	// FactRecordVanished: the record that Pool had for Owners[0] vanished at At.
	FactRecordVanished FactKind = "record-vanished"
	// FactLeaseEnded: the lease that the DHCP server of Pool had given Owners[0] ended at At and was not renewed.
	FactLeaseEnded FactKind = "lease-ended"
	// FactFixed: the configuration of Owners[0], in the file Text, fixes the address for it.
	FactFixed FactKind = "fixed"
	// FactLeaseGone: at At, the lease that the DHCP server of Pool had given Owners[0] was gone before its end.
	FactLeaseGone FactKind = "lease-gone"
	// FactLeaseReplaced: at At, the DHCP server of Pool had a lease for another client in place of that of Owners[0], which
	// had not ended.
	FactLeaseReplaced FactKind = "lease-replaced"
	// FactOneReservation: a reservation in the file Text is for Owners[0] and for the client that has the lease now.
	FactOneReservation FactKind = "one-reservation"
	// FactLeasedAnother: Owners[0] has a lease of another address, Addresses[0], on the same interface Device.
	FactLeasedAnother FactKind = "leased-another"
)

// The facts that summarise a cause; FactSandboxLeft and FactTunnel are used for this, too.
const (
	// HeadNamespaceReplaced: the container of Owners[0] has other network namespaces, too.
	HeadNamespaceReplaced FactKind = "namespaces-of-one-container"
	// HeadIdle: Owners are namespaces without processes.
	HeadIdle FactKind = "namespaces-without-processes"
	// HeadTwoServers: DHCP servers that do not know the leases of each other have leased the address to Owners.
	HeadTwoServers FactKind = "two-dhcp-servers"
	// HeadOneClient: the DHCP server of Pool, if it is known, takes Owners for one client.
	HeadOneClient FactKind = "one-dhcp-client"
	// HeadClone: Owners have one address and one hardware address.
	HeadClone FactKind = "clones"
	// HeadCopies: Owners are one container on several machines.
	HeadCopies FactKind = "copies-of-one-container"
	// HeadOutside: Owners are outside of all nodes with an agent.
	HeadOutside FactKind = "owners-outside"
	// HeadNotGiven: no IPAM or runtime assigned the address, which is in a range of pods, to
	// Owners[0].
	HeadNotGiven FactKind = "not-given"
	// HeadNodeFirst: a range of pods, that of Pool if it is known, contains the address of the node Owners[0],
	// which had it before Owners[1].
	HeadNodeFirst FactKind = "node-had-it-first"
	// HeadNotGivenGateway: no IPAM or runtime assigned the address, which belongs to the bridge
	// Device, to Owners[0].
	HeadNotGivenGateway FactKind = "not-given-gateway"
	// HeadAllocatedElsewhere: IPAM had the address for another owner in Records[0] while Owners[0]
	// had it.
	HeadAllocatedElsewhere FactKind = "freed-with-other-owner"
	// HeadWrongNodeName: on the node of Owners[0], the IPAM with its own names for nodes allocates
	// pod addresses for another node, NodeName.
	HeadWrongNodeName FactKind = "freed-with-other-node"
	// HeadOneRange: two Nodes give pods addresses from one range. Ranges is set if both report the
	// same.
	HeadOneRange FactKind = "nodes-with-one-range"
	// HeadOneGateway: the pools of Nodes have the address as the gateway of addresses of their own.
	HeadOneGateway FactKind = "nodes-with-one-gateway"
	// HeadNetworksOverlap: the Networks of the cause have overlapping ranges. Nodes is empty if
	// they are on different nodes.
	HeadNetworksOverlap FactKind = "networks-overlap"
	// HeadRecordsLost: Pool lost records and allocated the address twice.
	HeadRecordsLost FactKind = "records-lost-given-twice"
	// HeadRecordLost: Pool lost the record for Owners, or some record if Owners is empty, and
	// allocated the address again.
	HeadRecordLost FactKind = "record-lost-given-again"
	// HeadLeaseEnded: the leases that the DHCP server of Pool had given Owners ended and were not renewed.
	HeadLeaseEnded FactKind = "leases-ended"
	// HeadAnycast: the address is the subnet-router anycast address (RFC 4291, section 2.6.1) of the prefix Text, with which
	// Owners tried to use it.
	HeadAnycast FactKind = "subnet-router-anycast"
	// HeadFixed: Owners are containers whose configurations fix the address.
	HeadFixed FactKind = "fixed-for-each"
	// HeadLeaseGone: the leases that the DHCP server of Pool had given Owners are gone, some of them before their ends.
	HeadLeaseGone FactKind = "leases-gone"
	// HeadLeaseReplaced: the DHCP server of Pool has leased the address to another client, and the leases of Owners had not
	// ended.
	HeadLeaseReplaced FactKind = "leases-replaced"
	// HeadOneReservation: a reservation of Pool in the file Text is for Owners and for the client that has the lease now.
	HeadOneReservation FactKind = "reserved-for-several"
	// HeadAllocatedTwice: the IPAM of Pool has the address for both Owners.
	HeadAllocatedTwice FactKind = "allocated-twice"
)

// The facts that rule a cause out.
const (
	// NotPodsThere: the pods of Owners exist in the Kubernetes API and have not ended.
	NotPodsThere FactKind = "pods-are-there"
	// NotNeedsProcess: Owners[0] has no process, but may be a router or a firewall, which needs none.
	NotNeedsProcess FactKind = "needs-no-process"
	// NotOneLink: no common link of the nodes Owners is known.
	NotOneLink FactKind = "no-common-link"
	// NotMoving: nothing shows that the address is meant to move between Owners: no program that moves
	// addresses was seen there, and no controller assigns it.
	NotMoving FactKind = "not-moving"
	// NotGuest: Owners[0] is behind a port of a node and not outside.
	NotGuest FactKind = "behind-port"
	// NotVirtualRouter: the hardware address of Owners[0] belongs to a virtual router.
	NotVirtualRouter FactKind = "virtual-router"
	// NotResponder: the network plugin Text answers with the hardware address of Owners[0].
	NotResponder FactKind = "responder-of-plugin"
	// NotUncoveredHolder: Pool has the address for a node without an agent in Records[0], and
	// Owners[0] may be the holder.
	NotUncoveredHolder FactKind = "may-be-on-uncovered-node"
	// NotTunnel: Device of Nodes[0] is not a tunnel.
	NotTunnel FactKind = "no-tunnel"
	// NotByHandDevice: Device has the address from the container engine that made it.
	NotByHandDevice FactKind = "device-of-container-engine"
	// NotPermanent: the address of Owners[0] has a lifetime.
	NotPermanent FactKind = "has-lifetime"
	// NotGiverKnown: it is not known how Owners[0] got the address.
	NotGiverKnown FactKind = "giver-not-known"
	// NotByHand: Owners were given the address.
	NotByHand FactKind = "given-to-all"
	// NotNodeNamed: the IPAM with its own names for nodes uses NodeName on Nodes[0], which is the name
	// of another node, but none of its pools has the address.
	NotNodeNamed FactKind = "no-node-named-pool"
	// NotElsewhere: Pool is not known to have had the address for another owner. On Nodes,
	// the node name that the IPAM uses is right.
	NotElsewhere FactKind = "never-allocated-elsewhere"
	// NotByNode: Pool allocates addresses for the whole cluster.
	NotByNode FactKind = "pool-of-cluster"
	// NotInPodCIDRs: the address is in the pod range of Nodes[0] and not in that of Nodes[1]. If
	// Nodes is empty, it is in the pod range of another node.
	NotInPodCIDRs FactKind = "in-pod-cidr-of-one-node"
	// NotOneRange: the ranges of Nodes have no address in common.
	NotOneRange FactKind = "ranges-apart"
	// NotRangeOf: it is not known from which range of its node Owners[0] has the address.
	NotRangeOf FactKind = "range-of-owner-not-known"
	// NotRangesOf: it is not known from which ranges Nodes give addresses to pods.
	NotRangesOf FactKind = "ranges-of-nodes-not-known"
	// NotGivenToBoth: no CNI network is known to have given the address to both owners.
	NotGivenToBoth FactKind = "not-known-to-be-given-to-both"
	// NotTwoNetworks: Network assigned the address to both owners.
	NotTwoNetworks FactKind = "one-network"
	// NotTwoBridges: both owners are on the bridge Device.
	NotTwoBridges FactKind = "one-bridge"
	// NotTwoPools: Pool serves both networks.
	NotTwoPools FactKind = "one-pool"
	// NotGivenTwice: Pool assigned the address to Owners[0] alone.
	NotGivenTwice FactKind = "given-once"
	// NotRead: the records of Pool are being read.
	NotRead FactKind = "records-being-read"
	// NotReadable: the records of Pool cannot be read because of the problem Text.
	NotReadable FactKind = "records-unreadable"
	// NotLost: Pool has the address for Owners.
	NotLost FactKind = "all-allocated"
	// NotYetFree: the pod Owners[0] is being deleted.
	NotYetFree FactKind = "being-deleted"
	// NotRecorded: no records of Nodes are known. Network is the network that assigned all of them
	// the address.
	NotRecorded FactKind = "no-records-known"
)

// The facts of a diagnosis; FactRecord is used for this, too.
const (
	// SeenPod: what the Kubernetes API says about the pod of Owners[0].
	SeenPod FactKind = "pod"
	// SeenRoute: the node of Owners[0] routes the address to Owners[0]. The other Owners are on the same
	// node.
	SeenRoute FactKind = "route"
	// SeenNoRecords: no records of Nodes are known that may contain the address.
	SeenNoRecords FactKind = "no-records"
	// SeenPodCIDRs: the address is in the pod ranges of Nodes and not in those of Others.
	SeenPodCIDRs FactKind = "pod-cidrs"
)

// A Fact is a known fact about a conflict. Its operands are values, so that facts of different
// cases can be compared.
type Fact struct {
	Kind FactKind
	// Owners are the IDs of owners of the conflict.
	Owners []string
	// Nodes and Others are names of nodes, Devices names of interfaces as NODE/INTERFACE.
	Nodes, Others, Devices []string
	// Pool is the pool of an IPAM; Records are allocations in it.
	Pool    PoolName
	Records []Record
	// Device is the name of an interface; Network is the name of a CNI network.
	Device, Network string
	Ranges          Ranges
	Addresses       []netip.Addr
	NodeName        ipam.NodeName
	// Text is a word from an external source: a phase, a problem, the kind of a device.
	Text  string
	At    Stamp
	Count uint32
	State ipam.State
}

// PoolName is a pool as it is displayed: its key with the name of its node, which is empty for a
// pool of the whole cluster, and its CNI network.
type PoolName struct{ IPAM, Name, Node, Network string }

// Holder is the holder of an address according to an IPAM.
type Holder struct{ Purpose, Namespace, Pod, ContainerID, Node, MAC, Hostname string }

// Ranges are ranges that addresses are allocated from: those of a pool, or the prefix of a bridge.
type Ranges struct {
	List []ipam.Range
	// Bridge is set for the prefix of a bridge.
	Bridge bool
}

// rangesOf returns the ranges of a pool.
func rangesOf(p *Pool) Ranges { return Ranges{List: p.Ranges} }

// rangeOf returns the prefix of a bridge; the zero Ranges if the prefix is invalid.
func rangeOf(prefix netip.Prefix) Ranges {
	if !prefix.IsValid() {
		return Ranges{}
	}
	return Ranges{[]ipam.Range{ipam.RangeOf(prefix)}, true}
}

func (r Ranges) equal(other Ranges) bool {
	return r.Bridge == other.Bridge && slices.Equal(r.List, other.List)
}

// apart reports whether both ranges are known for the family of an address, and have no address in common.
func (r Ranges) apart(other Ranges, of netip.Addr) bool {
	known, both := false, false
	for _, b := range other.List {
		both = both || b.First.BitLen() == of.BitLen()
	}
	for _, a := range r.List {
		if a.First.BitLen() == of.BitLen() {
			if known = true; slices.ContainsFunc(other.List, a.Overlaps) {
				return false
			}
		}
	}
	return known && both
}

// A Record is an allocation of a pool.
type Record struct {
	// Owner is the ID of the owner that the record is for; empty if that is not certain.
	Owner  string
	Holder Holder
	At     Stamp
}

// Equal reports whether two facts are the same.
func (f Fact) Equal(other Fact) bool {
	return f.Kind == other.Kind && f.Pool == other.Pool && f.Device == other.Device &&
		f.Network == other.Network && f.Text == other.Text && f.NodeName == other.NodeName && f.At == other.At && f.Count == other.Count && f.State == other.State &&
		slices.Equal(f.Owners, other.Owners) && slices.Equal(f.Nodes, other.Nodes) && slices.Equal(f.Others, other.Others) &&
		slices.Equal(f.Devices, other.Devices) && f.Ranges.equal(other.Ranges) && slices.Equal(f.Addresses, other.Addresses) &&
		slices.Equal(f.Records, other.Records)
}

// same reports whether two facts are equal or both are nil.
func (f *Fact) same(other *Fact) bool {
	return f == other || f != nil && other != nil && f.Equal(*other)
}

// Label returns the name of the pool; the zero name for nil.
func (p *Pool) Label() PoolName {
	if p == nil {
		return PoolName{}
	}
	return PoolName{p.IPAM, p.Name, p.Node.Key().Name, p.Network}
}

// records returns the allocation as the only record of a fact.
func (al *Allocation) records() []Record {
	return []Record{{Holder: al.holder(), At: al.AllocatedAt}}
}

// holder returns the holder of the address according to the allocation.
func (al *Allocation) holder() Holder {
	return Holder{al.Purpose, al.Namespace, al.Pod, al.ContainerID, al.Node, al.MAC, al.Hostname}
}

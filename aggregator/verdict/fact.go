package verdict

import (
	"net/netip"
	"slices"
)

// FactKind tells what a Fact says, and which of its operands are set.
type FactKind string

// The facts that a cause follows from.
const (
	// FactSandboxLeft: the sandbox of Owners[0] is there and its pod is not. Text is the phase in
	// which the pod ended; it is empty if the Kubernetes API has no such pod.
	FactSandboxLeft FactKind = "sandbox-left"
	// FactOneMachine: the owners run one virtual machine and had the address for longer than a
	// migration may take.
	FactOneMachine FactKind = "one-virtual-machine"
	// FactOneLink: the owners are nodes on one link.
	FactOneLink FactKind = "one-link"
	// FactBeyondGrace: the owners had the address for longer than a hand-over may take.
	FactBeyondGrace FactKind = "beyond-handover-grace"
	// FactFromOutside: the frames of Owners[0] enter nodes by the uplinks Devices.
	FactFromOutside FactKind = "from-outside"
	// FactForeignMAC: no node with an agent has the hardware address on this link.
	FactForeignMAC FactKind = "mac-of-no-node"
	// FactHolds: Owners[0] has the address.
	FactHolds FactKind = "holds"
	// FactUncovered: it is not known whether every node has an agent.
	FactUncovered FactKind = "nodes-uncovered"
	// FactTunnel: the node Owners[0] has the address on the tunnel Device, whose kind is Text;
	// Owners[1] has it, too.
	FactTunnel FactKind = "tunnel-has-address"
	// FactPurpose: Pool has the address by Records[0], which is for no pod.
	FactPurpose FactKind = "allocated-for-purpose"
	// FactBridgeOfPods: the node Owners[0] has the address on the bridge Device, which connects pods.
	FactBridgeOfPods FactKind = "on-bridge-of-pods"

	// FactGivenByNetwork: by a CNI result, Network gave the address to Owners[0].
	FactGivenByNetwork FactKind = "given-by-network"
	// FactGivenByRuntime: by the container runtime, Owners[0] was given the address.
	FactGivenByRuntime FactKind = "given-by-runtime"
	// FactMeant: Owners[0] was meant to have the address, as the source Text says.
	FactMeant FactKind = "meant-for"
	// FactAllocated: Pool has the address for Owners[0].
	FactAllocated FactKind = "allocated"
	// FactWasAllocated: Pool had the address for Owners[0].
	FactWasAllocated FactKind = "was-allocated"

	// FactGuest: Owners[0] is behind a port, and no CNI network gives addresses to it.
	FactGuest FactKind = "guest-behind-port"
	// FactGuestOfOther: Owners[0] claims the address from behind its port and was given others.
	FactGuestOfOther FactKind = "guest-of-owner-with-other-addresses"
	// FactNodeDevice: the node Owners[0] has the address on Device, to which no CNI network gives any.
	FactNodeDevice FactKind = "on-device-of-node"
	// FactNotListed: the Kubernetes API has only Addresses for the pod Owners[0].
	FactNotListed FactKind = "not-among-pod-addresses"
	// FactNotInResult: the CNI result of Owners[0] does not have the address.
	FactNotInResult FactKind = "not-in-cni-result"
	// FactAllocatedToOther: IPAM has the address for Owners[1] and not for Owners[0].
	FactAllocatedToOther FactKind = "allocated-to-other-owner"

	// FactPoolRange: Pool gives addresses from Ranges.
	FactPoolRange FactKind = "range-of-pool"
	// FactInPodCIDR: the address is in the range of pods of a node.
	FactInPodCIDR FactKind = "in-pod-cidr"
	// FactAllocatedElsewhere: Pool had the address by Records[0], for somebody else, while
	// Owners[0] had it, since At.
	FactAllocatedElsewhere FactKind = "was-allocated-elsewhere"
	// FactWrongNodename: Calico takes the node of Owners[0] for the node Text.
	FactWrongNodename FactKind = "wrong-calico-nodename"
	// FactRecord: what Pool has of the address. State says how far it is known, Text is the
	// problem, Records are its allocations.
	FactRecord FactKind = "record"
	// FactInPodCIDRs: the address is in the ranges of pods of all Nodes.
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
	// FactNeverTwice: with whole records, Pool gives no address of a network twice.
	FactNeverTwice FactKind = "pool-never-gives-twice"
	// FactRecordsLost: all records of Pool were lost at At; Count is their number, if it is known.
	FactRecordsLost FactKind = "records-lost"
	// FactRecordVanished: the record that Pool had for Owners[0] vanished at At.
	FactRecordVanished FactKind = "record-vanished"
)

// The facts that a cause is summed up by; FactSandboxLeft and FactTunnel are others.
const (
	// HeadOutside: Owners are outside of all nodes with an agent.
	HeadOutside FactKind = "owners-outside"
	// HeadNotGiven: nobody gave the address, which is one of pods, to Owners[0].
	HeadNotGiven FactKind = "not-given"
	// HeadNotGivenGateway: nobody gave the address, which is that of the bridge Device, to Owners[0].
	HeadNotGivenGateway FactKind = "not-given-gateway"
	// HeadAllocatedElsewhere: IPAM had the address by Records[0] while Owners[0] had it.
	HeadAllocatedElsewhere FactKind = "freed-with-other-owner"
	// HeadWrongNodename: Calico allocates addresses of pods on the node of Owners[0] for the node Text.
	HeadWrongNodename FactKind = "freed-with-other-node"
	// HeadOneRange: two Nodes give pods addresses of one range, which is Ranges if both say the same.
	HeadOneRange FactKind = "nodes-with-one-range"
	// HeadNetworksOverlap: the Networks of the cause have overlapping ranges. Nodes is empty if
	// they are on different nodes.
	HeadNetworksOverlap FactKind = "networks-overlap"
	// HeadRecordsLost: Pool lost records and gave the address twice.
	HeadRecordsLost FactKind = "records-lost-given-twice"
	// HeadRecordLost: Pool lost the record for Owners, or some record if there are none, and gave
	// the address again.
	HeadRecordLost FactKind = "record-lost-given-again"
)

// The facts that rule a cause out.
const (
	// NotPodsThere: the Kubernetes API has the pods of Owners, and they have not ended.
	NotPodsThere FactKind = "pods-are-there"
	// NotOneLink: the nodes Owners are on no common link that is known.
	NotOneLink FactKind = "no-common-link"
	// NotGuest: Owners[0] is behind a port of a node and not outside.
	NotGuest FactKind = "behind-port"
	// NotVirtualRouter: the hardware address of Owners[0] is a virtual router's.
	NotVirtualRouter FactKind = "virtual-router"
	// NotResponder: the network plugin Text answers with the hardware address of Owners[0].
	NotResponder FactKind = "responder-of-plugin"
	// NotUncoveredHolder: Owners[0] may be the one, on a node without an agent, that Pool has the
	// address for by Records[0].
	NotUncoveredHolder FactKind = "may-be-on-uncovered-node"
	// NotTunnel: Device of Nodes[0] is no tunnel.
	NotTunnel FactKind = "no-tunnel"
	// NotByHandDevice: Device has the address from the container engine that made it.
	NotByHandDevice FactKind = "device-of-container-engine"
	// NotGiverKnown: it is not known who gave the address to Owners[0].
	NotGiverKnown FactKind = "giver-not-known"
	// NotByHand: Owners were given the address.
	NotByHand FactKind = "given-to-all"
	// NotCalico: Calico takes Nodes[0] for the node Text, but has no pool with the address.
	NotCalico FactKind = "no-calico-pool"
	// NotElsewhere: Pool never had the address for somebody else, as far as is remembered. Nodes
	// have the right nodename.
	NotElsewhere FactKind = "never-allocated-elsewhere"
	// NotByNode: Pool gives addresses for the whole cluster.
	NotByNode FactKind = "pool-of-cluster"
	// NotInPodCIDRs: the address is in the range of pods of Nodes[0] and not of Nodes[1]. It is in
	// that of another node if Nodes is empty.
	NotInPodCIDRs FactKind = "in-pod-cidr-of-one-node"
	// NotRangeOf: no range of its node is known that Owners[0] has the address from.
	NotRangeOf FactKind = "range-of-owner-not-known"
	// NotRangesOf: no ranges are known that Nodes give addresses of pods from.
	NotRangesOf FactKind = "ranges-of-nodes-not-known"
	// NotGivenToBoth: no CNI network is known to have given the address to both.
	NotGivenToBoth FactKind = "not-known-to-be-given-to-both"
	// NotTwoNetworks: Network gave the address to both.
	NotTwoNetworks FactKind = "one-network"
	// NotTwoBridges: both are on the bridge Device.
	NotTwoBridges FactKind = "one-bridge"
	// NotTwoPools: Pool gives the addresses of both networks.
	NotTwoPools FactKind = "one-pool"
	// NotGivenTwice: Pool gave the address to Owners[0] alone.
	NotGivenTwice FactKind = "given-once"
	// NotRead: the records of Pool are being read.
	NotRead FactKind = "records-being-read"
	// NotReadable: the records of Pool cannot be read because of the problem Text.
	NotReadable FactKind = "records-unreadable"
	// NotLost: Pool has the address for Owners.
	NotLost FactKind = "all-allocated"
	// NotYetFree: the pod Owners[0] is being deleted.
	NotYetFree FactKind = "being-deleted"
	// NotRecorded: no records of Nodes are known; Network is the one by which all were given the
	// address.
	NotRecorded FactKind = "no-records-known"
)

// The facts of a diagnosis; FactRecord is another.
const (
	// SeenPod: what the Kubernetes API says about the pod Owners[0].
	SeenPod FactKind = "pod"
	// SeenNoRecords: no records of Nodes are known that may have the address.
	SeenNoRecords FactKind = "no-records"
	// SeenPodCIDRs: the address is in the ranges of pods of Nodes and not in those of Others.
	SeenPodCIDRs FactKind = "pod-cidrs"
)

// A Fact is something that is known about a conflict. Its operands are values, so that facts of
// different cases can be compared.
type Fact struct {
	Kind FactKind
	// Owners are the ids of owners of the conflict.
	Owners []string
	// Nodes and Others are names of nodes, Devices names of interfaces as NODE/INTERFACE.
	Nodes, Others, Devices []string
	// Pool is the pool of an IPAM, Records are allocations in it.
	Pool    PoolName
	Records []Record
	// Device is the name of an interface, Network that of a CNI network.
	Device, Network string
	Ranges          Ranges
	Addresses       []netip.Addr
	// Text is a word of a source outside: a phase, a problem, the kind of a device.
	Text  string
	At    Stamp
	Count uint32
	State PoolState
}

// PoolName is a pool as it is shown: its key with the name of its node, which is empty for a pool
// of the whole cluster, and its CNI network.
type PoolName struct{ IPAM, Name, Node, Network string }

// Holder is the one that an IPAM has an address for, as the IPAM says.
type Holder struct{ Purpose, Namespace, Pod, ContainerID, Node string }

// Ranges are what addresses are given from: ranges of a pool, or the prefix of a bridge.
type Ranges struct {
	List []Range
	// Bridge is set for the prefix of a bridge.
	Bridge bool
}

// rangesOf returns the ranges of a pool.
func rangesOf(p *Pool) Ranges { return Ranges{List: p.Ranges} }

// rangeOf returns the prefix of a bridge; none if it is invalid.
func rangeOf(prefix netip.Prefix) Ranges {
	if !prefix.IsValid() {
		return Ranges{}
	}
	return Ranges{[]Range{RangeOf(prefix)}, true}
}

func (r Ranges) equal(other Ranges) bool {
	return r.Bridge == other.Bridge && slices.Equal(r.List, other.List)
}

// A Record is an allocation of a pool.
type Record struct {
	// Owner is the owner that it is for, if that is certain.
	Owner  string
	Holder Holder
	At     Stamp
}

// Equal reports whether two facts are the same.
func (f Fact) Equal(other Fact) bool {
	return f.Kind == other.Kind && f.Pool == other.Pool && f.Device == other.Device &&
		f.Network == other.Network && f.Text == other.Text && f.At == other.At && f.Count == other.Count && f.State == other.State &&
		slices.Equal(f.Owners, other.Owners) && slices.Equal(f.Nodes, other.Nodes) && slices.Equal(f.Others, other.Others) &&
		slices.Equal(f.Devices, other.Devices) && f.Ranges.equal(other.Ranges) && slices.Equal(f.Addresses, other.Addresses) &&
		slices.Equal(f.Records, other.Records)
}

// same reports whether two facts are the same, or there is none of either.
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
func (al *Allocation) records() []Record { return []Record{{Holder: al.holder(), At: al.AllocatedAt}} }

// holder returns the one that the allocation is for.
func (al *Allocation) holder() Holder {
	return Holder{al.Purpose, al.Namespace, al.Pod, al.ContainerID, al.Node}
}

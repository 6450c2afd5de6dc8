package verdict

import (
	"errors"
	"net/netip"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// A Stamp is a time in nanoseconds since the Unix epoch; 0 if it is not known.
type Stamp int64

// At returns the stamp of a time; 0 for the zero time.
func At(t time.Time) Stamp {
	if t.IsZero() {
		return 0
	}
	return Stamp(t.UnixNano())
}

// Time returns the stamp as a time in UTC; the zero time if it is not known.
func (s Stamp) Time() time.Time {
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(s)).UTC()
}

// MarshalText returns the stamp in RFC 3339 format; the empty text if it is not known.
func (s Stamp) MarshalText() ([]byte, error) {
	if s == 0 {
		return nil, nil
	}
	return s.Time().MarshalText()
}

// UnmarshalText reads what MarshalText wrote.
func (s *Stamp) UnmarshalText(text []byte) error {
	var at time.Time
	if len(text) > 0 {
		if err := at.UnmarshalText(text); err != nil {
			return err
		}
	}
	if *s = At(at); !s.Time().Equal(at) {
		return errors.New("time " + string(text) + " is out of range")
	}
	return nil
}

// Add returns the stamp plus a duration.
func (s Stamp) Add(d time.Duration) Stamp { return s + Stamp(d) }

// Sub returns the duration from other to the stamp.
func (s Stamp) Sub(other Stamp) time.Duration { return time.Duration(s - other) }

// Evidence is how a claim was witnessed. The numbers are those of the API.
type Evidence uint8

// The kinds of evidence.
const (
	Assigned    Evidence = iota + 1 // configured on an interface
	Announced                       // gratuitous ARP, unsolicited neighbour advertisement
	Answered                        // ARP reply, solicited neighbour advertisement
	Used                            // sender of an ordinary ARP request
	DADFailed                       // duplicate address detection failed in the kernel, or in a DHCP client
	Believed                        // an entry in a neighbour table
	WouldAnswer                     // the kernel answers on a link on which it does not have the address
)

// Kernel reports whether a kernel is the source of the evidence, and not the wire.
func (e Evidence) Kernel() bool { return e == Assigned || e == DADFailed || e == WouldAnswer }

// A KernelAnswer is what makes a kernel answer for an address on a link on which it does not have it, and whether
// a packet filter may drop the answers. The numbers are those of the API.
type KernelAnswer struct {
	By     AnswerSource
	Filter AnswerFilter
}

// AnswerSource is what makes a kernel answer.
type AnswerSource uint8

// The sources of answers.
const (
	ByAddress    AnswerSource = iota + 1 // on another interface
	ByRoute                              // of type local
	ByProxyARP                           // a setting of the interface
	ByProxyEntry                         // of `ip neigh add proxy`
	ByNeighbour                          // a wrong entry in the neighbour table of a VXLAN device that answers from it
	ByRule                               // a route of type local in a table of its own, to which a rule leads
)

// AnswerFilter is what is known of a node's packet filters.
type AnswerFilter uint8

// The states of packet filters that may drop answers.
const (
	FilterRules      AnswerFilter = iota + 1 // they have rules about ARP, which are not evaluated
	FilterUnreadable                         // they could not be read
)

// Attachment is how an interface is connected to its node. The numbers are those of the API.
type Attachment uint8

// The kinds of attachment.
const (
	Own     Attachment = iota + 1 // in the agent's own namespace
	Peer                          // its veth peer is in the agent's own namespace
	Lower                         // its lower device is in the agent's own namespace
	Private                       // reachable only within its namespace
	Local                         // loopback or dummy
	Inner                         // its veth peer is a port of a bridge in another namespace, or it is such a bridge
)

// LinkKind is the kind of a broadcast domain. The numbers are those of the API.
type LinkKind uint8

// The kinds of links.
const (
	Bridge LinkKind = iota + 1
	PointToPoint
	Uplink
	OVSPort
	Overlay
)

// PodObject is what the Kubernetes API says about a pod. It is immutable: an update of the object
// makes a new PodObject.
type PodObject struct {
	Namespace, Name, UID string
	// Node is the name of the node that the pod is bound to; empty if it is not bound yet.
	Node string
	// Phase is Pending, Running, Succeeded, Failed or Unknown.
	Phase string
	// ControllerKind and Controller name the controller of the pod. For a ReplicaSet of a
	// Deployment they name the Deployment. They are empty if the pod has no controller.
	ControllerKind, Controller string
	// VirtualMachine is the name of the KubeVirt virtual machine that the pod runs, in the pod's
	// namespace.
	VirtualMachine string
	// MachineNode is the name of the node that the virtual machine runs on; empty if that is not
	// known. Migrating is set while it is migrated. MachineSince is when the aggregator learned of it.
	MachineNode  string
	Migrating    bool
	MachineSince Stamp
	// IPs are Pod.status.podIPs.
	IPs []netip.Addr
	// HostNetwork is set if the pod uses the network namespace of the node.
	HostNetwork bool
	// RuntimeClass is set if the pod names a runtime class. Such a runtime (gVisor) may remove the
	// addresses from the interfaces and use them in its own network stack.
	RuntimeClass bool
	// DeletionTimestamp is the time by which the pod is to be deleted; 0 if it is not being
	// deleted.
	DeletionTimestamp Stamp
	// Memberships are the networks of the pod's addresses, as network plugins write them into the
	// annotations of the pod.
	Memberships []Membership
	// Heard is when the aggregator received this version of the pod.
	Heard Stamp
	// Absent is set if the API has no such pod. All other fields are then empty.
	Absent bool
}

// A Membership is an address of a pod and the network that it belongs to.
type Membership struct {
	Address netip.Addr
	// Interface is the interface inside the pod; empty if the annotation does not name it.
	Interface string
	// Network is the network in which the address must be unique; empty if there is none.
	Network string
	// OVS is set if a plugin writes it that separates tenants by Open vSwitch. It applies to ports of
	// Open vSwitch only.
	OVS bool
	// Device is set if it is the address of a device that a ResourceClaim allocates to the pod, which has no Network.
	Device bool
	// PerNode is set if the IPAM allocates on each node without regard to the others. Two nodes then
	// have one network only if frames show that they share a LAN.
	PerNode bool
}

// Membership returns the network of an address that a pod has on an interface: from a plugin
// that separates tenants by Open vSwitch, or from another one. known is false if there is none. The
// membership is zero if the annotations name several networks.
func (p *PodObject) Membership(iface string, a netip.Addr, ovs bool) (found Membership, known bool) {
	if p == nil {
		return found, false
	}
	for _, at := range p.Memberships {
		if at.OVS != ovs || at.Address != a || at.Interface != "" && at.Interface != iface {
			continue
		}
		if known && found.Network != at.Network {
			return Membership{}, true
		}
		found, known = at, true
	}
	return found, known
}

// Node is the part of a host that one agent observes. Its Key is its identity.
type Node struct {
	// Name is for display; the identity is (Boot, Netns, Vouched).
	Name, Boot, Netns string
	// Vouched is the name under which the agent authenticated; empty if it did not. It is part of
	// the identity because an agent cannot prove its boot ID and network namespace: another agent
	// must not take over a node by reporting them first.
	Vouched string
	Epoch   uint64 `json:",string"` // many JSON parsers read numbers as floating-point
	// Unheard is set while no agent is connected for the node.
	Unheard bool
	// Listed is when the node's last snapshot was complete. Claims that the aggregator received by then
	// may have begun long before.
	Listed Stamp
	// TimedOut is set if no agent was connected for longer than the node timeout. The node's owners
	// are then gone.
	TimedOut bool
	// Rebooted is set together with TimedOut if the owners are gone because the machine rebooted.
	Rebooted bool
	// Skew is how far the node's clock is ahead of the aggregator's clock, if SkewKnown is set. It may be wrong by
	// SkewWithin. Clocks of two nodes are compared by it to give advice. It never influences verdicts.
	Skew, SkewWithin time.Duration
	SkewKnown        bool
	// ClockSet is when the node's clock was last set, by that clock, and ClockStep is by how much it was set in all. Earlier
	// times of the node may be wrong by as much: the clock may have been wrong before, or have stood still in a virtual
	// machine that was paused.
	ClockSet  Stamp
	ClockStep time.Duration
	// IPAMName is the name that the IPAM with its own names for nodes has for the node; empty if it is
	// not known.
	IPAMName ipam.NodeName
	// VIPProgram is the program on the node that moves virtual addresses between nodes, such as
	// keepalived; empty if none was seen. VIPProgramEnded is set if it ran and has ended.
	VIPProgram      string
	VIPProgramEnded bool
	// SeesProcesses is set if the agent sees the processes of the machine.
	SeesProcesses bool
}

// Namespace is one network namespace as one node sees it. It is immutable: a change makes a new
// Namespace.
type Namespace struct {
	Node *Node
	// Netns is the inode in decimal; empty if it is not known.
	Netns string
	// ID is the identity of the owner that the namespace is, as OwnerID returns it.
	ID string
	// Who is the workload in the namespace.
	Who Who
	// Intended has the addresses that the namespace was meant to have and does not have, as the
	// agent reports them: one "ADDRESS SOURCE INTERFACE" per line.
	Intended string
	// Record is the number that the agent gave to the namespace; OwnRecord is its own namespace.
	Record uint32
}

// OwnRecord is the record number of the agent's own namespace.
const OwnRecord = 1

// Link is a broadcast domain as one node sees it. It is immutable.
type Link struct {
	Node   *Node
	Name   string
	Kind   LinkKind
	Routed bool // a bridge whose traffic the node routes
	// Distributed is set for a bridge to which a controller tells where MACs are, as in an EVPN: bridges
	// of several nodes may then have one address and one MAC as the gateway of their machines.
	Distributed bool
	// CarrierLost is when the aggregator learned that no uplink on the link has a carrier any longer; 0 if one has, or there is
	// no uplink.
	CarrierLost Stamp
	// Domain is the broadcast domain that the link shares with links of other nodes; nil if no such
	// link is known.
	Domain *Domain
	// Proven is the domain of the links that are proven to be the same as this link; nil if there
	// is no proof.
	Proven *Domain
	// BothWays is the domain of the links that frames in both directions prove to be the same as this
	// link; nil if there are none.
	BothWays *Domain
}

// Domain is a broadcast domain that several nodes are on. Its Key is its identity.
type Domain struct {
	// Node and Name identify the first link of the domain, in order of node and name.
	Node *Node
	Name string
}

// LinkProof is the evidence that links of different nodes are the same broadcast domain. The
// numbers are those of the API.
type LinkProof uint8

// The kinds of proof.
const (
	// OneWay: a frame from one node entered the other node's link.
	OneWay LinkProof = iota + 1
	// Proven: frames from each node entered the other node's link, or frames from one node did so
	// repeatedly.
	Proven
)

// Stitch is the evidence that two links are the same broadcast domain: a frame that entered one of
// them through an uplink carried a hardware address that only a node on the other link has.
type Stitch struct {
	// Entered is the link that the frame entered; Home is the link of its sender.
	Entered, Home *Link
	MAC           MAC
	// Back is the hardware address of a frame from Entered that entered Home; empty if there was no
	// such frame or none is needed.
	Back  MAC
	Seen  Stamp
	Proof LinkProof
}

// Interface is one interface of a namespace. It is immutable.
type Interface struct {
	Namespace     *Namespace
	Link          *Link // nil for Private and Local
	Name          string
	MAC           MAC
	HostInterface string
	VRF           string
	Index         uint32
	Peer          uint32 // record of the namespace with the veth peer; 0 if there is none
	Attachment    Attachment
	Uplink        bool
	Tap           bool // a virtual machine is attached to it
	Macvtap       bool // a virtual machine has its MAC: a macvtap device of the node, which has no address on it but link-local ones
	Hairpin       bool // its bridge returns frames to the port they came from
	NoARP         bool // it neither sends nor answers ARP: nobody on its link learns its IPv4 addresses
	PVLAN         bool // by proxy_arp_pvlan, it answers for IPv4 addresses to which its route leads by itself
	PodDevice     bool // an IPAM reaches pods through it (ipam.IPAM.PodDevice)
	// Kind is the link kind in the terms of rtnetlink (veth, bridge, vxlan, …); empty for hardware.
	Kind string
}

// Claim is evidence that an address is held, together with the interface and the node that it comes
// from.
type Claim struct {
	// Interface is the interface that has the address (Assigned, DADFailed), or the port through
	// which the frame entered.
	Interface *Interface
	Frame     // set for claims on the wire only
	Kind      Evidence

	PrefixLength uint8
	Flags        uint32
	Count        uint32
	// Network is the network for which a container runtime or CNI result gave the address to the
	// interface; empty if it is not known. For WouldAnswer, it is the name of the interface that has the
	// address or the route, or to which the route of a proxy leads.
	Network string
	Answer  KernelAnswer // WouldAnswer only
	// TakenAlong is set if the interface had the address as a device of the node, and the plugin host-device
	// copied it into the pod.
	TakenAlong bool
	// Peer is set if the IPv4 address has a peer, with which the kernel deletes it.
	Peer bool
	Times
}

// Frame is what a frame says about its sender.
type Frame struct {
	// MAC is the sender's hardware address.
	MAC  MAC
	Link *Link
	// Source is the Ethernet source address; empty if it equals MAC.
	Source          MAC
	VLAN, InnerVLAN uint16
	// NoOverride is set for a neighbour advertisement without the Override flag (RFC 4861, section
	// 4.4).
	NoOverride bool
	// Routed is set if the node itself routes the address to the namespace behind the port through
	// which the frame entered. For a claim of a kernel, it is set if the node's own route for a
	// contested address leads to the interface.
	Routed bool
	// Alone is set if the frame entered through the tap of a virtual machine, and so did none with another hardware address.
	Alone bool
	// FromOutside is set for the frame of an ordinary request that entered a node with a MAC of the node that is not shared by
	// design, although the LAN returns no frames of the node to it.
	FromOutside bool
	// HadMAC is an interface that had the MAC of an announcement until HadMACUntil; nil if there is none.
	HadMAC      *Interface
	HadMACUntil Stamp
}

// Weak reports whether the frame does not make its sender an owner: the sender may speak for
// another host, or no host can have its hardware address.
func (f *Frame) Weak() bool { return f.Source != "" || f.NoOverride || f.MAC.Group() }

// Times are the times at which a claim was seen. First, Last and AssignedAt are by the agent's
// clock and only tell who had an address first. The other stamps are by the aggregator's clock, and only
// they are used for verdicts.
type Times struct {
	First, Last, AssignedAt Stamp

	Begun  Stamp // first received
	Seen   Stamp // last received
	Before Stamp // received before Seen; 0 for never
	Read   Stamp // Assigned: last read from the kernel
}

// Node returns the node that witnessed the claim.
func (c *Claim) Node() *Node { return c.Interface.Namespace.Node }

// Wire reports whether the claim was seen on the wire.
func (c *Claim) Wire() bool {
	return c.Kind == Announced || c.Kind == Answered || c.Kind == Used
}

// ScopeKind is how wide a scope is. The numbers are those of the API; a wider scope has a larger
// number.
type ScopeKind uint8

// The kinds of scopes.
const (
	LinkScope ScopeKind = iota + 1
	NodeScope
	NetworkScope
)

// Scope is a set of owners within which an address must be unique. The zero Scope means that the
// address is compared nowhere.
type Scope struct {
	Kind ScopeKind
	// Node is the name of the node; empty for a network.
	Node string
	// Name is the name of the link, of the VRF (empty for the default VRF) or of the network.
	Name string
}

// Text returns the name of the scope as the API shows it.
func (s Scope) Text() string {
	switch {
	case s.Node == "":
		return s.Name
	case s.Name == "":
		return s.Node
	}
	return s.Node + "/" + s.Name
}

// String returns the name of the kind in the API.
func (k ScopeKind) String() string {
	switch k {
	case LinkScope:
		return "LINK"
	case NodeScope:
		return "NODE"
	case NetworkScope:
		return "NETWORK"
	}
	return "UNSPECIFIED"
}

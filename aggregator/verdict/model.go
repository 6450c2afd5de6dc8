package verdict

import (
	"net/netip"
	"strconv"
	"time"
)

// Stamp is a moment in nanoseconds since the Unix epoch; 0 is unknown.
type Stamp int64

// At is the stamp of a time.
func At(t time.Time) Stamp {
	if t.IsZero() {
		return 0
	}
	return Stamp(t.UnixNano())
}

// Time is the stamp as a time in UTC; the zero time where it is unknown.
func (s Stamp) Time() time.Time {
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(s)).UTC()
}

// Add is the stamp d later.
func (s Stamp) Add(d time.Duration) Stamp { return s + Stamp(d) }

// Sub is how long after other the stamp is.
func (s Stamp) Sub(other Stamp) time.Duration { return time.Duration(s - other) }

// Evidence is one way in which a holding is witnessed. The numbers are the contract's.
type Evidence uint8

// The ways.
const (
	Assigned  Evidence = iota + 1 // configured on an interface
	Announced                     // gratuitous ARP, unsolicited neighbour advertisement
	Answered                      // ARP reply, solicited neighbour advertisement
	Used                          // sender of an ordinary ARP request
	DADFailed                     // the kernel's own duplicate address detection failed
	Believed                      // a neighbour table entry
)

// Attachment is how an interface is joined to its node. The numbers are the contract's.
type Attachment uint8

// The attachments.
const (
	Own     Attachment = iota + 1 // it is in the agent's own namespace
	Peer                          // its peer is in the agent's own namespace
	Lower                         // its lower device is in the agent's own namespace
	Private                       // neither: inside a namespace only
	Local                         // loopback or dummy
)

// LinkKind is how a broadcast domain is made. The numbers are the contract's.
type LinkKind uint8

// The kinds of links.
const (
	Bridge LinkKind = iota + 1
	PointToPoint
	Uplink
	OVSPort
)

// PodObject is what the Kubernetes API says of a pod. It never changes: when the object
// does, there is a new one.
type PodObject struct {
	Namespace, Name, UID string
	// Node is the one that it is bound to; empty before.
	Node string
	// Phase is Pending, Running, Succeeded, Failed or Unknown.
	Phase string
	// ControllerKind and Controller are what made it, a Deployment for its
	// ReplicaSets; empty for none.
	ControllerKind, Controller string
	// VirtualMachine is the one that it runs (KubeVirt), in its namespace.
	VirtualMachine string
	// IPs are Pod.status.podIPs.
	IPs []netip.Addr
	// HostNetwork tells that its addresses are the node's.
	HostNetwork bool
	// RuntimeClass tells that it names one: what it is run by may take its addresses
	// from its interfaces, for a network stack of its own (gVisor).
	RuntimeClass bool
	// DeletionTimestamp is when it is to have ended; 0 where nobody deleted it.
	DeletionTimestamp Stamp
	// Heard is since when it is known to be as this says.
	Heard Stamp
	// Absent tells that the API has no such pod: all else is empty.
	Absent bool
}

// Node is what one agent watches. Its Key is its identity.
type Node struct {
	// Name is the label; the identity is (Boot, Netns, Vouched).
	Name, Boot, Netns string
	// Vouched is the name that its agent is known by to whoever lets it in; empty
	// where nothing says so. What no agent can prove, its boot id and network
	// namespace, is nobody's for having said it first.
	Vouched string
	Epoch   uint64
	// Unheard is set while no agent reports for the node.
	Unheard bool
	// TimedOut is set when it was not heard from for too long: its owners end.
	TimedOut bool
	// Rebooted is set with TimedOut where the machine was booted anew: that ended
	// them, not silence.
	Rebooted bool
	// Skew is how much its clock is ahead, where SkewKnown is set. It decides
	// nothing: advice goes by it, where clocks of two nodes are compared.
	Skew      time.Duration
	SkewKnown bool
	// CalicoNodename is what /var/lib/calico/nodename says there; empty for none.
	CalicoNodename string
}

// Namespace is one network namespace as one node sees it. It never changes: a
// change of the record makes a new one.
type Namespace struct {
	Node *Node
	// Netns is the inode in decimal, empty where it is not known.
	Netns string
	// ID is the owner that the namespace is: OwnerID of the other fields.
	ID string
	// Who lives in it.
	Who Who
	// Intended are the addresses that it was meant to have and has not, as the node
	// tells them: ADDRESS SOURCE INTERFACE, one in a line.
	Intended string
	// Record is the agent's number for it; OwnRecord is the agent's own.
	Record uint32
}

// OwnRecord is the number of the agent's own namespace.
const OwnRecord = 1

// OwnerID is the identity of the owner that a namespace is. By boot and inode,
// two agents on one kernel agree on it; without an inode only the agent's own
// numbering tells namespaces apart.
func OwnerID(n *Node, record uint32, netns string) string {
	if netns != "" {
		return n.Boot + "/" + netns
	}
	return n.Boot + "/" + n.Netns + "/" + strconv.FormatUint(n.Epoch, 10) + "/" + strconv.FormatUint(uint64(record), 10)
}

// Link is a broadcast domain as one node sees it. It never changes.
type Link struct {
	Node   *Node
	Name   string
	Kind   LinkKind
	Routed bool // a bridge that the node routes for
	// Domain is what links of several nodes share that are one; nil for a link
	// that is not known to be another node's, too.
	Domain *Domain
	// Proven is the domain of the links that are proven to be one with this link; nil if there
	// is no proof.
	Proven *Domain
}

// Domain is one broadcast domain that several nodes are on. Its Key is its identity.
type Domain struct {
	// Node and Name are its first link, by node and name.
	Node *Node
	Name string
}

// LinkProof is the evidence that links of different nodes are one. The numbers are those of the
// API.
type LinkProof uint8

// The kinds of evidence.
const (
	// OneWay: a frame from one node entered the other node's link.
	OneWay LinkProof = iota + 1
	// Proven: frames from each node entered the other node's link, or frames from one node did
	// again and again.
	Proven
)

// Stitch is how two links are known to be one: a frame that entered one of them
// by an uplink carried a hardware address that only a node on the other one has.
type Stitch struct {
	// Entered is the link that the frame entered, Home that of its sender.
	Entered, Home *Link
	MAC           MAC
	// Back is the hardware address of a frame from Entered that entered Home; empty if there
	// was none or none is needed.
	Back  MAC
	Seen  Stamp
	Proof LinkProof
}

// Interface is one interface of a namespace. It never changes.
type Interface struct {
	Namespace     *Namespace
	Link          *Link // nil for Private and Local
	Name          string
	MAC           MAC
	HostInterface string
	VRF           string
	Index         uint32
	Peer          uint32 // record of the namespace with the veth peer, 0 for none
	Attachment    Attachment
	Uplink        bool
	Tap           bool // a virtual machine is behind it
	// Kind is the link kind as rtnetlink names it (veth, bridge, vxlan, …); empty for
	// hardware.
	Kind string
}

// Claim is one way in which an address is held, joined with the tables of its node.
type Claim struct {
	// Interface has the address (Assigned, DADFailed), or is the port that the
	// frame entered by.
	Interface *Interface
	Frame     // of the wire only
	Kind      Evidence

	PrefixLength uint8
	Flags        uint32
	Count        uint32
	// Network is the network that a container runtime or CNI result gave the
	// interface the address for; empty where none is known to have.
	Network string
	Times
}

// Frame is what a frame on the wire said of its sender.
type Frame struct {
	// MAC is the sender's hardware address.
	MAC  MAC
	Link *Link
	// Source is the Ethernet source where it is not MAC.
	Source          MAC
	VLAN, InnerVLAN uint16
	// NoOverride tells that it is a neighbour advertisement without the Override
	// flag (RFC 4861, section 4.4).
	NoOverride bool
	// Routed is set if the node itself routes the address to the namespace behind the port that
	// the frame entered by.
	Routed bool
}

// Weak reports whether the frame does not make its sender an owner. The sender may speak for
// another host, or no host can have that hardware address.
func (f *Frame) Weak() bool { return f.Source != "" || f.NoOverride || f.MAC.Group() }

// Times are when a claim was seen. First, Last and AssignedAt are by the agent's clock and only
// shown; the other stamps are the receiver's, and the verdict goes by them alone.
type Times struct {
	First, Last, AssignedAt Stamp

	Begun  Stamp // first received
	Seen   Stamp // last received
	Before Stamp // received before that, 0 for never
	Read   Stamp // Assigned: last read from the kernel
}

// Node is the node that witnesses the claim.
func (c *Claim) Node() *Node { return c.Interface.Namespace.Node }

// Wire tells whether the claim was seen on the wire.
func (c *Claim) Wire() bool {
	return c.Kind == Announced || c.Kind == Answered || c.Kind == Used
}

// ScopeKind is how wide a scope is. The numbers are the contract's; wider is more.
type ScopeKind uint8

// The kinds of scopes.
const (
	LinkScope ScopeKind = iota + 1
	NodeScope
	NetworkScope
)

// Scope is a set of owners within which an address must be unique. The zero Scope is none.
type Scope struct {
	Kind ScopeKind
	// Node is the name of the node; empty for a network.
	Node string
	// Name is the link, the VRF (empty for the default one) or the network.
	Name string
}

// Text is the scope's name in the contract.
func (s Scope) Text() string {
	switch {
	case s.Node == "":
		return s.Name
	case s.Name == "":
		return s.Node
	}
	return s.Node + "/" + s.Name
}

// String is the kind's name in the contract.
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
